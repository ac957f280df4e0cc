package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

// The host's own namespace is never a sandbox, whatever path leads to it.
func TestHostNamespaceIsRefused(t *testing.T) {
	ns := newNetns(t)
	host, err := kernel.Open(kernel.Options{Netns: ns.path()})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if _, err := host.Sandbox(ns.path()); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), "host's own") {
		t.Errorf("got %v", err)
	}
	own, err := kernel.Open(kernel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if _, err := own.Sandbox("/proc/self/ns/net"); fault.Of(err) != fault.Conflict {
		t.Errorf("got %v", err)
	}
	if own.BootID() == "" || own.NetnsID() == (reconcile.NetnsID{}) || own.NetnsID() == host.NetnsID() {
		t.Errorf("boot %q, namespace %+v", own.BootID(), own.NetnsID())
	}
}

func TestNamespaceIsGone(t *testing.T) {
	b := newBench(t)
	file := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, kind := range map[string]fault.Kind{
		file + ".missing":      fault.Gone,
		file:                   fault.Gone, // what remains of a mounted namespace after umount
		"/proc/4194305/ns/net": fault.Gone, // beyond the highest process id there is
		"/proc/self/ns/mnt":    fault.Invalid,
	} {
		if _, err := b.host.Sandbox(path); fault.Of(err) != kind {
			t.Errorf("%s: kind %s, want %s: %v", path, fault.Of(err), kind, err)
		}
	}
}

// Without a sandbox the host's objects are observed, the sandbox is empty, what was in
// it counts as deleted, and nothing can be created in it.
func TestWithoutSandbox(t *testing.T) {
	b := newBench(t)
	b.create(dummy("host:d0"))
	gone := b.host.WithoutSandbox()
	defer gone.Close()
	if gone.NetnsID() != (reconcile.NetnsID{}) {
		t.Errorf("namespace %+v", gone.NetnsID())
	}
	queried := []netstate.Object{
		netstate.Link{Name: "host:d0"},
		netstate.Device{ID: "if:d0"},
		netstate.Device{ID: "if:net1"},
		netstate.Sysctl{Path: "net/ipv4/ip_forward"},
		netstate.Ethtool{Link: "net1", Class: netstate.EthtoolFeature, Name: "rx-gro"},
		netstate.BridgeVLAN{Link: "net1", VID: 1},
		netstate.VF{ID: "0000:ff:00.0"},
	}
	s, err := gone.Observe(t.Context(), queried)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Link("host:d0"); !ok || len(netstate.All[netstate.Object](s)) != 2 {
		t.Errorf("got %v", netstate.All[netstate.Object](s))
	}
	for _, a := range queried {
		if !s.Known(a) {
			t.Errorf("%s is not known", a.Key())
		}
	}
	for _, o := range []netstate.Object{dummy("net1"), netstate.Addr{Link: "net1", Address: "192.0.2.1/24"}, netstate.Route{Link: "net1", Dst: "0.0.0.0/0", Table: 254}, netstate.BridgeVLAN{Link: "net1", VID: 3}} {
		if err := gone.Apply(t.Context(), netstate.Change{Before: o}); err != nil {
			t.Error(err)
		}
		if err := gone.Apply(t.Context(), netstate.Change{After: o}); fault.Of(err) != fault.Gone {
			t.Errorf("%s: %v", o.Key(), err)
		}
	}
}

// A closed view keeps no namespace alive, whatever it was used for. The other end of a
// veth shows that: it is deleted with the namespace.
func TestCloseLetsNamespaceDie(t *testing.T) {
	b := newBench(t)
	b.create(netstate.Link{Name: "e0", LinkKind: "veth", Veth: &netstate.Veth{Peer: new("host:far")}})
	b.observe(
		netstate.Sysctl{Path: "net/ipv4/ip_forward"},
		netstate.Ethtool{Link: "e0", Class: netstate.EthtoolFeature, Name: "rx-gro"},
		netstate.Ethtool{Link: "e0", Class: netstate.EthtoolPrivateFlag, Name: "none"},
	)
	b.Close()
	b.ns.Close()
	gone := b.host.WithoutSandbox()
	eventually.True(t, patience, "the namespace dies", func() bool {
		s, err := gone.Observe(t.Context(), []netstate.Object{netstate.Link{Name: "host:far"}})
		if err != nil {
			t.Fatal(err)
		}
		_, there := s.Link("host:far")
		return !there
	})
}

// An observation of a sandbox is one dump of each kind and no write, however many links
// there are, and no query of the host unless an object of the host is requested.
func TestObserveCosts(t *testing.T) {
	b := newBench(t)
	b.create(up(dummy("d0")))
	for i := range 10 {
		b.create(netstate.Link{Name: fmt.Sprintf("v%d", i), LinkKind: "vlan", Parent: new("d0"), VLAN: &netstate.VLAN{ID: new(uint16(100 + i))}, Up: new(true)})
	}
	s := b.open()
	if _, err := s.Observe(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if dumps, gets, writes := s.Counters(); dumps != 4 || gets != 0 || writes != 0 {
		t.Errorf("%d dumps, %d questions, %d writes; want 4, 0, 0", dumps, gets, writes)
	}
}

// One change is one message where the kernel supports that, and after an observation it
// needs no query.
func TestChangeCosts(t *testing.T) {
	b := newBench(t)
	b.create(dummy("d0"), netstate.Link{Name: "b0", LinkKind: "bond"})
	b.observe()
	for _, c := range []netstate.Change{
		{After: netstate.Link{Name: "v0", LinkKind: "vlan", Parent: new("d0"), VLAN: &netstate.VLAN{ID: new(uint16(3))}, MTU: new(uint32(1400)), MAC: new("02:00:00:00:00:01"), TxQueueLen: new(uint32(10))}},
		{Before: netstate.Link{Name: "d0"}, After: netstate.Link{Name: "d0", MTU: new(uint32(1600)), MAC: new("02:00:00:00:00:02"), Master: new("b0"), TxQueueLen: new(uint32(10)), AllMulti: new(true)}},
		{Before: netstate.Link{Name: "b0"}, After: netstate.Link{Name: "b0", Up: new(true), Bond: &netstate.Bond{MIIMonMillis: new(uint32(100)), UpDelayMillis: new(uint32(100))}}},
		{After: netstate.Addr{Link: "b0", Address: "192.0.2.1/24"}},
		{After: netstate.Route{Link: "b0", Dst: "198.51.100.0/24", Gateway: "192.0.2.2", Table: 254, MTU: new(uint32(1400))}},
		{Before: netstate.Link{Name: "b0"}},
	} {
		_, gets, writes := b.Counters()
		b.apply(c)
		_, getsAfter, writesAfter := b.Counters()
		if getsAfter != gets || writesAfter != writes+1 {
			t.Errorf("%s: %d questions, %d messages", c, getsAfter-gets, writesAfter-writes)
		}
	}
}

// Many sandboxes share one host, also while links there are created and deleted.
func TestSandboxesInParallel(t *testing.T) {
	ns := newNetns(t)
	host, err := kernel.Open(kernel.Options{Netns: ns.path()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	var wg sync.WaitGroup
	for i := range 4 {
		b := newBenchOn(t, host)
		wg.Go(func() { b.churn(fmt.Sprintf("host:far%d", i)) })
	}
	wg.Wait()
}

func (b *bench) churn(far string) {
	for range 5 {
		pair := netstate.Link{Name: "e0", LinkKind: "veth", Veth: &netstate.Veth{Peer: &far}, Up: new(true)}
		addr := netstate.Addr{Link: "e0", Address: "192.0.2.1/24"}
		sysctl := netstate.Sysctl{Path: "net/ipv4/conf/e0/rp_filter", Value: new("2")}
		feature := netstate.Ethtool{Link: "e0", Class: netstate.EthtoolFeature, Name: "tx-tcp-segmentation", Value: new("off")}
		for _, o := range []netstate.Object{pair, addr, sysctl, feature} {
			if err := b.Apply(b.ctx, netstate.Change{After: o}); err != nil {
				b.Error(err)
			}
		}
		s, err := b.Observe(b.ctx, []netstate.Object{sysctl, feature, netstate.Link{Name: far}})
		if err != nil {
			b.Error(err)
			return
		}
		for _, o := range []netstate.Object{pair, addr, sysctl, feature} {
			have, _ := s.Get(o.Key())
			if have == nil || len(netstate.Diff(o, have)) > 0 {
				b.Errorf("%s: got %+v", o.Key(), have)
			}
		}
		if err := b.Apply(b.ctx, netstate.Change{Before: pair}); err != nil {
			b.Error(err)
		}
	}
}

// A dump during which something changes is repeated.
func TestObserveUnderChange(t *testing.T) {
	b := newBench(t)
	for i := range 150 {
		b.create(dummy(fmt.Sprintf("d%d", i)))
	}
	began := time.Now()
	first, err := b.Observe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	undisturbed := time.Since(began)
	links := len(netstate.All[netstate.Link](first)) // with those that loaded modules create in each namespace
	ctx, stop := context.WithCancel(t.Context())
	other := b.open()
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(rand.N(2 * undisturbed)) // some observations are interrupted and some are not, however slow the machine
			for _, c := range []netstate.Change{{After: dummy("flicker")}, {Before: dummy("flicker")}} {
				if err := other.Apply(t.Context(), c); err != nil {
					t.Error(err)
				}
			}
		}
	})
	seen := 0
	for range 20 {
		s, err := b.Observe(t.Context(), nil)
		if fault.Of(err) == fault.NotReady {
			continue // on a slow machine each attempt is interrupted, which is reported
		}
		if err != nil {
			t.Error(err)
			break
		}
		seen++
		if n := len(netstate.All[netstate.Link](s)); n < links || n > links+1 {
			t.Errorf("%d links", n)
		}
	}
	stop()
	wg.Wait()
	if seen < 10 {
		t.Errorf("%d of 20 looks came to an end", seen)
	}
}

func TestCancelled(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := b.Apply(ctx, netstate.Change{After: dummy("d0")})
	if !errors.Is(err, context.Canceled) || fault.Of(err) != fault.NotReady {
		t.Errorf("got %v", err)
	}
	if _, err := b.Observe(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	b.absent(dummy("d0"))
}

// A snapshot is extended without reading the sandbox again.
func TestExtend(t *testing.T) {
	b := newBench(t)
	b.create(up(dummy("host:eth1")))
	b.apply(b.move("if:eth1", "net1"))
	b.create(up(dummy("d0"))) // later, so that the device keeps its index, by which it is found
	s := b.open()
	snap, err := s.Observe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	dumps, _, _ := s.Counters()
	queried := []netstate.Object{
		netstate.Device{ID: "if:eth1"},
		netstate.Link{Name: "host:lo"},
		netstate.Link{Name: "host:eth1"},
		netstate.Sysctl{Path: "net/ipv4/conf/net1/rp_filter"},
		feature("net1", "rx-gro", ""),
		netstate.Link{Name: "d0"},
		netstate.Addr{Link: "d0", Address: "192.0.2.1/24"},
		netstate.BridgeVLAN{Link: "d0", VID: 1},
	}
	queried = b.recorded(queried...)
	if err := s.Extend(t.Context(), snap, queried); err != nil {
		t.Fatal(err)
	}
	if now, _, _ := s.Counters(); now != dumps {
		t.Errorf("%d dumps", now-dumps)
	}
	for i, o := range queried {
		_, there := snap.Get(o.Key())
		if want := i != 2 && i < 6; !snap.Known(o) || there != want {
			t.Errorf("%s: known %v, there %v", o.Key(), snap.Known(o), there)
		}
	}
	if d, _ := snap.Device("if:eth1"); *d.At != "net1" {
		t.Errorf("got %+v", d)
	}
}

func TestChangeOfNothing(t *testing.T) {
	b := newBench(t)
	b.refused(fault.Invalid, netstate.Change{Before: netstate.Device{ID: "if:d0"}})
	b.apply(netstate.Change{After: dummy("d0"), Implied: true}) // done by the kernel
	b.absent(dummy("d0"))
	for _, o := range []netstate.Object{
		netstate.Sysctl{Path: "net/ipv4/ip_forward", Value: new("1")}, feature("lo", "rx-gro", "on"), netstate.VF{ID: "0000:ff:1f.7"},
	} {
		b.apply(netstate.Change{Before: o}) // what cannot be deleted ends with what it belongs to
	}
}
