package node

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/watch"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// world is namespaces in memory, by path, as package netstate models them. Each has a
// file at its path, so that it can be added, removed and distinguished from another one.
type world struct {
	mu       sync.Mutex
	netns    map[reconcile.NetnsID]*netstate.Snapshot
	cookie   uint64 // of all namespaces; a new value replaces them all
	refuse   func(netstate.Change) error
	writes   int
	changing chan struct{} // holds a token after a change
	// notify is called after each change, whoever made it: the kernel reports changes to
	// the program that made them, too.
	notify func(in reconcile.NetnsID, c netstate.Change)
}

// refuseAll refuses every change.
func refuseAll(netstate.Change) error { return errors.New("operation not permitted") }

// open is the Open of a reconciler.
func (w *world) open(path string) (reconcile.Domain, error) {
	if path == "" {
		return &view{w: w, snap: netstate.NewSnapshot()}, nil
	}
	id, err := identify(path)
	if err != nil {
		return nil, fault.New(fault.Gone, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	id.Cookie = w.cookie
	if w.netns[id] == nil {
		w.netns[id] = netstate.NewSnapshot()
	}
	return &view{w, id, w.netns[id]}, nil
}

// identity is the namespace at a path. The world must be locked.
func (w *world) identity(t *testing.T, path string) reconcile.NetnsID {
	t.Helper()
	id, err := identify(path)
	if err != nil {
		t.Fatal(err)
	}
	id.Cookie = w.cookie
	return id
}

// identify takes the file at a path for a namespace.
func identify(path string) (reconcile.NetnsID, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return reconcile.NetnsID{Device: st.Dev, Inode: st.Ino}, err
}

// change makes a foreign change.
func (w *world) change(t *testing.T, path string, c netstate.Change) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	id := w.identity(t, path)
	w.netns[id].Apply(c)
	w.notify(id, c)
}

// links lists the links of the namespace at a path, with their MTUs.
func (w *world) links(t *testing.T, path string) string {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	if s := w.netns[w.identity(t, path)]; s != nil {
		for _, l := range netstate.All[netstate.Link](s) {
			mtu := uint32(0)
			if l.MTU != nil {
				mtu = *l.MTU
			}
			out = append(out, fmt.Sprintf("%s/%d", l.Name, mtu))
		}
	}
	return strings.Join(out, " ")
}

func (w *world) written() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.writes
	w.writes = 0
	return n
}

// view is the Domain of one namespace of the world.
type view struct {
	w    *world
	id   reconcile.NetnsID
	snap *netstate.Snapshot
}

func (v *view) Observe(_ context.Context, queried []netstate.Object) (*netstate.Snapshot, error) {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	// A new snapshot: nothing in it comes from a plan.
	s := netstate.NewSnapshot(netstate.All[netstate.Object](v.snap)...)
	for _, o := range queried {
		if !s.Known(o) {
			s.PutAbsent(o.Key())
		}
	}
	return s, nil
}

func (v *view) Extend(_ context.Context, s *netstate.Snapshot, queried []netstate.Object) error {
	for _, o := range queried {
		s.PutAbsent(o.Key())
	}
	return nil
}

func (v *view) Apply(_ context.Context, c netstate.Change) error {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	if v.w.refuse != nil {
		if err := v.w.refuse(c); err != nil {
			return err
		}
	}
	v.w.writes++
	v.snap.Apply(c)
	v.w.notify(v.id, c)
	select {
	case v.w.changing <- struct{}{}:
	default:
	}
	return nil
}

func (v *view) NetnsID() reconcile.NetnsID { return v.id }
func (v *view) Close() error               { return nil }

// watched is the Watcher of a test: it records what is watched, and reports changes in the
// world as a watch.Watcher does.
type watched struct {
	mu      sync.Mutex
	ids     map[reconcile.SandboxID]string
	in      map[reconcile.SandboxID]reconcile.NetnsID
	due     map[reconcile.SandboxID]bool // an event is, "" for the host
	events  chan watch.Event
	stopped chan struct{} // nobody receives events
}

func newWatched() *watched {
	return &watched{
		ids: map[reconcile.SandboxID]string{}, in: map[reconcile.SandboxID]reconcile.NetnsID{}, due: map[reconcile.SandboxID]bool{},
		events: make(chan watch.Event), stopped: make(chan struct{}),
	}
}

func (w *watched) Add(id reconcile.SandboxID, netns string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids[id] = netns
	in, err := identify(netns)
	w.in[id] = in
	return err
}

// eventDelay is how long the watcher waits for quiet.
const eventDelay = 10 * time.Millisecond

// changed handles the notifications of a change. Most sysctls, and what is read by ethtool,
// have none.
func (w *watched) changed(in reconcile.NetnsID, c netstate.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in.Cookie = 0
	if _, silent := c.Object().(netstate.Sysctl); silent {
		return
	}
	if netstate.OfHost(c.Object()) {
		w.deliver(watch.Event{Host: true, Reason: watch.Changed})
	}
	for id, at := range w.in {
		if at == in {
			w.deliver(watch.Event{ID: id, Reason: watch.Changed})
		}
	}
}

func (w *watched) deliver(e watch.Event) {
	if w.due[e.ID] {
		return
	}
	w.due[e.ID] = true
	time.AfterFunc(eventDelay, func() {
		w.mu.Lock()
		delete(w.due, e.ID)
		w.mu.Unlock()
		select {
		case w.events <- e:
		case <-w.stopped:
		}
	})
}

func (w *watched) Remove(id reconcile.SandboxID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ids, id)
	delete(w.in, id)
}

func (w *watched) Events() <-chan watch.Event { return w.events }

func (w *watched) list() []reconcile.SandboxID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.ids))
}

// testRecorder is the Recorder of a test.
type testRecorder struct {
	mu        sync.Mutex
	repaired  []time.Duration
	damaged   int
	others    int
	contended [][]reconcile.Contention
}

func (r *testRecorder) Repaired(took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.repaired = append(r.repaired, took)
}

func (r *testRecorder) Damaged(files int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.damaged = files
}

func (r *testRecorder) OtherVersions(files int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.others = files
}

func (r *testRecorder) Contended(_ reconcile.SandboxID, _ string, contended []reconcile.Contention) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.contended = append(r.contended, contended)
}

func (r *testRecorder) Forget(reconcile.SandboxID) {}

// node is a loop and its environment.
type node struct {
	*Loop
	t        *testing.T
	world    *world
	watched  *watched
	recorder *testRecorder
	engine   *reconcile.Reconciler
	netns    string // directory of the namespaces
	log      *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// take returns what was logged since.
func (l *lockedBuffer) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.b.String()
	l.b.Reset()
	return s
}

func newNode(t *testing.T) *node {
	t.Helper()
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state")
	store, err := journal.Open(state)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		t: t, world: &world{netns: map[reconcile.NetnsID]*netstate.Snapshot{}, changing: make(chan struct{}, 1)},
		watched: newWatched(), recorder: &testRecorder{}, netns: t.TempDir(), log: &lockedBuffer{},
	}
	n.world.notify = n.watched.changed
	n.engine = reconcile.New(reconcile.Options{Registry: reg, Store: store, Open: n.world.open, BootID: "boot"})
	n.Loop = New(Options{
		Dir: t.TempDir(), StateDir: state, Reconciler: n.engine, Store: store, Damaged: store.Damaged, OtherVersions: store.OtherVersions, Contracts: reg, BootID: "boot", Identify: identify,
		Discover: func() ([]inventory.Device, error) { return nil, nil }, Sys: os.DirFS(t.TempDir()),
		Watcher: n.watched, Recorder: n.recorder, Now: time.Now,
		Log: slog.New(slog.NewTextHandler(n.log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "took" {
				return slog.Attr{}
			}
			return a
		}})),
	})
	return n
}

// running runs f beside the loop, in a synctest bubble.
func running(t *testing.T, prepare func(n *node), f func(n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		prepare(n)
		r, err := readDir(t.Context(), n.Dir, n.Contracts)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Ready(); err == nil {
			t.Error("ready before it has begun")
		}
		n.begin(r)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { n.sched.run(ctx, 4, n.pass) })
		wg.Go(func() { n.listen(ctx) })
		synctest.Wait()
		if err := n.Ready(); err != nil {
			t.Error(err)
		}
		f(n)
		close(n.watched.stopped)
		cancel()
		wg.Wait()
	})
}

// path is the path of a namespace, make makes it, and kill removes it.
func (n *node) path(name string) string { return filepath.Join(n.netns, name) }

func (n *node) make(name string) {
	n.t.Helper()
	if err := os.WriteFile(n.path(name), nil, 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) remove(name string) {
	n.t.Helper()
	if err := os.Remove(n.path(name)); err != nil {
		n.t.Fatal(err)
	}
}

// wants writes a file that describes one dummy in a namespace.
func (n *node) wants(file, netns, config string) {
	n.t.Helper()
	write(n.t, n.Dir, map[string]string{file: inline(n.path(netns), config)})
}

// reread reads the directory again and waits until nothing is left to do.
func (n *node) reread() {
	n.t.Helper()
	r, err := readDir(n.t.Context(), n.Dir, n.Contracts)
	if err != nil {
		n.t.Fatal(err)
	}
	n.reload(r)
	synctest.Wait()
}

func (n *node) notify(e watch.Event) {
	n.watched.events <- e
	synctest.Wait()
}

func (n *node) expect(what string, netns, links string) {
	n.t.Helper()
	if got := n.world.links(n.t, n.path(netns)); got != links {
		n.t.Errorf("%s: %s holds %q, want %q; log:\n%s", what, netns, got, links, n.log.take())
	}
}

// disturbed is a foreign change of an MTU.
var disturbed = netstate.Change{Before: netstate.Link{Name: "net1", MTU: new(uint32(1400))}, After: netstate.Link{Name: "net1", MTU: new(uint32(1500))}}

func TestFilesBecomeSandboxes(t *testing.T) {
	running(t, func(n *node) {
		n.make("blue")
		n.make("red")
		n.wants("blue.yaml", "blue", "mtu: 1400")
	}, func(n *node) {
		n.expect("at the start", "blue", "net1/1400")
		if got := n.log.take(); strings.Count(got, "level=INFO") != 1 || !strings.Contains(got, `msg=reconciled sandbox=run/blue/ai trigger=ensure changes=2`) {
			t.Errorf("want one line for the pass that wrote, have:\n%s", got)
		}
		n.wants("red.yaml", "red", "mtu: 1300")
		n.world.written()
		n.reread()
		n.expect("a file was added", "red", "net1/1300")
		if w := n.world.written(); w != 2 {
			t.Errorf("%d writes for one new link, want its creation and that it comes up", w)
		}
		n.wants("blue.yaml", "blue", "mtu: 1450")
		n.reread()
		n.expect("a file changed", "blue", "net1/1450")
		if want := []reconcile.SandboxID{"run/blue/ai", "run/red/ai"}; !slices.Equal(n.watched.list(), want) {
			t.Errorf("watched: %q, want %q", n.watched.list(), want)
		}

		write(t, n.Dir, map[string]string{"blue.yaml": "netns: [\n"})
		n.reread()
		n.expect("a file became invalid", "blue", "net1/1450")
		if got := n.log.take(); !strings.Contains(got, "level=ERROR msg=\"cannot use a file of the directory\"") {
			t.Errorf("a broken file is not reported:\n%s", got)
		}
		n.reread()
		if got := n.log.take(); got != "" {
			t.Errorf("a broken file is reported twice:\n%s", got)
		}
		if err := os.Remove(filepath.Join(n.Dir, "blue.yaml")); err != nil {
			t.Fatal(err)
		}
		n.reread()
		n.expect("a file was removed", "blue", "")
		n.expect("another was not", "red", "net1/1300")
		if want := []reconcile.SandboxID{"run/red/ai"}; !slices.Equal(n.watched.list(), want) {
			t.Errorf("watched: %q, want %q", n.watched.list(), want)
		}
	})
}

func TestDriftIsRepaired(t *testing.T) {
	running(t, func(n *node) {
		n.make("blue")
		n.wants("blue.yaml", "blue", "mtu: 1400")
	}, func(n *node) {
		n.world.written()
		n.notify(watch.Event{ID: "run/blue/ai", Reason: watch.Changed})
		if w := n.world.written(); w != 0 {
			t.Errorf("%d writes although nothing had changed", w)
		}
		n.world.change(t, n.path("blue"), disturbed)
		n.notify(watch.Event{ID: "run/blue/ai", Reason: watch.Changed})
		n.expect("after a notification", "blue", "net1/1400")
		if len(n.recorder.repaired) != 1 {
			t.Errorf("repairs reported: %v, want one", n.recorder.repaired)
		}
		n.world.change(t, n.path("blue"), netstate.Change{Before: netstate.Link{Name: "net1"}})
		n.notify(watch.Event{ID: "run/blue/ai", Reason: watch.Resync})
		n.expect("after a resync", "blue", "net1/1400")
	})
}

// A failing repair keeps what works, is retried with backoff, and logged once.
func TestFailingRepair(t *testing.T) {
	running(t, func(n *node) {
		n.make("blue")
		n.wants("blue.yaml", "blue", "mtu: 1400")
	}, func(n *node) {
		n.log.take()
		n.world.mu.Lock()
		n.world.refuse = refuseAll
		n.world.mu.Unlock()
		n.world.change(t, n.path("blue"), disturbed)
		n.notify(watch.Event{ID: "run/blue/ai", Reason: watch.Changed})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		n.expect("while it is refused", "blue", "net1/1500")
		if got := n.log.take(); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "operation not permitted") {
			t.Errorf("want one warning, have:\n%s", got)
		}
		n.world.mu.Lock()
		n.world.refuse = nil
		n.world.mu.Unlock()
		time.Sleep(backoffMax)
		synctest.Wait()
		n.expect("once it is not", "blue", "net1/1400")
		if len(n.recorder.repaired) != 1 || n.recorder.repaired[0] < 10*time.Second {
			t.Errorf("repairs reported: %v, want one that took since the notification", n.recorder.repaired)
		}
	})
}

func TestObservedDriftIsReportedOnly(t *testing.T) {
	running(t, func(n *node) {
		n.make("blue")
		text := inline(n.path("blue"), "mtu: 1400")
		write(t, n.Dir, map[string]string{"blue.yaml": strings.Replace(text, "  spec:\n", "  spec:\n    driftPolicy: Observe\n", 1)})
	}, func(n *node) {
		n.log.take()
		n.world.change(t, n.path("blue"), disturbed)
		for range 3 {
			n.notify(watch.Event{ID: "run/blue/ai", Reason: watch.Changed})
			time.Sleep(time.Minute)
		}
		n.expect("after three notifications", "blue", "net1/1500")
		if got := n.log.take(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `drifted, and the policy is Observe: step \"a\": link net1 mtu`) {
			t.Errorf("want one line, have:\n%s", got)
		}
	})
}

func TestNamespaceComesAndGoes(t *testing.T) {
	running(t, func(n *node) { n.wants("blue.yaml", "blue", "mtu: 1400") }, func(n *node) {
		time.Sleep(time.Minute)
		if got := n.log.take(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "kind=Gone") {
			t.Errorf("want one line about the namespace that is not there, have:\n%s", got)
		}
		n.make("blue")
		n.appeared(n.path("blue"))
		synctest.Wait()
		n.expect("it came", "blue", "net1/1400")

		n.remove("blue")
		n.notify(watch.Event{ID: "run/blue/ai", Gone: true})
		if records, _ := n.engine.List(); len(records) != 0 {
			t.Errorf("a namespace that is gone still has a record: %+v", records)
		}
		if got := n.watched.list(); len(got) != 0 {
			t.Errorf("still watched: %q", got)
		}
		n.make("other") // so that the next one is another file
		n.make("blue")
		n.appeared(n.path("blue"))
		synctest.Wait()
		n.expect("a new one was added", "blue", "net1/1400")
	})
}

// byHand applies a topology like the command line.
func (n *node) byHand(id reconcile.SandboxID, netns, config string) {
	n.t.Helper()
	topo, _, err := Load(n.t.Context(), parsed(n.t, strings.Replace(topologyFile, "type: dummy", "type: dummy, config: {"+config+"}", 1)), nil, n.Contracts)
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.engine.Ensure(n.t.Context(), reconcile.Sandbox{ID: id, Netns: n.path(netns), Topology: topo}); err != nil {
		n.t.Fatal(err)
	}
}

// Sandboxes of other programs are repaired, and not released although no file describes
// them.
func TestSandboxesOfOthers(t *testing.T) {
	running(t, func(n *node) {
		n.make("blue")
		n.byHand("blue/ai", "blue", "mtu: 1400")
		n.make("red")
		n.byHand("run/red/ai", "red", "mtu: 1400") // by a loop that was stopped before its file was removed
		n.make("new")
	}, func(n *node) {
		n.expect("no file describes it, and none did", "blue", "net1/1400")
		n.expect("its file was removed", "red", "")
		n.world.change(t, n.path("blue"), disturbed)
		n.notify(watch.Event{ID: "blue/ai", Reason: watch.Changed})
		n.expect("it drifted", "blue", "net1/1400")

		n.byHand("new/ai", "new", "mtu: 1400")
		n.reread()
		if want := []reconcile.SandboxID{"blue/ai", "new/ai"}; !slices.Equal(n.watched.list(), want) {
			t.Errorf("watched: %q, want %q", n.watched.list(), want)
		}
		if _, err := n.engine.Release(n.t.Context(), "new/ai"); err != nil {
			t.Fatal(err)
		}
		n.notify(watch.Event{ID: "new/ai", Reason: watch.Changed})
		n.expect("released by hand", "new", "")
		if want := []reconcile.SandboxID{"blue/ai"}; !slices.Equal(n.watched.list(), want) {
			t.Errorf("watched: %q, want %q", n.watched.list(), want)
		}

		n.remove("blue")
		n.notify(watch.Event{ID: "blue/ai", Gone: true})
		if records, _ := n.engine.List(); len(records) != 1 {
			t.Errorf("%d records, want the one that only the program that made it may release", len(records))
		}
	})
}

// While a file is invalid that was never valid, the sandboxes it describes are not
// known.
func TestNothingIsReleasedWhileAFileIsUnknown(t *testing.T) {
	running(t, func(n *node) {
		n.make("red")
		n.byHand("run/red/ai", "red", "mtu: 1400")
		write(t, n.Dir, map[string]string{"red.yaml": "netns: [\n"})
	}, func(n *node) {
		n.expect("its file is broken", "red", "net1/1400")
		n.world.change(t, n.path("red"), disturbed)
		n.notify(watch.Event{ID: "run/red/ai", Reason: watch.Changed})
		n.expect("it drifted", "red", "net1/1400")
		if err := os.Remove(filepath.Join(n.Dir, "red.yaml")); err != nil {
			t.Fatal(err)
		}
		n.reread()
		n.expect("its file was removed", "red", "")
	})
}

func TestReleaseThatWasUnderWayIsFinished(t *testing.T) {
	running(t, func(n *node) {
		n.make("blue")
		n.byHand("blue/ai", "blue", "")
		rec, _, err := n.Store.Get("blue/ai")
		if err != nil {
			t.Fatal(err)
		}
		rec.Phase = reconcile.Releasing
		if err := n.Store.Put(rec); err != nil {
			t.Fatal(err)
		}
	}, func(n *node) {
		n.expect("after a crash in a release", "blue", "")
		if records, _ := n.engine.List(); len(records) != 0 {
			t.Errorf("records: %+v", records)
		}
	})
}

// An invalid file is not retried; a new one is applied.
func TestInvalidFileIsNotRetried(t *testing.T) {
	running(t, func(n *node) {
		n.make("blue")
		write(t, n.Dir, map[string]string{"blue.yaml": inline(n.path("blue"), "") + "devices: {b: eth0}\n"})
	}, func(n *node) {
		if got := n.log.take(); !strings.Contains(got, "kind=Invalid") {
			t.Errorf("log:\n%s", got)
		}
		if n.sched.mu.Lock(); !n.sched.items["run/blue/ai"].due.IsZero() {
			t.Error("it is due again")
		}
		n.sched.mu.Unlock()
		n.wants("blue.yaml", "blue", "mtu: 1400")
		n.reread()
		n.expect("the file was corrected", "blue", "net1/1400")
	})
}

// The real files, and the real clock: a file appears, and a namespace.
func TestRunFollowsFiles(t *testing.T) {
	n := newNode(t)
	n.netns = filepath.Join(n.netns, "made", "later") // its directories are created later
	n.wants("blue.yaml", "blue", "mtu: 1400")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.Run(ctx) }()
	until := time.After(30 * time.Second)
	await := func(what, netns, links string) {
		t.Helper()
		for n.world.links(t, n.path(netns)) != links {
			select {
			case <-n.world.changing:
			case <-until:
				n.expect(what, netns, links)
				return
			}
		}
	}
	if err := os.MkdirAll(n.netns, 0o700); err != nil {
		t.Fatal(err)
	}
	n.make("blue")
	await("a namespace appeared", "blue", "net1/1400")
	n.make("red")
	n.wants("red.yaml", "red", "mtu: 1300")
	await("a file appeared", "red", "net1/1300")
	n.wants("red.yaml", "red", "mtu: 1350")
	await("a file changed", "red", "net1/1350")

	second := New(n.Options)
	if err := second.Run(ctx); err == nil || !strings.Contains(err.Error(), "another loop is running on it") {
		t.Errorf("a second loop: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	n.expect("the loop was stopped", "red", "net1/1350")
}

func TestMayRepair(t *testing.T) {
	topo := steps(t, "\n  - {name: a, type: dummy, driftPolicy: Observe}\n  - {name: b, type: dummy}\n")
	drift := func(steps ...string) []reconcile.Drift {
		var out []reconcile.Drift
		for _, s := range steps {
			out = append(out, reconcile.Drift{Step: s})
		}
		return out
	}
	for _, c := range []struct {
		drift []reconcile.Drift
		want  bool
	}{
		{drift("a"), false},
		{drift("b"), true},
		{drift("a", "b"), true},
		{drift(""), true}, // of a step that no longer exists: the topology's policy
		{nil, true},
	} {
		if got := mayRepair(topo, c.drift); got != c.want {
			t.Errorf("%v: %t, want %t", c.drift, got, c.want)
		}
	}
}

// TestNumberReused: another namespace is mounted at the path and has the inode number
// of the old one, so that it looks the same until it is opened. What a file describes
// is applied there too, and what an agent applied is not.
func TestNumberReused(t *testing.T) {
	for _, policy := range []topology.DriftPolicy{topology.Repair, topology.Observe} {
		t.Run(string(policy), func(t *testing.T) {
			running(t, func(n *node) {
				n.make("blue")
				n.make("red")
				n.wants("blue.yaml", "blue", "mtu: 1400, name: net1}}\n    driftPolicy: "+string(policy)+" # {{")
				top := &topology.Topology{Name: "t", DriftPolicy: policy, Steps: []topology.Step{{Name: "d", Type: "dummy", DriftPolicy: policy, Config: map[string]any{"name": "net1"}}}}
				if _, err := n.engine.Ensure(n.t.Context(), reconcile.Sandbox{ID: "agent", Netns: n.path("red"), Topology: top}); err != nil {
					n.t.Fatal(err)
				}
			}, func(n *node) {
				n.expect("at first", "blue", "net1/1400")
				n.expect("at first", "red", "net1/1500")
				n.world.mu.Lock()
				n.world.cookie++
				n.world.mu.Unlock()
				n.notify(watch.Event{ID: "agent"})
				n.notify(watch.Event{ID: "run/blue/ai"})
				n.expect("afterwards", "blue", "net1/1400")
				n.expect("afterwards", "red", "")
				if log := n.log.take(); !strings.Contains(log, "another namespace is mounted at its path") {
					n.t.Errorf("it is not logged: %s", log)
				}
			})
		})
	}
}

// fullDisk is a store on a disk that may be full: writes that make a file longer fail.
type fullDisk struct {
	reconcile.Store
	full bool
}

func (s *fullDisk) room() error {
	if s.full {
		return unix.ENOSPC
	}
	return nil
}

func (s *fullDisk) Put(r reconcile.Record) error {
	return cmp.Or(s.room(), s.Store.Put(r))
}

func (s *fullDisk) Intend(id reconcile.SandboxID, changes []netstate.Change) error {
	return cmp.Or(s.room(), s.Store.Intend(id, changes))
}

// TestReleaseOnFullDisk: on a full disk applying fails, and releasing does not.
func TestReleaseOnFullDisk(t *testing.T) {
	n := newNode(t)
	n.make("blue")
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	store := &fullDisk{Store: n.Store}
	engine := reconcile.New(reconcile.Options{Registry: reg, Store: store, Open: n.world.open, BootID: "boot"})
	sb := reconcile.Sandbox{ID: "blue/t", Netns: n.path("blue"), Topology: &topology.Topology{
		Name: "t", DriftPolicy: topology.Repair, Steps: []topology.Step{{Name: "d", Type: "dummy", Config: map[string]any{"name": "net1"}}},
	}}
	store.full = true
	if _, err := engine.Ensure(t.Context(), sb); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("applied on a full disk: %v", err)
	}
	n.expect("on a full disk", "blue", "")
	store.full = false
	if _, err := engine.Ensure(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	store.full = true
	if _, err := engine.Release(t.Context(), sb.ID); err != nil {
		t.Errorf("released on a full disk: %v", err)
	}
	n.expect("released", "blue", "")
	if recs, _ := engine.List(); len(recs) != 0 {
		t.Errorf("left: %+v", recs)
	}
}

// TestRefusedFileAfterReboot: a file was applied by a version that refused less. After a
// reboot its sandbox gets its earlier topology again, also if its namespace is created
// later, and a correction of the file is applied.
func TestRefusedFileAfterReboot(t *testing.T) {
	const vrf = "    - {name: v, type: vrf, dependOn: [a], config: {vrfname: red, table: 254}}\n"
	running(t, func(n *node) {
		file := inline(n.path("blue"), "mtu: 1400") + vrf
		write(t, n.Dir, map[string]string{"blue.yaml": file})
		_, spec, _ := strings.Cut(file, "topology:\n")
		topo, err := topology.Decode([]byte(spec))
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Store.Put(reconcile.Record{
			Sandbox: reconcile.Sandbox{ID: "run/blue/ai", Netns: n.path("blue"), Topology: topo}, BootID: "earlier", Phase: reconcile.Applied,
			Results: []topology.StepResult{{Name: "a", Type: "dummy"}, {Name: "v", Type: "vrf"}},
		}); err != nil {
			t.Fatal(err)
		}
	}, func(n *node) {
		if got := n.log.take(); !strings.Contains(got, "keeps the topology that was applied last") || !strings.Contains(got, `step \"v\": config.table`) {
			t.Errorf("log:\n%s", got)
		}
		if _, known, err := n.Store.Get("run/blue/ai"); !known || err != nil {
			t.Errorf("the record is lost while there is no namespace: %v", err)
		}
		n.make("blue")
		n.appeared(n.path("blue"))
		synctest.Wait()
		n.expect("its namespace came", "blue", "net1/1400 red/0")
		write(t, n.Dir, map[string]string{"blue.yaml": inline(n.path("blue"), "mtu: 1500") + strings.Replace(vrf, "254", "100", 1)})
		n.reread()
		n.expect("the file was corrected", "blue", "net1/1500 red/0")
	})
}

// TestNoSandboxWaitsForAnother: sandboxes that others are working on, for example pods that are being
// attached, hold no worker, and have their pass when that is over.
func TestNoSandboxWaitsForAnother(t *testing.T) {
	running(t, func(n *node) {
		for i := range 8 {
			name := fmt.Sprint("n", i)
			n.make(name)
			n.wants(name+".yaml", name, "mtu: 1400")
		}
		n.make("free")
		n.wants("free.yaml", "free", "mtu: 1400")
	}, func(n *node) {
		time.Sleep(time.Minute)
		var unlock []func()
		for i := range 8 {
			id := reconcile.SandboxID(fmt.Sprintf("run/n%d/ai", i))
			u, err := n.Store.Lock(n.t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			unlock = append(unlock, u)
			if i%2 == 0 { // as while a pass applies its changes
				if err := n.Store.Intend(id, nil); err != nil {
					t.Fatal(err)
				}
			}
			n.world.change(t, n.path(fmt.Sprint("n", i)), disturbed)
		}
		time.Sleep(100 * time.Millisecond)
		n.log.take()
		n.world.change(t, n.path("free"), disturbed)
		time.Sleep(eventDelay)
		synctest.Wait()
		n.expect("while eight others are locked", "free", "net1/1400")
		if w := n.Work(); w.Busy > 0 {
			t.Errorf("%d workers wait for a lock", w.Busy)
		}
		time.Sleep(10 * time.Minute)
		if got := n.log.take(); strings.Contains(got, "level=WARN") {
			t.Errorf("that another has a sandbox is reported as a failure:\n%s", got)
		}
		for _, u := range unlock {
			u()
		}
		time.Sleep(inUseRetry)
		synctest.Wait()
		for i := range 8 {
			n.expect("when its lock is free", fmt.Sprint("n", i), "net1/1400")
		}
	})
}
