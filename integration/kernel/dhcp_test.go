package kernel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/dhcp"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// shortestLease is that of tests that wait for the end of one.
const shortestLease = 4 * time.Second

// leases is the domain of DHCP leases of an engine, with its records beside the journal. A client
// ends with the test, or with its process.
func leases(host *kernel.Host, dir string) *dhcp.Host {
	return dhcp.Open(dhcp.Options{
		Dir: dir + "-dhcp", BootID: host.BootID(), Within: kernel.Within, Prolong: host.Prolong, Now: kernel.SinceBoot, MinLease: shortestLease,
	})
}

// network is a namespace with a DHCP server, whose link v0 leads to a link of the host.
type network struct {
	t    *testing.T
	link string // of the host
	path string
	*foreignWriter
	server *exec.Cmd
	log    *lockedBuffer
	leased string // file
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newNetwork(t *testing.T, link string) *network {
	t.Helper()
	n := &network{t: t, link: link, path: newNetns(t), foreignWriter: &foreignWriter{t: t}, log: &lockedBuffer{}, leased: filepath.Join(t.TempDir(), "leases")}
	n.run(fmt.Sprintf("ip link add %s type veth peer name v0 netns %s && ip link set %[1]s up && ip -n %[2]s link set v0 up && ip -n %[2]s address add 192.0.2.1/24 dev v0", link, filepath.Base(n.path)))
	t.Cleanup(func() { n.run("ip link delete " + link + " 2>/dev/null || true") })
	t.Cleanup(n.stop)
	return n
}

// serve starts busybox's udhcpd, for leases that last some seconds.
func (n *network) serve(seconds int) {
	n.t.Helper()
	n.stop()
	conf := filepath.Join(n.t.TempDir(), "udhcpd.conf")
	text := fmt.Sprintf("start 192.0.2.10\nend 192.0.2.200\ninterface v0\nmin_lease 1\nlease_file %s\npidfile %s.pid\nauto_time 1\nopt subnet 255.255.255.0\nopt router 192.0.2.1\nopt lease %d\nopt dns 192.0.2.1\nopt staticroutes 10.9.0.0/16 192.0.2.1\nopt mtu 1400\n", n.leased, n.leased, seconds)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	if f, err := os.OpenFile(n.leased, os.O_CREATE|os.O_RDONLY, 0o600); err != nil {
		n.t.Fatal(err)
	} else {
		f.Close()
	}
	n.server = exec.Command("ip", "netns", "exec", filepath.Base(n.path), "busybox", "udhcpd", "-f", conf)
	n.server.Stdout, n.server.Stderr = n.log, n.log
	if err := n.server.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.says("started", 1)
}

// stop kills the server.
func (n *network) stop() {
	if n.server == nil {
		return
	}
	_ = n.server.Process.Kill()
	_ = n.server.Wait()
	n.server = nil
	n.log.mu.Lock()
	n.log.b.Reset()
	n.log.mu.Unlock()
}

// says waits until the server has said something so many times.
func (n *network) says(what string, times int) {
	n.t.Helper()
	n.until("the server says "+what, func() bool { return strings.Count(n.log.String(), what) >= times })
}

// until waits until something is so.
func (n *network) until(what string, is func() bool) {
	n.t.Helper()
	eventually.Holds(n.t, patience, what, func() string {
		if is() {
			return ""
		}
		return "the server: " + n.log.String()
	})
}

// sandbox has a macvlan link on the network, with more in the config of its ipam, and more steps.
func (n *network) sandbox(id, ipam, more string) reconcile.Sandbox {
	n.t.Helper()
	top, err := topology.Decode(fmt.Appendf(nil, "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n    - {name: a, type: macvlan, config: {master: %s, name: net1, mode: bridge, ipam: {type: dhcp%s}}}\n%s", n.link, ipam, more))
	if err != nil {
		n.t.Fatal(err)
	}
	return reconcile.Sandbox{ID: reconcile.SandboxID("s/" + id + "/t"), Netns: newNetns(n.t), Topology: top}
}

func (n *network) in(sb reconcile.Sandbox, command string) string {
	n.t.Helper()
	return n.run("ip netns exec " + filepath.Base(sb.Netns) + " " + command)
}

// address is the IPv4 address of net1, "" for none.
func (n *network) address(sb reconcile.Sandbox) string {
	n.t.Helper()
	fields := strings.Fields(n.in(sb, "ip -4 -o address show dev net1"))
	for i, f := range fields {
		if f == "inet" {
			return fields[i+1]
		}
	}
	return ""
}

// lifetime is how long the kernel keeps the address, in seconds.
func (n *network) lifetime(sb reconcile.Sandbox) int {
	n.t.Helper()
	_, after, _ := strings.Cut(n.in(sb, "ip -4 -o address show dev net1"), "valid_lft ")
	var s int
	if _, err := fmt.Sscanf(after, "%dsec", &s); err != nil {
		n.t.Fatalf("lifetime %q: %v", after, err)
	}
	return s
}

// leasing is an engine that keeps leases, as the agent does.
type leasing struct {
	*reconcile.Reconciler
	leases *dhcp.Host
	end    func()
}

func (n *network) engine(l *lane, patience time.Duration, shortest time.Duration) *leasing {
	n.t.Helper()
	store, reg, err := parts(l.dir)
	if err != nil {
		n.t.Fatal(err)
	}
	host := dhcp.Open(dhcp.Options{
		Dir: l.dir + "-dhcp", BootID: l.host.BootID(), Within: kernel.Within, Prolong: l.host.Prolong, Now: kernel.SinceBoot, MinLease: shortest,
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := host.Run(ctx); err != nil {
			n.t.Error(err)
		}
	}()
	end := sync.OnceFunc(func() { cancel(); <-ended; host.Close() })
	n.t.Cleanup(end)
	return &leasing{reconcile.New(reconcile.Options{
		Registry: reg, Store: store, BootID: l.host.BootID(), Patience: patience, External: []reconcile.ExternalDomain{host.Domain()},
		Open: func(path string) (reconcile.Domain, error) { return open(l.host, path) },
	}), host, end}
}

// TestDHCP: a step of ipam type dhcp has an address of a real server, and takes nothing else of what
// the server says. Two sandboxes have two addresses; an engine that is restarted renews; a release is
// heard by the server.
func TestDHCP(t *testing.T) {
	l := newLane(t)
	n := newNetwork(t, "uplink0")
	n.serve(20)
	e := n.engine(l, 0, shortestLease)
	one := n.sandbox("one", "", "    - {name: b, type: dummy, dependOn: [a], config: {name: d0, addresses: [\"{{ a.ips[0].address }}\"]}}\n")
	start := l.state(one.Netns)
	rep, err := e.Ensure(ctxFor(t), one)
	if err != nil {
		t.Fatal(err, n.log)
	}
	had := n.address(one)
	if !strings.HasPrefix(had, "192.0.2.") || rep.Results[0].Result.IPs[0].Address != had || rep.Results[1].Result.IPs[0].Address != had {
		t.Errorf("the address is %q, the results have %+v", had, rep.Results)
	}
	if s := n.lifetime(one); s < 1 || s > 20 {
		t.Errorf("the kernel keeps the address for %d s", s)
	}
	if got := n.in(one, "ip route show"); strings.Contains(got, "default") || strings.Contains(got, "10.9.") {
		t.Errorf("a server made routes: %s", got)
	}
	if rep, err := e.Ensure(ctxFor(t), one); err != nil || !rep.Unchanged {
		t.Errorf("applied again: %v %v", rep.Changes, err)
	}

	two := n.sandbox("two", ", acceptDefaultRoute: true, priority: 70, provide: [{option: host-name, value: web-1}]", "")
	if _, err := e.Ensure(ctxFor(t), two); err != nil {
		t.Fatal(err, n.log)
	}
	if other := n.address(two); other == had || !strings.HasPrefix(other, "192.0.2.") {
		t.Errorf("two sandboxes have %s and %s", had, other)
	}
	if got := n.in(two, "ip route show default"); !strings.Contains(got, "via 192.0.2.1 dev net1") || !strings.Contains(got, "metric 70") {
		t.Errorf("the default route is %q", got)
	}

	// Renewal, by the process that has requested the lease and by one after it.
	renewed := func(what string) {
		t.Helper()
		before := n.lifetime(one)
		n.until(what, func() bool {
			now := n.lifetime(one)
			longer := now > before
			before = now
			return longer
		})
		if got := n.address(one); got != had {
			t.Errorf("%s: the address is %s, was %s", what, got, had)
		}
		if st, err := e.Check(ctxFor(t), one.ID); err != nil || st.State != reconcile.InSync {
			t.Errorf("%s: %+v %v", what, st, err)
		}
	}
	renewed("renewed")
	asked := strings.Count(n.log.String(), "sending OFFER")
	e.end()
	e = n.engine(l, 0, shortestLease)
	renewed("renewed after a restart")
	if again := strings.Count(n.log.String(), "sending OFFER"); again != asked {
		t.Errorf("after a restart the lease was requested again: %s", n.log)
	}

	// The pod deletes its address: that is drift, and repaired without the server.
	n.stop()
	n.in(one, "ip address flush dev net1 scope global")
	if rep, err := e.Repair(ctxFor(t), one.ID); err != nil || rep.Unchanged || n.address(one) != had {
		t.Errorf("repaired: %v %v, address %s", rep.Changes, err, n.address(one))
	}

	if _, err := e.Release(ctxFor(t), one.ID); err != nil {
		t.Fatal(err)
	}
	if diff := netstatetest.Differences(start, l.state(one.Netns)); len(diff) > 0 {
		t.Errorf("released, and left %v", diff)
	}

	// The server hears a release.
	n.serve(600)
	three := n.sandbox("three", "", "")
	if _, err := e.Ensure(ctxFor(t), three); err != nil {
		t.Fatal(err, n.log)
	}
	ip, _, _ := strings.Cut(n.address(three), "/")
	known := func() string {
		if err := n.server.Process.Signal(syscall.SIGUSR1); err != nil { // it writes its file
			t.Fatal(err)
		}
		for line := range strings.Lines(n.run("busybox dumpleases -f " + n.leased)) {
			if strings.Contains(line, ip+" ") {
				return line
			}
		}
		return ""
	}
	n.until("the server has the lease", func() bool { return strings.Contains(known(), "00:0") })
	if _, err := e.Release(ctxFor(t), three.ID); err != nil {
		t.Fatal(err)
	}
	n.until("the server hears the release", func() bool { return strings.Contains(known(), "expired") })

	// A namespace that no longer exists releases nothing, and leaves nothing.
	deleteNetns(two.Netns)
	if _, err := e.Release(ctxFor(t), two.ID); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(l.dir + "-dhcp/*.lease"); err != nil || len(left) > 0 {
		t.Errorf("left are %v %v", left, err)
	}
}

// TestDHCPAddressInUse: an address that a host of the network has, which the server does not see, is declined, and the pod gets another
// one. The server does not give the declined one to anybody.
func TestDHCPAddressInUse(t *testing.T) {
	l := newLane(t)
	n := newNetwork(t, "uplink0")
	n.serve(600)
	e := n.engine(l, time.Minute, shortestLease)
	sb := n.sandbox("one", "", "")
	sb.Topology.Steps[0].Config["mac"] = "02:00:00:00:00:11" // by which the server gives the same address again
	if _, err := e.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err, n.log)
	}
	used := n.address(sb)
	ip, _, _ := strings.Cut(used, "/")
	if _, err := e.Release(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	n.run("ip netns exec " + filepath.Base(n.path) + " sh -c 'tc qdisc add dev v0 clsact && tc filter add dev v0 ingress protocol arp flower arp_op reply arp_sip " + ip + " action drop'")
	other := newNetns(t)
	n.run(fmt.Sprintf("ip link add neighbor0 link uplink0 netns %s type macvlan mode bridge && ip -n %[1]s address add %s dev neighbor0 && ip -n %[1]s link set neighbor0 up", filepath.Base(other), used))

	if _, err := e.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err, n.log)
	}
	if got := n.address(sb); got == used || !strings.HasPrefix(got, "192.0.2.") {
		t.Errorf("the address is %q, and a neighbor has %q", got, used)
	}
	n.until("the server keeps the address from others", func() bool {
		if err := n.server.Process.Signal(syscall.SIGUSR1); err != nil { // it writes its file
			t.Fatal(err)
		}
		for line := range strings.Lines(n.run("busybox dumpleases -f " + n.leased)) {
			if strings.Contains(line, ip+" ") && strings.Contains(line, "00:00:00:00:00:00") {
				return true
			}
		}
		return false
	})
}

// TestDHCPOptions: routes and the MTU that a server gives are those of a pod whose topology requests them, also after a
// repair, and of no other.
func TestDHCPOptions(t *testing.T) {
	l := newLane(t)
	n := newNetwork(t, "uplink0")
	n.serve(600)
	e := n.engine(l, 0, shortestLease)
	sb := n.sandbox("one", ", request: [{option: classless-static-routes}, {option: interface-mtu}]", "")
	start := l.state(sb.Netns)
	if _, err := e.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err, n.log)
	}
	holds := func(when string) {
		t.Helper()
		if got := n.in(sb, "ip route show"); !strings.Contains(got, "10.9.0.0/16 via 192.0.2.1 dev net1") || strings.Contains(got, "default") {
			t.Errorf("%s: the routes are %q", when, got)
		}
		if got := n.in(sb, "ip link show dev net1"); !strings.Contains(got, "mtu 1400") {
			t.Errorf("%s: the link is %q", when, got)
		}
		if st, err := e.Check(ctxFor(t), sb.ID); err != nil || st.State != reconcile.InSync {
			t.Errorf("%s: %+v %v", when, st, err)
		}
	}
	holds("attached")
	n.in(sb, "ip route del 10.9.0.0/16")
	n.in(sb, "ip link set net1 mtu 1500")
	if _, err := e.Repair(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	holds("repaired")
	if _, err := e.Release(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	if diff := netstatetest.Differences(start, l.state(sb.Netns)); len(diff) > 0 {
		t.Errorf("released, and left %v", diff)
	}
}

// TestDHCPOverIPVLAN: an ipvlan link has the MAC of its master, and receives packets by its addresses: the
// first answers are broadcasts, those to a renewal are not.
func TestDHCPOverIPVLAN(t *testing.T) {
	l := newLane(t)
	n := newNetwork(t, "uplink0")
	n.serve(24)
	e := n.engine(l, 0, shortestLease)
	sb := n.sandbox("ipvlan", "", "")
	sb.Topology.Steps[0].Type = "ipvlan"
	sb.Topology.Steps[0].Config["mode"] = "l2"
	if _, err := e.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err, n.log)
	}
	had, before := n.address(sb), n.lifetime(sb)
	n.until("renewed", func() bool {
		now := n.lifetime(sb)
		longer := now > before
		before = now
		return longer
	})
	if got := n.address(sb); got != had {
		t.Errorf("the address is %s, was %s", got, had)
	}
	if _, err := e.Release(ctxFor(t), sb.ID); err != nil {
		t.Error(err)
	}
}

// TestDHCPServerAway: without a server the attach fails, says what was tried, and leaves nothing. If the
// server of a running sandbox is away, the kernel deletes the address at the end of the lease; the
// sandbox reports that, and has an address again once the server is back.
func TestDHCPServerAway(t *testing.T) {
	l := newLane(t)
	n := newNetwork(t, "uplink0")
	brief := n.engine(l, 10*time.Second, shortestLease)
	lonely := n.sandbox("lonely", "", "")
	start := l.state(lonely.Netns)
	_, err := brief.Ensure(ctxFor(t), lonely)
	if fault.Of(err) != fault.NotReady || !strings.Contains(fmt.Sprint(err), `step "a" waits: no DHCP server has given "net1" an address: `) || !strings.Contains(fmt.Sprint(err), "DHCPDISCOVER in ") {
		t.Errorf("without a server: %s: %v", fault.Of(err), err)
	}
	if diff := netstatetest.Differences(start, l.state(lonely.Netns)); len(diff) > 0 {
		t.Errorf("the failed attach left %v", diff)
	}
	if left, err := filepath.Glob(l.dir + "-dhcp/*.lease"); err != nil || len(left) > 0 {
		t.Errorf("left are %v %v", left, err)
	}
	brief.end()

	n.serve(6)
	e := n.engine(l, 24*time.Hour, shortestLease)
	sb := n.sandbox("running", ", acceptDefaultRoute: true", "")
	if _, err := e.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err, n.log)
	}
	n.stop()
	n.until("the kernel deletes the address", func() bool { return n.address(sb) == "" })
	st, err := e.Check(ctxFor(t), sb.ID)
	if err != nil || !strings.Contains(fmt.Sprint(st.Drift), `needs a DHCP lease for "net1"`) {
		t.Errorf("%+v %v", st, err)
	}
	ctx := ctxFor(t) // shorter than the patience of an attachment
	if _, err := e.Repair(ctx, sb.ID); fault.Of(err) != fault.NotReady || ctx.Err() != nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
	if rec, _, err := e.Record(sb.ID); err != nil || rec.Phase != reconcile.Failed || !strings.Contains(rec.Failure, "no DHCP server") {
		t.Errorf("recorded: %s %q %v", rec.Phase, rec.Failure, err)
	}
	n.serve(20)
	n.until("the sandbox has an address again", func() bool {
		_, err := e.Repair(ctxFor(t), sb.ID)
		return err == nil
	})
	if got := n.address(sb); !strings.HasPrefix(got, "192.0.2.") {
		t.Errorf("the address is %q", got)
	}
	if got := n.in(sb, "ip route show default"); !strings.Contains(got, "via 192.0.2.1 dev net1") {
		t.Errorf("the default route is %q", got)
	}
	rec, _, err := e.Record(sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	addresses := 0
	for _, c := range rec.History {
		if _, ok := c.Object().(netstate.Addr); ok {
			addresses++
		}
	}
	if addresses != 1 {
		t.Errorf("the history has %d addresses: %v", addresses, rec.History)
	}

	// A lease that no process renews, as one of the command line, ends. To apply again is not made to wait:
	// it fails as it was, unless an answer has come. A process that keeps leases requests another one.
	e.end()
	n.serve(15)
	alone := n.sandbox("alone", "", "")
	if l.runKilled(childEnv, childSpec{Sandbox: alone, Dir: l.dir, At: 99}) || n.address(alone) == "" {
		t.Fatal("was not attached")
	}
	n.until("the kernel deletes the address that nobody renews", func() bool { return n.address(alone) == "" })
	r := l.engine(nil)
	if st, err := r.Check(ctxFor(t), alone.ID); err != nil || !strings.Contains(fmt.Sprint(st.Drift), "active is off, not on") {
		t.Errorf("%+v %v", st, err)
	}
	for range 2 {
		_, err := r.Ensure(ctxFor(t), alone)
		if got := n.address(alone); (err == nil) != (got != "") || err != nil && fault.Of(err) != fault.NotReady {
			t.Errorf("applied again: address %q, %v", got, err)
		}
	}
	e = n.engine(l, 0, shortestLease)
	n.until("it has an address again", func() bool {
		_, err := e.Repair(ctxFor(t), alone.ID)
		return err == nil && n.address(alone) != ""
	})
	if _, err := e.Release(ctxFor(t), sb.ID); err != nil {
		t.Error(err)
	}
}

// mustHoldNothing fails the test unless a namespace is as it was, and no lease is recorded.
func (l *lane) mustHoldNothing(start *netstate.Snapshot, path, when string) {
	l.t.Helper()
	l.mustEqual(start, path, when)
	if left, err := filepath.Glob(l.dir + "-dhcp/*.lease"); err != nil || len(left) > 0 {
		l.t.Errorf("%s: left are %v %v", when, left, err)
	}
}

// TestDHCPFailure: each change of an attach fails once, and each of a release. A failed attach leaves nothing,
// and a failed release is completed by the next one.
func TestDHCPFailure(t *testing.T) {
	l := newLane(t)
	n := newNetwork(t, "uplink0")
	n.serve(60)
	sb := n.sandbox("failing", "", "")
	start := l.state(sb.Netns)
	empty := func(when string) {
		t.Helper()
		l.mustHoldNothing(start, sb.Netns, when)
	}
	failing := func(at int) (*reconcile.Reconciler, *int) {
		applied := new(int)
		return l.engine(func(d reconcile.Domain) reconcile.Domain {
			return faulty{Domain: d, applied: applied, at: at, before: func() error { return errInjected }}
		}), applied
	}
	at := 1
	for ; ; at++ {
		r, applied := failing(at)
		_, err := r.Ensure(ctxFor(t), sb)
		if err == nil && *applied < at {
			break
		}
		when := fmt.Sprintf("change %d of the attach failed", at)
		if !errors.Is(err, errInjected) || !strings.Contains(err.Error(), `step "a"`) {
			t.Fatalf("%s: %v; the server: %s", when, err, n.log)
		}
		empty(when)
	}
	if at < 4 { // link, lease, address, up
		t.Errorf("the attach made %d changes", at-1)
	}
	for at := 1; ; at++ {
		if _, err := l.engine(nil).Ensure(ctxFor(t), sb); err != nil || n.address(sb) == "" {
			t.Fatal(err, n.log)
		}
		r, applied := failing(at)
		_, err := r.Release(ctxFor(t), sb.ID)
		when := fmt.Sprintf("change %d of the release failed", at)
		if reached := *applied >= at; err != nil && (!reached || !errors.Is(err, errInjected)) {
			t.Fatalf("%s: %v", when, err)
		} else if err != nil {
			if _, err := l.engine(nil).AwaitRelease(ctxFor(t), sb.ID); err != nil {
				t.Fatalf("%s, and then: %v", when, err)
			}
			empty(when)
		} else if empty("released"); !reached {
			break
		}
	}
}

// TestDHCPKilled: the process is killed after each change of an attach, and after each of a release. The next
// one attaches, and releases without a rest.
func TestDHCPKilled(t *testing.T) {
	l := newLane(t)
	n := newNetwork(t, "uplink0")
	n.serve(60)
	sb := n.sandbox("killed", "", "")
	start := l.state(sb.Netns)
	empty := func(when string) {
		t.Helper()
		l.mustHoldNothing(start, sb.Netns, when)
	}
	for at := 1; ; at++ {
		killed := l.runKilled(childEnv, childSpec{Sandbox: sb, Dir: l.dir, At: at})
		when := fmt.Sprintf("killed after change %d", at)
		if at%2 == 0 && killed { // else it is released as it was left
			if _, err := l.engine(nil).Ensure(ctxFor(t), sb); err != nil {
				t.Fatalf("%s: %v; the server: %s", when, err, n.log)
			}
			if n.address(sb) == "" {
				t.Errorf("%s: attached without an address", when)
			}
		}
		if !killed {
			break
		}
		if _, err := l.engine(nil).AwaitRelease(ctxFor(t), sb.ID); err != nil {
			t.Fatalf("%s: release: %v", when, err)
		}
		empty(when)
	}
	for at := 1; l.runKilled(childEnv, childSpec{Sandbox: sb, Dir: l.dir, At: at, Release: true}); at++ {
		if at > 16 {
			t.Fatal("release finds no end")
		}
	}
	empty("release killed at every change")
}

// hostileServer answers each message of a client with whatever reply makes of it.
type hostileServer struct {
	mu    sync.Mutex
	reply func(*dhcpv4.DHCPv4) [][]byte // payloads of UDP
	heard map[dhcpv4.MessageType]int
}

func (h *hostileServer) answer(reply func(*dhcpv4.DHCPv4) [][]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reply, h.heard = reply, map[dhcpv4.MessageType]int{}
}

func (h *hostileServer) count(kind dhcpv4.MessageType) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.heard[kind]
}

func newHostileServer(t *testing.T, n *network) *hostileServer {
	t.Helper()
	h := &hostileServer{heard: map[dhcpv4.MessageType]int{}}
	var conn *packet.Conn
	err := kernel.Within(n.path, func() error {
		ifi, err := net.InterfaceByName("v0")
		if err != nil {
			return err
		}
		conn, err = packet.Listen(ifi, packet.Datagram, unix.ETH_P_IP, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() { conn.Close(); <-ended })
	go func() {
		defer close(ended)
		b := make([]byte, 4096)
		for {
			k, _, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			if k < 28 || b[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(b[22:]) != 67 {
				continue
			}
			m, err := dhcpv4.FromBytes(b[28:k])
			if err != nil {
				continue
			}
			h.mu.Lock()
			h.heard[m.MessageType()]++
			reply := h.reply
			h.mu.Unlock()
			if reply == nil {
				continue
			}
			for _, payload := range reply(m) {
				if _, err := conn.WriteTo(fromServer(payload), &packet.Addr{HardwareAddr: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}); err != nil {
					continue // larger than the link takes, or faster
				}
			}
		}
	}()
	return h
}

// fromServer puts the headers of IP and UDP before a message to port 68.
func fromServer(payload []byte) []byte {
	b := make([]byte, 28, 28+len(payload))
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(28+len(payload)))
	copy(b[12:], []byte{192, 0, 2, 1, 255, 255, 255, 255})
	binary.BigEndian.PutUint16(b[20:], 67)
	binary.BigEndian.PutUint16(b[22:], 68)
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(payload)))
	return append(b, payload...)
}

var answers = regexp.MustCompile(` and ([0-9]+) answers`)

// answersIn is how many answers an error counts.
func answersIn(message string) (n int) {
	if m := answers.FindStringSubmatch(message); m != nil {
		n, _ = strconv.Atoi(m[1]) // digits
	}
	return n
}

// TestHostileDHCP: whatever a server answers, a client takes no address that a host cannot have, nor
// one that it has not requested; a flood is bounded; and a right answer is taken beside wrong ones.
func TestHostileDHCP(t *testing.T) {
	l := newLane(t)
	n := newNetwork(t, "uplink0")
	n.run("ip link set uplink0 mtu 9000 && ip -n " + filepath.Base(n.path) + " link set v0 mtu 9000")
	h := newHostileServer(t, n)
	good := func(m *dhcpv4.DHCPv4, more ...dhcpv4.Modifier) []byte {
		kind := dhcpv4.MessageTypeOffer
		if m.MessageType() == dhcpv4.MessageTypeRequest {
			kind = dhcpv4.MessageTypeAck
		}
		server := netip.MustParseAddr("192.0.2.1").AsSlice()
		r, err := dhcpv4.NewReplyFromRequest(m, append([]dhcpv4.Modifier{
			dhcpv4.WithMessageType(kind), dhcpv4.WithYourIP([]byte{192, 0, 2, 77}), dhcpv4.WithNetmask([]byte{255, 255, 255, 0}),
			dhcpv4.WithLeaseTime(600), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(server)), dhcpv4.WithRouter(server),
		}, more...)...)
		if err != nil {
			t.Error(err)
			return nil
		}
		return r.ToBytes()
	}
	one := func(more ...dhcpv4.Modifier) func(*dhcpv4.DHCPv4) [][]byte {
		return func(m *dhcpv4.DHCPv4) [][]byte { return [][]byte{good(m, more...)} }
	}
	refused := []struct {
		name, says string
		reply      func(*dhcpv4.DHCPv4) [][]byte
	}{
		{"loopback", "127.0.0.1 is not an address of a host", one(dhcpv4.WithYourIP([]byte{127, 0, 0, 1}))},
		{"multicast", "224.0.0.5 is not an address of a host", one(dhcpv4.WithYourIP([]byte{224, 0, 0, 5}))},
		{"broadcast", "255.255.255.255 is not an address of a host", one(dhcpv4.WithYourIP([]byte{255, 255, 255, 255}))},
		{"no address", "address is missing", one(dhcpv4.WithYourIP([]byte{0, 0, 0, 0}))},
		{"network", "is the network's own", one(dhcpv4.WithYourIP([]byte{192, 0, 2, 0}))},
		{"everything", "is larger than a /8", one(dhcpv4.WithNetmask([]byte{0, 0, 0, 0}))},
		{"holes", "subnet mask 255.0.255.0 is none", one(dhcpv4.WithNetmask([]byte{255, 0, 255, 0}))},
		{"no time", "lasts 0s", one(dhcpv4.WithLeaseTime(0))},
		{"no server", "server identifier is missing", one(dhcpv4.WithoutOption(dhcpv4.OptionServerIdentifier))},
		{"malformed", "it is malformed", func(m *dhcpv4.DHCPv4) [][]byte {
			b := good(m)
			return [][]byte{b[:100], append(b[:240:240], 51, 200, 1), b[:241]}
		}},
		{"huge", "it is malformed", func(m *dhcpv4.DHCPv4) [][]byte {
			return [][]byte{append(good(m)[:240], bytes.Repeat([]byte{12, 0}, 4000)...)}
		}},
		{"another transaction", "and no answer", func(m *dhcpv4.DHCPv4) [][]byte {
			return [][]byte{good(m, dhcpv4.WithTransactionID(dhcpv4.TransactionID{1, 2, 3, 4}))}
		}},
		{"another client", "it is for another client", one(dhcpv4.WithHwAddr([]byte{2, 0, 0, 0, 0, 7}))},
		{"another identifier", "it is for another client", one(dhcpv4.WithOption(dhcpv4.OptClientIdentifier([]byte{0, 1})))},
		{"a request", "and no answer", func(m *dhcpv4.DHCPv4) [][]byte {
			m.OpCode = dhcpv4.OpcodeBootRequest
			return [][]byte{m.ToBytes()}
		}},
		{"flood", "answers; the last was refused", func(m *dhcpv4.DHCPv4) [][]byte {
			b := good(m, dhcpv4.WithLeaseTime(0))
			out := make([][]byte, 2000)
			for i := range out {
				out[i] = b
			}
			return out
		}},
	}
	brief := n.engine(l, 4*time.Second, shortestLease)
	for _, c := range effort.Sample(t, 4, refused) {
		h.answer(c.reply)
		// A pause of the machine may leave no time for an answer.
		for tries := 1; ; tries++ {
			_, err := brief.Ensure(ctxFor(t), n.sandbox("hostile", "", ""))
			if n := answersIn(fmt.Sprint(err)); n > 256*3 {
				t.Errorf("%s: %d answers were read", c.name, n)
			}
			switch says := fault.Of(err) == fault.NotReady && strings.Contains(fmt.Sprint(err), c.says); {
			case !says && fault.Of(err) == fault.NotReady && tries < 3:
				continue
			case !says:
				t.Errorf("%s: %v, want %q", c.name, err, c.says)
			}
			break
		}
		if requests := h.count(dhcpv4.MessageTypeRequest); requests != 0 {
			t.Errorf("%s: the offer was accepted", c.name)
		}
	}

	// A right answer behind wrong ones. An address that another step has is refused.
	e := n.engine(l, 0, shortestLease)
	h.answer(func(m *dhcpv4.DHCPv4) [][]byte {
		return [][]byte{good(m, dhcpv4.WithYourIP([]byte{127, 0, 0, 1})), good(m)[:99], good(m)}
	})
	sb := n.sandbox("right", ", acceptDefaultRoute: true", "")
	if _, err := e.Ensure(ctxFor(t), sb); err != nil || n.address(sb) != "192.0.2.77/24" {
		t.Fatalf("a right answer behind wrong ones: %v, address %q", err, n.address(sb))
	}
	if _, err := e.Release(ctxFor(t), sb.ID); err != nil {
		t.Error(err)
	}
	taken := n.sandbox("taken", "", "")
	top, err := topology.Decode([]byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n    - {name: d, type: dummy, config: {name: d0, addresses: [192.0.2.77/32]}}\n    - {name: a, type: macvlan, dependOn: [d], config: {master: host:uplink0, name: net1, mode: bridge, ipam: {type: dhcp}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	top.Steps[1] = taken.Topology.Steps[0]
	taken.Topology = top
	_, err = e.Ensure(ctxFor(t), taken)
	if fault.Of(err) != fault.Conflict || !strings.Contains(fmt.Sprint(err), `which step "d" has on "d0"`) {
		t.Errorf("an address that another step has: %s: %v", fault.Of(err), err)
	}
	// A router outside of the network is none.
	h.answer(one(dhcpv4.WithRouter([]byte{198, 51, 100, 1})))
	far := n.sandbox("far", ", acceptDefaultRoute: true", "")
	rep, err := e.Ensure(ctxFor(t), far)
	if err != nil || !strings.Contains(strings.Join(rep.Notes, "\n"), "offers no router") || n.in(far, "ip route show default") != "" {
		t.Errorf("a router outside of the network: %v %v", rep.Notes, err)
	}
}

// TestDHCPBehindGuard: a pod of a guarded bridge has an address of a server that is behind another port, is reached at it by a pod
// beside it, keeps both while the lease is renewed, and no other pod can claim the address, as it can where the pods are not checked.
func TestDHCPBehindGuard(t *testing.T) {
	t.Run("not checked", func(t *testing.T) { behindGuard(t, ", macspoofchk: false, raGuard: false", false) })
	t.Run("checked", func(t *testing.T) { behindGuard(t, "", true) })
}

func behindGuard(t *testing.T, more string, guarded bool) {
	l := newLane(t)
	l.devices = []string{}
	n := newNetwork(t, "uplink0")
	e := n.engine(l, 0, shortestLease)
	attach := func(name, config string) reconcile.Sandbox {
		t.Helper()
		sb := box(newNetns(t), parse(t, name, "    - {name: net, type: bridge, config: {bridge: leasebr, "+config+more+"}}\n"))
		if _, err := e.Ensure(ctxFor(t), sb); err != nil {
			t.Fatal(err, n.log)
		}
		return sb
	}
	neighbor := attach("neighbor", `dad: "off", addresses: [192.0.2.5/24]`)
	n.run("ip link set uplink0 master leasebr")
	n.serve(24)
	leased := attach("leased", "ipam: {type: dhcp}")
	t.Cleanup(func() { _, _ = n.try("ip link delete leasebr") }) // if the test fails
	had := n.address(leased)
	ip := netip.MustParsePrefix(had).Addr()
	reach := func() {
		t.Helper()
		eventually.Succeeds(t, patience, "the leased address is reached", func() error {
			if out, err := n.try(fmt.Sprintf("ip netns exec %s ping -q -c 1 -W 2 %s", filepath.Base(neighbor.Netns), ip)); err != nil {
				return fmt.Errorf("%s: %s", ip, out)
			}
			return nil
		})
	}
	reach()
	before := n.lifetime(leased)
	n.until("renewed", func() bool {
		now := n.lifetime(leased)
		longer := now > before
		before = now
		return longer || !guarded // that is slow, and TestDHCP's
	})
	if got := n.address(leased); got != had {
		t.Errorf("the address is %s, was %s", got, had)
	}
	for _, sb := range []reconcile.Sandbox{neighbor, leased} {
		if st, err := e.Check(ctxFor(t), sb.ID); err != nil || st.State != reconcile.InSync {
			t.Errorf("%s: %+v %v", sb.ID, st, err)
		}
	}

	// The server's side knows where the address is, and another pod says that it has it.
	victim := strings.TrimSpace(n.in(leased, "cat /sys/class/net/net1/address"))
	n.run(fmt.Sprintf("ip netns exec %[1]s sysctl -qw net.ipv4.neigh.v0.locktime=0 && ip netns exec %[1]s ping -q -c 1 -W 5 %[2]s", filepath.Base(n.path), ip))
	mac, err := net.ParseMAC(strings.TrimSpace(n.in(neighbor, "cat /sys/class/net/net1/address")))
	if err != nil {
		t.Fatal(err)
	}
	forger := newSender(t, neighbor.Netns, "net1")
	forger.frame(mac, everybody, unix.ETH_P_ARP, arpFor(1, mac, ip, ip))
	n.run(fmt.Sprintf("ip netns exec %s ping -q -c 1 -W 5 192.0.2.1", filepath.Base(neighbor.Netns))) // what it sent before has come, too
	if got := n.run(fmt.Sprintf("ip -n %s neigh show %s dev v0", filepath.Base(n.path), ip)); strings.Contains(got, victim) != guarded {
		t.Errorf("%s is at %q, the pod has %s, and whether pods are checked is %t", ip, got, victim, guarded)
	}
	for _, sb := range []reconcile.Sandbox{leased, neighbor} {
		if _, err := e.AwaitRelease(ctxFor(t), sb.ID); err != nil {
			t.Error(err)
		}
	}
	if left := n.run("nft list ruleset"); strings.Contains(left, "leasebr") {
		t.Errorf("left is\n%s", left)
	}
}
