package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/netns"
	"github.com/plumbline/plumbline/topology/fault"
)

// Watcher reports which sandboxes may have drifted. Its methods may be called from
// several goroutines.
type Watcher struct {
	opts  Options
	queue *queue
	host  *listener
	// shared receives from all namespaces that numbers has given a number. Both are nil
	// where that is not possible, for the reason in fallback.
	shared   *listener
	numbers  *numberer
	fallback error

	stop chan struct{} // closed by Close, and when a listener fails
	once sync.Once     // closes stop
	ran  chan struct{} // closed when Run has returned

	mu         sync.Mutex
	running    bool
	closed     bool
	failed     error // of a listener
	sandboxes  map[reconcile.SandboxID]*place
	namespaces map[reconcile.NetnsID]*namespace
	numbered   map[int32]*namespace
}

// place is where a sandbox is.
type place struct {
	path string
	ns   *namespace
}

// namespace is a network namespace with sandboxes in it.
type namespace struct {
	id        reconcile.NetnsID
	sandboxes map[reconcile.SandboxID]bool
	number    int32     // nsidUnknown when it has a listener of its own
	own       *listener // holds the namespace alive
}

// New returns a Watcher that watches the host's devices, as seen from the process's
// network namespace, and no sandbox yet. Changes are received from now on; Run delivers
// them.
func New(opts Options) (*Watcher, error) {
	w, err := newWatcher(opts, true)
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	return w, nil
}

func newWatcher(opts Options, share bool) (*Watcher, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	w := &Watcher{
		opts:       opts,
		stop:       make(chan struct{}),
		ran:        make(chan struct{}),
		sandboxes:  map[reconcile.SandboxID]*place{},
		namespaces: map[reconcile.NetnsID]*namespace{},
		numbered:   map[int32]*namespace{},
	}
	w.queue = newQueue(opts, w.gone)
	w.host, err = w.listen(nil, linkGroup, false, singleBufferBytes, handlers{
		received: func(_ int32, s summary) {
			switch {
			case s.devices:
				w.queue.changed("")
			case s.links:
				w.queue.podLinkChanged()
			}
		},
		overflow: func() { w.queue.overflow("") },
	})
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	w.fallback = errors.New("disabled")
	if share {
		w.fallback = w.share()
	}
	w.queue.add("", 0)
	return w, nil
}

// share opens the socket that receives from all namespaces.
func (w *Watcher) share() error {
	ns, err := newNetns()
	if err != nil {
		return err
	}
	defer ns.Close()
	numbers, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: int(ns.Fd())})
	if err != nil {
		return err
	}
	w.shared, err = w.listen(ns, sandboxGroups|nsidGroup, true, sharedBufferBytes, handlers{
		received: w.received,
		overflow: w.overflowed,
	})
	if err != nil {
		numbers.Close()
		return err
	}
	w.numbers = &numberer{numbers}
	return nil
}

func (w *Watcher) listen(in *os.File, groups uint32, all bool, bufferBytes int, h handlers) (*listener, error) {
	if w.opts.ReceiveBufferBytes != 0 {
		bufferBytes = w.opts.ReceiveBufferBytes
	}
	h.failed = w.fail
	return listen(in, groups, all, bufferBytes, h)
}

// fail ends Run: a watcher that receives nothing any more must not be reported as healthy.
func (w *Watcher) fail(err error) {
	w.mu.Lock()
	w.failed = errors.Join(w.failed, err)
	w.mu.Unlock()
	w.once.Do(func() { close(w.stop) })
}

// Fallback returns nil if one socket receives from all sandboxes, and otherwise why
// each namespace has a socket of its own, which keeps it alive until Remove.
func (w *Watcher) Fallback() error { return w.fallback }

// Events returns the channel that Run sends events to. Run closes it.
func (w *Watcher) Events() <-chan Event { return w.queue.events }

// Add begins to watch a sandbox. Changes in its namespace are reported from the moment
// Add returns. Add it before the pass that applies its plan: a change between that pass
// and a later Add would be found only at the next resync.
//
// Adding a sandbox again does nothing, or moves it if its path now leads to another
// namespace. Add fails with fault.Gone when the path leads nowhere.
func (w *Watcher) Add(id reconcile.SandboxID, netnsPath string) error {
	if id == "" {
		return fault.New(fault.Invalid, errors.New("watch: sandbox without an ID"))
	}
	if err := w.add(id, netnsPath); err != nil {
		return fmt.Errorf("watch sandbox %q: %w", id, err)
	}
	return nil
}

func (w *Watcher) add(id reconcile.SandboxID, path string) error {
	f, nsID, err := netns.OpenIdentified(path)
	if err != nil {
		return err
	}
	defer f.Close()

	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return os.ErrClosed
	}
	if p := w.sandboxes[id]; p != nil && p.ns.id == nsID {
		p.path = path
		w.mu.Unlock()
		return nil
	}
	ns := w.namespaces[nsID]
	if ns == nil {
		if ns, err = w.enroll(f, nsID); err != nil {
			w.mu.Unlock()
			return err
		}
	}
	left := w.leave(id)
	ns.sandboxes[id] = true
	w.sandboxes[id] = &place{path, ns}
	checkEvery := time.Duration(0) // the kernel reports the end of the namespace
	if ns.own != nil {
		checkEvery = livenessEvery // it will not end: our socket keeps it alive
	}
	w.queue.add(id, checkEvery)
	w.mu.Unlock()
	left.Close()
	return nil
}

// enroll begins to receive from a namespace. Under mu.
func (w *Watcher) enroll(f *os.File, id reconcile.NetnsID) (*namespace, error) {
	ns := &namespace{id: id, sandboxes: map[reconcile.SandboxID]bool{}, number: nsidUnknown}
	if w.shared != nil {
		if n, err := w.numbers.number(f); err == nil {
			// The kernel reuses the number of a namespace that no longer exists. The
			// notification of that end may still be queued, and would then be taken for
			// one about this namespace.
			if gone := w.numbered[n]; gone != nil {
				w.suspect(gone)
			}
			ns.number = n
			w.numbered[n] = ns
		}
	}
	if ns.number == nsidUnknown {
		var err error
		ns.own, err = w.listen(f, sandboxGroups, false, singleBufferBytes, handlers{
			received: func(_ int32, s summary) {
				if s.changed {
					w.each(ns, w.queue.changed)
				}
			},
			overflow: func() { w.each(ns, w.queue.overflow) },
		})
		if err != nil {
			return nil, err
		}
	}
	w.namespaces[id] = ns
	return ns, nil
}

// leave forgets where a sandbox is. It returns the listener that is no longer needed.
// Close it without holding mu: its goroutine may wait for mu. Under mu.
func (w *Watcher) leave(id reconcile.SandboxID) *listener {
	p := w.sandboxes[id]
	if p == nil {
		return nil
	}
	delete(w.sandboxes, id)
	delete(p.ns.sandboxes, id)
	if len(p.ns.sandboxes) > 0 {
		return nil
	}
	delete(w.namespaces, p.ns.id)
	if w.numbered[p.ns.number] == p.ns {
		delete(w.numbered, p.ns.number)
	}
	return p.ns.own
}

// Remove ends the watch of a sandbox; one that is not watched is no error. When it
// returns, nothing of ours keeps the namespace alive, except for a grace period of the
// kernel where a socket was in it. An event that is being delivered may still be of
// this sandbox.
func (w *Watcher) Remove(id reconcile.SandboxID) {
	if id == "" {
		return
	}
	w.mu.Lock()
	own := w.leave(id)
	w.queue.remove(id)
	w.mu.Unlock()
	own.Close()
}

// Run delivers events until ctx ends or Close is called, and then closes Events. It
// fails when a socket does; that is the end of the watcher. It is called once.
func (w *Watcher) Run(ctx context.Context) error {
	w.mu.Lock()
	again := w.running || w.closed
	w.running = true
	w.mu.Unlock()
	if again {
		return fmt.Errorf("watch: run: %w", os.ErrClosed)
	}
	defer close(w.ran)
	defer close(w.queue.events)
	w.queue.run(ctx, w.stop)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return fmt.Errorf("watch: %w", w.failed)
	}
	return nil
}

// Close ends Run, waits for it, and closes everything.
func (w *Watcher) Close() {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	w.closed = true
	listeners := []*listener{w.host}
	for _, ns := range w.namespaces {
		listeners = append(listeners, ns.own)
	}
	listeners = append(listeners, w.shared)
	running := w.running
	w.mu.Unlock()

	w.once.Do(func() { close(w.stop) })
	if running {
		<-w.ran
	} else {
		close(w.queue.events)
	}
	for _, l := range listeners {
		l.Close()
	}
	if w.numbers != nil {
		w.numbers.Close()
	}
}

// received handles the notifications of the shared socket.
func (w *Watcher) received(number int32, s summary) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if number == nsidUnknown {
		// From the listener's own namespace: the numbers there are ours. Only a check
		// tells whether this is about the namespace we know or about its predecessor of
		// the same number.
		for _, n := range s.deleted {
			if ns := w.numbered[n]; ns != nil {
				w.suspect(ns)
			}
		}
		return
	}
	if ns := w.numbered[number]; ns != nil && s.changed {
		for id := range ns.sandboxes {
			w.queue.changed(id)
		}
	}
}

func (w *Watcher) overflowed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ns := range w.numbered {
		for id := range ns.sandboxes {
			w.queue.overflow(id)
		}
	}
}

// each calls f for the sandboxes of a namespace.
func (w *Watcher) each(ns *namespace, f func(reconcile.SandboxID)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range ns.sandboxes {
		f(id)
	}
}

// suspect queues a check whether a namespace still exists. Under mu.
func (w *Watcher) suspect(ns *namespace) {
	for _, id := range slices.Sorted(maps.Keys(ns.sandboxes)) {
		w.queue.suspect(id)
	}
}

// gone checks whether a sandbox's namespace is no longer at its path; if so it forgets
// the sandbox. Run calls it.
func (w *Watcher) gone(id reconcile.SandboxID) bool {
	w.mu.Lock()
	p := w.sandboxes[id]
	if p == nil {
		w.mu.Unlock()
		return false
	}
	path, want := p.path, p.ns.id
	w.mu.Unlock()

	f, have, err := netns.OpenIdentified(path)
	if err == nil {
		f.Close()
	}
	switch {
	case err == nil && have == want:
		return false
	case err != nil && fault.Of(err) != fault.Gone && fault.Of(err) != fault.Invalid:
		return false // an error of ours, not of the namespace: such as too many open files
	}
	w.mu.Lock()
	if w.sandboxes[id] != p || p.path != path {
		w.mu.Unlock()
		return false // it was moved meanwhile
	}
	own := w.leave(id)
	w.mu.Unlock()
	own.Close()
	return true
}
