package hostroutes

import (
	"net/netip"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// metric of the routes. Without one the kernel would have to be asked before each deletion
// which route it takes.
const metric = 1024

// place is where a network is on this node.
type place struct {
	link    string // with netstate.HostPrefix
	address netip.Addr
}

// pool is a pool and all of its leases.
type pool struct {
	layout *addresspool.Layout
	leases []*v1alpha1.AddressLease
}

// routesOf returns the routes and rules that a node needs.
func routesOf(node string, needs []Need, places map[netip.Prefix]place, pools map[string]pool) ([]netstate.Route, []netstate.Rule) {
	var routes []netstate.Route
	var rules []netstate.Rule
	had := map[string]bool{}
	for _, n := range needs {
		at, here := places[n.Network]
		p, known := pools[n.Pool]
		if !here || !known {
			continue
		}
		is4 := n.Network.Addr().Is4()
		for _, from := range p.layout.Prefixes(is4) {
			r := netstate.Rule{Family: netstate.IPv6, Priority: netstate.HostTable, From: from.String(), Table: netstate.HostTable}
			if is4 {
				r.Family = netstate.IPv4
			}
			if id := r.Key().ID; !had[id] {
				had[id] = true
				rules = append(rules, r)
			}
		}
		for _, l := range p.leases {
			part, gateway, ok := reached(p.layout, l, node, n, at.address)
			// Of several networks for one interface of a pool, the first one reaches a node.
			if !ok || had[part.String()] {
				continue
			}
			had[part.String()] = true
			routes = append(routes, netstate.Route{Link: at.link, Dst: part.String(), Gateway: gateway.String(), Table: netstate.HostTable, Metric: metric})
		}
	}
	return routes, rules
}

// reached returns what a lease of another node is for and its address in a network. What the
// lease says of itself is not believed further than that: the block has to be that of its
// name, and the address one of another host in the network.
func reached(layout *addresspool.Layout, l *v1alpha1.AddressLease, node string, n Need, own netip.Addr) (part netip.Prefix, gateway netip.Addr, ok bool) {
	if l.Spec.Node == node || l.Spec.Node == v1alpha1.KeptNode || l.Spec.KeptUntil != nil {
		return part, gateway, false
	}
	block, err := netip.ParsePrefix(l.Spec.Block)
	if err != nil || l.Name != addresspool.LeaseName(n.Pool, block) || layout.Holds(block) != nil {
		return part, gateway, false
	}
	for _, h := range l.Spec.HostAddresses {
		if int(h.Interface) != n.Interface || h.Network != n.Network.String() {
			continue
		}
		a, err := netip.ParseAddr(h.Address)
		if err != nil || a.Zone() != "" || a == own || !isHost(a, n.Network) {
			return part, gateway, false
		}
		part, err := layout.Part(block, a.Is4(), n.Interface)
		return part, a, err == nil
	}
	return part, gateway, false
}

// isHost reports whether an address is one that a host in a network can have.
func isHost(a netip.Addr, network netip.Prefix) bool {
	if !network.Contains(a) {
		return false
	}
	if network.Bits() >= a.BitLen()-1 { // RFC 3021, RFC 6164
		return true
	}
	if a == network.Addr() {
		return false
	}
	return !a.Is4() || network.Contains(a.Next()) // the last one is for broadcasts
}

// changes returns what makes a table the wanted one, in order: nothing is deleted before all of
// its replacements are there. Deletions are left out unless complete is set.
func changes(haveRoutes, routes []netstate.Route, haveRules, rules []netstate.Rule, complete bool) []netstate.Change {
	added, deleted := differ(haveRoutes, routes)
	addedRules, deletedRules := differ(haveRules, rules)
	out := append(added, addedRules...)
	if complete {
		out = append(append(out, deletedRules...), deleted...)
	}
	return out
}

func differ[T netstate.Object](have, want []T) (added, deleted []netstate.Change) {
	there, wanted := map[netstate.Key]bool{}, map[netstate.Key]bool{}
	for _, o := range have {
		there[o.Key()] = true
	}
	for _, o := range want {
		if wanted[o.Key()] = true; !there[o.Key()] {
			added = append(added, netstate.Change{After: o})
		}
	}
	for _, o := range have {
		if !wanted[o.Key()] {
			deleted = append(deleted, netstate.Change{Before: o})
		}
	}
	return added, deleted
}
