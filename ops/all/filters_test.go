package all_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

func mark(pref uint16, dscp uint8) netstate.Filter {
	return netstate.Filter{
		Rule: "ai/a[0]", Pref: pref, Handle: 1, Family: new(netstate.IPv4), To: new(""), Protocol: new(""), Port: new(uint16(0)),
		DSCP: &dscp, Policer: new(uint16(0)), Rate: new(uint64(0)), BurstNanos: new(uint64(0)),
	}
}

// TestFiltersOnInterfaces: filters are on the interfaces that the pod sends over with its own
// addresses, and belong to the steps that make them; without filters there is no clsact.
func TestFiltersOnInterfaces(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top := steps(t, `
  - {name: a, type: dummy, config: {name: a0}}
  - {name: b, type: dummy, config: {name: b0}}
  - {name: bond, type: bond, dependOn: [a, b], config: {name: bond0, mode: active-backup, addresses: [192.0.2.1/24]}}
  - {name: vlan, type: vlan, dependOn: [bond], config: {name: vlan7, id: 7, addresses: [198.51.100.1/24]}}
  - {name: vrf, type: vrf, dependOn: [vlan], config: {vrfname: vrf0}}
  - {name: carrier, type: dummy, config: {name: c0}}
  - {name: alone, type: dummy, config: {name: d0}}
  - {name: child, type: macvlan, dependOn: [carrier], config: {name: m0}}
`)
	for name, filters := range map[string][]netstate.Filter{"none": nil, "two": {mark(20000, 1), mark(20002, 2)}} {
		plan, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/pod", Filters: filters, Have: netstate.NewSnapshot()})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range plan.Changes {
			switch o := c.After.(type) {
			case netstate.Clsact:
				got = append(got, c.Step+" "+o.Key().String())
			case netstate.Filter:
				if o.Rule != "ai/a[0]" {
					t.Errorf("%s: filter %+v", name, o)
				}
				got = append(got, c.Step+" "+o.Key().String())
			}
		}
		var want []string
		if filters != nil {
			want = []string{
				"bond clsact bond0", "alone clsact d0", "child clsact m0", "vlan clsact vlan7",
				"bond filter bond0 egress pref 20000 handle 1", "bond filter bond0 egress pref 20002 handle 1",
				"alone filter d0 egress pref 20000 handle 1", "alone filter d0 egress pref 20002 handle 1",
				"child filter m0 egress pref 20000 handle 1", "child filter m0 egress pref 20002 handle 1",
				"vlan filter vlan7 egress pref 20000 handle 1", "vlan filter vlan7 egress pref 20002 handle 1",
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: planned\n%q, want\n%q", name, got, want)
		}
	}
}

// TestTooManyFilters: the filters of all interfaces together are bounded.
func TestTooManyFilters(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top := steps(t, "\n  - {name: a, type: dummy}\n  - {name: b, type: dummy}\n")
	var filters []netstate.Filter
	for i := range ops.MaxFilters / 2 {
		f := mark(20000, 1)
		f.Handle = uint32(i + 1)
		filters = append(filters, f)
	}
	if _, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/pod", Filters: filters, Have: netstate.NewSnapshot()}); err != nil {
		t.Error(err)
	}
	filters = append(filters, mark(20002, 1))
	if _, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/pod", Filters: filters, Have: netstate.NewSnapshot()}); !errors.Is(err, ops.ErrTooManyFilters) || fault.Of(err) != fault.Invalid {
		t.Errorf("got %v", err)
	}
}
