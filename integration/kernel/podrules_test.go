package kernel

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/traffic"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/enforce"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/fault"
)

// markedPods is a node whose pods are marked on their own network, by an object that selects no network.
type markedPods struct {
	*podNode
	dscp atomic.Int32 // 0: there is no object
}

func newMarkedPods(t *testing.T) *markedPods {
	t.Helper()
	n := &markedPods{podNode: newPodNode(t)}
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	n.rules = func(sb *reconcile.Sandbox) (ops.Enforced, error) {
		if n.dscp.Load() == 0 {
			return ops.Enforced{}, nil
		}
		object := fmt.Appendf(nil, "apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {name: q}\nspec: {priority: 1, egress: [{dscp: %d}]}", n.dscp.Load())
		top := []byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: pods}\nspec: {role: primary, steps: [{name: eth, type: bridge}]}")
		out, _, err := enforce.Files([][]byte{object}, top, enforce.Pod{Namespace: sb.Pod.Namespace}, reg)
		return out, err
	}
	return n
}

// of is the pod of a container.
func of(container, path string) *libcni.RuntimeConf {
	rt := at(container, path)
	rt.Args = append(rt.Args, [2]string{"K8S_POD_UID", "uid-" + container})
	return rt
}

// marked reports which class packets have that a pod sends to another.
func (n *markedPods) marked(from, to, address string) uint8 {
	n.t.Helper()
	receiver, err := traffic.NewReceiver(to)
	if err != nil {
		n.t.Fatal(err)
	}
	defer receiver.Close()
	var sent uint32
	sender := traffic.NewSender(from, &sent)
	defer sender.Close()
	number, err := sender.Send(traffic.Packet(address, qos.UDP, 4001), 0, 100)
	if err != nil {
		n.t.Fatal(err)
	}
	for {
		p, err := receiver.Next(10 * time.Second)
		if err != nil {
			n.t.Fatal(err)
		}
		if p.Number == number {
			return p.Class >> 2
		}
	}
}

// TestPodNetworkMarked: a pod without a claim is marked on its eth0 from the first packet, as NetworkQoS objects that select no network
// say. ADD waits until they are known, an edit reaches the pod, what the pod removes is repaired, and DEL leaves nothing.
func TestPodNetworkMarked(t *testing.T) {
	n := newMarkedPods(t)
	n.dscp.Store(46)
	home := n.state("")
	a, b := newNetns(t), newNetns(t)
	empty := n.state(a)
	var asked atomic.Int32
	n.known = func(namespace string, pod claims.Pod) error {
		if namespace != "ns" || pod.UID != "uid-"+"a" && pod.UID != "uid-"+"b" {
			return errors.New("another pod")
		}
		if pod.Name == "a" && asked.Add(1) <= 20 {
			n.mustEqual(empty, a, "while ADD waits")
			n.knownBy.Changed()
			return fault.New(fault.NotReady, errors.New("the objects are not known"))
		}
		return nil
	}
	server := n.server(&process{}, nil, "")
	stop := n.run(server)
	defer func() { stop() }()
	b4, b6 := n.add(of("b", b))
	a4, _ := n.add(of("a", a))
	if asked.Load() <= 20 {
		t.Errorf("ADD has asked %d times", asked.Load())
	}
	for _, to := range []string{b4, b6} {
		n.reach(in(a), to)
		if have := n.marked(a, b, to); have != 46 {
			t.Errorf("a packet to %s has DSCP %d", to, have)
		}
	}
	if have := n.marked(b, a, a4); have != 46 {
		t.Errorf("a packet of the other pod has DSCP %d", have)
	}
	id, owner := reconcile.IDOfPrimary("a", "eth0", "pods"), reconcile.OwnerOfPrimary("a", "eth0")

	// An edit reaches the pod, by the next agent too.
	n.dscp.Store(10)
	if changed, err := server.Refilter(ctxFor(t), owner); err != nil || !changed {
		t.Errorf("an edit: changed %t, %v", changed, err)
	}
	if have := n.marked(a, b, b4); have != 10 {
		t.Errorf("after an edit: DSCP %d", have)
	}
	next := n.server(&process{}, nil, "")
	second := n.run(next)
	stop()
	stop = second
	n.dscp.Store(12)
	if changed, err := next.Refilter(ctxFor(t), owner); err != nil || !changed {
		t.Errorf("an edit for the next agent: changed %t, %v", changed, err)
	}
	if have := n.marked(a, b, b4); have != 12 {
		t.Errorf("after an edit for the next agent: DSCP %d", have)
	}

	// What is removed is drift.
	(&foreignWriter{t: t}).run(in(a) + "tc qdisc delete dev eth0 clsact")
	if have := n.marked(a, b, b4); have != 0 {
		t.Errorf("without filters: DSCP %d", have)
	}
	if err := n.cni.CheckNetworkList(t.Context(), n.list, of("a", a)); err == nil {
		t.Error("CHECK sees no drift")
	}
	if _, err := n.engine(nil).Repair(ctxFor(t), id); err != nil {
		t.Error(err)
	}
	if have := n.marked(a, b, b4); have != 12 {
		t.Errorf("repaired: DSCP %d", have)
	}

	// The object is deleted.
	n.dscp.Store(0)
	if changed, err := next.Refilter(ctxFor(t), owner); err != nil || !changed {
		t.Errorf("the object is deleted: changed %t, %v", changed, err)
	}
	if have := n.marked(a, b, b4); have != 0 {
		t.Errorf("the object is deleted: DSCP %d", have)
	}
	n.dscp.Store(46)
	if _, err := next.Refilter(ctxFor(t), owner); err != nil {
		t.Error(err)
	}
	for container, path := range map[string]string{"a": a, "b": b} {
		if err := n.cni.DelNetworkList(t.Context(), n.list, of(container, path)); err != nil {
			t.Errorf("DEL %s: %v", container, err)
		}
	}
	n.mustEqual(empty, a, "after DEL")
	n.nothingLeft("after DEL")
	n.mustEqual(home, "", "after DEL")
}

// TestPodNetworkMarkedKilled: the agent is killed after each change of an ADD, of an edit and of a DEL. The next one ends the call, the
// pod is marked by the objects as they are then, and nothing is left after its DEL.
func TestPodNetworkMarkedKilled(t *testing.T) {
	n := newMarkedPods(t)
	home := n.state("")
	first, step := effort.Stride(t, 5)
	for reached, k := true, first; reached; k += step {
		path := newNetns(t)
		empty, container := n.state(path), fmt.Sprintf("m%d", k)
		owner, id := reconcile.OwnerOfPrimary(container, "eth0"), reconcile.IDOfPrimary(container, "eth0", "pods")
		n.dscp.Store(46)
		life, made := &process{}, 0
		server := n.server(life, func() { made++; life.dead = life.dead || made == k }, "")
		stop := n.run(server)
		_, err := n.cni.AddNetworkList(t.Context(), n.list, of(container, path))
		n.dscp.Store(10)
		if err == nil { // killed in the edit then, or in its DEL
			_, _ = server.Refilter(ctxFor(t), owner)
			_ = n.cni.DelNetworkList(t.Context(), n.list, of(container, path))
		}
		reached = life.dead
		stop()
		stop = n.run(n.server(&process{}, nil, ""))
		if reached {
			n.add(of(container, path))
			rec, known, err := n.engine(nil).Record(id)
			if err != nil || !known || len(rec.Sandbox.Filters) == 0 || *rec.Sandbox.Filters[0].DSCP != 10 {
				t.Errorf("killed after change %d: the record has %+v, %v", k, rec.Sandbox.Filters, err)
			}
			if st, err := n.engine(nil).Check(ctxFor(t), id); err != nil || st.State != reconcile.InSync {
				t.Errorf("killed after change %d: %v, %+v", k, err, st)
			}
		}
		if err := n.cni.DelNetworkList(t.Context(), n.list, of(container, path)); err != nil {
			t.Errorf("killed after change %d: DEL: %v", k, err)
		}
		n.mustEqual(empty, path, fmt.Sprintf("killed after change %d, after DEL", k))
		n.nothingLeft(fmt.Sprintf("by an agent that was killed after change %d", k))
		stop()
		n.mustEqual(home, "", fmt.Sprintf("killed after change %d", k))
	}
}
