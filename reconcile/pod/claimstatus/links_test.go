package claimstatus

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/topology"
)

// TestLinks follows the condition LinkUp of two devices of a bond.
func TestLinks(t *testing.T) {
	c := allocated(flagship, "vf0", "vf1")
	r := New(Options{})
	s := claims.Claim{Namespace: "ai", Name: "net", UID: "c1"}
	report := ports.Report{
		Topology: &topology.Topology{Name: flagship, Steps: []topology.Step{{Name: "vf0"}, {Name: "vf1"}, {Name: "bond0", DependOn: []string{"vf0", "vf1"}}}},
		Ports:    []ports.Port{{Step: "bond0", Name: "bond0", Kind: "bond"}, {Step: "vf0", Name: "net1", Device: "a"}, {Step: "vf1", Name: "net2", Device: "b"}},
		Verdicts: []ports.Verdict{{Status: ports.Up, Reason: ports.Carrier}, {Status: ports.Up, Reason: ports.Carrier}, {}},
		Before:   make([]ports.Verdict, 3),
	}
	others := metav1.Condition{Type: "example.com/Cooled", Status: metav1.ConditionTrue}
	// update reports, and returns LinkUp of both devices.
	update := func(f func()) string {
		t.Helper()
		f()
		want := entries(c, r.pending["c1"].verdicts, monday)
		c.Status.Devices = replaced(c, want).Status.Devices
		if again := entries(c, r.pending["c1"].verdicts, tuesday); !same(c.Status.Devices, again) {
			t.Error("the same report again changes something")
		}
		delete(r.pending, "c1")
		var out []string
		for i := range c.Status.Devices {
			text := "none"
			if l := meta.FindStatusCondition(c.Status.Devices[i].Conditions, LinkUp); l != nil {
				text = string(l.Status) + " " + l.Reason + " " + l.Message
			}
			out = append(out, text)
			if i == 0 && len(c.Status.Devices[0].Conditions) > 0 && !meta.IsStatusConditionTrue(c.Status.Devices[0].Conditions, others.Type) {
				c.Status.Devices[0].Conditions = append(c.Status.Devices[0].Conditions, others)
			}
		}
		return strings.Join(out, "; ")
	}
	links := func() { r.Links(s, report) }
	const step = `topology "` + flagship + `" step `
	for _, tt := range []struct {
		what string
		do   func()
		want string
	}{
		{"attached", func() { r.Attached(s, flagship, results(t)) }, "none; none"},
		{"one is not settled", links, `True Carrier ` + step + `"vf0": link "net1" has a carrier; none`},
		{"one is down", func() {
			report.Verdicts[2] = ports.Verdict{Status: ports.Down, Reason: ports.NoCarrier}
			report.Outcome = ports.Weigh(report.Topology, report.Ports, report.Verdicts)
			links()
		}, `True Carrier ` + step + `"vf0": link "net1" has a carrier; False NoCarrier ` + step + `"vf1": link "net2" has no carrier; links built on it continue without it`},
		{
			"drift says nothing of them", func() { r.Repaired(s, flagship, results(t), 0) },
			`True Carrier ` + step + `"vf0": link "net1" has a carrier; False NoCarrier ` + step + `"vf1": link "net2" has no carrier; links built on it continue without it`,
		},
		{"both are", func() {
			report.Verdicts[1] = ports.Verdict{Status: ports.Down, Reason: ports.NoPartner}
			report.Outcome = ports.Weigh(report.Topology, report.Ports, report.Verdicts)
			links()
		}, `False NoLACPPartner ` + step + `"vf0": link "net1" has a carrier, but no LACP partner has agreed to use it; the network built on it is lost; False NoCarrier ` + step + `"vf1": link "net2" has no carrier; the network built on it is lost`},
		{"what is not written yet ends with the sandbox", func() { links(); r.Detached(s) }, "none; none"},
		{"the pod has another sandbox", func() {
			r.Detached(s)
			r.Attached(s, flagship, results(t))
			report.Verdicts[2] = ports.Verdict{}
			links()
		}, `False NoLACPPartner ` + step + `"vf0": link "net1" has a carrier, but no LACP partner has agreed to use it; the network built on it is lost; none`},
		{"gone", func() { report.Gone = true; links() }, "none; none"},
	} {
		if got := update(tt.do); got != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.what, got, tt.want)
		}
	}
	if d := c.Status.Devices[0]; !meta.IsStatusConditionTrue(d.Conditions, others.Type) {
		t.Errorf("the condition of another writer is gone: %+v", d.Conditions)
	}
}
