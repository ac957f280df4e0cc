package kernel_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestRules: what was written is read back, rules are distinguished, and deleting
// what does not exist is no error.
func TestRules(t *testing.T) {
	type r = netstate.Rule
	b := routed(t)
	start := b.observe()
	for name, rule := range map[string]r{
		"all there is":  {Family: "ipv4", Priority: 100, From: "192.0.2.0/24", To: "198.51.100.0/24", IIF: "d0", OIF: "d1", Mark: 0x10, Mask: 0xff, Table: 1001, SuppressPrefixLength: new(uint32(8))},
		"anything":      {Family: "ipv4", Priority: 100, Table: 254},
		"no link there": {Family: "ipv4", Priority: 101, IIF: "later0", Table: 4000000000},
		"v6":            {Family: "ipv6", Priority: 100, From: "2001:db8::/32", To: "2001:db8:1::/48", Mark: 1, Mask: 0xffffffff, Table: 7, SuppressPrefixLength: new(uint32(0))},
		"v6 anything":   {Family: "ipv6", Priority: 4294967295, Table: 7},
	} {
		t.Run(name, func(t *testing.T) {
			b := *b
			b.TB = t
			other := rule
			other.Table = 77
			b.create(rule, other)
			b.holds(rule)
			b.refused(fault.Conflict, netstate.Change{After: rule}, "file exists")
			b.remove(rule)
			b.absent(rule)
			b.holds(other)
			b.remove(rule)
			b.remove(other)
			b.absent(other)
		})
	}
	same(t, start, b.observe())
}

// TestUnreachable: the same for routes that refuse packets, in both families.
func TestUnreachable(t *testing.T) {
	b := routed(t)
	start := b.observe()
	for _, u := range []netstate.Unreachable{
		{Dst: "0.0.0.0/0", Table: 1001, Metric: 4278198272},
		{Dst: "::/0", Table: 1001, Metric: 4278198272},
		{Dst: "192.0.2.0/24", Table: 4000000000, Metric: 1},
		{Dst: "2001:db8::/32", Table: 7, Metric: 5},
	} {
		other := u
		other.Metric++
		b.create(u, other)
		b.holds(u)
		b.refused(fault.Conflict, netstate.Change{After: u}, "file exists")
		b.remove(u)
		b.absent(u)
		b.holds(other)
		b.remove(u)
		b.remove(other)
		b.absent(other)
	}
	same(t, start, b.observe())
}

// TestNeighborEntries: the same, and a link loses the entries that the model predicts.
func TestNeighborEntries(t *testing.T) {
	b := routed(t)
	all := []netstate.Neighbor{
		{Link: "d0", Address: "192.0.2.9", MAC: new("02:00:00:00:00:09")},
		{Link: "d0", Address: "2001:db8::9", MAC: new("02:00:00:00:00:09")},
	}
	for _, n := range all {
		b.create(n)
		b.holds(n)
		other := n
		other.MAC = new("02:00:00:00:00:0a")
		c := b.update(other)
		b.holds(other)
		b.apply(netstatetest.Inverse(c))
		b.holds(n)
		b.remove(n)
		b.absent(n)
		b.remove(n)
	}
	for name, change := range map[string]netstate.Change{
		"down":              {Before: netstate.Link{Name: "d0", Up: new(true)}, After: netstate.Link{Name: "d0", Up: new(false)}},
		"another MAC":       {Before: netstate.Link{Name: "d0"}, After: netstate.Link{Name: "d0", MAC: new("02:00:00:00:00:77")}},
		"last IPv4 address": {Before: netstate.Addr{Link: "d0", Address: "192.0.2.1/24"}},
		"another MTU":       {Before: netstate.Link{Name: "d0"}, After: netstate.Link{Name: "d0", MTU: new(uint32(1400))}},
	} {
		t.Run(name, func(t *testing.T) {
			b := routed(t)
			for _, n := range all {
				b.create(n)
			}
			model := b.observe(all[0], all[1])
			model.Apply(change)
			b.apply(change)
			have := b.observe(all[0], all[1])
			for _, n := range all {
				_, foreseen := model.Get(n.Key())
				if _, there := have.Get(n.Key()); there != foreseen {
					t.Errorf("%s: there %v, the model says %v", n.Key(), there, foreseen)
				}
			}
		})
	}
	b.refused(fault.NotReady, netstate.Change{After: netstate.Neighbor{Link: "none0", Address: "192.0.2.9", MAC: new("02:00:00:00:00:09")}})
	if got := netstate.All[netstate.Neighbor](b.observe(all[0], all[1])); slices.Contains(got, all[0]) {
		t.Errorf("left: %v", got)
	}
}

// TestTooManyRules: a pod that fills its list of rules cannot prevent that its sandbox
// is observed, and that what was read is undone.
func TestTooManyRules(t *testing.T) {
	b := newBoundedBench(t, kernel.Bounds{Routes: 8})
	var all []netstate.Rule
	for i := range 20 {
		all = append(all, netstate.Rule{Family: "ipv4", Priority: 100 + uint32(i), Table: 7})
		b.create(all[i])
	}
	b.holds(all[0])
	b.absent(all[19]) // as far as is read
	b.refused(fault.Conflict, netstate.Change{After: all[19]}, "file exists")
	b.remove(all[19])
}

// TestFDB: what was written is read back, beside the entry that the kernel makes of a
// tunnel's remote and those of others, and it stays when the tunnel goes down.
func TestFDB(t *testing.T) {
	b := newBench(t)
	b.create(up(dummy("d0")))
	for name, via := range map[string]string{"through a link": "d0", "by the routes": ""} {
		t.Run(name, func(t *testing.T) {
			b := *b
			b.TB = t
			tunnel := netstate.Link{Name: "x0", LinkKind: "vxlan", Parent: &via, Up: new(true), VXLAN: &netstate.VXLAN{
				ID: new(uint32(7)), Port: new(uint16(4789)), Remote: new("192.0.2.8"),
			}}
			b.create(tunnel)
			first := netstate.FDB{Link: "x0", Remote: "192.0.2.9", Via: via}
			second := netstate.FDB{Link: "x0", Remote: "192.0.2.10", Via: via}
			b.create(first, second)
			b.create(first) // is there, and stays once
			b.holds(first)
			b.holds(second)
			b.absent(netstate.FDB{Link: "x0", Remote: "192.0.2.8", Via: via}) // a field of the link
			bridge := netstate.Link{Name: "br0", LinkKind: "bridge", Up: new(true)}
			b.create(bridge)
			b.update(netstate.Link{Name: "x0", Master: new("br0")})
			b.holds(first)
			b.update(netstate.Link{Name: "x0", Master: new("")})
			b.remove(bridge)
			b.absent(netstate.FDB{Link: "x0", Remote: "192.0.2.11", Via: via})
			down := netstate.Change{Before: netstate.Link{Name: "x0", Up: new(true)}, After: netstate.Link{Name: "x0", Up: new(false)}}
			b.apply(down)
			b.holds(first)
			b.apply(netstatetest.Inverse(down))
			b.remove(first)
			b.absent(first)
			b.holds(second)
			b.remove(first)

			// A remote that becomes one of several: the link's own entry goes, ours is made.
			toList := netstate.Change{
				Before: netstate.Link{Name: "x0", VXLAN: &netstate.VXLAN{Remote: new("192.0.2.8")}},
				After:  netstate.Link{Name: "x0", VXLAN: &netstate.VXLAN{Remote: new("0.0.0.0")}},
			}
			b.apply(toList)
			listed := netstate.FDB{Link: "x0", Remote: "192.0.2.8", Via: via}
			b.absent(listed)
			b.create(listed)
			b.holds(listed)
			b.remove(listed)
			b.apply(netstatetest.Inverse(toList))
			b.absent(listed)
			b.holds(second)
			b.remove(tunnel)
			b.absent(second)
			b.remove(second)
		})
	}
	b.refused(fault.NotReady, netstate.Change{After: netstate.FDB{Link: "none0", Remote: "192.0.2.9"}})
}

// TestTooManyFDB: the same with a tunnel's forwarding entries.
func TestTooManyFDB(t *testing.T) {
	b := newBoundedBench(t, kernel.Bounds{Routes: 8})
	b.create(netstate.Link{Name: "x0", LinkKind: "vxlan", Parent: new(""), VXLAN: &netstate.VXLAN{ID: new(uint32(7)), Port: new(uint16(4789))}})
	var all []netstate.FDB
	for i := range 20 {
		all = append(all, netstate.FDB{Link: "x0", Remote: fmt.Sprintf("192.0.2.%d", 10+i)})
		b.create(all[i])
	}
	there := 0
	snap := b.observe(all[0], all[19])
	for _, f := range []netstate.FDB{all[0], all[19]} {
		if _, ok := snap.Get(f.Key()); ok {
			there++
		}
	}
	if there != 1 {
		t.Errorf("%d of the first and the last entry were read, want one: as far as is read", there)
	}
	b.create(all[0], all[19]) // changes nothing
	b.remove(all[0])
	b.remove(all[19])
}
