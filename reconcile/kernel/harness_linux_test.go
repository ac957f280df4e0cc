package kernel_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

// netns is a temporary network namespace. It exists as long as it is open.
type netns struct{ *os.File }

// newNetns makes a namespace.
func newNetns(t testing.TB) *netns {
	t.Helper()
	kernel.InMachine(t)
	type result struct {
		f   *os.File
		err error
	}
	done := make(chan result)
	go func() {
		// A thread that does not get back must not run anything else; but it should get
		// back, as it may be the main thread, which cannot end.
		runtime.LockOSThread()
		back, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			done <- result{nil, err}
			return
		}
		defer back.Close()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- result{nil, err}
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		if unix.Setns(int(back.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- result{f, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatalf("new network namespace: %v", r.err)
	}
	t.Cleanup(func() { r.f.Close() })
	return &netns{r.f}
}

// path leads to the namespace for as long as it is open.
func (n *netns) path() string { return fmt.Sprintf("/proc/self/fd/%d", n.Fd()) }

// bench is a temporary host and sandbox, with helpers.
type bench struct {
	testing.TB
	ctx  context.Context
	host *kernel.Host
	// hostNS is the host's namespace, nil where a test has opened the host itself.
	hostNS *netns
	ns     *netns
	*kernel.Sandbox
	moved []netstate.Change // devices, as a record has them
}

// newBench opens a sandbox and a host namespace, both temporary.
func newBench(t testing.TB) *bench {
	t.Helper()
	hostNS := newNetns(t)
	host, err := kernel.Open(kernel.Options{Netns: hostNS.path()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	b := newBenchOn(t, host)
	b.hostNS = hostNS
	return b
}

// newBenchOn opens a temporary sandbox on a host.
func newBenchOn(t testing.TB, host *kernel.Host) *bench {
	t.Helper()
	b := &bench{TB: t, ctx: t.Context(), host: host, ns: newNetns(t)}
	b.Sandbox = b.open()
	return b
}

// open opens a further view of the sandbox.
func (b *bench) open() *kernel.Sandbox {
	b.Helper()
	s, err := b.host.Sandbox(b.ns.path())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

func (b *bench) observe(queried ...netstate.Object) *netstate.Snapshot {
	b.Helper()
	s, err := b.Observe(b.ctx, b.recorded(queried...))
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// recorded adds to the devices in a query the facts that a record would hold.
func (b *bench) recorded(queried ...netstate.Object) []netstate.Object {
	out := slices.Clone(queried)
	for i, o := range out {
		if d, ok := o.(netstate.Device); ok {
			out[i] = netstate.Recorded(b.moved, d)
		}
	}
	return out
}

// identified adds to a device the facts that identify it, as the observation does from
// which a change is planned.
func (b *bench) identified(c netstate.Change) netstate.Change {
	if d, ok := c.Before.(netstate.Device); ok && d.LinkKind == "" {
		c.Before = netstate.Recorded(b.moved, d)
	}
	return c
}

// apply applies a change. It waits for what is not ready, as the engine does: a virtual
// function may reset itself.
func (b *bench) apply(c netstate.Change) {
	b.Helper()
	eventually.Succeeds(b, 20*time.Second, "a change is applied", func() error {
		err := b.Apply(b.ctx, b.identified(c))
		if err != nil && fault.Of(err) != fault.NotReady {
			b.Fatal(err)
		}
		return err
	})
	if d, ok := c.After.(netstate.Device); ok && d.At != nil {
		b.moved = netstate.Coalesce(b.moved, c)
	}
}

func (b *bench) create(objects ...netstate.Object) {
	b.Helper()
	for _, o := range objects {
		b.apply(netstate.Change{After: o})
	}
}

func (b *bench) remove(o netstate.Object) {
	b.Helper()
	b.apply(netstate.Change{Before: o})
}

// update changes the object from its current state to want.
func (b *bench) update(want netstate.Object) netstate.Change {
	b.Helper()
	c, differs := changeTo(b.observe(want), want)
	if differs {
		b.apply(c)
	}
	return c
}

// changeTo is the change to want.
func changeTo(have *netstate.Snapshot, want netstate.Object) (netstate.Change, bool) {
	h, ok := have.Get(want.Key())
	if !ok {
		h = netstate.Restrict(want, func(string) bool { return false })
	}
	if l, isLink := want.(netstate.Link); isLink {
		l.LinkKind = ""
		want = l
	}
	return netstate.NewUpdate("", h, want)
}

// holds fails unless the object in the kernel is as wanted.
func (b *bench) holds(want netstate.Object) {
	b.Helper()
	have, ok := b.observe(want).Get(want.Key())
	if !ok {
		b.Fatalf("%s is not there", want.Key())
	}
	for _, d := range netstate.Diff(want, have) {
		b.Errorf("%s: %s is %s, want %s", want.Key(), d.Path, netstate.FormatValue(d.Before), netstate.FormatValue(d.After))
	}
}

func (b *bench) absent(o netstate.Object) {
	b.Helper()
	if have, ok := b.observe(o).Get(o.Key()); ok {
		b.Fatalf("%s is there: %+v", o.Key(), have)
	}
}

// same fails unless two snapshots are equal in what plumbline manages.
func same(t testing.TB, want, got *netstate.Snapshot) {
	t.Helper()
	if diff := netstatetest.Differences(settled(want), settled(got)); len(diff) > 0 {
		t.Errorf("state differs (want / got):\n  %s", strings.Join(diff, "\n  "))
	}
}

// settled leaves out what the kernel creates asynchronously: link-local addresses and
// connected routes.
func settled(s *netstate.Snapshot) *netstate.Snapshot {
	out := netstate.NewSnapshot()
	for _, o := range netstate.All[netstate.Object](s) {
		if r, ok := o.(netstate.Route); netstate.KernelMade(o) || ok && r.Protocol == netstate.RouteProtocolKernel {
			continue
		}
		out.Put(o)
	}
	return out
}

// refused fails unless a change fails with that kind, and these texts in its
// message.
func (b *bench) refused(kind fault.Kind, c netstate.Change, words ...string) {
	b.Helper()
	err := b.Apply(b.ctx, b.identified(c))
	if err == nil {
		b.Errorf("%s: no error", c)
		return
	}
	if fault.Of(err) != kind {
		b.Errorf("%s: kind %s, want %s: %v", c, fault.Of(err), kind, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			b.Errorf("%s: %q does not say %q", c, err, w)
		}
	}
}

// patience is for what the kernel does asynchronously.
const patience = 30 * time.Second

func dummy(name string) netstate.Link { return netstate.Link{Name: name, LinkKind: "dummy"} }

func up(l netstate.Link) netstate.Link {
	l.Up = new(true)
	return l
}
