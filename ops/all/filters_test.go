package all_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/optest"
	"github.com/plumbline/plumbline/topology"
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
  - {name: vrf, type: vrf, dependOn: [vlan], config: {vrfname: vrf0, leak: true}}
  - {name: carrier, type: dummy, config: {name: c0}}
  - {name: alone, type: dummy, config: {name: d0}}
  - {name: child, type: macvlan, dependOn: [carrier], config: {name: m0}}
`)
	for name, filters := range map[string][]netstate.Filter{"none": nil, "two": {mark(20000, 1), mark(20002, 2)}} {
		plan, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/pod", Rules: ops.Rules{Filters: filters}, Have: withoutIPv6(netstate.NewSnapshot())})
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

// TestFiltersAreReplaced: other rules have their filters created and changed before those of now are deleted, and of these the ones
// that the kernel evaluates last are deleted first, so that no packet is decided by a rule that decides neither before nor after.
func TestFiltersAreReplaced(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	chained := mark(20000, 9)
	chained.Chain = 20000
	now := []netstate.Filter{chained, mark(20000, 1), mark(20002, 2), mark(20004, 3), mark(20006, 4)}
	next := []netstate.Filter{mark(20002, 7), mark(28080, 5), mark(28090, 6)}
	request := ops.Request{Topology: steps(t, "\n  - {name: a, type: dummy, config: {name: a0}}\n"), Netns: "/run/netns/pod", Rules: ops.Rules{Filters: now}, Have: withoutIPv6(netstate.NewSnapshot())}
	plan, err := reg.Plan(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	have := request.Have.Clone()
	for _, c := range plan.Changes {
		have.Apply(c)
	}
	request.Have, request.Owned, request.Rules.Filters = have, plan.Changes, next
	if plan, err = reg.Plan(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	want := `~ filter a0 egress pref 20002 handle 1 of ai/a[0] dscp 2 → 7
+ filter a0 egress pref 28080 handle 1 of ai/a[0] family ipv4, dscp 5
+ filter a0 egress pref 28090 handle 1 of ai/a[0] family ipv4, dscp 6
- filter a0 egress pref 20006 handle 1 of ai/a[0]
- filter a0 egress pref 20004 handle 1 of ai/a[0]
- filter a0 egress pref 20000 handle 1 of ai/a[0]
- filter a0 egress chain 20000 pref 20000 handle 1 of ai/a[0]
`
	if got := plan.String(); got != want {
		t.Errorf("planned\n%s, want\n%s", got, want)
	}
	request.Rules.Filters = nil
	if plan, err = reg.Plan(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if c := plan.Changes[len(plan.Changes)-1]; len(plan.Changes) != len(now)+1 || c.Key() != netstate.ClsactKey("a0") {
		t.Errorf("without rules:\n%s", plan)
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
	if _, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/pod", Rules: ops.Rules{Filters: filters}, Have: netstate.NewSnapshot()}); err != nil {
		t.Error(err)
	}
	filters = append(filters, mark(20002, 1))
	if _, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/pod", Rules: ops.Rules{Filters: filters}, Have: netstate.NewSnapshot()}); !errors.Is(err, ops.ErrTooManyFilters) || fault.Of(err) != fault.Invalid {
		t.Errorf("got %v", err)
	}
}

// TestTooManyLogicalRules: the rows of all ports together are bounded, too.
func TestTooManyLogicalRules(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top, err := topology.Decode([]byte(`apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: t}
spec:
  steps:
  - {name: a, type: ovn-k8s-cni-overlay, config: {topology: layer2, name: a, ifName: a0}}
  - {name: b, type: ovn-k8s-cni-overlay, config: {topology: layer2, name: b, ifName: b0}}
`))
	if err != nil {
		t.Fatal(err)
	}
	rule := netstate.LogicalRule{Direction: new(netstate.FromPort), Priority: new(uint16(1)), Match: new("ip"), DSCP: new(uint8(1)), Rate: new(uint32(0)), Burst: new(uint32(0))}
	var rules []netstate.LogicalRule
	for i := range ops.MaxLogicalRules / 2 {
		rule.Rule = fmt.Sprintf("ai/q[%d]", i)
		rules = append(rules, rule)
	}
	have := func() *netstate.Snapshot {
		s := netstate.NewSnapshot(netstate.Chassis{ID: "local", Name: new("node-1"), Int: new("br-int")})
		return s
	}
	request := ops.Request{Topology: top, Netns: "/run/netns/pod", Rules: ops.Rules{LogicalRules: rules}, Have: have()}
	if _, err := reg.Plan(t.Context(), request); err != nil {
		t.Errorf("as many as there may be: %v", err)
	}
	rule.Rule = "ai/more[0]"
	request.Rules.LogicalRules = append(rules, rule)
	if _, err := reg.Plan(t.Context(), request); !errors.Is(err, ops.ErrTooManyFilters) || fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), "4098 rows on 2 ports of OVN together") {
		t.Errorf("one more: %v", err)
	}
}

// TestRulesOfSteps: a step with rules of its own has these, on its interface and in its rows, and the others have those of all; a
// step with none of its own has no filter, and no clsact.
func TestRulesOfSteps(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top := steps(t, `
  - {name: net, type: ovn-k8s-cni-overlay, config: {topology: layer2, name: a, ifName: n0}}
  - {name: a, type: dummy, config: {name: a0}}
  - {name: b, type: dummy, config: {name: b0}}
  - {name: c, type: dummy, config: {name: c0}}
`)
	row := func(name string) netstate.LogicalRule {
		return netstate.LogicalRule{Rule: name, Direction: new(netstate.FromPort), Priority: new(uint16(1)), Match: new("ip"), DSCP: new(uint8(1)), Rate: new(uint32(0)), Burst: new(uint32(0))}
	}
	rules := ops.Rules{Filters: []netstate.Filter{mark(20000, 1)}, LogicalRules: []netstate.LogicalRule{row("ai/all[0]")}, Steps: map[string]ops.Rules{
		"net": {LogicalRules: []netstate.LogicalRule{row("ai/net[0]")}}, "b": {Filters: []netstate.Filter{mark(20000, 9)}}, "c": {},
	}}
	have := withoutIPv6(netstate.NewSnapshot(netstate.Chassis{ID: "local", Name: new("node-1"), Int: new("br-int")}))
	request := ops.Request{Topology: top, Netns: "/run/netns/pod", Rules: rules, Have: have}
	plan, err := reg.Plan(t.Context(), request)
	for err == nil && len(plan.Missing) > 0 {
		for _, o := range plan.Missing {
			have.PutAbsent(o.Key())
		}
		plan, err = reg.Plan(t.Context(), request)
	}
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range plan.Changes {
		switch o := c.After.(type) {
		case netstate.Clsact:
			got = append(got, "clsact "+o.Link)
		case netstate.Filter:
			got = append(got, fmt.Sprint(c.Step, " ", o.Link, " ", *o.DSCP))
		case netstate.LogicalRule:
			got = append(got, c.Step+" "+o.Link+" "+o.Rule)
		}
	}
	slices.Sort(got)
	if want := []string{"a a0 1", "b b0 9", "clsact a0", "clsact b0", "net n0 ai/net[0]"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestBackends: filters are compiled unless no interface can need them, and rows if one can.
func TestBackends(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for steps, want := range map[string][2]bool{
		"":                                     {true, false},
		"sriov":                                {true, false},
		"ovn-k8s-cni-overlay":                  {false, true},
		"ipvlan":                               {true, false}, // of a device
		"ovn-k8s-cni-overlay sriov":            {true, true},
		"ovn-k8s-cni-overlay +tuning +vrf":     {false, true},
		"ovn-k8s-cni-overlay +ipvlan +macvlan": {false, true},
		"ovn-k8s-cni-overlay +vlan":            {true, true},
		"ovn-k8s-cni-overlay +unknown":         {true, true},
		"ovn-k8s-cni-overlay ovn-k8s-cni-overlay +bond": {true, true},
	} {
		top := &topology.Topology{}
		for word := range strings.FieldsSeq(steps) {
			s := topology.Step{Type: strings.TrimPrefix(word, "+")}
			if s.Type != word {
				s.DependOn = []string{"root"}
			}
			top.Steps = append(top.Steps, s)
		}
		if tc, ovn := ops.Backends(top, nil, reg); tc != want[0] || ovn != want[1] {
			t.Errorf("%q: tc %v, OVN %v, want %v", steps, tc, ovn, want)
		}
	}
	plugged := &topology.Topology{Steps: []topology.Step{{Name: "net", Type: "ovn-k8s-cni-overlay"}}}
	if tc, ovn := ops.Backends(plugged, ops.Givens{"net": {Port: &ops.Port{Name: "theirs"}}}, reg); !tc || ovn {
		t.Errorf("a port of ovn-kubernetes: tc %v, OVN %v", tc, ovn)
	}
}

// TestLogicalPortsAreSaid holds that a step type has ports of OVN in the plans of its cases if and only
// if its contract says so, since Backends goes by the contract.
func TestLogicalPortsAreSaid(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for file, plan := range planned(t) {
		c, err := optest.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		says := slices.ContainsFunc(c.Topology.Steps, func(s topology.Step) bool {
			known, _ := reg.Contract(s.Type)
			has[s.Type] = has[s.Type] || known.Output.LogicalPorts
			return known.Output.LogicalPorts && c.Given[s.Name].Port == nil
		})
		if made := strings.Contains(plan, "logical-port "); made != says {
			t.Errorf("%s: ports of OVN %v, and the contracts of its steps say %v", file, made, says)
		}
	}
	for _, typ := range reg.Types() {
		if c, _ := reg.Contract(typ); c.Output.LogicalPorts && !has[typ] {
			t.Errorf("type %q: has no case with a plan", typ)
		}
	}
}

// TestFiltersBecomeRows: a sandbox of an earlier version has filters on an interface of OVN. With rows for its
// port they are removed, and with the end of the rules the rows.
func TestFiltersBecomeRows(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top, err := topology.Decode([]byte(`apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: t}
spec:
  steps:
  - {name: a, type: ovn-k8s-cni-overlay, config: {topology: layer2, name: a, ifName: a0}}
`))
	if err != nil {
		t.Fatal(err)
	}
	have := netstate.NewSnapshot(netstate.Chassis{ID: "local", Name: new("node-1"), Int: new("br-int")})
	row := netstate.LogicalRule{Rule: "ai/a[0]", Direction: new(netstate.FromPort), Priority: new(uint16(1)), Match: new("ip"), DSCP: new(uint8(1)), Rate: new(uint32(0)), Burst: new(uint32(0))}
	var owned []netstate.Change
	for _, tt := range []struct {
		filters []netstate.Filter
		rows    []netstate.LogicalRule
		want    string
	}{
		{[]netstate.Filter{mark(20000, 1)}, nil, "+ logical-port, + link, ~ link, ~ link, ~ link, + ovs-port, + clsact, + filter"},
		{nil, []netstate.LogicalRule{row}, "- filter, - clsact, + logical-rule"},
		{[]netstate.Filter{mark(20000, 1)}, []netstate.LogicalRule{row}, ""},
		{nil, nil, "- logical-rule"},
	} {
		request := ops.Request{Topology: top, Netns: "/run/netns/pod", Rules: ops.Rules{Filters: tt.filters, LogicalRules: tt.rows}, Have: have, Owned: owned}
		plan, err := reg.Plan(t.Context(), request)
		for err == nil && len(plan.Missing) > 0 {
			for _, o := range plan.Missing {
				have.PutAbsent(o.Key())
			}
			plan, err = reg.Plan(t.Context(), request)
		}
		if err != nil {
			t.Fatal(err)
		}
		var said []string
		for _, c := range plan.Changes {
			if !c.Implied {
				verb, _, _ := strings.Cut(c.String(), " ")
				said = append(said, verb+" "+string(c.Key().Kind))
			}
			have.Apply(c)
		}
		owned = netstate.Coalesce(owned, plan.Changes...)
		if got := strings.Join(said, ", "); got != tt.want {
			t.Errorf("%d filters, %d rows: %s, want %s", len(tt.filters), len(tt.rows), got, tt.want)
		}
	}
}
