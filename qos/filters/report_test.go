package filters

import (
	"fmt"
	"maps"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestReport holds how pods are counted, and that a namespace with many objects has only its
// share of a report.
func TestReport(t *testing.T) {
	policy := func(namespace, name string) *qos.Policy {
		return &qos.Policy{Key: types.NamespacedName{Namespace: namespace, Name: name}, UID: "u", Generation: 3}
	}
	by := map[*qos.Policy]map[types.UID]covered{
		policy("z", "q"): {"a": {inPlace: true, bypassed: true}, "b": {problem: "second"}, "c": {problem: "first"}},
	}
	want := v1alpha1.QoSReport{Namespace: "z", Name: "q", UID: "u", Generation: 3, Pods: 3, InPlace: 1, MarkingUnsupported: 1, Problem: "first"}
	if r := reportOf(by); len(r.Objects) != 1 || r.Objects[0] != want || r.LeftOut != 0 {
		t.Errorf("report %+v", r)
	}
	both := map[*qos.Policy]map[types.UID]covered{
		policy("z", "q"): {"a": {inPlace: true, ovn: true}, "b": {ovn: true}, "c": {inPlace: true, tc: true, ovn: true}, "d": {inPlace: true, tc: true}},
	}
	if r := reportOf(both).Objects[0]; r.Pods != 4 || r.InPlace != 3 || r.OVN == nil || *r.OVN != (v1alpha1.QoSReportOVN{Pods: 3, InPlace: 2, Only: 2, OnlyInPlace: 1}) {
		t.Errorf("report with OVN %+v %+v", r, r.OVN)
	}
	rated := map[*qos.Policy]map[types.UID]covered{
		policy("z", "q"): {"a": {inPlace: true, tc: true, pf: true}, "b": {tc: true, pf: true}, "c": {inPlace: true, tc: true}},
	}
	if r := reportOf(rated).Objects[0]; r.Pods != 3 || r.InPlace != 2 || r.OVN != nil || r.PF == nil || *r.PF != (v1alpha1.QoSReportPF{Pods: 2, InPlace: 1}) {
		t.Errorf("report with PF %+v %+v", r, r.PF)
	}
	for i := range v1alpha1.MaxQoSReports {
		by[policy("many", fmt.Sprintf("o-%d", i))] = map[types.UID]covered{"p": {problem: string(make([]byte, 1000))}}
	}
	r := reportOf(by)
	if n := len(r.Objects); n != v1alpha1.MaxQoSReports || r.LeftOut != 1 || r.Objects[n-1] != want {
		t.Errorf("%d objects, %d left out, the last one %+v", len(r.Objects), r.LeftOut, r.Objects[len(r.Objects)-1])
	}
	if n := len(r.Objects[0].Problem); n > v1alpha1.MaxQoSProblem {
		t.Errorf("a problem of %d bytes", n)
	}
}

// TestRulesOnPF holds that only the records of running claims with virtual functions are read, in the
// sandbox that the claim is attached in.
func TestRulesOnPF(t *testing.T) {
	topology := func(name string, types ...string) claims.Topology {
		t := claims.Topology{}
		t.Object.Name = name
		for _, typ := range types {
			t.Object.Spec.Steps = append(t.Object.Spec.Steps, v1alpha1.Step{Type: typ})
		}
		return t
	}
	in := []claims.Sandbox{{ID: "old", Phase: claims.Stopping}, {ID: "new", Phase: claims.Attached}}
	entries := []claims.Entry{
		{Claim: claims.Claim{UID: "a", Topologies: []claims.Topology{topology("vf", "dummy", "sriov"), topology("dpdk", "vfio-pci"), topology("other", "bond")}}, In: in},
		{Claim: claims.Claim{UID: "b", Topologies: []claims.Topology{topology("vf", "sriov")}}, In: in[:1]},
	}
	read := map[reconcile.SandboxID]bool{}
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	f := &Follower{Options: Options{Contracts: reg, RuleOnPF: func(id reconcile.SandboxID) string {
		if read[id] = true; id == reconcile.IDOfClaim("new", "a", "vf") {
			return "z/q[0]"
		}
		return ""
	}}}
	got := f.rulesOnPF(entries)
	if want := map[reconcile.SandboxID]string{entries[0].SandboxID("", &entries[0].Topologies[0]): "z/q[0]"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if want := map[reconcile.SandboxID]bool{reconcile.IDOfClaim("new", "a", "vf"): true, reconcile.IDOfClaim("new", "a", "dpdk"): true}; !maps.Equal(read, want) {
		t.Errorf("read %v, want %v", read, want)
	}
	if got := (&Follower{}).rulesOnPF(entries); len(got) > 0 {
		t.Errorf("without records: %v", got)
	}
}
