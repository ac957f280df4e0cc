package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/gate"
	"github.com/plumbline/plumbline/topology/fault"
)

// manyDevices is how many links the pod of these tests gets.
const manyDevices = 16

// hookShare is the time that a hook gives an attachment: three quarters of two seconds.
const hookShare = 1500 * time.Millisecond

// slow is a domain in which each new link takes its time.
type slow struct {
	reconcile.Domain
	pace time.Duration
}

func slowly(pace time.Duration) func(reconcile.Domain) reconcile.Domain {
	return func(d reconcile.Domain) reconcile.Domain { return slow{d, pace} }
}

func (s slow) Apply(ctx context.Context, c netstate.Change) error {
	if _, link := c.After.(netstate.Link); link && c.Action() == netstate.Create {
		timer := time.NewTimer(s.pace)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.Domain.Apply(ctx, c)
}

// wide is a pod with many links.
type wide struct {
	*lane
	claim claims.Claim
	pod   attachment.Pod
}

func newWide(t *testing.T) *wide {
	t.Helper()
	w := &wide{lane: newLane(t)}
	var steps strings.Builder
	for i := range manyDevices {
		fmt.Fprintf(&steps, "- {name: d%d, type: dummy, config: {name: net%d, mac: \"02:00:00:00:01:%02x\"}}\n", i, i, i)
	}
	w.claim = claims.Claim{
		UID: "c", Name: "c", Pod: claims.Pod{Name: "p", UID: "p"},
		Topologies: []claims.Topology{{Object: *object(t, "\n"+steps.String(), 1)}},
	}
	w.pod = attachment.Pod{Sandbox: "s", UID: "p", Name: "p", Netns: newNetns(t)}
	return w
}

// agent is a process of the agent: it runs until stop is called.
func (w *wide) agent(pace time.Duration) (k keeper, stop func()) {
	w.t.Helper()
	k = w.keeper(slowly(pace))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		k.Run(ctx)
	}()
	return k, func() {
		cancel()
		<-ended
	}
}

func (w *wide) prepare(k keeper) {
	w.t.Helper()
	if err := k.store.Put(w.claim); err != nil {
		w.t.Fatal(err)
	}
}

// attach is the runtime's hook: it is answered in its time.
func (w *wide) attach(k keeper) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), hookShare)
	defer cancel()
	if err := k.Attach(ctx, w.pod); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wide) openFor() string {
	return gate.Dir(filepath.Join(w.dir, "cdi")).OpenFor("c")
}

// opens waits until the gate is open, and holds that all is in the pod then.
func (w *wide) opens(when string) {
	w.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ctx := ctxFor(w.t); w.openFor() != "s"; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.t.Fatalf("%s: the gate does not open", when)
		}
	}
	st, err := w.engine(nil).Check(ctxFor(w.t), "s/c/t")
	if err != nil || st.State != reconcile.InSync {
		w.t.Errorf("%s: %v, %+v", when, err, st)
	}
	s := w.state(w.pod.Netns)
	for i := range manyDevices {
		if _, ok := s.Link(fmt.Sprintf("net%d", i)); !ok {
			w.t.Errorf("%s: net%d is missing", when, i)
		}
	}
}

// TestSlowAttach: sixteen links that take longer than the runtime's hook come to
// be in the pod, in the background, at one go; and a pod that is deleted meanwhile
// leaves nothing.
func TestSlowAttach(t *testing.T) {
	pace := 3 * time.Second / manyDevices
	if effort.Long() {
		pace = 10 * time.Second / manyDevices
	}
	w := newWide(t)
	host, inside := w.state(""), w.state(w.pod.Netns)
	k, stop := w.agent(pace)
	defer stop()
	w.prepare(k)
	w.attach(k)
	if open := w.openFor(); open != "" {
		t.Fatalf("the gate is open for %q", open)
	}
	err := k.Admit(ctxFor(t), w.pod, []string{"PLUMBLINE_CLAIM_C=c/"})
	if fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), "is still being attached") {
		t.Errorf("a container gets %v", err)
	}
	w.opens("attached")
	if err := k.Admit(ctxFor(t), w.pod, []string{"PLUMBLINE_CLAIM_C=c/s"}); err != nil {
		t.Error(err)
	}
	if err := k.Withdraw(ctxFor(t), "c"); err != nil {
		t.Fatal(err)
	}
	w.mustEqual(host, "", "after the claim's end")

	w.pod.Sandbox = "s2"
	w.prepare(k)
	w.attach(k)
	if err := k.Detach(ctxFor(t), w.pod); err != nil {
		t.Fatal(err)
	}
	w.mustEqual(inside, w.pod.Netns, "deleted in the middle")
	w.mustEqual(host, "", "deleted in the middle, on the host")
	if records, errs := w.engine(nil).List(); len(records)+len(errs) > 0 {
		t.Errorf("left in the journal: %v, %v", records, errs)
	}
	if err := k.Withdraw(ctxFor(t), "c"); err != nil {
		t.Fatal(err)
	}
}

const attachEnv = "PLUMBLINE_KERNEL_ATTACH"

// attachSpec is the task of the killed process.
type attachSpec struct {
	Dir string
	Pod attachment.Pod
	At  int
}

// attachChild attaches a pod in the background and kills itself after the nth change.
func attachChild() {
	var spec attachSpec
	die(json.Unmarshal([]byte(os.Getenv(attachEnv)), &spec))
	host, err := kernel.Open(kernel.Options{})
	die(err)
	k, err := newKeeper(host, spec.Dir, dying(spec.At))
	die(err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // the hook is over
	die(k.Attach(ctx, spec.Pod))
	late := time.After(30 * time.Second)
	for gate.Dir(filepath.Join(spec.Dir, "cdi")).OpenFor("c") == "" {
		select {
		case <-late:
			die(errors.New("it is not attached"))
		case <-time.After(time.Millisecond):
		}
	}
}

// TestSlowAttachKilled: an agent that is killed while it attaches in the background
// leaves the gate closed, and the next one attaches the pod.
func TestSlowAttachKilled(t *testing.T) {
	points := []int{1, manyDevices / 2}
	if effort.Long() {
		points = nil
		for n := range manyDevices {
			points = append(points, n+1)
		}
	}
	for _, n := range points {
		t.Run(fmt.Sprintf("after change %d", n), func(t *testing.T) {
			w := newWide(t)
			host := w.state("")
			w.prepare(w.keeper(nil))
			if !w.runKilled(attachEnv, attachSpec{w.dir, w.pod, n}) {
				t.Fatal("it was not killed")
			}
			if open := w.openFor(); open != "" {
				t.Fatalf("the gate is open for %q", open)
			}
			k, stop := w.agent(0)
			defer stop()
			if err := k.Synchronize([]attachment.Pod{w.pod}); err != nil {
				t.Fatal(err)
			}
			w.opens("by the next agent")
			if err := k.Withdraw(ctxFor(t), "c"); err != nil {
				t.Fatal(err)
			}
			w.mustEqual(host, "", "after the claim's end")
		})
	}
}
