package qos

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/labelselector"
	"github.com/plumbline/plumbline/topology/suggest"
)

// Bounds of an object. Those of priority, rules, codepoint, rate and networks are those of
// the CRD of ovn-kubernetes; the others it does not have.
const (
	MaxPriority = 100
	MaxRules    = 20
	maxNetworks = 5
	maxDSCP     = 63
	maxRate     = 1<<32 - 1 // kbit/s, and kbit of a burst
	packetKbit  = 525       // 64 KiB: what a sender with segmentation offload hands over at once
	maxTo       = 64        // destinations of a rule
	maxPodTo    = 64        // destinations of an object that are pods: the controller knows the pods of each
	maxSelected = 256       // labels and values of a selector
	// maxLabels and maxLabelBytes are the labels and values of all selectors of an object: the controller evaluates
	// them for each pod that changes, and each node with a pod of the namespace holds a part of them.
	maxLabels     = 1024
	maxLabelBytes = 64 << 10
	maxPorts      = 64   // of a rule
	maxExcept     = 256  // exceptions of a destination
	maxExcepts    = 1024 // exceptions of an object
	maxProblem    = 1000 // bytes of a message
	maxProblems   = 32
)

// precedence combines priority and index as OKEP-4380 defines.
func precedence(priority int32, index int) int { return 10000 + int(priority)*MaxRules + index }

// MaxAttachmentRules is how many rules an attachment may have: those of 101 priorities with 20
// rules each.
const MaxAttachmentRules = (MaxPriority + 1) * MaxRules

// MaxPrecedence is the highest precedence that a rule can have.
const MaxPrecedence = 10000 + MaxPriority*MaxRules + MaxRules - 1

// Policy is a NetworkQoS that was read and checked.
type Policy struct {
	Key        types.NamespacedName
	UID        types.UID
	Generation int64
	Priority   int32
	Rules      []PolicyRule
	Created    metav1.Time
	// Err describes an invalid object, as *topology.Listed; such an object does nothing.
	Err error
	// Warnings are about fields that have no effect, each with its path.
	Warnings []string

	pods     labels.Selector
	required []required    // by pods
	networks []networkTerm // none: the primary network
	// What it takes of the bounds of its namespace.
	bytes, labels int
}

// PolicyRule is one rule of a policy.
type PolicyRule struct {
	// Precedence is unique within an object; higher ones win.
	Precedence int
	DSCP       uint8
	RateKbit   uint32 // per second; 0 is no limit
	BurstKbit  uint32 // 0 leaves it to the backend
	To         []PolicyDestination
	// Addresses are those of all destinations together, nil if none is addresses.
	Addresses *netipx.IPSet
	ranges    int // at most, of Addresses
	// Ports is sorted, without those that another one contains; nil is any.
	Ports []Port
}

// PolicyDestination is a set of addresses, or else pods.
type PolicyDestination struct {
	Addresses *netipx.IPSet // nil if it is pods

	namespaces labels.Selector // nil: the namespace of the object
	pods       labels.Selector
}

// Slim returns the policy without the selectors of its destinations, for those who are given the addresses: they
// are most of an object. Its destinations select no pod.
func (p *Policy) Slim() *Policy {
	out := *p
	out.Rules = slices.Clone(p.Rules)
	for i := range out.Rules {
		to := slices.Clone(out.Rules[i].To)
		for j := range to {
			to[j].namespaces, to[j].pods = nil, nil
		}
		out.Rules[i].To = to
	}
	return &out
}

// Port is a protocol and one of its destination ports.
type Port struct {
	Protocol Protocol
	Port     uint16 // 0 is any
}

// Protocol is the number of a transport protocol.
type Protocol uint8

// Protocols (IANA, protocol numbers).
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

var protocols = map[string]Protocol{"TCP": TCP, "UDP": UDP, "SCTP": SCTP}

// String returns the name that Kubernetes uses.
func (p Protocol) String() string {
	for name, number := range protocols {
		if number == p {
			return name
		}
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// String returns "TCP 443", or "TCP" for any port.
func (p Port) String() string {
	if p.Port == 0 {
		return p.Protocol.String()
	}
	return fmt.Sprintf("%s %d", p.Protocol, p.Port)
}

// contains reports whether every packet that q matches is matched by p.
func (p Port) contains(q Port) bool {
	return p == q || p.Protocol == q.Protocol && p.Port == 0
}

// Name is namespace/name; in a file an object may have no namespace.
func (p *Policy) Name() string { return strings.TrimPrefix(p.Key.String(), "/") }

// reader reads one object.
type reader struct {
	invalid  topology.Listed
	warnings []string
	// Read so far, of the whole object.
	excepts, blocks, toPods, labels, labelBytes int
}

func (r *reader) add(format string, args ...any) {
	switch n := len(r.invalid.Problems); {
	case n < maxProblems:
		r.invalid.Add(format, args...)
	case n == maxProblems:
		r.invalid.Add("there are more problems")
	}
}

func (r *reader) warn(format string, args ...any) {
	if len(r.warnings) < maxProblems {
		r.warnings = append(r.warnings, excerpt.Of(fmt.Sprintf(format, args...), maxProblem))
	}
}

// New reads and checks an object. It applies the bounds of the CRD once more: an object may
// come from a file, or from an API server with the CRD of another version.
func New(o *v1alpha1.NetworkQoS) *Policy {
	p := &Policy{
		Key: types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, UID: o.UID, Generation: o.Generation,
		Priority: o.Spec.Priority, Created: o.CreationTimestamp,
	}
	r := &reader{invalid: topology.Listed{Title: fmt.Sprintf("%s %q", v1alpha1.Kind, p.Name())}}
	if o.Name == "" {
		r.add("metadata.name: is missing")
	}
	if p.Priority < 0 || p.Priority > MaxPriority {
		r.add("spec.priority: is %d, and must be 0 to %d", p.Priority, MaxPriority)
	}
	p.pods = r.selector("spec.podSelector", o.Spec.PodSelector)
	p.required = requiredBy(p.pods)
	p.networks = r.networks(&o.Spec, o.Namespace)
	if len(o.Spec.Egress) > MaxRules {
		r.add("spec.egress: has %d rules, at most %d are accepted: use a second object of another priority", len(o.Spec.Egress), MaxRules)
	} else {
		for i := range o.Spec.Egress {
			p.Rules = append(p.Rules, r.rule(fmt.Sprintf("spec.egress[%d]", i), &o.Spec.Egress[i], precedence(p.Priority, i)))
		}
	}
	switch {
	case len(r.invalid.Problems) > 0:
		p.Err, p.Rules, p.pods, p.required = &r.invalid, nil, labels.Nothing(), nil
		for i := range p.networks { // their kinds say who enforces the object
			p.networks[i] = networkTerm{kind: p.networks[i].kind, primary: p.networks[i].primary}
		}
	case len(p.Rules) == 0:
		r.warn("spec.egress: has no rules: the object has no effect")
	default:
		r.hidden(p.Rules)
	}
	p.Warnings = r.warnings
	p.bytes, p.labels = r.bytes(p), r.labels
	return p
}

// hidden warns of rules that never decide, since a later one matches every packet.
func (r *reader) hidden(rules []PolicyRule) {
	for i, rule := range slices.Backward(rules) {
		if i > 0 && len(rule.To) == 0 && len(rule.Ports) == 0 {
			r.warn(
				"spec.egress[%d]: matches every packet, so the rules before it have no effect (the last match decides): write it first", i)
			return
		}
	}
}

// sizeOf returns how many labels and values a selector has, and their bytes.
func sizeOf(s *metav1.LabelSelector) (n, bytes int) {
	n = len(s.MatchLabels) + len(s.MatchExpressions)
	for k, v := range s.MatchLabels {
		bytes += len(k) + len(v)
	}
	for i := range s.MatchExpressions {
		e := &s.MatchExpressions[i]
		n, bytes = n+len(e.Values), bytes+len(e.Key)
		for _, v := range e.Values {
			bytes += len(v)
		}
	}
	return n, bytes
}

// selector reads a selector of labels; one that is not there selects everything.
func (r *reader) selector(path string, s *metav1.LabelSelector) labels.Selector {
	if s == nil {
		return labels.Everything()
	}
	n, size := sizeOf(s)
	r.labels, r.labelBytes = r.labels+n, r.labelBytes+size
	switch {
	case n > maxSelected:
		r.add("%s: has %d labels and values, at most %d are accepted: select by a label that more pods share", path, n, maxSelected)
		return labels.Nothing()
	case r.labels > maxLabels || r.labelBytes > maxLabelBytes:
		r.add("%s: the object has %d labels and values of %d bytes up to here, in all its selectors, "+
			"and at most %d of %d bytes are accepted: select by labels that more pods share, or use a second object", path, r.labels,
			r.labelBytes, maxLabels, maxLabelBytes)
		return labels.Nothing()
	}
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		for _, p := range labelselector.Check(s) {
			r.add("%s.%s: %s", path, p.Field, p.Message)
		}
		return labels.Nothing()
	}
	return out
}

func (r *reader) rule(path string, in *v1alpha1.Rule, precedence int) PolicyRule {
	out := PolicyRule{Precedence: precedence}
	switch {
	case in.DSCP == nil:
		r.add("%s.dscp: is missing: give 0 to %d; 0 is the codepoint of packets that are not marked", path, maxDSCP)
	case *in.DSCP < 0 || *in.DSCP > maxDSCP:
		r.add("%s.dscp: is %d, and must be 0 to %d", path, *in.DSCP, maxDSCP)
	default:
		out.DSCP = uint8(*in.DSCP)
	}
	if b := in.Bandwidth; b != nil {
		out.RateKbit = r.bandwidth(path+".bandwidth.rate", "kbit/s", b.Rate)
		out.BurstKbit = r.bandwidth(path+".bandwidth.burst", "kbit", b.Burst)
		if b.Burst != nil && b.Rate == nil {
			r.add("%s.bandwidth.burst: needs a rate: add rate", path)
		}
		if b := out.BurstKbit; b > 0 && b < packetKbit {
			r.warn("%s.bandwidth.burst: %d kbit are %d bytes, and a larger packet never passes: "+
				"a TCP sender hands over up to 64 KiB at once; write %d or more, or remove burst", path, b, uint64(b)*125, packetKbit)
		}
	}
	if c := in.Classifier; c != nil {
		r.to(path+".classifier.to", c.To, &out)
		r.ports(path+".classifier", c, &out)
	}
	return out
}

func (r *reader) bandwidth(path, unit string, value *int64) uint32 {
	switch {
	case value == nil:
		return 0
	case *value < 1 || *value > maxRate:
		r.add("%s: is %d, and must be 1 to %d %s", path, *value, uint64(maxRate), unit)
		return 0
	}
	return uint32(*value)
}

func (r *reader) to(path string, in []v1alpha1.Destination, out *PolicyRule) {
	if len(in) > maxTo {
		r.add("%s: has %d destinations, at most %d are accepted: use a second rule", path, len(in), maxTo)
		return
	}
	before := r.excepts + r.blocks
	for i, d := range in {
		at := fmt.Sprintf("%s[%d]", path, i)
		var to PolicyDestination
		switch {
		case d.IPBlock != nil && (d.PodSelector != nil || d.NamespaceSelector != nil):
			r.add("%s: can't specify both podSelector/namespaceSelector and ipBlock: make two destinations of it", at)
			continue
		case d.IPBlock != nil:
			r.blocks += 2
			to.Addresses = r.block(at+".ipBlock", d.IPBlock)
		case d.PodSelector == nil && d.NamespaceSelector == nil:
			r.add("%s: selects nothing: give ipBlock, podSelector or namespaceSelector; without to a rule matches every destination", at)
			continue
		default:
			if r.toPods++; r.toPods > maxPodTo {
				r.add("%s: the object has %d destinations that are pods, at most %d are accepted: use a second object of another priority",
					at, r.toPods, maxPodTo)
				return
			}
			to.pods = r.selector(at+".podSelector", d.PodSelector)
			if d.NamespaceSelector != nil {
				to.namespaces = r.selector(at+".namespaceSelector", d.NamespaceSelector)
			}
		}
		out.To = append(out.To, to)
	}
	out.Addresses = union(out.To)
	out.ranges = r.excepts + r.blocks - before
}

// union joins the destinations that are addresses, nil without any.
func union(to []PolicyDestination) *netipx.IPSet {
	var b netipx.IPSetBuilder
	var one *netipx.IPSet
	n := 0
	for _, d := range to {
		if d.Addresses != nil {
			b.AddSet(d.Addresses)
			one = d.Addresses
			n++
		}
	}
	if n <= 1 {
		return one
	}
	set, _ := b.IPSet() // sets alone have no errors
	return set
}

// block reads a prefix without its exceptions.
func (r *reader) block(path string, in *v1alpha1.IPBlock) *netipx.IPSet {
	var b netipx.IPSetBuilder
	block, ok := r.prefix(path+".cidr", in.CIDR)
	if ok {
		b.AddPrefix(block)
	}
	r.excepts += len(in.Except)
	switch {
	case len(in.Except) > maxExcept:
		r.add("%s.except: has %d prefixes, at most %d are accepted", path, len(in.Except), maxExcept)
	case r.excepts > maxExcepts:
		r.add("%s.except: the object has %d prefixes up to here, at most %d are accepted", path, r.excepts, maxExcepts)
	default:
		for i, text := range in.Except {
			at := fmt.Sprintf("%s.except[%d]", path, i)
			except, read := r.prefix(at, text)
			switch {
			case !read || !ok:
			case !block.Overlaps(except):
				r.warn("%s: %s is not in %s, and has no effect", at, except, block)
			default:
				b.RemovePrefix(except)
			}
		}
	}
	set, _ := b.IPSet() // its errors are those of ranges that are none
	set = cmp.Or(set, &netipx.IPSet{})
	if ok && len(set.Prefixes()) == 0 {
		r.warn("%s: the exceptions cover all of %s: the destination matches no packet", path, block)
	}
	return set
}

// prefix reads a prefix, or an address, which is a prefix of its own: the draft of the API
// has such exceptions. Bits after the prefix are cut off, as ovn-kubernetes does.
func (r *reader) prefix(path, text string) (netip.Prefix, bool) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), true
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		r.add("%s: %q is not a prefix, such as 192.0.2.0/24 or 2001:db8::/32", path, text)
		return prefix, false
	}
	if prefix.Addr().Is4In6() {
		r.add("%s: %q is an IPv4 address in IPv6 form: write the IPv4 prefix", path, text)
		return prefix, false
	}
	if masked := prefix.Masked(); masked != prefix {
		r.warn("%s: %q has host bits set, and means %s", path, text, masked)
	}
	return prefix.Masked(), true
}

func (r *reader) ports(path string, c *v1alpha1.Classifier, out *PolicyRule) {
	in, names := c.Ports, make([]string, len(c.Ports))
	for i := range in {
		names[i] = fmt.Sprintf("%s.ports[%d]", path, i)
	}
	switch {
	case c.Port != nil && len(in) > 0:
		r.add("%s.port: is the older form of ports: add it to ports", path)
		return
	case c.Port != nil && *c.Port == (v1alpha1.Port{}): // what a client writes that knows the field
		return
	case c.Port != nil:
		in, names = []v1alpha1.Port{*c.Port}, []string{path + ".port"}
	case len(in) > maxPorts:
		r.add("%s.ports: has %d entries, at most %d are accepted: use a second rule", path, len(in), maxPorts)
		return
	}
	for i, p := range in {
		if port, ok := r.port(names[i], p); ok {
			out.Ports = append(out.Ports, port)
		}
	}
	out.Ports = absorb(out.Ports)
}

func (r *reader) port(path string, p v1alpha1.Port) (Port, bool) {
	protocol, ok := protocols[p.Protocol]
	switch {
	case p.Protocol == "" && p.Port == nil:
		r.add("%s: is empty: give protocol, or remove the entry; without ports a rule matches all", path)
	case p.Protocol == "":
		r.add("%s.protocol: is missing, and port %d alone does not say which: add TCP, UDP or SCTP", path, *p.Port)
	case !ok:
		hint := suggest.Hint(strings.ToUpper(p.Protocol), []string{"TCP", "UDP", "SCTP"})
		if strings.HasPrefix(strings.ToUpper(p.Protocol), "ICMP") {
			hint = ": a rule without ports matches it, with all other protocols"
		}
		r.add("%s.protocol: %q is not TCP, UDP or SCTP%s", path, p.Protocol, hint)
	case p.Port == nil:
		return Port{Protocol: protocol}, true
	case *p.Port < 1 || *p.Port > 65535:
		r.add("%s.port: is %d, and must be 1 to 65535", path, *p.Port)
	default:
		return Port{Protocol: protocol, Port: uint16(*p.Port)}, true
	}
	return Port{}, false
}

// absorb sorts ports, and removes those that another one contains.
func absorb(ports []Port) []Port {
	slices.SortFunc(ports, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	var out []Port
	for _, p := range ports {
		if n := len(out); n == 0 || !out[n-1].contains(p) {
			out = append(out, p)
		}
	}
	return out
}

// networkTerm selects networks of one kind.
type networkTerm struct {
	kind            NetworkKind
	namespace, name string          // exactly this one, of a reference
	of              string          // the namespace of the object, of a reference
	namespaces      labels.Selector // nil: of any namespace, or of none
	networks        labels.Selector // nil: of any labels
	required        []required      // by networks
	primary         *bool           // nil: both
	// among, unless it is nil, are the NetworkAttachmentDefinitions that the terms by labels selected: see Policy.WithNetworks.
	among map[string]bool
}

// covers reports whether the term selects a network in a namespace with these labels.
func (t networkTerm) covers(n Network, namespace labels.Set) bool {
	if n.Kind == NetworkTopology && t.definition() != "" {
		return Defined(n.Labels, t.definition())
	}
	if t.among != nil {
		return n.Kind == NetworkTopology && definedAmong(n.Labels, t.among)
	}
	return (t.kind == n.Kind || t.kind == DefaultNetwork && n.Kind == NetworkTopology && n.Primary) &&
		(t.name == "" || t.name == n.Name && t.namespace == n.Namespace) &&
		(t.primary == nil || *t.primary == n.Primary) &&
		(t.namespaces == nil || t.namespaces.Matches(namespace)) &&
		(t.networks == nil || t.networks.Matches(labelsAlone(n.Labels)))
}

// networks reads the selectors and the references.
func (r *reader) networks(spec *v1alpha1.Spec, namespace string) []networkTerm {
	var out []networkTerm
	if len(spec.NetworkSelectors) > 0 && len(spec.NetAttachRefs) > 0 {
		r.add("spec.netAttachRefs: is the older form of networkSelectors: use one of them")
		return nil
	}
	if n := max(len(spec.NetworkSelectors), len(spec.NetAttachRefs)); n > maxNetworks {
		r.add("spec.networkSelectors: %d entries, at most %d are accepted", n, maxNetworks)
		return nil
	}
	seen := map[v1alpha1.NetworkSelectionType]bool{}
	for i := range spec.NetworkSelectors {
		at, s := fmt.Sprintf("spec.networkSelectors[%d]", i), &spec.NetworkSelectors[i]
		if seen[s.Type] {
			r.add("%s.networkSelectionType: %q is there already: join the two selectors", at, s.Type)
		}
		seen[s.Type] = true
		if t, ok := r.network(at, s); ok {
			out = append(out, t)
		}
	}
	for i, ref := range spec.NetAttachRefs {
		if t, ok := r.reference(fmt.Sprintf("spec.netAttachRefs[%d]", i), ref, namespace); ok {
			out = append(out, t)
		}
	}
	return out
}

// selection is a type of selectors: its field, and what it selects.
type selection struct {
	field      string
	of         func(*v1alpha1.NetworkSelector) *v1alpha1.Selector
	term       networkTerm
	namespaced bool
}

var selections = map[v1alpha1.NetworkSelectionType]selection{
	v1alpha1.DefaultNetwork: {term: networkTerm{kind: DefaultNetwork}},
	v1alpha1.ClusterUserDefinedNetworks: {
		field: "clusterUserDefinedNetworkSelector", term: networkTerm{kind: ClusterUserDefinedNetwork},
		of: func(s *v1alpha1.NetworkSelector) *v1alpha1.Selector { return s.ClusterUserDefinedNetworkSelector },
	},
	v1alpha1.PrimaryUserDefinedNetworks: {
		field: "primaryUserDefinedNetworkSelector", term: networkTerm{kind: UserDefinedNetwork, primary: new(true)}, namespaced: true,
		of: func(s *v1alpha1.NetworkSelector) *v1alpha1.Selector { return s.PrimaryUserDefinedNetworkSelector },
	},
	v1alpha1.SecondaryUserDefinedNetworks: {
		field: "secondaryUserDefinedNetworkSelector", term: networkTerm{kind: UserDefinedNetwork, primary: new(false)}, namespaced: true,
		of: func(s *v1alpha1.NetworkSelector) *v1alpha1.Selector { return s.SecondaryUserDefinedNetworkSelector },
	},
	v1alpha1.NetworkAttachmentDefinitions: {
		field: "networkAttachmentDefinitionSelector", term: networkTerm{kind: NetworkAttachmentDefinition}, namespaced: true,
		of: func(s *v1alpha1.NetworkSelector) *v1alpha1.Selector { return s.NetworkAttachmentDefinitionSelector },
	},
	v1alpha1.NetworkTopologies: {
		field: "networkTopologySelector", term: networkTerm{kind: NetworkTopology},
		of: func(s *v1alpha1.NetworkSelector) *v1alpha1.Selector { return s.NetworkTopologySelector },
	},
}

func (r *reader) network(path string, s *v1alpha1.NetworkSelector) (networkTerm, bool) {
	chosen, ok := selections[s.Type]
	if !ok {
		var names []string
		for t := range selections {
			names = append(names, string(t))
		}
		slices.Sort(names)
		r.add("%s.networkSelectionType: %q is not one of %s%s", path, s.Type, strings.Join(names, ", "),
			suggest.Hint(string(s.Type), names))
		return networkTerm{}, false
	}
	for _, other := range selections {
		if other.field != "" && other.field != chosen.field && other.of(s) != nil {
			r.add("%s.%s: does not belong to networkSelectionType %q: remove it", path, other.field, s.Type)
			return networkTerm{}, false
		}
	}
	t := chosen.term
	if chosen.field == "" {
		return t, true
	}
	in := chosen.of(s)
	if in == nil {
		r.add("%s.%s: is missing, and networkSelectionType is %q: add it; empty selectors select all", path, chosen.field, s.Type)
		return t, false
	}
	if in.NamespaceSelector != nil && !chosen.namespaced {
		r.add("%s.%s.namespaceSelector: these networks are in no namespace: remove it", path, chosen.field)
		return t, false
	}
	t.networks = r.selector(path+"."+chosen.field+".networkSelector", in.NetworkSelector)
	t.required = requiredBy(t.networks)
	if chosen.namespaced {
		t.namespaces = r.selector(path+"."+chosen.field+".namespaceSelector", in.NamespaceSelector)
	}
	return t, true
}

// reference reads a reference of the draft. One without a namespace means the object's own.
func (r *reader) reference(path string, ref corev1.ObjectReference, namespace string) (networkTerm, bool) {
	kinds := []string{
		string(NetworkAttachmentDefinition), string(UserDefinedNetwork), string(ClusterUserDefinedNetwork),
		string(NetworkTopology),
	}
	t := networkTerm{kind: NetworkKind(ref.Kind), namespace: cmp.Or(ref.Namespace, namespace), name: ref.Name, of: namespace}
	switch {
	case !slices.Contains(kinds, ref.Kind):
		r.add("%s.kind: %q is not one of %s%s", path, ref.Kind, strings.Join(kinds, ", "), suggest.Hint(ref.Kind, kinds))
		return t, false
	case ref.Name == "":
		r.add("%s.name: is missing", path)
		return t, false
	case t.kind == ClusterUserDefinedNetwork || t.kind == NetworkTopology:
		t.namespace = ""
	}
	return t, true
}
