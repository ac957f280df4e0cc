package kernel_test

import (
	"slices"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestRules: what was written is what is read, rules are distinguished, and deleting
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

// TestNeighbors: the same, and a link loses the entries that the model predicts.
func TestNeighbors(t *testing.T) {
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
		b.apply(c.Inverse())
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
