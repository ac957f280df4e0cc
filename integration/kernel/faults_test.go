package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/hostports"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

// scenario is an input of the matrix of crashes and faults: a sandbox with objects of
// the pod in it, an edit of its topology, and a disturbance.
type scenario struct {
	name        string
	pod         string // commands in the namespace
	before, end string // commands on the host, before and after it
	steps       string
	edited      string
	disturbance string
	devices     map[string]string // "PF/n" of root steps
	// filters are those of the pod's NetworkQoS, and those after the edit.
	filters, editedFilters []netstate.Filter
}

var scenarios = []scenario{
	{
		name: "links",
		pod:  firstNetwork,
		steps: `
    - {name: a, type: dummy, config: {name: a0, mac: "02:00:00:00:00:01"}}
    - {name: b, type: dummy, config: {name: b0, mac: "02:00:00:00:00:02"}}
    - {name: bond, type: bond, dependOn: [a, b], config: {name: bond0, mode: active-backup, miimon: 100}}
    - {name: data, type: vlan, dependOn: [bond], config: {id: 100, name: data0, mtu: 2000, addresses: [192.0.2.5/24, "2001:db8::5/64"], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1}]}}
    - {name: tune, type: tuning, dependOn: [data], config: {sysctl: {net.ipv4.conf.IFNAME.rp_filter: 2}}}
`,
		edited: `
    - {name: a, type: dummy, config: {name: a0, mac: "02:00:00:00:00:01"}}
    - {name: b, type: dummy, config: {name: b0, mac: "02:00:00:00:00:02"}}
    - {name: bond, type: bond, dependOn: [a, b], config: {name: bond0, mode: active-backup, miimon: 50}}
    - {name: data, type: vlan, dependOn: [bond], config: {id: 101, name: data0, mtu: 1800, addresses: [192.0.2.6/24]}}
    - {name: blue, type: vrf, dependOn: [data], config: {vrfname: blue, table: 9}}
`,
		disturbance: `$ip link set b0 nomaster; $ip link delete data0; $ip link set bond0 type bond miimon 70`,
	},
	{
		name:    "function",
		devices: map[string]string{"vf": "enp3s0f0/2"},
		steps: `
    - {name: vf, type: sriov, config: {vlan: 7, mac: "02:00:00:00:00:0a", trust: on, mtu: 2000, addresses: [192.0.2.10/24]}}
    - {name: up, type: vlan, dependOn: [vf], config: {id: 9, name: up0}}
    - {name: tune, type: tuning, dependOn: [vf], config: {txQLen: 500, ethtool: {features: {tso: false}}}}
`,
		edited: `
    - {name: vf, type: sriov, config: {vlan: 8, mac: "02:00:00:00:00:0b", trust: on, mtu: 1800, addresses: [192.0.2.11/24]}}
    - {name: up, type: vlan, dependOn: [vf], config: {id: 10, name: up0}}
`,
		disturbance: `ip link set enp3s0f0 vf 2 vlan 99; $ip link set net1 down; $ip link set net1 name eth9; $ip link delete up0`,
	},
	{
		name:    "user space",
		pod:     "modprobe -a vfio-pci uio_pci_generic",
		devices: map[string]string{"dpdk": "enp3s0f0/3"},
		steps: `
    - {name: dpdk, type: vfio-pci, config: {vlan: 7, mac: "02:00:00:00:00:0c", trust: on}}
    - {name: a, type: dummy, config: {name: a0}}
`,
		edited: `
    - {name: dpdk, type: vfio-pci, config: {vlan: 8, driver: uio_pci_generic, allowUnprotectedDMA: true}}
    - {name: a, type: dummy, config: {name: a0, mtu: 1400}}
`,
		filters:       limitAll(300),  // on the physical function, and by tc on the other link
		editedFilters: limitAll(2000), // above the speed of its link: by tc alone
		disturbance:   `ip link set enp3s0f0 vf 3 vlan 99 max_tx_rate 0; $ip link delete a0` + reboundFunction,
	},
	{
		name:    "soft RoCE",
		pod:     "modprobe -a rdma_rxe ib_uverbs rdma_ucm",
		before:  "rdma link add rxe9 type rxe netdev $(ls /sys/class/net/enp3s0f0/device/virtfn3/net)",
		end:     "rdma link delete rxe9 2>/dev/null || true",
		devices: map[string]string{"vf": "enp3s0f0/3"},
		steps: `
    - {name: vf, type: sriov, config: {name: rail0, addresses: [192.0.2.10/24]}}
    - {name: roce, type: rxe, dependOn: [vf]}
`,
		edited: `
    - {name: vf, type: sriov, config: {name: rail0, addresses: [192.0.2.11/24]}}
    - {name: a, type: dummy, config: {name: a0}}
    - {name: roce, type: rxe, dependOn: [a]}
`,
		disturbance: rdmaOn("rail0") + `rdma dev set $R name mine0; $ip link set rail0 down`,
	},
	{
		name: "filters",
		steps: `
    - {name: a, type: dummy, config: {name: a0, addresses: [192.0.2.5/24]}}
`,
		edited: `
    - {name: a, type: dummy, config: {name: a0, addresses: [192.0.2.6/24]}}
`,
		filters:       []netstate.Filter{marking(20000, "198.51.100.0/24", 26, 1_250_000), marking(20002, "", 8, 0)},
		editedFilters: []netstate.Filter{marking(20000, "198.51.100.0/24", 26, 2_500_000), marking(20004, "203.0.113.0/24", 10, 0)},
		disturbance:   `tc -n $NS filter del dev a0 egress pref 20002; $ip link set a0 down; $ip link set a0 name b0`,
	},
}

// What others do to the last function of the first card: they go to its directory, and
// give it the driver that its IDs choose.
const (
	atFunction      = `cd /sys/bus/pci/devices/$(basename $(readlink /sys/class/net/enp3s0f0/device/virtfn3)); `
	reboundFunction = `; ` + atFunction + `echo ${PWD##*/} >driver/unbind; echo >driver_override; echo ${PWD##*/} >/sys/bus/pci/drivers_probe`
)

// acts are the operations that may be in progress when something fails.
var acts = []string{"attach", "repair", "update", "release"}

// fixture is a running scenario.
type fixture struct {
	*lane
	*foreignWriter
	scenario
	path        string
	sandbox     reconcile.Sandbox
	edit        reconcile.Sandbox // the same with the edited topology
	start, home *netstate.Snapshot
	odd         string
	undisturbed *reconcile.Reconciler // nothing happens to it
}

func (p scenario) fixture(t *testing.T) *fixture {
	t.Helper()
	l, path, other := newLane(t), newNetns(t), newNetns(t)
	s := &fixture{lane: l, foreignWriter: &foreignWriter{t, filepath.Base(path), filepath.Base(other)}, scenario: p, path: path}
	s.run("ip -n $NS link set lo up")
	s.inside(p.pod)
	if p.before != "" {
		s.run(p.before)
		t.Cleanup(func() { s.run(p.end) })
	}
	s.sandbox = box(path, parse(t, "t", p.steps))
	s.sandbox.Given = ops.Givens{}.WithDevices(functions(t, p.devices))
	l.devices = append([]string{}, slices.Sorted(maps.Values(s.sandbox.Given.Devices()))...) // none is not all
	s.sandbox.Filters = p.filters
	s.edit = s.sandbox
	s.edit.Topology, s.edit.Filters = parse(t, "t", p.edited), p.editedFilters
	s.start, s.home, s.odd = l.state(path), l.state(""), s.details()
	s.undisturbed = l.engine(nil)
	return s
}

// eachScenario runs f for the given scenarios that this lane supports, and for every act, or every
// fourth one in the short form.
func eachScenario(t *testing.T, scenarios []scenario, f func(t *testing.T, s *fixture, act string)) {
	t.Helper()
	for _, p := range scenarios {
		if p.devices != nil && !hasCards() {
			continue // no PCI there; the other lane runs it
		}
		t.Run(p.name, func(t *testing.T) {
			for _, act := range effort.Sample(t, 4, acts) {
				t.Run(act, func(t *testing.T) {
					s := p.fixture(t)
					host := s.machine()
					f(t, s, act)
					if now := s.machine(); now != host {
						t.Errorf("the host was\n%sand is\n%s", host, now)
					}
					if odd := s.details(); odd != s.odd {
						t.Errorf("rules and queues were\n%sand are\n%s", s.odd, odd)
					}
				})
			}
		})
	}
}

// prepare brings about what an act begins with.
func (s *fixture) prepare(act string) {
	s.lane.t.Helper()
	if act == "attach" {
		return
	}
	if _, err := s.undisturbed.Ensure(ctxFor(s.lane.t), s.sandbox); err != nil {
		s.lane.t.Fatal(err)
	}
	if act == "repair" {
		s.run(s.disturbance)
	}
}

// act does it.
func (s *fixture) act(act string, r *reconcile.Reconciler) (err error) {
	ctx := ctxFor(s.lane.t)
	switch act {
	case "attach":
		_, err = r.Ensure(ctx, s.sandbox)
	case "repair":
		_, err = r.Repair(ctx, s.sandbox.ID)
	case "update":
		_, err = r.Ensure(ctx, s.edit)
	default:
		_, err = r.Release(ctx, s.sandbox.ID)
	}
	return err
}

// invariants hold after whatever has happened: the sandbox agrees with its record, or the
// engine says clearly that it is not; nothing that is the pod's was touched, no device is
// lost, and the host is unchanged, except for the devices of the sandbox. Then it recovers,
// in turn by the same act, by a repair and by a release, and in the end everything is as it
// was at first.
func (s *fixture) invariants(act, when string, turn int) {
	t := s.lane.t
	t.Helper()
	s.consistent(when)
	s.untouched(when)
	rec, known, err := s.record()
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	wanted := s.sandbox
	if act == "update" {
		wanted = s.edit
	}
	how := [...]string{"again", "repair", "release"}[turn%3]
	switch {
	case act == "release", how == "release":
		how = "release"
	case how == "repair" && known && rec.Phase != reconcile.Releasing:
		wanted = rec.Sandbox
		_, err = s.undisturbed.Repair(ctxFor(t), wanted.ID)
	default:
		_, err = s.undisturbed.Ensure(ctxFor(t), wanted)
	}
	if err != nil {
		t.Fatalf("%s: recover (%s): %v", when, how, err)
	}
	if how != "release" {
		s.checkIntact(wanted, fmt.Sprintf("%s, recovered (%s)", when, how))
		s.untouched(when)
	}
	s.over(when)
}

// record is the sandbox's record, by a reader of its own.
func (s *fixture) record() (reconcile.Record, bool, error) {
	store, err := journal.Open(s.dir)
	if err != nil {
		return reconcile.Record{}, false, err
	}
	return store.Get(s.sandbox.ID)
}

// checkIntact asserts that a sandbox matches its topology in each field, and
// that nothing would be written.
func (s *fixture) checkIntact(sb reconcile.Sandbox, when string) {
	t := s.lane.t
	t.Helper()
	st, err := s.undisturbed.Check(ctxFor(t), sb.ID)
	if err != nil || st.State != reconcile.InSync {
		t.Fatalf("%s: %v, %s %s\n%s", when, err, st.State, st.Failure, summary(st.Drift))
	}
	if rep, err := s.undisturbed.Ensure(ctxFor(t), sb); err != nil || len(rep.Changes) > 0 {
		t.Fatalf("%s: applied again: %v, %v", when, err, rep.Changes)
	}
}

// consistent asserts that the engine's report on the sandbox is true.
func (s *fixture) consistent(when string) {
	t := s.lane.t
	t.Helper()
	_, known, err := s.record()
	if err != nil {
		t.Fatalf("%s: record: %v", when, err)
	}
	if !known {
		s.mustEqual(s.start, s.path, when+", and no record is left")
		return
	}
	st, err := s.undisturbed.Check(ctxFor(t), s.sandbox.ID)
	switch {
	case err != nil:
		t.Fatalf("%s: check: %v", when, err)
	case st.State == reconcile.StateFailed && (st.Failure == "" || st.Kind == fault.Internal):
		t.Fatalf("%s: failed, and says %q, of kind %q", when, st.Failure, st.Kind)
	}
}

// untouched asserts that what was in the namespace before is there, and that the
// host and its devices are unchanged, or in the sandbox.
func (s *fixture) untouched(when string) {
	t := s.lane.t
	t.Helper()
	inside := s.state(s.path)
	for _, d := range netstatetest.Differences(s.start, inside) {
		if !strings.HasPrefix(d, "+ ") && !s.moved(d) {
			t.Fatalf("%s: what is the pod's: %s", when, d)
		}
	}
	now := s.state("")
	for _, d := range netstatetest.Differences(s.home, now) {
		if !s.moved(d) {
			t.Fatalf("%s: on the host: %s", when, d)
		}
	}
	for _, id := range s.sandbox.Given.Devices() {
		if lost(inside, id) {
			t.Fatalf("%s: device %q is nowhere", when, id)
		}
	}
}

// lost reports whether a device has no interface in sight, though its driver makes one.
func lost(s *netstate.Snapshot, id string) bool {
	if d, ok := s.Device(id); !ok || d.At != nil {
		return !ok
	}
	b, ok := netstate.Lookup(s, netstate.Binding{ID: id})
	return !ok || *b.Driver != "" && !netstate.UserspaceDriver(*b.Driver)
}

// moved reports whether a difference is about a device of the sandbox.
func (s *fixture) moved(diff string) bool {
	for _, id := range s.sandbox.Given.Devices() {
		if strings.Contains(diff, id) {
			return true
		}
	}
	return false
}

// over releases the sandbox, and asserts that nothing is left of it.
func (s *fixture) over(when string) {
	t := s.lane.t
	t.Helper()
	if _, err := s.undisturbed.AwaitRelease(ctxFor(t), s.sandbox.ID); err != nil {
		t.Fatalf("%s: release: %v", when, err)
	}
	s.mustEqual(s.start, s.path, when+", released")
	s.mustEqual(s.home, "", when+", released")
	records, errs := s.undisturbed.List()
	if len(records) > 0 || len(errs) > 0 {
		t.Fatalf("%s: left: %v, %v", when, records, errs)
	}
}

var errDead = errors.New("the process is dead")

// process is the process of an engine: when it has ended, nothing the engine does reaches
// the kernel or the disk any more.
type process struct{ dead bool }

type killableDomain struct {
	reconcile.Domain
	*process
	// changed is called after each change; it may end the life.
	changed func()
}

func (d killableDomain) Apply(ctx context.Context, c netstate.Change) error {
	if d.dead {
		return errDead
	}
	err := d.Domain.Apply(ctx, c)
	if d.changed(); d.dead {
		return errDead
	}
	return err
}

// ApplyAll is one change.
func (d killableDomain) ApplyAll(ctx context.Context, all []netstate.Change) error {
	if d.dead {
		return errDead
	}
	b, batches := d.Domain.(reconcile.Batcher)
	if !batches {
		return errors.New("changes are made one by one")
	}
	err := b.ApplyAll(ctx, all)
	if d.changed(); d.dead {
		return errDead
	}
	return err
}

func (d killableDomain) Observe(ctx context.Context, ask []netstate.Object) (*netstate.Snapshot, error) {
	if d.dead {
		return nil, errDead
	}
	return d.Domain.Observe(ctx, ask)
}

func (d killableDomain) Extend(ctx context.Context, s *netstate.Snapshot, ask []netstate.Object) error {
	if d.dead {
		return errDead
	}
	return d.Domain.Extend(ctx, s, ask)
}

// killableStore calls writing around each write: with the write, which it may do, damage,
// or omit.
type killableStore struct {
	reconcile.Store
	*process
	writing func(write func() error) error
}

func (s killableStore) write(f func() error) error {
	if s.dead {
		return errDead
	}
	err := s.writing(f)
	if s.dead {
		return errDead
	}
	return err
}

func (s killableStore) Put(r reconcile.Record) error {
	return s.write(func() error { return s.Store.Put(r) })
}

func (s killableStore) Intend(id reconcile.SandboxID, changes []netstate.Change) error {
	return s.write(func() error { return s.Store.Intend(id, changes) })
}

func (s killableStore) Settle(r reconcile.Record) error {
	return s.write(func() error { return s.Store.Settle(r) })
}

func (s killableStore) Remove(id reconcile.SandboxID) error {
	return s.write(func() error { return s.Store.Remove(id) })
}

// killableEngine returns an engine with a life of its own. changed and writing may be nil.
func (l *lane) killableEngine(life *process, changed func(), writing func(write func() error) error) *reconcile.Reconciler {
	l.t.Helper()
	if changed == nil {
		changed = func() {}
	}
	if writing == nil {
		writing = func(write func() error) error { return write() }
	}
	store, reg, err := parts(l.dir)
	if err != nil {
		l.t.Fatal(err)
	}
	return reconcile.New(reconcile.Options{
		Registry: reg, Store: killableStore{store, life, writing}, BootID: l.host.BootID(), Before: []reconcile.Before{hostports.Before},
		Open: func(path string) (reconcile.Domain, error) {
			if life.dead {
				return nil, errDead
			}
			d, err := open(l.host, path)
			return killableDomain{d, life, changed}, err
		},
		External: []reconcile.ExternalDomain{
			bindings(func(d reconcile.Domain) reconcile.Domain { return killableDomain{d, life, changed} }),
			wrapped(leases(l.host, l.dir).Domain(), func(d reconcile.Domain) reconcile.Domain { return killableDomain{d, life, changed} }),
		},
	})
}

// TestFailureAtEveryChange: any change of any act fails once. A repair keeps what
// works, all else is as it was before. The short form takes every forty-seventh change of every fourth act.
func TestFailureAtEveryChange(t *testing.T) {
	eachScenario(t, scenarios, func(t *testing.T, s *fixture, act string) {
		if act == "attach" && len(s.sandbox.Given.Devices()) > 0 {
			return // TestEveryChangeFailsOnce
		}
		first, stride := effort.Stride(t, 47)
		for n, reached := first, true; reached; n += stride {
			s.prepare(act)
			before := s.state(s.path)
			applied := 0
			err := s.act(act, s.engine(func(d reconcile.Domain) reconcile.Domain {
				return faulty{Domain: d, applied: &applied, at: n, before: func() error { return errInjected }}
			}))
			when := fmt.Sprintf("%s, change %d failed", act, n)
			switch reached = applied >= n; {
			case err == nil && act != "release" && reached:
				t.Fatalf("%s: it says nothing", when)
			case err != nil && !errors.Is(err, errInjected):
				t.Fatalf("%s: %v", when, err)
			case err != nil && (act == "attach" || act == "update"):
				s.mustEqual(before, s.path, when)
			case err != nil && act == "repair":
				if rec, _, _ := s.record(); rec.Phase != reconcile.Failed || !strings.Contains(rec.Failure, errInjected.Error()) {
					t.Fatalf("%s: the record says %s: %q", when, rec.Phase, rec.Failure)
				}
			}
			s.invariants(act, when, n/stride)
		}
	})
}

// diesAtEveryChange ends the process after any change of an act, in the short form after every eighth.
func diesAtEveryChange(t *testing.T, s *fixture, act string) {
	t.Helper()
	first, stride := effort.Stride(t, 8)
	for n, reached := first, true; reached; n += stride {
		s.prepare(act)
		life, made := &process{}, 0
		err := s.act(act, s.killableEngine(life, func() { made++; life.dead = made == n }, nil))
		if reached = life.dead; !reached && err != nil {
			t.Fatal(err)
		}
		s.invariants(act, fmt.Sprintf("%s, dead after change %d", act, n), n)
	}
}

// TestKilledInRepairAndUpdate is that with a real process and a real signal. The short
// form takes every twelfth change.
func TestKilledInRepairAndUpdate(t *testing.T) {
	for _, act := range []string{"repair", "update"} {
		t.Run(act, func(t *testing.T) {
			s := scenarios[0].fixture(t)
			first, stride := effort.Stride(t, 12)
			for n, reached := first, true; reached; n += stride {
				s.prepare(act)
				spec := childSpec{Sandbox: s.sandbox, Dir: s.dir, At: n, Repair: act == "repair"}
				if act == "update" {
					spec.Sandbox = s.edit
				}
				reached = s.runKilled(childEnv, spec)
				s.invariants(act, fmt.Sprintf("%s, killed after change %d", act, n), n/stride)
			}
		})
	}
}

// tearParts is into how many parts a write is torn: each is a passage through
// the whole act.
const tearParts = 3

// tear lets a write of the journal happen by so many parts of what it adds, and
// reports whether that was all of it.
func (l *lane) tear(write func() error, part int) (whole bool) {
	l.t.Helper()
	before := l.files()
	if err := write(); err != nil {
		l.t.Fatal(err)
	}
	after := l.files()
	for name, now := range after {
		was, old := before[name]
		switch {
		case old && bytes.Equal(was, now):
		case old && bytes.HasPrefix(now, was): // appended to
			cut := len(was) + (len(now)-len(was))*part/tearParts
			if err := os.Truncate(filepath.Join(l.dir, name), int64(cut)); err != nil {
				l.t.Fatal(err)
			}
			return part == tearParts
		default: // a new file, which gets its name last
			if part == tearParts {
				return true
			}
			if err := os.WriteFile(filepath.Join(l.dir, strings.TrimSuffix(name, ".journal")+".new"), now[:len(now)*part/tearParts], 0o600); err != nil {
				l.t.Fatal(err)
			}
			l.restore(name, was, old)
			return false
		}
	}
	for name, was := range before {
		if _, there := after[name]; !there && part == 0 { // removed: a name is there, or it is not
			l.restore(name, was, true)
			return false
		}
	}
	return true
}

func (l *lane) restore(name string, content []byte, there bool) {
	l.t.Helper()
	path := filepath.Join(l.dir, name)
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if there {
		err = errors.Join(err, os.WriteFile(path, content, 0o600))
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// files reads the journal's logs.
func (l *lane) files() map[string][]byte {
	l.t.Helper()
	out := map[string][]byte{}
	paths, _ := filepath.Glob(filepath.Join(l.dir, "*.journal"))
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			l.t.Fatal(err)
		}
		out[filepath.Base(p)] = b
	}
	return out
}

// errnos are errors that are no fault of the engine: when a message is refused,
// or when what the kernel answered is lost. It does not refuse what it has done.
func errnos(lost bool) []unix.Errno {
	if lost {
		return []unix.Errno{unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM}
	}
	return []unix.Errno{unix.EBUSY, unix.ENODEV, unix.EINTR, unix.ENOBUFS, unix.ENOMEM}
}

// disturbed returns an engine, one of whose messages fails: the nth that counts.
// lost: the kernel applies the request, and its answer is lost.
func (l *lane) disturbed(n int64, lost bool, errno unix.Errno) (r *reconcile.Reconciler, fired func() bool) {
	l.t.Helper()
	var count atomic.Int64
	host, err := kernel.Open(kernel.Options{Disturb: func(m kernel.Message) error {
		if m.Answered == lost && (m.Write || !lost) && count.Add(1) == n {
			return errno
		}
		return nil
	}})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { host.Close() })
	if r, err = engine(host, l.dir, nil); err != nil {
		l.t.Fatal(err)
	}
	return r, func() bool { return count.Load() >= n }
}

// machine has the host's objects that no sandbox may touch: its links by name, its
// addresses, routes, rules and RDMA devices, without those that are made in pods: these may still be ending.
func (s *foreignWriter) machine() string {
	s.t.Helper()
	return s.run(`ls -d /sys/class/net/*/; ip -4 -o address; ip route; ip rule; ls /sys/class/infiniband 2>/dev/null | grep -v ^pl || true`)
}
