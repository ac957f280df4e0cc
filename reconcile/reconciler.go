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
	"sync"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// Options is what a Reconciler works with.
type Options struct {
	Registry *ops.Registry
	Store    Store
	// Open opens a sandbox's namespace; "" opens the host's side alone.
	Open func(netns string) (Domain, error)
	// External are the domains beside the kernel.
	External []ExternalDomain
	// BootID tells whether a record's history belongs to this boot.
	BootID string
	// Patience bounds the wait for what is not ready yet, such as a VF whose
	// driver has no clear-to-send (igbvf: 10 s). Default 15 s. Release and Repair
	// wait a second at most: whoever calls them comes again.
	Patience time.Duration
	// Recorder is told of every pass; nil is none.
	Recorder Recorder
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Reconciler makes sandboxes true and keeps them so. It is safe for concurrent
// use; passes over one sandbox exclude each other, also between processes.
type Reconciler struct {
	opts Options

	mu sync.Mutex
	// asked remembers, per sandbox, what was observed on demand, so that the
	// next pass observes it at once instead of planning to find out.
	asked map[SandboxID][]netstate.Object
}

// New returns a Reconciler.
func New(opts Options) *Reconciler {
	if opts.Patience == 0 {
		opts.Patience = 15 * time.Second
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Recorder == nil {
		opts.Recorder = nopRecorder{}
	}
	return &Reconciler{opts: opts, asked: map[SandboxID][]netstate.Object{}}
}

// Report is what a pass did.
type Report struct {
	Sandbox SandboxID
	Changes []netstate.Change
	Results []topology.StepResult
	Notes   []string
	// Unchanged is set when nothing had to be done.
	Unchanged bool
	// Drift is what a Repair set out to put right, also when it failed. What it
	// found again after having written it stands there more than once.
	Drift []Drift
	// Unclean is why a device is not as it left the host, after a release that has
	// taken back everything else. The record is kept, with that device alone.
	Unclean string
}

// Plan says what Ensure would do first. It writes nothing.
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
	return p.plan(ctx)
}

// Ensure makes the sandbox what its topology says, or leaves it as it was: when
// anything fails, what this call did is undone in reverse order. Calling it
// again is safe and, when nothing changed, writes nothing.
func (r *Reconciler) Ensure(ctx context.Context, sb Sandbox) (Report, error) {
	rep, err := r.run(ctx, sb, TriggerEnsure)
	// Somebody has made an object since we looked, such as another sandbox the
	// bridge on the host that both have a port of. All is undone, and planned anew
	// from what is there now.
	for range 2 {
		if !errors.Is(err, fs.ErrExist) {
			break
		}
		rep, err = r.run(ctx, sb, TriggerEnsure)
	}
	return rep, err
}

// Repair is Ensure for a sandbox that is in use: what a failure leaves working
// is kept, and the record says Failed. Steps whose drift policy is Observe are
// left as they are. A sandbox that is unknown or being released is an error of
// kind Gone: a repair never brings one back. So is one whose path leads to
// another namespace by now (ErrReplaced), which may be anybody's.
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
			return Report{}, fmt.Errorf("finish the release that was under way: %w", err)
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
	return rep, err
}

// ErrAbsent says that a device is neither on the host nor in its sandbox: it is on
// its way back from a namespace that is being torn down, or the pod keeps it
// somewhere. The kind of an error that wraps it is NotReady.
var ErrAbsent = errors.New("neither the host nor the sandbox has it")

// errUnclean says that everything is undone but settings that a pod has left on a
// device, which is on the host again.
var errUnclean = errors.New("a device is on the host again, but not as it left")

// Release undoes everything that was done to a sandbox and forgets it. An
// unknown sandbox, a namespace that is gone and objects that are gone are no
// errors. When something cannot be undone the record is kept and Release can be
// called again. It does not wait for a device that is absent (ErrAbsent), which may
// last for ever, and only shortly for what is not ready: nobody else is held up by a
// sandbox that cannot be released.
func (r *Reconciler) Release(ctx context.Context, id SandboxID) (rep Report, err error) {
	unlock, err := r.opts.Store.Lock(ctx, id)
	if err != nil {
		return Report{}, err
	}
	defer unlock()
	p := &pass{r: r, sandbox: Sandbox{ID: id}, trigger: TriggerRelease, began: r.opts.Now()}
	defer func() { p.report(err) }()
	if err := p.load(); err != nil {
		return Report{}, err
	}
	if !p.known {
		return Report{Sandbox: id, Unchanged: true}, nil
	}
	p.sandbox = p.record.Sandbox
	rep = Report{Sandbox: id}
	err = p.release(ctx)
	rep.Changes, rep.Unchanged = p.executed, len(p.executed) == 0
	if errors.Is(err, errUnclean) {
		// Nobody is to wait for what may never be: whoever looks after records tries
		// again, and offers the device to nobody meanwhile.
		rep.Unclean = err.Error()
		return rep, nil
	}
	if err != nil {
		return rep, fmt.Errorf("release sandbox %q: %w", id, err)
	}
	return rep, nil
}

// AwaitRelease is Release for who needs it to be finished: what is not ready, such
// as an absent device, is waited for until Patience is over or ctx ends. The sandbox
// is not locked between two attempts.
func (r *Reconciler) AwaitRelease(ctx context.Context, id SandboxID) (Report, error) {
	deadline := r.opts.Now().Add(r.opts.Patience)
	var changes []netstate.Change
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		rep, err := r.Release(ctx, id)
		changes = append(changes, rep.Changes...)
		rep.Changes, rep.Unchanged = changes, len(changes) == 0
		if fault.Of(err) != fault.NotReady || !r.opts.Now().Before(deadline) || !sleep(ctx, wait) {
			return rep, err
		}
	}
}

// List returns all records. Reading them takes a while where there are hundreds.
func (r *Reconciler) List() ([]Record, []error) { return r.opts.Store.List() }

// IDs returns the IDs of all records.
func (r *Reconciler) IDs() ([]SandboxID, []error) { return r.opts.Store.IDs() }

// Record returns the record of one sandbox; false when there is none.
func (r *Reconciler) Record(id SandboxID) (Record, bool, error) { return r.opts.Store.Get(id) }

// pass is one run over one sandbox.
type pass struct {
	r       *Reconciler
	sandbox Sandbox
	trigger Trigger
	began   time.Time
	// lenient is until when an undo waits for what is not ready; see undo.
	lenient time.Time

	record Record
	known  bool // a record was there
	// had is the topology that the record says was applied as a whole, nil for none.
	had    *topology.Topology
	before Record

	domain Domain
	// externals are the domains of Options.External that are open.
	externals map[int]External
	snapshot  *netstate.Snapshot
	partial   error             // why the snapshot of a release lacks what is in the sandbox
	asked     []netstate.Object // on-demand objects of this pass, for re-observation
	executed  []netstate.Change
	intended  bool    // the record speaks of changes of this pass
	unnoted   error   // the journal's, where the pass went on without it
	drift     []Drift // what a repair is to remove
	left      []Drift // and what it is not to
	timing    Timing
	counts    [3]uint64 // dumps, gets, writes
}

// expect returns what a pass will want to observe on demand: what the last one
// did, else the devices.
func (r *Reconciler) expect(sb Sandbox) []netstate.Object {
	r.mu.Lock()
	defer r.mu.Unlock()
	if asked, ok := r.asked[sb.ID]; ok {
		return slices.Clone(asked)
	}
	var out []netstate.Object
	for _, step := range slices.Sorted(maps.Keys(sb.Devices)) {
		out = append(out, netstate.Device{ID: sb.Devices[step]}, netstate.VF{ID: sb.Devices[step]})
	}
	return out
}

func (r *Reconciler) remember(id SandboxID, asked []netstate.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if asked == nil {
		delete(r.asked, id)
		return
	}
	r.asked[id] = asked
}

func (p *pass) load() error {
	p.asked = p.r.expect(p.sandbox)
	rec, ok, err := p.r.opts.Store.Get(p.sandbox.ID)
	if err != nil {
		return err
	}
	p.record, p.known = rec, ok
	if ok && len(rec.Results) > 0 {
		p.had = rec.Sandbox.Topology
	}
	if ok && rec.BootID != p.r.opts.BootID {
		// Nothing of an earlier boot is left in the kernel.
		p.record.History = p.r.outlasting(p.record.History)
		p.record.NetnsID, p.record.BootID = NetnsID{}, p.r.opts.BootID
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

// replaced reports whether the namespace that is open is another one than the
// record speaks of.
func (p *pass) replaced() bool {
	return p.known && p.record.NetnsID != (NetnsID{}) && p.record.NetnsID != p.domain.NetnsID()
}

func (p *pass) close() {
	p.closeExternal()
	if p.domain != nil {
		if c, ok := p.domain.(counter); ok {
			dumps, gets, writes := c.Counters()
			p.counts[0], p.counts[1], p.counts[2] = p.counts[0]+dumps, p.counts[1]+gets, p.counts[2]+writes
		}
		p.domain.Close()
		p.domain = nil
	}
}

// refuseTaken refuses devices another sandbox holds. One whose namespace is gone
// is released on the way when free is set.
func (p *pass) refuseTaken(ctx context.Context, free bool) error {
	// What the sandbox's own record holds already nobody else can hold: asking
	// all the others costs a read each.
	wanted := maps.Clone(p.sandbox.Devices)
	maps.DeleteFunc(wanted, func(_, device string) bool { return holds(p.record, device) })
	if len(wanted) == 0 {
		return nil
	}
	for _, other := range p.r.holders(wanted) {
		if other.Sandbox.ID == p.sandbox.ID || other.BootID != p.r.opts.BootID {
			continue
		}
		step, device := sharedDevice(wanted, other)
		if device == "" {
			continue
		}
		// Whose it is, is not for other tenants.
		held := fault.Detailed(fmt.Errorf("device %q is held by another sandbox: delete that first, or choose another device", device),
			fmt.Sprintf("sandbox %q has it", other.Sandbox.ID))
		if !p.alive(other) {
			if !free {
				continue // it will be let go of
			}
			rep, err := p.r.AwaitRelease(ctx, other.Sandbox.ID)
			if err == nil && rep.Unclean == "" {
				continue
			}
			if err == nil {
				err = errors.New(rep.Unclean)
			}
			held = fault.Detailed(fmt.Errorf("device %q is held by another sandbox, whose namespace is gone", device), err.Error())
		}
		return &ops.StepError{Topology: p.sandbox.Topology.Name, Step: step, Err: fault.New(fault.Conflict, held)}
	}
	return p.refuseOtherVersions(wanted)
}

// refuseOtherVersions refuses to take devices that a record of another version speaks
// of: whether it has let go of them only that version can tell.
func (p *pass) refuseOtherVersions(wanted map[string]string) error {
	maps.DeleteFunc(wanted, func(step, _ string) bool { return !p.takes(step) })
	for _, other := range p.r.OtherVersions() {
		for _, step := range slices.Sorted(maps.Keys(wanted)) {
			if device := wanted[step]; other.Mentions[device] {
				err := fmt.Errorf("device %q is held by record %q: %w", device, other.Path, other)
				return &ops.StepError{Topology: p.sandbox.Topology.Name, Step: step, Err: fault.New(fault.Conflict, err)}
			}
		}
	}
	return nil
}

// takes reports whether a step takes its device away from the host, where others
// could use it too.
func (p *pass) takes(step string) bool {
	s, ok := p.sandbox.Topology.Step(step)
	if !ok {
		return false
	}
	c, ok := p.r.opts.Registry.Contract(s.Type)
	return ok && c.Input.Device
}

// OtherVersions returns the records that other versions of plumbline have written
// about this boot, or one that they do not tell. They are left alone, and the devices
// they mention count as held. Those are told that List, Record or a pass has met.
func (r *Reconciler) OtherVersions() []*frame.OtherVersion {
	s, ok := r.opts.Store.(interface {
		OtherVersions() []*frame.OtherVersion
	})
	if !ok {
		return nil
	}
	return slices.DeleteFunc(s.OtherVersions(), func(o *frame.OtherVersion) bool { return o.BootID != "" && o.BootID != r.opts.BootID })
}

// holders returns the records that may hold one of the devices. A Store that can
// tell them apart without reading all of them is asked to.
func (r *Reconciler) holders(devices map[string]string) []Record {
	if s, ok := r.opts.Store.(interface {
		Holders(devices []string) []Record
	}); ok {
		return s.Holders(slices.Collect(maps.Values(devices)))
	}
	records, _ := r.opts.Store.List() // damaged records are reported by List's other callers
	return records
}

// alive reports whether the namespace of a record is there still.
func (p *pass) alive(rec Record) bool {
	d, err := p.r.opts.Open(rec.Sandbox.Netns)
	if err != nil {
		return fault.Of(err) != fault.Gone
	}
	defer d.Close()
	return rec.NetnsID == NetnsID{} || d.NetnsID() == rec.NetnsID
}

func sharedDevice(devices map[string]string, other Record) (step, device string) {
	for _, step := range slices.Sorted(maps.Keys(devices)) {
		if holds(other, devices[step]) {
			return step, devices[step]
		}
	}
	return "", ""
}

// holds reports whether the record's sandbox has the device.
func holds(rec Record, device string) bool {
	return slices.ContainsFunc(rec.History, func(c netstate.Change) bool { return c.Key() == netstate.DeviceKey(device) })
}

// plan observes until the planner misses nothing, and plans.
func (p *pass) plan(ctx context.Context) (*ops.Plan, error) {
	if err := p.observe(ctx); err != nil {
		return nil, err
	}
	return p.planObserved(ctx)
}

func (p *pass) observe(ctx context.Context) error {
	start := p.r.opts.Now()
	snap, err := p.domain.Observe(ctx, p.recorded(p.kernels(p.asked)))
	p.partial = nil
	if p.record.Phase == Releasing && snap != nil && errors.Is(err, ErrPartial) {
		// What lives in the namespace goes with it. The devices have to come back.
		p.partial, err = fmt.Errorf("observe: %w", err), nil
	}
	if err == nil {
		p.snapshot = snap
		p.extendExternal(ctx, p.asked)
	}
	p.timing.Observe += p.r.opts.Now().Sub(start)
	if err != nil {
		return fmt.Errorf("observe: %w", err)
	}
	return nil
}

// recorded adds to the devices that are asked for what the record knows them by.
func (p *pass) recorded(ask []netstate.Object) []netstate.Object {
	out := slices.Clone(ask)
	for i, o := range out {
		if d, ok := o.(netstate.Device); ok {
			d = netstate.Recorded(p.record.History, d)
			if d.HomeIndex == 0 && p.mayTake(d.ID) {
				d.Settings = netstate.Settings{}
			}
			out[i] = d
		}
	}
	return out
}

// mayTake reports whether this pass may be the first to move the device, which
// has to record its settings then.
func (p *pass) mayTake(device string) bool {
	return (p.trigger == TriggerEnsure || p.trigger == TriggerPlan) &&
		slices.Contains(slices.Collect(maps.Values(p.sandbox.Devices)), device)
}

// planObserved plans from what was observed last, and observes what it misses.
func (p *pass) planObserved(ctx context.Context) (*ops.Plan, error) {
	if p.replaced() {
		p.record.History = nil
	}
	for range 32 {
		plan, err := p.think(ctx)
		if err != nil || len(plan.Missing) == 0 {
			return plan, p.nameHolder(err)
		}
		if err := p.extend(ctx, plan.Missing); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("planning asks for ever more observations")
}

func (p *pass) think(ctx context.Context) (*ops.Plan, error) {
	start := p.r.opts.Now()
	defer func() { p.timing.Plan += p.r.opts.Now().Sub(start) }()
	return p.r.opts.Registry.Plan(ctx, ops.Request{
		Topology: p.sandbox.Topology, Netns: p.sandbox.Netns, Devices: p.sandbox.Devices,
		Have: p.snapshot, Owned: p.record.History, Interrupted: p.known && p.before.Phase == Applying,
		Kept: p.kept(),
	})
}

// kept reports whether the topology of this pass is the one that was applied last,
// as a repair's always is.
func (p *pass) kept() bool {
	t := p.sandbox.Topology
	return p.had != nil && (p.had == t || sameSpec(Sandbox{Topology: p.had}, Sandbox{Topology: t}))
}

// verify looks at what applying a plan has led to, and returns what is left to
// do. Where everything is as the plan foresaw, that is nothing, and no second
// plan is needed to know it.
func (p *pass) verify(ctx context.Context, done *ops.Plan) (*ops.Plan, error) {
	for _, o := range done.Asks() {
		if !slices.ContainsFunc(p.asked, func(a netstate.Object) bool { return a.Key() == o.Key() }) {
			p.asked = append(p.asked, o)
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
		if err := p.domain.Extend(ctx, p.snapshot, p.recorded(kernels)); err != nil {
			return fmt.Errorf("observe: %w", err)
		}
	}
	p.extendExternal(ctx, missing)
	p.asked = append(p.asked, missing...)
	for _, o := range missing {
		if !p.snapshot.Known(o) && p.snapshot.Withheld(o) == nil {
			return fmt.Errorf("observe: %s was not answered for", o.Key())
		}
	}
	return nil
}

// nameHolder adds to a conflict which sandbox holds what is in the way.
func (p *pass) nameHolder(err error) error {
	way, ok := errors.AsType[*ops.InTheWay](err)
	if !ok {
		return err
	}
	records, _ := p.r.opts.Store.List() // as above
	for _, other := range records {
		if other.Sandbox.ID == p.sandbox.ID || other.Sandbox.Netns != p.sandbox.Netns {
			continue
		}
		for _, c := range other.History {
			if l, ok := c.Object().(netstate.Link); ok && l.Name == way.Link {
				return fmt.Errorf("%w (sandbox %q made it)", err, other.Sandbox.ID)
			}
		}
	}
	return err
}

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

// shortWait bounds the waits of a release: long enough for a driver that answers
// EBUSY for a moment, short enough for the workers that other sandboxes need.
const shortWait = time.Second

// undo takes back a history against what is there now, until nothing is left to
// take back. What an Ensure undoes it waits for, as its caller wants all of it or
// nothing; any other pass leaves what is not ready to the next.
func (p *pass) undo(ctx context.Context, history []netstate.Change) error {
	history = netstate.Coalesce(nil, history...)
	patience := shortWait
	if p.trigger == TriggerEnsure {
		patience = p.r.opts.Patience
	}
	p.lenient = p.r.opts.Now().Add(patience)
	wait := 5 * time.Millisecond
	var failed error
	for rounds := 0; ; {
		changes, absent, err := p.planUndo(ctx, history)
		if err != nil {
			return err
		}
		if len(changes) == 0 && len(absent) == 0 {
			if _, why := p.withheld(history); why != nil {
				return why
			}
			return p.partial // also when a change failed: what it was about is gone by now
		}
		switch {
		case len(changes) > 0 && rounds > maxUndoRounds:
			return errors.Join(failed, fault.New(fault.NotConverged, fmt.Errorf("still to undo: %v", changes)))
		case len(changes) == 0 && (p.trigger != TriggerEnsure || p.patience() == 0):
			return errors.Join(failed, p.notBack(absent[0]))
		case len(changes) == 0:
			if !sleep(ctx, wait) {
				return ctx.Err()
			}
			wait = min(2*wait, 200*time.Millisecond)
			continue
		case failed != nil && rounds > 1:
			if unclean(changes) {
				return fmt.Errorf("%w: %w", errUnclean, failed)
			}
			return failed
		}
		rounds++
		// At first nothing is waited for: what seems not ready may be going, with
		// a namespace that is being torn down.
		history = p.noteForeign(history, changes)
		failed = p.takeBack(ctx, changes, rounds > 1)
	}
}

// notBack says that a device is absent.
func (p *pass) notBack(id string) error {
	err := fmt.Errorf("device %q has not come back: %w", id, ErrAbsent)
	if d := netstate.Recorded(p.record.History, netstate.Device{ID: id}); !d.HasPCIAddress() && d.Index == 0 && (d.Made() || d.LinkKind == "") {
		// The attachment was cut off, or a version before this one has recorded it.
		err = fmt.Errorf("%w, or its record does not tell which link it is: if the sandbox has it under another name than %q, move it to the host by hand; the record goes with the namespace",
			err, *cmp.Or(d.At, new("")))
	}
	return fault.New(fault.NotReady, err)
}

// unclean reports whether all that an undo still has to do are settings of devices
// that are where they belong.
func unclean(left []netstate.Change) bool {
	return !slices.ContainsFunc(made(left), func(c netstate.Change) bool {
		after, isDevice := c.After.(netstate.Device)
		return !isDevice || after.Settings == nil ||
			slices.ContainsFunc(c.Fields(), func(f netstate.FieldDiff) bool { return f.Path != "settings" && f.Path != "up" })
	})
}

// patience is what is left of the time an undo may wait.
func (p *pass) patience() time.Duration {
	return max(0, p.lenient.Sub(p.r.opts.Now()))
}

// takeBack makes the changes of an undo, all of them whatever fails.
func (p *pass) takeBack(ctx context.Context, changes []netstate.Change, patient bool) (failed error) {
	for _, c := range made(changes) {
		patience := time.Duration(0)
		if patient {
			patience = p.patience()
		}
		if err := p.applyOne(ctx, c, patience); err != nil {
			failed = errors.Join(failed, p.stepError(c, err))
			continue
		}
		if p.trigger == TriggerRelease {
			p.executed = append(p.executed, c)
		}
	}
	return failed
}

// noteForeign adds to the history, and to the record, what an undo takes along
// of others for a moment: a crash before it is made again must not lose it.
// Where it cannot be written down the way back is gone all the same: half of it
// would lose more.
func (p *pass) noteForeign(history, changes []netstate.Change) []netstate.Change {
	foreign := slices.DeleteFunc(slices.Clone(changes), func(c netstate.Change) bool { return !c.Foreign })
	if len(foreign) == 0 {
		return history
	}
	p.record.History = netstate.Coalesce(p.record.History, foreign...)
	p.noted(p.r.opts.Store.Intend(p.sandbox.ID, foreign))
	return netstate.Coalesce(history, foreign...)
}

// noted keeps the error of a write to the journal that the pass goes on without.
func (p *pass) noted(err error) {
	if err != nil {
		p.unnoted = fmt.Errorf("journal: %w", err)
	}
}

// maxUndoRounds bounds how often an undo is planned again: once because a device
// came back late, once because a setting had to wait for another.
const maxUndoRounds = 4

// onHost lists what the way back needs to know beyond the sandbox: the devices,
// the names they had, and what was set for them.
func onHost(history []netstate.Change) []netstate.Object {
	var out []netstate.Object
	for _, c := range history {
		o := c.Object()
		if netstate.OfHost(o) && netstate.LinkOf(o) == "" {
			out = append(out, o)
		}
		if before, ok := c.Before.(netstate.Device); ok && before.At != nil && netstate.OnHost(*before.At) {
			out = append(out, netstate.Link{Name: *before.At})
		}
	}
	return out
}

func (p *pass) planUndo(ctx context.Context, history []netstate.Change) (changes []netstate.Change, absent []string, err error) {
	if err := p.observe(ctx); err != nil {
		return nil, nil, err
	}
	for range 32 {
		start := p.r.opts.Now()
		changes, missing := ops.Undo(p.snapshot, history)
		p.timing.Plan += p.r.opts.Now().Sub(start)
		if len(missing) == 0 {
			return changes, ops.Absent(p.snapshot, history), nil
		}
		if err := p.extend(ctx, missing); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, errors.New("undoing asks for ever more observations")
}

// release undoes the record's whole history and removes it.
func (p *pass) release(ctx context.Context) error {
	if p.record.Phase != Releasing {
		start := p.r.opts.Now()
		p.record.Phase, p.record.Updated = Releasing, start
		p.record.fail(nil)
		// A full disk must not keep devices from going home: pods are deleted to
		// make room on it. What may be lost is that the release had begun, and
		// whoever began it comes again.
		p.noted(p.r.opts.Store.Put(p.record))
		p.timing.Journal += p.r.opts.Now().Sub(start)
	}
	if err := p.openForRelease(); err != nil {
		return errors.Join(err, p.unnoted)
	}
	defer p.close()
	p.asked = onHost(p.record.History)
	if len(p.record.History) > 0 {
		if err := p.undo(ctx, p.record.History); err != nil {
			p.noteUnclean(err)
			p.noteWithheld(err)
			return errors.Join(err, p.unnoted)
		}
	}
	p.known = false
	p.r.remember(p.sandbox.ID, nil)
	start := p.r.opts.Now()
	defer func() { p.timing.Journal += p.r.opts.Now().Sub(start) }()
	return p.r.opts.Store.Remove(p.sandbox.ID)
}

// noteUnclean keeps in the record what a release could not restore, and why.
func (p *pass) noteUnclean(err error) {
	if !errors.Is(err, errUnclean) || p.record.Failure == err.Error() {
		return
	}
	p.record.fail(err)
	p.record.History = slices.DeleteFunc(slices.Clone(p.record.History), func(c netstate.Change) bool {
		before, ok := c.Before.(netstate.Device)
		if !ok {
			return true
		}
		have, _ := p.snapshot.Device(before.ID)
		return len(netstate.Diff(netstate.Device{ID: before.ID, Settings: before.Settings}, have)) == 0
	})
	p.noted(p.r.opts.Store.Put(p.record))
}

// noteWithheld keeps in the record what a release could not undo yet.
func (p *pass) noteWithheld(err error) {
	if !errors.Is(err, errWithheld) {
		return
	}
	left, _ := p.withheld(p.record.History)
	if p.record.Failure == err.Error() && len(left) == len(p.record.History) {
		return
	}
	p.record.Failure, p.record.History = err.Error(), left
	p.noted(p.r.opts.Store.Put(p.record))
}

// openForRelease opens the namespace of the record, or the host alone when the
// namespace is gone or the path leads to another one by now.
func (p *pass) openForRelease() error {
	d, err := p.r.opts.Open(p.record.Sandbox.Netns)
	switch {
	case err == nil && (p.record.NetnsID == NetnsID{} || d.NetnsID() == p.record.NetnsID):
		p.domain = d
		return nil
	case err == nil:
		d.Close()
	case fault.Of(err) != fault.Gone:
		return err
	}
	p.domain, err = p.r.opts.Open("")
	return err
}
