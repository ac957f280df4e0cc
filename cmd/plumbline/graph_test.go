package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/graph"
)

func drawn() *topology.Topology {
	return &topology.Topology{Name: "ai", Steps: []topology.Step{
		{Name: "vf0", Type: "sriov"},
		{Name: "vf1", Type: "sriov"},
		{Name: "bond0", Type: "bond", DependOn: []string{"vf0", "vf1"}},
		{Name: "data", Type: "vlan", DependOn: []string{"bond0"}},
		{Name: "tune", Type: "tuning", DependOn: []string{"data"}},
	}}
}

// Problems are drawn at their step: fields that differ, contention, errors. Those that
// belong to no step are drawn in a box of their own.
func TestStepsOf(t *testing.T) {
	mtu := reconcile.Drift{Step: "bond0", Action: netstate.Update, Object: netstate.LinkKey("bond0"), Field: "mtu", Want: uint32(9000), Have: uint32(1500)}
	for name, tt := range map[string]struct {
		of   reconcile.Status
		want string
	}{
		"in sync": {reconcile.Status{State: reconcile.InSync}, `
  ok  vf0 (sriov)
  ok  vf1 (sriov)
  ok  bond0 (bond) ← vf0, vf1
  ok  data (vlan) ← bond0
  ok  tune (tuning) ← data
`},
		"drifted": {reconcile.Status{State: reconcile.Drifted, Drift: []reconcile.Drift{
			mtu,
			{Step: "data", Action: netstate.Create, Object: netstate.LinkKey("data0")},
			{Step: "tune", Action: netstate.Update, Field: "data.interfaceName"},
			{Action: netstate.Delete, Object: netstate.LinkKey("old0")},
		}}, `
  ok       vf0 (sriov)
  ok       vf1 (sriov)
  drifted  bond0 (bond) ← vf0, vf1
             link bond0: mtu is 1500, not 9000
  drifted  data (vlan) ← bond0
             link data0 is missing
  pending  tune (tuning) ← data
             needs data.interfaceName
  drifted  (no step) (sandbox)
             link old0 is not wanted
`},
		"fighting": {reconcile.Status{State: reconcile.Fighting, Drift: []reconcile.Drift{mtu}, Fighting: []reconcile.Contention{
			{Step: "bond0", Object: netstate.LinkKey("bond0"), Field: "mtu", Action: netstate.Update, Want: "9000", Have: "1500", Since: time.Unix(0, 0)},
		}}, `
  ok        vf0 (sriov)
  ok        vf1 (sriov)
  fighting  bond0 (bond) ← vf0, vf1
              link bond0: mtu is set to 1500 by another writer each time it is set to 9000
              link bond0: mtu is 1500, not 9000
  ok        data (vlan) ← bond0
  ok        tune (tuning) ← data
`},
		"a repair failed": {reconcile.Status{
			State: reconcile.StateFailed, Failure: `topology "ai": step "data": create link "data0": file exists (kernel: x)`,
			Failures: []reconcile.StepFailure{{Step: "data", Message: `create link "data0": file exists (kernel: x)`}},
		}, `
  ok      vf0 (sriov)
  ok      vf1 (sriov)
  ok      bond0 (bond) ← vf0, vf1
  failed  data (vlan) ← bond0
            create link "data0": file exists (kernel: x)
  ok      tune (tuning) ← data
`},
		"nobody could look": {reconcile.Status{State: reconcile.StateFailed, Kind: fault.Gone, Failure: `network namespace "/run/netns/x" is gone`}, `
  -       vf0 (sriov)
  -       vf1 (sriov)
  -       bond0 (bond) ← vf0, vf1
  -       data (vlan) ← bond0
  -       tune (tuning) ← data
  failed  (no step) (sandbox)
            network namespace "/run/netns/x" is gone
`},
	} {
		t.Run(name, func(t *testing.T) {
			top, of := stepsOf(verdict{Status: tt.of, topology: drawn()})
			var out bytes.Buffer
			if err := (text{Writer: &out}).graph(top, of); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), out.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			doc, err := graphDocumentOf(top, of)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range doc.Steps {
				if n.State != of[n.Name].Word || !slices.Equal(n.Notes, of[n.Name].Notes) || len(doc.Steps) != len(top.Steps) {
					t.Errorf("as data: %+v, want %+v", n, of[n.Name])
				}
			}
			for _, format := range graph.Formats() {
				picture, err := graph.Render(top, format, of)
				if err != nil {
					t.Error(err)
				}
				if red := strings.Contains(picture, "#cf222e"); red != (tt.of.State != reconcile.InSync) {
					t.Errorf("%s has red in it: %t:\n%s", format, red, picture)
				}
			}
		})
	}
}

// On a terminal, broken steps are red, and nothing else.
func TestGraphColours(t *testing.T) {
	top, of := stepsOf(verdict{Status: reconcile.Status{Drift: []reconcile.Drift{{Step: "data", Action: netstate.Create, Object: netstate.LinkKey("data0")}}}, topology: drawn()})
	var out bytes.Buffer
	if err := (text{&out, true}).graph(top, of); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		broken := strings.Contains(line, "drifted") || strings.Contains(line, "missing")
		if red, green := strings.Contains(line, "\x1b[31m"), strings.Contains(line, "\x1b[32m"); red != broken || green == broken {
			t.Errorf("%q: red %t, green %t", line, red, green)
		}
	}
}
