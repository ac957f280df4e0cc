package kernel_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	gotc "github.com/florianl/go-tc"
	"github.com/florianl/go-tc/core"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/topology/fault"
)

// other is go-tc in a sandbox: a codec of traffic control that shares nothing with ours, for a second opinion on what we write and read,
// and as the writer of what others have on a link. A difference between it and us is a fault of one of the two.
type other struct {
	testing.TB
	*gotc.Tc
	index uint32 // of d0
}

func newOther(b *bench) *other {
	b.Helper()
	conn, err := gotc.Open(&gotc.Config{NetNS: int(b.ns.Fd())})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	l, ok := b.observe().Link("d0")
	if !ok {
		b.Fatal("no d0")
	}
	return &other{b, conn, uint32(l.Index)}
}

// egress is where a filter is.
func (o *other) egress(pref, protocol uint16, handle uint32) gotc.Msg {
	return gotc.Msg{Ifindex: o.index, Parent: core.BuildHandle(gotc.HandleRoot>>16, gotc.HandleMinEgress), Handle: handle, Info: core.FilterInfo(pref, protocol)}
}

func (o *other) must(err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}

// TestMatchIsGoTCs: a match of ours is the one that go-tc writes for it, since the kernel refuses both in one preference, and what go-tc
// has written is read as that match, without a mark and a limit.
func TestMatchIsGoTCs(t *testing.T) {
	b := filtered(t)
	o := newOther(b)
	ip := func(text string) *net.IP { return new(net.ParseIP(text)) }
	for name, m := range map[string]struct {
		ours   netstate.Filter
		theirs gotc.Flower
	}{
		"anything":   {netstate.Filter{}, gotc.Flower{}},
		"IPv6":       {netstate.Filter{Family: new("ipv6")}, gotc.Flower{KeyEthType: new(uint16(unix.ETH_P_IPV6))}},
		"network":    {netstate.Filter{To: new("192.0.2.128/25")}, gotc.Flower{KeyIPv4Dst: ip("192.0.2.128"), KeyIPv4DstMask: ip("255.255.255.128")}},
		"protocol":   {netstate.Filter{Protocol: new("sctp")}, gotc.Flower{KeyIPProto: new(uint8(unix.IPPROTO_SCTP))}},
		"port":       {netstate.Filter{Protocol: new("tcp"), Port: new(uint16(2049))}, gotc.Flower{KeyIPProto: new(uint8(unix.IPPROTO_TCP)), KeyTCPDst: new(uint16(2049)), KeyTCPDstMask: new(uint16(0xffff))}},
		"port, IPv6": {netstate.Filter{Family: new("ipv6"), Protocol: new("udp"), Port: new(uint16(53))}, gotc.Flower{KeyEthType: new(uint16(unix.ETH_P_IPV6)), KeyIPProto: new(uint8(unix.IPPROTO_UDP)), KeyUDPDst: new(uint16(53)), KeyUDPDstMask: new(uint16(0xffff))}},
		"address and port": {
			netstate.Filter{To: new("198.51.100.7/32"), Protocol: new("udp"), Port: new(uint16(65535))},
			gotc.Flower{KeyIPv4Dst: ip("198.51.100.7"), KeyIPv4DstMask: ip("255.255.255.255"), KeyIPProto: new(uint8(unix.IPPROTO_UDP)), KeyUDPDst: new(uint16(65535)), KeyUDPDstMask: new(uint16(0xffff))},
		},
		"fragments": {netstate.Filter{Fragment: new(true)}, gotc.Flower{KeyFlags: new(uint32(1)), KeyFlagsMask: new(uint32(1))}},
	} {
		t.Run(name, func(t *testing.T) {
			b, o := *b, *o
			b.TB, o.TB = t, t
			ours := netstate.Merge(filter("ipv4", 30000), m.ours)
			if *ours.Fragment {
				ours = limited(ours, 3, 125000, 64000)
				ours.DSCP = nil
			}
			m.theirs.Flags = new(uint32(1)) // not in hardware
			protocol := uint16(unix.ETH_P_IP)
			if m.theirs.KeyEthType != nil {
				protocol = *m.theirs.KeyEthType
			}
			m.theirs.KeyEthType = &protocol
			theirs := gotc.Object{Msg: o.egress(30000, protocol, 2), Attribute: gotc.Attribute{Kind: "flower", Flower: &m.theirs}}
			b.create(ours)
			if err := o.Filter().Add(&theirs); !errors.Is(err, unix.EEXIST) {
				t.Errorf("beside ours: %v, want that it exists", err)
			}
			b.remove(ours)
			o.must(o.Filter().Add(&theirs))
			wanted := ours
			wanted.Handle, wanted.DSCP, wanted.Policer, wanted.Rate, wanted.BurstNanos = 2, nil, nil, nil, nil
			have, ok := netstate.Lookup(b.observe(wanted), wanted)
			if diff := netstate.Diff(wanted, have); !ok || len(diff) > 0 || have.DSCP != nil || have.Rate != nil && *have.Rate != 0 {
				t.Errorf("what go-tc has written is read as %+v, %t: %v", have, ok, diff)
			}
			b.refused(fault.Conflict, netstate.Change{After: ours}, "something of the pod is in its place")
			b.remove(have)
		})
	}
}

// TestPolicerIsGoTCs: go-tc reads the policers of ours with the rate and the burst that were written.
func TestPolicerIsGoTCs(t *testing.T) {
	b := filtered(t)
	o := newOther(b)
	want := map[uint32][2]uint32{}
	for i, f := range []netstate.Filter{limited(filter("ipv4", 20000), 7, 1_250_000, 64000), limited(filter("ipv6", 20001), netstate.MaxPolicers, 125, netstate.MaxBurstNanos)} {
		b.create(f)
		want[o.index<<12|uint32(*f.Policer)] = [2]uint32{uint32(*f.Rate), uint32(*f.BurstNanos / netstate.BurstUnit)}
		have := map[uint32][2]uint32{}
		all, err := o.Actions().Get("police")
		o.must(err)
		for _, a := range all {
			tbf := a.Police.Tbf
			have[tbf.Index] = [2]uint32{tbf.Rate.Rate, tbf.Burst}
			if tbf.Action != gotc.PolicyShot || a.Police.Result == nil || *a.Police.Result != uint32(gotc.PolicyPipe) || tbf.RefCnt != 1 || tbf.BindCnt != 1 {
				t.Errorf("go-tc reads %+v, and %v of what conforms", tbf, a.Police.Result)
			}
		}
		if fmt.Sprint(have) != fmt.Sprint(want) {
			t.Errorf("filter %d: go-tc reads %v, want %v", i, have, want)
		}
	}
}

// TestWhatGoTCLacks holds the reasons of docs/adr/0036-filters-of-tc.md: a version of go-tc without one of these faults fails it.
func TestWhatGoTCLacks(t *testing.T) {
	b := filtered(t)
	o := newOther(b)
	b.create(filter("ipv4", 20000))
	at := o.egress(20000, unix.ETH_P_IP, 0)
	if _, err := o.Filter().Get(&at); err == nil || !strings.Contains(err.Error(), "pedit") {
		t.Errorf("pedit is read: %v", err)
	}
	b.remove(filter("ipv4", 20000))

	b.as(func(h *netlink.Handle) error {
		return h.FilterAdd(&netlink.Flower{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: int(o.index), Parent: netlink.HANDLE_MIN_EGRESS, Priority: 20001, Protocol: unix.ETH_P_IPV6, Handle: 1},
			EthType:     unix.ETH_P_IPV6, DestIP: net.ParseIP("2001:db8::1"),
		})
	})
	at = o.egress(20001, unix.ETH_P_IPV6, 0)
	if all, err := o.Filter().Get(&at); err == nil {
		t.Errorf("an IPv6 address is read: %+v", all)
	}

	police := func(p gotc.Police) error {
		return o.Actions().Add([]*gotc.Action{{Kind: "police", Police: &p}})
	}
	tbf := &gotc.Policy{Index: 9, Action: gotc.PolicyShot, Burst: 1000, Mtu: 2048, Rate: gotc.RateSpec{CellLog: 3, Linklayer: 1, Rate: 125000}}
	if err := police(gotc.Police{Tbf: tbf}); err == nil {
		t.Error("a policer with a rate is written without a rate table")
	}
	if err := police(gotc.Police{Tbf: tbf, Rate64: new(uint64(5_000_000_000))}); !errors.Is(err, gotc.ErrNotImplemented) {
		t.Errorf("a rate of 64 bits is written: %v", err)
	}
	b.create(limited(filter("ipv4", 20000), 1, 5_000_000_000, 640))
	if all, err := o.Actions().Get("police"); !errors.Is(err, gotc.ErrNotImplemented) {
		t.Errorf("a rate of 64 bits is read: %+v, %v", all, err)
	}

	pass := []*gotc.Action{{Kind: "gact", Gact: &gotc.Gact{Parms: &gotc.GactParms{Index: 5, Action: gotc.ActOk}}}}
	o.must(o.Actions().Add(pass))
	if err := o.Actions().Replace(pass); !errors.Is(err, unix.EEXIST) {
		t.Errorf("an action is replaced: %v", err)
	}
}

// TestBesideClassesOfOthers: on a link with classes and filters of others ours mark what leads to them, but what a filter of others has
// accepted before, and nothing of the others changes while ours come, change and go.
func TestBesideClassesOfOthers(t *testing.T) {
	w := newWired(t)
	o := newOther(w.bench)
	root := gotc.Msg{Ifindex: o.index, Handle: core.BuildHandle(1, 0), Parent: gotc.HandleRoot}
	o.must(o.Qdisc().Add(&gotc.Object{Msg: root, Attribute: gotc.Attribute{Kind: "htb", Htb: &gotc.Htb{Init: &gotc.HtbGlob{Version: 3, Rate2Quantum: 10}}}}))
	rate := gotc.RateSpec{Linklayer: 1, Rate: 125_000_000}
	o.must(o.Class().Add(&gotc.Object{
		Msg:       gotc.Msg{Ifindex: o.index, Handle: core.BuildHandle(1, 1), Parent: root.Handle},
		Attribute: gotc.Attribute{Kind: "htb", Htb: &gotc.Htb{Parms: &gotc.HtbOpt{Rate: rate, Ceil: rate, Buffer: 1 << 20, Cbuffer: 1 << 20, Quantum: 1500}}},
	}))
	flower := func(f gotc.Flower) gotc.Attribute {
		f.KeyEthType, f.KeyIPProto = new(uint16(unix.ETH_P_IP)), new(uint8(unix.IPPROTO_UDP))
		return gotc.Attribute{Kind: "flower", Flower: &f}
	}
	o.must(o.Filter().Add(&gotc.Object{Msg: gotc.Msg{Ifindex: o.index, Parent: root.Handle, Handle: 1, Info: core.FilterInfo(1, unix.ETH_P_IP)}, Attribute: flower(gotc.Flower{ClassID: new(core.BuildHandle(1, 1))})}))
	o.must(o.Filter().Add(&gotc.Object{Msg: o.egress(10, unix.ETH_P_IP, 1), Attribute: flower(gotc.Flower{
		KeyUDPDst: new(uint16(9)), KeyUDPDstMask: new(uint16(0xffff)),
		Actions: &[]*gotc.Action{{Kind: "gact", Gact: &gotc.Gact{Parms: &gotc.GactParms{Action: gotc.ActOk}}}},
	})}))
	// others is all of others, and how many packets the class has sent.
	others := func() (out string, packets uint32) {
		t.Helper()
		qdiscs, err := o.Qdisc().Get()
		o.must(err)
		for _, q := range qdiscs {
			if q.Ifindex == o.index {
				out += fmt.Sprintf("%s %x of %x\n", q.Kind, q.Handle, q.Parent)
			}
		}
		classes, err := o.Class().Get(&gotc.Msg{Ifindex: o.index})
		o.must(err)
		for _, c := range classes {
			out += fmt.Sprintf("%s %x: %d of %d\n", c.Kind, c.Handle, c.Htb.Parms.Rate.Rate, c.Htb.Parms.Ceil.Rate)
			packets += c.Stats.Packets
		}
		for _, at := range []gotc.Msg{{Ifindex: o.index, Parent: root.Handle}, o.egress(10, unix.ETH_P_IP, 0)} {
			filters, err := o.Filter().Get(&at)
			o.must(err)
			for _, f := range filters {
				if f.Flower != nil && f.Flower.KeyIPProto != nil {
					out += fmt.Sprintf("%s %x in %x of %x: protocol %d, port %v, class %v\n", f.Kind, f.Handle, f.Info, f.Parent, *f.Flower.KeyIPProto, f.Flower.KeyUDPDst != nil, f.Flower.ClassID != nil)
				}
			}
		}
		return out, packets
	}
	before, _ := others()
	if strings.Count(before, "\n") < 5 {
		t.Fatalf("others have:\n%s", before)
	}
	same := func(when string) {
		t.Helper()
		if now, _ := others(); now != before {
			t.Errorf("%s others have:\n%s\nbefore:\n%s", when, now, before)
		}
	}
	filters, _ := w.enforce(object("a", 1, "{dscp: 46, bandwidth: {rate: 1000000}}"))
	same("with filters of ours")
	_, sent := others()
	want := map[uint32]uint8{}
	last := uint32(0)
	for _, port := range []uint16{9, 10, 9, 11} {
		last = w.one(qos.Packet{Destination: netip.MustParseAddr("198.51.100.7"), Protocol: qos.UDP, Port: port}, 0)
		want[last] = map[bool]uint8{true: 0, false: 46 << 2}[port == 9]
	}
	got := w.received(last)
	for number, class := range want {
		if got[number] != class {
			t.Errorf("packet %d: traffic class %#x, want %#x", number, got[number], class)
		}
	}
	if _, now := others(); now < sent+uint32(len(want)) {
		t.Errorf("the class of others has sent %d packets of %d", now-sent, len(want))
	}
	for _, f := range filters {
		if f.DSCP != nil && *f.DSCP == 46 {
			w.update(netstate.Merge(f, netstate.Filter{DSCP: new(uint8(10))}))
		}
	}
	same("after an edit of ours")
	for _, f := range filters {
		w.remove(f)
	}
	w.remove(netstate.Clsact{Link: "d0"})
	same("without ours")
}
