package ops

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

// Rule is one policy rule. It belongs to the sandbox, not to the step's link.
type Rule struct {
	Priority             uint32  `json:"priority"`
	Family               string  `json:"family,omitempty"`
	From                 string  `json:"from,omitempty"`
	To                   string  `json:"to,omitempty"`
	IIF                  string  `json:"iif,omitempty"`
	OIF                  string  `json:"oif,omitempty"`
	Mark                 *uint32 `json:"fwmark,omitempty"`
	Mask                 *uint32 `json:"fwmask,omitempty"`
	Table                uint32  `json:"table"`
	SuppressPrefixLength *uint32 `json:"suppressPrefixLength,omitempty"`
}

// Neighbor is one static entry of the neighbor table of the step's link.
type Neighbor struct {
	Address string `json:"address"`
	MAC     string `json:"mac"`
}

// policyParams describes the keys of AddressConfig beyond addresses and routes.
func policyParams() []contract.Param {
	mark := func(name, description string) contract.Param {
		return contract.Param{
			Name: name, Type: contract.Integer, Minimum: contract.Int(0),
			Maximum: contract.Int(1<<32 - 1), Description: description,
		}
	}
	return []contract.Param{
		{
			Name: "rules", Type: contract.List, Description: "policy routing rules of the pod",
			Items: &contract.Param{Type: contract.Object, Properties: []contract.Param{
				{
					Name: "priority", Type: contract.Integer, Required: true, Minimum: contract.Int(1), Maximum: contract.Int(1<<32 - 1),
					Description: "lowest first; the main table has 32766",
				},
				{
					Name: "table", Type: contract.Integer, Required: true, Minimum: contract.Int(1), Maximum: contract.Int(1<<32 - 1),
					Description: "routing table to look up",
				},
				{Name: "from", Type: contract.String, Format: contract.Prefix, Description: "source prefix"},
				{Name: "to", Type: contract.String, Format: contract.Prefix, Description: "destination prefix"},
				{
					Name: "iif", Type: contract.String, Format: contract.InterfaceName,
					Description: "incoming interface; lo: sent by the pod",
				},
				{Name: "oif", Type: contract.String, Format: contract.InterfaceName, Description: "interface that a socket is bound to"},
				mark("fwmark", "mark of the packet"),
				mark("fwmask", "compared bits of the mark; default: all"),
				{
					Name: "suppressPrefixLength", Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(128),
					Description: "skips routes whose prefix is this long or shorter; 0 skips default routes",
				},
				{
					Name: "family", Type: contract.String, Enum: []string{netstate.IPv4, netstate.IPv6},
					Description: "needed without from and to",
				},
			}},
		},
		{
			Name: "neighbors", Type: contract.List, Description: "static entries of the interface's neighbor table (ARP, NDP)",
			Items: &contract.Param{Type: contract.Object, Properties: []contract.Param{
				{Name: "address", Type: contract.String, Format: contract.IP, Required: true, Description: "its IP address"},
				{Name: "mac", Type: contract.String, Format: contract.MAC, Required: true, Description: "its MAC address"},
			}},
		},
		{
			Name: "sourceRouting", Type: contract.Boolean,
			Description: "packets from the step's addresses leave by its interface, by routing tables of its own",
		},
	}
}

// policy wants the rules and neighbors of a config.
func (p *Planner) policy(link string, cfg AddressConfig) error {
	for i, r := range cfg.Rules {
		rule, err := r.object(fmt.Sprintf("rules[%d]", i))
		if err != nil {
			return err
		}
		if err := p.Want(rule); err != nil {
			return err
		}
	}
	for _, n := range cfg.Neighbors {
		if err := p.Want(netstate.Neighbor{Link: link, Address: n.Address, MAC: &n.MAC}); err != nil {
			return err
		}
	}
	if !cfg.SourceRouting {
		return nil
	}
	return p.routes.fromSources(link, cfg)
}

// object checks a rule beyond its contract.
func (r Rule) object(field string) (netstate.Rule, error) {
	out := netstate.Rule{
		Family: r.Family, Priority: r.Priority, IIF: r.IIF,
		OIF: r.OIF, Table: r.Table, SuppressPrefixLength: r.SuppressPrefixLength,
	}
	for _, f := range []struct {
		name, prefix string
		into         *string
	}{{"from", r.From, &out.From}, {"to", r.To, &out.To}} {
		pre, err := netip.ParsePrefix(f.prefix)
		if err != nil {
			continue // none, or "default", which matches anything
		}
		family := netstate.IPv4
		if pre.Addr().Is6() {
			family = netstate.IPv6
		}
		if out.Family != "" && out.Family != family {
			return out, Invalid(field+"."+f.name, "%q is not %s, as the rest of the rule is", f.prefix, out.Family)
		}
		out.Family = family
		if pre.Bits() > 0 {
			*f.into = f.prefix
		}
	}
	switch {
	case out.Family == "":
		return out, Invalid(field+".family", "is needed, %s or %s: neither from nor to is given", netstate.IPv4, netstate.IPv6)
	case out.Family == netstate.IPv4 && r.SuppressPrefixLength != nil && *r.SuppressPrefixLength > 32:
		return out, Invalid(field+".suppressPrefixLength", "is %d, and an IPv4 prefix has at most 32 bits", *r.SuppressPrefixLength)
	case r.Mask != nil && r.Mark == nil:
		return out, Invalid(field+".fwmask", "needs fwmark")
	case r.Mark != nil:
		out.Mark, out.Mask = *r.Mark, 1<<32-1
		if r.Mask != nil {
			out.Mask = *r.Mask
		}
		if out.Mask == 0 || out.Mark&^out.Mask != 0 {
			return out, Invalid(field+".fwmark", "%#x has bits that fwmask %#x leaves out, so that nothing matches", out.Mark, out.Mask)
		}
	}
	return out, nil
}

// sourceRulePriority is the priority of the rules that sourceRouting creates: after foreign
// rules, before that of the main table (32766).
const sourceRulePriority = 30000

// sourceTable is the routing table of an interface for sourceRouting. It depends only on
// the name, so that it never changes, and is far from the small numbers that people and
// VRFs use.
func sourceTable(link string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(link))
	return 0x70000000 | h.Sum32()&0x00ffffff
}

// sourcing selects a routing table for packets from an address: the family, and the gateway if the
// table of the interface has another one of that family.
type sourcing struct {
	ipv6    bool
	gateway string
}

// sourcedBy returns the sourcing of each address. The first gateway of a family is that of the
// interface's table. An address without one has that of its network, else the first.
func sourcedBy(addresses []Address) []sourcing {
	out := make([]sourcing, len(addresses))
	first := map[bool]string{} // by "is IPv6"
	for i, a := range addresses {
		out[i].ipv6 = strings.Contains(a.Address, ":")
		if first[out[i].ipv6] == "" {
			first[out[i].ipv6] = a.Gateway
		}
	}
	for i, a := range addresses {
		gateway := a.Gateway
		if gateway == "" {
			pre, err := netip.ParsePrefix(a.Address)
			near := slices.IndexFunc(addresses, func(o Address) bool {
				gw, wrong := netip.ParseAddr(o.Gateway)
				return err == nil && wrong == nil && pre.Masked().Contains(gw)
			})
			if near >= 0 {
				gateway = addresses[near].Gateway
			}
		}
		if gateway != first[out[i].ipv6] {
			out[i].gateway = gateway
		}
	}
	return out
}

// name returns the key that a routing table is chosen and recorded by.
func (s sourcing) name(link string) string {
	if s.gateway == "" {
		return link
	}
	return link + " via " + s.gateway
}

// routes are those of the table. Only that of the first gateway has the default routes of the
// step, since an address that names another gateway is to use that.
func (s sourcing) routes(cfg AddressConfig) []deferredRoute {
	var out []deferredRoute
	add := func(field string, r Route) {
		if strings.Contains(r.Destination+r.Gateway, ":") == s.ipv6 {
			out = append(out, deferredRoute{field: field, route: r})
		}
	}
	isDefault := func(r Route) bool {
		pre, err := netip.ParsePrefix(r.Destination)
		return err != nil || pre.Bits() == 0
	}
	for i, a := range cfg.Addresses {
		pre, err := netip.ParsePrefix(a.Address)
		// else a route of the step leads there, over the gateway
		if err == nil && !pre.Addr().IsLinkLocalUnicast() && !pre.IsSingleIP() && !cfg.Routed {
			add(fmt.Sprintf("addresses[%d]", i), Route{Destination: pre.Masked().String()})
		}
	}
	written := slices.ContainsFunc(cfg.Routes, func(r Route) bool {
		return r.Table == nil && isDefault(r) && strings.Contains(r.Destination+r.Gateway, ":") == s.ipv6
	})
	gateway := slices.IndexFunc(cfg.Addresses, func(a Address) bool {
		return a.Gateway != "" && strings.Contains(a.Address, ":") == s.ipv6 && (s.gateway == "" || a.Gateway == s.gateway)
	})
	if gateway >= 0 && (!written || s.gateway != "") {
		add(fmt.Sprintf("addresses[%d]", gateway),
			Route{Destination: map[bool]string{false: "0.0.0.0/0", true: "::/0"}[s.ipv6], Gateway: cfg.Addresses[gateway].Gateway})
	}
	for i, r := range cfg.Routes {
		if r.Table == nil && (s.gateway == "" || !isDefault(r)) {
			add(fmt.Sprintf("routes[%d]", i), r)
		}
	}
	return out
}
