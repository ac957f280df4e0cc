package kernel_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/kernel"
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

// A link may have alternative names of 64 KiB in all, so that its message has more
// than a part of a dump as a rule. It is read like any other, alone and in a dump,
// and gets rid of them.
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

// Whoever has CAP_NET_ADMIN in a namespace may send to any netlink socket in it.
// Ours takes nothing but the kernel's answers.
func TestForgedAnswersAreRefused(t *testing.T) {
	b := newBench(t)
	forged := make([]byte, unix.SizeofNlMsghdr+64)
	forged[0] = byte(len(forged))
	sent := 0
	err := kernel.Within(b.ns.path(), func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		sockets, err := os.ReadFile("/proc/thread-self/net/netlink")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(sockets)) {
			var sk string
			var protocol int
			var port uint32
			if _, err := fmt.Sscan(line, &sk, &protocol, &port); err != nil || protocol != unix.NETLINK_ROUTE || port == 0 {
				continue
			}
			sent++
			if err := unix.Sendto(fd, forged, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("port %d: %v, want it refused", port, err)
			}
		}
		return nil
	})
	if err != nil || sent == 0 {
		t.Fatalf("sent to %d sockets: %v", sent, err)
	}
	if _, ok := b.observe().Link("lo"); !ok {
		t.Error("lo is missing")
	}
}
