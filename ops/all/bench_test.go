package all_test

import (
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/optest"
)

// BenchmarkPlan is one planning of the flagship topology from a bare pod.
func BenchmarkPlan(b *testing.B) {
	reg, err := all.Registry()
	if err != nil {
		b.Fatal(err)
	}
	c, err := optest.Read("testdata/flagship.txtar")
	if err != nil {
		b.Fatal(err)
	}
	req := ops.Request{Topology: c.Topology, Netns: "/run/netns/pod", Given: c.Given, Have: optest.NewWorld(c).Snapshot}
	for b.Loop() {
		if _, err := reg.Plan(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}
