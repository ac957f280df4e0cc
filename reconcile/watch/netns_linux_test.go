package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
)

// realNetns is a network namespace that only a mount keeps alive between calls of its
// methods.
type realNetns struct {
	t    testing.TB
	path string
}

func newRealNetns(t testing.TB) *realNetns {
	t.Helper()
	n := &realNetns{t, filepath.Join(t.TempDir(), "netns")}
	must(t, os.WriteFile(n.path, nil, 0o600))
	n.mount()
	t.Cleanup(func() { _ = unix.Unmount(n.path, unix.MNT_DETACH) })
	return n
}

// mount puts a new namespace at the path.
func (n *realNetns) mount() {
	n.t.Helper()
	f, err := newNetns()
	if err != nil {
		n.t.Skipf("cannot make network namespaces: %v", err)
	}
	defer f.Close()
	must(n.t, unix.Mount(fmt.Sprint("/proc/self/fd/", f.Fd()), n.path, "", unix.MS_BIND, ""))
}

// die unmounts it; what remains at the path is an empty file.
func (n *realNetns) die() {
	n.t.Helper()
	must(n.t, unix.Unmount(n.path, unix.MNT_DETACH)) // as the container runtimes do
}

// do changes something in the namespace.
func (n *realNetns) do(f func(*netlink.Handle) error) {
	n.t.Helper()
	ns, err := netns.GetFromPath(n.path)
	must(n.t, err)
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	must(n.t, err)
	defer h.Close()
	must(n.t, f(h))
}

// within runs f on a thread in the namespace.
func (n *realNetns) within(f func() error) {
	n.t.Helper()
	must(n.t, n.inside(f))
}

func (n *realNetns) inside(f func() error) error {
	file, err := os.Open(n.path)
	if err != nil {
		return err
	}
	defer file.Close()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

func (n *realNetns) sysctl(name, value string) {
	n.t.Helper()
	n.within(func() error {
		return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
	})
}

// lo is the link every namespace has.
func lo(h *netlink.Handle) netlink.Link {
	l, err := h.LinkByName("lo")
	if err != nil {
		panic(err)
	}
	return l
}

// change alters the link every namespace has. Each call causes a notification.
func (n *realNetns) change() {
	n.t.Helper()
	n.do(func(h *netlink.Handle) error {
		l := lo(h)
		return h.LinkSetMTU(l, l.Attrs().MTU-1)
	})
}

// veth makes a pair with one end here and, under the same name, one there.
func (n *realNetns) veth(name string, there *realNetns) {
	n.t.Helper()
	ns, err := netns.GetFromPath(there.path)
	must(n.t, err)
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	n.do(func(h *netlink.Handle) error {
		return h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(ns)})
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// modes runs a test with one socket for all namespaces and with one in each.
func modes(t *testing.T, f func(t *testing.T, share bool)) {
	t.Run("shared", func(t *testing.T) { f(t, true) })
	t.Run("one each", func(t *testing.T) { f(t, false) })
}

// running returns a watcher that runs until the test ends. Without opts.Resync, no
// resync comes during the test.
func running(t testing.TB, share bool, opts Options) *Watcher {
	t.Helper()
	w := stopped(t, share, opts)
	done := make(chan error)
	go func() { done <- w.Run(t.Context()) }()
	t.Cleanup(func() {
		w.Close()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return w
}

func stopped(t testing.TB, share bool, opts Options) *Watcher {
	t.Helper()
	if opts.Resync == 0 {
		opts.Resync = 24 * time.Hour
	}
	if opts.Debounce == 0 {
		// One change causes several notifications; on a busy machine they must not
		// become several events.
		opts.Debounce, opts.MaxDelay = 30*time.Millisecond, 300*time.Millisecond
	}
	w, err := newWatcher(opts, share)
	must(t, err)
	t.Cleanup(w.Close)
	if share && w.Fallback() != nil {
		t.Skipf("no shared socket: %v", w.Fallback())
	}
	return w
}

// patience is how long a test waits before it concludes that nothing comes.
const patience = time.Minute

// listening receives the events of a watcher. One change may cause two events, as some
// of its notifications come late (linkwatch waits up to a second), so an event that was
// wanted before is skipped.
type listening struct {
	t       testing.TB
	w       *Watcher
	allowed map[Event]bool
}

func listenTo(t testing.TB, w *Watcher) *listening {
	return &listening{t, w, map[Event]bool{}}
}

// next receives an event of a sandbox. Events of the host that the test runs on are
// skipped unless they are wanted.
func (l *listening) next() Event {
	l.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case e, open := <-l.w.Events():
			if !open {
				l.t.Fatal("no more events")
			}
			if !e.Host || l.allowed[e] {
				return e
			}
		case <-timeout:
			l.t.Fatal("no event")
		}
	}
}

// want receives events until all of these have come.
func (l *listening) want(events ...Event) {
	l.t.Helper()
	missing := map[Event]bool{}
	for _, e := range events {
		missing[e], l.allowed[e] = true, true
	}
	for len(missing) > 0 {
		e := l.next()
		if !l.allowed[e] {
			l.t.Fatalf("%+v, want %v", e, missing)
		}
		delete(missing, e)
	}
}

// refuse fails the test if the event comes from now on.
func (l *listening) refuse(e Event) { delete(l.allowed, e) }

func changed(id reconcile.SandboxID) Event { return Event{ID: id, Reason: Changed} }

func resynced(id reconcile.SandboxID) Event { return Event{ID: id, Reason: Resync} }

func gone(id reconcile.SandboxID) Event { return Event{ID: id, Reason: Changed, Gone: true} }
