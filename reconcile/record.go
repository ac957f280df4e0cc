package reconcile

import (
	"errors"
	"fmt"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// Trigger is why a pass runs.
type Trigger string

// The triggers; a label of metrics.
const (
	TriggerPlan    Trigger = "plan"
	TriggerEnsure  Trigger = "ensure"
	TriggerCheck   Trigger = "check"
	TriggerRepair  Trigger = "repair"
	TriggerRelease Trigger = "release"
)

// Timing is where a pass spent its time.
type Timing struct {
	Observe, Plan, Journal, Apply, Total time.Duration
}

// Pass describes a pass to a Recorder.
type Pass struct {
	Sandbox  SandboxID
	Topology string
	Trigger  Trigger
	Outcome  fault.Kind // "" is success
	Timing   Timing
	Changes  []netstate.Change
	// Left is the drift that a successful repair has kept: that of steps with policy
	// Observe.
	Left []Drift
	// Readdressed says that addresses which the network gives are others than those recorded
	// before, without a change.
	Readdressed bool
	// NodesChanged says that the record has other device nodes of RDMA devices than before, so that containers are to be given these from
	// now on. Also a pass that has failed may say that.
	NodesChanged bool
	// Recovered says that a repair found nothing to do where the last pass had failed.
	Recovered bool
	// StepTypes maps the steps named by Changes to their types.
	StepTypes map[string]string
	Dumps     uint64 // netlink dumps
	Gets      uint64 // single netlink reads
	Writes    uint64 // netlink and sysctl writes
}

// Recorder receives what the engine does, for metrics and reports. It must not block.
type Recorder interface {
	Pass(Pass)
	Drift(id SandboxID, topology string, drift []Drift)
	Forget(id SandboxID)
}

type nopRecorder struct{}

func (nopRecorder) Pass(Pass)                        {}
func (nopRecorder) Drift(SandboxID, string, []Drift) {}
func (nopRecorder) Forget(SandboxID)                 {}

// counter is a Domain that counts its messages.
type counter interface {
	Counters() (dumps, gets, writes uint64)
}

func (p *pass) report(err error) {
	info := Pass{
		Sandbox: p.sandbox.ID, Trigger: p.trigger, Outcome: fault.Of(err), Timing: p.timing,
		Changes: made(p.executed), Left: p.left, Readdressed: p.readdressed, NodesChanged: p.renewed, Recovered: p.recovered,
		Dumps: p.counts[0], Gets: p.counts[1], Writes: p.counts[2],
	}
	info.Timing.Total = p.r.opts.Now().Sub(p.began)
	if t := p.sandbox.Topology; t != nil {
		info.Topology, info.StepTypes = t.Name, stepTypes(t)
	}
	p.r.opts.Recorder.Pass(info)
	if p.trigger == TriggerRelease && err == nil {
		p.r.opts.Recorder.Forget(p.sandbox.ID)
	}
}

func stepTypes(t *topology.Topology) map[string]string {
	out := make(map[string]string, len(t.Steps))
	for i := range t.Steps {
		out[t.Steps[i].Name] = t.Steps[i].Type
	}
	return out
}

func errNoSandbox(id SandboxID) error { return fmt.Errorf("no sandbox %q", id) }

// ErrReplaced means that the path leads to another network namespace than the one to which
// the sandbox was applied.
var ErrReplaced = errors.New("another namespace is mounted at its path")

func errReplaced(netns string) error {
	return fault.New(fault.Gone, fmt.Errorf("network namespace %q is gone, and %w", netns, ErrReplaced))
}
