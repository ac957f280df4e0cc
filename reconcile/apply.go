package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// maxStages bounds the stages of a plan: a stage ends where later changes need values that
// exist only after it.
const maxStages = 12

// ensure runs stages of observe, plan, journal, apply until the plan is empty.
func (p *pass) ensure(ctx context.Context) (Report, error) {
	p.before = p.record
	if err := p.begin(ctx); err != nil {
		return Report{}, err
	}
	var last *ops.Plan
	plan, err := p.planBeside(ctx)
	if err != nil && p.trigger == TriggerRepair {
		return Report{}, err // no change was attempted
	}
	for range maxStages {
		if err == nil {
			plan, err = p.settle(ctx, plan)
		}
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
			return p.finish(plan)
		}
		p.renewNodes(plan)
		if why := p.onlyWithheld(plan); why != nil {
			return Report{}, p.fail(ctx, why)
		}
		if len(plan.Changes) == 0 || last != nil && plan.Equal(last) {
			return Report{}, p.fail(ctx, notConverged(p.sandbox.Topology.Name, plan))
		}
		last = plan
		switch err = p.apply(ctx, plan); {
		case err == nil:
			plan, err = p.verify(ctx, plan)
		case p.refused(plan, err):
			plan, err = p.plan(ctx)
		default:
			return Report{}, p.fail(ctx, err)
		}
	}
	return Report{}, p.fail(ctx, fault.New(fault.NotConverged, fmt.Errorf("topology %q: still changing after %d stages, lastly %s",
		p.sandbox.Topology.Name, maxStages, strings.ReplaceAll(strings.TrimSpace(last.String()), "\n", "; "))))
}

// spareObserved drops from a repair the changes of steps with policy Observe, and what
// cannot be applied without them: an address that one step wants has to wait if its link is
// missing and belongs to such a step. Objects that the repair itself deletes are recreated,
// also if such a step wants them.
func (p *pass) spareObserved(plan *ops.Plan) {
	observed := func(step string) bool {
		if s, ok := p.sandbox.Topology.Step(step); ok {
			return s.DriftPolicy == topology.Observe
		}
		return p.sandbox.Topology.DriftPolicy == topology.Observe // the step no longer exists
	}
	absent := map[string]bool{}      // links that will not be created, or not be changed
	taken := map[netstate.Key]bool{} // what the kernel deletes with an applied change
	spared := false                  // the last change; implied ones follow it
	plan.Changes = slices.DeleteFunc(plan.Changes, func(c netstate.Change) bool {
		if c.Implied {
			taken[c.Key()] = taken[c.Key()] || !spared
			return spared
		}
		spared = observed(c.Step) && !taken[c.Key()] ||
			slices.ContainsFunc(netstate.RequiredLinks(c.Object()), func(link string) bool { return absent[link] })
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

// settle observes until nothing is left that the topology waits for without a change, or
// patience is over: for duplicate address detection the kernel takes one to two seconds (RFC
// 4862 section 5.4). A repair waits briefly, as others are behind it.
func (p *pass) settle(ctx context.Context, plan *ops.Plan) (*ops.Plan, error) {
	patience := p.r.opts.Patience
	if p.trigger == TriggerRepair {
		patience = min(patience, shortWait)
	}
	until := p.r.opts.Now().Add(patience)
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		step := plan.Settling()
		if step == "" || p.r.opts.Now().After(until) {
			return plan, nil
		}
		ReportProgress(ctx)(Progress{Step: step, Done: len(p.executed), Planned: len(p.executed)})
		if !loop.Wait(ctx, wait, nil) {
			return nil, p.stepError(netstate.Change{Step: step}, context.Cause(ctx))
		}
		var err error
		if plan, err = p.plan(ctx); err != nil {
			return nil, err
		}
	}
}

// begin prepares the record. If another namespace is mounted at the path, the recorded one
// no longer exists, and its changes on the host are undone first.
func (p *pass) begin(ctx context.Context) error {
	id := p.domain.NetnsID()
	if p.replaced() {
		p.close()
		if err := p.release(ctx); err != nil {
			return fmt.Errorf("release the earlier namespace of sandbox %q: %w", p.sandbox.ID, err)
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

// apply journals the changes, then applies them one by one.
func (p *pass) apply(ctx context.Context, plan *ops.Plan) error {
	if err := p.intend(slices.Concat(plan.Shared, netstate.Lasting(plan.Changes), plan.Held), plan.Chosen); err != nil {
		return err
	}
	for _, before := range p.r.opts.Before {
		notes, err := before(ctx, Writing{Reconciler: p.r, Domain: p.domain, Plan: plan, History: p.record.History})
		if p.notes = append(p.notes, notes...); err != nil {
			return err
		}
	}
	report, before := ReportProgress(ctx), len(p.executed)
	for i := 0; i < len(plan.Changes); {
		some := p.atOnce(plan.Changes[i:])
		c := some[0]
		i += len(some)
		if !c.Implied {
			if ctx.Err() != nil { // the caller no longer waits: start no further change
				return p.stepError(c, context.Cause(ctx))
			}
			report(Progress{Step: c.Step, Done: len(p.executed), Planned: before + len(plan.Changes)})
		}
		p.executed = append(p.executed, some...) // before they are applied: a failed change may be half applied
		if c.Implied {
			continue
		}
		if err := p.applySome(ctx, some, p.r.opts.Patience); err != nil {
			if (c.Action() == netstate.Create || c.Action() == netstate.Replace) && errors.Is(err, fs.ErrExist) {
				p.dropLastCreation()
				return p.stepError(c, err)
			}
			for _, along := range plan.Changes[i:] {
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

// dropLastCreation drops the last creation from the record, as another writer created
// the same object first: it is not ours to delete.
func (p *pass) dropLastCreation() {
	parts := p.executed[len(p.executed)-1].Parts()
	p.executed = append(p.executed[:len(p.executed)-1], parts[:len(parts)-1]...)
	p.record.History = netstate.Coalesce(slices.Clone(p.before.History), netstate.Lasting(p.executed)...)
}

// intend writes the changes to the record, and the choices that they follow from, before the
// first is applied.
func (p *pass) intend(changes []netstate.Change, chosen ops.Choices) error {
	start := p.r.opts.Now()
	defer func() { p.timing.Journal += p.r.opts.Now().Sub(start) }()
	p.intended = true
	p.record.History = netstate.Coalesce(p.record.History, changes...)
	whole := !p.known || len(p.executed) == 0 || !maps.Equal(p.record.Chosen, chosen)
	p.record.Phase, p.record.Chosen = Applying, chosen
	if whole {
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

// atOnce returns the first changes of a list: one, or all of its kind and step that follow one another, if the domain
// makes these at once.
func (p *pass) atOnce(changes []netstate.Change) []netstate.Change {
	first, n := changes[0], 1
	if _, batches := p.domain.(Batcher); !batches || !first.Object().Traits().Together {
		return changes[:1]
	}
	for n < len(changes) && changes[n].Key().Kind == first.Key().Kind && changes[n].Step == first.Step {
		n++
	}
	return changes[:n]
}

// applySome applies one change, or several at once. It retries what is not ready until patience is over.
func (p *pass) applySome(ctx context.Context, some []netstate.Change, patience time.Duration) error {
	start := p.r.opts.Now()
	defer func() { p.timing.Apply += p.r.opts.Now().Sub(start) }()
	apply := func() error { return p.applyTo(ctx, some[0]) }
	if b, batches := p.domain.(Batcher); batches && len(some) > 1 {
		apply = func() error { return b.ApplyAll(ctx, some) }
	}
	wait, taken := 10*time.Millisecond, 0
	for {
		err := apply()
		if a, ok := some[0].After.(netstate.Addr); ok && errors.Is(err, ErrAddressTaken) && taken < maxTaken {
			if err = p.takeAddress(ctx, a, err); err == nil {
				taken++
				continue
			}
		}
		if err == nil || fault.Of(err) != fault.NotReady || p.r.opts.Now().Sub(start) >= patience {
			return err
		}
		if !loop.Wait(ctx, wait, nil) {
			return err
		}
		wait = min(2*wait, 500*time.Millisecond)
	}
}

func (p *pass) stepError(c netstate.Change, err error) error {
	return &ops.StepError{Topology: p.sandbox.Topology.Name, Step: c.Step, Err: err}
}

// onlyWithheld returns an error if all that is left in a plan waits for a domain that
// cannot be observed, or for an address.
func (p *pass) onlyWithheld(plan *ops.Plan) error {
	if len(plan.Changes) > 0 {
		return nil
	}
	for _, w := range plan.Pending {
		if fault.Of(w.Withheld) == fault.Conflict {
			return p.stepError(netstate.Change{Step: w.Step}, w.Withheld)
		}
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

// made returns the changes without those that the kernel makes by itself.
func made(changes []netstate.Change) []netstate.Change {
	return slices.DeleteFunc(slices.Clone(changes), func(c netstate.Change) bool { return c.Implied })
}

func settles(plan *ops.Plan) time.Duration {
	return time.Duration(plan.SettlesMillis) * time.Millisecond
}

// sooner is the shorter of two times, of which 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// announcer is a domain that tells the neighbors of links which addresses these have.
type announcer interface {
	Announce(links []netstate.Link, addresses []netstate.Addr) error
}

// announce tells neighbors of the sandbox's addresses after a change. It changes nothing, and what
// cannot be sent is found by them as before: it fails no pass, and is a note.
func (p *pass) announce(plan *ops.Plan) {
	domain, ok := p.domain.(announcer)
	if !ok || len(p.executed) == 0 {
		return
	}
	p.send(domain, plan.Announced(p.snapshot))
}

func (p *pass) send(domain announcer, addresses []netstate.Addr) {
	if len(addresses) == 0 {
		return
	}
	if err := domain.Announce(netstate.All[netstate.Link](p.snapshot), addresses); err != nil {
		p.notes = append(p.notes, fmt.Sprintf("neighbors were not told of all addresses: %v", err))
	}
}

// finish ends a pass whose last plan was empty.
func (p *pass) finish(plan *ops.Plan) (Report, error) {
	p.r.remember(p.sandbox.ID, p.onDemand)
	p.announce(plan)
	later := p.announceCarriers(plan)
	rep := Report{
		Sandbox: p.sandbox.ID, Changes: made(p.executed), Results: plan.Results,
		Notes: append(p.notes, plan.Notes...), Settles: sooner(settles(plan), later),
		Unchanged: len(p.executed) == 0,
	}
	p.recovered = rep.Unchanged && p.trigger == TriggerRepair && p.before.Phase == Failed
	p.renewNodes(plan)
	if rep.Unchanged && !p.intended && !p.renewed && p.known && p.before.Phase == Applied &&
		p.before.Sandbox.Equal(p.sandbox) && maps.Equal(p.before.Chosen, plan.Chosen) {
		if sameAddresses(p.before.Results, plan.Results) {
			return rep, nil
		}
		if early := p.r.readdress(p.sandbox.ID, p.record.Updated); early > 0 {
			rep.Settles = sooner(early, later)
			return rep, nil
		}
		p.readdressed = true
	}
	p.record.Phase, p.record.Results, p.record.Chosen = Applied, plan.Results, plan.Chosen
	p.record.fail(nil)
	held := slices.Concat(plan.Shared, plan.Held)
	history := p.dropLeft(netstate.Coalesce(p.record.History, held...), plan)
	history = netstate.DropDeleted(netstate.Compact(history, p.snapshot, held...), p.deleted(plan))
	p.record.History = netstate.WithIndexes(plan.Record(history), p.snapshot)
	if p.trigger != TriggerRepair {
		p.record.Fighting = nil // it concerned the earlier state; the loop records further contention
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

// sameAddresses reports whether the results of steps have the same addresses.
func sameAddresses(a, b []topology.StepResult) bool {
	return slices.EqualFunc(a, b, func(a, b topology.StepResult) bool {
		return slices.EqualFunc(a.Result.IPs, b.Result.IPs, func(a, b topology.IP) bool { return a.Address == b.Address })
	})
}

// renewNodes has the record of a repair name the device nodes, and the RDMA devices, that its steps give now, also if the repair
// fails: containers that are created from now on get those of the record, and an earlier node may be another pod's. An RDMA device
// that is gone has none.
func (p *pass) renewNodes(plan *ops.Plan) {
	if p.trigger != TriggerRepair {
		return
	}
	p.record.Results = slices.Clone(p.record.Results)
	for i := range p.record.Results {
		at := slices.IndexFunc(plan.Results, func(r topology.StepResult) bool { return r.Name == p.record.Results[i].Name })
		if at < 0 {
			continue
		}
		was := cmp.Or(p.record.Results[i].Result.Devices, &topology.Devices{})
		now := cmp.Or(plan.Results[at].Result.Devices, &topology.Devices{})
		name := cmp.Or(now.RDMADevice, was.RDMADevice)
		if !slices.Equal(was.DeviceNodes, now.DeviceNodes) || was.RDMADevice != name {
			renewed := *was
			renewed.DeviceNodes, renewed.RDMADevice = now.DeviceNodes, name
			p.record.Results[i].Result.Devices, p.renewed = &renewed, true
		}
	}
}

// deleted returns a function that reports whether an object that we created no longer exists and is not wanted:
// this pass deleted it, or an earlier one that was interrupted. A link that was left to those that have ports in it counts as deleted.
func (p *pass) deleted(plan *ops.Plan) func(netstate.Change) bool {
	exists := make(map[netstate.Key]bool, len(p.executed)) // after the last change of each
	for _, done := range p.executed {
		exists[done.Key()] = done.After != nil
	}
	return func(c netstate.Change) bool {
		have, there := p.snapshot.Get(c.Key())
		if l, ok := have.(netstate.Link); ok && ops.LeftBehind(l) && !plan.Wants(c.Key()) {
			return true
		}
		if is, changed := exists[c.Key()]; changed {
			return !is
		}
		// A repair does not recreate what belongs to steps with policy Observe: that is
		// still ours. The kernel has deleted an object that no step wants any more: a leased address.
		return (p.trigger == TriggerEnsure || !plan.Wants(c.Key())) && !there && p.snapshot.Known(c.Object())
	}
}

// fail ends a pass after an error. An Ensure is rolled back; a repair keeps its successful
// changes.
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
	// The caller's deadline may be the cause of the failure; the rollback has its own.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.r.opts.Patience)
	defer cancel()
	if err := p.undo(ctx, p.executed, p.before.History...); err != nil {
		p.record.Phase, p.record.Updated = Failed, p.r.opts.Now()
		p.record.fail(cause)
		return errors.Join(cause, fmt.Errorf("roll back: %w", err), p.r.opts.Store.Settle(p.record))
	}
	if p.before.Sandbox.ID == "" {
		return errors.Join(cause, p.r.opts.Store.Remove(p.sandbox.ID))
	}
	return errors.Join(cause, p.r.opts.Store.Put(p.before))
}
