package reconcile

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
)

// TestMayTake holds which pass may be the first to move a device: one that attaches, and
// only a device that the sandbox was given. A repair would move it without a record of its
// original settings.
func TestMayTake(t *testing.T) {
	for trigger, want := range map[Trigger]bool{
		TriggerEnsure: true, TriggerPlan: true, TriggerCheck: false, TriggerRepair: false, TriggerRelease: false,
	} {
		p := &pass{trigger: trigger, sandbox: Sandbox{Given: ops.Givens{}.WithDevices(map[string]string{"vf0": "0000:01:10.0"})}}
		if have := p.mayTake("0000:01:10.0"); have != want {
			t.Errorf("%s: may take its device: %t, want %t", trigger, have, want)
		}
		if p.mayTake("0000:01:10.2") {
			t.Errorf("%s: may take the device of another", trigger)
		}
	}
}

// passes is a Recorder that lists the passes.
type passes []string

func (p *passes) Pass(i Pass)                    { *p = append(*p, string(i.Trigger)) }
func (*passes) Drift(SandboxID, string, []Drift) {}
func (p *passes) Forget(id SandboxID)            { *p = append(*p, "forget "+string(id)) }

// TestReport holds that metrics forget a sandbox when it is released, and not before.
func TestReport(t *testing.T) {
	for name, c := range map[string]struct {
		trigger Trigger
		err     error
		want    []string
	}{
		"released":     {TriggerRelease, nil, []string{"release", "forget blue/ai"}},
		"not released": {TriggerRelease, errors.New("busy"), []string{"release"}},
		"attached":     {TriggerEnsure, nil, []string{"ensure"}},
	} {
		var have passes
		p := &pass{trigger: c.trigger, sandbox: Sandbox{ID: "blue/ai"}, r: New(Options{Recorder: &have, Now: time.Now})}
		p.report(c.err)
		if !slices.Equal(have, c.want) {
			t.Errorf("%s: recorded %q, want %q", name, have, c.want)
		}
	}
}

// TestWithIndexes holds that indexes are recorded of links that the history names, which
// are found by them after a rename, and of no others.
func TestWithIndexes(t *testing.T) {
	seen := netstate.NewSnapshot(
		netstate.Device{ID: "here", At: new("net1"), Index: 7},
		netstate.Device{ID: "elsewhere", At: new("net9"), Index: 8},
		netstate.Link{Name: "bond0", LinkKind: "bond", Index: 9},
		netstate.Link{Name: "taken", LinkKind: "dummy", Index: 10},
	)
	history := netstate.WithIndexes([]netstate.Change{
		{After: netstate.Device{ID: "here", At: new("net1")}},
		{After: netstate.Device{ID: "elsewhere", At: new("net2")}},
		{After: netstate.Device{ID: "here"}},
		{After: netstate.Link{Name: "bond0", LinkKind: "bond"}},
		{After: netstate.Link{Name: "taken", LinkKind: "vlan"}},
		{Before: netstate.Link{Name: "bond0"}, After: netstate.Link{Name: "bond0", LinkKind: "bond"}},
	}, seen)
	var have []int
	for _, c := range history {
		switch o := c.After.(type) {
		case netstate.Device:
			have = append(have, o.Index)
		case netstate.Link:
			have = append(have, o.Index)
		}
	}
	if want := []int{7, 0, 0, 9, 0, 0}; !slices.Equal(have, want) {
		t.Errorf("indexes %v, want %v", have, want)
	}
}
