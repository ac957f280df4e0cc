package controller_test

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/controller"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestQoSReports holds what is said of an object as nodes report, and that only the
// namespaces whose reports differ are touched.
func TestQoSReports(t *testing.T) {
	var touched map[string]bool
	r := controller.NewReports(func(namespaces map[string]bool) { touched = namespaces })
	report := func(namespace string, generation int64, pods, inPlace int32, problem string) v1alpha1.QoSReport {
		return v1alpha1.QoSReport{Namespace: namespace, Name: "q", Generation: generation, Pods: pods, InPlace: inPlace, Problem: problem}
	}
	of := func(uid types.UID) v1alpha1.QoSReport {
		out := report("a", 2, 2, 2, "")
		out.UID = uid
		return out
	}
	bypassing := report("a", 2, 1, 1, "")
	bypassing.MarkingUnsupported = 1
	p := &qos.Policy{Key: types.NamespacedName{Namespace: "a", Name: "q"}, UID: "u", Generation: 2, Rules: make([]qos.PolicyRule, 3)}
	for _, tt := range []struct {
		node    string
		objects []v1alpha1.QoSReport
		touched []string
		want    string
	}{
		{"n1", nil, nil, "True NoPods no node has reported a pod that the object covers; False"},
		{"n1", []v1alpha1.QoSReport{report("a", 2, 2, 1, ""), report("b", 1, 1, 1, "")}, []string{"a", "b"}, "False Updating in place in 1 of 2 pods on 1 node; False"},
		{"n1", []v1alpha1.QoSReport{report("a", 2, 2, 1, ""), report("b", 1, 1, 1, "")}, nil, "False Updating in place in 1 of 2 pods on 1 node; False"},
		{"n1", []v1alpha1.QoSReport{report("a", 2, 2, 2, ""), report("b", 1, 1, 1, "")}, []string{"a"}, "True InPlace in place in 2 of 2 pods on 1 node; False"},
		{"n2", []v1alpha1.QoSReport{report("a", 1, 2, 2, "")}, []string{"a"}, "False Updating in place in 2 of 4 pods on 2 nodes; not reported on this generation by 1 node; False"},
		{"n2", []v1alpha1.QoSReport{report("a", 2, 2, 0, "no memory")}, []string{"a"}, `False Failing in place in 2 of 4 pods on 2 nodes; it fails on 1 node, first on "n2": no memory; False`},
		{"n2", []v1alpha1.QoSReport{of("earlier")}, []string{"a"}, "False Updating in place in 2 of 4 pods on 2 nodes; not reported on this generation by 1 node; False"},
		{"n2", []v1alpha1.QoSReport{of("u")}, []string{"a"}, "True InPlace in place in 4 of 4 pods on 2 nodes; False"},
		{"n2", []v1alpha1.QoSReport{bypassing}, []string{"a"}, "True InPlace in place in 3 of 3 pods on 2 nodes; True"},
		{"n2", nil, []string{"a"}, "True InPlace in place in 2 of 2 pods on 1 node; False"},
		{"n1", []v1alpha1.QoSReport{report("b", 1, 1, 1, "")}, []string{"a"}, "True NoPods no node has reported a pod that the object covers; False"},
	} {
		r.Set(tt.node, tt.objects)
		want := map[string]bool{}
		for _, name := range tt.touched {
			want[name] = true
		}
		sum := r.Sum("a", []*qos.Policy{p})["q"]
		b, conditions := controller.Backends(p, sum)[0], controller.Ready(p, sum)
		ready, marking := conditions[0], conditions[1]
		if have := fmt.Sprintf("%s %s %s; %s", ready.Status, ready.Reason, ready.Message, marking.Status); have != tt.want || !reflect.DeepEqual(touched, want) || ready.ObservedGeneration != 2 || b.Backend != "tc" || b.Rules != 3 {
			t.Errorf("%s reports %v: %s, touched %v, status %+v\nwant %s, touched %v", tt.node, tt.objects, have, touched, b, tt.want, want)
		}
	}
}

// TestQoSBackends: pods are counted for what enforces the object in them, those with interfaces of
// both kinds for both, and tc is named unless OVN alone has pods.
func TestQoSBackends(t *testing.T) {
	p := &qos.Policy{Key: types.NamespacedName{Namespace: "a", Name: "q"}, UID: "u", Generation: 2, Rules: make([]qos.PolicyRule, 3)}
	for _, tt := range []struct {
		reports []v1alpha1.QoSReport // of a node each
		want    string
	}{
		{nil, "tc 3 rules 0/0 on 0, failing 0 [], bypassed 0"},
		{[]v1alpha1.QoSReport{{Pods: 2, InPlace: 2, OVN: &v1alpha1.QoSReportOVN{Pods: 2, InPlace: 2, Only: 2, OnlyInPlace: 2}}}, "OVN 3 rules 2/2 on 1, failing 0 [], bypassed 0"},
		{[]v1alpha1.QoSReport{
			{Pods: 5, InPlace: 3, MarkingUnsupported: 1, Problem: "away", OVN: &v1alpha1.QoSReportOVN{Pods: 3, InPlace: 1, Only: 2}},
			{Pods: 1, InPlace: 1},
		}, `tc 3 rules 4/4 on 2, failing 0 [], bypassed 1; OVN 3 rules 1/3 on 1, failing 1 [{n0 away}], bypassed 0`},
		{[]v1alpha1.QoSReport{
			{Pods: 3, InPlace: 2, Problem: "away", PF: &v1alpha1.QoSReportPF{Pods: 2, InPlace: 2}},
			{Pods: 1, Problem: "full", PF: &v1alpha1.QoSReportPF{Pods: 1}},
		}, "tc 3 rules 2/4 on 2, failing 2 [{n0 away} {n1 full}], bypassed 0; PF 3 rules 2/3 on 2, failing 1 [{n1 full}], bypassed 0"},
		{[]v1alpha1.QoSReport{{Generation: 1, Pods: 1, InPlace: 1, Problem: "old", OVN: &v1alpha1.QoSReportOVN{Pods: 1, InPlace: 1}}}, "tc 3 rules 0/1 on 1, failing 0 [], bypassed 0; OVN 3 rules 0/1 on 1, failing 0 [], bypassed 0"},
	} {
		r := controller.NewReports(func(map[string]bool) {})
		for i, o := range tt.reports {
			o.Namespace, o.Name = "a", "q"
			if o.Generation == 0 {
				o.Generation = 2
			}
			r.Set(fmt.Sprintf("n%d", i), []v1alpha1.QoSReport{o})
		}
		var have []string
		for _, b := range controller.Backends(p, r.Sum("a", []*qos.Policy{p})["q"]) {
			have = append(have, fmt.Sprintf("%s %d rules %d/%d on %d, failing %d %v, bypassed %d", b.Backend, b.Rules, b.InPlace, b.Pods, b.Nodes, b.FailingNodes, b.Failing, b.MarkingUnsupported))
		}
		if have := strings.Join(have, "; "); have != tt.want {
			t.Errorf("%+v: %s\nwant %s", tt.reports, have, tt.want)
		}
	}
}

// TestQoSReportsOfManyNodes holds that a status names a bounded number of nodes, and what 500
// objects that cover pods of 1,000 nodes have the controller keep.
func TestQoSReportsOfManyNodes(t *testing.T) {
	const nodes, objects = 1000, 500
	r := controller.NewReports(func(map[string]bool) {})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for n := range nodes {
		var all []v1alpha1.QoSReport
		for o := range objects {
			all = append(all, v1alpha1.QoSReport{Namespace: fmt.Sprintf("ns-%d", o/100), Name: fmt.Sprintf("o-%d", o), Generation: 1, Pods: 1, Problem: "no"})
		}
		r.Set(fmt.Sprintf("n-%d", n), all)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	kept := (after.HeapAlloc - before.HeapAlloc) / nodes / objects
	t.Logf("%d bytes for each node and object", kept)
	if kept > 60 {
		t.Errorf("%d bytes are kept for each node and object", kept)
	}
	s := r.Sum("ns-4", []*qos.Policy{{Key: types.NamespacedName{Namespace: "ns-4", Name: "o-499"}, Generation: 1}})["o-499"]
	if s.FailingNodes != nodes || len(s.Failing) != 8 || s.Failing[0].Node != "n-0" || s.Failing[7].Node != "n-104" {
		t.Errorf("sum %+v", s)
	}
	b := controller.Backends(&qos.Policy{}, s)[0]
	if b.Pods != nodes || b.FailingNodes != nodes || len(b.Failing) != 8 {
		t.Errorf("status %+v", b)
	}
}
