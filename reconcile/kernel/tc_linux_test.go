package kernel_test

import (
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

// filter is a filter on d0 that matches everything of a family.
func filter(family string, pref uint16) netstate.Filter {
	return netstate.Filter{
		Link: "d0", Pref: pref, Handle: 1, Family: &family, To: new(""), Protocol: new(""), Port: new(uint16(0)), Fragment: new(false),
		DSCP: new(uint8(26)), Policer: new(uint16(0)), Rate: new(uint64(0)), BurstNanos: new(uint64(0)),
	}
}

func limited(f netstate.Filter, policer uint16, rate, burst uint64) netstate.Filter {
	f.Policer, f.Rate, f.BurstNanos = &policer, &rate, &burst
	return f
}

// filtered is a sandbox with d0, which has a clsact.
func filtered(t testing.TB) *bench {
	t.Helper()
	b := newBench(t)
	b.create(up(dummy("d0")), netstate.Clsact{Link: "d0"})
	return b
}

// TestChains: a filter in a chain is another one than that with its preference and handle in the first chain, and is deleted by
// itself; what leads to a chain is read, and what a pod makes of it is seen.
func TestChains(t *testing.T) {
	b := filtered(t)
	first := filter("ipv4", 20000)
	chained := limited(netstate.Merge(first, netstate.Filter{Protocol: new("udp"), Fragment: new(true)}), 3, 125000, 64000)
	chained.Chain, chained.DSCP = 20000, nil
	lead := netstate.Filter{Link: "d0", Pref: 28080, Handle: 1, Family: new("ipv4"), To: new(""), Protocol: new(""), Port: new(uint16(0)), Fragment: new(true), Goto: new(uint32(20000))}
	b.absent(chained)
	b.create(first)
	b.absent(chained)
	b.create(chained, lead)
	for _, f := range []netstate.Filter{first, chained, lead} {
		b.holds(f)
	}
	astray := lead
	astray.Goto = new(uint32(7))
	c := b.update(astray)
	b.holds(astray)
	b.apply(netstatetest.Inverse(c))
	b.holds(lead)
	b.remove(first)
	b.absent(first)
	b.holds(chained)
	b.remove(lead)
	b.remove(chained)
	b.absent(chained)
	b.remove(chained)
	b.refused(fault.Invalid, netstate.Change{After: func() netstate.Filter { f := chained; f.Goto = new(uint32(20000)); return f }()})
}

// TestFilters: what was written is read back, a change in place and its inverse change
// what they say, and deleting what does not exist is no error.
func TestFilters(t *testing.T) {
	b := filtered(t)
	b.holds(netstate.Clsact{Link: "d0"})
	for name, f := range map[string]netstate.Filter{
		"anything v4":     filter("ipv4", 20000),
		"anything v6":     filter("ipv6", 20001),
		"network v4":      {To: new("192.0.2.128/25"), Family: new("ipv4")},
		"address v4":      {To: new("192.0.2.1/32"), Family: new("ipv4"), Protocol: new("tcp")},
		"network v6":      {To: new("2001:db8::/33"), Family: new("ipv6")},
		"address v6":      {To: new("2001:db8::1/128"), Family: new("ipv6"), Protocol: new("udp"), Port: new(uint16(53))},
		"protocol":        {Family: new("ipv4"), Protocol: new("sctp")},
		"port":            {Family: new("ipv4"), Protocol: new("tcp"), Port: new(uint16(2049))},
		"port v6":         {Family: new("ipv6"), Protocol: new("sctp"), Port: new(uint16(65535))},
		"limit":           limited(filter("ipv4", 20000), 7, 1250000, 64000),
		"limit v6":        limited(filter("ipv6", 20000), netstate.MaxPolicers, 125, netstate.MaxBurstNanos),
		"fragments":       limited(netstate.Filter{Family: new("ipv4"), Protocol: new("udp"), Fragment: new(true)}, 3, 125000, 64000),
		"fragments v6":    limited(netstate.Filter{Family: new("ipv6"), Fragment: new(true)}, 3, 125000, 64000),
		"rate of 64 bits": limited(filter("ipv4", 20000), 1, (1<<32-1)*125, 10_000_000/64*64),
	} {
		t.Run(name, func(t *testing.T) {
			b := *b
			b.TB = t
			f = netstate.Merge(filter(*f.Family, 30000), f)
			f.Pref, f.Handle = 30000, 4096
			if *f.Fragment {
				f.DSCP = nil
			}
			b.create(f)
			b.holds(f)
			b.refused(fault.Conflict, netstate.Change{After: f}, "file exists")
			for _, other := range []netstate.Filter{
				{DSCP: new(uint8(0))}, {DSCP: new(uint8(63))}, limited(netstate.Filter{}, 9, 5_000_000_000, 128), limited(netstate.Filter{DSCP: new(uint8(5))}, 0, 0, 0),
			} {
				if *f.Fragment && (other.DSCP != nil || *other.Policer == 0) {
					continue // it marks nothing
				}
				other = netstate.Merge(f, other)
				c := b.update(other)
				b.holds(other)
				b.apply(netstatetest.Inverse(c))
				b.holds(f)
			}
			other := f
			other.Handle++ // and another match: cls_flower has one filter for each
			other.Protocol, other.Port = new("udp"), new(uint16(4789))
			b.create(other)
			b.remove(f)
			b.absent(f)
			b.holds(other)
			b.remove(f)
			b.remove(other)
			b.absent(other)
		})
	}
	b.refused(fault.NotReady, netstate.Change{After: netstate.Filter{Link: "none0", Pref: 1, Handle: 1, Family: new("ipv4"), DSCP: new(uint8(1))}})
	b.remove(netstate.Clsact{Link: "d0"})
	b.absent(netstate.Clsact{Link: "d0"})
	b.remove(netstate.Clsact{Link: "d0"})
}

// TestSharedPolicer: filters with one number have one bucket, a change of its rate is one
// of all, and two links have different ones.
func TestSharedPolicer(t *testing.T) {
	b := filtered(t)
	b.create(up(dummy("d1")), netstate.Clsact{Link: "d1"})
	one := limited(filter("ipv4", 20000), 1, 1000, 640)
	two := one
	two.Handle = 2
	two.Protocol = new("tcp")
	elsewhere := limited(one, 1, 5000, 640)
	elsewhere.Link = "d1"
	b.create(one, two, elsewhere)
	b.holds(elsewhere)
	faster := netstate.Merge(two, netstate.Filter{Rate: new(uint64(2000))})
	b.update(faster)
	b.holds(faster)
	b.holds(netstate.Merge(one, netstate.Filter{Rate: new(uint64(2000))}))
	b.holds(elsewhere)
	b.remove(faster)
	b.holds(netstate.Merge(one, netstate.Filter{Rate: new(uint64(2000))}))
}

// TestForeignFilters: a filter with the preference and handle of ours that is not ours is
// seen as drift, and a clsact with filters of others stays when ours are gone.
func TestForeignFilters(t *testing.T) {
	b := filtered(t)
	ours := filter("ipv4", 20000)
	b.create(ours)
	index := 0
	if l, ok := b.observe().Link("d0"); ok {
		index = l.Index
	}
	foreign := &netlink.MatchAll{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_EGRESS, Priority: 10, Protocol: unix.ETH_P_ALL, Handle: 1},
		Actions:     []netlink.Action{&netlink.GenericAction{ActionAttrs: netlink.ActionAttrs{Action: netlink.TC_ACT_PIPE}}},
	}
	b.as(func(h *netlink.Handle) error { return h.FilterAdd(foreign) })
	// A source is matched, so that the filter is another one.
	inPlace := &netlink.Flower{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_EGRESS, Priority: 20002, Protocol: unix.ETH_P_IP, Handle: 1},
		EthType:     unix.ETH_P_IP, SrcIP: []byte{192, 0, 2, 1},
	}
	b.as(func(h *netlink.Handle) error { return h.FilterAdd(inPlace) })
	wanted := filter("ipv4", 20002)
	have, there := netstate.Lookup(b.observe(wanted), wanted)
	if !there || len(netstate.Diff(wanted, have)) == 0 {
		t.Errorf("a filter of others in the place of ours is %v, %v", netstate.Fields(have), there)
	}
	b.remove(have)
	b.create(wanted)
	b.holds(wanted)
	b.remove(wanted)
	b.remove(ours)
	b.remove(netstate.Clsact{Link: "d0"})
	b.absent(netstate.Clsact{Link: "d0"}) // not ours any more
	b.as(func(h *netlink.Handle) error {
		link, err := h.LinkByName("d0")
		if err != nil {
			return err
		}
		all, err := h.FilterList(link, netlink.HANDLE_MIN_EGRESS)
		if err == nil && (len(all) != 1 || all[0].Attrs().Priority != 10) {
			err = fmt.Errorf("filters of others: %v", all)
		}
		return err
	})
}

// TestFilterInTheWay: what a pod has in the place of a filter of ours is named as a conflict
// with what to do, and is no unexpected error.
func TestFilterInTheWay(t *testing.T) {
	ours := limited(filter("ipv4", 20000), 1, 1000, 640)
	egress := func(index int) netlink.FilterAttrs {
		return netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_EGRESS, Priority: 20000, Protocol: unix.ETH_P_IP, Handle: 9}
	}
	for name, put := range map[string]func(h *netlink.Handle, index int) error{
		"its match with another handle": func(h *netlink.Handle, index int) error {
			return h.FilterAdd(&netlink.Flower{FilterAttrs: egress(index), EthType: unix.ETH_P_IP})
		},
		"its preference for another family": func(h *netlink.Handle, index int) error {
			at := egress(index)
			at.Protocol = unix.ETH_P_IPV6
			return h.FilterAdd(&netlink.Flower{FilterAttrs: at, EthType: unix.ETH_P_IPV6})
		},
		"a filter of another class": func(h *netlink.Handle, index int) error {
			return h.FilterAdd(&netlink.MatchAll{FilterAttrs: egress(index)})
		},
		"a block that links share": func(*netlink.Handle, int) error {
			if err := exec.CommandContext(t.Context(), "tc", "qdisc", "del", "dev", "d0", "clsact").Run(); err != nil {
				return err
			}
			return exec.CommandContext(t.Context(), "tc", "qdisc", "add", "dev", "d0", "egress_block", "5", "clsact").Run()
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := filtered(t)
			index := 0
			if l, ok := b.observe().Link("d0"); ok {
				index = l.Index
			}
			b.as(func(h *netlink.Handle) error { return put(h, index) })
			b.refused(fault.Conflict, netstate.Change{After: ours}, "something of the pod is in its place", "tc filter show dev d0 egress")
			b.remove(ours)
		})
	}
}

// TestManyFilters: what a pod adds beside ours is not read.
func TestManyFilters(t *testing.T) {
	b := filtered(t)
	ours := filter("ipv4", 20000)
	b.create(ours)
	dumps, gets, _ := b.Counters()
	b.observe(ours)
	dumps2, gets2, _ := b.Counters()
	for i := range uint32(500) {
		other := ours
		other.Handle = 10 + i
		other.Protocol = new("tcp")
		other.Port = new(uint16(1 + i))
		b.create(other)
	}
	before, beforeGets, _ := b.Counters()
	b.observe(ours)
	after, afterGets, _ := b.Counters()
	if after-before != dumps2-dumps || afterGets-beforeGets != gets2-gets {
		t.Errorf("%d dumps and %d queries, and without other filters %d and %d", after-before, afterGets-beforeGets, dumps2-dumps, gets2-gets)
	}
	b.holds(ours)
}

// TestTooManyQdiscs: a pod that fills a link with queueing disciplines cannot prevent that its
// sandbox is observed.
func TestTooManyQdiscs(t *testing.T) {
	b := newBoundedBench(t, kernel.Bounds{Links: 32}) // some modules create links in every namespace
	b.create(up(dummy("d0")))
	index := 0
	if l, ok := b.observe().Link("d0"); ok {
		index = l.Index
	}
	b.as(func(h *netlink.Handle) error {
		const bands = 16
		add := func(parent, major uint32) error {
			prio := netlink.NewPrio(netlink.QdiscAttrs{LinkIndex: index, Parent: parent, Handle: major << 16})
			prio.Bands = bands
			return h.QdiscAdd(prio)
		}
		err := add(netlink.HANDLE_ROOT, 1)
		for band := range uint32(bands) {
			major := 2 + band
			err = errors.Join(err, add(1<<16|(1+band), major))
			for leaf := range uint32(bands) {
				err = errors.Join(err, add(major<<16|(1+leaf), 0x100+band<<4+leaf))
			}
		}
		return err
	})
	b.create(netstate.Clsact{Link: "d0"}, filter("ipv4", 20000))
	b.holds(filter("ipv4", 20000))
	b.absent(netstate.Clsact{Link: "d0"}) // as far as is read
	b.refused(fault.Conflict, netstate.Change{After: netstate.Clsact{Link: "d0"}}, "queueing discipline of others")
}

// TestClsactOfOthers: a link has one clsact, and one of others is used as it is.
func TestClsactOfOthers(t *testing.T) {
	b := newBench(t)
	b.create(up(dummy("d0")))
	index := 0
	if l, ok := b.observe().Link("d0"); ok {
		index = l.Index
	}
	b.as(func(h *netlink.Handle) error {
		return h.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0)}})
	})
	b.absent(netstate.Clsact{Link: "d0"})
	b.refused(fault.Conflict, netstate.Change{After: netstate.Clsact{Link: "d0"}}, "queueing discipline of others")
}
