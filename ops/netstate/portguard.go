package netstate

import (
	"net"
	"net/netip"
)

// PortGuard says what a port of a bridge of the host may send. It is in the host's namespace, in a
// table of nftables that is only ours.
type PortGuard struct {
	Port   string  `json:"port" plan:"key"` // name of the link on the host, without HostPrefix
	Bridge *string `json:"bridge,omitempty" plan:"live"`
	// MACs are the only source addresses of frames of the port, sorted. An empty list is: any, and
	// then the port may also say that it has the addresses of others.
	MACs []string `json:"macs,omitzero" plan:"live,name=macs"`
	// Addresses are IP addresses that no other guarded port of the bridge may say it has, sorted. So
	// are the link-local addresses that the kernel makes of MACs.
	Addresses []string `json:"addresses,omitzero" plan:"live"`
	// Gateways are IP addresses of the bridge itself, which no guarded port may say it has, sorted.
	Gateways []string `json:"gateways,omitzero" plan:"live"`
	// RAGuard says that the port sends no router advertisements and redirects.
	RAGuard *bool `json:"raGuard,omitempty" plan:"live,name=raGuard"`
}

// Key is the port.
func (g PortGuard) Key() Key { return Key{KindPortGuard, g.Port} }

// LivesOn is nothing: it is there before its port, and outlives it.
func (PortGuard) LivesOn() Key { return Key{} }

// One is created before the links, so that its port never sends without it.
var portGuardTraits = Traits{Phase: PhasePrepare, Cost: 8, unsaid: []string{"macs", "addresses", "gateways"}}

// Traits returns the traits of guards of ports.
func (PortGuard) Traits() *Traits { return &portGuardTraits }

// LinkLocal is the IPv6 link-local address that the kernel makes of a MAC address by default (RFC 4291,
// appendix A); false if the text is not a MAC address.
func LinkLocal(mac string) (netip.Addr, bool) {
	m, err := net.ParseMAC(mac)
	if err != nil || len(m) != 6 {
		return netip.Addr{}, false
	}
	a := [16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]}
	return netip.AddrFrom16(a), true
}
