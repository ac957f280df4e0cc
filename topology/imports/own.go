package imports

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
)

// podValues holds the values that pods name for themselves on a network, and that its topology lets claims set.
type podValues struct {
	step      string
	addresses []netip.Prefix
	macs      []string
}

// names reports whether the pod names an address or a MAC address.
func (a *podAttachment) names() bool { return len(a.own.Addresses) > 0 || a.own.MAC != "" }

// carrier is the step that makes the interface of a network.
func carrier(steps []*step) *step {
	for _, s := range slices.Backward(steps) {
		if s.typ != "tuning" && s.typ != "vrf" && s.typ != "vfio-pci" {
			return s
		}
	}
	return nil
}

// permitOwn has the topologies of networks permit what pods name, and no more, and excludes their addresses from pools.
func (c *converter) permitOwn() {
	for _, p := range c.pods {
		for _, a := range p.networks {
			s := (*step)(nil)
			if a.net != nil {
				s = carrier(a.net.steps)
			}
			if !a.names() || s == nil || p.from.failed() {
				continue
			}
			if a.net.own == nil {
				a.net.own = &podValues{step: s.name}
			}
			of := a.net.own
			a.own.Step = of.step
			taken := allocated{from: p.from, named: true}
			for _, text := range a.own.Addresses {
				address, _ := netip.ParsePrefix(text)
				taken.spans = append(taken.spans, span{address.Addr(), address.Addr()})
				if !slices.Contains(of.addresses, address) {
					of.addresses = append(of.addresses, address)
				}
			}
			if len(taken.spans) > 0 {
				c.excluded = append(c.excluded, taken)
			}
			if a.own.MAC != "" && !slices.Contains(of.macs, a.own.MAC) {
				of.macs = append(of.macs, a.own.MAC)
			}
		}
	}
}

// claimParameters returns the topology's list of keys that claims may set.
func (n *network) claimParameters() (out []any) {
	if n.own == nil {
		return nil
	}
	if len(n.own.addresses) > 0 {
		var subnets []any
		slices.SortFunc(n.own.addresses, netip.Prefix.Compare)
		for _, p := range n.own.addresses {
			subnets = append(subnets, map[string]any{"prefix": p.Masked().String(), "first": p.Addr().String(), "last": p.Addr().String()})
		}
		out = append(out, map[string]any{"step": n.own.step, "key": "addresses", "subnets": subnets})
	}
	if len(n.own.macs) > 0 {
		octets := strings.Split(n.own.macs[0], ":")
		octets = octets[:max(len(octets)-1, 0)]
		for _, mac := range n.own.macs[1:] {
			for len(octets) > 0 && !strings.HasPrefix(mac, strings.Join(octets, ":")+":") {
				octets = octets[:len(octets)-1]
			}
		}
		out = append(out, map[string]any{"step": n.own.step, "key": "mac", "macPrefix": strings.Join(octets, ":")})
	}
	return out
}

// ownTemplate is the ResourceClaimTemplate of a pod that names its address or MAC address.
func (c *converter) ownTemplate(p *pod, a *podAttachment, t *topology.Topology) (map[string]any, error) {
	permitted, err := t.Permitted([]topology.Parameters{a.own})
	if err != nil {
		return nil, err
	}
	o := claim.Template(t, c.Set, p.from.namespace)
	o.Name = label(a.net.topology + "-" + p.from.name)
	claim.SetParameters(&o.Spec.Spec, permitted)
	out := map[string]any{}
	if err := retype(o, &out); err != nil {
		return nil, fmt.Errorf("its ResourceClaimTemplate: %w", err)
	}
	delete(out["spec"].(map[string]any), "metadata")
	if s := carrier(a.net.steps); len(a.own.Addresses) > 0 && s.pool != nil && len(s.pool.spec.Routes) > 0 {
		p.from.note(a.at,
			"gets no routes of the AddressPool %q, since it sets its own address: write them into routes of step %q", s.pool.name, s.name)
	}
	if p.from.kind != "Pod" {
		p.from.note(a.at,
			"names its own address or MAC address, so one of its pods runs at a time, with the ResourceClaimTemplate %q", o.Name)
	}
	return out, nil
}
