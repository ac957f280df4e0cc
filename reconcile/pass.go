package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
)

// pass is one run over one sandbox.
type pass struct {
	r       *Reconciler
	sandbox Sandbox
	trigger Trigger
	began   time.Time
	// undoDeadline is until when an undo waits for what is not ready; see undo.
	undoDeadline time.Time

	record Record
	known  bool // there is a record
	// lastApplied is the last version that the record has as completely applied; nil: none.
	lastApplied *Sandbox
	before      Record

	domain Domain
	// externals are the domains of Options.External that are open.
	externals  map[int]External
	snapshot   *netstate.Snapshot
	partial    error             // why the snapshot of a release lacks the sandbox's objects
	onDemand   []netstate.Object // on-demand objects of this pass, for re-observation
	executed   []netstate.Change
	intended   bool    // the record contains changes of this pass
	journalErr error   // a failed write that did not end the pass
	drift      []Drift // the drift that a repair is to remove
	left       []Drift // the drift that it is to keep
	// readdressed says that the results have other addresses than the record had.
	readdressed bool
	// renewed says that the record has other device nodes than before.
	renewed bool
	// others are the records of the other topologies of the namespace, if this pass attaches,
	// edits or releases.
	others    []Record
	recovered bool // there is nothing to do where the last pass failed
	notes     []string
	timing    Timing
	counts    [3]uint64 // dumps, gets, writes
}

// onDemandObjects returns what a pass will probably observe on demand: what the last
// one did, otherwise what the first plan asks for.
func (r *Reconciler) onDemandObjects(sb Sandbox) []netstate.Object {
	r.mu.Lock()
	defer r.mu.Unlock()
	if queried, ok := r.onDemand[sb.ID]; ok {
		return slices.Clone(queried)
	}
	return ops.Asked(sb.Given)
}

func (r *Reconciler) remember(id SandboxID, queried []netstate.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if queried == nil {
		delete(r.onDemand, id)
		return
	}
	r.onDemand[id] = queried
}

func (p *pass) load() error {
	p.onDemand = p.r.onDemandObjects(p.sandbox)
	rec, ok, err := p.r.opts.Store.Get(p.sandbox.ID)
	if err != nil {
		return err
	}
	p.record, p.known = rec, ok
	if ok && len(rec.Results) > 0 {
		p.lastApplied = &rec.Sandbox
	}
	if p.asksAgain() || rec.BootID != p.r.opts.BootID {
		p.record.Refused = nil
	}
	if ok && rec.BootID != p.r.opts.BootID {
		// A reboot has undone everything in the kernel.
		p.record.History = p.r.durable(p.record.History)
		p.record.NetnsID, p.record.BootID, p.record.Chosen = NetnsID{}, p.r.opts.BootID, nil
		p.record.Fighting = nil
		if p.record.Phase != Releasing {
			p.record.Phase = Applying
		}
	}
	return nil
}

// open opens the namespace.
func (p *pass) open() error {
	d, err := p.r.opts.Open(p.sandbox.Netns)
	if err != nil {
		return err
	}
	p.domain = d
	return nil
}

// replaced reports whether the open namespace differs from that of the record.
func (p *pass) replaced() bool {
	return p.known && p.record.NetnsID != (NetnsID{}) && p.record.NetnsID != p.domain.NetnsID()
}

func (p *pass) close() {
	for _, d := range p.externals {
		d.Close()
	}
	p.externals = nil
	if p.domain != nil {
		if c, ok := p.domain.(counter); ok {
			dumps, gets, writes := c.Counters()
			p.counts[0], p.counts[1], p.counts[2] = p.counts[0]+dumps, p.counts[1]+gets, p.counts[2]+writes
		}
		p.domain.Close()
		p.domain = nil
	}
}

// plan observes until the planner needs no further object, and plans.
func (p *pass) plan(ctx context.Context) (*ops.Plan, error) {
	if err := p.observe(ctx); err != nil {
		return nil, err
	}
	return p.planObserved(ctx)
}

func (p *pass) observe(ctx context.Context) error {
	start := p.r.opts.Now()
	snap, err := p.domain.Observe(ctx, p.addRecorded(p.kernels(p.onDemand)))
	p.partial = nil
	if p.record.Phase == Releasing && snap != nil && errors.Is(err, ErrPartial) {
		// Objects in the namespace end with it. The devices have to return to the host.
		p.partial, err = fmt.Errorf("observe: %w", err), nil
	}
	if err == nil {
		p.snapshot = snap
		p.extendExternal(ctx, p.onDemand)
	}
	p.timing.Observe += p.r.opts.Now().Sub(start)
	if err != nil {
		return fmt.Errorf("observe: %w", err)
	}
	return nil
}

// addRecorded adds to devices that are to be observed the recorded facts by which they
// are found.
func (p *pass) addRecorded(queried []netstate.Object) []netstate.Object {
	out := slices.Clone(queried)
	for i, o := range out {
		if d, ok := o.(netstate.Device); ok {
			d = netstate.Recorded(p.record.History, d)
			if d.HostIndex == 0 && p.mayTake(d.ID) {
				d.Settings = netstate.Settings{}
			}
			out[i] = d
		}
	}
	return out
}

// planObserved plans from the last observation, and observes further objects that the plan
// needs.
func (p *pass) planObserved(ctx context.Context) (*ops.Plan, error) {
	if p.replaced() {
		p.record.History, p.record.Chosen = nil, nil
	}
	for range 32 {
		plan, err := p.makePlan(ctx)
		if err != nil || len(plan.Missing) == 0 {
			return plan, p.addHolder(err)
		}
		if err := p.extend(ctx, plan.Missing); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("planning does not end: each plan needs further observations")
}

func (p *pass) makePlan(ctx context.Context) (*ops.Plan, error) {
	start := p.r.opts.Now()
	defer func() { p.timing.Plan += p.r.opts.Now().Sub(start) }()
	return p.r.opts.Registry.Plan(ctx, ops.Request{
		Topology: p.sandbox.Topology, Sandbox: string(p.sandbox.ID), BootID: p.r.opts.BootID, Client: p.sandbox.ID.Client(p.r.opts.BootID),
		Netns: p.sandbox.Netns, Given: p.sandbox.Given, Rules: p.sandbox.Rules, Refused: p.record.Refused,
		Chosen: p.record.Chosen, Others: othersOf(p.others), Prepared: p.sandbox.Prepared != "",
		Have: p.snapshot, Owned: p.record.History, Interrupted: p.interrupted(),
		Kept: p.sameTopology(), AppliedBefore: p.sandbox.AppliedBefore,
	})
}

// interrupted reports whether the last pass did not end, or could not be rolled back and is now made again.
func (p *pass) interrupted() bool {
	return p.known && (p.before.Phase == Applying || p.before.Phase == Failed && p.trigger == TriggerEnsure)
}

// sameTopology reports whether the topology of this pass and what its steps are given are
// those that were applied last, which those of a repair always are. A device does not
// count.
func (p *pass) sameTopology() bool {
	return p.lastApplied != nil && sameTopology(*p.lastApplied, p.sandbox)
}

func sameTopology(a, b Sandbox) bool {
	part := func(sb Sandbox) Sandbox { return Sandbox{Topology: sb.Topology, Given: sb.Given.WithoutDevices()} }
	return part(a).Equal(part(b))
}

// verify observes the result of applying a plan, and returns what is left to do. If
// everything is as the plan foresaw, nothing is left, and no second plan is made.
func (p *pass) verify(ctx context.Context, done *ops.Plan) (*ops.Plan, error) {
	queried := map[netstate.Key]bool{}
	for _, o := range p.onDemand {
		queried[o.Key()] = true
	}
	for _, o := range done.ToQuery() {
		if !queried[o.Key()] {
			queried[o.Key()] = true
			p.onDemand = append(p.onDemand, o)
		}
	}
	if err := p.observe(ctx); err != nil {
		return nil, err
	}
	start := p.r.opts.Now()
	rest, ok := done.Confirm(p.snapshot)
	p.timing.Plan += p.r.opts.Now().Sub(start)
	if ok {
		return rest, nil
	}
	return p.planObserved(ctx)
}

func (p *pass) extend(ctx context.Context, missing []netstate.Object) error {
	start := p.r.opts.Now()
	defer func() { p.timing.Observe += p.r.opts.Now().Sub(start) }()
	if kernels := p.kernels(missing); len(kernels) > 0 {
		if err := p.domain.Extend(ctx, p.snapshot, p.addRecorded(kernels)); err != nil {
			return fmt.Errorf("observe: %w", err)
		}
	}
	p.extendExternal(ctx, missing)
	p.onDemand = append(p.onDemand, missing...)
	for _, o := range missing {
		if !p.snapshot.Known(o) && p.snapshot.Withheld(o) == nil {
			return fmt.Errorf("observe: %s is missing in the snapshot", o.Key())
		}
	}
	return nil
}
