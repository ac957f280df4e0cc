package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/watch"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// Watcher is what the loop uses of a watch.Watcher.
type Watcher interface {
	Add(id reconcile.SandboxID, netns string) error
	Remove(id reconcile.SandboxID)
	Events() <-chan watch.Event
}

// Recorder is told what only the loop knows.
type Recorder interface {
	// Repaired tells how long a drift lasted that was put right.
	Repaired(took time.Duration)
	// Fighting tells what others keep changing back in a sandbox, whenever that
	// is something else than before; none ends it.
	Fighting(id reconcile.SandboxID, topology string, fights []reconcile.Fight)
	// Damaged tells how many journal files lie set aside.
	Damaged(files int)
	// OtherVersions tells how many records other versions have written.
	OtherVersions(files int)
	// Forget drops what is known of a sandbox that is no more.
	Forget(id reconcile.SandboxID)
}

// Options is what a Loop works with. All but the numbers must be given.
type Options struct {
	Dir        string // of the files that say what is wanted
	StateDir   string // of the journal
	Reconciler *reconcile.Reconciler
	Store      reconcile.Store
	// Damaged lists the journal files that lie set aside.
	Damaged func() ([]string, error)
	// OtherVersions lists the records of other versions that were met.
	OtherVersions func() []*frame.OtherVersion
	Contracts     contract.Set
	BootID        string
	// Discover lists the devices of the host, Sys is its sysfs.
	Discover func() ([]inventory.Device, error)
	Sys      fs.FS
	Watcher  Watcher
	Recorder Recorder
	Log      *slog.Logger
	Now      func() time.Time

	Workers int           // passes at a time; default 4
	Timeout time.Duration // of one pass; default one minute
	// Resync is the time after which the directory and the journal are read
	// although nothing was heard of them; default one minute.
	Resync time.Duration
}

// stopGrace is what a pass that runs gets to finish when the loop is stopped;
// then it is cancelled, and undoes what it did.
const stopGrace = 5 * time.Second

// Loop keeps the sandboxes of one node as they are wanted.
type Loop struct {
	Options
	sched  *scheduler
	fights *fights

	mu      sync.Mutex
	config  config
	read    []string                       // directories of the last reading
	paths   map[reconcile.SandboxID]string // of the namespaces, as last seen
	onHost  map[reconcile.SandboxID]bool   // those that depend on the host's devices
	waiting map[reconcile.SandboxID]bool   // for their first pass
	started bool
	running bool
	resync  time.Time                      // of the last reading
	said    map[reconcile.SandboxID]string // what was logged last
	others  map[string]string              // what was logged of records of other versions, by path
}

// New returns a loop that does nothing until Run.
func New(o Options) *Loop {
	o.Workers = cmp.Or(o.Workers, 4)
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	o.Resync = cmp.Or(o.Resync, time.Minute)
	return &Loop{
		Options: o, sched: newScheduler(o.Now), fights: newFights(),
		paths:   map[reconcile.SandboxID]string{},
		onHost:  map[reconcile.SandboxID]bool{},
		waiting: map[reconcile.SandboxID]bool{},
		said:    map[reconcile.SandboxID]string{},
	}
}

// Run keeps the sandboxes until ctx ends. It leaves them as they are then. It
// fails only when it cannot begin.
func (l *Loop) Run(ctx context.Context) error {
	unlock, err := lockState(l.StateDir)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := readDir(ctx, l.Dir, l.Contracts)
	if err != nil {
		return err
	}
	files, err := newFileWatch()
	if err != nil {
		return err
	}
	defer files.close()
	l.begin(r)
	defer l.end()
	files.follow(l.dirs(r))

	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { l.follow(ctx, files) })
	wg.Go(func() { l.listen(ctx) })
	l.sched.run(ctx, l.Workers, l.pass)
	return nil
}

// lockState keeps a second loop away from the journal: each would release what
// the other makes.
func lockState(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "loop"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errors.New("another loop is running on it")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock state directory %q: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// begin takes the first reading.
func (l *Loop) begin(r reading) {
	l.take(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.paths {
		l.waiting[id] = true
	}
	l.started, l.running = true, true
}

func (l *Loop) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = false
}

// Work is what a Loop is at.
type Work struct {
	Running bool
	Waiting int           // sandboxes whose turn has come, and no worker is free
	Busy    int           // sandboxes that are being looked at
	Delay   time.Duration // of the turn that has been due for longest
	Resync  time.Time     // when the directory and the journal were read last; zero: never
}

// Work returns what the loop is at now.
func (l *Loop) Work() Work {
	waiting, busy, since := l.sched.load()
	delay := time.Duration(0)
	if !since.IsZero() {
		delay = l.Now().Sub(since)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return Work{Running: l.running, Waiting: waiting, Busy: busy, Delay: delay, Resync: l.resync}
}

// hostPace is how much time goes by between two turns that the host's devices are
// the cause of, on average. Each pod that starts or ends changes some of them, and
// every sandbox that has one may be concerned: without it a pod that starts on a
// node with hundreds would cost hundreds of passes.
const hostPace = 20 * time.Millisecond

// listen turns the watcher's events into turns, until ctx ends.
func (l *Loop) listen(ctx context.Context) {
	var next time.Time // the host is not heard before
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due <-chan time.Time // when it has been heard meanwhile
	host := func() {
		due, next = nil, l.Now().Add(time.Duration(l.heardHost())*hostPace)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-due:
			host()
		case e, ok := <-l.Watcher.Events():
			if !ok {
				return
			}
			switch wait := next.Sub(l.Now()); {
			case !e.Host:
				l.heard(e)
			case wait <= 0:
				host()
			case due == nil:
				timer.Reset(wait)
				due = timer.C
			}
		}
	}
}

// heardHost says that a device of the host has come, gone or changed: whoever has
// one may have drifted, and whoever waits for one may have it. It returns how many
// sandboxes have a turn for it.
func (l *Loop) heardHost() int {
	ids := l.concernedByHost()
	for _, id := range ids {
		l.sched.host(id)
	}
	return len(ids)
}

func (l *Loop) heard(e watch.Event) {
	switch {
	case e.Gone:
		l.sched.ask(e.ID)
	case e.Reason == watch.Resync:
		l.sched.look(e.ID)
	default:
		l.sched.notice(e.ID)
	}
}

func (l *Loop) concernedByHost() []reconcile.SandboxID {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []reconcile.SandboxID
	for id := range l.paths {
		if _, failed := l.said[id]; failed || l.onHost[id] {
			out = append(out, id)
		}
	}
	return out
}

// Ready returns nil once every sandbox of the start has had its first pass,
// whatever came of it.
func (l *Loop) Ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.started:
		return errors.New("not started yet")
	case len(l.waiting) > 0:
		return fmt.Errorf("%d sandboxes have not been looked at yet", len(l.waiting))
	}
	return nil
}

// Yield lets the loop begin nothing until done is called: something is under way
// that somebody waits for, such as the start of a pod. What the loop is at it ends
// first, and what has been due for a second it does all the same, one at a time.
func (l *Loop) Yield() (done func()) { return l.sched.yield() }

// take lets the loop follow a reading of the directory and the journal as it is
// now, and gives a turn to what has come, gone or changed.
func (l *Loop) take(r reading) {
	records, complete := l.unknown()
	if files, err := l.Damaged(); err == nil {
		l.Recorder.Damaged(len(files))
	}
	l.reportOtherVersions()
	l.mu.Lock()
	if complete {
		l.resync = l.Now()
	}
	broken := l.config.broken
	turns := l.config.take(r)
	l.read = r.dirs
	for _, w := range l.config.files {
		l.paths[w.id] = w.netns.Path
	}
	for _, rec := range records {
		id := rec.Sandbox.ID
		if _, ok := l.paths[id]; !ok {
			l.paths[id] = rec.Sandbox.Netns
		}
		turns = append(turns, id)
	}
	if len(broken) > 0 && !l.config.unknown {
		for id := range l.paths { // what an unreadable file kept from being released
			if FromFile(id) {
				turns = append(turns, id)
			}
		}
	}
	l.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(r.broken)) {
		if old, ok := broken[name]; !ok || old.Error() != r.broken[name].Error() {
			l.Log.Error("cannot use a file of the directory", "error", r.broken[name])
		}
	}
	for _, id := range turns {
		l.sched.ask(id)
	}
}

// unknown returns the records of sandboxes the loop has not seen yet, and whether
// all could be read. Reading those it knows is left to their turns: with each pod
// that starts there is a new one.
func (l *Loop) unknown() (out []reconcile.Record, complete bool) {
	ids, errs := l.Reconciler.IDs()
	for _, id := range ids {
		l.mu.Lock()
		_, known := l.paths[id]
		l.mu.Unlock()
		if known {
			continue
		}
		rec, found, err := l.Store.Get(id)
		if err != nil && frame.AsOtherVersion(err) == nil {
			errs = append(errs, err)
		}
		if found {
			out = append(out, rec)
		}
	}
	for _, err := range errs {
		l.Log.Error("cannot use the journal", "error", err)
	}
	return out, len(errs) == 0
}

// reportOtherVersions counts the records of other versions, and logs each once.
func (l *Loop) reportOtherVersions() {
	others := l.OtherVersions()
	l.Recorder.OtherVersions(len(others))
	l.mu.Lock()
	before := l.others
	l.others = map[string]string{}
	for _, o := range others {
		l.others[o.Path] = o.Error()
	}
	l.mu.Unlock()
	for _, o := range others {
		if before[o.Path] != o.Error() {
			l.Log.Warn("record of another version", "file", o.Path, "error", o)
		}
	}
}

func (l *Loop) wish(id reconcile.SandboxID) (w wish, wanted, unknown bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, wanted = byID(l.config.files)[id]
	return w, wanted, l.config.unknown
}

// pass is one turn of a sandbox.
func (l *Loop) pass(ctx context.Context, id reconcile.SandboxID) verdict {
	stopping := ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.Timeout)
	defer cancel()
	defer context.AfterFunc(stopping, func() {
		t := time.AfterFunc(stopGrace, cancel)
		context.AfterFunc(ctx, func() { t.Stop() })
	})()
	v, err := l.reconcile(ctx, id)
	l.mu.Lock()
	delete(l.waiting, id)
	l.mu.Unlock()
	l.say(id, err)
	return v
}

// say logs what went wrong with a sandbox, once until something else does.
func (l *Loop) say(id reconcile.SandboxID, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	l.mu.Lock()
	news := l.said[id] != text
	if l.said[id] = text; text == "" {
		delete(l.said, id)
	}
	l.mu.Unlock()
	switch {
	case text == "":
	case news:
		l.Log.Warn("reconcile failed", "sandbox", id, "kind", fault.Of(err), "error", err)
	default:
		l.Log.Debug("reconcile still fails", "sandbox", id, "kind", fault.Of(err), "error", err)
	}
}

func (l *Loop) reconcile(ctx context.Context, id reconcile.SandboxID) (verdict, error) {
	w, wanted, unknown := l.wish(id)
	rec, known, err := l.record(ctx, id)
	if frame.AsOtherVersion(err) != nil {
		return settled, err // until it changes
	}
	if err != nil {
		return again, err
	}
	switch {
	case wanted:
		return l.keep(ctx, w, rec, known)
	case !known:
		l.drop(id)
		return settled, nil
	case rec.Phase == reconcile.Releasing, FromFile(id) && !unknown:
		return l.release(ctx, id)
	case FromFile(id):
		_, err := l.guard(ctx, rec)
		return settled, errors.Join(err, errors.New("no file describes it, but it is kept while a file cannot be read"))
	default:
		return l.guard(ctx, rec)
	}
}

// record reads a record. One that says a pass is under way is read again when
// whoever makes the pass is done: perhaps it is undone, and nothing is there to
// be looked after.
func (l *Loop) record(ctx context.Context, id reconcile.SandboxID) (reconcile.Record, bool, error) {
	rec, known, err := l.Store.Get(id)
	if err != nil || !known || rec.Phase != reconcile.Applying {
		return rec, known, err
	}
	unlock, err := l.Store.Lock(ctx, id)
	if err != nil {
		return rec, known, err
	}
	unlock()
	return l.Store.Get(id)
}

// keep makes true what a file describes.
func (l *Loop) keep(ctx context.Context, w wish, rec reconcile.Record, known bool) (verdict, error) {
	if err := w.netns.Exists(); err != nil {
		// What is left of it on the host is put back, and its devices are free.
		if known {
			if _, err := l.release(ctx, w.id); err != nil {
				return again, err
			}
		}
		return again, err
	}
	sb, err := l.sandbox(ctx, w, rec, known)
	if err != nil {
		return l.retry(err), err
	}
	if known && l.stands(rec) && sameSandbox(rec.Sandbox, sb) {
		// A new namespace may have the number of the old one, and is found to be
		// another only when it is opened. What the file describes is made there.
		v, err := l.guard(ctx, rec)
		if !errors.Is(err, reconcile.ErrReplaced) {
			return v, err
		}
		// Ensure would wait for the devices of the old one, and hold a worker.
		if _, err := l.release(ctx, w.id); err != nil {
			return again, err
		}
	}
	if err := l.Watcher.Add(w.id, sb.Netns); err != nil {
		return again, err
	}
	begun := l.Now()
	rep, err := l.Reconciler.Ensure(ctx, sb)
	if err != nil {
		return l.retry(err), err
	}
	l.depends(sb, rep.Changes)
	l.wrote(rep, reconcile.TriggerEnsure, begun)
	l.sched.answered(w.id, begun)
	return settled, nil
}

// stands reports whether a record is of a sandbox that has been made, so that
// what differs is drift. One whose repair failed is; where drift is only
// observed nothing is repaired, and it was the making that failed.
func (l *Loop) stands(rec reconcile.Record) bool {
	t := rec.Sandbox.Topology
	repaired := t.DriftPolicy != topology.Observe ||
		len(rec.Results) > 0 && slices.ContainsFunc(t.Steps, func(s topology.Step) bool { return s.DriftPolicy != topology.Observe })
	made := rec.Phase == reconcile.Applied || rec.Phase == reconcile.Failed && repaired
	return made && rec.BootID == l.BootID && Alive(rec, l.BootID)
}

// depends notes whether a sandbox depends on the host's devices.
func (l *Loop) depends(sb reconcile.Sandbox, changes []netstate.Change) {
	host := len(sb.Devices) > 0 || slices.ContainsFunc(changes, func(c netstate.Change) bool {
		o := c.Object()
		return netstate.OfHost(o) || netstate.OnHost(o.LivesOn().ID)
	})
	if !host {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onHost[sb.ID] = true
}

// retry tells whether trying again may help: the user's mistake stays one until
// the file changes.
func (l *Loop) retry(err error) verdict {
	if fault.Of(err) == fault.Invalid {
		return settled
	}
	return again
}

// sandbox gives a wish its devices.
func (l *Loop) sandbox(ctx context.Context, w wish, rec reconcile.Record, known bool) (reconcile.Sandbox, error) {
	var own *reconcile.Record
	if known {
		own = &rec
	}
	return Assignment{
		ID: w.id, Netns: w.netns, Topology: w.topology, Asked: w.asked, Contracts: l.Contracts, Own: own,
		Records: func() []reconcile.Record {
			records, _ := l.Reconciler.List() // damage is reported by take
			return records
		},
		OtherVersions: l.Reconciler.OtherVersions,
		Alive:         func(rec reconcile.Record) bool { return Alive(rec, l.BootID) },
		Discover:      l.Discover, Sys: l.Sys,
	}.Sandbox(ctx)
}

func sameSandbox(a, b reconcile.Sandbox) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// guard looks at a sandbox that has been made, and repairs it if it may.
func (l *Loop) guard(ctx context.Context, rec reconcile.Record) (verdict, error) {
	id := rec.Sandbox.ID
	if !Alive(rec, l.BootID) {
		l.Watcher.Remove(id)
		return settled, fault.New(fault.Gone, fmt.Errorf("network namespace %q is gone: delete the sandbox, or make the namespace again and apply", rec.Sandbox.Netns))
	}
	if err := l.Watcher.Add(id, rec.Sandbox.Netns); err != nil {
		return again, err
	}
	l.depends(rec.Sandbox, rec.History)
	begun := l.Now()
	if repairsAll(rec.Sandbox.Topology) {
		return l.repair(ctx, rec, begun) // which looks first
	}
	rec, st, err := l.look(ctx, rec)
	switch {
	case fault.Of(err) == fault.Gone: // its record went meanwhile
		return again, nil
	case err != nil:
		return again, err
	case st.Kind != "":
		return again, st.Err
	case st.State == reconcile.InSync, st.State == reconcile.Fighting && len(st.Drift) == 0 && rec.Phase == reconcile.Applied:
		l.sched.answered(id, begun)
		l.judge(ctx, rec, nil, true)
		return settled, nil
	case !mayRepair(rec.Sandbox.Topology, st.Drift):
		l.sched.answered(id, begun)
		l.judge(ctx, rec, nil, true)
		return settled, errors.New("drifted, and only observed: " + describe(st.Drift))
	}
	if now, known, err := l.Store.Get(id); err != nil || !known || now.Phase != rec.Phase {
		return again, err // somebody deletes or applies it right now: that is no drift
	}
	return l.repair(ctx, rec, begun)
}

// look checks a sandbox while nobody is at work on it: what an update is at is not
// drift. It returns the record that was checked.
func (l *Loop) look(ctx context.Context, rec reconcile.Record) (reconcile.Record, reconcile.Status, error) {
	id := rec.Sandbox.ID
	unlock, err := l.Store.Lock(ctx, id)
	if err != nil {
		return rec, reconcile.Status{}, err
	}
	defer unlock()
	if now, known, err := l.Store.Get(id); err == nil && known {
		rec = now
	}
	st, err := l.Reconciler.Check(ctx, id)
	return rec, st, err
}

// repairsAll reports whether all drift of a topology is to be repaired, so that
// nobody has to look at it first.
func repairsAll(t *topology.Topology) bool {
	return t.DriftPolicy != topology.Observe && !slices.ContainsFunc(t.Steps, func(s topology.Step) bool { return s.DriftPolicy == topology.Observe })
}

func (l *Loop) repair(ctx context.Context, rec reconcile.Record, begun time.Time) (verdict, error) {
	id := rec.Sandbox.ID
	since := l.sched.noticed(id)
	if since.IsZero() {
		since = begun
	}
	rep, err := l.Reconciler.Repair(ctx, id)
	if fault.Of(err) == fault.Gone {
		if now, known, e := l.Store.Get(id); e == nil && (!known || now.Phase == reconcile.Releasing) {
			return again, nil // somebody deletes it right now: that is no drift
		}
	}
	if err == nil || fault.Of(err) == fault.NotConverged {
		contested := l.judge(ctx, rec, rep.Drift, err == nil)
		if contested && err != nil {
			return settled, nil // it has been said, and the pause is longer than a retry's
		}
	}
	if err != nil {
		return again, err
	}
	if !rep.Unchanged {
		l.Recorder.Repaired(l.Now().Sub(since))
	}
	l.wrote(rep, reconcile.TriggerRepair, begun)
	l.sched.answered(id, begun)
	return settled, nil
}

// judge takes what a pass has repaired, and leaves a sandbox alone for a while
// where somebody else changes that back each time. It reports whether so it is.
func (l *Loop) judge(ctx context.Context, rec reconcile.Record, repaired []reconcile.Drift, converged bool) (contested bool) {
	id, name := rec.Sandbox.ID, rec.Sandbox.Topology.Name
	s := l.fights.passed(id, repaired, converged, l.Now())
	if !s.hold.IsZero() {
		l.sched.hold(id, s.hold)
	}
	if !s.look.IsZero() {
		l.sched.expect(id, s.look)
	}
	switch {
	case s.began:
		f := s.fights[0]
		l.Log.Warn("another writer changes back what is repaired: repairs are slowed down", "sandbox", id, "topology", name,
			"step", f.Step, "object", f.Object.String(), "field", f.Field, "want", f.Want, "have", f.Have, "fields", len(s.fights))
	case s.ended:
		l.Log.Info("contention has ended", "sandbox", id, "topology", name)
	}
	if sameFights(rec.Fighting, s.fights) {
		return s.contested
	}
	// A record that could not be written is found to differ by the next pass.
	if err := l.Reconciler.NoteFights(ctx, id, s.fights); err != nil {
		l.Log.Error("cannot use the journal", "error", err)
	}
	l.Recorder.Fighting(id, name, s.fights)
	return s.contested
}

// mayRepair reports whether one of the drifts belongs to a step that is to be
// repaired. A sandbox without drift may be: its last pass failed.
func mayRepair(t *topology.Topology, drift []reconcile.Drift) bool {
	return len(drift) == 0 || slices.ContainsFunc(drift, func(d reconcile.Drift) bool {
		policy := t.DriftPolicy
		if s, ok := t.Step(d.Step); ok && s.DriftPolicy != "" {
			policy = s.DriftPolicy
		}
		return policy != topology.Observe
	})
}

// describe names what drifted, without the values: they may change every time.
func describe(drift []reconcile.Drift) string {
	var out []string
	for _, d := range drift {
		text := fmt.Sprintf("step %q: %s", d.Step, d.Object)
		if d.Field != "" {
			text += " " + d.Field
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// release undoes a sandbox.
func (l *Loop) release(ctx context.Context, id reconcile.SandboxID) (verdict, error) {
	l.Watcher.Remove(id)
	begun := l.Now()
	rep, err := l.Reconciler.Release(ctx, id)
	if err != nil {
		return again, err
	}
	l.wrote(rep, reconcile.TriggerRelease, begun)
	if rep.Unclean != "" {
		return again, nil // the device may be clean soon, and is kept from others until then
	}
	if _, wanted, _ := l.wish(id); !wanted {
		l.drop(id)
	}
	return settled, nil
}

// drop forgets a sandbox that is neither wanted nor there.
func (l *Loop) drop(id reconcile.SandboxID) {
	l.Watcher.Remove(id)
	l.sched.forget(id)
	l.fights.forget(id)
	l.Recorder.Forget(id)
	l.mu.Lock()
	delete(l.paths, id)
	delete(l.onHost, id)
	delete(l.said, id)
	l.mu.Unlock()
}

// wrote logs a pass that changed something: one line, whatever it did.
func (l *Loop) wrote(rep reconcile.Report, trigger reconcile.Trigger, begun time.Time) {
	if rep.Unchanged {
		return
	}
	l.Log.Info("reconciled", "sandbox", rep.Sandbox, "trigger", trigger, "changes", len(rep.Changes), "took", l.Now().Sub(begun).Round(time.Microsecond))
	for _, c := range rep.Changes {
		l.Log.Debug("change", "sandbox", rep.Sandbox, "step", c.Step, "change", c.String())
	}
}
