package ports_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/metrics/metricstest"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/topology"
)

// ruleMetrics are the metrics of rules, which read what the node has.
func (n *node) ruleMetrics(most int) *ports.RuleMetrics {
	return &ports.RuleMetrics{Monitor: n.Monitor, Rules: most, ReadLogical: n.readLogical, Read: func(_ context.Context, path string, _ reconcile.NetnsID, of []ports.Rule) ([]ports.Reading, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.reads++
		if n.failing {
			return nil, errors.New("the kernel is busy")
		}
		var out []ports.Reading
		for _, r := range of {
			out = append(out, n.readings[path+"/"+r.Name])
		}
		return out, nil
	}}
}

// readLogical reads what the node has of rules that OVN enforces.
func (n *node) readLogical(_ context.Context, of []ports.LogicalRule) ([]ports.Reading, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]ports.Reading, len(of))
	for i, r := range of {
		out[i] = n.readings[r.Port+"/"+r.Name]
	}
	if n.failing {
		return out, errors.New("the switch is busy")
	}
	return out, nil
}

// logicalRule adds a rule that OVN enforces for a port, whose interface is net1.
func (n *node) logicalRule(id reconcile.SandboxID, port, name string) {
	n.mu.Lock()
	rec := n.records[id]
	r := netstate.LogicalRule{Rule: name, Priority: new(uint16(28000)), DSCP: new(uint8(8))}
	rec.Sandbox.LogicalRules = append(slices.Clone(rec.Sandbox.LogicalRules), r)
	r.Port, r.Link = port, "net1"
	rec.History = append(slices.Clone(rec.History), netstate.Change{Step: "net", After: r})
	n.records[id] = rec
	n.mu.Unlock()
	n.Pass(reconcile.Pass{Sandbox: id, Trigger: reconcile.TriggerEnsure})
}

// rule adds a rule with one filter for each preference to bond0 of a sandbox.
func (n *node) rule(id reconcile.SandboxID, name string, prefs ...uint16) {
	n.mu.Lock()
	rec := n.records[id]
	for _, pref := range prefs {
		f := netstate.Filter{Rule: name, Pref: pref, Handle: 1}
		rec.Sandbox.Filters = append(slices.Clone(rec.Sandbox.Filters), f)
		f.Link, f.Rule = "bond0", "its earlier name"
		rec.History = append(slices.Clone(rec.History), netstate.Change{Step: "bond0", After: f})
	}
	n.records[id] = rec
	n.mu.Unlock()
	n.Pass(reconcile.Pass{Sandbox: id, Trigger: reconcile.TriggerEnsure})
}

// count sets what the kernel has counted for a rule.
func (n *node) count(netns, rule string, dropped uint64, of map[ports.FilterKey]ports.FilterCount) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.readings[netns+"/"+rule] = ports.Reading{Filters: of, Dropped: dropped}
}

type (
	keys  = ports.FilterKey
	of    = map[ports.FilterKey]ports.FilterCount
	count = ports.FilterCount
)

func TestRulesOf(t *testing.T) {
	filter := func(link, rule string, pref uint16, handle uint32) netstate.Filter {
		return netstate.Filter{Link: link, Rule: rule, Pref: pref, Handle: handle}
	}
	rec := &reconcile.Record{
		Sandbox: reconcile.Sandbox{Rules: ops.Rules{Filters: []netstate.Filter{filter("", "ai/new[1]", 20000, 7), filter("", "ai/new[1]", 20000, 8), filter("", "ai/new[0]", 20002, 7), filter("", "ai/new[0]", 20003, 9)}}},
		History: []netstate.Change{
			{After: filter("net1", "ai/old[1]", 20000, 7)},
			{After: filter("net1", "ai/old[1]", 20000, 8)},
			{After: filter("net1", "ai/new[0]", 20003, 9)},
			{After: filter("net1", "ai/new[0]", 20002, 7)},
			{After: filter("net1", "ai/gone[0]", 20010, 1)},
			{After: filter("unknown", "ai/new[0]", 20002, 7)},
			{Before: filter("net1", "ai/new[0]", 20005, 1)},
			{After: netstate.Link{Name: "net1"}},
		},
	}
	port := ports.Port{Name: "net1", Index: 3}
	want := []ports.Rule{
		{Port: port, Name: "ai/new[1]", Filters: []ports.FilterKey{{Pref: 20000, Handle: 7}, {Pref: 20000, Handle: 8}}},
		{Port: port, Name: "ai/new[0]", Filters: []ports.FilterKey{{Pref: 20003, Handle: 9}, {Pref: 20002, Handle: 7}}},
	}
	if diff := cmp.Diff(want, ports.RulesOf(rec, []ports.Port{{Name: "lo", Index: 1}, port})); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	// Preferences are not in the order of rules where filters say their place.
	for i := range rec.Sandbox.Filters {
		rec.Sandbox.Filters[i].Place = 3 - i
	}
	slices.Reverse(want)
	if diff := cmp.Diff(want, ports.RulesOf(rec, []ports.Port{port})); diff != "" {
		t.Errorf("by place (-want +got):\n%s", diff)
	}
}

// TestRulesOnPF: a rule whose filters only mark, although it has a limit, has that on the physical
// function; so has one of a function without an interface in the sandbox.
func TestRulesOnPF(t *testing.T) {
	filters := func(link string, policer uint16) (out []netstate.Filter) {
		for i, family := range []string{netstate.IPv4, netstate.IPv6} {
			out = append(out, netstate.Filter{
				Link: link, Rule: "ai/all[0]", Pref: uint16(20000 + i), Handle: 1, Family: &family, To: new(""), Protocol: new(""), Port: new(uint16(0)),
				Policer: &policer, Rate: new(uint64(1_250_000)),
			})
		}
		return out
	}
	on := func(link string, policer uint16) (out []netstate.Change) {
		for _, f := range filters(link, policer) {
			out = append(out, netstate.Change{After: f})
		}
		return out
	}
	const id = "0000:01:10.0"
	rate := func(mbps uint32) netstate.Change {
		return netstate.Change{Before: netstate.VF{ID: id, MaxTxRateMbps: new(uint32(0))}, After: netstate.VF{ID: id, MaxTxRateMbps: &mbps}}
	}
	moved := netstate.Change{Before: netstate.Device{ID: id, At: new("host:v0")}, After: netstate.Device{ID: id, At: new("net1")}}
	bound := netstate.Change{Before: netstate.Device{ID: id}, After: netstate.Device{ID: id}}
	for name, tt := range map[string]struct {
		history   []netstate.Change
		link      bool // the rule on net1 has its limit on the physical function
		functions []ports.FunctionRule
	}{
		"by tc":            {append(on("net1", 1), moved), false, nil},
		"on the PF":        {append(on("net1", 0), rate(10), moved), true, nil},
		"of the topology":  {append(on("net1", 1), rate(7), moved), false, nil},
		"user space":       {[]netstate.Change{rate(10), bound}, false, []ports.FunctionRule{{Name: "ai/all[0]", Function: id}}},
		"only prepared":    {nil, false, nil},
		"a larger rate":    {[]netstate.Change{rate(11)}, false, nil},
		"the rate was set": {[]netstate.Change{rate(0)}, false, nil},
	} {
		rec := &reconcile.Record{
			Sandbox: reconcile.Sandbox{Rules: ops.Rules{Filters: filters("", 1)}}, History: tt.history,
			Results: []topology.StepResult{{Name: "vf0", Result: topology.Result{Interfaces: []topology.Interface{{Name: "net1", Sandbox: "/run/netns/blue"}}}}},
		}
		for _, r := range ports.RulesOf(rec, []ports.Port{{Name: "net1", Index: 3}}) {
			if r.OnPF != tt.link {
				t.Errorf("%s: on the PF: %v", name, r.OnPF)
			}
		}
		if diff := cmp.Diff(tt.functions, ports.FunctionRulesOf(rec)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestLogicalRulesOf(t *testing.T) {
	rule := func(link, name string, priority uint16) netstate.LogicalRule {
		return netstate.LogicalRule{Port: "lp-" + link, Link: link, Rule: name, Priority: &priority, DSCP: new(uint8(priority % 10)), Rate: new(uint32(priority % 2))}
	}
	rec := &reconcile.Record{
		Sandbox: reconcile.Sandbox{Rules: ops.Rules{LogicalRules: []netstate.LogicalRule{rule("", "ai/a[0]", 28000), rule("", "ai/a[1]", 28001), rule("", "ai/waiting[0]", 7)}}},
		History: []netstate.Change{
			{After: rule("net2", "ai/a[0]", 28000)},
			{After: rule("net1", "ai/a[0]", 28000)},
			{After: rule("net1", "ai/a[1]", 1)}, // as it was at first
			{After: rule("net1", "ai/gone[0]", 28000)},
			{Before: rule("net1", "ai/a[1]", 28001)},
			{After: netstate.OVSPort{Link: "host:pl1", Bridge: new("br-int"), LogicalPort: new("lp-net1")}},
		},
	}
	want := []ports.LogicalRule{
		{Name: "ai/a[1]", Interface: "net1", Port: "lp-net1", Link: "host:pl1", Bridge: "br-int", Priority: 28001, DSCP: 1, Limited: true},
		{Name: "ai/a[0]", Interface: "net1", Port: "lp-net1", Link: "host:pl1", Bridge: "br-int", Priority: 28000},
		{Name: "ai/a[0]", Interface: "net2", Port: "lp-net2", Priority: 28000},
	}
	if diff := cmp.Diff(want, ports.LogicalRulesOf(rec)); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

// TestRuleSeries: a counter of a rule only grows while filters of the rule come and go, and
// continues when the kernel cannot be read.
func TestRuleSeries(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		id := n.pod("ns1", "one")
		n.report(t)
		n.rule(id, "ai/storage[1]", 20000, 20001)
		m := n.ruleMetrics(10)
		series := func(marked, bytes, dropped int) {
			t.Helper()
			time.Sleep(time.Minute)
			got := metricstest.Exposition(t, m)
			labels := `{backend="tc",interface="bond0",namespace="default",networkqos="storage",pod="pod-one",rule="1",topology="ai"} `
			for name, want := range map[string]int{"marked_packets": marked, "marked_bytes": bytes, "dropped_packets": dropped} {
				if line := fmt.Sprintf("plumbline_networkqos_%s_total%s%d\n", name, labels, want); !strings.Contains(got, line) {
					t.Errorf("no %sin\n%s", line, got)
				}
			}
		}
		a, b, c := keys{Pref: 20000, Handle: 1}, keys{Pref: 20001, Handle: 1}, keys{Pref: 20000, Handle: 2}
		n.count("ns1", "ai/storage[1]", 2, of{a: count{Packets: 10, Bytes: 1000}, b: count{Packets: 1, Bytes: 100}})
		series(11, 1100, 2)
		n.count("ns1", "ai/storage[1]", 5, of{a: count{Packets: 13, Bytes: 1300}, b: count{Packets: 1, Bytes: 100}, c: count{Packets: 4, Bytes: 400}})
		series(18, 1800, 5)
		n.count("ns1", "ai/storage[1]", 1, of{a: count{Packets: 2, Bytes: 200}}) // replaced, as the limit was; the others are gone
		series(20, 2000, 6)
		n.failing = true
		series(20, 2000, 6)
		n.failing = false
		n.count("ns1", "ai/storage[1]", 1, of{a: count{Packets: 3, Bytes: 300}})
		series(21, 2100, 6)

		// The physical function has the limit from now on: that is another series, and no packet is in both.
		n.mu.Lock()
		rec := n.records[id]
		rec.Sandbox.Filters, rec.History = slices.Clone(rec.Sandbox.Filters), slices.Clone(rec.History)
		for i := range rec.Sandbox.Filters {
			rec.Sandbox.Filters[i].Policer = new(uint16(1))
		}
		for i, c := range rec.History {
			if f, ok := c.After.(netstate.Filter); ok {
				f.Policer = new(uint16(0))
				rec.History[i].After = f
			}
		}
		n.records[id] = rec
		n.mu.Unlock()
		n.Pass(reconcile.Pass{Sandbox: id, Trigger: reconcile.TriggerEnsure})
		n.count("ns1", "ai/storage[1]", 0, of{a: count{Packets: 7, Bytes: 700}})
		time.Sleep(time.Minute)
		got, line := metricstest.Exposition(t, m), `plumbline_networkqos_marked_packets_total{backend="PF",interface="bond0",namespace="default",networkqos="storage",pod="pod-one",rule="1",topology="ai"} 4`+"\n"
		if !strings.Contains(got, line) || strings.Contains(got, `backend="tc"`) {
			t.Errorf("no %sin\n%s", line, got)
		}
	})
}

// TestLogicalRuleSeries: the series of rules that OVN enforces, beside those of filters: they go on while nothing
// is known and when flows are installed once more, one whose drops are not known has no series of them, and all
// share the number of series.
func TestLogicalRuleSeries(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		id := n.pod("ns1", "one")
		n.report(t)
		n.rule(id, "ai/a[0]", 20000)
		n.logicalRule(id, "lp1", "ai/a[1]")
		n.logicalRule(id, "lp1", "ai/a[2]")
		n.count("ns1", "ai/a[0]", 0, of{keys{Pref: 20000, Handle: 1}: count{Packets: 1, Bytes: 100}})
		m := n.ruleMetrics(10)
		read := func(of *ports.RuleMetrics) string { time.Sleep(time.Minute); return metricstest.Exposition(t, of) }
		line := func(name, rule string, n int) string {
			return fmt.Sprintf("plumbline_networkqos_%s_total{backend=\"OVN\",interface=\"net1\",namespace=\"default\",networkqos=\"a\",pod=\"pod-one\",rule=%q,topology=\"ai\"} %d\n", name, rule, n)
		}
		holds := func(lines ...string) {
			t.Helper()
			got := read(m)
			for _, line := range lines {
				if !strings.Contains(got, line) {
					t.Errorf("no %sin\n%s", line, got)
				}
			}
			if have := strings.Count(got, `backend="OVN"`); have != len(lines) {
				t.Errorf("%d series, want %d:\n%s", have, len(lines), got)
			}
		}
		holds() // nothing is known yet
		n.count("lp1", "ai/a[1]", 3, of{keys{Pref: 28000, Handle: 7}: count{Packets: 10, Bytes: 1000}})
		holds(line("marked_packets", "1", 10), line("marked_bytes", "1", 1000), line("dropped_packets", "1", 3))
		n.mu.Lock()
		n.readings["lp1/ai/a[2]"] = ports.Reading{Filters: of{keys{Pref: 28000, Handle: 8}: count{Packets: 5, Bytes: 50}}, DropsUnknown: true}
		n.readings["lp1/ai/a[1]"] = ports.Reading{}
		n.failing = true
		n.mu.Unlock()
		all := []string{line("marked_packets", "1", 10), line("marked_bytes", "1", 1000), line("dropped_packets", "1", 3), line("marked_packets", "2", 5), line("marked_bytes", "2", 50)}
		holds(all...)
		n.failing = false
		n.count("lp1", "ai/a[1]", 1, of{keys{Pref: 28000, Handle: 7}: count{Packets: 2, Bytes: 200}}) // ovs-vswitchd has restarted
		all[0], all[1], all[2] = line("marked_packets", "1", 12), line("marked_bytes", "1", 1200), line("dropped_packets", "1", 4)
		holds(all...)
		n.mu.Lock()
		n.readings["lp1/ai/a[1]"] = ports.Reading{Filters: of{keys{Pref: 28000, Handle: 7}: count{Packets: 3, Bytes: 300}}, DropsUnknown: true} // for a moment
		n.mu.Unlock()
		all[0], all[1] = line("marked_packets", "1", 13), line("marked_bytes", "1", 1300)
		holds(all...)
		if got := read(n.ruleMetrics(2)); !strings.Contains(got, "plumbline_networkqos_rules_omitted 1\n") || !strings.Contains(got, `backend="tc"`) || !strings.Contains(got, `backend="OVN"`) {
			t.Errorf("two of three rules:\n%s", got)
		}
	})
}

// TestRuleCardinality: the number of series is bounded, each sandbox has its share, and none are read
// when they are switched off or were read just now.
func TestRuleCardinality(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		for i := range 4 {
			id := n.pod(fmt.Sprint("ns", i), fmt.Sprint("claim", i))
			n.report(t)
			for r := range []int{2, 2, 5, 100}[i] {
				n.rule(id, fmt.Sprintf("ai/q[%d]", r), uint16(20000+2*r))
			}
		}
		time.Sleep(time.Minute)
		for _, tt := range []struct {
			most, omitted int
			of            [4]int
		}{{0, 0, [4]int{}}, {4, 105, [4]int{1, 1, 1, 1}}, {20, 89, [4]int{2, 2, 5, 11}}, {1000, 0, [4]int{2, 2, 5, 100}}} {
			m := n.ruleMetrics(tt.most)
			n.mu.Lock()
			before := n.reads
			n.mu.Unlock()
			got := metricstest.Exposition(t, m)
			metricstest.Exposition(t, m)
			n.mu.Lock()
			if reads := n.reads - before; tt.most == 0 && reads != 0 || reads > 4 {
				t.Errorf("at most %d: %d reads of 4 sandboxes", tt.most, reads)
			}
			n.mu.Unlock()
			for i, want := range tt.of {
				have := 0
				for line := range strings.Lines(got) {
					if strings.HasPrefix(line, "plumbline_networkqos_marked_packets_total{") && strings.Contains(line, fmt.Sprintf(`pod="pod-claim%d"`, i)) {
						have++
					}
				}
				if have != want {
					t.Errorf("at most %d: %d rules of pod %d, want %d", tt.most, have, i, want)
				}
			}
			if tt.most > 0 && !strings.Contains(got, fmt.Sprintf("plumbline_networkqos_rules_omitted %d\n", tt.omitted)) {
				t.Errorf("at most %d: want %d omitted in\n%s", tt.most, tt.omitted, got)
			}
		}
	})
}
