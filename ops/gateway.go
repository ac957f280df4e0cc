package ops

import (
	"fmt"
	"net/netip"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// Gatewayed is an address of a link, and the gateway on the host for it.
type Gatewayed struct {
	Address netip.Prefix
	Gateway netip.Addr
}

// Gateways returns the addresses that a link will have, each with the gateway that the host
// is to have for it: the one that the config or the pool names, else the first address of
// the network. field is the key of the config that asks for gateways.
func (p *Planner) Gateways(link, field string, cfg AddressConfig) ([]Gatewayed, error) {
	all, err := p.knownAddresses(link, cfg)
	if err != nil {
		return nil, err
	}
	var out []Gatewayed
	for _, a := range all {
		pre, err := a.Prefix()
		if err != nil {
			return nil, err
		}
		gw := pre.Masked().Addr().Next()
		if pre.Bits() == pre.Addr().BitLen()-1 && gw == pre.Addr() {
			gw = pre.Masked().Addr() // of two hosts, the other one (RFC 3021, RFC 6164)
		}
		switch named, err := netip.ParseAddr(a.Gateway); {
		case a.Gateway != "" && err != nil:
			return nil, fault.New(fault.Invalid, err)
		case a.Gateway != "":
			gw = named
		case cfg.IPAM != nil && cfg.IPAM.Pool != "":
			return nil, Invalid(field, "AddressPool %q has no gateway in %q, and the address of the host could be another pod's: "+
				"make a pool whose subnet has a gateway, since subnets cannot be changed", cfg.IPAM.Pool, pre.Masked())
		case !pre.Contains(gw):
			return nil, Invalid("addresses",
				"the network of %q has no other address for the gateway: write {address: %s, gateway: ADDRESS}", a.Address, a.Address)
		}
		switch {
		case gw == pre.Addr():
			return nil, Invalid("addresses", "%q is the gateway's own address: choose another", a.Address)
		case gw.Is4() != pre.Addr().Is4():
			return nil, Invalid("addresses", "gateway %q and address %q are of different families", gw, a.Address)
		}
		out = append(out, Gatewayed{pre, gw})
	}
	return out, nil
}

// DefaultRoute is the destination of the default route of an address's family.
func DefaultRoute(a netip.Addr) string {
	if a.Is4() {
		return "0.0.0.0/0"
	}
	return "::/0"
}

// HostForwards returns an error unless the host forwards packets of the family. A topology that
// was applied is repaired all the same.
func (p *Planner) HostForwards(v4 bool) error {
	path, name := "net/ipv4/ip_forward", "net.ipv4.ip_forward"
	if !v4 {
		path, name = "net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding"
	}
	have, there, err := Lookup(p, netstate.Sysctl{Path: netstate.HostName(path)})
	switch {
	case err != nil:
		return err
	case there && (have.Value == nil || *have.Value != "0"):
		return nil
	case p.Kept():
		p.Note("the host does not forward packets of the pod: set the sysctl %s of the host to 1", name)
		return nil
	}
	return fault.New(fault.NotReady,
		fmt.Errorf("the host does not forward packets, which a pod needs to reach other networks: set its sysctl %s to 1", name))
}
