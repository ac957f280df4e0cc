package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/integration/namespace"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/binding"
	"github.com/plumbline/plumbline/reconcile/hostports"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/pod/cnisocket"
	"github.com/plumbline/plumbline/reconcile/pod/loopback"
)

func TestMain(m *testing.M) {
	if os.Getenv("PLUMBLINE_LANE") == "" {
		fmt.Println("skipped: these tests change real network namespaces and run in the virtual machine: make test-kernel")
		os.Exit(0)
	}
	if os.Getenv("CNI_COMMAND") != "" { // started as a CNI plugin
		if filepath.Base(os.Args[0]) == loopback.Name {
			loopback.Main()
			return
		}
		cnisocket.Main()
		return
	}
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	if os.Getenv(attachEnv) != "" {
		attachChild()
		return
	}
	if os.Getenv(updateEnv) != "" {
		updateChild()
		return
	}
	code := m.Run()
	printLongest()
	os.Exit(code)
}

// lane is the engine on a real kernel.
type lane struct {
	t    *testing.T
	host *kernel.Host
	dir  string // of the journal
	// devices are those of the host whose state is compared; nil: all functions.
	devices []string
	// beside: it is one of several at a time, and what those have on the host beyond devices is not compared.
	beside bool
}

func newLane(t *testing.T) *lane {
	t.Helper()
	return laneOn(t, kernel.Options{})
}

// laneOn is the engine with another namespace as the host's.
func laneOn(t *testing.T, o kernel.Options) *lane {
	t.Helper()
	t.Cleanup(func() { mainThreadReturns(t) })
	host, err := kernel.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	countTime(t)
	restoreForwarding(t)
	dir := filepath.Join(t.TempDir(), "journal")
	return &lane{t: t, host: host, dir: dir}
}

// mainThreadReturns waits until the main thread is in the host's namespace. It cannot end, so it would keep a pod's namespace.
func mainThreadReturns(t *testing.T) {
	t.Helper()
	home, err := os.Readlink("/proc/1/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	eventually.True(t, 30*time.Second, "the main thread is in the host's namespace", func() bool {
		at, err := os.Readlink("/proc/self/ns/net")
		return err == nil && at == home
	})
}

// restoreForwarding ends what a test changes of the host's forwarding, since namespaces that are
// created later inherit it (devinet_init_net in net/ipv4/devinet.c).
func restoreForwarding(t *testing.T) {
	t.Helper()
	for _, file := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"} {
		before, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if now, err := os.ReadFile(file); err == nil && bytes.Equal(now, before) {
				return
			}
			if err := os.WriteFile(file, before, 0); err != nil {
				t.Error(err)
			}
		})
	}
}

// engine returns a reconciler on the lane's journal. wrap may put something
// between it and the kernel.
func (l *lane) engine(wrap func(reconcile.Domain) reconcile.Domain) *reconcile.Reconciler {
	l.t.Helper()
	r, err := engine(l.host, l.dir, wrap)
	if err != nil {
		l.t.Fatal(err)
	}
	return r
}

func engine(host *kernel.Host, dir string, wrap func(reconcile.Domain) reconcile.Domain) (*reconcile.Reconciler, error) {
	store, reg, err := parts(dir)
	if err != nil {
		return nil, err
	}
	return reconcile.New(reconcile.Options{
		Before:   []reconcile.Before{hostports.Before},
		Registry: reg, Store: store, BootID: host.BootID(),
		Open: func(path string) (reconcile.Domain, error) {
			d, err := open(host, path)
			if err == nil && wrap != nil {
				d = wrap(d)
			}
			return d, err
		},
		External: []reconcile.ExternalDomain{bindings(wrap), wrapped(leases(host, dir).Domain(), wrap)},
	}), nil
}

// bindings is the domain of drivers of PCI functions.
func bindings(wrap func(reconcile.Domain) reconcile.Domain) reconcile.ExternalDomain {
	return wrapped(binding.Open(binding.Options{}).Domain(), wrap)
}

// wrapped is a domain whose changes count and fail as those of the kernel's do.
func wrapped(d reconcile.ExternalDomain, wrap func(reconcile.Domain) reconcile.Domain) reconcile.ExternalDomain {
	if wrap == nil {
		return d
	}
	whole := d.Open
	d.Open = func(ctx context.Context, sb reconcile.Sandbox) (reconcile.External, error) {
		e, err := whole(ctx, sb)
		return wrap(alone{External: e}), err
	}
	return d
}

// alone is a domain without a sandbox.
type alone struct {
	reconcile.Domain // nil: only the kernel's domain has it
	reconcile.External
}

func (a alone) Extend(ctx context.Context, s *netstate.Snapshot, ask []netstate.Object) error {
	return a.External.Extend(ctx, s, ask)
}

func (a alone) Apply(ctx context.Context, c netstate.Change) error { return a.External.Apply(ctx, c) }

func (a alone) Close() error { return a.External.Close() }

func (a alone) Counters() (dumps, gets, writes uint64) { return 0, 0, 0 }

// parts are the components of every engine: the journal in dir and the step types.
func parts(dir string) (*journal.Journal, *ops.Registry, error) {
	store, err := journal.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	reg, err := all.Registry()
	return store, reg, err
}

// hasCards reports whether this lane has network cards; user-mode Linux has no PCI,
// and what needs them is left to the other lane.
func hasCards() bool { return os.Getenv("PLUMBLINE_LANE") != "uml" }

func open(host *kernel.Host, path string) (reconcile.Domain, error) {
	if path == "" {
		return host.WithoutSandbox(), nil
	}
	return host.Sandbox(path)
}

// netnsNumber makes the names of namespaces differ.
var netnsNumber atomic.Int64

// newNetns makes a named network namespace and returns its path.
func newNetns(t *testing.T) string {
	t.Helper()
	name := strings.Map(func(r rune) rune {
		if r == '/' || r == ' ' {
			return '-'
		}
		return r
	}, t.Name())
	name = fmt.Sprintf("%.40s-%d", name, netnsNumber.Add(1))
	path, err := namespace.Add(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteNetns(path) })
	return path
}

func deleteNetns(path string) {
	_ = namespace.Delete(path) // cleaning up: the machine is thrown away
}

// watched lists the host objects whose state a case may touch: every device and
// VF of the machine, unless it names them.
func (l *lane) watched() []netstate.Object {
	l.t.Helper()
	var out []netstate.Object
	ids := l.devices
	if ids == nil {
		dirs, _ := filepath.Glob("/sys/bus/pci/devices/*/physfn")
		for _, d := range dirs {
			ids = append(ids, filepath.Base(filepath.Dir(d)))
		}
	}
	for _, id := range ids {
		out = append(out, netstate.Device{ID: id}, netstate.VF{ID: id})
	}
	if l.beside {
		return out
	}
	// Nothing of it may be left on the host.
	return append(out, netstate.Masquerade{Source: "192.0.2.5"}, netstate.PortMapping{Host: "0.0.0.0:8080/tcp"}, netstate.PortGuard{Port: "plb7"})
}

// drivers adds to a state which drivers the watched functions have.
func drivers(s *netstate.Snapshot, watched []netstate.Object) error {
	var ask []netstate.Object
	for _, o := range watched {
		if d, ok := o.(netstate.Device); ok && d.HasPCIAddress() {
			ask = append(ask, netstate.Binding{ID: d.ID})
		}
	}
	return binding.Open(binding.Options{}).Extend(context.Background(), s, ask)
}

// state is the current state of everything a case may change. What changes by
// itself (link-local addresses, the kernel's own routes) is left out.
func (l *lane) state(path string) *netstate.Snapshot {
	l.t.Helper()
	d, err := open(l.host, path)
	if err != nil {
		l.t.Fatal(err)
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	watched := l.watched()
	s, err := d.Observe(ctx, watched)
	if err == nil {
		err = drivers(s, watched)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	keep := netstate.NewSnapshot()
	for _, o := range netstate.All[netstate.Object](s) {
		switch o := o.(type) {
		case netstate.Addr:
			if o.Kernel {
				continue
			}
		case netstate.Route:
			if o.Protocol == unix.RTPROT_KERNEL || o.Protocol == unix.RTPROT_RA {
				continue
			}
		}
		keep.Put(o)
	}
	return keep
}

func (l *lane) mustEqual(start *netstate.Snapshot, path, when string) {
	l.t.Helper()
	var diff []string
	deadline := time.Now().Add(15 * time.Second)
	for {
		if diff = netstatetest.Differences(start, l.state(path)); len(diff) == 0 || time.Now().After(deadline) {
			break // a VF reports its carrier and MTU with delay
		}
		runtime.Gosched()
	}
	if len(diff) > 0 {
		l.t.Fatalf("%s: state differs from the start:\n%s", when, strings.Join(diff, "\n"))
	}
}

var errInjected = errors.New("injected failure")

// faulty is a Domain that fails or ends the process at the nth change.
type faulty struct {
	reconcile.Domain
	applied *int
	at      int // counted from 1
	// before is called instead of the change; it returns the error to report.
	before func() error
	// after is called after the change was made.
	after func()
}

func (f faulty) Apply(ctx context.Context, c netstate.Change) error {
	*f.applied++
	n := *f.applied
	if n == f.at && f.before != nil {
		return f.before()
	}
	err := f.Domain.Apply(ctx, c)
	if n == f.at && f.after != nil && err == nil {
		f.after()
	}
	return err
}

// Counters passes on the message counts of the domain below.
func (f faulty) Counters() (dumps, gets, writes uint64) {
	return f.Domain.(interface {
		Counters() (dumps, gets, writes uint64)
	}).Counters()
}

// counting remembers the counts of the last domain that was closed.
type counting struct {
	reconcile.Domain
	dumps, gets, writes *uint64
}

func (c counting) Close() error {
	d, g, w := c.Domain.(interface {
		Counters() (dumps, gets, writes uint64)
	}).Counters()
	*c.dumps += d
	*c.gets += g
	*c.writes += w
	return c.Domain.Close()
}
