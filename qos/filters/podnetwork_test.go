package filters

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/controller"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestOfPodNetwork holds what a pod without a claim has on its own network: the rules of objects that select no network, or that
// network by its labels, as they are now; that nothing is decided before the pod is known; and that the node reports on it.
func TestOfPodNetwork(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	f, n := crowded(t, 0)
	f.Contracts, f.Pause, f.Missing, f.podsRead = registry, time.Nanosecond, NewMissing(), true
	object := v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "pods", UID: "t", Labels: map[string]string{"rail": "blue"}}}
	f.PodTopology = func(name string) (*v1alpha1.NetworkTopology, bool) { return &object, name == "pods" }
	rec := reconcile.Record{Phase: reconcile.Applied, Sandbox: reconcile.Sandbox{
		ID: reconcile.IDOfPrimary("c", "eth0", "pods"), Pod: &reconcile.Pod{Namespace: "ns", Name: "p", UID: "u"},
		Topology: &topology.Topology{Name: "pods", Steps: []topology.Step{{Name: "eth", Type: "bridge"}}},
	}}
	owner := types.UID(reconcile.OwnerOfPrimary("c", "eth0"))
	f.Claims = func() []claims.Entry { e, _ := PodNetwork(&rec); return []claims.Entry{e} }
	var applied []types.UID
	var failed error
	updates := f.Updates(func(_ context.Context, uid types.UID) (bool, error) {
		applied = append(applied, uid)
		return true, failed
	})
	put := func(generation int64, spec string) {
		t.Helper()
		content := map[string]any{}
		if err := yaml.Unmarshal([]byte("{apiVersion: k8s.ovn.org/v1alpha1, kind: NetworkQoS, metadata: {namespace: ns, name: q, uid: q}, spec: {priority: 1, "+spec+"}}"), &content); err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{Object: content}
		u.SetGeneration(generation)
		n.put(objectOf(u))
	}
	marks := func() (out []uint8) {
		t.Helper()
		rules, err := f.OfPodNetwork(&rec.Sandbox)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range rules.Filters {
			if o.DSCP != nil && o.Family != nil && *o.Family == netstate.IPv4 {
				out = append(out, *o.DSCP)
			}
		}
		return out
	}
	pod := claims.Pod{Name: "p", UID: "u"}
	if _, err := f.OfPodNetwork(&rec.Sandbox); fault.Of(err) != fault.NotReady || fault.Of(f.KnownOnPrimary("ns", pod)) != fault.NotReady {
		t.Fatalf("a pod that is not known: %v, %v", err, f.KnownOnPrimary("ns", pod))
	}
	// The API server's object of a static pod has another UID than the pod has for its runtime.
	mirror := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: "other", Annotations: map[string]string{"kubernetes.io/config.mirror": "u"}}}
	f.putPod(types.NamespacedName{Namespace: "ns", Name: "p"}, podLabels{uidOf(mirror), map[string]string{"app": "web"}})
	put(1, "egress: [{dscp: 10, classifier: {to: [{podSelector: {}}, {ipBlock: {cidr: 192.0.2.0/24}}]}}], podSelector: {matchLabels: {app: web}}")
	if err := f.KnownOnPrimary("ns", pod); err != nil {
		t.Errorf("destinations that are pods: %v", err)
	}
	if have := marks(); len(have) != 1 || have[0] != 10 {
		t.Errorf("marks %v, want 10 for the addresses alone", have)
	}
	n.write("q", &destinations{of: 1, sets: map[qos.SetID][]netip.Addr{
		{Policy: types.NamespacedName{Namespace: "ns", Name: "q"}, Network: qos.NetworkID{Kind: qos.NetworkTopology, Name: "pods"}}: {netip.MustParseAddr("10.244.0.9")},
	}})
	if have := marks(); len(have) != 2 {
		t.Errorf("marks %v, want 10 for the addresses, and for the pod", have)
	}
	reported := func() v1alpha1.QoSReport {
		t.Helper()
		out, ok := f.report().(*v1alpha1.NetworkQoSReport)
		if !ok || len(out.Objects) != 1 {
			t.Fatalf("report %+v", out)
		}
		return out.Objects[0]
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	f.follow(ctx, &wg)
	defer wg.Wait()
	defer stop()
	settle := func() {
		for f.queue.Len() > 0 || f.behind[owner] {
			updates.next(t.Context())
		}
	}
	settle()
	applied = nil
	if r := reported(); r.Pods != 1 || r.InPlace != 1 {
		t.Errorf("report %+v", r)
	}
	for i, step := range []struct {
		spec    string
		mark    uint8 // 0: none
		reaches bool
	}{
		{"egress: [{dscp: 20}]", 20, true},
		{"egress: [{dscp: 30}], networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {matchLabels: {rail: blue}}}}]", 30, true},
		{"egress: [{dscp: 40}], networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {matchLabels: {rail: red}}}}]", 0, true},
		{"egress: [{dscp: 50}], podSelector: {matchLabels: {app: db}}", 0, false},
		{"egress: [{dscp: 60}], networkSelectors: [{networkSelectionType: DefaultNetwork}]", 60, true},
	} {
		put(int64(i+2), step.spec)
		settle()
		have := marks()
		if step.mark == 0 && len(have) > 0 || step.mark > 0 && (len(have) != 1 || have[0] != step.mark) || (len(applied) > 0) != step.reaches {
			t.Errorf("%s: marks %v, applied %v", step.spec, have, applied)
		}
		for _, uid := range applied {
			if uid != owner {
				t.Errorf("applied %q", uid)
			}
		}
		applied = nil
	}
	f.Missing.Drift(rec.Sandbox.ID, "pods", []reconcile.Drift{{Object: netstate.ClsactKey("eth0"), Action: netstate.Create}})
	if r := reported(); r.InPlace != 0 || r.Problem == "" {
		t.Errorf("filters are missing: %+v", r)
	}
	f.Missing.Forget(rec.Sandbox.ID)
	failed = fault.New(fault.Unsupported, errors.New("no cls_flower"))
	put(10, "egress: [{dscp: 1}]")
	settle()
	if r := reported(); r.InPlace != 0 || r.Problem != "no cls_flower" {
		t.Errorf("an update failed: %+v", r)
	}
	if _, ok := PodNetwork(&reconcile.Record{Sandbox: reconcile.Sandbox{ID: rec.Sandbox.ID, Topology: rec.Sandbox.Topology}}); ok {
		t.Error("a record without a pod is listed")
	}
	// Without a pod network, such objects are no matter of the agent.
	f.PodTopology = nil
	put(11, "egress: [{dscp: 1}]")
	if len(n.known) != 0 || len(n.share.Policies()) != 0 {
		t.Errorf("kept %v", n.known)
	}
}

// TestDestinationsOnPodNetwork: what the controller says of pods that are destinations on their primary network becomes filters on the own
// network of a pod: their primary addresses of both families, as long as they have them. Before it is known a pod starts
// without, and a running one is left alone.
func TestDestinationsOnPodNetwork(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	f, n := crowded(t, 0)
	f.Contracts, f.Pause = registry, time.Nanosecond
	f.PodTopology = func(name string) (*v1alpha1.NetworkTopology, bool) {
		return &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "pods", UID: "t"}}, true
	}
	sb := reconcile.Sandbox{
		ID: reconcile.IDOfPrimary("c", "eth0", "pods"), Pod: &reconcile.Pod{Namespace: "ns", Name: "p", UID: "u"},
		Topology: &topology.Topology{Name: "pods", Steps: []topology.Step{{Name: "eth", Type: "bridge"}}},
	}
	owner := types.UID(reconcile.OwnerOfPrimary("c", "eth0"))
	f.putPod(types.NamespacedName{Namespace: "ns", Name: "p"}, podLabels{uid: "u"})
	content := map[string]any{}
	if err := yaml.Unmarshal([]byte(`{apiVersion: k8s.ovn.org/v1alpha1, kind: NetworkQoS, metadata: {namespace: ns, name: q, uid: q}, spec: {priority: 1,
egress: [{dscp: 10, classifier: {to: [{podSelector: {matchLabels: {app: db}}}]}}]}}`), &content); err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGeneration(1)
	n.put(objectOf(u))
	to := func() string {
		t.Helper()
		rules, err := f.OfPodNetwork(&sb)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, o := range rules.Filters {
			out = append(out, *o.To)
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	if have := to(); have != "" || f.settled(f.claims[owner]) {
		t.Errorf("before the controller has written: filters to %q", have)
	}

	d := controller.NewDestinations()
	d.PodNetwork = true
	policy, _ := qos.Read(u)
	d.SetPolicy(policy)
	d.SetPrimary("pods", nil, false)
	write := func() {
		t.Helper()
		_, status := d.Status(policy.Key)
		object := &v1alpha1.NetworkQoSDestinations{Destinations: *status}
		object.Annotations = map[string]string{v1alpha1.AnnotationQoSName: "q"}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			t.Fatal(err)
		}
		f.behind[owner] = false
		n.write("q", destinationsOf("ns", &unstructured.Unstructured{Object: content}))
	}
	db, web := types.NamespacedName{Namespace: "ns", Name: "db"}, types.NamespacedName{Namespace: "ns", Name: "web"}
	both := []netip.Addr{netip.MustParseAddr("10.244.0.9"), netip.MustParseAddr("fd00::9")}
	d.SetPod(db, "1", map[string]string{"app": "db"}, both)
	d.SetPod(web, "2", map[string]string{"app": "web"}, []netip.Addr{netip.MustParseAddr("10.244.0.10")})
	for _, step := range []struct {
		what   string
		change func()
		want   string
	}{
		{"a pod with both families", func() {}, "10.244.0.9/32 fd00::9/128"},
		{"another pod has the label", func() {
			d.SetPod(web, "2", map[string]string{"app": "db"}, []netip.Addr{netip.MustParseAddr("10.244.0.10")})
		}, "10.244.0.10/32 10.244.0.9/32 fd00::9/128"},
		{"the first one ends", func() { d.DeletePod(db) }, "10.244.0.10/32"},
		{"the other one uses the host's network", func() { d.SetPod(web, "3", map[string]string{"app": "db"}, nil) }, ""},
		{"the first one is there again", func() { d.SetPod(db, "1", map[string]string{"app": "db"}, both) }, "10.244.0.9/32 fd00::9/128"},
		{"no topology is the primary network", func() { d.SetPrimary("pods", nil, true) }, ""},
		{"it is again", func() { d.SetPrimary("pods", nil, false) }, "10.244.0.9/32 fd00::9/128"},
	} {
		step.change()
		write()
		if !f.behind[owner] {
			t.Errorf("%s: the running pod is not updated", step.what)
		}
		if have := to(); have != step.want || !f.settled(f.claims[owner]) {
			t.Errorf("%s: filters to %q, want %q", step.what, have, step.want)
		}
	}
}
