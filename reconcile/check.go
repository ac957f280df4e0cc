package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// State is the state of a sandbox.
type State string

// The states.
const (
	InSync      State = "InSync"  // equals what the steps want
	Drifted     State = "Drifted" // something differs from what the steps want
	StateFailed State = "Failed"  // the last pass failed, or the sandbox cannot be observed
	// Fighting: another writer changes it back after each repair. It lasts for some time
	// after the last such change, whatever is observed now.
	Fighting State = "Fighting"
)

// Drift is one field that differs from what a step wants.
type Drift struct {
	Step   string          `json:"step"`
	Type   string          `json:"type"` // of the step
	Action netstate.Action `json:"action"`
	Object netstate.Key    `json:"object"`
	Of     string          `json:"of,omitempty"`    // what the object is made for: a rule of a NetworkQoS
	Field  string          `json:"field,omitempty"` // "" when the whole object is missing or unexpected
	Want   any             `json:"want,omitempty"`
	Have   any             `json:"have,omitempty"`
}

// What names the object to people.
func (d Drift) What() string {
	if d.Of == "" {
		return d.Object.String()
	}
	return d.Object.String() + " of " + d.Of
}

// String says in a line what differs, to people.
func (d Drift) String() string {
	step := ""
	if d.Step != "" {
		step = fmt.Sprintf("step %q: ", d.Step)
	}
	switch {
	case d.Object == (netstate.Key{}):
		return step + "needs " + d.Field
	case d.Action == netstate.Create:
		return fmt.Sprintf("%s%s is missing", step, d.What())
	case d.Action == netstate.Delete:
		return fmt.Sprintf("%s%s is not wanted", step, d.What())
	default:
		return fmt.Sprintf("%s%s: %s is %s, not %s", step, d.What(), d.Field, netstate.FormatValue(d.Have), netstate.FormatValue(d.Want))
	}
}

// Status is the result of Check.
type Status struct {
	Sandbox  SandboxID             `json:"sandbox"`
	Topology string                `json:"topology"`
	Netns    string                `json:"netns"`
	State    State                 `json:"state"`
	Drift    []Drift               `json:"drift,omitempty"`
	Fighting []Contention          `json:"fighting,omitempty"`
	Failure  string                `json:"failure,omitempty"`
	Failures []StepFailure         `json:"failures,omitempty"` // Failure, by step
	Kind     fault.Kind            `json:"kind,omitempty"`
	Updated  time.Time             `json:"updated"`
	Steps    []topology.StepResult `json:"steps,omitempty"`
	Given    ops.Givens            `json:"given,omitempty"`
	// Err is why the sandbox could not be observed, nil if it could.
	Err error `json:"-"`
	// Settles is that of a Report.
	Settles time.Duration `json:"-"`
	// Changes is the plan behind Drift.
	Changes []netstate.Change `json:"-"`
}

// Check compares a sandbox with its topology and writes nothing.
func (r *Reconciler) Check(ctx context.Context, id SandboxID) (Status, error) {
	rec, ok, err := r.opts.Store.Get(id)
	if err != nil {
		return Status{}, err
	}
	if !ok {
		return Status{}, fault.New(fault.Gone, errNoSandbox(id))
	}
	st := Status{
		Sandbox: id, Topology: rec.Sandbox.Topology.Name, Netns: rec.Sandbox.Netns, Updated: rec.Updated, Steps: rec.Results,
		Given: rec.Sandbox.Given, Failure: rec.Failure, Failures: rec.Failures, Fighting: rec.Fighting, State: InSync,
	}
	p := &pass{r: r, sandbox: rec.Sandbox, trigger: TriggerCheck, began: r.opts.Now()}
	plan, err := p.check(ctx)
	p.report(err)
	if err != nil {
		st.State, st.Failure, st.Kind, st.Err = StateFailed, err.Error(), fault.Of(err), err
		st.Failures = FailuresOf(err)
		return st, nil
	}
	r.remember(id, p.onDemand)
	st.Changes, st.Settles = plan.Changes, settles(plan)
	st.Drift = drifts(rec.Sandbox.Topology, plan)
	switch {
	case len(st.Fighting) > 0:
		st.State = Fighting
	case len(st.Drift) > 0:
		st.State = Drifted
	case rec.Phase == Failed:
		st.State = StateFailed
	}
	r.opts.Recorder.Drift(id, rec.Sandbox.Topology.Name, st.Drift)
	return st, nil
}

func (p *pass) check(ctx context.Context) (*ops.Plan, error) {
	if err := p.load(); err != nil {
		return nil, err
	}
	if err := p.open(); err != nil {
		return nil, err
	}
	defer p.close()
	if p.replaced() {
		return nil, errReplaced(p.sandbox.Netns)
	}
	return p.planBeside(ctx)
}

// drifts lists a plan field by field. Changes of an object that the plan creates are part of
// its creation.
func drifts(t *topology.Topology, plan *ops.Plan) []Drift {
	types := stepTypes(t)
	var out []Drift
	making := map[netstate.Key]bool{}
	for _, c := range made(plan.Changes) {
		if c.Action() == netstate.Update && making[c.Key()] {
			continue
		}
		making[c.Key()] = c.Action() == netstate.Create || c.Action() == netstate.Replace
		d := Drift{Step: c.Step, Type: types[c.Step], Action: c.Action(), Object: c.Key(), Of: netstate.Label(c.Object())}
		if c.Action() == netstate.Create || c.Action() == netstate.Delete {
			out = append(out, d)
			continue
		}
		for _, f := range c.Reasons() {
			d.Field, d.Want, d.Have = f.Path, f.After, f.Before
			out = append(out, d)
		}
	}
	for _, w := range plan.Pending {
		out = append(out, Drift{Step: w.Step, Type: types[w.Step], Action: netstate.Update, Field: w.Needs})
	}
	return out
}
