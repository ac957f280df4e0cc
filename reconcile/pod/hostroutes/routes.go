package hostroutes

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// metric of the routes. Without one the kernel would have to be asked before each deletion
// which route it takes.
const metric = 1024

// Bounds of the routes that leases lead to. Routes beyond them are counted as missing.
const (
	// maxOfNode is for one node in one network: a node that publishes without end must not
	// fill the table of the others.
	maxOfNode = 4096
	maxRoutes = 128 << 10
)

// place is where a need is on this node.
type place struct {
	link    string // with netstate.HostPrefix
	address netip.Addr
}

// site is a network of the host's that pods of a pool use.
type site struct {
	pool    string
	iface   int // of the pool
	network netip.Prefix
	place
}

func uniqueSites(sites []site) []site {
	slices.SortStableFunc(sites, func(a, b site) int {
		return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(a.iface, b.iface), a.network.Compare(b.network),
			cmp.Compare(a.link, b.link))
	})
	// Of several addresses of a link in a network the first one counts: the kernel lists those
	// that come and go, such as virtual ones, behind it.
	return slices.CompactFunc(sites, func(a, b site) bool {
		return a.pool == b.pool && a.iface == b.iface && a.network == b.network && a.link == b.link
	})
}

// pool is a pool and what nodes publish in it.
type pool struct {
	layout *addresspool.Layout
	leases []publishedLease
}

// publishedLease is a lease whose spec was compared with its name.
type publishedLease struct {
	name, node string
	block      netip.Prefix
	hosts      []hostAddress
}

type hostAddress struct {
	iface   int
	network netip.Prefix
	address netip.Addr
}

// read returns what a lease publishes; false for nothing. Its name says which block it is for,
// so that a lease of another block is none.
func read(l *v1alpha1.AddressLease) (p publishedLease, ok bool) {
	if l.Spec.Node == v1alpha1.KeptNode || l.Spec.KeptUntil != nil || len(l.Spec.HostAddresses) == 0 {
		return p, false
	}
	block, err := netip.ParsePrefix(l.Spec.Block)
	if err != nil || l.Name != addresspool.LeaseName(l.Spec.Pool, block) {
		return p, false
	}
	p = publishedLease{name: l.Name, node: l.Spec.Node, block: block}
	for _, h := range l.Spec.HostAddresses[:min(len(l.Spec.HostAddresses), maxPublished)] {
		network, err := netip.ParsePrefix(h.Network)
		if err != nil || network.String() != h.Network {
			continue
		}
		a, err := netip.ParseAddr(h.Address)
		if err != nil || a.Zone() != "" || !isHost(a, network) {
			continue
		}
		p.hosts = append(p.hosts, hostAddress{int(h.Interface), network, a})
	}
	return p, len(p.hosts) > 0
}

// routesOf returns the routes and rules that a node needs, and how many routes are beyond the
// bounds. Data of others is not believed further than needed: the destination follows
// from the name of the lease and from the pool, and the next hop is another host in a network
// of this node's own pods.
func routesOf(node string, sites []site, pools map[string]pool) (routes []netstate.Route, rules []netstate.Rule, beyond int) {
	type destination struct {
		part netip.Prefix
		link string
	}
	had := map[destination]bool{}
	ruled := map[netip.Prefix]bool{}
	for _, at := range sites {
		p, known := pools[at.pool]
		if !known {
			continue
		}
		is4 := at.network.Addr().Is4()
		for _, from := range p.layout.Prefixes(is4) {
			if ruled[from] {
				continue
			}
			ruled[from] = true
			r := netstate.Rule{Family: netstate.IPv6, Priority: netstate.HostTable, From: from.String(), Table: netstate.HostTable}
			if is4 {
				r.Family = netstate.IPv4
			}
			rules = append(rules, r)
		}
		of := map[string]int{}
		for i := range p.leases {
			l := &p.leases[i]
			j := slices.IndexFunc(l.hosts, func(h hostAddress) bool { return h.iface == at.iface && h.network == at.network })
			if j < 0 || l.node == node || l.hosts[j].address == at.address {
				continue
			}
			parts, err := p.layout.Routed(l.block, is4, at.iface)
			if err != nil {
				continue
			}
			gateway := l.hosts[j].address.String()
			for _, part := range parts {
				// Of several networks of one link, for one interface of a pool, the first one
				// reaches a node. ipvlan searches among the routes of its master only
				// (ipvlan_core.c), so that each link needs its own.
				to := destination{part, at.link}
				switch {
				case had[to]:
				case of[l.node] >= maxOfNode || len(routes) >= maxRoutes:
					beyond++
				default:
					had[to] = true
					of[l.node]++
					routes = append(routes, netstate.Route{
						Link: at.link, Dst: part.String(), Gateway: gateway, Table: netstate.HostTable,
						Metric: metric,
					})
				}
			}
		}
	}
	return routes, rules, beyond
}

// isHost reports whether an address is one that a host in a network can have.
func isHost(a netip.Addr, network netip.Prefix) bool {
	if !network.Contains(a) {
		return false
	}
	if network.Bits() >= a.BitLen()-1 { // RFC 3021, RFC 6164
		return true
	}
	return a != network.Addr() && (!a.Is4() || network.Contains(a.Next())) // the last one is for broadcasts
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
