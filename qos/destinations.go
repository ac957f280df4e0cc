package qos

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Set is the addresses that the pods of a destination have on a network.
type Set struct {
	SetID
	Addresses []netip.Addr // sorted
}

// Over says which bound the addresses of an object's destinations exceed, "" for none.
type Over string

// Bounds of addresses: those of an object, and those of all objects of its namespace.
const (
	OverObject    Over = "Object"
	OverNamespace Over = "Namespace"
)

// ToPods reports whether a destination of the policy is pods.
func (p *Policy) ToPods() bool {
	return slices.ContainsFunc(p.Rules, func(r PolicyRule) bool {
		return slices.ContainsFunc(r.To, func(d PolicyDestination) bool { return d.Addresses == nil })
	})
}

// SelectsLabels reports whether the policy selects a pod of its namespace with these labels.
func (p *Policy) SelectsLabels(of map[string]string) bool { return p.pods.Matches(labels.Set(of)) }

// Sets returns the sets of a policy that have addresses, on the NetworkTopologies that it covers,
// in the order of rules, destinations and topologies, and why they are not listed: more than an object may have, or more
// than its namespace may.
func (c *Compiler) Sets(key types.NamespacedName) (sets []Set, over Over) {
	p := c.policies[key.Namespace][key.Name]
	if p == nil {
		return nil, ""
	}
	c.refill(p)
	switch {
	case p.dropped && p.members > c.mostMembers:
		return nil, OverObject
	case p.dropped:
		return nil, OverNamespace
	}
	n := 0
	for _, d := range p.destinations {
		of := map[NetworkID][]netip.Addr{}
		for _, pod := range d.members {
			for _, a := range pod.Attachments {
				if a.Network.Kind == NetworkTopology && len(a.Addresses) > 0 && c.covers(p.Policy, a.Network) {
					of[a.Network.NetworkID] = append(of[a.Network.NetworkID], a.Addresses...)
				}
			}
		}
		first := len(sets)
		for network, addresses := range of {
			slices.SortFunc(addresses, netip.Addr.Compare)
			addresses = slices.Compact(addresses)
			n += len(addresses)
			sets = append(sets, Set{d.set(network), addresses})
		}
		slices.SortFunc(sets[first:], func(a, b Set) int { return cmp.Compare(a.Network.Name, b.Network.Name) })
	}
	if n > v1alpha1.MaxDestinationAddresses {
		return nil, OverObject
	}
	return sets, ""
}

// Unaddressed returns the path of the first destination of a policy that selects one of some pods, with their labels, whether they have an
// address or not, and of which no pod with an address is known; "" for none.
func (c *Compiler) Unaddressed(key types.NamespacedName, pods iter.Seq2[types.NamespacedName, map[string]string]) string {
	p := c.policies[key.Namespace][key.Name]
	if p == nil || p.dropped {
		return ""
	}
	for _, d := range p.destinations {
		if len(d.members) > 0 {
			continue
		}
		for pod, of := range pods {
			if c.covered(d, pod.Namespace) && d.pods != nil && d.pods.Matches(labels.Set(of)) {
				return fmt.Sprintf("egress[%d].classifier.to[%d]", d.rule, d.to)
			}
		}
	}
	return ""
}

// WriteSets returns sets as a NetworkQoSDestinations has them. More addresses than one object
// may have are counted, and none is listed: with some of them a rule would decide about other
// packets than it says.
func WriteSets(generation int64, sets []Set, over Over) *v1alpha1.Destinations {
	out := &v1alpha1.Destinations{ObservedGeneration: generation}
	if over != "" {
		out.TooMany = v1alpha1.MaxDestinationAddresses + 1
		return out
	}
	for _, s := range sets {
		of := v1alpha1.DestinationSet{Rule: int32(s.Rule), To: int32(s.To), Topology: s.Network.Name}
		for _, a := range s.Addresses {
			of.Addresses = append(of.Addresses, a.String())
		}
		out.Sets = append(out.Sets, of)
	}
	return out
}

// ReadSets reads what WriteSets returned. Invalid addresses are left out, and so are those
// beyond the bound of an object, which its CRD refuses.
func ReadSets(policy types.NamespacedName, in *v1alpha1.Destinations) map[SetID][]netip.Addr {
	out := map[SetID][]netip.Addr{}
	n := 0
	for _, s := range in.Sets {
		id := SetID{Policy: policy, Rule: int(s.Rule), To: int(s.To), Network: NetworkID{Kind: NetworkTopology, Name: s.Topology}}
		for _, text := range s.Addresses {
			if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && n < v1alpha1.MaxDestinationAddresses {
				out[id] = append(out[id], a.Unmap())
				n++
			}
		}
	}
	return out
}
