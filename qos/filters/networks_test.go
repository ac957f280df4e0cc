package filters

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// onThreeNetworks is a topology with interfaces on the networks ns/blue and ns/red, and on its own.
func onThreeNetworks() v1alpha1.NetworkTopology {
	config := func(definition, name string) *runtime.RawExtension {
		return &runtime.RawExtension{Raw: fmt.Appendf(nil, `{"topology": "layer2", "netAttachDefName": %q, "ifName": %q}`, definition, name)}
	}
	return v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "rail", UID: "t"}, Spec: v1alpha1.NetworkTopologySpec{Steps: []v1alpha1.Step{
		{Name: "d", Type: "dummy"},
		{Name: "blue", Type: "ovn-k8s-cni-overlay", Config: config("ns/blue", "net8")},
		{Name: "red", Type: "ovn-k8s-cni-overlay", Config: config("ns/red", "net9")},
	}}}
}

// TestNetworksByLabels: an object that selects networks by the labels of objects which agents do not read covers the interfaces on the networks that
// the controller has written. Until these are written for the generation, pods of its selector wait whose interfaces are on named
// networks, running ones keep what they have, and others do neither.
func TestNetworksByLabels(t *testing.T) {
	contracts, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	f, n := crowded(t, 3)
	f.Contracts = contracts
	c, apart := f.claims["of-p-0"], f.claims["of-p-2"] // the second has none of these networks
	c.Topologies[0].Object = onThreeNetworks()
	f.place(c)
	put := func(generation int64, role string) *object {
		content := map[string]any{}
		if err := yaml.Unmarshal(fmt.Appendf(nil, `{apiVersion: k8s.ovn.org/v1alpha1, kind: NetworkQoS, metadata: {namespace: ns, name: q, uid: q}, spec: {priority: 1, podSelector: {matchExpressions: [{key: role, operator: In, values: [%s, r1]}]},
egress: [{dscp: 1}], networkSelectors: [{networkSelectionType: NetworkAttachmentDefinitions, networkAttachmentDefinitionSelector: {networkSelector: {matchLabels: {net: blue}}}}]}}`, role), &content); err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{Object: content}
		u.SetGeneration(generation)
		o := objectOf(u)
		n.put(o)
		return o
	}
	// has returns the steps with rules, or that they are not known.
	has := func(c *claims.Claim) string {
		t.Helper()
		out, err := f.Of(c, &c.Topologies[0])
		if fault.Of(err) == fault.NotReady && strings.Contains(err.Error(), `the networks that NetworkQoS "ns/q" selects by labels are not known yet`) {
			if f.settled(c) {
				t.Errorf("rules are not known, and a running pod is not left alone")
			}
			return "unknown"
		}
		if err != nil || !f.settled(c) {
			t.Fatalf("%v, settled: %t", err, f.settled(c))
		}
		var steps []string
		if len(out.Filters)+len(out.LogicalRules) > 0 {
			steps = append(steps, "-")
		}
		for _, step := range []string{"blue", "d", "red"} {
			if len(out.Steps[step].LogicalRules)+len(out.Steps[step].Filters) > 0 {
				steps = append(steps, step)
			}
		}
		return strings.Join(steps, " ")
	}
	write := func(generation int64, networks ...string) {
		n.write("q", &destinations{of: generation, networks: networks})
	}
	for _, step := range []struct {
		what   string
		change func()
		want   string
		apart  string
	}{
		{"no object", func() {}, "", ""},
		{"nothing is written", func() { put(1, "r0") }, "unknown", ""},
		{"one of its networks", func() { write(1, "ns/blue") }, "blue", ""},
		{"both", func() { write(1, "ns/blue", "ns/red", "ns/green") }, "blue red", ""},
		{"another network", func() { write(1, "other/blue") }, "", ""},
		{"an edit", func() { write(1, "ns/blue"); put(2, "r0") }, "unknown", ""},
		{"none any more", func() { write(2) }, "", ""},
		{"too many", func() { write(2, "ns/blue"); n.write("q", &destinations{of: 2, tooMany: true}) }, "", ""},
		{"an object of other pods", func() { put(3, "r7") }, "", ""},
		{"what was written is gone", func() { put(4, "r0"); write(4, "ns/blue"); n.write("q", nil) }, "unknown", ""},
		{"the object is gone", func() { n.remove("q") }, "", ""},
	} {
		step.change()
		if have := has(c); have != step.want {
			t.Errorf("%s: rules of %q, want %q", step.what, have, step.want)
		}
		if have := has(apart); have != step.apart {
			t.Errorf("%s: a pod on none of these networks: %q", step.what, have)
		}
	}

	// A running pod that was left alone while an edit was not resolved is updated then, also if it is on none of the networks any more.
	put(5, "r0")
	write(5, "ns/blue")
	clear(f.behind)
	put(6, "r0")
	if !f.behind[c.UID] {
		t.Fatal("an edit does not concern a pod that has rules of the object")
	}
	if covering := slices.Concat(f.compiler.Covering(keyOf(c))...); len(covering) != 1 || covering[0].Generation != 6 {
		t.Errorf("while an edit is not resolved, the pod is reported as covered by %v", covering)
	}
	for f.queue.Len() > 0 { // as Updates.next does for a claim that is not settled
		key, _ := f.queue.Get()
		f.queue.Forget(key)
		f.queue.Done(key)
	}
	write(6)
	if f.queue.Len() == 0 {
		t.Error("a running pod keeps rules of a network that the object no longer selects")
	}
}

// TestReportAfterRestart: an agent that has started reports nothing until it has read which networks objects by labels select: else the pods
// that they cover would not count for a moment.
func TestReportAfterRestart(t *testing.T) {
	contracts, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	f, n := crowded(t, 1)
	f.Contracts, f.podsRead = contracts, true
	c := f.claims["of-p-0"]
	c.Topologies[0].Object = onThreeNetworks()
	f.place(c)
	f.Claims = func() []claims.Entry { return []claims.Entry{{Claim: *c}} }
	if f.report() == nil {
		t.Fatal("without such an object there is no report")
	}
	content := map[string]any{}
	if err := yaml.Unmarshal([]byte(`{apiVersion: k8s.ovn.org/v1alpha1, kind: NetworkQoS, metadata: {namespace: ns, name: q, uid: q}, spec: {priority: 1,
egress: [{dscp: 1}], networkSelectors: [{networkSelectionType: NetworkAttachmentDefinitions, networkAttachmentDefinitionSelector: {networkSelector: {}}}]}}`), &content); err != nil {
		t.Fatal(err)
	}
	o := objectOf(&unstructured.Unstructured{Object: content})
	n.put(o)
	if report := f.report(); report != nil {
		t.Errorf("before it is read: %+v", report)
	}
	for _, networks := range [][]string{{"ns/blue"}, nil} {
		var written []any
		if networks != nil {
			written = append(written, &destinations{ObjectMeta: metav1.ObjectMeta{Name: "q"}, of: o.Generation, networks: networks})
		}
		if err := n.writtenStore().Replace(written, ""); err != nil {
			t.Fatal(err)
		}
		if report, ok := f.report().(*v1alpha1.NetworkQoSReport); !ok || len(report.Objects) != len(written) {
			t.Errorf("networks %v: %+v", networks, report)
		}
	}
}
