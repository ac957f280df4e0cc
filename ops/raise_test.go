package ops

import (
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
)

// TestDeadlock: a plan that would make no change while links wait for each other is refused, and one with changes, or a step whose
// objects are not known yet, is not: the next plan has what they wait for.
func TestDeadlock(t *testing.T) {
	joins := raise{"bond", netstate.Link{Name: "a", Master: new("bond0")}}
	change := netstate.Change{After: netstate.Link{Name: "a"}}
	for _, c := range []struct {
		what    string
		waiting []raise
		changes []netstate.Change
		step    stepState
		refused bool
	}{
		{"links wait", []raise{joins}, nil, stepState{}, true},
		{"nothing waits", nil, nil, stepState{}, false},
		{"a change is made", []raise{joins}, []netstate.Change{change}, stepState{}, false},
		{"a step is pending", []raise{joins}, nil, stepState{pending: "a lease"}, false},
		{"a step gets more later", []raise{joins}, nil, stepState{later: "its RDMA device"}, false},
	} {
		p := &Planner{steps: map[string]*stepState{"bond": &c.step}, req: Request{Topology: &topology.Topology{Name: "t"}}}
		q := &sequencer{p: p, riser: riser{waiting: c.waiting}}
		q.changes = c.changes
		if err := q.deadlock(); (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), `step "bond"`) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
