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
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/watch"
	"github.com/plumbline/plumbline/topology/contract"
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
