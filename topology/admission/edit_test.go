package admission

import (
	"slices"
	"testing"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
)

func TestHoldsBack(t *testing.T) {
	set, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	of := func(steps ...topology.Step) *topology.Topology { return &topology.Topology{Name: "t", Steps: steps} }
	was := of(topology.Step{Name: "vf0", Type: "sriov", Selector: "a"}, topology.Step{Name: "vf1", Type: "sriov"}, topology.Step{Name: "d", Type: "dummy"})
	for name, c := range map[string]struct {
		is   *topology.Topology
		want []string
	}{
		"the same":           {was, nil},
		"less":               {of(was.Steps[0]), nil},
		"more of nothing":    {of(was.Steps[0], topology.Step{Name: "e", Type: "dummy"}), nil},
		"a device more":      {of(was.Steps[0], topology.Step{Name: "vf2", Type: "sriov"}), []string{`step "vf2" takes a device that running pods do not have: they keep their network until they are recreated`}},
		"a device for d":     {of(topology.Step{Name: "d", Type: "sriov"}), []string{`step "d" takes a device that running pods do not have: they keep their network until they are recreated`}},
		"another selector":   {of(topology.Step{Name: "vf0", Type: "sriov", Selector: "b"}), []string{`step "vf0" has another selector: running pods whose device it does not choose keep their network until they are recreated`}},
		"another type":       {of(topology.Step{Name: "vf1", Type: "host-device"}), []string{`step "vf1" is of another type: running pods whose device does not fit it keep their network until they are recreated`}},
		"a device no longer": {of(topology.Step{Name: "vf1", Type: "dummy"}), nil},
	} {
		if got := holdsBack(was, c.is, set); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
