package netstate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// PortMapping says that what is sent to a port of the host is received by a port of a pod. It
// is in the host's namespace, in a table of nftables that is only ours.
type PortMapping struct {
	// Host is a HostPort as text. In a query "" is for all that there are, of any sandbox. A query
	// for one has as its answer also those that overlap with it.
	Host string `json:"host" plan:"key"`
	// To is the pod's ADDRESS:PORT.
	To *string `json:"to,omitempty" plan:"live"`
	// Network is the prefix whose hosts reach the pod without the host: if they send to the
	// host's port, their packets leave with an address of the host, so that the answers pass it.
	Network *string `json:"network,omitempty" plan:"live"`
	// Via is, for a port of the loopback, the link of the host over which packets of the loopback leave to the pod: its
	// sysctl route_localnet is 1. It is "" while that is not so.
	Via *string `json:"via,omitempty" plan:"live"`
}

// HostPort is a port of the host. Its address is the unspecified one of a family for all
// addresses of the host.
type HostPort struct {
	netip.AddrPort
	Protocol string // one of PortProtocols
}

// PortProtocols are the transport protocols of a HostPort.
var PortProtocols = []string{"tcp", "udp", "sctp"}

// String writes it as ADDRESS:PORT/PROTOCOL.
func (h HostPort) String() string { return h.AddrPort.String() + "/" + h.Protocol }

// OfAll returns the same port of all addresses of the family.
func (h HostPort) OfAll() HostPort {
	all := netip.IPv6Unspecified()
	if h.Addr().Is4() {
		all = netip.IPv4Unspecified()
	}
	return HostPort{netip.AddrPortFrom(all, h.Port()), h.Protocol}
}

// Overlaps reports whether a packet may be to both ports: they are of one address, or of one
// and of all addresses of its family.
func (h HostPort) Overlaps(other HostPort) bool {
	return h == other || h.OfAll() == other || h == other.OfAll()
}

// ParseHostPort reads what String has written.
func ParseHostPort(text string) (HostPort, error) {
	address, protocol, _ := strings.Cut(text, "/")
	at, err := netip.ParseAddrPort(address)
	if err != nil || at.Addr().Zone() != "" || at.Addr().Is4In6() || at.Port() == 0 || !slices.Contains(PortProtocols, protocol) {
		return HostPort{}, fmt.Errorf("%q is not ADDRESS:PORT/PROTOCOL", text)
	}
	return HostPort{at, protocol}, nil
}

// Key is the port of the host.
func (m PortMapping) Key() Key { return Key{KindPortMapping, m.Host} }

// LivesOn is nothing: it outlives the link over which the host reaches the pod.
func (PortMapping) LivesOn() Key { return Key{} }

var portMappingTraits = Traits{Phase: PhaseRules, Cost: 8, Together: true}

// Traits returns the traits of mappings of ports.
func (PortMapping) Traits() *Traits { return &portMappingTraits }
