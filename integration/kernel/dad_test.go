package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestDuplicateAddressDetection: with dad: wait, off or optimistic a program can bind to an
// IPv6 address as soon as it is applied. With wait the attach fails, and leaves nothing, if
// another host of the network has the address, or if detection cannot end. A running sandbox
// is not made to wait, and says so if another host takes its address.
func TestDuplicateAddressDetection(t *testing.T) {
	l := newLane(t)
	r := l.engine(nil)
	s := &foreignWriter{t: t}
	// wired returns two namespaces that are connected.
	wired := func() (one, other string) {
		one, other = newNetns(t), newNetns(t)
		a, b := filepath.Base(one), filepath.Base(other)
		s.run(fmt.Sprintf("ip -n %s link add v0 type veth peer name v0 netns %s && ip -n %[2]s link set v0 up && ip -n %[1]s link set v0 up", a, b))
		return one, other
	}
	sandbox := func(id, path, dad string) reconcile.Sandbox {
		top, err := topology.Decode(fmt.Appendf(nil, "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n    - {name: d, type: dummy}\n    - {name: a, type: tuning, dependOn: [d], config: {dev: v0, addresses: [\"2001:db8::5/64\"]%s}}\n", dad))
		if err != nil {
			t.Fatal(err)
		}
		return reconcile.Sandbox{ID: reconcile.SandboxID("t/" + id), Netns: path, Topology: top}
	}
	bind := func(path string) error {
		return kernel.Within(path, func() error {
			c, err := net.ListenPacket("udp6", "[2001:db8::5]:0")
			if err == nil {
				c.Close()
			}
			return err
		})
	}
	// detected waits until the kernel has found the address of the other namespace.
	detected := func(path string) {
		t.Helper()
		s.run("for i in $(seq 300); do ip -n " + filepath.Base(path) + " -6 address show dev v0 | grep -q dadfailed && exit 0; sleep 0.1; done; exit 1")
	}
	for _, dad := range []string{"wait", "off", "optimistic"} {
		path, _ := wired()
		sb := sandbox(dad, path, ", dad: "+dad)
		rep, err := r.Ensure(ctxFor(t), sb)
		if err != nil {
			t.Fatalf("%s: %v", dad, err)
		}
		if err := bind(path); err != nil {
			t.Errorf("%s: %v after %v", dad, err, rep.Changes)
		}
		if rep, err := r.Ensure(ctxFor(t), sb); err != nil || !rep.Unchanged {
			t.Errorf("%s, applied again: %v %v", dad, rep.Changes, err)
		}
	}

	path, other := wired()
	there := func() string { return s.run("ip -n " + filepath.Base(path) + " -6 address show dev v0 scope global") }
	s.run("ip -n " + filepath.Base(other) + " address add 2001:db8::5/64 dev v0 nodad")
	_, err := r.Ensure(ctxFor(t), sandbox("taken", path, ", dad: wait"))
	if fault.Of(err) != fault.Conflict || !strings.Contains(fmt.Sprint(err), `step "a": another host of the network has address "2001:db8::5/64" of "v0"`) {
		t.Errorf("an address that another host has: %s: %v", fault.Of(err), err)
	}
	if got := there(); got != "" {
		t.Errorf("the failed attach left %s", got)
	}
	rep, err := r.Ensure(ctxFor(t), sandbox("taken", path, ""))
	if err != nil {
		t.Error(err)
	}
	detected(path)
	rep, err = r.Ensure(ctxFor(t), sandbox("taken", path, ""))
	if err != nil || !rep.Unchanged || !strings.Contains(strings.Join(rep.Notes, "\n"), "duplicate address detection has failed") {
		t.Errorf("%v %v %v", rep.Changes, rep.Notes, err)
	}

	// The kernel asks for carrier only until a link has had it.
	path = newNetns(t)
	s.run("ip -n " + filepath.Base(path) + " link add v0 type veth peer name v1 && ip -n " + filepath.Base(path) + " link set v0 up")
	store, reg, err := parts(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	brief := reconcile.New(reconcile.Options{
		Registry: reg, Store: store, BootID: l.host.BootID(), Patience: 5 * time.Second,
		Open: func(path string) (reconcile.Domain, error) { return open(l.host, path) },
	})
	ctx, cancel := context.WithCancelCause(ctxFor(t))
	ctx = reconcile.WithProgress(ctx, func(p reconcile.Progress) {
		if p.Done == p.Planned { // it waits
			cancel(errors.New("no longer wanted"))
		}
	})
	if _, err = brief.Ensure(ctx, sandbox("idle", path, ", dad: wait")); err == nil || !strings.Contains(err.Error(), "no longer wanted") {
		t.Errorf("interrupted: %v", err)
	}
	_, err = brief.Ensure(ctxFor(t), sandbox("idle", path, ", dad: wait"))
	if fault.Of(err) != fault.NotReady || !strings.Contains(fmt.Sprint(err), `duplicate address detection of "2001:db8::5/64" on "v0" has not ended: it needs a link with carrier`) {
		t.Errorf("without carrier: %s: %v", fault.Of(err), err)
	}
	if got := there(); got != "" {
		t.Errorf("the failed attach left %s", got)
	}

	// A running sandbox.
	path, other = wired()
	sb := sandbox("running", path, ", dad: wait")
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	s.run("ip -n " + filepath.Base(other) + " address add 2001:db8::5/64 dev v0 nodad; ip -n " + filepath.Base(path) + " address delete 2001:db8::5/64 dev v0")
	if rep, err := r.Repair(ctxFor(t), sb.ID); err != nil || len(rep.Changes) == 0 {
		t.Errorf("repaired: %v %v", rep.Changes, err)
	}
	detected(path)
	st, err := r.Check(ctxFor(t), sb.ID)
	if err != nil || !strings.Contains(fmt.Sprint(st.Drift), `needs address "2001:db8::5/64" on "v0", which another host`) {
		t.Errorf("%+v %v", st, err)
	}
}
