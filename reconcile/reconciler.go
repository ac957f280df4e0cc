package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// Options are the settings of a Reconciler.
type Options struct {
	Registry *ops.Registry
	Store    Store
	// Open opens a sandbox's namespace; "" opens the host's objects only.
	Open func(netns string) (Domain, error)
	// External are the domains other than the kernel.
	External []ExternalDomain
	// Before are called, in this order, before the changes of a plan are made.
	Before []Before
	// BootID identifies this boot; a record's history belongs to a boot.
	BootID string
	// Patience bounds the wait for what is not ready yet, such as a VF whose driver has no
	// clear-to-send (igbvf: 10 s). Default 15 s. Release and Repair wait at most a second:
	// their callers retry.
	Patience time.Duration
	// Recorder receives every pass; nil is none.
	Recorder Recorder
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Before runs when the changes of a plan are recorded and not yet made. It returns notes for the report.
type Before func(context.Context, Writing) (notes []string, err error)

// Writing is a pass that is about to make changes.
type Writing struct {
	*Reconciler
	Domain  Domain // of the sandbox
	Plan    *ops.Plan
	History []netstate.Change
}

// Reconciler applies, checks, repairs and releases sandboxes. It is safe for concurrent
// use; passes over one sandbox exclude each other, also between processes.
type Reconciler struct {
	opts Options

	mu sync.Mutex
	// onDemand is, per sandbox, what was observed on demand, so that the next pass
	// observes it at once instead of after a first plan.
	onDemand map[SandboxID][]netstate.Object
	// readdressed is for sandboxes with addresses that the network gives.
	readdressed map[SandboxID]readdressing
	// noCarrier is for sandboxes with links without carrier.
	noCarrier map[SandboxID]noCarrier
}

// New returns a Reconciler.
func New(opts Options) *Reconciler {
	opts.Patience = cmp.Or(opts.Patience, 15*time.Second)
	if opts.Now == nil {
		opts.Now = time.Now
	}
	opts.Recorder = cmp.Or[Recorder](opts.Recorder, nopRecorder{})
	return &Reconciler{
		opts: opts, onDemand: map[SandboxID][]netstate.Object{},
		readdressed: map[SandboxID]readdressing{}, noCarrier: map[SandboxID]noCarrier{},
	}
}

// Report is the result of a pass.
type Report struct {
	Sandbox SandboxID
	// Changes were made. If an Ensure fails they were attempted, and rolled back.
	Changes []netstate.Change
	Results []topology.StepResult
	Notes   []string
	// Settles is the time after which another pass may change something, without any
	// notification; 0 is never.
	Settles time.Duration
	// Unchanged is set if nothing had to be done.
	Unchanged bool
	// Drift is the drift that a Repair tried to remove, also if it failed. A field
	// found changed again after the write appears again.
	Drift []Drift
	// Unclean is why a device does not have its earlier settings, after a release that
	// has undone everything else. The record is kept, for that device only.
	Unclean string
}

// Plan returns what Ensure would do first. It writes nothing.
func (r *Reconciler) Plan(ctx context.Context, sb Sandbox) (*ops.Plan, error) {
	p := &pass{r: r, sandbox: sb, trigger: TriggerPlan}
	if err := p.load(); err != nil {
		return nil, err
	}
	if err := p.open(); err != nil {
		return nil, err
	}
	defer p.close()
	if err := p.refuseTaken(ctx, false); err != nil {
		return nil, err
	}
	return p.planBeside(ctx)
}

// Ensure applies the sandbox's topology, or leaves the sandbox as it was: if anything
// fails, the changes of this call are rolled back in reverse order. Calling it again is
// safe and, if nothing changed, writes nothing.
func (r *Reconciler) Ensure(ctx context.Context, sb Sandbox) (Report, error) {
	rep, err := r.run(ctx, sb, TriggerEnsure)
	// Another writer has created an object since the observation, such as a bridge on the
	// host in which another sandbox has a port, too. This pass is rolled back, and a new
	// one starts from a new observation.
	for range 2 {
		if !errors.Is(err, fs.ErrExist) {
			break
		}
		before := rep.Changes
		if rep, err = r.run(ctx, sb, TriggerEnsure); err != nil {
			rep.Changes = slices.Concat(before, rep.Changes)
		}
	}
	return rep, err
}

// Repair is Ensure for a sandbox that is in use: after a failure, what works is kept, and
// the phase is Failed. Steps with drift policy Observe are left as they are. A sandbox that
// is unknown or being released is an error of kind Gone: a repair never attaches one again.
// So is one with another namespace at its path (ErrReplaced), which may belong to anyone.
func (r *Reconciler) Repair(ctx context.Context, id SandboxID) (Report, error) {
	return r.run(ctx, Sandbox{ID: id}, TriggerRepair)
}

func (r *Reconciler) run(ctx context.Context, sb Sandbox, trigger Trigger) (rep Report, err error) {
	p := &pass{r: r, sandbox: sb, trigger: trigger, began: r.opts.Now()}
	unlock, err := r.opts.Store.Lock(ctx, sb.ID)
	if err != nil {
		return Report{}, err
	}
	defer unlock()
	defer func() { p.report(err) }()
	if err := p.load(); err != nil {
		return Report{}, err
	}
	if trigger == TriggerRepair {
		if !p.known || p.record.Phase == Releasing {
			return Report{}, fault.New(fault.Gone, errNoSandbox(sb.ID))
		}
		p.sandbox = p.record.Sandbox
	}
	if p.known && p.record.Phase == Releasing {
		if err := p.release(ctx); err != nil {
			return Report{}, fmt.Errorf("finish the release that was in progress: %w", err)
		}
	}
	if err := p.open(); err != nil {
		return Report{}, err
	}
	defer p.close()
	if trigger == TriggerRepair && p.replaced() {
		return Report{}, errReplaced(p.sandbox.Netns)
	}
	if err := p.refuseTaken(ctx, true); err != nil {
		return Report{}, err
	}
	rep, err = p.ensure(ctx)
	rep.Sandbox, rep.Drift = sb.ID, p.drift
	if err != nil {
		rep.Changes = made(p.executed)
	}
	return rep, err
}

// HostDomain opens what is in no sandbox.
func (r *Reconciler) HostDomain() (Domain, error) { return r.opts.Open("") }

// List returns all records. Reading them takes a while where there are hundreds.
func (r *Reconciler) List() ([]Record, []error) { return r.opts.Store.List() }

// IDs returns the IDs of all records.
func (r *Reconciler) IDs() ([]SandboxID, []error) { return r.opts.Store.IDs() }

// Record returns the record of one sandbox; false when there is none.
func (r *Reconciler) Record(id SandboxID) (Record, bool, error) { return r.opts.Store.Get(id) }
