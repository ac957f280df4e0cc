package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

// veth makes a pair of links in the sandbox, as its owner can.
func (b *bench) veth(name, peer string) {
	b.Helper()
	b.create(netstate.Link{Name: name, LinkKind: "veth", Veth: &netstate.Veth{Peer: &peer}})
}

// as calls f with a handle of the sandbox's owner.
func (b *bench) as(f func(*netlink.Handle) error) {
	b.Helper()
	err := kernel.Within(b.ns.path(), func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		return f(h)
	})
	if err != nil {
		b.Fatal(err)
	}
}

// A link may have alternative names of 64 KiB in all, so that its message is larger
// than the usual part of a dump. It is read like any other, alone and in a dump, and
// its names can be deleted.
func TestLinkWithAllItsNames(t *testing.T) {
	b := newBench(t)
	b.veth("net1", "peer0")
	names := 0
	b.as(func(h *netlink.Handle) error {
		l, err := h.LinkByName("net1")
		if err != nil {
			return err
		}
		for ; err == nil; names++ {
			err = h.LinkAddAltName(l, fmt.Sprintf("%0127d", names))
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EMSGSIZE) {
			return err
		}
		return nil
	})
	l, ok := b.observe().Link("net1")
	if !ok || len(l.AltNames) != names-1 || names < 400 {
		t.Fatalf("%d names given, read %v with %d", names-1, ok, len(l.AltNames))
	}
}

// With CAP_NET_ADMIN in a namespace one may send to any netlink socket in it. Ours
// accepts only the kernel's answers.
func TestForgedAnswersAreRefused(t *testing.T) {
	b := newBench(t)
	for _, class := range []string{netstate.EthtoolFeature, netstate.EthtoolPrivateFlag} { // has their socket opened
		b.absent(netstate.Ethtool{Link: "lo", Class: class, Name: "none"})
	}
	forged := make([]byte, unix.SizeofNlMsghdr+64)
	forged[0] = byte(len(forged))
	sent := map[int]int{}
	err := kernel.Within(b.ns.path(), func() error {
		own := map[int]int{}
		for _, protocol := range []int{unix.NETLINK_ROUTE, unix.NETLINK_GENERIC} {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			own[protocol] = fd
		}
		sockets, err := os.ReadFile("/proc/thread-self/net/netlink")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(sockets)) {
			var sk string
			var protocol int
			var port uint32
			if _, err := fmt.Sscan(line, &sk, &protocol, &port); err != nil || port == 0 {
				continue
			}
			fd, listed := own[protocol]
			if !listed {
				continue
			}
			sent[protocol]++
			if err := unix.Sendto(fd, forged, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("protocol %d, port %d: %v, want it refused", protocol, port, err)
			}
		}
		return nil
	})
	if err != nil || sent[unix.NETLINK_ROUTE] == 0 || sent[unix.NETLINK_GENERIC] == 0 {
		t.Fatalf("sent to %v sockets of each protocol: %v", sent, err)
	}
	if _, ok := b.observe().Link("lo"); !ok {
		t.Error("lo is missing")
	}
}

// newBoundedBench opens a sandbox with low bounds. Its loopback is up.
func newBoundedBench(t *testing.T, bounds kernel.Bounds) *bench {
	t.Helper()
	host, err := kernel.Open(kernel.Options{Netns: newNetns(t).path(), Bounds: bounds})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	b := newBenchOn(t, host)
	b.as(func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return h.LinkSetUp(lo)
	})
	return b
}

func host32(i int) *net.IPNet {
	return &net.IPNet{IP: net.IPv4(10, 99, byte(i>>8), byte(i)), Mask: net.CIDRMask(32, 32)}
}

// addRoutes adds routes over the loopback.
func addRoutes(h *netlink.Handle, protocol, from, count int) error {
	for i := range count {
		r := &netlink.Route{LinkIndex: 1, Dst: host32(from + i), Protocol: netlink.RouteProtocol(protocol), Scope: netlink.SCOPE_LINK}
		if err := h.RouteAdd(r); err != nil {
			return err
		}
	}
	return nil
}

// A sandbox that exceeds a bound is an error of that sandbox only, which names the bound.
// The requested devices are still read, and everything is read when the owner has deleted
// some.
func TestFullSandbox(t *testing.T) {
	const most = 24
	for _, tc := range []struct {
		what       string
		fill, free func(*netlink.Handle) error
	}{
		{
			what: "links",
			fill: func(h *netlink.Handle) error {
				for i := range most {
					if err := h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("own%d", i)}, PeerName: fmt.Sprintf("peer%d", i)}); err != nil {
						return err
					}
				}
				return nil
			},
			free: func(h *netlink.Handle) error {
				for i := range most {
					if err := h.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("own%d", i)}}); err != nil {
						return err
					}
				}
				return nil
			},
		},
		{
			what: "addresses",
			fill: func(h *netlink.Handle) error {
				for i := range most {
					if err := h.AddrAdd(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1}}, &netlink.Addr{IPNet: host32(i)}); err != nil {
						return err
					}
				}
				return nil
			},
			free: func(h *netlink.Handle) error {
				for i := range most {
					if err := h.AddrDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1}}, &netlink.Addr{IPNet: host32(i)}); err != nil {
						return err
					}
				}
				return nil
			},
		},
		{
			what: "IPv4 routes of protocol 112",
			fill: func(h *netlink.Handle) error { return addRoutes(h, netstate.RouteProtocol, 0, most+1) },
			free: func(h *netlink.Handle) error {
				return h.RouteDel(&netlink.Route{LinkIndex: 1, Dst: host32(0), Scope: netlink.SCOPE_LINK})
			},
		},
		{
			what: "IPv4 routes of protocol 3",
			fill: func(h *netlink.Handle) error { return addRoutes(h, unix.RTPROT_BOOT, 0, most+1) },
			free: func(h *netlink.Handle) error {
				return h.RouteDel(&netlink.Route{LinkIndex: 1, Dst: host32(0), Scope: netlink.SCOPE_LINK})
			},
		},
	} {
		t.Run(tc.what, func(t *testing.T) {
			b := newBoundedBench(t, kernel.Bounds{Links: most, Addresses: most, Routes: most})
			b.veth("host:eth1", "host:other1")
			other := newBenchOn(t, b.host)
			b.as(tc.fill)
			snap, err := b.Observe(t.Context(), []netstate.Object{netstate.Device{ID: "if:eth1"}})
			if !errors.Is(err, reconcile.ErrPartial) || fault.Of(err) != fault.Conflict {
				t.Fatalf("observed with %v (%s)", err, fault.Of(err))
			}
			if said := fmt.Sprintf("more than %d %s", most, tc.what); !strings.Contains(err.Error(), said) || !strings.Contains(err.Error(), b.ns.path()) {
				t.Errorf("%q does not say %q, or not where", err, said)
			}
			if d, ok := snap.Device("if:eth1"); !ok || d.At == nil || *d.At != "host:eth1" {
				t.Errorf("device: %v, %+v", ok, d)
			}
			other.observe()
			b.as(tc.free)
			if _, ok := b.observe().Link("lo"); !ok {
				t.Error("lo is missing")
			}
		})
	}
}

// Of too many routes those of a routing daemon are not read; ours and those of the
// pod's network are.
func TestRoutesOfADaemon(t *testing.T) {
	const most = 24
	b := newBoundedBench(t, kernel.Bounds{Routes: most})
	ours := netstate.Route{Link: "lo", Dst: "203.0.113.0/24", Table: netstate.TableMain}
	b.create(ours)
	b.as(func(h *netlink.Handle) error {
		if err := h.RouteAdd(&netlink.Route{LinkIndex: 1, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Scope: netlink.SCOPE_LINK}); err != nil {
			return err
		}
		return addRoutes(h, unix.RTPROT_BIRD, 0, 10*most)
	})
	b.holds(ours)
	b.holds(netstate.Route{Link: "lo", Dst: "0.0.0.0/0", Table: netstate.TableMain})
	if n := len(netstate.All[netstate.Route](b.observe())); n > most {
		t.Errorf("%d routes are read", n)
	}
	b.update(netstate.Route{Link: "lo", Dst: ours.Dst, Table: ours.Table, MTU: new(uint32(1400))})
	b.remove(ours)
	b.absent(ours)
}

// endless is a context that ends after a number of calls of Err.
type endless struct {
	context.Context
	left int
}

func (e *endless) Err() error {
	if e.left--; e.left < 0 {
		return context.Canceled
	}
	return nil
}

// A pass whose time is over ends within a dump, and the rest of the dump does not
// affect the next one.
func TestDumpEndsWithItsContext(t *testing.T) {
	b := newBoundedBench(t, kernel.Bounds{})
	b.as(func(h *netlink.Handle) error { return addRoutes(h, unix.RTPROT_BOOT, 0, 4000) })
	ends := 0
	for left := range 16 {
		_, err := b.Observe(&endless{t.Context(), left}, nil)
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if err != nil {
			ends++
		}
		b.observe()
	}
	if ends <= 4 { // before each of the four dumps
		t.Errorf("ended %d times: no dump of several parts among them", ends)
	}
}
