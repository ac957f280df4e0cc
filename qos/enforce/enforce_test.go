package enforce_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/enforce"
	"github.com/plumbline/plumbline/qos/tc"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// compile compiles objects for a topology, as they stand in one file.
func compile(t *testing.T, objects, file string) (ops.Rules, []string, error) {
	t.Helper()
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	f, err := topology.Parse("", []byte(file+"---\n"+objects))
	if err != nil {
		t.Fatal(err)
	}
	return enforce.Objects([]*topology.Manifest{f}, f, enforce.Pod{Namespace: "ai"}, reg)
}

// TestObjects: rules are compiled for what may enforce them in a topology, and bounds are those
// of that alone.
func TestObjects(t *testing.T) {
	const object = `apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: q, namespace: ai}
spec:
  priority: 10
  networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {}}}]
  egress: [{dscp: 8, classifier: {to: [{ipBlock: {cidr: 192.0.2.0/24}}, {podSelector: {}}], ports: [PORTS]}}]
`
	file := func(steps string) string {
		return "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps: [" + steps + "]\n"
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
		out, notes, err := compile(t, strings.Replace(object, "PORTS", few, 1), file(tt.steps))
		if err != nil || len(out.Filters) != tt.filters || len(out.LogicalRules) != tt.rows || !strings.Contains(strings.Join(notes, ""), "destinations that are pods are known in a cluster only") {
			t.Errorf("%s: %d filters, %d rows, notes %q, %v", tt.steps, len(out.Filters), len(out.LogicalRules), notes, err)
		}
		for _, r := range out.LogicalRules {
			if !strings.HasPrefix(*r.Match, "ip4.dst == 192.0.2.0/24 && tcp.dst == ") {
				t.Errorf("match %s", *r.Match)
			}
		}
	}
	// 64 destinations and 64 ports are 4096 filters, and one row. There are three such rules.
	var to, ports []string
	for i := range 64 {
		to = append(to, fmt.Sprintf("{ipBlock: {cidr: 10.%d.0.0/24}}", i))
	}
	for i := range 64 {
		ports = append(ports, fmt.Sprintf("{protocol: TCP, port: %d}", i+1))
	}
	large := strings.NewReplacer("{ipBlock: {cidr: 192.0.2.0/24}}, {podSelector: {}}", strings.Join(to, ", "), "PORTS", strings.Join(ports, ", ")).Replace(object)
	_, rule, _ := strings.Cut(strings.TrimRight(large, "]\n"), "egress: [")
	large = strings.Replace(large, rule, rule+", "+rule+", "+rule, 1)
	if out, _, err := compile(t, large, file(dummy)); fault.Of(err) != fault.Invalid || !errors.Is(err, tc.ErrTooMany) {
		t.Errorf("%d filters, %v", len(out.Filters), err)
	}
	if out, _, err := compile(t, large, file(overlay)); err != nil || len(out.LogicalRules) != 3 {
		t.Errorf("%d rows, %v", len(out.LogicalRules), err)
	}
}

// TestNetworksOfInterfaces: an object that refers to a NetworkAttachmentDefinition covers the interfaces of a topology that are on its
// network, and no others; one that selects the topology covers all.
func TestNetworksOfInterfaces(t *testing.T) {
	const file = `apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: t ANNOTATIONS}
spec:
  steps:
  - {name: blue, type: ovn-k8s-cni-overlay, config: {topology: layer2, netAttachDefName: default/blue, ifName: b0}}
  - {name: over, type: ipvlan, dependOn: [blue], config: {name: i0}}
  - {name: tagged, type: vlan, dependOn: [blue], config: {id: 7, name: v0}}
  - {name: red, type: ovn-k8s-cni-overlay, config: {topology: layer2, netAttachDefName: default/red, ifName: r0}}
  - {name: d, type: dummy}
`
	object := func(dscp int, networks string) string {
		return fmt.Sprintf("apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {name: q%d, namespace: ai}\nspec: {priority: %d, egress: [{dscp: %d}], %s}\n", dscp, dscp, dscp, networks)
	}
	named := func(kind, namespace, name string) string {
		return fmt.Sprintf("netAttachRefs: [{kind: %s, namespace: %s, name: %s}]", kind, namespace, name)
	}
	marks := func(of ops.Rules) string {
		var out []string
		for _, f := range of.Filters {
			out = append(out, fmt.Sprint("tc ", *f.DSCP))
		}
		for _, r := range of.LogicalRules {
			out = append(out, fmt.Sprint("OVN ", *r.DSCP))
		}
		slices.Sort(out)
		return strings.Join(slices.Compact(out), " ")
	}
	for _, tt := range []struct {
		annotations string
		objects     []string
		want        map[string]string // by step
	}{
		{"", []string{object(1, named("NetworkAttachmentDefinition", "default", "blue"))}, map[string]string{"blue": "OVN 1", "over": "OVN 1"}},
		{"", []string{object(1, named("UserDefinedNetwork", "default", "red")), object(2, named("NetworkTopology", "", "t"))}, map[string]string{
			"blue": "OVN 2", "over": "OVN 2", "red": "OVN 1 OVN 2", "tagged": "tc 2", "d": "tc 2",
		}},
		{", annotations: {networking.dra.io/net-attach-def: default/red}", []string{object(1, named("NetworkAttachmentDefinition", "default", "red"))}, map[string]string{
			"red": "OVN 1", "tagged": "tc 1", "d": "tc 1",
		}},
		{"", []string{object(3, named("NetworkTopology", "", "t"))}, map[string]string{
			"blue": "OVN 3 tc 3", "over": "OVN 3 tc 3", "red": "OVN 3 tc 3", "tagged": "OVN 3 tc 3", "d": "OVN 3 tc 3", // the planner chooses
		}},
		{"", []string{object(1, named("ClusterUserDefinedNetwork", "", "blue"))}, nil}, // that of namespace ai is another
	} {
		out, _, err := compile(t, strings.Join(tt.objects, "---\n"), strings.Replace(file, "ANNOTATIONS", tt.annotations, 1))
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []string{"blue", "over", "tagged", "red", "d"} {
			if have := marks(out.Of(step)); have != tt.want[step] {
				t.Errorf("%s %q: step %q has %q, want %q", tt.annotations, tt.objects, step, have, tt.want[step])
			}
		}
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
	out, err := new(enforce.Memo).Compile(enforce.InterfaceRules{"": rules}, members, both, nil, reg)
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
