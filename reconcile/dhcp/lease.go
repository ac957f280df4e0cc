package dhcp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// Lease is a lease as a server granted it. Times are in seconds since boot.
type Lease struct {
	Address netip.Prefix `json:"address"`
	Router  netip.Addr   `json:"router,omitzero"` // in the network of the address
	// Routes are those of option 121 whose gateways are in the network of the address. They replace Router (RFC 3442).
	Routes []netstate.LeasedRoute `json:"routes,omitempty"`
	// MTU is that of option 26, 0 for none.
	MTU    uint32     `json:"mtu,omitempty"`
	Server netip.Addr `json:"server"`
	// Via is the hardware address from which the server was heard: its own, or that of a relay.
	Via     string `json:"via,omitempty"`
	Renew   int64  `json:"renew"`  // T1
	Rebind  int64  `json:"rebind"` // T2
	Expires int64  `json:"expires"`
}

// renewedBy refuses another address in the answer to a renewal: a server could change that of a
// running pod each time. The lease is then used until it ends (RFC 2131 section 4.4.5).
func (l *Lease) renewedBy(answer Lease) error {
	if answer.Address != l.Address {
		return fault.New(fault.NotReady, fmt.Errorf("server %s answers the renewal of %s with %s", answer.Server, l.Address,
			answer.Address))
	}
	return nil
}

// spread moves the times at which a lease is renewed to random earlier ones, so that those which a server
// has given at the same moment are not renewed at the same moment (RFC 2131 section 4.4.5). T1 stays before T2.
func (l *Lease) spread(now int64) {
	l.Rebind -= rand.N(max(l.Rebind-l.Renew, 0)/2 + 1) //nolint:gosec // not a secret
	l.Renew -= rand.N(max(l.Renew-now, 0)/4 + 1)       //nolint:gosec // not a secret
}

// Lifetimes of leases. A longer one is renewed as if it lasted a day, so that the kernel forgets the
// address of an agent that is gone.
const (
	defaultMinLease = time.Minute
	maxLease        = 24 * time.Hour
)

// broadest is the smallest prefix length that a server may give: its network is reached over the link.
const broadest = 8

// question holds the fields that an answer has to match.
type question struct {
	xid      dhcpv4.TransactionID
	mac      net.HardwareAddr
	clientID []byte
	// server, unless it is zero, is the only one that may answer.
	server netip.Addr
	since  int64 // when it was first sent: from then on the lease counts
}

// answers reports whether a message is an answer to the question.
func (q question) answers(m *dhcpv4.DHCPv4) bool {
	id := m.Options.Get(dhcpv4.OptionClientIdentifier)
	return m.OpCode == dhcpv4.OpcodeBootReply && m.TransactionID == q.xid && bytes.Equal(m.ClientHWAddr, q.mac) &&
		(id == nil || bytes.Equal(id, q.clientID)) && // servers may return it
		(!q.server.IsValid() || ipv4(m.ServerIdentifier()) == q.server)
}

func ipv4(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// parse returns the lease of a message, or why it is refused.
func parse(m *dhcpv4.DHCPv4, now int64, shortest time.Duration) (Lease, error) {
	var l Lease
	l.Server = ipv4(m.ServerIdentifier())
	if err := unicast(l.Server); err != nil {
		return l, fmt.Errorf("server identifier %w", err)
	}
	address := ipv4(m.YourIPAddr)
	if err := unicast(address); err != nil {
		return l, fmt.Errorf("address %w", err)
	}
	mask := m.SubnetMask()
	if mask == nil {
		return l, fmt.Errorf("address %s has no subnet mask", address)
	}
	ones, bits := mask.Size()
	if bits != 32 {
		return l, fmt.Errorf("subnet mask %s is none", net.IP(mask))
	}
	if ones < broadest {
		return l, fmt.Errorf("network %s/%d is larger than a /%d", address, ones, broadest)
	}
	l.Address = netip.PrefixFrom(address, ones)
	if !host(address, l.Address) {
		return l, fmt.Errorf("address %s is the network's own", l.Address)
	}
	lease := m.IPAddressLeaseTime(0)
	if lease < shortest {
		return l, fmt.Errorf("lease of %s lasts %s, which is shorter than %s", l.Address, lease, shortest)
	}
	lease = min(lease, maxLease)
	t1, t2 := m.IPAddressRenewalTime(lease/2), m.IPAddressRebindingTime(lease/8*7)
	if t1 < lease/8 || t1 >= t2 || t2 >= lease {
		t1, t2 = lease/2, lease/8*7
	}
	l.Renew, l.Rebind, l.Expires = now+seconds(t1), now+seconds(t2), now+seconds(lease)
	for i, r := range m.Router() {
		if i == maxRouters {
			break
		}
		if router := ipv4(r); l.reaches(router) {
			l.Router = router
			break
		}
	}
	l.Routes = l.routes(m)
	// With a smaller one the kernel removes IPv6 from the interface.
	if mtu, err := dhcpv4.GetUint16(dhcpv4.OptionInterfaceMTU, m.Options); err == nil && mtu >= netstate.MinIPv6MTU {
		l.MTU = uint32(mtu)
	}
	return l, nil
}

// reaches reports whether a router is another host of the network of the address.
func (l *Lease) reaches(router netip.Addr) bool {
	return unicast(router) == nil && router != l.Address.Addr() && l.Address.Contains(router) && host(router, l.Address)
}

// routes returns the routes of a message (RFC 3442), without those that a pod cannot have: over routers that are not in the
// network of the address, to the network itself, and to more than a /8 that is not all. A gateway of 0.0.0.0 is the link.
func (l *Lease) routes(m *dhcpv4.DHCPv4) (out []netstate.LeasedRoute) {
	seen := map[netip.Prefix]bool{l.Address.Masked(): true}
	for _, r := range m.ClasslessStaticRoute() {
		if len(out) == maxRoutes {
			break
		}
		ones, bits := r.Dest.Mask.Size()
		to, gateway := netip.PrefixFrom(ipv4(r.Dest.IP), ones).Masked(), ipv4(r.Router)
		switch {
		case bits != 32 || !to.IsValid() || seen[to] || ones > 0 && (ones < broadest || unicast(to.Addr()) != nil):
			continue
		case !gateway.IsUnspecified() && !l.reaches(gateway):
			continue
		}
		seen[to] = true
		next := netstate.LeasedRoute{Destination: to.String()}
		if !gateway.IsUnspecified() {
			next.Gateway = gateway.String()
		}
		out = append(out, next)
	}
	return out
}

// keepRequested removes what the client has not requested: servers give options also unasked.
func (l *Lease) keepRequested(codes string) {
	requested := strings.Split(codes, ",")
	if !slices.Contains(requested, "121") {
		l.Routes = nil
	}
	if !slices.Contains(requested, "26") {
		l.MTU = 0
	}
}

// maxRoutes is how many routes of a server are used.
const maxRoutes = 32

// maxRouters is how many routers of a server are considered.
const maxRouters = 8

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

// reserved are networks that no host can have an address of.
var reserved = netip.MustParsePrefix("240.0.0.0/4")

// unicast refuses addresses that no host of a network can have.
func unicast(a netip.Addr) error {
	switch {
	case !a.IsValid() || !a.Is4() || a.IsUnspecified():
		return fmt.Errorf("is missing")
	case a.IsLoopback(), a.IsMulticast(), a.IsLinkLocalUnicast(), reserved.Contains(a), a.As4()[0] == 0:
		return fmt.Errorf("%s is not an address of a host", a)
	}
	return nil
}

// host reports whether an address is neither the first nor the last of its network.
func host(a netip.Addr, network netip.Prefix) bool {
	return network.Bits() >= 31 || a != network.Masked().Addr() && network.Contains(a.Next())
}
