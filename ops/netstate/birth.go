package netstate

import "slices"

// AtBirth returns a field of an object as it is when the kernel has created the object and nobody has set it, or false where that
// is not known: it depends on the kernel, on a module's parameters, or on other objects.
//
// Sources: alloc_netdev_mqs in net/core/dev.c and ether_setup in net/ethernet/eth.c (DEFAULT_TX_QUEUE_LEN, which no driver of
// our kinds changes but IPoIB's: ipoib_setup_common), new_nbp in net/bridge/br_if.c, br_vlan_init in net/bridge/br_vlan.c.
func AtBirth(o Object, path string) (Object, bool) {
	switch o := o.(type) {
	case Link:
		return o.atBirth(path)
	case Route:
		known := slices.Contains([]string{"src", "scope", "mtu", "advmss", "onlink"}, path)
		return Restrict(o.atBirth(), func(p string) bool { return p == path }), known
	case Addr:
		born := Addr{Link: o.Link, Address: o.Address, NoDAD: new(false), NoPrefixRoute: new(false)}
		return Restrict(born, func(p string) bool { return p == path }), true
	case Masquerade:
		o.Except = []string{}
		return o, path == "except"
	case OVSPort:
		return OVSPort{Link: o.Link, Addresses: []string{}}, path == "addresses"
	}
	return o, false
}

func (l Link) atBirth(path string) (Link, bool) {
	out, kind := Link{Name: l.Name}, l.KindTraits()
	switch path {
	case "master":
		out.Master = new("")
	case "alias":
		out.Alias = new("")
	case "promisc":
		out.Promisc = new(false)
	case "allMulti":
		out.AllMulti = new(false)
	case "port.hairpin":
		out.Port = &Port{Hairpin: new(false)}
	case "port.isolated":
		out.Port = &Port{Isolated: new(false)}
	case "bridge.vlanFiltering":
		out.Bridge = &Bridge{VLANFiltering: new(false)}
	case "txQueueLen":
		out.TxQueueLen = new(uint32(defaultTxQueueLen))
		return out, l.LinkKind != InfiniBandKind && slices.Contains(LinkKinds(), l.LinkKind)
	case "mtu":
		out.MTU = &kind.DefaultMTU
		return out, kind.DefaultMTU != 0 && !kind.PortsMTU && l.LivesOn() == (Key{})
	default:
		return out, false
	}
	return out, true
}

const defaultTxQueueLen = 1000

// atBirth has all options of a route that the kernel says of each.
func (r Route) atBirth() Route {
	r.Source, r.MTU, r.AdvMSS, r.OnLink = new(""), new(uint32(0)), new(uint32(0)), new(false)
	r.Scope = new("global")
	if r.Gateway == "" && !r.IPv6() {
		r.Scope = new("link")
	}
	return r
}
