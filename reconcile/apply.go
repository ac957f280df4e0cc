package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// maxStages bounds how often a plan may be cut by values that become known only
// when its first part is applied.
const maxStages = 12

// ensure runs stages of observe, plan, journal, apply until the plan is empty.
func (p *pass) ensure(ctx context.Context) (Report, error) {
	p.before = p.record
	if err := p.begin(ctx); err != nil {
		return Report{}, err
	}
	var last *ops.Plan
	plan, err := p.plan(ctx)
	if err != nil && p.trigger == TriggerRepair {
		return Report{}, err // nothing was tried, so nothing has come of it
	}
	for range maxStages {
		if err != nil {
			return Report{}, p.fail(ctx, err)
		}
		if p.trigger == TriggerRepair {
			p.left = drifts(p.sandbox.Topology, plan)
			p.r.opts.Recorder.Drift(p.sandbox.ID, p.sandbox.Topology.Name, p.left)
			p.spareObserved(plan)
			p.drift = append(p.drift, drifts(p.sandbox.Topology, plan)...)
		}
		if plan.Empty() {
			return p.settle(plan)
		}
		if why := onlyWithheld(plan); why != nil {
			return Report{}, p.fail(ctx, why)
		}
		if len(plan.Changes) == 0 || last != nil && plan.String() == last.String() {
			return Report{}, p.fail(ctx, notConverged(p.sandbox.Topology.Name, plan))
		}
		last = plan
		if err := p.apply(ctx, plan); err != nil {
			return Report{}, p.fail(ctx, err)
		}
		plan, err = p.verify(ctx, plan)
	}
	return Report{}, p.fail(ctx, fault.New(fault.NotConverged, fmt.Errorf("topology %q: still changing after %d stages, lastly %s",
		p.sandbox.Topology.Name, maxStages, strings.ReplaceAll(strings.TrimSpace(last.String()), "\n", "; "))))
}

// spareObserved drops from a repair what concerns steps whose drift is only to
// be reported, and what cannot be made without it: an address wanted by one step
// has to wait when the link it goes on is another's, and missing. What the
// repair itself takes away on its way, it makes again, whosever it is.
func (p *pass) spareObserved(plan *ops.Plan) {
	observed := func(step string) bool {
		if s, ok := p.sandbox.Topology.Step(step); ok {
			return s.DriftPolicy == topology.Observe
		}
		return p.sandbox.Topology.DriftPolicy == topology.Observe // of no step any more
	}
	absent := map[string]bool{}      // links that will not be made, or stay what they are
	taken := map[netstate.Key]bool{} // what goes along with a change that is made
	spared := false                  // the change before, with which go the implied ones
	plan.Changes = slices.DeleteFunc(plan.Changes, func(c netstate.Change) bool {
		if c.Implied {
			taken[c.Key()] = taken[c.Key()] || !spared
			return spared
		}
		spared = observed(c.Step) && !taken[c.Key()] ||
			slices.ContainsFunc(netstate.StandsOn(c.Object()), func(link string) bool { return absent[link] })
		if !spared {
			return false
		}
		switch o := c.After.(type) {
		case netstate.Link:
			absent[o.Name] = absent[o.Name] || c.Action() == netstate.Create || c.Action() == netstate.Replace || o.Called != nil
		case netstate.Device:
			if o.At != nil {
				absent[*o.At] = true
			}
		}
		return true
	})
	plan.Pending = slices.DeleteFunc(plan.Pending, func(w ops.Pending) bool { return observed(w.Step) })
}

// begin readies the record: a namespace other than the recorded one means that
// the recorded one is gone and what it left on the host must be put back.
func (p *pass) begin(ctx context.Context) error {
	id := p.domain.NetnsID()
	if p.replaced() {
		p.close()
		if err := p.release(ctx); err != nil {
			return fmt.Errorf("release what sandbox %q was before: %w", p.sandbox.ID, err)
		}
		p.known, p.before = false, Record{}
		if err := p.open(); err != nil {
			return err
		}
	}
	if !p.known {
		p.record = Record{Phase: Applying}
	}
	p.record.Sandbox, p.record.BootID, p.record.NetnsID = p.sandbox, p.r.opts.BootID, id
	return nil
}

// apply journals the changes, then makes them one by one.
func (p *pass) apply(ctx context.Context, plan *ops.Plan) error {
	if err := p.intend(append(netstate.Lasting(plan.Changes), plan.Held...)); err != nil {
		return err
	}
	report, before := ReportProgress(ctx), len(p.executed)
	for i, c := range plan.Changes {
		if !c.Implied {
			if ctx.Err() != nil { // nothing is begun that nobody waits for
				return p.stepError(c, context.Cause(ctx))
			}
			report(Progress{Step: c.Step, Done: len(p.executed), Planned: before + len(plan.Changes)})
		}
		p.executed = append(p.executed, c) // before it is made: a failed change may be half made
		if c.Implied {
			continue
		}
		if err := p.applyOne(ctx, c, p.r.opts.Patience); err != nil {
			if (c.Action() == netstate.Create || c.Action() == netstate.Replace) && errors.Is(err, fs.ErrExist) {
				p.disown()
				return p.stepError(c, err)
			}
			for _, along := range plan.Changes[i+1:] {
				if !along.Implied {
					break
				}
				p.executed = append(p.executed, along)
			}
			return p.stepError(c, err)
		}
	}
	return nil
}

// disown drops the last creation, as somebody else was faster to make the same: what
// is there now is not ours to take back.
func (p *pass) disown() {
	parts := p.executed[len(p.executed)-1].Parts()
	p.executed = append(p.executed[:len(p.executed)-1], parts[:len(parts)-1]...)
	p.record.History = netstate.Coalesce(slices.Clone(p.before.History), netstate.Lasting(p.executed)...)
}

// intend makes the changes part of the record before the first is made.
func (p *pass) intend(changes []netstate.Change) error {
	start := p.r.opts.Now()
	defer func() { p.timing.Journal += p.r.opts.Now().Sub(start) }()
	p.intended = true
	p.record.History = netstate.Coalesce(p.record.History, changes...)
	first := !p.known || len(p.executed) == 0
	p.record.Phase = Applying
	if first {
		p.record.Updated = p.r.opts.Now()
		if err := p.r.opts.Store.Put(p.record); err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		p.known = true
		return nil
	}
	if err := p.r.opts.Store.Intend(p.sandbox.ID, changes); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// applyOne makes one change and waits, within reason, for what is not ready.
func (p *pass) applyOne(ctx context.Context, c netstate.Change, patience time.Duration) error {
	start := p.r.opts.Now()
	defer func() { p.timing.Apply += p.r.opts.Now().Sub(start) }()
	wait := 10 * time.Millisecond
	for {
		err := p.applyTo(ctx, c)
		if err == nil || fault.Of(err) != fault.NotReady || p.r.opts.Now().Sub(start) >= patience {
			return err
		}
		if !sleep(ctx, wait) {
			return err
		}
		wait = min(2*wait, 500*time.Millisecond)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *pass) stepError(c netstate.Change, err error) error {
	typ := ""
	for i := range p.sandbox.Topology.Steps {
		if s := &p.sandbox.Topology.Steps[i]; s.Name == c.Step {
			typ = s.Type
		}
	}
	return &ops.StepError{Topology: p.sandbox.Topology.Name, Step: c.Step, Type: typ, Err: err}
}

// onlyWithheld is the error of a plan that has nothing to do but what waits for a
// domain that cannot be observed, nil for any other.
func onlyWithheld(plan *ops.Plan) error {
	if len(plan.Changes) > 0 {
		return nil
	}
	for _, w := range plan.Pending {
		if w.Withheld != nil {
			return fault.New(fault.NotReady, fmt.Errorf("step %q waits: %w", w.Step, w.Withheld))
		}
	}
	return nil
}

func notConverged(name string, plan *ops.Plan) error {
	var what []string
	for _, c := range plan.Changes {
		what = append(what, c.String())
	}
	for _, w := range plan.Pending {
		what = append(what, fmt.Sprintf("step %q needs %s", w.Step, w.Needs))
	}
	return fault.New(fault.NotConverged, fmt.Errorf("topology %q: applied, but still to do: %s", name, strings.Join(what, "; ")))
}

// made returns the changes that were sent, without what went along.
func made(changes []netstate.Change) []netstate.Change {
	return slices.DeleteFunc(slices.Clone(changes), func(c netstate.Change) bool { return c.Implied })
}

// settle ends a pass whose last plan was empty.
func (p *pass) settle(plan *ops.Plan) (Report, error) {
	p.r.remember(p.sandbox.ID, p.asked)
	rep := Report{
		Sandbox: p.sandbox.ID, Changes: made(p.executed), Results: plan.Results, Notes: plan.Notes,
		Unchanged: len(p.executed) == 0,
	}
	if rep.Unchanged && p.known && p.before.Phase == Applied && sameSpec(p.before.Sandbox, p.sandbox) {
		return rep, nil
	}
	p.record.Phase, p.record.Results = Applied, plan.Results
	p.record.fail(nil)
	history := netstate.Coalesce(p.record.History, plan.Held...)
	history = netstate.Unmade(netstate.Compact(history, p.snapshot, plan.Held...), p.unmade)
	p.record.History = recognizable(history, p.snapshot)
	if p.trigger != TriggerRepair {
		p.record.Fighting = nil // of what it was before; the loop says anew what goes on
	}
	start := p.r.opts.Now()
	defer func() { p.timing.Journal += p.r.opts.Now().Sub(start) }()
	p.record.Updated = start
	put := p.r.opts.Store.Settle
	if rep.Unchanged {
		put = p.r.opts.Store.Put
	}
	if err := put(p.record); err != nil {
		return rep, fmt.Errorf("journal: %w", err)
	}
	return rep, nil
}

// unmade reports whether what we made once is there no more, and wanted by no
// step: this pass deleted it, or one before it that was cut off.
func (p *pass) unmade(c netstate.Change) bool {
	for _, done := range slices.Backward(p.executed) {
		if done.Key() == c.Key() {
			return done.After == nil
		}
	}
	_, there := p.snapshot.Get(c.Key())
	// A repair leaves undone what is only to be observed, and that is ours still.
	return p.trigger == TriggerEnsure && !there && p.snapshot.Known(c.Object())
}

// recognizable notes in a history the indexes of the links we made and of the
// devices we moved, by which they are found when somebody renames them.
func recognizable(history []netstate.Change, seen *netstate.Snapshot) []netstate.Change {
	for i, c := range history {
		if moved, ok := c.After.(netstate.Device); ok && moved.At != nil {
			if d, ok := seen.Device(moved.ID); ok && d.At != nil && *d.At == *moved.At {
				moved.Index = d.Index
				history[i].After = moved
			}
			continue
		}
		made, ok := c.After.(netstate.Link)
		if !ok || c.Before != nil {
			continue
		}
		if l, ok := seen.Link(made.Name); ok && l.LinkKind == made.LinkKind {
			made.Index = l.Index
			history[i].After = made
		}
	}
	return history
}

// fail ends a pass that cannot go on. A pass at the user's request is rolled
// back; a repair keeps what works.
func (p *pass) fail(ctx context.Context, cause error) error {
	if p.trigger == TriggerRepair {
		p.record.Phase, p.record.Updated = Failed, p.r.opts.Now()
		p.record.fail(cause)
		if p.known {
			return errors.Join(cause, p.r.opts.Store.Settle(p.record))
		}
		return cause
	}
	if len(p.executed) == 0 && !p.intended {
		return cause
	}
	// The caller's deadline is what made it fail, perhaps; the way back has its own.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.r.opts.Patience)
	defer cancel()
	if err := p.undo(ctx, p.executed); err != nil {
		p.record.Phase, p.record.Updated = Failed, p.r.opts.Now()
		p.record.fail(cause)
		return errors.Join(cause, fmt.Errorf("roll back: %w", err), p.r.opts.Store.Settle(p.record))
	}
	if p.before.Sandbox.ID == "" {
		return errors.Join(cause, p.r.opts.Store.Remove(p.sandbox.ID))
	}
	return errors.Join(cause, p.r.opts.Store.Put(p.before))
}
