package kernel_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

// The physical function that the tests use; the machine has two of these, with four
// virtual functions each.
const pf = "enp3s0f0"

// newCardBench opens a temporary sandbox; the host is the machine's own namespace,
// where the cards are.
func newCardBench(t testing.TB) *bench {
	t.Helper()
	return newCardBenchOn(t, kernel.Options{})
}

func newCardBenchOn(t testing.TB, o kernel.Options) *bench {
	t.Helper()
	inMachineWithCards(t)
	host, err := kernel.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	return newBenchOn(t, host)
}

func inMachineWithCards(t testing.TB) {
	t.Helper()
	kernel.InMachine(t)
	if os.Getenv("PLUMBLINE_LANE") == "uml" {
		t.Skip("user-mode Linux has no network cards")
	}
}

// vfs returns the IDs of the virtual functions of a physical one.
func vfs(t testing.TB, pf string) []string {
	t.Helper()
	inMachineWithCards(t)
	links, err := filepath.Glob("/sys/class/net/" + pf + "/device/virtfn*")
	if err != nil || len(links) < 4 {
		t.Fatalf("%s has the virtual functions %v: %v", pf, links, err)
	}
	var out []string
	for _, l := range links {
		to, err := os.Readlink(l)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, filepath.Base(to))
	}
	return out
}

// at observes a virtual function: the device and its settings.
func (b *bench) at(ids ...string) *netstate.Snapshot {
	b.Helper()
	out := netstate.NewSnapshot()
	for _, id := range ids {
		s := b.observe(netstate.Device{ID: id}, netstate.VF{ID: id})
		for _, k := range []netstate.Key{netstate.DeviceKey(id), netstate.VF{ID: id}.Key()} {
			if o, ok := s.Get(k); ok {
				out.Put(o)
			}
		}
	}
	return out
}

// ownMAC undoes, at the end of a test, state that cannot be observed: igb remembers
// that a MAC was set by the administrator, also if it is the one that the virtual
// function chose itself, and permits no other as long as it is not trusted. A MAC of
// zeros resets that; then the virtual function announces its own again.
func (b *bench) ownMAC(id string) {
	b.Helper()
	own := b.device(id)
	b.Cleanup(func() { b.restoreMAC(id, own.MAC) })
}

func (b *bench) restoreMAC(id string, own *string) {
	b.Helper()
	gone := b.host.WithoutSandbox()
	for _, c := range []netstate.Change{
		{After: netstate.VF{ID: id, MAC: new("00:00:00:00:00:00")}},
		{After: netstate.Device{ID: id, MAC: new("02:00:00:00:00:ff")}},
		{After: netstate.Device{ID: id, MAC: own}},
	} {
		if err := gone.Apply(context.Background(), c); err != nil {
			b.Error(err)
		}
	}
}

// settle waits until a physical function that was reset answers its virtual functions
// again: igbvf contacts it when the device is brought up, or ten seconds after the last
// time.
func (b *bench) settle(pf string) {
	b.Helper()
	for _, id := range vfs(b, pf) {
		b.update(netstate.Device{ID: id, Up: new(true)})
	}
	for _, id := range vfs(b, pf) {
		b.awaitCarrier(*b.device(id).At)
		b.update(netstate.Device{ID: id, Up: new(false)})
	}
}

// awaitCarrier waits until a virtual function may send.
func (b *bench) awaitCarrier(link string) {
	b.Helper()
	eventually.True(b, patience, "the virtual function has a carrier", func() bool {
		l, _ := b.observe(netstate.Link{Name: link}).Link(link)
		return l.Carrier
	})
}

func TestVFSettings(t *testing.T) {
	b := newCardBench(t)
	id := vfs(t, pf)[0]
	b.ownMAC(id)
	start := b.at(id)
	for _, v := range []netstate.VF{
		{MAC: new("02:00:00:00:00:11")},
		{VLAN: new(uint16(100))},
		{VLAN: new(uint16(100)), QoS: new(uint8(5))},
		{VLAN: new(uint16(7)), QoS: new(uint8(0)), Protocol: new("802.1q")},
		{SpoofCheck: new(false)},
		{Trust: new(true)},
		{MaxTxRateMbps: new(uint32(200))},
		{
			MAC: new("02:00:00:00:00:12"), VLAN: new(uint16(4094)), QoS: new(uint8(7)), Protocol: new("802.1q"),
			SpoofCheck: new(false), Trust: new(true), MaxTxRateMbps: new(uint32(100)),
		},
	} {
		v.ID = id
		_, _, writes := b.Counters()
		c := b.update(v)
		b.holds(v)
		if _, _, now := b.Counters(); now != writes+1 {
			t.Errorf("%s: %d messages", c, now-writes)
		}
		b.apply(c) // again: nothing differs, nothing is sent
		if _, _, now := b.Counters(); now != writes+1 {
			t.Errorf("%s again: %d messages", c, now-writes)
		}
		b.apply(netstatetest.Inverse(c))
		same(t, start, b.at(id))
	}
	got, _ := netstate.Lookup(start, netstate.VF{ID: id})
	if got.PF != "host:"+pf || got.Index != 0 {
		t.Errorf("got %+v", got)
	}
}

// The error names what igb does not support, and what precedes it in the same
// message is undone.
func TestVFUnsupported(t *testing.T) {
	b := newCardBench(t)
	id := vfs(t, pf)[0]
	b.ownMAC(id)
	start := b.at(id)
	for field, v := range map[string]netstate.VF{
		"minTxRate":        {MinTxRateMbps: new(uint32(10))},
		"linkState":        {LinkState: new("enable")},
		"protocol 802.1ad": {Protocol: new("802.1ad"), VLAN: new(uint16(100))},
	} {
		v.ID, v.MAC, v.SpoofCheck = id, new("02:00:00:00:00:13"), new(false)
		c, _ := changeTo(start, v)
		b.refused(fault.Unsupported, c, field, "does not have it")
		same(t, start, b.at(id))
	}
	c, _ := changeTo(start, netstate.VF{ID: id, MaxTxRateMbps: new(uint32(100000))})
	b.refused(fault.Invalid, c, "maxTxRate 100000", "link's speed")
	same(t, start, b.at(id))
}

func TestNoVF(t *testing.T) {
	b := newCardBench(t)
	card := strings.TrimSuffix(filepath.Base(must(filepath.EvalSymlinks("/sys/class/net/"+pf+"/device"))), "/")
	for _, id := range []string{card, "0000:ff:1f.7", "if:" + pf} {
		b.absent(netstate.VF{ID: id})
		b.refused(fault.Gone, netstate.Change{After: netstate.VF{ID: id, Trust: new(true)}})
	}
	if d := b.device(card); *d.At != "host:"+pf || d.Driver != "igb" {
		t.Errorf("got %+v", d)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestVFMoves(t *testing.T) {
	b := newCardBench(t)
	id := vfs(t, pf)[0]
	b.update(netstate.Device{ID: id, AltNames: []string{"enp9s9v9"}, Up: new(true)})
	defer func() { b.update(netstate.Device{ID: id, AltNames: []string{}, Up: new(false)}) }()
	start := b.at(id)
	there := b.move(id, "net1")
	there.After = netstate.Merge(there.After.(netstate.Device), netstate.Device{MTU: new(uint32(1400)), MAC: new("02:00:00:00:00:21")})
	_, _, writes := b.Counters()
	b.apply(there)
	if _, _, now := b.Counters(); now != writes+1 {
		t.Errorf("%d messages", now-writes)
	}
	b.holds(netstate.Link{Name: "net1", LinkKind: "device", MTU: new(uint32(1400)), MAC: new("02:00:00:00:00:21"), Up: new(false)})
	if l, _ := b.observe().Link("net1"); l.DeviceID != id {
		t.Errorf("device %q", l.DeviceID)
	}
	if d := b.device(id); *d.At != "net1" || d.Driver != "igbvf" || d.Use != "" {
		t.Errorf("got %+v", d)
	}
	// Another sandbox does not find it, but it exists.
	other := newBenchOn(t, b.host)
	if d := other.device(id); d.At != nil || d.Driver != "igbvf" {
		t.Errorf("got %+v", d)
	}
	other.refused(fault.Gone, netstate.Change{After: netstate.Device{ID: id, At: new("net1")}}, "igbvf", "another namespace")
	b.update(netstate.Link{Name: "net1", Up: new(true)})
	b.apply(netstatetest.Inverse(there))
	same(t, start, b.at(id))
}

// When a namespace ends, its virtual functions return to the host, down and under the
// name they had in it, or another one if that is taken. They are found by their address
// and restored.
func TestVFReturnsWhenNamespaceDies(t *testing.T) {
	for _, taken := range []bool{false, true} {
		b := newCardBench(t)
		id := vfs(t, pf)[3]
		if taken {
			b.create(dummy("host:net1"))
			defer b.remove(dummy("host:net1"))
		}
		// Tests of other packages leave a MAC on the physical function, and functions
		// that it does not answer because a driver was bound again.
		b.settle(pf)
		b.restoreMAC(id, b.device(id).MAC)
		start := b.at(id)
		there := b.move(id, "net1")
		b.apply(there)
		b.update(netstate.Link{Name: "net1", MTU: new(uint32(1300)), MAC: new("02:00:00:00:00:31"), Up: new(true)})
		b.create(netstate.Link{Name: "v", LinkKind: "vlan", Parent: new("net1"), VLAN: &netstate.VLAN{ID: new(uint16(9))}})
		b.Close()
		b.ns.Close()
		b.Sandbox = b.host.WithoutSandbox()
		eventually.True(t, patience, "the virtual function returns", func() bool { return b.device(id).At != nil })
		back := b.device(id)
		if name := netstate.BaseName(*back.At); taken != strings.HasPrefix(name, "dev") || !taken && name != "net1" {
			t.Errorf("it returned as %s", name)
		}
		b.apply(netstate.Change{Before: back, After: there.Before})
		same(t, start, b.at(id))
	}
}

// With an administrative MAC and no trust a virtual function cannot get its own MAC
// back. It still returns to the host, with an error that says so.
func TestVFReturnsWithoutMAC(t *testing.T) {
	b := newCardBench(t)
	id := vfs(t, pf)[0]
	b.ownMAC(id)
	start := b.at(id)
	there := b.move(id, "net1")
	settings := b.update(netstate.VF{ID: id, MAC: new("02:00:00:00:00:41")})
	b.apply(there)
	mac := b.update(netstate.Link{Name: "net1", MAC: new("02:00:00:00:00:41")})
	b.refused(fault.NotReady, netstatetest.Inverse(mac), "physical function holds another MAC")
	b.refused(fault.NotReady, netstatetest.Inverse(there), `on the host as "enp3s0f0v0"`, "not with its own MAC")
	b.holds(netstate.Device{ID: id, At: new("host:enp3s0f0v0"), MAC: new("02:00:00:00:00:41")})
	b.apply(netstatetest.Inverse(settings))
	back, _ := start.Device(id)
	b.update(back) // its own MAC is the administrative one now
	same(t, start, b.at(id))
	// If the settings are undone first, it has its MAC as soon as it is on the host.
	b.apply(settings)
	b.apply(there)
	b.update(netstate.Link{Name: "net1", MAC: new("02:00:00:00:00:41"), Up: new(true), MTU: new(uint32(1400))})
	b.holds(netstate.Link{Name: "net1", MAC: new("02:00:00:00:00:41"), Up: new(true), MTU: new(uint32(1400))})
	b.apply(netstatetest.Inverse(settings))
	b.apply(netstatetest.Inverse(there))
	same(t, start, b.at(id))
}

// A physical function that was reset does not answer its virtual functions for some time,
// and a VLAN on one is refused; the error is retried.
func TestVLANBeforeClearToSend(t *testing.T) {
	b := newCardBench(t)
	ids := vfs(t, pf)
	start := b.at(ids[2])
	there := b.move(ids[2], "net1")
	b.apply(there)
	b.update(netstate.Link{Name: "host:" + pf, Up: new(false)})
	b.update(netstate.Link{Name: "net1", Up: new(true)})
	vlan := netstate.Link{Name: "v100", LinkKind: "vlan", Parent: new("net1"), VLAN: &netstate.VLAN{ID: new(uint16(100))}, Up: new(true)}
	b.refused(fault.NotReady, netstate.Change{After: vlan}, "no carrier yet", "clear-to-send")
	b.absent(vlan)
	b.update(netstate.Link{Name: "host:" + pf, Up: new(true)})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	eventually.True(t, patience, "the VLAN can be made", func() bool {
		err := b.Apply(ctx, netstate.Change{After: vlan})
		if err != nil && fault.Of(err) != fault.NotReady {
			t.Fatal(err)
		}
		return err == nil
	})
	b.holds(vlan)
	// The VLAN is accepted in the middle of the reset by which igbvf contacts the
	// physical function again (igbvf_reset_task). Closing the device before the end of
	// that, as a move does, blocks forever with the kernel's lock held (napi_disable,
	// twice): a bug of igbvf, seen in Linux 7.3. The carrier comes when the reset is
	// done.
	b.awaitCarrier("net1")
	b.remove(vlan) // otherwise it would stay, with its ID in use
	b.apply(netstatetest.Inverse(there))
	same(t, start, b.at(ids[2]))
	b.settle(pf)
}

// A physical function that is busy does not answer in time, and a VLAN on its virtual one is refused while that
// still has a carrier; the error is retried. Other parents refuse for good.
func TestVLANWithoutAnswer(t *testing.T) {
	refuse := false
	b := newCardBenchOn(t, kernel.Options{Disturb: func(m kernel.Message) error {
		if m.Write && !m.Answered && refuse {
			refuse = false
			return unix.EINVAL
		}
		return nil
	}})
	ids := vfs(t, pf)
	start := b.at(ids[2])
	there := b.move(ids[2], "net1")
	b.apply(there)
	b.update(netstate.Link{Name: "net1", Up: new(true)})
	b.awaitCarrier("net1")
	vlan := netstate.Link{Name: "v100", LinkKind: "vlan", Parent: new("net1"), VLAN: &netstate.VLAN{ID: new(uint16(100))}}
	refuse = true
	b.refused(fault.NotReady, netstate.Change{After: vlan}, `"net1"`, "does not answer")
	b.create(vlan)
	b.remove(vlan)
	b.create(netstate.Link{Name: "d0", LinkKind: "dummy", Up: new(true)})
	vlan.Parent = new("d0")
	refuse = true
	if err := b.Apply(b.ctx, netstate.Change{After: vlan}); !errors.Is(err, unix.EINVAL) || fault.Of(err) == fault.NotReady {
		t.Errorf("on a link without a driver: %v", err)
	}
	b.remove(netstate.Link{Name: "d0"})
	b.apply(netstatetest.Inverse(there))
	same(t, start, b.at(ids[2]))
	b.settle(pf)
}

// A bond gives a new port its VLANs, VLAN 0 too where 8021q is loaded, and passes the refusal
// on, see TestVLANBeforeClearToSend.
func TestBondBeforeClearToSend(t *testing.T) {
	b := newCardBench(t)
	ids := vfs(t, pf)
	start := b.at(ids[2])
	there := b.move(ids[2], "net1")
	b.apply(there)
	b.create(
		netstate.Link{Name: "bond0", LinkKind: "bond", Up: new(true), Bond: &netstate.Bond{Mode: new("active-backup"), FailOverMAC: new("active")}},
		netstate.Link{Name: "v100", LinkKind: "vlan", Parent: new("bond0"), VLAN: &netstate.VLAN{ID: new(uint16(100))}},
	)
	b.update(netstate.Link{Name: "host:" + pf, Up: new(false)})
	port := netstate.Change{Before: netstate.Link{Name: "net1", Master: new("")}, After: netstate.Link{Name: "net1", Master: new("bond0")}}
	b.refused(fault.NotReady, port, "bond0", "clear-to-send")
	b.holds(netstate.Link{Name: "net1", Master: new(""), Up: new(false)})
	b.update(netstate.Link{Name: "host:" + pf, Up: new(true)})
	b.apply(port)
	b.holds(netstate.Link{Name: "net1", Master: new("bond0")})
	b.awaitCarrier("net1") // as there
	b.remove(netstate.Link{Name: "bond0"})
	b.update(netstate.Link{Name: "net1", Up: new(false)})
	b.apply(netstatetest.Inverse(there))
	same(t, start, b.at(ids[2]))
	b.settle(pf)
}

// Observing two virtual functions of one card costs one query beyond the dumps: their
// links were just dumped, and the physical function reports both.
func TestVFsCost(t *testing.T) {
	b := newCardBench(t)
	ids := vfs(t, pf)[:2]
	var queried []netstate.Object
	for i, id := range ids {
		there := b.move(id, "net"+string(rune('1'+i)))
		b.apply(there)
		defer b.apply(netstatetest.Inverse(there))
		queried = append(queried, netstate.Device{ID: id}, netstate.VF{ID: id})
	}
	s := b.open()
	if _, err := s.Observe(t.Context(), queried); err != nil {
		t.Fatal(err)
	}
	if dumps, gets, writes := s.Counters(); dumps != 4 || gets != 1 || writes != 0 {
		t.Errorf("%d dumps, %d questions, %d writes; want 4, 1, 0", dumps, gets, writes)
	}
}

// The whole chain on real devices, applied and undone.
func TestChain(t *testing.T) {
	b := newCardBench(t)
	a, c := vfs(t, pf)[0], vfs(t, "enp3s0f1")[0]
	start := b.at(a, c)
	link := func(l netstate.Link) netstate.Change {
		return netstate.Change{Before: netstate.Link{Name: l.Name}, After: l}
	}
	settings := func(id string) netstate.Change {
		change, _ := changeTo(b.observe(netstate.VF{ID: id}), netstate.VF{ID: id, Trust: new(true), SpoofCheck: new(false)})
		return change
	}
	forward := []netstate.Change{
		settings(a), settings(c), b.move(a, "net1"), b.move(c, "net2"),
		{After: netstate.Link{Name: "bond0", LinkKind: "bond", MTU: new(uint32(9000)), Up: new(true), Bond: &netstate.Bond{Mode: new("active-backup"), MIIMonMillis: new(uint32(100))}}},
		link(netstate.Link{Name: "net1", Master: new("bond0")}),
		link(netstate.Link{Name: "net2", Master: new("bond0")}),
		link(netstate.Link{Name: "bond0", Bond: &netstate.Bond{Primary: new("net1")}}),
		{After: netstate.Link{Name: "data0", LinkKind: "vlan", Parent: new("bond0"), VLAN: &netstate.VLAN{ID: new(uint16(100)), Protocol: new("802.1q")}, MTU: new(uint32(9000)), Up: new(true)}},
		{After: netstate.Addr{Link: "data0", Address: "192.0.2.1/24"}},
		{After: netstate.Route{Link: "data0", Dst: "198.51.100.0/24", Gateway: "192.0.2.2", Table: 254}},
	}
	for _, change := range forward {
		eventually.True(t, patience, change.String(), func() bool { // the VLAN waits for the carrier
			err := b.Apply(t.Context(), change)
			if err != nil && fault.Of(err) != fault.NotReady {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	eventually.True(t, patience, "the primary is in", func() bool {
		l, _ := b.observe().Link("bond0")
		return l.Bond != nil && *l.Bond.Primary == "net1"
	})
	b.holds(netstate.Link{Name: "net1", Master: new("bond0"), Up: new(true), MTU: new(uint32(9000))})
	b.holds(netstate.Link{Name: "data0", Parent: new("bond0"), MTU: new(uint32(9000)), Up: new(true)})
	b.remove(netstate.Link{Name: "bond0"}) // deletes the VLAN, its address and its route too
	for i := range 4 {
		b.apply(netstatetest.Inverse(forward[3-i]))
	}
	same(t, start, b.at(a, c))
}

// Drivers differ in what can be changed; these can be.
func TestCardEthtool(t *testing.T) {
	b := newCardBench(t)
	id := vfs(t, pf)[3]
	there := b.move(id, "net1")
	b.apply(there)
	defer func() {
		b.apply(netstatetest.Inverse(there))
		b.settle(pf) // the private flag resets the card
	}()
	for _, e := range []netstate.Ethtool{
		{Link: "net1", Class: netstate.EthtoolRing, Name: "rx", Value: new("512")},
		{Link: "net1", Class: netstate.EthtoolRing, Name: "tx", Value: new("256")},
		{Link: "net1", Class: netstate.EthtoolCoalesce, Name: "rx-usecs", Value: new("100")},
		feature("net1", "tx-tcp-segmentation", "off"),
		feature("net1", "rx-checksum", "off"),
		{Link: "host:" + pf, Class: netstate.EthtoolPrivateFlag, Name: "legacy-rx", Value: new("on")},
	} {
		before := b.observe(e)
		c := b.update(e)
		b.holds(e)
		b.apply(netstatetest.Inverse(c))
		same(t, before, b.observe(e))
	}
	b.refused(fault.Invalid, netstate.Change{After: netstate.Ethtool{Link: "net1", Class: netstate.EthtoolRing, Name: "rx", Value: new("1000000")}}, "exceeds maximum", "refuses")
}

// A function without a network driver has no interface, and its driver is reported.
func TestDeviceWithoutNetdev(t *testing.T) {
	b := newCardBench(t)
	id := vfs(t, "enp3s0f1")[3]
	d := b.device(id)
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	dir := "/sys/bus/pci/devices/" + id
	write(dir+"/driver/unbind", id)
	if got := b.device(id); got.At != nil || got.Driver != "" {
		t.Errorf("got %+v", got)
	}
	b.refused(fault.Gone, netstate.Change{Before: d, After: netstate.Device{ID: id, At: new("net1")}}, "no driver")
	write("/sys/bus/pci/drivers_probe", id)
	eventually.True(t, patience, "the driver is back", func() bool { return b.device(id).At != nil })
	b.update(netstate.Device{ID: id, At: d.At, MAC: d.MAC})
	b.holds(netstate.Device{ID: id, At: d.At, MAC: d.MAC})
}

// Sandboxes that take virtual functions of one card at the same time do not disturb
// each other.
func TestVFsInParallel(t *testing.T) {
	ids := vfs(t, pf)
	var wg sync.WaitGroup
	for _, id := range ids {
		b := newCardBench(t)
		wg.Go(func() {
			start, err := b.Observe(b.ctx, []netstate.Object{netstate.Device{ID: id}, netstate.VF{ID: id}})
			if err != nil {
				b.Error(err)
				return
			}
			d, _ := start.Device(id)
			vf, _ := netstate.Lookup(start, netstate.VF{ID: id})
			trust, _ := netstate.NewUpdate("", vf, netstate.VF{ID: id, Trust: new(true), SpoofCheck: new(false)})
			there := netstate.Change{Before: d, After: netstate.Device{ID: id, At: new("net1")}}
			for range 2 {
				for _, c := range []netstate.Change{trust, there, netstatetest.Inverse(there), netstatetest.Inverse(trust)} {
					if err := b.Apply(b.ctx, c); err != nil {
						b.Error(err)
					}
				}
			}
			end, err := b.Observe(b.ctx, []netstate.Object{netstate.Device{ID: id}, netstate.VF{ID: id}})
			if err != nil {
				b.Error(err)
				return
			}
			same(b, start, end)
		})
	}
	wg.Wait()
}
