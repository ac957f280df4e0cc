package node_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/qos/tc"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestCompileRules: rules are compiled for what may enforce them in a topology, and bounds are those
// of that alone.
func TestCompileRules(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const object = `apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: q, namespace: ai}
spec:
  priority: 10
  networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {}}}]
  egress: [{dscp: 8, classifier: {to: [{ipBlock: {cidr: 192.0.2.0/24}}, {podSelector: {}}], ports: [PORTS]}}]
`
	topology := func(steps string) []byte {
		return []byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps: [" + steps + "]\n")
	}
	const overlay, dummy = "{name: a, type: ovn-k8s-cni-overlay, config: {topology: layer2, name: a}}", "{name: b, type: dummy}"
	few := "{protocol: TCP, port: 80}"
	for _, tt := range []struct {
		steps         string
		filters, rows int
	}{
		{dummy, 1, 0},
		{overlay, 0, 1},
		{overlay + ", " + dummy, 1, 1},
	} {
		out, notes, err := node.CompileRules([][]byte{[]byte(strings.Replace(object, "PORTS", few, 1))}, topology(tt.steps), node.Pod{Namespace: "ai"}, reg)
		if err != nil || len(out.Filters) != tt.filters || len(out.LogicalRules) != tt.rows || !strings.Contains(strings.Join(notes, ""), "destinations that are pods are known in a cluster only") {
			t.Errorf("%s: %d filters, %d rows, notes %q, %v", tt.steps, len(out.Filters), len(out.LogicalRules), notes, err)
		}
		for _, r := range out.LogicalRules {
			if !strings.HasPrefix(*r.Match, "ip4.dst == 192.0.2.0/24 && tcp.dst == ") {
				t.Errorf("match %s", *r.Match)
			}
		}
	}
	// 64 destinations and 20 ports are 1280 filters, and one row.
	var to, ports []string
	for i := range 64 {
		to = append(to, fmt.Sprintf("{ipBlock: {cidr: 10.%d.0.0/24}}", i))
	}
	for i := range 20 {
		ports = append(ports, fmt.Sprintf("{protocol: TCP, port: %d}", i+1))
	}
	large := strings.NewReplacer("{ipBlock: {cidr: 192.0.2.0/24}}, {podSelector: {}}", strings.Join(to, ", "), "PORTS", strings.Join(ports, ", ")).Replace(object)
	if out, _, err := node.CompileRules([][]byte{[]byte(large)}, topology(dummy), node.Pod{Namespace: "ai"}, reg); fault.Of(err) != fault.Invalid || !errors.Is(err, tc.ErrTooMany) {
		t.Errorf("%d filters, %v", len(out.Filters), err)
	}
	if out, _, err := node.CompileRules([][]byte{[]byte(large)}, topology(overlay), node.Pod{Namespace: "ai"}, reg); err != nil || len(out.LogicalRules) != 1 {
		t.Errorf("%d rows, %v", len(out.LogicalRules), err)
	}
}

// TestDestinationsOfPods holds that the addresses of pods that are a destination are in the filters of
// tc and in the rows of OVN alike, and that a rule whose pods have none matches nothing.
func TestDestinationsOfPods(t *testing.T) {
	set := qos.SetID{Rule: 0, To: 0, Network: qos.NetworkID{Kind: qos.NetworkTopology, Name: "t"}}
	rules := []qos.Rule{
		{Precedence: 10001, Index: 1, DSCP: 9, Sets: []qos.SetID{{Rule: 1, Network: set.Network}}},
		{Precedence: 10000, DSCP: 8, Sets: []qos.SetID{set}},
	}
	members := func(id qos.SetID) []netip.Addr {
		if id != set {
			return nil
		}
		return []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3"), netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::1")}
	}
	both := &topology.Topology{Steps: []topology.Step{{Name: "a", Type: "ovn-k8s-cni-overlay"}, {Name: "b", Type: "dummy"}}}
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	out, err := node.Enforce(rules, members, both, reg)
	if err != nil {
		t.Fatal(err)
	}
	var to []string
	for _, f := range out.Filters {
		if *f.DSCP != 8 {
			t.Errorf("filter %s to %s", f.Rule, *f.To)
		}
		to = append(to, *f.To)
	}
	slices.Sort(to)
	// Each address is a filter of its own: a pod more adds one, and replaces none.
	if want := []string{"192.0.2.2/32", "192.0.2.3/32", "192.0.2.9/32", "2001:db8::1/128"}; !slices.Equal(to, want) {
		t.Errorf("filters to %q", to)
	}
	matches := ""
	for _, r := range out.LogicalRules {
		if *r.DSCP != 8 {
			t.Errorf("row %s, match %s", r.Rule, *r.Match)
		}
		matches += *r.Match + "\n"
	}
	for _, prefix := range []string{"192.0.2.2/31", "192.0.2.9", "2001:db8::1"} {
		if !strings.Contains(matches, prefix) {
			t.Errorf("no row to %s: %s", prefix, matches)
		}
	}
}

// TestRuleForPF: only a rule that decides about every packet, and limits it, may be enforced by a
// physical function.
func TestRuleForPF(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const network = "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps: [{name: vf0, type: sriov}]\n"
	const object = `apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: %s, namespace: ai}
spec:
  priority: %d
  networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {}}}]
  egress: [%s]
`
	const none = "none"
	for egress, want := range map[string]string{
		"{dscp: 8, bandwidth: {rate: 10000}}":             "ai/b[0] 10",
		"{dscp: 8, bandwidth: {rate: 10001, burst: 100}}": "ai/b[0] 11",
		"{dscp: 8, bandwidth: {rate: 1000}}":              "ai/b[0] 1",
		"{dscp: 8, bandwidth: {rate: 999}}":               none,
		"{dscp: 8, bandwidth: {rate: 4294967295}}":        "ai/b[0] 4294968",
		"{dscp: 8}": none,
		"{dscp: 8, bandwidth: {rate: 5000}}, {dscp: 9, bandwidth: {rate: 10000}}":                                                               "ai/b[1] 10",
		"{dscp: 8, bandwidth: {rate: 5000}}, {dscp: 9, bandwidth: {rate: 5000}, classifier: {ports: [{protocol: TCP}]}}":                        none,
		"{dscp: 9, bandwidth: {rate: 5000}, classifier: {ports: [{protocol: TCP}]}}, {dscp: 8, bandwidth: {rate: 5000}}":                        "ai/b[1] 5",
		"{dscp: 8, bandwidth: {rate: 5000}}, {dscp: 9}":                                                                                         none,
		"{dscp: 8, bandwidth: {rate: 5000}, classifier: {to: [{ipBlock: {cidr: 0.0.0.0/0}}]}}":                                                  none,
		"{dscp: 8, bandwidth: {rate: 5000}, classifier: {to: [{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: '::/0'}}]}}":                       "ai/b[0] 5",
		"{dscp: 8, bandwidth: {rate: 5000}, classifier: {to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}, {ipBlock: {cidr: '::/0'}}]}}": none,
		"{dscp: 8, bandwidth: {rate: 5000}, classifier: {to: [{podSelector: {}}]}}":                                                             none,
	} {
		files := [][]byte{[]byte(fmt.Sprintf(object, "b", 10, egress)), []byte(fmt.Sprintf(object, "a", 5, "{dscp: 1, bandwidth: {rate: 77000}}"))}
		out, _, err := node.CompileRules(files[:1], []byte(network), node.Pod{Namespace: "ai"}, reg)
		got := none
		if rule, ok := ops.RuleForPF(out.Filters); ok {
			got = fmt.Sprint(rule.Rule, " ", rule.Mbps)
		}
		if err != nil || got != want {
			t.Errorf("%s: %s, want %s, %v", egress, got, want, err)
		}
		// A rule of lower precedence changes nothing where there is one for all packets.
		if out, _, err = node.CompileRules(files, []byte(network), node.Pod{Namespace: "ai"}, reg); err != nil {
			t.Error(err)
		} else if rule, ok := ops.RuleForPF(out.Filters); want != none && (!ok || fmt.Sprint(rule.Rule, " ", rule.Mbps) != want) {
			t.Errorf("%s beside another object: %+v", egress, rule)
		}
	}
}

// TestRuleForPFDecides: the rule that a physical function enforces decides about every packet, and no
// such rule is missed.
func TestRuleForPFDecides(t *testing.T) {
	found := 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 4))
		rules, sets := qostest.Rules(rng, rng.IntN(5))
		for i := range rules {
			rules[i].RateKbit *= 700
		}
		members := func(id qos.SetID) []netip.Addr { return sets[id] }
		compiled, err := tc.Compile(rules, members)
		if err != nil {
			t.Fatal(err)
		}
		rule, ok := ops.RuleForPF(compiled.Objects())
		first := slices.IndexFunc(rules, func(r qos.Rule) bool { // one without destinations decides about nothing
			return r.Any || r.Addresses != nil && len(r.Addresses.Prefixes()) > 0 || slices.ContainsFunc(r.Sets, func(id qos.SetID) bool { return len(sets[id]) > 0 })
		})
		if want := first >= 0 && rules[first].Any && len(rules[first].Ports) == 0 && rules[first].RateKbit >= 1000; ok != want {
			t.Fatalf("seed %d: found %v, %+v", seed, ok, rules)
		}
		if !ok {
			continue
		}
		found++
		for range 50 {
			p := qostest.Packet(rng)
			n := slices.IndexFunc(rules, func(r qos.Rule) bool { return r.Matches(p, members) })
			if n < 0 || fmt.Sprintf("ns/q[%d]", rules[n].Index) != rule.Rule || uint32(rules[n].RateKbit+999)/1000 != rule.Mbps {
				t.Fatalf("seed %d, packet %+v: rule %d decides, and the physical function has %+v", seed, p, n, rule)
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d rules for physical functions", found)
	}
}
