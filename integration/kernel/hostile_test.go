package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/hostports"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

// What the law allows.
const (
	// passTime bounds a pass over the attacker's sandbox, whatever it does.
	passTime = patience
	// returnTime bounds how long after the end of all its namespaces its devices are
	// on the host, as they were. A virtual function may reset itself meanwhile.
	returnTime = patience
	// heapGrowth bounds what is left in memory after an episode, passBytes what a pass
	// allocates in all.
	heapGrowth = 32 << 20
	passBytes  = 256 << 20
)

// realCard reports whether the attacker is given a virtual function; otherwise a link
// represents the card. On the backports kernel igbvf blocks the lock for links forever
// when its link is closed within a reset, which an attacker can cause about soon
// (integration/README.md, pitfalls).
func realCard() bool { return hasCards() && os.Getenv("PLUMBLINE_KERNEL") != "backports" }

// hostile is a run in which one pod after the other is hostile.
type hostile struct {
	*lane
	rng     *rand.Rand
	seed    uint64
	story   []string
	devices map[string]string // of the attacker's root steps
	before  hostState
	heap    uint64
	// beside is another pod's sandbox, which costs so many messages to check.
	beside   reconcile.Sandbox
	messages uint64
	own      *kernel.Host // of the engine, closed when it is restarted
	engine   *reconcile.Reconciler
	cancel   context.CancelFunc // of the last context
	steps    int
}

// TestHostilePod: whatever the owner of a namespace does there, before, between and during
// passes: the host is unchanged except for what is recorded, its devices return unchanged
// or the record has the reason, another sandbox costs what it did, and the engine stays
// small.
func TestHostilePod(t *testing.T) {
	// The short form is for every change and uses the same seed each time; the long form
	// uses new ones.
	length, seed := effort.Duration(t, 10*time.Second), uint64(1)
	if effort.Long() {
		seed = effort.Seed(t)
	}
	h := &hostile{lane: newLane(t), rng: rand.New(rand.NewPCG(seed, 0)), seed: seed, devices: map[string]string{"nic": virtualCard(t, "nic0")}}
	if realCard() {
		h.devices = functions(t, map[string]string{"nic": "enp3s0f0/2"})
	}
	h.restart()
	h.beside = box(newNetns(t), parse(t, "beside", "    - {name: br, type: bridge, config: {name: br0}}\n"))
	if _, err := h.engine.Ensure(ctxFor(t), h.beside); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := h.engine.AwaitRelease(ctxFor(t), h.beside.ID); err != nil { // else the guard of its port stays
			t.Error(err)
		}
	}()
	h.messages = h.besideCosts()
	loadModules(t)
	h.before = readHost(t, true)
	h.heap = heapNow()
	episodes := 0
	for end := time.Now().Add(length); time.Now().Before(end); episodes++ {
		h.episode()
	}
	t.Logf("%d pods, %d steps", episodes, h.steps)
}

// loadModules loads the modules that a pod makes the kernel load when it makes a link
// of a kind. They change every namespace: ip_gre makes links in each.
func loadModules(t *testing.T) {
	t.Helper()
	path := newNetns(t)
	err := kernel.Within(path, func() error {
		for _, kind := range slices.Concat(kinds, stackedKinds) {
			_ = netlink.LinkAdd(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "own0", TxQLen: -1}, LinkType: kind}) // some need more than a name
			_, err := netlink.LinkByName("own0")
			if err == nil {
				err = netlink.LinkDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "own0"}})
			}
			if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	deleteNetns(path)
}

func (h *hostile) fatal(format string, args ...any) {
	h.t.Helper()
	h.t.Fatalf("%s\n%s\nagain with PLUMBLINE_SEED=%d", fmt.Sprintf(format, args...), strings.Join(h.story[max(0, len(h.story)-200):], "\n"), h.seed)
}

// logStep keeps the last steps, for a failure.
func (h *hostile) logStep(format string, args ...any) {
	const most = 200
	if len(h.story) > 2*most {
		h.story = slices.Clone(h.story[len(h.story)-most:])
	}
	h.story = append(h.story, fmt.Sprintf(format, args...))
}

// restart replaces the engine by one that knows no more than the journal.
func (h *hostile) restart() {
	h.t.Helper()
	if h.own != nil {
		h.own.Close()
	}
	var err error
	if h.own, err = kernel.Open(kernel.Options{Bounds: h.bounds()}); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { h.own.Close() })
	store, reg, err := parts(h.dir)
	if err != nil {
		h.t.Fatal(err)
	}
	h.engine = reconcile.New(reconcile.Options{
		Registry: reg, Store: store, BootID: h.own.BootID(), Patience: time.Second, Before: []reconcile.Before{hostports.Before},
		Open: func(path string) (reconcile.Domain, error) { return open(h.own, path) },
	})
}

// bounds are the real ones for some engines, and small ones that an attacker passes
// at once for others.
func (h *hostile) bounds() kernel.Bounds {
	if h.rng.IntN(2) == 0 {
		return kernel.Bounds{}
	}
	return kernel.Bounds{Links: 100, Addresses: 150, Routes: 400}
}

// floods is how much an attacker makes of what it makes many of. It is ten times as
// much of routes, which passes the real bound.
const floods = 2000

// hostileVersions are the versions of the attacker's topology, to which it is edited. The one with allmulti
// sets what a device's record holds too, and what the pod may have set before.
var hostileVersions = []string{
	"    - {name: nic, type: TYPE, config: {mtu: 1400, addresses: [192.0.2.10/24]}}\n",
	"    - {name: nic, type: TYPE, config: {addresses: [192.0.2.11/24], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1}]}}\n",
	"    - {name: nic, type: TYPE, config: {mtu: 1400, addresses: [192.0.2.10/24, \"2001:db8::5/64\"]}}\n    - {name: tune, type: tuning, dependOn: [nic], config: {sysctl: {net.ipv4.conf.IFNAME.rp_filter: 2}}}\n",
	"    - {name: nic, type: TYPE, config: {addresses: [192.0.2.10/24]}}\n    - {name: tune, type: tuning, dependOn: [nic], config: {txQLen: 500, allmulti: true}}\n",
	"    - {name: nic, type: TYPE, config: {addresses: [192.0.2.10/24]}}\n    - {name: m, type: vxlan, dependOn: [nic], config: {id: 4103, name: own0, remotes: [192.0.2.6, 192.0.2.7], addresses: [198.51.100.5/24]}}\n",
}

func (h *hostile) version(path string) reconcile.Sandbox {
	typ := "host-device"
	if realCard() && h.rng.IntN(2) == 0 {
		typ = "sriov"
	}
	sb := box(path, parse(h.t, "t", strings.ReplaceAll(pick(h.rng, hostileVersions), "TYPE", typ)))
	sb.Given = ops.Givens{}.WithDevices(h.devices)
	if h.rng.IntN(2) == 0 {
		sb.Filters = []netstate.Filter{marking(20000, "198.51.100.0/24", 26, 1_250_000), marking(20002, "", 8, 0)}
	}
	return sb
}

// episode is the life of a pod.
func (h *hostile) episode() {
	path := newNetns(h.t)
	in := newAttacker(h.t, path, slices.Collect(maps.Values(h.devices)), h.names(), floods)
	sb := h.version(path)
	h.logStep("pod %s", filepath.Base(path))
	h.actions(in, h.rng.IntN(3))
	h.pass(in, "attach", func() error { _, err := h.engine.Ensure(h.ctx(), sb); return err })
	for range 2 + h.rng.IntN(8) {
		h.actions(in, 1+h.rng.IntN(4))
		switch h.rng.IntN(8) {
		case 0:
			h.restart()
			h.logStep("engine restarted")
		case 1, 2:
			h.pass(in, "check", func() error { _, err := h.engine.Check(h.ctx(), sb.ID); return err })
		case 3:
			edit := h.version(path)
			h.pass(in, "update", func() error { _, err := h.engine.Ensure(h.ctx(), edit); return err })
		default:
			h.pass(in, "repair", func() error { _, err := h.engine.Repair(h.ctx(), sb.ID); return err })
		}
		h.law(sb.ID, false)
	}
	h.end(in, sb)
	if now := heapNow(); now > h.heap+heapGrowth {
		h.fatal("%d MiB in use after an episode, %d before the first", now>>20, h.heap>>20)
	}
}

// names are those that have a meaning for some program.
func (h *hostile) names() []string {
	return []string{"net1", "net2", "up0", "br0", "nic0", "eth0", "enp3s0f0", "enp3s0f0v2", "enp3s0f1", "own0"}
}

// actions lets the attacker do something.
func (h *hostile) actions(in *attacker, times int) {
	for range times {
		what, err := in.act(h.rng, actions)
		h.logStep("  %s (%v)", what, err)
		h.steps++
	}
}

// pass does something to the sandbox, half of the time while the attacker continues.
func (h *hostile) pass(in *attacker, what string, do func() error) {
	h.t.Helper()
	h.steps++
	var before, after runtime.MemStats
	took := time.Duration(0)
	timed := func() error {
		start := time.Now()
		defer func() { took = time.Since(start) }()
		return do()
	}
	if h.rng.IntN(2) == 0 {
		runtime.ReadMemStats(&before)
		err := timed()
		runtime.ReadMemStats(&after)
		h.logStep("%s (%v)", what, err)
		if bytes := after.TotalAlloc - before.TotalAlloc; bytes > passBytes {
			h.fatal("%s allocated %d MiB", what, bytes>>20)
		}
	} else {
		err := h.meanwhile(in, timed)
		h.logStep("%s, while the attacker continues (%v)", what, err)
	}
	if took > passTime {
		h.fatal("%s took %v", what, took)
	}
}

// meanwhile does something while the attacker acts.
func (h *hostile) meanwhile(in *attacker, do func() error) error {
	rng, stop := rand.New(rand.NewPCG(h.rng.Uint64(), 1)), make(chan struct{})
	var wg sync.WaitGroup
	var done []string
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				what, err := in.act(rng, actions)
				done = append(done, fmt.Sprintf("  meanwhile %s (%v)", what, err))
			}
		}
	})
	err := do()
	close(stop)
	wg.Wait()
	h.steps += len(done)
	for _, line := range done {
		h.logStep("%s", line)
	}
	return err
}

// law asserts what holds at any time: the host is unchanged, except for the devices of
// the sandbox while there is a record of it, and the cost of the other sandbox is
// unchanged. Settings are compared where there is no record.
func (h *hostile) law(id reconcile.SandboxID, settings bool) {
	h.t.Helper()
	_, known, err := h.engine.Record(id)
	if err != nil {
		h.fatal("record: %v", err)
	}
	var diff []string
	for end := time.Now().Add(returnTime); ; {
		diff = h.before.differs(readHost(h.t, settings), func(what string) bool {
			return !settings && (unread(what) || h.moved(what) && strings.HasSuffix(what, promiscuityCount)) || known && h.moved(what)
		})
		if len(diff) == 0 || time.Now().After(end) {
			break // a virtual function reports what it is with delay
		}
	}
	if len(diff) > 0 {
		h.fatal("on the host (record: %v):\n%s", known, strings.Join(diff, "\n"))
	}
	if now := h.besideCosts(); now != h.messages {
		h.fatal("to check the other sandbox costs %d messages, %d before", now, h.messages)
	}
}

// promiscuityCount ends the name of a link's IFLA_PROMISCUITY: see replaceCard.
const promiscuityCount = " attribute 30"

// unread are the fields that are not compared each time.
func unread(what string) bool {
	if strings.HasPrefix(what, "sysctl ") {
		return true
	}
	link, rest, _ := strings.Cut(strings.TrimPrefix(what, "link "), " ")
	return link != what && rest != "" && !strings.HasPrefix(rest, "attribute")
}

// moved reports whether a difference is about a device of the attacker's sandbox.
func (h *hostile) moved(what string) bool {
	for _, mine := range []string{"link nic0 ", "link enp3s0f0v2 ", "function enp3s0f0/2 ", "/nic0/", "/enp3s0f0v2/"} {
		if strings.Contains(what+" ", mine) {
			return true
		}
	}
	return false
}

// besideCosts checks the other sandbox and returns the messages it took.
func (h *hostile) besideCosts() uint64 {
	h.t.Helper()
	var dumps, gets, writes uint64
	r := h.lane.engine(func(d reconcile.Domain) reconcile.Domain { return counting{d, &dumps, &gets, &writes} })
	if st, err := r.Check(h.ctx(), h.beside.ID); err != nil || st.State != reconcile.InSync {
		h.fatal("the other sandbox: %v, %s: %s", err, st.State, st.Failure)
	}
	if writes > 0 {
		h.fatal("a check has written")
	}
	return dumps + gets
}

// end ends the pod: its sandbox is released, then its namespace goes, then what it
// has given to others, and then at the latest its devices are back.
func (h *hostile) end(in *attacker, sb reconcile.Sandbox) {
	h.t.Helper()
	release := func() error { return h.release(sb.ID) }
	h.pass(in, "release", func() error { return h.consistent(sb.ID, release()) })
	h.law(sb.ID, false)
	if _, known, _ := h.engine.Record(sb.ID); !known {
		h.clear(in)
	}
	deleteNetns(in.path)
	h.logStep("its namespace is deleted (%v)", h.consistent(sb.ID, release()))
	if realCard() { // a virtual one may have gone with it
		h.law(sb.ID, false)
	}
	in.release()
	for _, path := range in.nested {
		deleteNetns(path)
	}
	err := h.awaitRelease(sb.ID)
	if err != nil && strings.Contains(err.Error(), resettable) {
		h.logStep("reset for %v", err)
		h.resetCard()
	}
	h.replaceCard()
	if err = h.awaitRelease(sb.ID); err != nil {
		h.fatal("nothing of the pod is left, and its release fails: %v", err)
	}
	h.law(sb.ID, true)
}

// release releases a sandbox. That a device is not clean is an error here: the record
// says why, and the device is tainted for it.
func (h *hostile) release(id reconcile.SandboxID) error {
	h.t.Helper()
	rep, err := h.engine.Release(h.ctx(), id)
	if err != nil || rep.Unclean == "" {
		return err
	}
	if rec, _, _ := h.engine.Record(id); rec.Failure != rep.Unclean {
		h.fatal("the release says %q, and the record %q", rep.Unclean, rec.Failure)
	}
	return fault.New(fault.NotReady, errors.New(rep.Unclean))
}

// consistent returns the error of a release, which explains why the record still exists.
func (h *hostile) consistent(id reconcile.SandboxID, err error) error {
	h.t.Helper()
	rec, known, failed := h.engine.Record(id)
	switch {
	case failed != nil:
		h.fatal("record: %v", failed)
	case err == nil && known:
		h.fatal("released, and there is a record")
	case err != nil && (!known || rec.Phase != reconcile.Releasing || fault.Of(err) == fault.Internal):
		h.fatal("not released: %v (%s), and the record is there: %v, %s", err, fault.Of(err), known, rec.Phase)
	}
	return err
}

// clear asserts that no link of the pod is on a device that was returned,
// wherever it is: a macvlan in passthru mode can only be made where nothing else
// receives for the device, and a link says which link of which namespace it stands on.
func (h *hostile) clear(in *attacker) {
	h.t.Helper()
	var returned []int
	for _, name := range []string{"nic0", "enp3s0f0v2"} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			continue
		}
		returned = append(returned, l.Attrs().Index)
		probe := &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "probe0", ParentIndex: l.Attrs().Index, TxQLen: -1}, Mode: netlink.MACVLAN_MODE_PASSTHRU}
		if err := netlink.LinkAdd(probe); err != nil {
			h.fatal("something of the pod stands on %q, which was returned: %v", name, err)
		}
		if err := netlink.LinkDel(probe); err != nil {
			h.fatal("%v", err)
		}
	}
	for _, path := range append([]string{in.path}, in.nested...) {
		for _, l := range h.standingOnHost(path) {
			if slices.Contains(returned, l.lower) {
				h.fatal("link %q of the pod stands on a device that was returned", l.name)
			}
		}
	}
}

// standsOn is a link of a namespace that stands on a link of the host.
type standsOn struct {
	name  string
	lower int // index in the host's namespace
}

// standingOnHost returns the links of a namespace whose lower link is one of the host.
// Names say nothing: a pod gives those of the host to links of its own. A link may have
// more names than the messages of vishvananda/netlink hold.
func (h *hostile) standingOnHost(path string) (list []standsOn) {
	h.t.Helper()
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		h.fatal("%v", err)
	}
	defer host.Close()
	err = kernel.Within(path, func() error {
		id, err := netlink.GetNetNsIdByFd(int(host.Fd()))
		if err != nil || id < 0 {
			return err // without a number for the host, no link refers to it
		}
		c, err := mdnetlink.Dial(unix.NETLINK_ROUTE, nil)
		if err != nil {
			return err
		}
		defer c.Close()
		links, err := c.Execute(mdnetlink.Message{
			Header: mdnetlink.Header{Type: unix.RTM_GETLINK, Flags: mdnetlink.Request | mdnetlink.Dump},
			Data:   make([]byte, unix.SizeofIfInfomsg),
		})
		if err != nil {
			return err
		}
		for _, m := range links {
			attrs, err := mdnetlink.NewAttributeDecoder(m.Data[unix.SizeofIfInfomsg:])
			if err != nil {
				return err
			}
			on, of := standsOn{}, -1
			for attrs.Next() {
				switch attrs.Type() {
				case unix.IFLA_IFNAME:
					on.name = attrs.String()
				case unix.IFLA_LINK:
					on.lower = int(attrs.Uint32())
				case unix.IFLA_LINK_NETNSID:
					of = int(attrs.Int32())
				}
			}
			if err := attrs.Err(); err != nil {
				return err
			}
			if of == id {
				list = append(list, on)
			}
		}
		return nil
	})
	if err != nil {
		h.fatal("links of %q: %v", path, err)
	}
	return list
}

// resettable is in the reason why a device is not clean where it is not clean before
// it is reset, as the reason demands.
const resettable = "to be rid of it, "

// awaitRelease repeats a release until nothing is left, or it cannot succeed.
func (h *hostile) awaitRelease(id reconcile.SandboxID) error {
	h.t.Helper()
	for end := time.Now().Add(returnTime); ; {
		err := h.release(id)
		if err == nil || strings.Contains(err.Error(), resettable) || time.Now().After(end) {
			return err
		}
	}
}

// resetCard does what the reason of a device that is not clean demands.
func (h *hostile) resetCard() {
	h.t.Helper()
	s := &foreignWriter{t: h.t}
	if !realCard() {
		s.run("ip link delete nic0")
		return
	}
	s.run("cd /sys/bus/pci/drivers/igbvf; echo " + h.devices["nic"] + " >unbind; echo " + h.devices["nic"] + " >bind")
}

// replaceCard makes the virtual card again where it went with a namespace, which no
// real card does. A device without a unicast filter, virtual or igbvf, is set up once:
// the kernel makes it promiscuous for the address of a macvlan on it, and takes the
// macvlan off the count only when the device is next set up (__dev_set_rx_mode).
func (h *hostile) replaceCard() {
	h.t.Helper()
	s := &foreignWriter{t: h.t}
	if !realCard() {
		s.run("ip link show nic0 >/dev/null 2>&1 || " + makeCard("nic0") + "; ip link set nic0 up; ip link set nic0 down")
		return
	}
	if l, err := netlink.LinkByName("enp3s0f0v2"); err == nil && l.Attrs().Promisc != 0 && l.Attrs().Flags&net.FlagUp == 0 {
		s.run("ip link set enp3s0f0v2 up; ip link set enp3s0f0v2 down")
	}
}

// ctx bounds what begins now, and ends the one before.
func (h *hostile) ctx() context.Context {
	if h.cancel != nil {
		h.cancel()
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*passTime)
	h.cancel = cancel
	return ctx
}

func heapNow() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
