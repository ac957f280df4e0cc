package kernel

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/traffic"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/enforce"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// markedPods is a node whose pods are marked on their own network, by an object that selects no network.
type markedPods struct {
	*podNode
	dscp atomic.Int32 // 0: there is no object
	// objects are those of the pods, in the place of that one, if there are some.
	objects atomic.Pointer[objectsOfPods]
}

// objectsOfPods are NetworkQoS objects, and what they know of each pod.
type objectsOfPods struct {
	text string
	pod  enforce.Pod
}

func newMarkedPods(t *testing.T) *markedPods {
	t.Helper()
	n := &markedPods{podNode: newPodNode(t)}
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	n.rules = func(sb *reconcile.Sandbox) (ops.Rules, error) {
		const top = "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: pods}\nspec: {role: primary, steps: [{name: eth, type: bridge}]}"
		if o := n.objects.Load(); o != nil {
			return compiled(top, o.text, o.pod, reg)
		}
		if n.dscp.Load() == 0 {
			return ops.Rules{}, nil
		}
		object := fmt.Sprintf("apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {name: q}\nspec: {priority: 1, egress: [{dscp: %d}]}", n.dscp.Load())
		return compiled(top, object, enforce.Pod{Namespace: sb.Pod.Namespace}, reg)
	}
	return n
}

// compiled are the rules that objects have for a topology, as they stand in one file.
func compiled(top, objects string, pod enforce.Pod, contracts contract.Set) (ops.Rules, error) {
	f, err := topology.Parse("", []byte(top+"\n---\n"+objects))
	if err != nil {
		return ops.Rules{}, err
	}
	out, _, err := enforce.Objects([]*topology.Manifest{f}, f, pod, contracts)
	return out, err
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

	// A removed rule is drift.
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
	first, step := effort.Stride(t, 20)
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

// TestPodNetworkMarkedFails: a change of an ADD, of an edit or of a DEL fails once. The pod is as it was before that call, which succeeds
// when it is made again, and nothing is left.
func TestPodNetworkMarkedFails(t *testing.T) {
	n := newMarkedPods(t)
	home := n.state("")
	first, step := effort.Stride(t, 20)
	for reached, k := true, first; reached; k += step {
		path := newNetns(t)
		empty, container := n.state(path), fmt.Sprintf("f%d", k)
		when := func(what string) string { return fmt.Sprintf("%s, change %d failed", what, k) }
		n.dscp.Store(46)
		made := 0
		server := n.serverOf(n.engine(func(d reconcile.Domain) reconcile.Domain {
			return faulty{Domain: d, applied: &made, at: k, before: func() error { return errInjected }}
		}), &process{}, "")
		stop := n.run(server)
		if _, err := n.cni.AddNetworkList(ctxFor(t), n.list, of(container, path)); err != nil {
			if !strings.Contains(err.Error(), errInjected.Error()) {
				t.Errorf("%s: %v", when("ADD"), err)
			}
			n.mustEqual(empty, path, when("ADD"))
			n.add(of(container, path))
		}
		marked := n.state(path)
		n.dscp.Store(10)
		owner, id := reconcile.OwnerOfPrimary(container, "eth0"), reconcile.IDOfPrimary(container, "eth0", "pods")
		if _, err := server.Refilter(ctxFor(t), owner); err != nil {
			if !errors.Is(err, errInjected) {
				t.Errorf("%s: %v", when("an edit"), err)
			}
			n.mustEqual(marked, path, when("an edit"))
			if _, err := server.Refilter(ctxFor(t), owner); err != nil {
				t.Errorf("%s, and again: %v", when("an edit"), err)
			}
		}
		rec, known, err := n.engine(nil).Record(id)
		if err != nil || !known || len(rec.Sandbox.Filters) == 0 || *rec.Sandbox.Filters[0].DSCP != 10 {
			t.Errorf("%s: the record has %+v, %v", when("a call"), rec.Sandbox.Filters, err)
		}
		if st, err := n.engine(nil).Check(ctxFor(t), id); err != nil || st.State != reconcile.InSync {
			t.Errorf("%s: %v, %+v", when("a call"), err, st)
		}
		if err := n.cni.DelNetworkList(ctxFor(t), n.list, of(container, path)); err != nil {
			if err := n.cni.DelNetworkList(ctxFor(t), n.list, of(container, path)); err != nil {
				t.Errorf("%s, and again: %v", when("DEL"), err)
			}
		}
		reached = made >= k
		n.mustEqual(empty, path, when("a call")+", after DEL")
		n.nothingLeft(when("a call"))
		stop()
		n.mustEqual(home, "", when("a call"))
	}
}

// TestPodNetworkLimited: what a pod sends over its eth0 is limited as the object with a bandwidth of OKEP-4380 says, which is verbatim, and
// as its story says, with a thousandth of that. No more passes than rate and burst allow in the time that was measured; what the
// object excepts passes whole.
func TestPodNetworkLimited(t *testing.T) {
	text, err := os.ReadFile("../../qos/testdata/okep-4380/bandwidth.yaml")
	if err != nil {
		t.Fatal(err)
	}
	free := enforce.Pod{Namespace: "games", Labels: map[string]string{"user-type": "free"}}
	n := newMarkedPods(t)
	n.objects.Store(&objectsOfPods{string(text), free})
	server := n.server(&process{}, nil, "")
	stop := n.run(server)
	defer stop()
	a, b := newNetns(t), newNetns(t)
	b4, _ := n.add(of("b", b))
	n.add(of("a", a))
	id := reconcile.IDOfPrimary("a", "eth0", "pods")
	n.reach(in(a), b4)
	const packets, frame = 2000, 1400 + 20 + 14
	var numbers uint32
	sender := traffic.NewSender(a, &numbers)
	defer sender.Close()
	// passed returns how many bits of so many packets pass, and in which time.
	passed := func(to string) (bits float64, elapsed time.Duration) {
		t.Helper()
		began, before := time.Now(), sentBytes(t, a)
		for range packets {
			if _, err := sender.Send(traffic.Packet(to, qos.UDP, 9), 0, 1400); err != nil {
				t.Fatal(err)
			}
		}
		return float64(sentBytes(t, a)-before) * 8, time.Since(began)
	}
	for _, kbit := range []float64{1_000_000, 1000} {
		if kbit == 1000 {
			n.objects.Store(&objectsOfPods{strings.ReplaceAll(string(text), "1000000", "1000"), free})
			if changed, err := server.Refilter(ctxFor(t), reconcile.OwnerOfPrimary("a", "eth0")); err != nil || !changed {
				t.Fatalf("the story's rate: changed %t, %v", changed, err)
			}
		}
		rec, _, err := n.engine(nil).Record(id)
		if err != nil || !slices.ContainsFunc(rec.Sandbox.Filters, func(f netstate.Filter) bool { return *f.Rate == uint64(kbit)*125 }) {
			t.Errorf("no filter limits to %.0f kbit/s: %v", kbit, err)
		}
		bits, elapsed := passed("8.8.8.8")
		most := kbit*1000*elapsed.Seconds() + kbit*1000 + 8*frame
		t.Logf("%.0f kbit/s: %.0f of %d bits passed in %s, and %.0f may", kbit, bits, 8*frame*packets, elapsed, most)
		if least := min(kbit*1000/2, 8*frame*packets/2); bits > most || bits < least {
			t.Errorf("%.0f kbit/s: %.0f bits passed in %s, want from %.0f to %.0f", kbit, bits, elapsed, least, most)
		}
	}
	if bits, elapsed := passed(b4); bits < 8*frame*packets {
		t.Errorf("of what the object excepts, %.0f of %d bits passed in %s", bits, 8*frame*packets, elapsed)
	}
	n.end("a", "b")
}

// end ends pods, after which nothing of them is left for other tests.
func (n *podNode) end(pods ...string) {
	n.t.Helper()
	for _, name := range pods {
		if err := n.cni.DelNetworkList(ctxFor(n.t), n.list, of(name, "")); err != nil {
			n.t.Errorf("DEL %s: %v", name, err)
		}
	}
	n.nothingLeft("after the pods have ended")
}

// sentBytes are those that eth0 of a pod has sent.
func sentBytes(t *testing.T, path string) uint64 {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ip", "netns", "exec", filepath.Base(path), "cat", "/sys/class/net/eth0/statistics/tx_bytes").Output()
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// rulesEdited are the rules after an edit: those that decide about packets to a network have one mark or another, the rule below them,
// which matches all packets, has a third one, and every third edit has rules with a port above them.
func rulesEdited(i int, name, to string) string {
	mark, ports := []int{46, 10}[i%2], ""
	if i%3 == 0 {
		ports = fmt.Sprintf(", {dscp: %d, bandwidth: {rate: 100000}, classifier: {ports: [{protocol: TCP, port: %d}]}}", mark, 80+i%7)
	}
	return fmt.Sprintf(`apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: q, namespace: ns}
spec:
  priority: 1
  netAttachRefs: [{kind: NetworkTopology, name: %s}]
  egress: [{dscp: 1}, {dscp: %d, classifier: {to: [{ipBlock: {cidr: %s}}]}}%s]
`, name, mark, to, ports)
}

// editedUnderTraffic makes edits while packets are sent, and fails unless each of these arrives with the mark of an edit: a filter that
// is replaced decides until the next one does, and no packet is unmarked or decided by a lower rule.
func editedUnderTraffic(t *testing.T, from, to, address string, edit func(i int)) {
	t.Helper()
	times := 30
	if effort.Long() {
		times = 1000
	}
	receiver, err := traffic.NewReceiver(to)
	if err != nil {
		t.Fatal(err)
	}
	defer receiver.Close()
	edit(0)
	done := make(chan struct{})
	var numbers uint32
	var sending sync.WaitGroup
	sending.Go(func() {
		sender := traffic.NewSender(from, &numbers)
		defer sender.Close()
		for tick := time.NewTicker(2 * time.Millisecond); ; {
			select {
			case <-done:
				tick.Stop()
				return
			case <-tick.C:
				if _, err := sender.Send(traffic.Packet(address, qos.UDP, 4001), 0, 100); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	began := time.Now()
	for i := 1; i <= times; i++ {
		edit(i)
	}
	elapsed := time.Since(began)
	close(done)
	sending.Wait()
	arrived, all := map[uint8]int{}, uint32(0)
	for {
		p, err := receiver.Next(time.Second)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.Number > 0 {
			arrived[p.Class>>2]++
			all++
		}
	}
	t.Logf("%d edits in %s, packets by mark: %v", times, elapsed.Round(time.Millisecond), arrived)
	if all != numbers {
		t.Errorf("of %d packets %d arrived", numbers, all)
	}
	if len(arrived) != 2 || arrived[46] < times/10 || arrived[10] < times/10 {
		t.Errorf("packets by mark: %v, want 46 and 10 alone", arrived)
	}
}

// TestPodNetworkEdited: no packet that a pod sends over its own network is unmarked while an object is edited.
func TestPodNetworkEdited(t *testing.T) {
	n := newMarkedPods(t)
	object := func(i int) {
		n.objects.Store(&objectsOfPods{rulesEdited(i, "pods", "10.98.7.0/24"), enforce.Pod{Namespace: "ns"}})
	}
	object(0)
	server := n.server(&process{}, nil, "")
	stop := n.run(server)
	defer stop()
	a, b := newNetns(t), newNetns(t)
	b4, _ := n.add(of("b", b))
	n.add(of("a", a))
	n.reach(in(a), b4)
	editedUnderTraffic(t, a, b, b4, func(i int) {
		object(i)
		if _, err := server.Refilter(ctxFor(t), reconcile.OwnerOfPrimary("a", "eth0")); err != nil {
			t.Fatalf("edit %d: %v", i, err)
		}
	})
	n.end("a", "b")
}

// TestEditedUnderTraffic is TestPodNetworkEdited on the interface of a step.
func TestEditedUnderTraffic(t *testing.T) {
	const steps = `{name: p, type: ptp, config: {addresses: [10.9.0.5/24], hostIfName: plp9, isDefaultGateway: true, dad: "off"}}`
	l := newLane(t) // which restores the host's forwarding
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	sb := box(newNetns(t), parse(t, "t", "    - "+steps+"\n"))
	r := l.engine(nil)
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	file := "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec: {steps: [" + steps + "]}"
	editedUnderTraffic(t, sb.Netns, "/proc/1/ns/net", "10.9.0.1", func(i int) {
		rules, err := compiled(file, rulesEdited(i, "t", "10.9.0.0/24"), enforce.Pod{Namespace: "ns"}, reg)
		if err != nil {
			t.Fatal(err)
		}
		if _, changed, err := reconcile.SetRules(ctxFor(t), r, sb, rules, patience); err != nil || !changed {
			t.Fatalf("edit %d: changed %t, %v", i, changed, err)
		}
	})
	if _, err := r.Release(ctxFor(t), sb.ID); err != nil {
		t.Error(err)
	}
}
