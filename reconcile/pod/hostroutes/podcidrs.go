package hostroutes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/excerpt"
)

// maxPodRoutes bounds the routes to the pod CIDRs of other nodes.
const maxPodRoutes = 32 << 10

// Node is the part of a Node object that routes depend on.
type Node struct {
	Name    string
	Created time.Time
	// PodCIDRs are those of spec.podCIDRs; an entry that is no CIDR is invalid.
	PodCIDRs []netip.Prefix
	// InternalIPs are those of status.addresses. A kubelet writes those of its own node.
	InternalIPs []netip.Addr
}

// PodNetwork tells the keeper about the own network of the node's pods.
type PodNetwork struct {
	// Used reports whether pods have, or are to have, addresses of the node's pod CIDRs. Unless
	// Known is set, it may be that they do nevertheless.
	Used, Known bool
	// ClusterCIDRs contain all pod CIDRs. None: those of private addresses are accepted.
	ClusterCIDRs []netip.Prefix
}

// refusal is a route that is not set, and why.
type refusal struct {
	node string
	cidr netip.Prefix
	why  string
}

func (r refusal) String() string {
	cidr := "pod CIDR"
	if r.cidr.IsValid() {
		cidr += " " + r.cidr.String()
	}
	return fmt.Sprintf("node %q: %s: %s", r.node, cidr, r.why)
}

var (
	privatePrefixes = prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
	// specialPrefixes have a meaning of their own: RFC 1122, 3927, 5771, 4291.
	specialPrefixes = prefixes("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/96", "::ffff:0:0/96", "fe80::/10",
		"ff00::/8")
)

func prefixes(of ...string) (out []netip.Prefix) {
	for _, s := range of {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// addressOfHost is an address of the host, and where it is.
type addressOfHost struct {
	link string // with netstate.HostPrefix
	at   netip.Prefix
}

func attachedTo(addresses []netstate.Addr) []addressOfHost {
	var out []addressOfHost
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.Address); err == nil {
			out = append(out, addressOfHost{a.Link, p})
		}
	}
	return out
}

// podRoutesOf returns the routes and rules to the pod CIDRs of the other nodes, and what is
// refused. known is false when the node itself is not among the nodes, so that it is not
// known which addresses are its own pods'.
//
// The older one of two nodes counts: which CIDRs a node has cannot change, but a kubelet that
// registers its node may choose them. What a kubelet can write later, its InternalIP, decides
// where packets to its own pods are sent, and nothing else.
func podRoutesOf(self string, nodes []Node, host []addressOfHost,
	cluster []netip.Prefix,
) (routes []netstate.Route, rules []netstate.Rule, refused []refusal, known bool) {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b Node) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name))
	})
	i := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == self })
	if i < 0 {
		return nil, nil, nil, false
	}
	d := destinations{own: nodes[i].PodCIDRs, cluster: cluster, taken: map[bool][]taken{}}
	hops := nextHops{own: nodes[i].PodCIDRs, ours: map[netip.Addr]bool{}}
	for _, a := range host {
		hops.add(a)
		// The pods' bridge, and what else is in the own CIDRs, is compared as one.
		contains := func(c netip.Prefix) bool { return c.Contains(a.at.Addr()) && c.Bits() <= a.at.Bits() }
		if !slices.ContainsFunc(d.own, contains) {
			d.host = append(d.host, addressOfHost{a.link, a.at.Masked()})
		}
	}
	families := map[bool]bool{} // by "is IPv4"
	for _, n := range nodes {
		if n.Name == self {
			continue
		}
		for _, c := range n.PodCIDRs {
			// Of a CIDR that cannot be reached the owner is known nevertheless.
			why := d.take(n.Name, c)
			var link string
			var hop netip.Addr
			if why == "" {
				link, hop, why = hops.to(n.InternalIPs, c.Addr().Is4())
			}
			if why == "" && len(routes) >= maxPodRoutes {
				why = fmt.Sprintf("there are %d routes already", maxPodRoutes)
			}
			if why != "" {
				refused = append(refused, refusal{n.Name, c, why})
				continue
			}
			routes = append(routes, netstate.Route{
				Link: link, Dst: c.String(), Gateway: hop.String(), Table: netstate.PodTable,
				Metric: metric,
			})
			families[c.Addr().Is4()] = true
		}
	}
	for _, family := range []string{netstate.IPv4, netstate.IPv6} {
		if families[family == netstate.IPv4] {
			rules = append(rules, netstate.Rule{Family: family, Priority: netstate.PodTable, Table: netstate.PodTable})
		}
	}
	return routes, rules, refused, true
}

// destinations are the CIDRs that nodes have.
type destinations struct {
	own, cluster []netip.Prefix
	host         []addressOfHost
	taken        map[bool][]taken // by "is IPv4"; disjoint, in their order
}

type taken struct {
	cidr netip.Prefix
	node string
}

// take records the CIDR of a node, or says why there may be no route to it.
func (d *destinations) take(node string, c netip.Prefix) (why string) {
	least := 16
	if c.Addr().Is4() {
		least = 8
	}
	overlaps := func(o netip.Prefix) bool { return o.Overlaps(c) }
	within := func(o netip.Prefix) bool { return o.Contains(c.Addr()) && o.Bits() <= c.Bits() }
	switch {
	case !c.IsValid() || c.Addr().Is4In6() || c != c.Masked():
		return "it is not a CIDR"
	case c.Bits() < least:
		return fmt.Sprintf("it has a prefix length below %d", least)
	case slices.ContainsFunc(specialPrefixes, overlaps):
		return "it contains addresses that no pod can have"
	case len(d.cluster) > 0 && !slices.ContainsFunc(d.cluster, within):
		return "it is not in --cluster-cidr"
	case len(d.cluster) == 0 && !slices.ContainsFunc(privatePrefixes, within):
		return "its addresses are not private: if they are the pods', name them with --cluster-cidr"
	case slices.ContainsFunc(d.own, overlaps):
		return "it overlaps a pod CIDR of this node"
	}
	if i := slices.IndexFunc(d.host, func(a addressOfHost) bool { return a.at.Overlaps(c) }); i >= 0 {
		return fmt.Sprintf("it overlaps %s of the interface %q of the host", d.host[i].at, netstate.BaseName(d.host[i].link))
	}
	before := d.taken[c.Addr().Is4()]
	at, _ := slices.BinarySearchFunc(before, c, func(t taken, c netip.Prefix) int { return t.cidr.Addr().Compare(c.Addr()) })
	for _, i := range []int{at - 1, at} { // no others can overlap it, since these are disjoint
		if i >= 0 && i < len(before) && before[i].cidr.Overlaps(c) {
			return fmt.Sprintf("it overlaps %s of the node %q, which is older", before[i].cidr, before[i].node)
		}
	}
	d.taken[c.Addr().Is4()] = slices.Insert(before, at, taken{c, node})
	return ""
}

// nextHops knows which hosts are on networks of this one.
type nextHops struct {
	own   []netip.Prefix // pod CIDRs
	ours  map[netip.Addr]bool
	links []addressOfHost
}

func (h *nextHops) add(a addressOfHost) {
	ip := a.at.Addr()
	h.ours[ip] = true
	if !a.at.IsSingleIP() && ip.IsGlobalUnicast() {
		h.links = append(h.links, a)
	}
}

// to returns the first of the addresses of a node at which it is reached without a router.
func (h *nextHops) to(addresses []netip.Addr, is4 bool) (link string, hop netip.Addr, why string) {
	why = "its node has no InternalIP of that family"
	for _, a := range addresses {
		if a.Is4() != is4 {
			continue
		}
		var best addressOfHost
		for _, l := range h.links {
			if isHost(a, l.at.Masked()) && (!best.at.IsValid() || l.at.Bits() > best.at.Bits()) {
				best = l
			}
		}
		switch {
		case h.ours[a]:
			why = fmt.Sprintf("the InternalIP %s of its node is one of this host", a)
		case slices.ContainsFunc(h.own, func(c netip.Prefix) bool { return c.Contains(a) }):
			why = fmt.Sprintf("the InternalIP %s of its node is in a pod CIDR of this node", a)
		case !a.IsGlobalUnicast() || a.Is4In6() || a.Zone() != "":
			why = fmt.Sprintf("the InternalIP %s of its node is not a host address", a)
		case !best.at.IsValid():
			why = fmt.Sprintf("the InternalIP %s of its node is not that of another host on a network of this one: "+
				"the router between them has to know the route", a)
		default:
			return best.link, a, ""
		}
	}
	return "", hop, why
}

// textOf reports the first refusals.
func textOf(refused []refusal) string { return excerpt.Few(refused, 8, refusal.String) }
