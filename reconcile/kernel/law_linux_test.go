package kernel_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
)

// draw makes random wants that the kernel should accept.
type draw struct{ *rand.Rand }

func (d draw) mac() *string {
	return new(fmt.Sprintf("02:%02x:%02x:%02x:%02x:%02x", d.IntN(256), d.IntN(256), d.IntN(256), d.IntN(256), d.IntN(256)))
}

// maybe draws a value or leaves the field to the kernel.
func maybe[T any](d draw, v T) *T {
	if d.IntN(3) == 0 {
		return nil
	}
	return &v
}

func one[T any](d draw, of ...T) T { return of[d.IntN(len(of))] }

func number(d draw, low, high uint32) uint32 { return low + d.Uint32N(high-low+1) }

// options draws the options at the creation of a link.
func (d draw) options(l *netstate.Link) {
	switch l.LinkKind {
	case "vlan":
		l.VLAN = &netstate.VLAN{ID: new(uint16(number(d, 1, 4094))), Protocol: new(one(d, "802.1q", "802.1ad"))}
	case "ipoib":
		l.IPoIB = &netstate.IPoIB{PKey: new(fmt.Sprintf("%#04x", number(d, 0x8001, 0xffff))), Mode: maybe(d, one(d, "datagram", "connected"))}
	case "vrf":
		l.VRF = &netstate.VRF{Table: new(number(d, 1000, 4000000000))}
	case "ipvlan":
		l.IPVLAN = &netstate.IPVLAN{Mode: maybe(d, one(d, "l2", "l3", "l3s")), Flag: maybe(d, one(d, "bridge", "private", "vepa"))}
	case "macvlan":
		l.MACVLAN = &netstate.MACVLAN{Mode: maybe(d, one(d, "bridge", "private", "vepa")), BroadcastQueue: maybe(d, number(d, 1, 5000))}
	case "bridge":
		l.Bridge = &netstate.Bridge{VLANFiltering: maybe(d, d.IntN(2) == 0), DefaultPVID: maybe(d, uint16(number(d, 0, 4094))), NoLinkLocalLearn: maybe(d, d.IntN(2) == 0)}
	case "vxlan":
		l.VXLAN = d.tunnelEnds()
		l.VXLAN.ID, l.VXLAN.Port, l.VXLAN.Family = new(number(d, 0, 1<<24-1)), new(uint16(number(d, 1024, 65535))), new("ipv4")
	case "bond":
		l.Bond = d.bond(one(d, "balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"))
	}
}

// tunnelEnds draws what of a tunnel can change in place.
func (d draw) tunnelEnds() *netstate.VXLAN {
	v := &netstate.VXLAN{
		Local: maybe(d, one(d, "0.0.0.0", "192.0.2.5")), TTL: maybe(d, uint8(number(d, 0, 255))), Learning: maybe(d, d.IntN(2) == 0),
		Remote: new("0.0.0.0"), Group: new("0.0.0.0"),
	}
	switch d.IntN(3) {
	case 0:
		*v.Remote = one(d, "192.0.2.6", "192.0.2.7")
	case 1:
		*v.Group = one(d, "239.1.1.1", "239.1.1.2")
	}
	return v
}

func (d draw) bond(mode string) *netstate.Bond {
	mii := number(d, 1, 10) * 10
	b := &netstate.Bond{
		Mode: &mode, MIIMonMillis: &mii, UpDelayMillis: maybe(d, mii*number(d, 0, 5)), DownDelayMillis: maybe(d, mii*number(d, 0, 5)),
		XmitHashPolicy: maybe(d, one(d, "layer2", "layer2+3", "layer3+4", "encap2+3", "encap3+4", "vlan+srcmac")),
		MinLinks:       maybe(d, number(d, 0, 3)), AllPortsActive: maybe(d, d.IntN(2) == 0),
		FailOverMAC: maybe(d, one(d, "none", "active", "follow")),
	}
	switch mode {
	case "802.3ad":
		b.LACPRate, b.ADSelect = maybe(d, one(d, "slow", "fast")), maybe(d, one(d, "stable", "bandwidth", "count"))
	case "balance-tlb", "balance-alb":
		b.TLBDynamicLB = maybe(d, d.IntN(2) == 0)
	case "active-backup":
		if d.IntN(2) == 0 {
			b.MIIMonMillis, b.UpDelayMillis, b.DownDelayMillis = nil, nil, nil
			b.ARPIntervalMs, b.ARPIPTargets = new(number(d, 100, 1000)), []string{"192.0.2.9", "192.0.2.8"}[:1+d.IntN(2)]
		}
	}
	return b
}

// link draws a link of one kind above "low", which has an MTU of 9000.
func (d draw) link(name, kind string) netstate.Link {
	l := netstate.Link{Name: name, LinkKind: kind, MTU: maybe(d, number(d, 1280, 9000)), TxQueueLen: maybe(d, number(d, 0, 5000))}
	if kind != "ipvlan" {
		l.MAC = maybe(d, *d.mac())
	}
	switch kind {
	case "vlan", "ipvlan", "macvlan":
		l.Parent = new(one(d, "low", "host:low"))
	case "vxlan":
		l.Parent, l.MTU = new("low"), maybe(d, number(d, 1280, 8950))
	case "veth":
		l.Veth = &netstate.Veth{Peer: new(one(d, "", "host:") + "p" + name)}
	}
	d.options(&l)
	l.Up, l.Alias = maybe(d, d.IntN(2) == 0), maybe(d, one(d, "", "x", "so called"))
	l.Promisc, l.AllMulti = maybe(d, d.IntN(2) == 0), maybe(d, d.IntN(2) == 0)
	return l
}

// change draws a change of an existing link, of fields that can change in its state.
func (d draw) change(l netstate.Link) netstate.Link {
	out := netstate.Link{
		Name: l.Name, MTU: maybe(d, number(d, 1280, 9000)), TxQueueLen: maybe(d, number(d, 0, 5000)), Alias: maybe(d, one(d, "", "y", "other")),
		Promisc: maybe(d, d.IntN(2) == 0), AllMulti: maybe(d, d.IntN(2) == 0), Up: maybe(d, d.IntN(2) == 0),
	}
	if l.LinkKind != "ipvlan" {
		out.MAC = maybe(d, *d.mac())
	}
	switch l.LinkKind {
	case "ipvlan":
		out.IPVLAN = &netstate.IPVLAN{Mode: maybe(d, one(d, "l2", "l3", "l3s")), Flag: maybe(d, one(d, "bridge", "private", "vepa"))}
	case "vxlan":
		out.VXLAN = d.tunnelEnds()
		if out.MTU != nil {
			out.MTU = new(min(*out.MTU, 8950))
		}
	case "macvlan":
		out.MACVLAN = &netstate.MACVLAN{Mode: maybe(d, one(d, "bridge", "private", "vepa")), BroadcastQueue: maybe(d, number(d, 1, 5000))}
	case "bridge":
		out.Bridge = &netstate.Bridge{VLANFiltering: maybe(d, d.IntN(2) == 0), DefaultPVID: maybe(d, uint16(number(d, 0, 4094))), NoLinkLocalLearn: maybe(d, d.IntN(2) == 0)}
	case "bond":
		if l.PortsKeepMAC() {
			out.MAC = nil // accepted and ignored
		}
		out.Bond = &netstate.Bond{MinLinks: maybe(d, number(d, 0, 3)), AllPortsActive: maybe(d, d.IntN(2) == 0), XmitHashPolicy: maybe(d, one(d, "layer2", "layer3+4"))}
	}
	return out
}

// withoutBench is the kind of link that needs a card of InfiniBand: see ipoib_linux_test.go.
const withoutBench = netstate.InfiniBandKind

// TestLaws holds the two laws of the codecs on the kernel: what was written is
// what is read, and a change followed by its inverse changes nothing.
func TestLaws(t *testing.T) {
	first, count := uint64(0), uint64(4)
	if effort.Long() {
		first, count = effort.Seed(t), 40
	}
	for seed := first; seed != first+count; seed++ {
		for i, kind := range netstate.LinkKinds() {
			d := draw{rand.New(rand.NewPCG(seed, uint64(i)))}
			if kind == withoutBench {
				continue
			}
			if !t.Run(fmt.Sprintf("%s/%d", kind, seed), func(t *testing.T) { lawsOfLink(t, d, kind) }) {
				return
			}
		}
		d := draw{rand.New(rand.NewPCG(seed, 0))}
		if !t.Run(fmt.Sprintf("addressing/%d", seed), func(t *testing.T) { lawsOfAddressing(t, d) }) {
			return
		}
	}
}

// TestDraws holds that links of every kind are tried on a kernel: the laws with options
// of theirs, and TestLinkKinds with each of their fields.
func TestDraws(t *testing.T) {
	for i, kind := range netstate.LinkKinds() {
		link := draw{rand.New(rand.NewPCG(1, uint64(i)))}.link("x", kind)
		if traits := netstate.LinkTraitsOf(kind); traits.Options != nil && !traits.Options(link) {
			t.Errorf("options draws none for a link of kind %q", kind)
		}
		if kind != withoutBench && !slices.ContainsFunc(linkRows, func(r linkRow) bool { return r.link.LinkKind == kind }) {
			t.Errorf("linkRows in link_linux_test.go has no link of kind %q", kind)
		}
	}
}

func lawsOfLink(t *testing.T, d draw, kind string) {
	b := newBench(t)
	for _, low := range []string{"low", "host:low"} {
		b.create(up(netstate.Link{Name: low, LinkKind: "dummy", MTU: new(uint32(9000))}))
	}
	want := d.link("x", kind)
	start := b.observe()
	b.create(want)
	b.holds(want)

	update := d.change(want)
	made := b.observe()
	c := b.update(update)
	b.holds(update)
	if c.After != nil {
		b.apply(netstatetest.Inverse(c))
		same(t, made, b.observe())
	}
	have, _ := made.Get(want.Key())
	b.remove(have)
	same(t, start, b.observe())
	b.apply(netstatetest.Inverse(netstate.Change{Before: have})) // with all that was observed
	if kind == "veth" {
		b.holds(have) // the other end gets a new random MAC
	} else {
		same(t, made, b.observe())
	}
	b.remove(have)
	same(t, start, b.observe())
}

// lawsOfAddressing draws addresses and routes for a link.
func lawsOfAddressing(t *testing.T, d draw) {
	b := newBench(t)
	b.create(up(netstate.Link{Name: "low", LinkKind: "dummy", MTU: new(uint32(9000))}))
	start := b.observe()
	var done []netstate.Change
	var seen []*netstate.Snapshot
	do := func(o netstate.Object) {
		if _, ok := b.observe(o).Get(o.Key()); ok {
			return // drawn twice
		}
		seen = append(seen, b.observe())
		b.create(o)
		b.holds(o)
		done = append(done, netstate.Change{After: o})
	}
	for range 4 {
		do(netstate.Addr{Link: "low", Address: fmt.Sprintf("10.%d.%d.%d/%d", d.IntN(256), d.IntN(256), 1+d.IntN(250), number(d, 8, 32))})
		do(netstate.Addr{Link: "low", Address: fmt.Sprintf("2001:db8:%x::%x/%d", 1+d.IntN(65535), 1+d.IntN(65535), number(d, 64, 128)), NoDAD: maybe(d, true), NoPrefixRoute: maybe(d, true)})
	}
	for range 6 {
		do(d.route())
	}
	for i, c := range slices.Backward(done) {
		b.apply(netstatetest.Inverse(c))
		same(b, seen[i], b.observe())
	}
	same(b, start, b.observe())
}

func (d draw) route() netstate.Route {
	r := netstate.Route{
		Link: "low", Table: one(d, netstate.TableMain, 100, 4000000000), Metric: number(d, 1, 4096),
		MTU: maybe(d, number(d, 1280, 9000)), AdvMSS: maybe(d, number(d, 500, 9000)), OnLink: new(false),
	}
	if d.IntN(2) == 0 {
		r.Dst = fmt.Sprintf("172.%d.%d.0/24", d.IntN(256), d.IntN(256))
		if d.IntN(2) == 0 {
			r.Gateway, r.OnLink = "203.0.113.1", new(true)
		}
		return r
	}
	r.Dst = fmt.Sprintf("2001:db9:%x::/48", 1+d.IntN(65535))
	if d.IntN(2) == 0 {
		r.Gateway = "fe80::1"
	}
	return r
}

// TestDump holds that a whole sandbox is as before after everything was applied and
// undone, sysctls and ethtool settings included.
func TestDump(t *testing.T) {
	b := newBench(t)
	b.create(up(netstate.Link{Name: "e0", LinkKind: "veth", Veth: &netstate.Veth{Peer: new("e1")}}))
	look := func() *netstate.Snapshot {
		s, err := b.Dump(t.Context(), netstate.Link{Name: "host:nothing"})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	start := look()
	for _, kind := range []any{netstate.Link{}, netstate.Sysctl{}, netstate.Ethtool{}} {
		n := 0
		for _, o := range netstate.All[netstate.Object](start) {
			if fmt.Sprintf("%T", o) == fmt.Sprintf("%T", kind) {
				n++
			}
		}
		if n < 3 {
			t.Errorf("%d objects of %T", n, kind)
		}
	}
	changes := []netstate.Change{
		b.update(feature("e0", "tx-tcp-segmentation", "off")),
		b.update(netstate.Sysctl{Path: "net/ipv4/conf/e0/rp_filter", Value: new("2")}),
		b.update(netstate.Link{Name: "e0", MTU: new(uint32(1400)), TxQueueLen: new(uint32(7))}),
	}
	for _, l := range []netstate.Object{up(dummy("d0")), netstate.Addr{Link: "e0", Address: "192.0.2.1/24"}} {
		b.create(l)
		changes = append(changes, netstate.Change{After: l})
	}
	if len(netstatetest.Differences(start, look())) == 0 {
		t.Error("nothing differs")
	}
	for i := range changes {
		b.apply(netstatetest.Inverse(changes[len(changes)-1-i]))
	}
	same(t, start, look())
}
