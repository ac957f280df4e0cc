package validity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/objectfile"
	"github.com/plumbline/plumbline/topology/suggest"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Objects are objects of files that are valid by themselves. A cluster may have others.
type Objects struct {
	Topologies []Named
	Pools      map[string]*addresspool.Layout
	Policies   []*exposure.Policy
	QoS        []*qos.Policy
	Claims     []Claim // and templates of them
	Classes    []string
}

// Named is a topology with its object.
type Named struct {
	*topology.Topology
	Object   *v1alpha1.NetworkTopology
	Document topology.Document // of its file, if there is one
}

// Claim is a ResourceClaim or a ResourceClaimTemplate.
type Claim struct {
	Document topology.Document
	Source   claim.Source
	Template bool
	Spec     *resourceapi.DeviceClaim
}

// Claims reads the ResourceClaims and ResourceClaimTemplates of a file. Unknown fields are refused.
func Claims(f *topology.Manifest) (out []Claim, err error) {
	claims, err := objectfile.Decode[resourceapi.ResourceClaim](f, resourceapi.SchemeGroupVersion.WithKind(KindClaim))
	if err != nil {
		return nil, err
	}
	docs := slices.Concat(f.Objects(KindClaim), f.Objects(KindTemplate))
	for i, o := range claims {
		out = append(out, Claim{docs[i], claim.SourceOf(KindClaim, o), false, &o.Spec.Devices})
	}
	templates, err := objectfile.Decode[resourceapi.ResourceClaimTemplate](f, resourceapi.SchemeGroupVersion.WithKind(KindTemplate))
	if err != nil {
		return nil, err
	}
	for i, o := range templates {
		out = append(out, Claim{docs[len(claims)+i], claim.SourceOf(KindTemplate, o), true, &o.Spec.Spec.Devices})
	}
	return out, nil
}

// The kinds of claims.
const (
	KindClaim    = "ResourceClaim"
	KindTemplate = "ResourceClaimTemplate"
)

// title is how messages name it.
func (c Claim) title() string { return fmt.Sprintf("%s %q", c.Source.Kind, c.Source.Name) }

// Across returns what objects say of each other: errors, and notes on what is probably a mistake. What only a cluster
// knows, such as whether a pool that no file has exists there, is no error.
func Across(ctx context.Context, o Objects, set contract.Set) (notes []string, errs []error) {
	errs = append(errs, o.ofSubnets()...)
	for _, t := range o.Topologies {
		for _, note := range slices.Concat(o.pools(t.Topology), o.policies(ctx, t.Topology, set), o.attributes(t.Topology)) {
			notes = append(notes, fmt.Sprintf("NetworkTopology %q, %s", t.Name, note))
		}
	}
	for _, p := range o.Policies {
		if len(o.Pools) == 0 {
			break
		}
		for _, note := range MissingPools(p, "the files have", func(pool string) bool { return o.Pools[pool] != nil }) {
			notes = append(notes, fmt.Sprintf("DeviceExposurePolicy %q: %s", p.Name, note))
		}
	}
	notes = append(notes, o.literals()...)
	notes = append(notes, o.labels()...)
	for _, c := range o.Claims {
		said, wrong := o.claim(ctx, c, set)
		notes = append(notes, said...)
		for _, err := range wrong {
			if _, placed := errors.AsType[*fault.Placed](err); !placed {
				err = c.Document.At("", err)
			}
			errs = append(errs, err)
		}
	}
	return notes, errs
}

// pools are notes on the AddressPools that the steps of a topology name.
func (o Objects) pools(t *topology.Topology) (notes []string) {
	names := slices.Sorted(maps.Keys(o.Pools))
	for i := range t.Steps {
		s := &t.Steps[i]
		pool, _, ok := topology.FromPool(s)
		if topology.OfNetwork(s) && len(o.Policies) > 0 && !NamesPool(o.Policies) {
			notes = append(notes, fmt.Sprintf("step %q: %s", s.Name, NoPool))
		}
		if !ok || pool == topology.LocalPool || pool == "" || len(names) == 0 {
			continue
		}
		layout := o.Pools[pool]
		if _, made := topology.FromSubnets(s); made && layout == nil {
			continue
		}
		if layout == nil {
			notes = append(notes, fmt.Sprintf("step %q: the files have no %s %q%s: pods wait until there is one", s.Name,
				v1alpha1.AddressPoolKind, pool, suggest.Hint(pool, names)))
			continue
		}
		if division, ok := topology.Division(s); ok {
			if err := layout.Agrees(division); err != nil {
				notes = append(notes, fmt.Sprintf("step %q: config.%v", s.Name, err))
			}
		}
		notes = append(notes, outside(s, pool, layout)...)
		if withoutGateway(t, s, layout) {
			notes = append(notes, fmt.Sprintf("step %q: config.sourceRouting: no subnet of %s %q has a gateway, "+
				"so that only packets to the subnets leave by the interface: set spec.subnets[].gateway there, or remove sourceRouting",
				s.Name, v1alpha1.AddressPoolKind, pool))
		}
	}
	return notes
}

// withoutGateway reports whether routing tables of a step lead to the networks of its pool only, and no other step shares the pool.
func withoutGateway(t *topology.Topology, s *topology.Step, layout *addresspool.Layout) bool {
	ipam, _ := s.Config["ipam"].(map[string]any)
	if s.Config["sourceRouting"] != true || s.Config["addresses"] != nil || s.Config["routes"] != nil || ipam["routes"] != nil {
		return false
	}
	prefixes := slices.Concat(layout.Prefixes(true), layout.Prefixes(false))
	shared := slices.ContainsFunc(t.Steps, func(o topology.Step) bool {
		pool, _, ok := topology.FromPool(&o)
		return ok && pool == layout.Name && o.Name != s.Name
	})
	return !shared && len(layout.Gateways(prefixes)) == 0 && len(layout.Routes(prefixes)) == 0
}

// ofSubnets are errors about topologies that have the addresses of one network's subnets, and different subnets.
func (o Objects) ofSubnets() (errs []error) {
	known := networks{}
	for _, t := range o.Topologies {
		for _, of := range t.NetworkPools() {
			if m := known.differs(fmt.Sprintf("step %q of NetworkTopology %q", of.Step, t.Name), of.IPAM); m != "" {
				problem := topology.Problem{Step: of.Step, Field: "config.subnets", Message: m}
				wrong := &topology.Invalid{Topology: t.Name, Problems: []topology.Problem{problem}}
				t.Document.Locate(wrong, t.Topology)
				errs = append(errs, wrong)
			}
		}
	}
	return errs
}

// networks has the first step of each network whose subnets give addresses, by pool.
type networks map[string]struct {
	step string
	topology.IPAM
}

// differs returns a message if a step has other subnets than the first one of its network: they have addresses of one pool.
func (n networks) differs(step string, c topology.IPAM) (message string) {
	first, known := n[c.Pool]
	if !known {
		first.step, first.IPAM = step, c
		n[c.Pool] = first
	}
	if c.Network() == first.Network() {
		return ""
	}
	return fmt.Sprintf("are %s, but %s has %s for the same network: write the same subnets into both, or give one network another name",
		strings.Join(c.Subnets, " and "), first.step, strings.Join(first.Subnets, " and "))
}

// NoPool is a remark on a step that has addresses of the pool of its physical network, while no policy NamesPool.
const NoPool = "ipam names no AddressPool, and no DeviceExposurePolicy has one in physicalNetworks[].addressPool: pods wait until one has"

// NamesPool reports whether a policy names the pool of a physical network.
func NamesPool(policies []*exposure.Policy) bool {
	return slices.ContainsFunc(policies, func(p *exposure.Policy) bool { return len(p.Pools()) > 0 })
}

// MissingPools are notes on the pools of physical networks of a policy that do not exist; where says where they are missing, such
// as "there is".
func MissingPools(p *exposure.Policy, where string, exists func(pool string) bool) (notes []string) {
	for _, n := range p.Pools() {
		if exposure.FixedPool(n.AddressPool) && !exists(n.AddressPool) {
			notes = append(notes,
				fmt.Sprintf("%s no %s %q, of physical network %q: pods with addresses of that network wait until there is one", where,
					v1alpha1.AddressPoolKind, n.AddressPool, n.Name))
		}
	}
	return notes
}

// outside notes a pool whose addresses are not in the subnets of the network: OVN would drop what a pod sends.
func outside(s *topology.Step, pool string, layout *addresspool.Layout) (notes []string) {
	text, _ := s.Config["subnets"].(string)
	if text == "" {
		return nil
	}
	var subnets []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		subnet := strings.TrimSpace(part)
		if p, err := netip.ParsePrefix(subnet); err == nil {
			subnets = append(subnets, p)
		}
	}
	for _, is4 := range layout.Families() {
		for _, p := range layout.Prefixes(is4) {
			if !slices.ContainsFunc(subnets, func(in netip.Prefix) bool { return in.Contains(p.Addr()) && in.Bits() <= p.Bits() }) {
				notes = append(notes,
					fmt.Sprintf("step %q: config.subnets: %s of %s %q is not in %q, and OVN refuses such an address: change one of them",
						s.Name, p, v1alpha1.AddressPoolKind, pool, text))
			}
		}
	}
	return notes
}

// policies are notes on devices that the steps of a topology share, and that no policy of the files shares.
func (o Objects) policies(ctx context.Context, t *topology.Topology, set contract.Set) (notes []string) {
	for _, s := range Unshared(ctx, Shared(t, set), o.Policies) {
		notes = append(notes, s.Message())
	}
	return notes
}

// attributes are notes on attributes in selectors that no policy of the files adds.
func (o Objects) attributes(t *topology.Topology) (notes []string) {
	if len(o.Policies) == 0 {
		return nil
	}
	added := []string{}
	for _, p := range o.Policies {
		for name := range p.Attributes {
			added = append(added, name)
		}
	}
	for i := range t.Steps {
		s := &t.Steps[i]
		if s.Selector == "" {
			continue
		}
		c, err := inventory.Compile(s.Selector)
		if err != nil {
			continue
		}
		known := c.Doubts(nil, suggest.Name)
		for _, doubt := range c.Doubts(added, suggest.Name) {
			if !slices.Contains(known, doubt) {
				notes = append(notes, fmt.Sprintf("step %q: selector.cel: %s", s.Name, doubt))
			}
		}
	}
	return notes
}

// literals are notes on addresses that two topologies have: one pod of the cluster can have each.
func (o Objects) literals() (notes []string) {
	of := map[netip.Addr]string{}
	for _, t := range o.Topologies {
		for i := range t.Steps {
			for _, a := range topology.Exclusive(&t.Steps[i]) {
				other, twice := of[a]
				if twice && other != t.Name {
					notes = append(notes,
						fmt.Sprintf("NetworkTopology %q, step %q: config.addresses: %s is an address of NetworkTopology %q, too, "+
							"and one pod of the cluster can have it at a time: change one of them", t.Name, t.Steps[i].Name, a, other))
				}
				of[a] = t.Name
			}
		}
	}
	return notes
}

// labels are notes on NetworkQoS objects that select none of the topologies.
func (o Objects) labels() (notes []string) {
	if len(o.Topologies) == 0 {
		return nil
	}
	names := excerpt.Texts(o.Topologies, func(t Named) string { return strconv.Quote(t.Name) })
	for _, p := range o.QoS {
		if p.Err == nil && p.SelectsTopologies() && !p.ByLabels() && !slices.ContainsFunc(o.Topologies,
			func(t Named) bool { return p.SelectsTopology(t.Name, qos.TopologyLabels(&t.Object.ObjectMeta)) }) {
			notes = append(notes, fmt.Sprintf("NetworkQoS %q: spec.networkSelectors: "+
				"selects no NetworkTopology of the files, which are %s: change the selector, or metadata.labels of the topology",
				p.Name(), strings.Join(names[:min(len(names), maxNamed)], ", ")))
		}
	}
	return notes
}

// maxNamed bounds the names in a note.
const maxNamed = 6

// claim compares a claim with the topologies that it requests.
func (o Objects) claim(ctx context.Context, c Claim, set contract.Set) (notes []string, errs []error) {
	classes, selectors := map[string]*resourceapi.DeviceClass{}, map[string]string{}
	var known []string
	for _, t := range o.Topologies {
		for _, s := range claim.Roots(t.Topology, set) {
			name := claim.ClassName(t.Name, s.Name)
			raw, err := json.Marshal(claim.ConfigOf(t.Object, s.Name))
			if err != nil {
				return nil, []error{err}
			}
			known, selectors[name] = append(known, name), s.Selector
			classes[name] = &resourceapi.DeviceClass{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: resourceapi.DeviceClassSpec{Config: []resourceapi.DeviceClassConfiguration{{
					DeviceConfiguration: resourceapi.DeviceConfiguration{
						Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: raw}},
					},
				}}},
			}
		}
	}
	notes, errs = c.itself(selectors)
	missing := func(request, class string) {
		if class == "" || classes[class] != nil || slices.Contains(o.Classes, class) {
			return
		}
		near := suggest.Hint(class, known)
		if ours := slices.ContainsFunc(o.Topologies, func(t Named) bool { return strings.HasPrefix(class, t.Name+"-") }); ours ||
			near != "" {
			notes = append(notes,
				fmt.Sprintf("%s: request %q: no root step of the topologies has the DeviceClass %q%s", c.title(), request, class, near))
		}
	}
	for _, r := range c.Spec.Requests {
		if r.Exactly != nil {
			missing(r.Name, r.Exactly.DeviceClassName)
		}
		for _, sub := range r.FirstAvailable {
			missing(r.Name+"/"+sub.Name, sub.DeviceClassName)
		}
	}
	demands, err := claim.Requests(c.Spec, func(name string) (*resourceapi.DeviceClass, error) { return classes[name], nil })
	for _, e := range fault.Each(err) {
		errs = append(errs, fmt.Errorf("%s: %w", c.title(), e))
	}
	var requested []*topology.Topology
	for _, d := range demands {
		i := slices.IndexFunc(o.Topologies, func(t Named) bool { return t.Name == d.Topology.Name })
		requested = append(requested, o.Topologies[i].Topology)
		if err := claim.Mismatch(o.Topologies[i].Topology, set, d, c.Source); err != nil {
			errs = append(errs, err)
		}
		if len(d.Parameters) > 0 {
			if _, _, err := Parameters(ctx, o.Topologies[i].Topology, d.Parameters, set); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", c.title(), err))
			}
		}
		if t := o.Topologies[i]; c.Template && t.ClaimTemplate == nil {
			for _, note := range oneAtATime(t.Topology) {
				notes = append(notes, fmt.Sprintf("NetworkTopology %q, %s", t.Name, note))
			}
		}
	}
	said, wrong := c.exports(requested)
	return append(notes, said...), append(errs, wrong...)
}
