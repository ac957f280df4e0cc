package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
)

// TestForgetConnections: connections to a port are deleted, those to a pod or those that nothing has translated, and
// no others: by what this kernel selects, and one by one, as before Linux 6.10, up to a bound.
func TestForgetConnections(t *testing.T) {
	InMachine(t)
	h, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	add := func(protocol uint8, from, to string, port uint16) {
		t.Helper()
		client, server := net.IP(netip.MustParseAddr(from).AsSlice()), net.IP(netip.MustParseAddr(to).AsSlice())
		family := netlink.InetFamily(unix.AF_INET)
		if len(server) == net.IPv6len {
			family = unix.AF_INET6
		}
		flow := &netlink.ConntrackFlow{
			FamilyType: uint8(family), TimeOut: 600,
			Forward: netlink.IPTuple{SrcIP: client, DstIP: server, Protocol: protocol, SrcPort: 4000, DstPort: port},
			Reverse: netlink.IPTuple{SrcIP: server, DstIP: client, Protocol: protocol, SrcPort: port, DstPort: 4000},
		}
		if protocol == unix.IPPROTO_TCP {
			flow.ProtoInfo = &netlink.ProtoInfoTCP{State: 3}
		}
		if err := netlink.ConntrackCreate(netlink.ConntrackTable, family, flow); err != nil {
			t.Fatalf("connection from %s to %s, port %d: %v", from, to, port, err)
		}
	}
	known := func() (out []string) {
		t.Helper()
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range flows {
				if f.Forward.SrcPort == 4000 {
					out = append(out, fmt.Sprintf("%d %s %s %d", f.Forward.Protocol, f.Forward.SrcIP, f.Forward.DstIP, f.Forward.DstPort))
				}
			}
		}
		slices.Sort(out)
		return out
	}
	listed := func(port netstate.HostPort, pod netip.AddrPort) error {
		c, err := mdlayher.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return err
		}
		return errors.Join(deleteListed(c, selectConnections(port, pod)), c.Close())
	}
	port := func(s string) netstate.HostPort {
		p, err := netstate.ParseHostPort(s)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	const clients = 600 // a list of several datagrams
	others := []string{"17 192.0.2.1 192.0.2.9 8081", "17 2001:db8::1 2001:db8::9 8080", "6 192.0.2.1 192.0.2.9 8080"}
	for how, forget := range map[string]func(netstate.HostPort, netip.AddrPort) error{
		"as this kernel can": h.forgetConnections, "one by one": listed,
	} {
		t.Run(how, func(t *testing.T) {
			add(unix.IPPROTO_TCP, "192.0.2.1", "192.0.2.9", 8080)
			add(unix.IPPROTO_UDP, "192.0.2.1", "192.0.2.9", 8081)
			add(unix.IPPROTO_UDP, "2001:db8::1", "2001:db8::9", 8080)
			for i := range clients {
				add(unix.IPPROTO_UDP, fmt.Sprintf("198.51.%d.%d", i/200, i%200+1), "192.0.2.9", 8080)
			}
			add(unix.IPPROTO_UDP, "192.0.2.1", "192.0.2.5", 8080)
			if err := forget(port("0.0.0.0:8080/udp"), netip.MustParseAddrPort("192.0.2.5:8080")); err != nil {
				t.Error(err)
			}
			left := known()
			if slices.Contains(left, "17 192.0.2.1 192.0.2.5 8080") || len(left) != len(others)+clients {
				t.Errorf("of a pod's port %d connections are left, want %d without that of the pod", len(left), len(others)+clients)
			}
			if how == "one by one" {
				most := maxListed
				maxListed = 100
				if err := forget(port("0.0.0.0:8080/udp"), netip.AddrPort{}); err != nil {
					t.Error(err)
				}
				if left := known(); len(left) != len(others)+clients-100 {
					t.Errorf("with a bound of 100, %d connections are left of %d", len(left), len(others)+clients)
				}
				maxListed = most
			}
			if err := forget(port("0.0.0.0:8080/udp"), netip.AddrPort{}); err != nil {
				t.Error(err)
			}
			if left := known(); !slices.Equal(left, others) {
				t.Errorf("%d connections are left, want %q: %.20q", len(left), others, left)
			}
			for _, p := range []string{"0.0.0.0:8081/udp", "[::]:8080/udp", "0.0.0.0:8080/tcp"} {
				if err := forget(port(p), netip.AddrPort{}); err != nil {
					t.Errorf("%s: %v", p, err)
				}
			}
			if left := known(); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}
