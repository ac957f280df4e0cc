package qos

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/topology/nested"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// NetworkKind is the kind of the object that defines a network.
type NetworkKind string

// Kinds of networks. The default network of a cluster has no object.
const (
	DefaultNetwork              NetworkKind = "DefaultNetwork"
	NetworkTopology             NetworkKind = "NetworkTopology"
	NetworkAttachmentDefinition NetworkKind = "NetworkAttachmentDefinition"
	UserDefinedNetwork          NetworkKind = "UserDefinedNetwork"
	ClusterUserDefinedNetwork   NetworkKind = "ClusterUserDefinedNetwork"
)

// Network is a network that pods are attached to.
type Network struct {
	NetworkID
	Labels map[string]string
	// Primary says that it is the network of a pod's default route, the one that objects
	// without a selector cover.
	Primary bool
}

// PodNetwork is the network that a NetworkTopology of role primary with these labels makes.
func PodNetwork(name string, labels map[string]string) Network {
	return Network{NetworkID: NetworkID{Kind: NetworkTopology, Name: name}, Labels: labels, Primary: true}
}

// NetworkID identifies a network.
type NetworkID struct {
	Kind            NetworkKind
	Namespace, Name string // Namespace is "" for those that have none
}

// Pod is a pod as the compiler sees it.
type Pod struct {
	Key         types.NamespacedName
	Labels      map[string]string
	Attachments []Attachment
}

// Attachment is an interface of a pod on a network. A pod may have several on one network.
type Attachment struct {
	Network   Network
	Interface string // its name in the pod
	Addresses []netip.Addr
}

// Rule is a rule as it holds on an attachment of a pod.
type Rule struct {
	Precedence int
	Policy     types.NamespacedName
	Index      int // of the rule in its object
	DSCP       uint8
	RateKbit   uint32 // per second; 0 is no limit
	BurstKbit  uint32 // 0 leaves it to the backend
	// Any says that every destination matches. Otherwise Addresses, which may be nil, and
	// Sets say which do.
	Any       bool
	Addresses *netipx.IPSet
	Sets      []SetID
	Ports     []Port // nil is any
}

// SetID identifies the addresses that the pods of a destination have on a network.
type SetID struct {
	Policy  types.NamespacedName
	Rule    int // index in spec.egress
	To      int // index in classifier.to
	Network NetworkID
}

// Packet holds the fields of a packet that rules match.
type Packet struct {
	Destination netip.Addr
	Protocol    Protocol
	Port        uint16 // of the destination
	// Fragment says that this is a fragment whose protocol is known, and whose port is not: each one, for tc and for OVN. (OVN does not
	// know the protocol of later ones of IPv6 either.)
	Fragment bool
}

// Places says where each rule of an attachment stands, from 0 for the winning one: each
// precedence has a place of its own, whatever other rules there are. Of two rules with one
// precedence, the second moves to the next free place, so that there are up to twice as many
// places as rules.
func Places(rules []Rule) []int {
	out := make([]int, len(rules))
	next := 0
	for i := range rules {
		out[i] = max(next, MaxPrecedence-rules[i].Precedence)
		next = out[i] + 1
	}
	return out
}

// Changed lists the effects of a change of the input: pods with other rules or addresses, and sets with other
// members.
type Changed struct {
	Pods map[types.NamespacedName]bool
	Sets map[SetID]bool
}

func newChanged() Changed {
	return Changed{Pods: map[types.NamespacedName]bool{}, Sets: map[SetID]bool{}}
}

// Compiler knows the rules of every attachment of every pod. Its zero value is not usable:
// see NewCompiler. It is not safe for concurrent use.
type Compiler struct {
	namespaces map[string]labels.Set
	policies   nested.Map[string, string, *compiled] // namespace, name
	pods       nested.Map[string, string, *Pod]      // namespace, name
	// crossing are the destinations of all policies that select namespaces.
	crossing map[*destination]bool
	// kept is how many members the destinations of a namespace's policies have, of those that are kept.
	kept map[string]int
	// mostMembers are kept of a policy, and mostOfNamespace of all policies of a namespace.
	mostMembers, mostOfNamespace int
}

// compiled is a policy with its destinations that are pods.
type compiled struct {
	*Policy
	destinations []*destination
	// members is how many pods the destinations have together, also while these are not kept.
	members int
	dropped bool // they are more than are kept
}

// destination is one destination of a rule that is pods, with those that it selects.
type destination struct {
	PolicyDestination
	of       *compiled
	rule, to int
	members  map[types.NamespacedName]*Pod // nil while they are not kept
}

// NewCompiler returns a compiler without any object.
func NewCompiler() *Compiler {
	return &Compiler{
		namespaces: map[string]labels.Set{}, crossing: map[*destination]bool{}, kept: map[string]int{},
		mostMembers: v1alpha1.MaxDestinationAddresses, mostOfNamespace: MaxNamespaceMembers,
	}
}

// SetPolicy adds or replaces a policy. A policy with an error has no rules, and the earlier one of its name is gone.
func (c *Compiler) SetPolicy(p *Policy) Changed {
	changed := c.DeletePolicy(p.Key)
	if p.Err != nil {
		return changed
	}
	n := &compiled{Policy: p}
	for i, rule := range p.Rules {
		for j, to := range rule.To {
			if to.Addresses != nil {
				continue
			}
			d := &destination{PolicyDestination: to, of: n, rule: i, to: j, members: map[types.NamespacedName]*Pod{}}
			n.destinations = append(n.destinations, d)
			if to.namespaces != nil {
				c.crossing[d] = true
			}
		}
	}
	c.policies.Set(p.Key.Namespace, p.Key.Name, n)
	c.fill(n, changed)
	c.sources(n, changed)
	return changed
}

// DeletePolicy removes a policy.
func (c *Compiler) DeletePolicy(key types.NamespacedName) Changed {
	changed := newChanged()
	old, ok := c.policies[key.Namespace][key.Name]
	if !ok {
		return changed
	}
	c.sources(old, changed)
	for _, d := range old.destinations {
		for _, pod := range d.members {
			d.touch(pod, changed)
		}
		delete(c.crossing, d)
	}
	c.policies.Delete(key.Namespace, key.Name)
	c.drop(old)
	c.fitting(key.Namespace, changed)
	return changed
}

// sources notes the pods that a policy covers on one of their networks.
func (c *Compiler) sources(p *compiled, changed Changed) {
	for _, pod := range c.pods[p.Key.Namespace] {
		if p.selects(pod) && slices.ContainsFunc(pod.Attachments, func(a Attachment) bool { return c.covers(p.Policy, a.Network) }) {
			changed.Pods[pod.Key] = true
		}
	}
}

// selects reports whether a policy selects a pod of its namespace.
func (p *Policy) selects(pod *Pod) bool {
	return p.pods.Matches(labels.Set(pod.Labels))
}

// fill finds the members of all destinations of a policy, or of as many as are kept.
func (c *Compiler) fill(p *compiled, changed Changed) {
	for _, d := range p.destinations {
		if d.namespaces == nil {
			c.join(d, c.pods[p.Key.Namespace], changed)
			continue
		}
		for namespace, of := range c.namespaces {
			if d.namespaces.Matches(of) {
				c.join(d, c.pods[namespace], changed)
			}
		}
	}
}

// join makes those of some pods members of a destination that it selects.
func (c *Compiler) join(d *destination, pods map[string]*Pod, changed Changed) {
	for _, pod := range pods {
		if d.selects(pod) {
			c.add(d, pod, changed)
		}
	}
}

// selects reports whether a destination selects a pod of a namespace that it selects. It selects none without an
// address on a network that its policy may cover, nor if the selectors are not kept: see Policy.Slim.
func (d *destination) selects(pod *Pod) bool {
	return d.pods != nil && d.pods.Matches(labels.Set(pod.Labels)) &&
		slices.ContainsFunc(pod.Attachments, func(a Attachment) bool {
			return len(a.Addresses) > 0 && d.of.mayCover(a.Network)
		})
}

// covered reports whether a destination selects a namespace. One that is not known has
// no labels, not even that of its name.
func (c *Compiler) covered(d *destination, namespace string) bool {
	if d.namespaces == nil {
		return namespace == d.of.Key.Namespace
	}
	known, ok := c.namespaces[namespace]
	return ok && d.namespaces.Matches(known)
}

// reaches reports whether a destination selects a pod.
func (c *Compiler) reaches(d *destination, pod *Pod) bool {
	return c.covered(d, pod.Key.Namespace) && d.selects(pod)
}

// has reports whether a pod, as it is, is a member of a destination.
func (c *Compiler) has(d *destination, pod *Pod) bool {
	if d.of.dropped {
		return c.reaches(d, pod)
	}
	return d.members[pod.Key] != nil
}

// add makes a pod a member. Of a policy that has too many none is kept.
func (c *Compiler) add(d *destination, pod *Pod, changed Changed) {
	p := d.of
	p.members++
	if p.dropped {
		if p.members == c.mostMembers+1 { // it is another bound that they exceed
			changed.Sets[SetID{Policy: p.Key}] = true
		}
		return
	}
	d.members[pod.Key] = pod
	d.touch(pod, changed)
	c.kept[p.Key.Namespace]++
	if p.members > c.mostMembers {
		c.over(p, changed)
	}
	for c.kept[p.Key.Namespace] > c.mostOfNamespace {
		c.over(c.youngest(p.Key.Namespace), changed)
	}
}

// remove makes a pod no member any more.
func (c *Compiler) remove(d *destination, pod *Pod, changed Changed) {
	p := d.of
	p.members--
	switch {
	case !p.dropped:
		delete(d.members, pod.Key)
		d.touch(pod, changed)
		c.unkeep(p.Key.Namespace, 1)
	case p.members == c.mostMembers:
		changed.Sets[SetID{Policy: p.Key}] = true
	}
	c.fitting(p.Key.Namespace, changed)
}

func (c *Compiler) unkeep(namespace string, n int) {
	if c.kept[namespace] -= n; c.kept[namespace] <= 0 {
		delete(c.kept, namespace)
	}
}

// youngest returns the policy of a namespace whose members are to be dropped first.
func (c *Compiler) youngest(namespace string) *compiled {
	var out *compiled
	for _, p := range c.policies[namespace] {
		if !p.dropped && p.members > 0 && (out == nil || older(out.Policy, p.Policy) < 0) {
			out = p
		}
	}
	return out
}

// over drops the members of a policy that are too many.
func (c *Compiler) over(p *compiled, changed Changed) {
	changed.Sets[SetID{Policy: p.Key}] = true
	c.drop(p)
	c.fitting(p.Key.Namespace, changed)
}

func (c *Compiler) drop(p *compiled) {
	if p.dropped {
		return
	}
	c.unkeep(p.Key.Namespace, p.members)
	p.dropped = true
	for _, d := range p.destinations {
		d.members = nil
	}
}

// fits reports whether the members of a policy that were dropped can be kept.
func (c *Compiler) fits(p *compiled) bool {
	return p.dropped && p.members <= c.mostMembers && c.kept[p.Key.Namespace]+p.members <= c.mostOfNamespace
}

// fitting marks the sets of the policies whose members fit into the bounds again. They are computed when the sets are
// queried, since that takes as long as for a new policy.
func (c *Compiler) fitting(namespace string, changed Changed) {
	for _, p := range c.policies[namespace] {
		if c.fits(p) {
			changed.Sets[SetID{Policy: p.Key}] = true
		}
	}
}

// refill keeps the members of a policy again, if there is room for them.
func (c *Compiler) refill(p *compiled) {
	if !c.fits(p) {
		return
	}
	p.dropped, p.members = false, 0
	for _, d := range p.destinations {
		d.members = map[types.NamespacedName]*Pod{}
	}
	c.fill(p, newChanged())
}

// touch notes the sets that have addresses of a pod.
func (d *destination) touch(pod *Pod, changed Changed) {
	for i := range pod.Attachments {
		changed.Sets[d.set(pod.Attachments[i].Network.NetworkID)] = true
	}
}

func (d *destination) set(network NetworkID) SetID {
	return SetID{Policy: d.of.Key, Rule: d.rule, To: d.to, Network: network}
}

// SetPod adds or replaces a pod. The compiler keeps it: the caller does not change it.
func (c *Compiler) SetPod(pod *Pod) Changed {
	changed := newChanged()
	old := c.pods[pod.Key.Namespace][pod.Key.Name]
	c.pods.Set(pod.Key.Namespace, pod.Key.Name, pod)
	if old == nil || !same(old, pod) {
		changed.Pods[pod.Key] = true
	}
	c.move(old, pod, pod.Key, changed)
	return changed
}

// DeletePod removes a pod.
func (c *Compiler) DeletePod(key types.NamespacedName) Changed {
	changed := newChanged()
	old := c.pods[key.Namespace][key.Name]
	if old == nil {
		return changed
	}
	changed.Pods[key] = true
	c.pods.Delete(key.Namespace, key.Name)
	c.move(old, nil, key, changed)
	return changed
}

// move replaces a pod in the destinations that select it, or did.
func (c *Compiler) move(old, pod *Pod, key types.NamespacedName, changed Changed) {
	alike := old != nil && pod != nil && same(old, pod)
	visit := func(d *destination) {
		was := old != nil && c.has(d, old)
		is := was
		if !alike { // to evaluate selectors takes most of the time
			is = pod != nil && c.reaches(d, pod)
		}
		switch {
		case was && !is:
			c.remove(d, old, changed)
		case is && !was:
			c.add(d, pod, changed)
		case is && !d.of.dropped:
			d.members[key] = pod
			if !attachedAlike(old, pod) {
				d.touch(old, changed)
				d.touch(pod, changed)
			}
		}
	}
	for _, p := range c.policies[key.Namespace] {
		for _, d := range p.destinations {
			if d.namespaces == nil {
				visit(d)
			}
		}
	}
	for d := range c.crossing {
		visit(d)
	}
}

// same reports whether two states of a pod have the same rules and addresses.
func same(a, b *Pod) bool {
	return maps.Equal(a.Labels, b.Labels) && attachedAlike(a, b)
}

func attachedAlike(a, b *Pod) bool {
	return slices.EqualFunc(a.Attachments, b.Attachments, func(x, y Attachment) bool {
		return x.Interface == y.Interface && x.Network.NetworkID == y.Network.NetworkID && x.Network.Primary == y.Network.Primary &&
			maps.Equal(x.Network.Labels, y.Network.Labels) && slices.Equal(x.Addresses, y.Addresses)
	})
}

// SetNamespace adds a namespace or replaces its labels.
func (c *Compiler) SetNamespace(name string, of map[string]string) Changed {
	changed := newChanged()
	old, known := c.namespaces[name]
	if known && maps.Equal(old, of) {
		return changed
	}
	c.namespaces[name] = labels.Set(of)
	c.relabelled(name, old, known, changed)
	return changed
}

// NamespaceLabels are the labels of a namespace, none of one that is not known.
func (c *Compiler) NamespaceLabels(name string) map[string]string { return c.namespaces[name] }

// DeleteNamespace removes a namespace. Its pods are removed by themselves.
func (c *Compiler) DeleteNamespace(name string) Changed {
	changed := newChanged()
	old, known := c.namespaces[name]
	delete(c.namespaces, name)
	if known {
		c.relabelled(name, old, known, changed)
	}
	return changed
}

// relabelled visits what depends on the labels of a namespace: destinations that select
// namespaces, and networks that are in it.
func (c *Compiler) relabelled(name string, old labels.Set, known bool, changed Changed) {
	for d := range c.crossing {
		now, is := c.namespaces[name]
		if (known && d.namespaces.Matches(old)) == (is && d.namespaces.Matches(now)) {
			continue
		}
		if !is || !d.namespaces.Matches(now) {
			for _, pod := range c.pods[name] {
				if d.selects(pod) {
					c.remove(d, pod, changed)
				}
			}
			continue
		}
		c.join(d, c.pods[name], changed)
	}
	for namespace, policies := range c.policies {
		for _, p := range policies {
			if !slices.ContainsFunc(p.networks, func(t networkTerm) bool { return t.namespaces != nil }) {
				continue
			}
			for _, pod := range c.pods[namespace] {
				in := slices.ContainsFunc(pod.Attachments, func(a Attachment) bool { return a.Network.Namespace == name })
				if in && p.selects(pod) {
					changed.Pods[pod.Key] = true
				}
			}
		}
	}
}

// covers reports whether a policy covers a network.
func (c *Compiler) covers(p *Policy, n Network) bool {
	if len(p.networks) == 0 {
		return n.Primary
	}
	return slices.ContainsFunc(p.networks, func(t networkTerm) bool { return t.covers(n, c.namespaces[n.Namespace]) })
}

// mayCover is covers without the labels of namespaces.
func (p *Policy) mayCover(n Network) bool {
	if len(p.networks) == 0 {
		return n.Primary
	}
	return slices.ContainsFunc(p.networks, func(t networkTerm) bool {
		t.namespaces = nil
		return t.covers(n, nil)
	})
}

// Rules returns the rules of each attachment of a pod, in the order of its attachments; of
// those that match a packet, the first one decides.
func (c *Compiler) Rules(key types.NamespacedName) [][]Rule {
	pod := c.pods[key.Namespace][key.Name]
	if pod == nil {
		return nil
	}
	out := make([][]Rule, len(pod.Attachments))
	for i, policies := range c.Covering(key) {
		for _, p := range policies {
			out[i] = append(out[i], c.policies[key.Namespace][p.Key.Name].rules(pod.Attachments[i].Network.NetworkID)...)
		}
	}
	for _, rules := range out {
		slices.SortFunc(rules, before)
	}
	return out
}

// Covering returns the policies that cover each attachment of a pod, in no order.
func (c *Compiler) Covering(key types.NamespacedName) [][]*Policy {
	pod := c.pods[key.Namespace][key.Name]
	if pod == nil {
		return nil
	}
	out := make([][]*Policy, len(pod.Attachments))
	for _, p := range c.policies[key.Namespace] {
		if !p.selects(pod) {
			continue
		}
		for i := range pod.Attachments {
			if c.covers(p.Policy, pod.Attachments[i].Network) {
				out[i] = append(out[i], p.Policy)
			}
		}
	}
	return out
}

// before orders rules, the winning one first.
func before(a, b Rule) int {
	return cmp.Or(
		cmp.Compare(b.Precedence, a.Precedence),
		cmp.Compare(a.Policy.Namespace, b.Policy.Namespace),
		cmp.Compare(a.Policy.Name, b.Policy.Name),
	)
}

// rules are those of a policy on a network.
func (p *compiled) rules(network NetworkID) []Rule {
	out := make([]Rule, len(p.Rules))
	for i, r := range p.Rules {
		out[i] = Rule{
			Precedence: r.Precedence, Policy: p.Key, Index: i, DSCP: r.DSCP, RateKbit: r.RateKbit, BurstKbit: r.BurstKbit,
			Any: len(r.To) == 0, Addresses: r.Addresses, Ports: r.Ports,
		}
	}
	for _, d := range p.destinations {
		out[d.rule].Sets = append(out[d.rule].Sets, d.set(network))
	}
	return out
}

// Members returns the addresses of a set, sorted; none if there is no such set, or if its object has too many.
func (c *Compiler) Members(id SetID) []netip.Addr {
	p := c.policies[id.Policy.Namespace][id.Policy.Name]
	if p == nil {
		return nil
	}
	i := slices.IndexFunc(p.destinations, func(d *destination) bool { return d.rule == id.Rule && d.to == id.To })
	if i < 0 {
		return nil
	}
	c.refill(p)
	var out []netip.Addr
	for _, pod := range p.destinations[i].members {
		for _, a := range pod.Attachments {
			if a.Network.NetworkID == id.Network && p.mayCover(a.Network) {
				out = append(out, a.Addresses...)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// String describes the rule in one line, for logs and tests.
func (r *Rule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s[%d]: dscp %d", r.Precedence, r.Policy, r.Index, r.DSCP)
	if r.RateKbit > 0 {
		fmt.Fprintf(&b, ", rate %d kbit/s", r.RateKbit)
	}
	if r.BurstKbit > 0 {
		fmt.Fprintf(&b, ", burst %d kbit", r.BurstKbit)
	}
	to := make([]string, 0, len(r.Sets)+1)
	if r.Any {
		to = append(to, "any")
	}
	if r.Addresses != nil {
		for _, p := range r.Addresses.Prefixes() {
			to = append(to, p.String())
		}
	}
	for _, s := range r.Sets {
		to = append(to, fmt.Sprintf("pods of to[%d]", s.To))
	}
	fmt.Fprintf(&b, ", to %s", strings.Join(to, " "))
	for i, p := range r.Ports {
		fmt.Fprintf(&b, "%s%s", []string{", ", " "}[min(i, 1)], p)
	}
	return b.String()
}
