package kernel_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/topology/fault"
)

// port returns the identity of a link that was made.
func (b *bench) port(name string) ports.Port {
	b.Helper()
	l, ok := b.observe().Link(name)
	if !ok {
		b.Fatalf("no link %q", name)
	}
	return ports.Port{Step: name, Name: name, Index: l.Index, Kind: l.LinkKind}
}

// state reads one port.
func (b *bench) state(p ports.Port) ports.State {
	b.Helper()
	out, err := b.host.Ports(b.ctx, b.ns.path(), b.NetnsID(), []ports.Port{p})
	if err != nil {
		b.Fatal(err)
	}
	return out[0]
}

// await reads a port until it is as wanted.
func (b *bench) await(p ports.Port, what string, is func(ports.State) bool) ports.State {
	b.Helper()
	var s ports.State
	eventually.Holds(b, time.Minute, fmt.Sprintf("link %q is %s", p.Name, what), func() string {
		if s = b.state(p); is(s) {
			return ""
		}
		return fmt.Sprintf("%+v, %+v", s, s.Bond)
	})
	return s
}

// TestPorts takes carriers away from two legs of a bond, and lets the owner of the
// namespace rename and replace links.
func TestPorts(t *testing.T) {
	b := newBench(t)
	b.veth("leg1", "far1")
	b.veth("leg2", "far2")
	b.create(netstate.Link{Name: "bond0", LinkKind: "bond", Up: new(true), Bond: &netstate.Bond{Mode: new("active-backup"), MIIMonMillis: new(uint32(50))}})
	set := func(name string, f func(h *netlink.Handle, l netlink.Link) error) {
		t.Helper()
		b.as(func(h *netlink.Handle) error {
			l, err := h.LinkByName(name)
			if err != nil {
				return err
			}
			return f(h, l)
		})
	}
	up := func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetUp(l) }
	down := func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetDown(l) }
	for _, leg := range []string{"leg1", "leg2"} {
		set(leg, down)
		set(leg, func(h *netlink.Handle, l netlink.Link) error {
			master, err := h.LinkByName("bond0")
			if err != nil {
				return err
			}
			return h.LinkSetMaster(l, master)
		})
	}
	leg1, leg2, bond := b.port("leg1"), b.port("leg2"), b.port("bond0")
	judged := func(want ports.Verdict) func(ports.State) bool {
		return func(s ports.State) bool { return ports.Judge(s) == want }
	}
	for _, far := range []string{"far1", "far2"} {
		set(far, up)
	}
	for _, p := range []ports.Port{leg1, leg2, bond} {
		b.await(p, "up", judged(ports.Verdict{Status: ports.Up, Reason: ports.Carrier}))
	}
	if s := b.state(leg1); s.Bond == nil || s.Bond.LACP {
		t.Errorf("%+v, bond %+v", s, s.Bond)
	}
	before := b.state(leg1)
	set("far1", down)
	if s := b.await(leg1, "without a carrier", judged(ports.Verdict{Status: ports.Down, Reason: ports.NoCarrier})); s.CarrierChanges == before.CarrierChanges {
		t.Error("the change of the carrier was not counted")
	}
	b.await(bond, "up over the other leg", judged(ports.Verdict{Status: ports.Up, Reason: ports.Carrier}))
	set("far2", down)
	b.await(bond, "without a carrier", judged(ports.Verdict{Status: ports.Down, Reason: ports.NoCarrier}))
	set("bond0", down)
	b.await(bond, "set down", judged(ports.Verdict{Status: ports.Unknown, Reason: ports.SetDown}))

	// Names are the pod's to give.
	set("leg2", down)
	set("leg2", func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetName(l, "renamed") })
	b.create(netstate.Link{Name: "leg2", LinkKind: "dummy", Up: new(true)})
	if s := b.state(leg2); !s.Found || s.Carrier {
		t.Errorf("a renamed link, and another one in its place: %+v", s)
	}
	other := leg2
	other.Kind = "dummy"
	if s := b.state(other); s.Found {
		t.Errorf("another link has the index: %+v", s)
	}
	set("renamed", func(h *netlink.Handle, l netlink.Link) error { return h.LinkDel(l) })
	if s := b.state(leg2); s.Found {
		t.Errorf("the link was deleted: %+v", s)
	}
}

// TestPortCounters sends through a veth.
func TestPortCounters(t *testing.T) {
	b := newBench(t)
	b.veth("near", "far")
	b.as(func(h *netlink.Handle) error {
		for _, name := range []string{"near", "far"} {
			l, err := h.LinkByName(name)
			if err != nil {
				return err
			}
			if err := h.LinkSetUp(l); err != nil {
				return err
			}
		}
		return nil
	})
	near, far := b.port("near"), b.port("far")
	// The kernel itself may send, too: neighbor discovery on links that came up.
	const frames, size = 20, 1000
	send := func(*netlink.Handle) error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for range frames {
			if err := unix.Sendto(fd, make([]byte, size), 0, &unix.SockaddrLinklayer{Ifindex: near.Index}); err != nil {
				return err
			}
		}
		return nil
	}
	s := b.await(far, "reached", func(s ports.State) bool {
		if s.ReceivedBytes >= frames*size {
			return true
		}
		b.as(send) // again: a link that has just come up drops frames
		return false
	})
	if sent := b.state(near); s.ReceivedPackets < frames || sent.SentPackets < frames || sent.SentBytes < frames*size || sent.ReceivedBytes >= frames*size {
		t.Errorf("received %+v, sent %+v", s.Counters, sent.Counters)
	}
}

// TestPortsOfAnotherNamespace: another namespace at the path belongs to anyone.
func TestPortsOfAnotherNamespace(t *testing.T) {
	b, other := newBench(t), newNetns(t)
	b.create(netstate.Link{Name: "d0", LinkKind: "dummy"})
	p := b.port("d0")
	if _, err := b.host.Ports(b.ctx, other.path(), b.NetnsID(), []ports.Port{p}); fault.Of(err) != fault.Gone {
		t.Errorf("%v, want Gone", err)
	}
	if out, err := b.host.Ports(b.ctx, b.ns.path(), reconcile.NetnsID{}, []ports.Port{p}); err != nil || !out[0].Found {
		t.Errorf("%+v, %v", out, err)
	}
}

// rdmaBench has devices near and far, in a sysfs in which an RDMA device rxe77 belongs to near. other
// is one that has got the index of near, and has an RDMA device, too. The bench has no card with
// RDMA: it is a device in software that the test makes.
type rdmaBench struct {
	*bench
	sysfs            string
	near, far, other ports.Port
}

const rdmaName = "rxe77"

func newRDMABench(t *testing.T, disturb func(kernel.Message) error) *rdmaBench {
	hostNS := newNetns(t)
	if out, err := exec.Command("modprobe", "rdma_rxe").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const near, far, other = "0000:03:10.0", "0000:03:10.2", "0000:03:10.4"
	root := t.TempDir()
	for device, name := range map[string]string{near: rdmaName, other: "rxe78"} {
		if err := os.MkdirAll(filepath.Join(root, "bus/pci/devices", device, "infiniband", name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	host, err := kernel.Open(kernel.Options{Netns: hostNS.path(), Sysfs: root, Disturb: disturb})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	b := newBenchOn(t, host)
	b.hostNS = hostNS
	b.veth("near", "far")
	r := &rdmaBench{bench: b, sysfs: root, near: b.port("near"), far: b.port("far")}
	r.near.Device, r.far.Device = near, far
	r.other = r.near
	r.other.Device = other
	b.up("near")
	b.up("far")
	return r
}

func (b *bench) up(name string) { b.link(name, (*netlink.Handle).LinkSetUp) }

// link lets the owner of the namespace do something to a link.
func (b *bench) link(name string, f func(*netlink.Handle, netlink.Link) error) {
	b.Helper()
	b.as(func(h *netlink.Handle) error {
		l, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		return f(h, l)
	})
}

// add adds an RDMA device on a link of the sandbox. It returns what removes it.
func (b *rdmaBench) add(name, link string) (remove func()) {
	b.Helper()
	if err := kernel.Within(b.ns.path(), func() error { return netlink.RdmaLinkAdd(name, "rxe", link) }); err != nil {
		b.Fatal(err)
	}
	there := true
	remove = func() {
		if !there {
			return
		}
		there = false
		if err := kernel.Within(b.ns.path(), func() error { return netlink.RdmaLinkDel(name) }); err != nil {
			b.Error(err)
		}
	}
	b.Cleanup(remove)
	return remove
}

// read is the state of a port with its RDMA port.
func (b *rdmaBench) read(p ports.Port) ports.State {
	b.Helper()
	out := []ports.State{b.state(p)}
	b.host.RDMAPorts(b.ctx, b.ns.path(), b.NetnsID(), []ports.Port{p}, out)
	return out[0]
}

func (b *rdmaBench) await(p ports.Port, what string, is func(ports.State) bool) {
	b.Helper()
	var s ports.State
	eventually.True(b, patience, fmt.Sprintf("link %q is %s", p.Name, what), func() bool {
		s = b.read(p)
		return is(s)
	})
}

func withoutRDMA(s ports.State) bool { return s.RDMA == nil }

func rdmaActive(want bool) func(ports.State) bool {
	return func(s ports.State) bool { return s.RDMA != nil && s.RDMA.Active == want && s.Carrier == want }
}

// TestRDMAPort: the RDMA port of a link is found, follows the carrier of its link, and is not
// taken for that of another one. An RDMA device that the owner of the namespace makes is nobody's.
func TestRDMAPort(t *testing.T) {
	kernel.InMachine(t)
	if os.Getenv("PLUMBLINE_LANE") == "uml" {
		return // it has no RDMA
	}
	b := newRDMABench(t, nil)
	b.await(b.near, "without an RDMA port", withoutRDMA)
	own := b.add("hostile", "near")
	b.await(b.near, "without an RDMA port but the pod's", withoutRDMA)
	own()
	remove := b.add(rdmaName, "near")
	b.await(b.near, "active", rdmaActive(true))
	b.await(b.far, "without an RDMA port", withoutRDMA)
	b.link("far", (*netlink.Handle).LinkSetDown)
	b.await(b.near, "down", rdmaActive(false))
	b.up("far")
	b.await(b.near, "active again", rdmaActive(true))
	made := b.near
	made.Device = "" // a link that was made, not a device
	b.await(made, "not a device's", withoutRDMA)
	remove()
	b.await(b.near, "without its RDMA port", withoutRDMA)
	b.add(rdmaName, "far")
	b.await(b.far, "without the RDMA port of another device", withoutRDMA)
	b.await(b.near, "without the RDMA port of another link", withoutRDMA)
}

// TestRDMAPortUnanswered: a driver does not answer. The read returns soon, with the state that was
// known before, unless that is of another RDMA device or of another device.
func TestRDMAPortUnanswered(t *testing.T) {
	kernel.InMachine(t)
	if os.Getenv("PLUMBLINE_LANE") == "uml" {
		return // it has no RDMA
	}
	var stuck atomic.Bool
	answer := make(chan struct{})
	b := newRDMABench(t, func(m kernel.Message) error {
		if !m.Answered && stuck.Load() {
			<-answer
		}
		return nil
	})
	b.add(rdmaName, "near")
	b.await(b.near, "active", rdmaActive(true))
	s := b.state(b.near)
	stuck.Store(true)
	b.link("far", (*netlink.Handle).LinkSetDown)
	read := func(p ports.Port) *ports.RDMAPort {
		out := []ports.State{s}
		b.host.RDMAPorts(b.ctx, b.ns.path(), b.NetnsID(), []ports.Port{p}, out) // never returns if it waits for the answer
		return out[0].RDMA
	}
	for range 2 {
		if got := read(b.near); got == nil || !got.Active {
			t.Errorf("without an answer: %+v, want the last known", got)
		}
	}
	if got := read(b.other); got != nil {
		t.Errorf("another device with the index of the link: %+v", got)
	}
	dir := filepath.Join(b.sysfs, "bus/pci/devices", b.near.Device, "infiniband")
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	rename(rdmaName, "rxe79")
	if got := read(b.near); got != nil {
		t.Errorf("another RDMA device in place of the one that was known: %+v", got)
	}
	rename("rxe79", rdmaName)
	stuck.Store(false)
	close(answer)
	b.await(b.near, "down", rdmaActive(false))
}

// TestRDMAPortsOfOthers: what others make is listed, and its driver is not asked.
func TestRDMAPortsOfOthers(t *testing.T) {
	kernel.InMachine(t)
	if os.Getenv("PLUMBLINE_LANE") == "uml" {
		return // it has no RDMA
	}
	var messages atomic.Int64
	b := newRDMABench(t, func(m kernel.Message) error {
		if !m.Answered {
			messages.Add(1)
		}
		return nil
	})
	b.add(rdmaName, "near")
	other := newNetns(t)
	const hostile = 10
	for i := range hostile {
		name := fmt.Sprint("hostile", i)
		if err := kernel.Within(other.path(), func() error {
			l := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("d", i)}}
			if err := netlink.LinkAdd(l); err != nil {
				return err
			}
			return netlink.RdmaLinkAdd(name, "rxe", l.Name)
		}); err != nil {
			t.Fatal(err)
		}
		// Before the namespace, with which they would end some time later: meanwhile others cannot
		// be made (ENODEV).
		t.Cleanup(func() {
			if err := kernel.Within(other.path(), func() error { return netlink.RdmaLinkDel(name) }); err != nil {
				t.Error(err)
			}
		})
	}
	out := []ports.State{b.state(b.near)}
	before := messages.Load()
	b.host.RDMAPorts(b.ctx, b.ns.path(), b.NetnsID(), []ports.Port{b.near}, out)
	eventually.True(t, patience, "the port is found", func() bool { // at once, but on a slow machine
		if out[0].RDMA == nil {
			b.host.RDMAPorts(b.ctx, b.ns.path(), b.NetnsID(), []ports.Port{b.near}, out)
		}
		return out[0].RDMA != nil
	})
	if n := messages.Load() - before; n >= hostile {
		t.Errorf("%d messages, want 2: to list the devices, and to read the port", n)
	}
}
