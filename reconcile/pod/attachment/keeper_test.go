package attachment_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/gate"
	"github.com/plumbline/plumbline/reconcile/recordfile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// world is a node: namespaces by path, and the calls of the engine. The engine itself is
// tested on real kernels; here its calls are compared in order.
type world struct {
	*attachment.Keeper
	t     *testing.T
	store *claims.Store
	gate  gate.Dir

	mu     sync.Mutex
	netns  map[string]uint64 // inode by path
	done   []string          // the calls of the engine
	held   map[reconcile.SandboxID]reconcile.Record
	unread error          // the engine cannot read its records
	failAt string         // the topology whose Ensure fails
	stuck  string         // the topology whose Release fails
	fails  map[int64]bool // generations whose Ensure fails
	half   bool           // a failure leaves the topology half applied
	follow error
	// results are those of every topology.
	results  []topology.StepResult
	reported []string
	ended    []fault.Kind             // outcomes of attachments in the background
	slow     map[string]time.Duration // by topology: how long each of its changes takes
	stubborn map[string]bool          // by topology: they are not cancelled
	slips    map[string]int           // by topology: how many attempts fail at their last change
	made     int                      // changes of slow topologies
	// write is called before each write: of a record, and to give addresses back. May be nil.
	write func(what string) error
	notes []string // of each pass
	log   bytes.Buffer
	// logs writes log, for each keeper after a restart too: an earlier one may still write.
	logs slog.Handler
	// releasing is called before each release. May be nil.
	releasing func(id reconcile.SandboxID)
}

// writes calls write.
func (w *world) writes(what string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.write == nil {
		return nil
	}
	return w.write(what)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, netns: map[string]uint64{}, held: map[reconcile.SandboxID]reconcile.Record{}, slow: map[string]time.Duration{}, stubborn: map[string]bool{}, slips: map[string]int{}}
	w.restart(t.TempDir(), "boot")
	return w
}

// restart starts another process on the same directory.
func (w *world) restart(dir, bootID string) {
	w.t.Helper()
	j, err := journal.Open(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	w.store, err = claims.Open(claims.Options{
		Dir: filepath.Join(dir, "claims"), Locker: j, BootID: bootID,
		Replace: func(path string, data []byte, o recordfile.Options) (uint64, error) {
			if err := w.writes("record " + filepath.Base(path)); err != nil {
				return 0, err
			}
			return recordfile.Replace(path, data, o)
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		w.t.Fatal(err)
	}
	w.gate = gate.Dir(filepath.Join(dir, "cdi"))
	w.logs = cmp.Or(w.logs, slog.Handler(slog.NewTextHandler(&w.log, nil)))
	w.Keeper = attachment.New(attachment.Options{
		TopologyFile: func(own, rdma, beside []string) (string, error) { return fmt.Sprint(own, rdma, beside), nil },
		Store:        w.store, Engine: w, Gate: w.gate, Contracts: registry, Reporter: w, Identify: w.identify, Now: time.Now,
		GiveBack: func(uid types.UID) error { return w.writes("give back " + string(uid)) },
		Refine:   func(context.Context, *claims.Claim, [][]topology.StepResult) error { return nil },
		Ended: func(outcome fault.Kind, _ time.Duration) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ended = append(w.ended, outcome)
		},
		Follow: func(context.Context, *claims.Topology, *v1alpha1.NetworkTopology) error { return w.follow },
		Log:    slog.New(w.logs),
	})
}

func (w *world) identify(path string) (reconcile.NetnsID, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if inode := w.netns[path]; inode != 0 {
		return reconcile.NetnsID{Inode: inode}, nil
	}
	return reconcile.NetnsID{}, fault.New(fault.Gone, fmt.Errorf("no namespace %q", path))
}

// Ensure implements attachment.Engine.
func (w *world) Ensure(ctx context.Context, sb reconcile.Sandbox) (reconcile.Report, error) {
	if err := w.takeTime(ctx, sb); err != nil {
		return reconcile.Report{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = append(w.done, "+"+string(sb.ID))
	if sb.Topology.Name == w.failAt {
		return reconcile.Report{}, fault.New(fault.Unsupported, errors.New("no such thing"))
	}
	if w.fails[sb.Topology.Generation] {
		if w.half {
			w.held[sb.ID] = reconcile.Record{Sandbox: sb, BootID: w.store.BootID, Phase: reconcile.Failed}
		}
		return reconcile.Report{}, fault.New(fault.Unsupported, errors.New("not this generation"))
	}
	w.held[sb.ID] = reconcile.Record{Sandbox: sb, BootID: w.store.BootID, Phase: reconcile.Applied, Results: w.results}
	return reconcile.Report{Sandbox: sb.ID, Results: w.results, Notes: w.notes}, nil
}

// Release implements attachment.Engine.
func (w *world) Release(_ context.Context, id reconcile.SandboxID) (reconcile.Report, error) {
	if w.releasing != nil {
		w.releasing(id)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.held[id]; !known {
		return reconcile.Report{Unchanged: true}, nil
	}
	w.done = append(w.done, "-"+string(id))
	if w.stuck != "" && strings.HasSuffix(string(id), w.stuck) {
		return reconcile.Report{}, fault.New(fault.NotReady, errors.New("device has not returned"))
	}
	delete(w.held, id)
	return reconcile.Report{}, nil
}

// IDs implements attachment.Engine.
func (w *world) IDs() ([]reconcile.SandboxID, []error) {
	var out []reconcile.SandboxID
	records, errs := w.List()
	for _, r := range records {
		out = append(out, r.Sandbox.ID)
	}
	return out, errs
}

// List implements attachment.Engine.
func (w *world) List() ([]reconcile.Record, []error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []reconcile.Record
	for _, r := range w.held {
		out = append(out, r)
	}
	return out, nil
}

// Record implements attachment.Engine.
func (w *world) Record(id reconcile.SandboxID) (reconcile.Record, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rec, known := w.held[id]
	return rec, known, w.unread
}

// Attaching implements attachment.Reporter.
func (w *world) Attaching(_ attachment.Pod, c claims.Claim, at attachment.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reported = append(w.reported, fmt.Sprintf("attaching %s: %d of %d", c.Name, at.Done, at.Planned))
}

// Attached implements attachment.Reporter.
func (w *world) Attached(_ attachment.Pod, c claims.Claim, _ []reconcile.Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reported = append(w.reported, "attached "+c.Name)
}

// Failed implements attachment.Reporter.
func (w *world) Failed(_ attachment.Pod, c claims.Claim, _ error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reported = append(w.reported, "failed "+c.Name)
}

// Updated implements attachment.Reporter.
func (w *world) Updated(c claims.Claim, topology string, from int64, _ reconcile.Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reported = append(w.reported, fmt.Sprintf("updated %s from %d to %d", topology, from, c.Topology(topology).Object.Generation))
}

// Detached implements attachment.Reporter.
func (w *world) Detached(c claims.Claim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reported = append(w.reported, "detached "+c.Name)
}

// Replaced implements attachment.Reporter.
func (w *world) Replaced(c claims.Claim, container string, variables []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reported = append(w.reported, fmt.Sprintf("replaced %s %s %v", c.Name, container, variables))
}

// prepare records a claim with these topologies for pod "p".
func (w *world) prepare(uid types.UID, topologies ...string) {
	w.t.Helper()
	w.prepareFor(uid, "p", topologies...)
}

// prepareFor records a claim for another pod.
func (w *world) prepareFor(uid, pod types.UID, topologies ...string) {
	w.t.Helper()
	c := claims.Claim{UID: uid, Namespace: "ns", Name: "claim-" + string(uid), Pod: claims.Pod{Name: string(pod), UID: pod}}
	for _, name := range topologies {
		c.Topologies = append(c.Topologies, claims.Topology{Object: v1alpha1.NetworkTopology{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: "t-uid", Generation: 1},
			Spec:       v1alpha1.NetworkTopologySpec{Steps: []v1alpha1.Step{{Name: "d", Type: "dummy"}}},
		}})
	}
	if err := w.store.Put(c); err != nil {
		w.t.Fatal(err)
	}
}

// prepareDevice records a claim of pod "p" with a step that gives device nodes.
func (w *world) prepareDevice(uid types.UID, topology string) claims.Claim {
	w.t.Helper()
	w.prepare(uid, topology)
	e, _, err := w.store.Get(uid)
	if err != nil {
		w.t.Fatal(err)
	}
	t := &e.Topologies[0]
	t.Prepared, t.Object.Spec.Steps = true, append(t.Object.Spec.Steps, v1alpha1.Step{Name: "v", Type: "vfio-pci"})
	w.ok(w.store.Put(e.Claim))
	return e.Claim
}

// sandbox returns a sandbox of pod "p".
func (w *world) sandbox(id string, inode uint64) attachment.Pod {
	w.netns["/netns/"+id] = inode
	return attachment.Pod{Sandbox: id, UID: "p", Namespace: "ns", Name: "p", Netns: "/netns/" + id}
}

func (w *world) want(done ...string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.done, done) {
		w.t.Errorf("calls of the engine:\n%v\nwant\n%v", w.done, done)
	}
	w.done = nil
}

func (w *world) wantGate(uid types.UID, sandbox string) {
	w.t.Helper()
	if open := w.gate.OpenFor(uid); open != sandbox {
		w.t.Errorf("gate of claim %q is open for %q, want %q", uid, open, sandbox)
	}
}

// wantGates holds that these claims, and no others, have a gate that the runtime finds.
func (w *world) wantGates(uids ...types.UID) {
	w.t.Helper()
	have, err := w.gate.List()
	if err != nil || !slices.Equal(have, uids) {
		w.t.Errorf("gates of claims %q (%v), want %q", have, err, uids)
	}
}

func (w *world) wantPhase(uid types.UID, sandbox string, phase claims.Phase) {
	w.t.Helper()
	e, known, err := w.store.Get(uid)
	if err != nil || !known {
		w.t.Fatalf("claim %q: known %t, %v", uid, known, err)
	}
	have := claims.Phase("")
	if s := e.Sandbox(sandbox); s != nil {
		have = s.Phase
	}
	if have != phase {
		w.t.Errorf("claim %q in sandbox %q is %q, want %q", uid, sandbox, have, phase)
	}
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Error(err)
	}
}

func (w *world) refused(err error, kind fault.Kind, text string) {
	w.t.Helper()
	if err == nil || fault.Of(err) != kind || !strings.Contains(err.Error(), text) {
		w.t.Errorf("error %q of kind %s, want kind %s and %q", err, fault.Of(err), kind, text)
	}
}

// env is the environment of a container that was created through an open gate.
func env(uid types.UID, sandbox string) []string {
	return []string{"PLUMBLINE_CLAIM_" + strings.ToUpper(string(uid)) + "=" + string(uid) + "/" + sandbox}
}

// TestPrepareFirst: the devices of a claim are prepared before its sandbox, and restored
// after it; their nodes are in the gate, also in one that was lost and is opened again.
func TestPrepareFirst(t *testing.T) {
	w := newWorld(t)
	c := w.prepareDevice("a", "t1")
	w.results = []topology.StepResult{{Name: "v", Result: topology.Result{Devices: &topology.Devices{DeviceNodes: []string{"/dev/vfio/42"}}}}}
	pod := w.sandbox("s1", 1)
	w.ok(w.Prepare(t.Context(), &c))
	w.want("+prepared/a/t1")
	w.ok(w.Attach(t.Context(), pod))
	w.want("+s1/a/t1")
	nodes := func(when string) {
		t.Helper()
		files, _ := filepath.Glob(filepath.Join(string(w.gate), "*.json"))
		if len(files) != 1 {
			t.Fatalf("%s: gates %v", when, files)
		}
		if data, err := os.ReadFile(files[0]); err != nil || !strings.Contains(string(data), "/dev/vfio/42") {
			t.Errorf("%s: %v: %s", when, err, data)
		}
	}
	nodes("attached")
	w.ok(w.gate.Close("a"))
	w.ok(w.Synchronize([]attachment.Pod{pod}))
	nodes("opened again")
	w.ok(w.Withdraw(t.Context(), "a"))
	w.want("-s1/a/t1", "-prepared/a/t1")
}

// gives adds steps to a prepared claim's topology that give the device nodes.
func (w *world) gives(uid types.UID, nodes []string, steps ...v1alpha1.Step) {
	w.t.Helper()
	e, _, err := w.store.Get(uid)
	w.ok(err)
	e.Topologies[0].Object.Spec.Steps = steps
	w.ok(w.store.Put(e.Claim))
	last := steps[len(steps)-1].Name
	w.results = []topology.StepResult{{Name: last, Result: topology.Result{Devices: &topology.Devices{RDMADevice: "pl0", DeviceNodes: nodes}}}}
}

// wantNodes holds the device nodes in the gate of a claim.
func (w *world) wantNodes(uid types.UID, nodes ...string) {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(string(w.gate), gate.FilePrefix+string(uid)+".json"))
	var spec cdi.Spec
	if err != nil || json.Unmarshal(data, &spec) != nil || len(spec.Devices) != 1 {
		w.t.Fatalf("gate of claim %q: %v: %s", uid, err, data)
	}
	var have []string
	for _, n := range spec.Devices[0].ContainerEdits.DeviceNodes {
		have = append(have, n.Path)
	}
	if !slices.Equal(have, nodes) {
		w.t.Errorf("containers of claim %q get the device nodes %q, want %q", uid, have, nodes)
	}
}

// TestRDMANodes: a step whose device has RDMA, and one that makes an RDMA device on another step's interface, bring the device nodes that
// they have given when the network was attached.
func TestRDMANodes(t *testing.T) {
	for name, steps := range map[string][]v1alpha1.Step{
		"function":        {{Name: "vf", Type: "sriov"}},
		"function of OVN": {{Name: "port", Type: "ovn-k8s-cni-overlay"}}, // which a step gets or not
		"software":        {{Name: "d", Type: "dummy"}, {Name: "roce", Type: "rxe", DependOn: []string{"d"}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.prepare("a", "t1")
			nodes := []string{"/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"}
			w.gives("a", nodes, steps...)
			w.ok(w.Attach(t.Context(), w.sandbox("s1", 1)))
			w.wantNodes("a", nodes...)
		})
	}
}

// TestNotesOfAttachment: what apply would note for a pod is in the log of the agent, with the pod.
func TestNotesOfAttachment(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1")
	w.notes = []string{`step "roce": programs of the pod hang`}
	w.ok(w.Attach(t.Context(), w.sandbox("s1", 1)))
	if said := w.log.String(); !strings.Contains(said, `programs of the pod hang`) || !strings.Contains(said, "sandbox=s1/a/t1") {
		t.Errorf("logged:\n%s", said)
	}
}

func TestLife(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1", "t2")
	w.prepare("b", "t3")
	pod := w.sandbox("s1", 1)

	w.ok(w.Attach(t.Context(), pod))
	w.want("+s1/a/t1", "+s1/a/t2", "+s1/b/t3")
	w.wantGate("a", "s1")
	w.wantGate("b", "s1")
	w.ok(w.Admit(t.Context(), pod, env("a", "s1")))
	w.ok(w.Attach(t.Context(), pod)) // the other agent's hook
	w.want()

	// One claim of two is withdrawn; the other stays.
	w.ok(w.Withdraw(t.Context(), "a"))
	w.want("-s1/a/t2", "-s1/a/t1")
	w.wantGate("a", "")
	w.wantGate("b", "s1")

	w.ok(w.Detach(t.Context(), pod))
	w.ok(w.Forget(t.Context(), pod))
	w.want("-s1/b/t3")
	w.wantGate("b", "")
	w.wantPhase("b", "s1", claims.Released)
	for range 2 {
		w.ok(w.Withdraw(t.Context(), "b"))
	}
	w.want()
	if entries, _ := w.store.List(); len(entries) != 0 || len(w.held) != 0 {
		t.Errorf("left: %v, %v", entries, w.held)
	}
	if want := []string{"attached claim-a", "attached claim-b", "detached claim-b"}; !slices.Equal(w.reported, want) {
		t.Errorf("reported %q, want %q", w.reported, want)
	}
}

func TestForeignPods(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1")
	foreign := w.sandbox("s9", 9)
	foreign.UID = "q"
	w.ok(w.Attach(t.Context(), foreign))
	w.ok(w.Admit(t.Context(), foreign, []string{"PATH=/bin"}))
	w.refused(w.Admit(t.Context(), foreign, env("a", "s1")), fault.Conflict, "not prepared for this pod")
	w.ok(w.Detach(t.Context(), foreign))
	w.want()

	host := w.sandbox("s1", 1)
	host.Netns = ""
	w.refused(w.Attach(t.Context(), host), fault.Invalid, "hostNetwork")
	w.refused(w.Admit(t.Context(), host, nil), fault.Invalid, "hostNetwork")
	w.want()
	w.wantGate("a", "")
}

// TestAnotherNamespace: a claim is attached again where another namespace is mounted at the path of its sandbox.
func TestAnotherNamespace(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1")
	pod := w.sandbox("s1", 1)
	w.ok(w.Attach(t.Context(), pod))
	w.ok(w.Attach(t.Context(), pod)) // which changes nothing
	w.want("+s1/a/t1")
	w.ok(w.Attach(t.Context(), w.sandbox("s1", 2)))
	w.want("+s1/a/t1")
	e, _, err := w.store.Get("a")
	w.ok(err)
	if s := e.Sandbox("s1"); s.Phase != claims.Attached || s.NetnsID.Inode != 2 {
		t.Errorf("recorded: %+v", s)
	}
	w.ok(w.Synchronize([]attachment.Pod{pod}))
	w.wantGate("a", "s1")
	w.sandbox("s1", 3)
	w.ok(w.Synchronize([]attachment.Pod{pod}))
	w.wantGate("a", "")
}

// TestSealedHandlers: where the containers of a pod do not live in the namespace of its sandbox, only device
// nodes reach them, and the gate of other claims stays closed with the reason.
func TestSealedHandlers(t *testing.T) {
	w := newWorld(t)
	w.SealedHandlers = []string{"kata*"}
	w.prepare("a", "t1")
	w.prepareDevice("b", "t2")
	pod := w.sandbox("s1", 1)
	pod.Handler = "kata-qemu"
	w.refused(w.Attach(t.Context(), pod), fault.Unsupported, `step "d"`)
	w.refused(w.Admit(t.Context(), pod, nil), fault.Unsupported, `"kata-qemu"`)
	w.want()
	w.wantGate("a", "")
	if want := []string{"failed claim-a", "failed claim-a"}; !slices.Equal(w.reported, want) {
		t.Errorf("reported %q, want %q", w.reported, want)
	}
	w.ok(w.Withdraw(t.Context(), "a"))
	w.refused(w.Attach(t.Context(), pod), fault.Unsupported, `step "d"`) // beside the one that gives a node

	w.prepareDevice("b", "t2")
	e, _, err := w.store.Get("b")
	w.ok(err)
	e.Topologies[0].Object.Spec.Steps = e.Topologies[0].Object.Spec.Steps[1:]
	w.ok(w.store.Put(e.Claim))
	w.results = []topology.StepResult{{Name: "v", Result: topology.Result{Devices: &topology.Devices{DeviceNodes: []string{"/dev/vfio/42"}}}}}
	w.ok(w.Prepare(t.Context(), &e.Claim))
	w.ok(w.Attach(t.Context(), pod))
	w.wantGate("b", "s1")

	w.prepareFor("c", "p2", "t3")
	other := w.sandbox("s2", 2)
	other.UID, other.Handler = "p2", "runc"
	w.ok(w.Attach(t.Context(), other))
	w.wantGate("c", "s2")
}

// TestFailure holds that one failing claim leaves none attached, and that the
// next container tries again.
func TestFailure(t *testing.T) { synctest.Test(t, testFailure) }

func testFailure(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1", "t2")
	w.prepare("b", "t3")
	pod := w.sandbox("s1", 1)
	w.failAt = "t3"
	w.refused(w.Attach(t.Context(), pod), fault.Unsupported, `claim "claim-b": no such thing`)
	w.want("+s1/a/t1", "+s1/a/t2", "+s1/b/t3", "-s1/a/t2", "-s1/a/t1")
	w.wantGate("a", "")
	w.wantGate("b", "")
	w.wantPhase("a", "s1", claims.Failed)
	w.refused(w.Admit(t.Context(), pod, nil), fault.Unsupported, "no such thing")
	w.wantPhase("a", "s1", claims.Failed)
	w.failAt = ""
	w.done = nil
	w.ok(w.Admit(t.Context(), pod, nil))
	w.want("+s1/a/t1", "+s1/a/t2", "+s1/b/t3")
	w.wantGate("a", "s1")
	w.wantGate("b", "s1")
}

// TestNewSandbox holds that the newest sandbox has the claim, and that late calls for
// the old one do not touch it.
func TestNewSandbox(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1")
	old, next := w.sandbox("s1", 1), w.sandbox("s2", 2)
	w.ok(w.Attach(t.Context(), old))
	w.ok(w.Attach(t.Context(), next))
	w.want("+s1/a/t1", "-s1/a/t1", "+s2/a/t1")
	w.wantGate("a", "s2")

	w.ok(w.Detach(t.Context(), old))
	w.ok(w.Forget(t.Context(), old))
	w.want()
	w.wantGate("a", "s2")
	w.wantPhase("a", "s2", claims.Attached)
	w.refused(w.Attach(t.Context(), old), fault.Gone, "has been stopped")
	w.refused(w.Admit(t.Context(), next, env("a", "s1")), fault.Conflict, "created for sandbox")
	w.ok(w.Admit(t.Context(), next, env("a", "s2")))
	w.want()
}

// TestStopFirst holds that a late attachment does not outlive the stop of its sandbox.
func TestStopFirst(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1")
	pod := w.sandbox("s1", 1)
	w.ok(w.Detach(t.Context(), pod))
	w.refused(w.Attach(t.Context(), pod), fault.Gone, "has been stopped")
	w.want()
	w.wantGate("a", "")
}

func TestStuckRelease(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1", "t2")
	pod := w.sandbox("s1", 1)
	w.ok(w.Attach(t.Context(), pod))
	w.done = nil
	w.stuck = "t2"
	w.refused(w.Detach(t.Context(), pod), fault.NotReady, "has not returned")
	w.want("-s1/a/t2", "-s1/a/t1") // the rest is released nevertheless
	w.wantGate("a", "")
	w.wantPhase("a", "s1", claims.Stopping)
	w.refused(w.Withdraw(t.Context(), "a"), fault.NotReady, "has not returned")
	if _, known, _ := w.store.Get("a"); !known {
		t.Error("forgotten although something of it is left")
	}
	w.stuck, w.done = "", nil
	w.ok(w.Withdraw(t.Context(), "a"))
	w.want("-s1/a/t2")
}

// TestCrash covers the states that another process may find.
func TestCrash(t *testing.T) {
	t.Run("in the middle of an attachment", func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		pod := w.sandbox("s1", 1)
		e, _, _ := w.store.Get("a")
		e.Set(claims.Sandbox{ID: "s1", PodUID: "p", Netns: pod.Netns, NetnsID: reconcile.NetnsID{Inode: 1}, Phase: claims.Attaching})
		w.ok(w.store.PutSandboxes(e))
		w.ok(w.Admit(t.Context(), pod, nil))
		w.want("+s1/a/t1")
		w.wantGate("a", "s1")
	})
	t.Run("before the gate", func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(t.Context(), pod))
		w.ok(w.gate.Close("a"))
		w.ok(w.Synchronize([]attachment.Pod{pod}))
		w.wantGate("a", "s1")
		w.want("+s1/a/t1")
	})
}

// run lets Run empty its queue. It is for tests in a bubble (inBubble).
func (w *world) run() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	go w.Run(ctx)
	synctest.Wait()
	if n := w.Pending(); n != 0 {
		w.t.Errorf("%d sandboxes wait still", n)
	}
	cancel()
	synctest.Wait()
}

// inBubble runs a test with a fake clock (synctest).
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestSynchronize(t *testing.T) {
	inBubble(t, "a sandbox that was missed", func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		w.ok(w.Synchronize([]attachment.Pod{w.sandbox("s1", 1)}))
		w.run()
		w.want("+s1/a/t1")
		w.wantGate("a", "s1")
	})
	inBubble(t, "the end of one that was missed", func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(t.Context(), pod))
		delete(w.netns, pod.Netns)
		w.ok(w.Synchronize(nil))
		w.wantGate("a", "") // at once
		w.run()
		w.want("+s1/a/t1", "-s1/a/t1")
		w.wantPhase("a", "s1", claims.Released)
	})
	inBubble(t, "one that is being made", func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(t.Context(), pod)) // by the agent before this one
		w.ok(w.Synchronize(nil))
		w.run()
		w.want("+s1/a/t1")
		w.wantPhase("a", "s1", claims.Attached)
		w.wantGate("a", "s1")
		w.ok(w.Admit(t.Context(), pod, nil))
	})
	inBubble(t, "both, of one pod", func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		old := w.sandbox("s1", 1)
		w.ok(w.Attach(t.Context(), old))
		delete(w.netns, old.Netns)
		w.ok(w.Synchronize([]attachment.Pod{old, w.sandbox("s2", 2)})) // a stopped one stays listed
		w.run()
		w.want("+s1/a/t1", "-s1/a/t1", "+s2/a/t1")
		w.wantGate("a", "s2")
	})
	inBubble(t, "two that stand", func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		one, two := w.sandbox("s1", 1), w.sandbox("s2", 2)
		w.ok(w.Attach(t.Context(), two))
		w.ok(w.Synchronize([]attachment.Pod{one, two}))
		w.run()
		w.want("+s2/a/t1")
		w.refused(w.Admit(t.Context(), one, nil), fault.Conflict, `attached to sandbox "s2"`)
		w.wantGate("a", "s2")
	})
	inBubble(t, "an unknown gate", func(t *testing.T) {
		w := newWorld(t)
		w.ok(w.gate.Open("zz", "s1", "/n", gate.Gives{}))
		w.ok(w.Synchronize(nil))
		w.wantGate("zz", "")
	})
	inBubble(t, "a claim of another version", func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(t.Context(), pod))
		w.want("+s1/a/t1")
		w.prepare("b", "t2")
		path := filepath.Join(w.store.Dir, "a.claim")
		data, err := os.ReadFile(path)
		w.ok(err)
		w.ok(os.WriteFile(path, append([]byte("9"), data[1:]...), 0o600))
		delete(w.netns, pod.Netns)
		w.ok(w.Synchronize(nil))
		w.run()
		w.wantGate("a", "s1") // only the other version may close it
		w.refused(w.Withdraw(t.Context(), "a"), fault.Conflict, "written by another version")
		w.want()
		w.ok(w.Withdraw(t.Context(), "b"))
	})
	inBubble(t, "namespaces out of sight", func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(t.Context(), pod))
		dir := filepath.Dir(string(w.gate))
		w.restart(dir, "boot")
		delete(w.netns, pod.Netns) // invisible to us: its directory is not mounted here
		w.ok(w.Synchronize([]attachment.Pod{pod}))
		w.run()
		w.want("+s1/a/t1")
	})
}

// TestSweep holds that the end of a sandbox is found although it is not reported.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(t.Context(), pod))
		ctx, cancel := context.WithCancel(t.Context())
		go w.Run(ctx)
		time.Sleep(time.Minute)
		w.want("+s1/a/t1")
		w.mu.Lock()
		w.netns[pod.Netns] = 2 // another namespace is at the path
		w.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		w.want("-s1/a/t1")
		w.wantGate("a", "")
		cancel()
		synctest.Wait()
	})
}

// TestLostGate: a gate that someone has deleted is opened again by the sweep, without a call of a hook; one that is closed stays closed.
func TestLostGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.serve(t)()
		for _, uid := range []types.UID{"a", "b"} {
			w.prepareFor(uid, "pod-"+uid, "t1")
		}
		pod := w.sandbox("s1", 1)
		pod.UID = "pod-a"
		w.ok(w.Attach(t.Context(), pod))
		w.wantGate("a", "s1")
		w.ok(w.gate.Close("a"))
		time.Sleep(time.Minute)
		w.wantGate("a", "s1")
		w.wantGate("b", "")
	})
}

// TestStuckReleases holds that sandboxes that cannot be released delay no other, and
// that they are released soon after that is possible, without a call.
func TestStuckReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, uid := range []types.UID{"a", "b", "c"} {
			w.prepare(uid, "t1")
		}
		w.ok(w.Attach(t.Context(), w.sandbox("s1", 1)))
		ctx, cancel := context.WithCancel(t.Context())
		go w.Run(ctx)
		w.stuck = "t1"
		begun := time.Now()
		for _, uid := range []types.UID{"a", "b", "c"} {
			if err := w.Withdraw(t.Context(), uid); fault.Of(err) != fault.NotReady {
				t.Errorf("withdraw %s: %v", uid, err)
			}
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("kubelet waited %s", took)
		}
		time.Sleep(2 * time.Second)
		w.mu.Lock()
		w.stuck = ""
		w.mu.Unlock()
		begun = time.Now()
		for w.attachedAnywhere("a", "b", "c") {
			time.Sleep(10 * time.Millisecond)
			if time.Since(begun) > 5*time.Second { // long before the next sweep
				t.Fatal("nobody tries again")
			}
		}
		for _, uid := range []types.UID{"a", "b", "c"} {
			w.ok(w.Withdraw(t.Context(), uid))
		}
		cancel()
		synctest.Wait()
	})
}

// TestRetriesDuringRelease: what fails while the release of another claim of the pod is under way is tried again when that has
// succeeded, and not by the next sweep.
func TestRetriesDuringRelease(t *testing.T) {
	for name, fails := range map[string]func(w *world, pod attachment.Pod){
		"another claim is withdrawn": func(w *world, _ attachment.Pod) {
			w.setStuck("t2")
			w.refused(w.Withdraw(w.t.Context(), "b"), fault.NotReady, "has not returned")
			w.setStuck("")
		},
		"the sandbox is stopped": func(w *world, pod attachment.Pod) {
			ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
			defer cancel()
			if err := w.Detach(ctx, pod); err == nil {
				w.t.Error("no error")
			}
		},
	} {
		inBubble(t, name, func(t *testing.T) {
			w := newWorld(t)
			w.prepare("a", "t1")
			w.prepare("b", "t2")
			pod := w.sandbox("s1", 1)
			w.ok(w.Attach(t.Context(), pod))
			defer w.serve(t)()
			w.setStuck("t1")
			w.refused(w.Withdraw(t.Context(), "a"), fault.NotReady, "has not returned")
			var once sync.Once
			w.mu.Lock()
			w.stuck = ""
			w.releasing = func(id reconcile.SandboxID) {
				if strings.HasSuffix(string(id), "t1") {
					once.Do(func() { fails(w, pod) })
				}
			}
			w.mu.Unlock()
			time.Sleep(5 * time.Second) // long before the next sweep
			if w.attachedAnywhere("a", "b") {
				t.Error("nobody tries again")
			}
		})
	}
}

// TestWithdrawOne: one of a pod's claims is withdrawn while the pod runs, and its device does not return
// at once. Nothing happens to the other claim, neither when that is tried again nor by a sweep nor by
// the next process; all is released with the sandbox.
func TestWithdrawOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		w.prepare("b", "t2")
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(t.Context(), pod))
		w.want("+s1/a/t1", "+s1/b/t2")
		w.stuck = "t1"
		kept := func() {
			t.Helper()
			w.wantGate("a", "")
			w.wantGate("b", "s1")
			w.wantPhase("a", "s1", claims.Stopping)
			w.wantPhase("b", "s1", claims.Attached)
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.done) < 2 || slices.ContainsFunc(w.done, func(c string) bool { return c != "-s1/a/t1" }) {
				t.Errorf("calls of the engine: %v", w.done)
			}
			w.done = nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		go w.Run(ctx)
		w.refused(w.Withdraw(t.Context(), "a"), fault.NotReady, "has not returned")
		time.Sleep(2 * time.Minute)
		kept()
		cancel()
		synctest.Wait()

		w.restart(filepath.Dir(string(w.gate)), "boot")
		ctx, cancel = context.WithCancel(t.Context())
		w.ok(w.Synchronize([]attachment.Pod{pod}))
		go w.Run(ctx)
		time.Sleep(2 * time.Minute)
		kept()

		w.mu.Lock()
		w.stuck = ""
		w.mu.Unlock()
		time.Sleep(time.Minute)
		w.wantPhase("a", "s1", claims.Released)
		w.wantPhase("b", "s1", claims.Attached)
		w.ok(w.Withdraw(t.Context(), "a"))
		w.ok(w.Admit(t.Context(), pod, env("b", "s1")))
		w.mu.Lock()
		w.done = nil
		delete(w.netns, pod.Netns) // the sandbox has ended, which nobody has said
		w.mu.Unlock()
		time.Sleep(time.Minute)
		w.want("-s1/b/t2")
		w.wantGate("b", "")
		cancel()
		synctest.Wait()
	})
}

// attachedAnywhere reports whether a sandbox has something of the claims.
func (w *world) attachedAnywhere(uids ...types.UID) bool {
	w.t.Helper()
	return slices.ContainsFunc(uids, func(uid types.UID) bool {
		e, _, err := w.store.Get(uid)
		w.ok(err)
		return e.Held()
	})
}

// TestNextSandboxWaits holds that the next sandbox of a pod waits for the devices of the
// earlier one, with its gate closed.
func TestNextSandboxWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		w.ok(w.Attach(t.Context(), w.sandbox("s1", 1)))
		w.stuck = "t1"
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		w.ok(w.Attach(ctx, w.sandbox("s2", 2)))
		w.wantGate("a", "")
		time.AfterFunc(time.Second, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.stuck = ""
		})
		begun := time.Now()
		w.ok(w.Attach(t.Context(), w.sandbox("s3", 3)))
		if took := time.Since(begun); took < time.Second || took > 1500*time.Millisecond {
			t.Errorf("it took %s", took)
		}
		w.wantGate("a", "s3")
	})
}

// TestReboot holds that the sandboxes of an earlier boot are forgotten, except those that
// are not of a runtime.
func TestReboot(t *testing.T) { synctest.Test(t, testReboot) }

func testReboot(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1")
	id := strings.Repeat("0a", 32)
	w.ok(w.Attach(t.Context(), w.sandbox(id, 1)))
	w.held["file/blue/t"] = reconcile.Record{Sandbox: reconcile.Sandbox{ID: "file/blue/t"}, BootID: "boot"}
	w.restart(filepath.Dir(string(w.gate)), "next")
	w.run()
	w.want("+"+id+"/a/t1", "-"+id+"/a/t1")
	w.wantPhase("a", id, "")
	w.ok(w.Attach(t.Context(), w.sandbox("s2", 2)))
	w.want("+s2/a/t1")
}

// TestWaiting holds that a prepared claim waits until a sandbox of its pod is attached, and again when that has ended.
func TestWaiting(t *testing.T) {
	w := newWorld(t)
	waits := func(when string, claims ...types.UID) {
		t.Helper()
		if have := w.Waiting(); !slices.Equal(have, claims) {
			t.Errorf("%s: %q wait, want %q", when, have, claims)
		}
	}
	waits("at first")
	w.prepare("a", "t1")
	waits("prepared", "a")
	pod := w.sandbox("s1", 1)
	w.ok(w.Attach(t.Context(), pod))
	waits("attached")
	w.ok(w.Detach(t.Context(), pod))
	waits("released", "a")
}
