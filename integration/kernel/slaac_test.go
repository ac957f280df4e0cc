package kernel

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// router is a namespace whose link v0 leads to a link of the host, on which it advertises.
type router struct {
	t    *testing.T
	link string // of the host
	fd   int
	to   unix.SockaddrLinklayer

	mu    sync.Mutex
	frame []byte // what is sent ten times a second; nil for nothing
}

func newRouter(t *testing.T, link string) *router {
	path := newNetns(t)
	s := &foreignWriter{t: t}
	s.run(fmt.Sprintf("ip link add %s type veth peer name v0 netns %s && ip link set %[1]s up && ip -n %[2]s link set v0 up", link, filepath.Base(path)))
	t.Cleanup(func() { s.run("ip link delete " + link + " 2>/dev/null || true") })
	r := newAdvertiser(t, path, "v0")
	r.link = link
	return r
}

// newAdvertiser advertises on a link of a namespace.
func newAdvertiser(t *testing.T, path, on string) *router {
	r := &router{t: t}
	err := kernel.Within(path, func() (err error) {
		if r.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		request, err := unix.NewIfreq(on)
		if err != nil {
			return err
		}
		if err := unix.IoctlIfreq(r.fd, unix.SIOCGIFINDEX, request); err != nil {
			return err
		}
		r.to = unix.SockaddrLinklayer{Protocol: 0xdd86, Ifindex: int(request.Uint32())}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	done, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(done); <-ended; unix.Close(r.fd) })
	go func() {
		defer close(ended)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if err := r.send(); err != nil {
					t.Errorf("advertise: %v", err)
					return
				}
			}
		}
	}()
	return r
}

// send holds the lock, so that nothing is sent once advertise has returned.
func (r *router) send() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.frame == nil {
		return nil
	}
	return unix.Sendto(r.fd, r.frame, 0, &r.to)
}

func (r *router) advertise(frame []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frame = frame
}

// addressReports counts the passes that report other addresses, and those after which a
// failure has ended by itself.
type addressReports struct {
	reconcile.Recorder
	n, recovered int
}

func (a *addressReports) Pass(p reconcile.Pass) {
	if p.Readdressed {
		a.n++
	}
	if p.Recovered {
		a.recovered++
	}
}
func (a *addressReports) Drift(reconcile.SandboxID, string, []reconcile.Drift) {}
func (a *addressReports) Forget(reconcile.SandboxID)                           {}

// TestAutoconfiguration: a step of ipam type slaac has an address of a router advertisement,
// and takes nothing else of what a router says. With dad: wait, or where a step refers to the
// address, it is there when the sandbox is attached; without a router the attach fails and
// leaves nothing. Otherwise it is recorded and reported once it is there.
func TestAutoconfiguration(t *testing.T) {
	l := newLane(t)
	up := newRouter(t, "uplink0")
	s := &foreignWriter{t: t}
	sandbox := func(id, config, more string) reconcile.Sandbox {
		top, err := topology.Decode(fmt.Appendf(nil, "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n    - {name: a, type: macvlan, config: {master: uplink0, name: net1, mode: bridge%s}}\n%s", config, more))
		if err != nil {
			t.Fatal(err)
		}
		return reconcile.Sandbox{ID: reconcile.SandboxID("t/" + id), Netns: newNetns(t), Topology: top}
	}
	in := func(sb reconcile.Sandbox, command string) string {
		return s.run("ip netns exec " + filepath.Base(sb.Netns) + " " + command)
	}
	ips := func(results []topology.StepResult, step int) []string {
		var out []string
		for _, ip := range results[step].Result.IPs {
			out = append(out, ip.Address)
		}
		return out
	}
	now, offset := time.Now, time.Duration(0)
	reports := &addressReports{}
	engine := func(patience time.Duration) *reconcile.Reconciler {
		store, reg, err := parts(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return reconcile.New(reconcile.Options{
			Registry: reg, Store: store, BootID: l.host.BootID(), Patience: patience, Recorder: reports,
			Now:  func() time.Time { return now().Add(offset) },
			Open: func(path string) (reconcile.Domain, error) { return open(l.host, path) },
		})
	}
	r := engine(24 * time.Hour)

	// Everything that a router may say: an MTU, a route, a hop limit, a default route.
	all := []byte{5, 1, 0, 0, 0, 0, 5, 0x14}                            // MTU 1300
	all = append(all, 24, 3, 64, 0, 0, 0, 7, 8)                         // route information
	all = append(all, netip.MustParseAddr("2001:db8:5::").AsSlice()...) // of this network
	frame := advertisement([]string{"2001:db8:1::"}, all...)
	frame[14+40+4] = 5 // hop limit, and its checksum: it was 64
	sum := uint32(frame[14+40+2])<<8 | uint32(frame[14+40+3])
	sum += (64 - 5) << 8
	sum = sum>>16 + sum&0xffff
	frame[14+40+2], frame[14+40+3] = byte(sum>>8), byte(sum)
	up.advertise(frame)

	held := sandbox("held", ", dad: wait, ipam: {type: slaac}", "    - {name: b, type: dummy, dependOn: [a], config: {name: d0, dad: \"off\", addresses: [\"{{ a.ips[0].address }}\"]}}\n")
	rep, err := r.Ensure(ctxFor(t), held)
	if err != nil {
		t.Fatal(err)
	}
	if got := ips(rep.Results, 0); len(got) != 1 || !strings.HasPrefix(got[0], "2001:db8:1:") || !slices.Contains(ips(rep.Results, 1), got[0]) {
		t.Errorf("the results have the addresses %v and %v", got, ips(rep.Results, 1))
	}
	if got := in(held, "ip -6 -o address show dev d0 scope global"); !strings.Contains(got, "2001:db8:1:") {
		t.Errorf("a step that refers to the address has %q", got)
	}
	if got := in(held, "ip -6 route show default"); got != "" {
		t.Errorf("a router made itself the default route: %s", got)
	}
	if got := in(held, "ip -6 route show"); strings.Contains(got, "2001:db8:5:") {
		t.Errorf("a router made a route: %s", got)
	}
	if got := in(held, "sh -c 'cat /proc/sys/net/ipv6/conf/net1/mtu /proc/sys/net/ipv6/conf/net1/hop_limit'"); strings.Join(strings.Fields(got), " ") != "1500 64" {
		t.Errorf("MTU and hop limit are %q", got)
	}
	if rep, err := r.Ensure(ctxFor(t), held); err != nil || !rep.Unchanged {
		t.Errorf("applied again: %v %v", rep.Changes, err)
	}
	if st, err := r.Check(ctxFor(t), held.ID); err != nil || st.State != reconcile.InSync || len(ips(st.Steps, 0)) != 1 {
		t.Errorf("%+v %v", st, err)
	}
	rec, _, err := r.Record(held.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range rec.History {
		if a, ok := c.Object().(netstate.Addr); ok && a.Link == "net1" {
			t.Errorf("the kernel's address is in the record: %v", c)
		}
	}

	// A router that floods gives no more addresses than the bound.
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("2001:db8:f:%x::", i))
	}
	up.advertise(advertisement(many))
	count := "ip netns exec " + filepath.Base(held.Netns) + " ip -6 -o address show dev net1 | wc -l"
	s.run("for i in $(seq 100); do [ $(" + count + ") -ge 16 ] && exit 0; sleep 0.1; done; exit 1")
	if got := strings.TrimSpace(s.run(count)); got != "16" {
		t.Errorf("a router that floods has given %s addresses", got)
	}
	if st, err := r.Check(ctxFor(t), held.ID); err != nil || st.State != reconcile.InSync {
		t.Errorf("flooded: %+v %v", st, err)
	}
	if _, err := r.Release(ctxFor(t), held.ID); err != nil {
		t.Error(err)
	}

	// The default route on request.
	up.advertise(advertisement([]string{"2001:db8:1::"}))
	routed := sandbox("routed", ", dad: wait, ipam: {type: slaac, acceptDefaultRoute: true}", "")
	if _, err := r.Ensure(ctxFor(t), routed); err != nil {
		t.Fatal(err)
	}
	if got := in(routed, "ip -6 route show default"); !strings.Contains(got, "via fe80::9 dev net1 proto ra") {
		t.Errorf("the default route is %q", got)
	}
	if rep, err := r.Ensure(ctxFor(t), routed); err != nil || !rep.Unchanged {
		t.Errorf("applied again: %v %v", rep.Changes, err)
	}

	// No router.
	up.advertise(nil)
	lonely := sandbox("lonely", ", dad: wait, ipam: {type: slaac}", "")
	start := l.state(lonely.Netns)
	brief := engine(5 * time.Second)
	_, err = brief.Ensure(ctxFor(t), lonely)
	if fault.Of(err) != fault.NotReady || !strings.Contains(fmt.Sprint(err), `step "a" waits: no router advertisement has given "net1" an address`) {
		t.Errorf("without a router: %s: %v", fault.Of(err), err)
	}
	if diff := netstatetest.Differences(start, l.state(lonely.Netns)); len(diff) > 0 {
		t.Errorf("the failed attach left %v", diff)
	}

	// Without dad: wait the pod starts, and the address is recorded once it is there.
	early := sandbox("early", ", ipam: {type: slaac}", "")
	rep, err = brief.Ensure(ctxFor(t), early)
	if err != nil || len(ips(rep.Results, 0)) != 0 {
		t.Fatalf("%v %v", rep.Results, err)
	}
	attached := time.Now()
	up.advertise(advertisement([]string{"2001:db8:1::"}))
	s.run("for i in $(seq 100); do ip -n " + filepath.Base(early.Netns) + " -6 address show dev net1 scope global -tentative | grep -q inet6 && exit 0; sleep 0.1; done; exit 1")
	offset = time.Until(attached) // a change of an older record is reported at once
	rep, err = brief.Repair(ctxFor(t), early.ID)
	if err != nil || !rep.Unchanged || rep.Settles == 0 || reports.n != 0 {
		t.Errorf("reported at once: %+v %v, %d reports", rep, err, reports.n)
	}
	offset = rep.Settles
	for range 2 {
		if rep, err = brief.Repair(ctxFor(t), early.ID); err != nil || !rep.Unchanged || reports.n != 1 {
			t.Errorf("%+v %v, %d reports", rep, err, reports.n)
		}
	}
	if rec, _, err := brief.Record(early.ID); err != nil || len(ips(rec.Results, 0)) != 1 {
		t.Errorf("recorded: %+v %v", rec.Results, err)
	}
	// Nothing makes a running pod wait, and one that waited for its address reports that it is
	// gone.
	up.advertise(nil)
	in(routed, "ip -6 address flush dev net1 scope global")
	st, err := r.Check(ctxFor(t), routed.ID)
	if err != nil || !strings.Contains(fmt.Sprint(st.Drift), `needs an address of a router advertisement on "net1"`) {
		t.Errorf("%+v %v", st, err)
	}
	ctx := ctxFor(t) // shorter than the patience of an attachment
	if _, err := r.Repair(ctx, routed.ID); fault.Of(err) != fault.NotReady || ctx.Err() != nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
	up.advertise(advertisement([]string{"2001:db8:1::"}))
	s.run("for i in $(seq 100); do ip -n " + filepath.Base(routed.Netns) + " -6 address show dev net1 scope global -tentative | grep -q inet6 && exit 0; sleep 0.1; done; exit 1")
	if rep, err := r.Repair(ctxFor(t), routed.ID); err != nil || !rep.Unchanged || reports.recovered != 1 {
		t.Errorf("with its address again: %+v %v, %d recovered", rep, err, reports.recovered)
	}
}
