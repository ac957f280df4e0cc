package enforce_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/qos/tc"
)

// TestRuleForPF: only a rule that decides about every packet, and limits it, may be enforced by a
// physical function.
func TestRuleForPF(t *testing.T) {
	network := qos.Network{NetworkID: qos.NetworkID{Kind: qos.NetworkTopology, Name: "t"}}
	filters := func(objects []string) []netstate.Filter {
		t.Helper()
		rules, members, err := qostest.Compile([]byte(strings.Join(objects, "---\n")), network, "ai", nil)
		if err != nil {
			t.Fatal(err)
		}
		compiled, err := tc.Compile(rules, members)
		if err != nil {
			t.Fatal(err)
		}
		return compiled.Objects()
	}
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
		objects := []string{fmt.Sprintf(object, "b", 10, egress), fmt.Sprintf(object, "a", 5, "{dscp: 1, bandwidth: {rate: 77000}}")}
		got := none
		if rule, ok := ops.RuleForPF(filters(objects[:1])); ok {
			got = fmt.Sprint(rule.Rule, " ", rule.Mbps)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", egress, got, want)
		}
		// A rule of lower precedence changes nothing where there is one for all packets.
		if rule, ok := ops.RuleForPF(filters(objects)); want != none && (!ok || fmt.Sprint(rule.Rule, " ", rule.Mbps) != want) {
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
			n := slices.IndexFunc(rules, func(r qos.Rule) bool { return qostest.Matches(&r, p, members) })
			if n < 0 || fmt.Sprintf("ns/q[%d]", rules[n].Index) != rule.Rule || uint32(rules[n].RateKbit+999)/1000 != rule.Mbps {
				t.Fatalf("seed %d, packet %+v: rule %d decides, and the physical function has %+v", seed, p, n, rule)
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d rules for physical functions", found)
	}
}
