package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/defaults"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/metrics"
	"github.com/plumbline/plumbline/reconcile/netns"
	"github.com/plumbline/plumbline/reconcile/watch"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// Watcher is the part of watch.Watcher that the loop uses.
type Watcher interface {
	Add(id reconcile.SandboxID, netns string) error
	Remove(id reconcile.SandboxID)
	Events() <-chan watch.Event
}

// Recorder receives what only the loop knows.
type Recorder interface {
	// Repaired is called after a repair, with how long the drift lasted.
	Repaired(took time.Duration)
	// Contended is called when the list of what other writers keep changing back in a
	// sandbox has changed; none ends it.
	Contended(id reconcile.SandboxID, topology string, contended []reconcile.Contention)
	// Damaged is called with the number of journal files that were set aside.
	Damaged(files int)
	// OtherVersions is called with the number of records that other versions wrote.
	OtherVersions(files int)
	// Forget drops what is known of a sandbox that no longer exists.
	Forget(id reconcile.SandboxID)
}

// Options are the settings of a Loop. All except the numbers are required.
type Options struct {
	Dir        string // of the files that describe sandboxes
	StateDir   string // of the journal
	Reconciler *reconcile.Reconciler
	Store      reconcile.Store
	// Damaged lists the journal files that were set aside.
	Damaged func() ([]string, error)
	// OtherVersions lists the records of other versions that were found.
	OtherVersions func() []*frame.OtherVersion
	Contracts     contract.Set
	BootID        string
	// Identify returns which namespace a path leads to; default netns.At.
	Identify func(path string) (reconcile.NetnsID, error)
	// Discover lists the devices of the host, Sys is its sysfs.
	Discover func() ([]inventory.Device, error)
	Sys      fs.FS
	Watcher  Watcher
	Recorder Recorder
	Log      *slog.Logger
	Now      func() time.Time
	// Urgent is work that passes wait for; nil: none.
	Urgent *Urgent

	Workers int           // passes at a time; default 4
	Timeout time.Duration // of one pass; default one minute
	// Resync is the interval at which the directory and the journal are read without a
	// notification; default one minute.
	Resync time.Duration
}

// stopGrace is how long a running pass may take to finish when the loop is stopped;
// then it is cancelled, and rolls back.
const stopGrace = 5 * time.Second

// Loop applies and repairs the sandboxes of one node.
type Loop struct {
	Options
	sched      *scheduler
	contention *contentionTracker

	mu      sync.Mutex
	checks  map[reconcile.SandboxID]time.Duration // how long the last of each took
	config  config
	read    []string                       // directories of the last reading
	paths   map[reconcile.SandboxID]string // of their namespaces, last known
	onHost  map[reconcile.SandboxID]bool   // those that depend on the host's devices
	waiting map[reconcile.SandboxID]bool   // for their first pass
	started bool
	running bool
	resync  time.Time                      // of the last reading
	logged  map[reconcile.SandboxID]string // what was logged last
	others  map[string]error               // what was logged of records of other versions, by path
}

// New returns a loop that does nothing until Run.
func New(o Options) *Loop {
	o.Workers = cmp.Or(o.Workers, 4)
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	o.Resync = cmp.Or(o.Resync, time.Minute)
	o.Identify = defaults.Func(o.Identify, netns.At)
	o.Urgent = cmp.Or(o.Urgent, &Urgent{})
	return &Loop{
		Options: o, sched: newScheduler(o.Now, o.Urgent), contention: newContentionTracker(),
		checks:  map[reconcile.SandboxID]time.Duration{},
		paths:   map[reconcile.SandboxID]string{},
		onHost:  map[reconcile.SandboxID]bool{},
		waiting: map[reconcile.SandboxID]bool{},
		logged:  map[reconcile.SandboxID]string{},
	}
}

// Run reconciles the sandboxes until ctx ends, and then leaves them as they are. It
// fails only if it cannot start.
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

// lockState keeps a second loop from using the journal: each would release what the
// other applies.
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
	l.reload(r)
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

// Work returns the current load.
func (l *Loop) Work() metrics.Work {
	waiting, busy, since := l.sched.load()
	delay := time.Duration(0)
	if !since.IsZero() {
		delay = l.Now().Sub(since)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return metrics.Work{Running: l.running, Waiting: waiting, Busy: busy, Delay: delay, Resync: l.resync}
}

// Ready returns nil once every sandbox known at the start has had its first pass,
// whatever its result.
func (l *Loop) Ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.started:
		return errors.New("not started yet")
	case len(l.waiting) > 0:
		return fmt.Errorf("%d sandboxes have not been checked yet", len(l.waiting))
	}
	return nil
}

// reload takes over a reading of the directory and the current journal, and enqueues
// the sandboxes that were added, removed or changed.
func (l *Loop) reload(r reading) {
	records, complete := l.newRecords()
	if files, err := l.Damaged(); err == nil {
		l.Recorder.Damaged(len(files))
	}
	l.reportOtherVersions()
	recorded := l.recorded(r)
	l.mu.Lock()
	if complete {
		l.resync = l.Now()
	}
	broken := l.config.broken
	due := l.config.replace(r, recorded)
	l.read = r.dirs
	for _, w := range l.config.files {
		l.paths[w.ID] = w.Netns.Path
	}
	for _, rec := range records {
		id := rec.Sandbox.ID
		if _, ok := l.paths[id]; !ok {
			l.paths[id] = rec.Sandbox.Netns
		}
		due = append(due, id)
	}
	if len(broken) > 0 && !l.config.unknown {
		for id := range l.paths { // an unreadable file kept these from being released
			if FromFile(id) {
				due = append(due, id)
			}
		}
	}
	l.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(r.broken)) {
		if !fault.SameText(broken[name], r.broken[name]) {
			if w, ok := recorded[name]; ok {
				l.Log.Error("cannot use a file of the directory, and its sandbox keeps the topology that was applied last", "sandbox", w.ID,
					"error", r.broken[name])
				continue
			}
			l.Log.Error("cannot use a file of the directory", "error", r.broken[name])
		}
	}
	for _, id := range due {
		l.sched.enqueue(id)
	}
}

// recorded returns, for files of which the topology is refused, the sandbox as it was
// applied last, by its record: after a restart the earlier content of the file is not known
// otherwise. The devices are those it had.
func (l *Loop) recorded(r reading) map[string]desired {
	out := map[string]desired{}
	for name, w := range r.refused {
		rec, known, err := l.Store.Get(w.ID)
		if err != nil || !known || rec.Phase == reconcile.Releasing || len(rec.Results) == 0 {
			continue // newRecords logs the error
		}
		sb := rec.Sandbox
		w.Topology, w.Requested, w.Given, w.Rules, w.fromRecord = sb.Topology, sb.Given.Devices(), sb.Given.WithoutDevices(), sb.Rules, true
		out[name] = w
	}
	return out
}

// newRecords returns the records of sandboxes that the loop does not know yet, and
// whether all could be read. Those it knows are read in their own pass: every pod that
// starts adds one, and reading all each time would be slow.
func (l *Loop) newRecords() (out []reconcile.Record, complete bool) {
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
