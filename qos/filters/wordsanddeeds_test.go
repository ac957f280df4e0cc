package filters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	qoscontroller "github.com/plumbline/plumbline/qos/controller"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/claimstatus"
	"github.com/plumbline/plumbline/reconcile/pod/gate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// pod is the kernel of a pod's node, as package netstate models it.
type pod struct {
	*netstate.Snapshot
	refuse func(netstate.Change) error
}

func (p *pod) Observe(ctx context.Context, queried []netstate.Object) (*netstate.Snapshot, error) {
	seen := netstate.NewSnapshot(netstate.All[netstate.Object](p.Snapshot)...)
	return seen, p.Extend(ctx, seen, queried)
}

func (p *pod) Extend(_ context.Context, seen *netstate.Snapshot, queried []netstate.Object) error {
	for _, o := range queried {
		if _, written := p.Get(o.Key()); written {
			continue
		}
		if sysctl, ok := o.(netstate.Sysctl); ok {
			seen.Put(netstate.Sysctl{Path: sysctl.Path, Value: new("0")})
		} else if !seen.Known(o) {
			seen.PutAbsent(o.Key())
		}
	}
	return nil
}

func (p *pod) Apply(_ context.Context, c netstate.Change) error {
	if p.refuse != nil {
		if err := p.refuse(c); err != nil {
			return err
		}
	}
	p.Snapshot.Apply(c)
	return nil
}

func (*pod) NetnsID() reconcile.NetnsID { return reconcile.NetnsID{Inode: 1} }
func (*pod) Close() error               { return nil }

// told is a node with a pod whose reports are read as a user reads them.
type told struct {
	t        *testing.T
	pod      *pod
	engine   *reconcile.Reconciler
	keeper   *attachment.Keeper
	follower *Follower
	updates  *Updates
	reporter claimstatus.Claims
	kube     *kubernetes.Clientset
	objects  *namespace
	recorder recorders
	topology *v1alpha1.NetworkTopology
	qos      *unstructured.Unstructured

	claim   *resourceapi.ResourceClaim
	written chan *resourceapi.ResourceClaim
}

const (
	sandboxID = reconcile.SandboxID("s/c/rail")
	onHost    = "host:nic0"
	mtuBefore = 1400 // of the first generation of the topology
)

// newTold attaches a pod whose topology has a VLAN with an address, on which a NetworkQoS sets a mark.
func newTold(t *testing.T, policy v1alpha1.DriftPolicy) *told {
	t.Helper()
	n := &told{t: t, written: make(chan *resourceapi.ResourceClaim, 1)}
	n.pod = &pod{Snapshot: netstate.NewSnapshot(
		netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), MTU: new(uint32(65536)), Master: new("")},
		netstate.Link{Name: onHost, LinkKind: "device", MAC: new("02:00:00:00:00:01"), MTU: new(uint32(1500)), Up: new(false), Master: new("")},
		netstate.Device{ID: "0000:01:00.0", At: new(onHost), MAC: new("02:00:00:00:00:01"), MTU: new(uint32(1500)), Up: new(false)},
	)}
	dir := t.TempDir()
	j, err := journal.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	store, err := claims.Open(claims.Options{Dir: filepath.Join(dir, "claims"), Locker: j, BootID: "b"})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(n)
	t.Cleanup(server.Close)
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	n.kube = kube
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	n.reporter = claimstatus.Claims{Reporter: claimstatus.New(claimstatus.Options{Client: kube, Log: quiet, Settle: time.Nanosecond}), Contracts: registry}
	n.follower, n.objects = crowded(t, 0)
	n.follower.Missing = NewMissing()
	drift := claimstatus.NewDriftReport(claimstatus.DriftOptions{
		Reporter: n.reporter.Reporter, Record: j.Get,
		Claim: func(uid types.UID) (claims.Claim, bool) { e, known, _ := store.Get(uid); return e.Claim, known },
	})
	n.recorder = recorders{drift, n.follower.Missing}
	n.engine = reconcile.New(reconcile.Options{
		Registry: registry, Store: j, BootID: "b", Patience: time.Nanosecond, Recorder: n.recorder,
		Open: func(string) (reconcile.Domain, error) { return n.pod, nil },
	})
	n.keeper = attachment.New(attachment.Options{
		Store: store, Engine: n.engine, Gate: gate.Dir(filepath.Join(dir, "cdi")), Contracts: registry, Reporter: n.reporter, Now: time.Now, Log: quiet,
		Identify: func(string) (reconcile.NetnsID, error) { return reconcile.NetnsID{Inode: 1}, nil },
		GiveBack: func(types.UID) error { return nil },
		Refine:   func(context.Context, *claims.Claim, [][]topology.StepResult) error { return nil },
		Follow:   func(context.Context, *claims.Topology, *v1alpha1.NetworkTopology) error { return nil },
		Filters:  n.follower.Of,
	})
	n.follower.Contracts, n.follower.Reporter = registry, n.reporter
	n.updates = n.follower.Updates(n.keeper.Refilter)
	n.follower.Claims = func() []claims.Entry { all, _ := store.List(); return all }
	n.follower.Pause, n.follower.podsRead = time.Nanosecond, true
	n.follower.pods[types.NamespacedName{Namespace: "ns", Name: "p"}] = podLabels{"u", nil}

	n.topology = &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "rail", UID: "t", Generation: 1, Labels: map[string]string{"rail": "storage"}}}
	n.topology.Spec.DriftPolicy = policy
	n.mtu(mtuBefore)
	n.follower.topologies["rail"] = &network{n.topology.UID, n.topology.Labels}
	n.rule(1, 1)
	n.allocate()
	if err := store.Put(claims.Claim{
		UID: "c", Namespace: "ns", Name: "c", Pod: claims.Pod{Name: "p", UID: "u"}, Prepared: time.Now(),
		Topologies: []claims.Topology{{Object: *n.topology, Devices: []claims.Device{{Device: claim.Device{Step: "nic", Pool: "n1", Name: "nic"}, Host: inventory.Device{ID: "0000:01:00.0", Name: "nic"}}}}},
	}); err != nil {
		t.Fatal(err)
	}
	if err := n.keeper.Attach(t.Context(), attachment.Pod{Sandbox: "s", UID: "u", Namespace: "ns", Name: "p", Netns: "/run/netns/s"}); err != nil {
		t.Fatal(err)
	}
	n.refiltered()
	return n
}

// recorders are several as one.
type recorders []interface {
	reconcile.Recorder
	Contended(id reconcile.SandboxID, topology string, contended []reconcile.Contention)
}

func (r recorders) Contended(id reconcile.SandboxID, topology string, contended []reconcile.Contention) {
	for _, o := range r {
		o.Contended(id, topology, contended)
	}
}

func (r recorders) Pass(p reconcile.Pass) {
	for _, o := range r {
		o.Pass(p)
	}
}

func (r recorders) Drift(id reconcile.SandboxID, topology string, drift []reconcile.Drift) {
	for _, o := range r {
		o.Drift(id, topology, drift)
	}
}

func (r recorders) Forget(id reconcile.SandboxID) {
	for _, o := range r {
		o.Forget(id)
	}
}

// mtu is the MTU of the topology's VLAN.
func (n *told) mtu(mtu int) {
	n.topology.Spec.Steps = []v1alpha1.Step{
		{Name: "nic", Type: "host-device"},
		{Name: "v", Type: "vlan", DependOn: []string{"nic"}, Config: &runtime.RawExtension{Raw: fmt.Appendf(nil, `{"id": 7, "name": "v0", "mtu": %d, "addresses": ["192.0.2.5/24"]}`, mtu)}},
	}
}

// rule gives the namespace a NetworkQoS with a mark.
func (n *told) rule(generation, dscp int) {
	n.t.Helper()
	content := map[string]any{}
	if err := yaml.Unmarshal(fmt.Appendf(nil, `{apiVersion: k8s.ovn.org/v1alpha1, kind: NetworkQoS, metadata: {namespace: ns, name: q, uid: q}, spec: {priority: 1, egress: [{dscp: %d}],
networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {matchLabels: {rail: storage}}}}]}}`, dscp), &content); err != nil {
		n.t.Fatal(err)
	}
	n.qos = &unstructured.Unstructured{Object: content}
	n.qos.SetGeneration(int64(generation))
	n.objects.put(objectOf(n.qos))
}

// refiltered has the follower update the claims that are behind.
func (n *told) refiltered() {
	n.t.Helper()
	for n.follower.queue.Len() > 0 || len(n.follower.behind) > 0 && n.follower.behind["c"] {
		n.updates.next(n.t.Context())
	}
}

// allocate makes the claim as the scheduler leaves it.
func (n *told) allocate() {
	n.t.Helper()
	config, err := json.Marshal(claim.Config{NetworkTopologyRef: claim.TopologyRef{Name: "rail"}, Step: "nic"})
	if err != nil {
		n.t.Fatal(err)
	}
	n.claim = &resourceapi.ResourceClaim{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"}, ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c"}}
	n.claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "nic", Driver: claim.Driver, Pool: "n1", Device: "nic"}},
		Config: []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClass, Requests: []string{"nic"},
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: config}}},
		}},
	}}
}

// ServeHTTP answers for the claim as the API server does.
func (n *told) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	answer := n.claim.DeepCopy()
	switch {
	case !strings.Contains(r.URL.Path, "/resourceclaims/"):
		event, err := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		if _, failed := w.Write(event); err != nil || failed != nil {
			n.t.Log(err, failed)
		}
		return
	case r.Method == http.MethodPatch:
		if err := json.NewDecoder(r.Body).Decode(answer); err != nil {
			n.t.Error(err)
		}
		answer.Status.Allocation = n.claim.Status.Allocation
		select {
		case n.written <- answer:
		default:
		}
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		n.t.Error(err)
	}
}

// said returns all that users are told: the conditions by kind and type.
func (n *told) said() map[string]metav1.Condition {
	n.t.Helper()
	ctx, stop := context.WithCancel(n.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.reporter.Run(ctx) }()
	now := <-n.written
	stop()
	if err := <-ended; err != nil {
		n.t.Fatal(err)
	}
	out := map[string]metav1.Condition{}
	add := func(kind string, of []metav1.Condition) {
		for _, c := range of {
			out[kind+" "+c.Type] = c
		}
	}
	for _, d := range now.Status.Devices {
		add("ResourceClaim", d.Conditions)
	}
	var runs []controller.Run
	for _, reported := range claim.Reports(now) {
		reported.Node = "n1"
		runs = append(runs, controller.Run{Namespace: "ns", Claim: "c", PodUID: "u", Reported: reported})
	}
	add("NetworkTopology", controller.StatusOf(n.topology, controller.Outcome{Steps: 2, Classes: 1, Use: controller.Use{Claims: 1, Pods: 1, Runs: runs}}).Conditions)
	report, _ := n.follower.report().(*v1alpha1.NetworkQoSReport)
	if report == nil {
		n.t.Fatal("the node reports nothing of NetworkQoS")
	}
	p, _ := qos.Read(n.qos)
	reports := qoscontroller.NewReports(func(map[string]bool) {})
	reports.Set("n1", report.Objects)
	add("NetworkQoS", qoscontroller.Ready(p, reports.Sum("ns", []*qos.Policy{p})["q"]))
	return out
}

// done reads from the kernel what each condition says, if it is true.
func (n *told) done() map[string]error {
	vlan, there := n.pod.Link("v0")
	_, addressed := n.pod.Get(netstate.Addr{Link: "v0", Address: "192.0.2.5/24"}.Key())
	p, _ := qos.Read(n.qos)
	marked := slices.ContainsFunc(netstate.All[netstate.Filter](n.pod.Snapshot), func(f netstate.Filter) bool {
		return f.Link == "v0" && f.DSCP != nil && p != nil && int(*f.DSCP) == int(p.Rules[0].DSCP)
	})
	var attached, inSync, marks, updated error
	if !there || !addressed {
		attached = errors.New("v0 or its address is missing")
	}
	if n.topology.Generation > 1 && there && *vlan.MTU == mtuBefore {
		updated = errors.New("v0 has the MTU of an earlier generation")
	}
	if !there || !marked {
		marks = errors.New("v0 does not have the filter of the object")
	}
	if !there || !addressed || !marked || n.topology.Generation == 1 && *vlan.MTU != mtuBefore {
		inSync = errors.New("v0 is not as the topology and the object say")
	}
	return map[string]error{"ResourceClaim Ready": attached, "ResourceClaim InSync": inSync, "NetworkTopology Updated": updated, "NetworkQoS Ready": marks}
}

// elsewhere are the conditions that say nothing of what a node has done, or that other tests read back, with the reason.
var elsewhere = map[string]string{
	"NetworkTopology Ready":          "of Valid and Programmed",
	"NetworkTopology Valid":          "of the object alone",
	"NetworkTopology Programmed":     "of DeviceClasses, which TestControlPlane reads from an API server",
	"NetworkTopology InUse":          "of claims that the API server has",
	"NetworkTopology ClaimTemplates": "of ResourceClaimTemplates, which TestControlPlane reads from an API server",
	"NetworkTopology Shared":         "of DeviceExposurePolicies that the API server has; the scheduler decides by what nodes publish",
	"AddressPool Valid":              "of the object alone",
	"AddressPool Overlap":            "of pools and networks that the API server has",
	"AddressPool Exhausted":          "of AddressLeases, which a node writes before it uses their addresses",
	"AddressPool Low":                "as Exhausted",
	"NetworkQoS Accepted":            "TestConditionsAreTrue",
	"NetworkQoS Tied":                "of objects that the API server has",
	"NetworkQoS MarkingUnsupported":  "says what is not enforced, of devices in the records of claims: TestReport",
	"DeviceExposurePolicy Valid":     "of the object alone",
	"DeviceExposurePolicy Ready":     "of the reports of nodes on what they publish, in TestPolicyStatus of package controller and TestControlPlane",
	"ResourceClaim LinkUp":           "of a reading of the port: TestLinks of package claimstatus, and TestWatched on nodes",
}

// TestEachConditionIsHeld holds that each condition that our objects can have is read back in TestWordsAndDeeds, or named in
// elsewhere.
func TestEachConditionIsHeld(t *testing.T) {
	pool := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "pool"}, Spec: v1alpha1.AddressPoolSpec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24"}}}}
	layout, err := addresspool.Of(pool)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string][]metav1.Condition{
		"NetworkTopology": controller.StatusOf(&v1alpha1.NetworkTopology{Spec: v1alpha1.NetworkTopologySpec{UpdatePolicy: v1alpha1.InPlace}}, controller.Outcome{
			Templates: &controller.Templates{Wanted: true}, Shares: &controller.Shares{Steps: 1},
		}).Conditions,
		"AddressPool":          controller.PoolStatus(pool, layout, addresspool.Shared{}, nil, nil).Conditions,
		"NetworkQoS":           qoscontroller.Conditions([]*qos.Policy{{}}, func(*qos.Policy) (d qoscontroller.Decision) { return d }, []v1alpha1.NetworkTopology{{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Spec: v1alpha1.NetworkTopologySpec{Role: v1alpha1.Primary}}}, nil, true, nil)[0].Conditions,
		"DeviceExposurePolicy": controller.PolicyStatus(&v1alpha1.DeviceExposurePolicy{}, &exposure.Policy{}, controller.PolicySum{}, nil).Conditions,
		"ResourceClaim":        {{Type: claimstatus.Ready}, {Type: claimstatus.InSync}, {Type: claimstatus.LinkUp}},
	}
	read := newTold(t, v1alpha1.Repair).done()
	have := map[string]bool{}
	for kind, conditions := range kinds {
		for _, c := range conditions {
			what := kind + " " + c.Type
			have[c.Type], have[what] = true, true
			if _, is := read[what]; !is && elsewhere[what] == "" {
				t.Errorf("nothing reads back %s", what)
			}
		}
	}
	for what := range elsewhere {
		if !have[what] {
			t.Errorf("there is no condition %s", what)
		}
	}
	for _, file := range []string{"topology/v1alpha1/networktopology.go", "topology/v1alpha1/addresspool.go", "topology/v1alpha1/deviceexposurepolicy.go", "qos/v1alpha1/networkqos.go"} {
		source, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^\tCondition\w+ += "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
			if !have[m[1]] {
				t.Errorf("%s: nothing writes the condition %s here", file, m[1])
			}
		}
	}
}

// disturbed makes the changes of a program in the pod.
func (n *told) disturbed(changes ...netstate.Change) {
	for _, c := range changes {
		n.pod.Snapshot.Apply(c)
	}
}

func (n *told) unmarked() {
	for _, f := range netstate.All[netstate.Filter](n.pod.Snapshot) {
		n.disturbed(netstate.Change{Before: f})
	}
}

var errRefused = errors.New("operation not permitted")

// refuses has the kernel refuse changes of a kind.
func (n *told) refuses(kind netstate.Kind) {
	n.pod.refuse = func(c netstate.Change) error {
		if c.Key().Kind == kind {
			return errRefused
		}
		return nil
	}
}

// TestWordsAndDeeds holds that no condition about what runs in a pod is true unless it was read from the kernel of the node: after
// a pod's program, the kernel or an edit has got in the way, and the agent has done what it can.
func TestWordsAndDeeds(t *testing.T) {
	for _, tt := range []struct {
		name    string
		policy  v1alpha1.DriftPolicy
		happens func(n *told)
		allTrue bool
		not     string // the condition that does not say what is read
	}{
		{"attached", v1alpha1.Repair, func(*told) {}, true, ""},
		{"the filter is deleted, and repaired", v1alpha1.Repair, func(n *told) {
			n.unmarked()
			_, _ = n.engine.Repair(n.t.Context(), sandboxID)
		}, true, ""},
		{"the filter is deleted, which is only observed", v1alpha1.Observe, func(n *told) {
			n.unmarked()
			_, _ = n.engine.Check(n.t.Context(), sandboxID)
		}, false, ""},
		{"the filter is deleted, and the kernel refuses a new one", v1alpha1.Repair, func(n *told) {
			n.unmarked()
			n.refuses(netstate.KindFilter)
			_, _ = n.engine.Repair(n.t.Context(), sandboxID)
		}, false, ""},
		{"the link is deleted, and the kernel refuses a new one", v1alpha1.Repair, func(n *told) {
			link, _ := n.pod.Link("v0")
			n.disturbed(netstate.Change{Before: link})
			n.refuses(netstate.KindLink)
			_, _ = n.engine.Repair(n.t.Context(), sandboxID)
		}, false, ""},
		{"the MTU is changed, which is only observed", v1alpha1.Observe, func(n *told) {
			link, _ := n.pod.Link("v0")
			after := link
			after.MTU = new(uint32(1280))
			n.disturbed(netstate.Change{Before: link, After: after})
			_, _ = n.engine.Check(n.t.Context(), sandboxID)
		}, false, ""},
		{"the link is deleted, which is only observed", v1alpha1.Observe, func(n *told) {
			link, _ := n.pod.Link("v0")
			n.disturbed(netstate.Change{Before: link})
			_, _ = n.engine.Check(n.t.Context(), sandboxID)
		}, false, "ResourceClaim Ready"}, // it is of the time when the topology was last applied; InSync is of now
		{"the filter is deleted after each repair", v1alpha1.Repair, func(n *told) {
			n.unmarked()
			rep, _ := n.engine.Repair(n.t.Context(), sandboxID)
			n.unmarked()
			var contended []reconcile.Contention
			for _, d := range rep.Drift {
				contended = append(contended, reconcile.Contention{Step: d.Step, Object: d.Object, Action: d.Action})
			}
			n.recorder.Contended(sandboxID, "rail", contended)
		}, false, ""},
		{"another rule", v1alpha1.Repair, func(n *told) {
			n.rule(2, 2)
			n.refiltered()
		}, true, ""},
		{"another rule, which the kernel refuses", v1alpha1.Repair, func(n *told) {
			n.refuses(netstate.KindFilter)
			n.rule(2, 2)
			n.updates.next(n.t.Context())
		}, false, "ResourceClaim InSync"}, // it compares with the rules that the pod has been given
		{"an edit", v1alpha1.Repair, func(n *told) { n.edited(1300) }, true, ""},
		{"an edit that the kernel refuses", v1alpha1.Repair, func(n *told) {
			n.refuses(netstate.KindLink)
			n.edited(1300)
		}, false, ""},
		{"the pod has ended", v1alpha1.Repair, func(n *told) {
			if err := n.keeper.Detach(n.t.Context(), attachment.Pod{Sandbox: "s", UID: "u", Namespace: "ns", Name: "p"}); err != nil {
				n.t.Fatal(err)
			}
		}, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newTold(t, tt.policy)
			n.topology.Spec.UpdatePolicy = v1alpha1.InPlace
			tt.happens(n)
			said := n.said()
			for what, wrong := range n.done() {
				c, is := said[what]
				switch {
				case tt.allTrue && wrong != nil:
					t.Errorf("%s: %v", what, wrong)
				case tt.allTrue && c.Status != metav1.ConditionTrue:
					t.Errorf("%s is %s: %s", what, c.Status, c.Message)
				case is && c.Status == metav1.ConditionTrue && wrong != nil && what != tt.not:
					t.Errorf("%s is True (%s), and %v", what, c.Message, wrong)
				}
			}
		})
	}
}

// edited gives the pod the next generation of its topology.
func (n *told) edited(mtu int) {
	n.mtu(mtu)
	n.topology.Generation++
	err := n.keeper.Update(n.t.Context(), "c", n.topology)
	if err != nil {
		n.reporter.UpdateFailed(claims.Claim{UID: "c", Namespace: "ns", Name: "c"}, "rail", n.topology.Generation-1, n.topology.Generation, err)
	}
}
