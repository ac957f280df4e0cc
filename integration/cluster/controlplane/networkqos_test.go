//go:build cluster

package controlplane_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	qosof "github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/filters"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// filtered is the part of a node's agent that decides about filters, with pods whose
// sandboxes are those that it was last asked to apply.
type filtered struct {
	*bench
	*filters.Follower
	topologies table.Table[string, *v1alpha1.NetworkTopology]
	recorded   table.Changes // changes with claims

	mu       sync.Mutex
	claims   []claims.Entry
	has      map[types.UID][]string // the rules that the filters of a claim are of
	reported []string
	fails    error // of apply
}

// Filtered implements filters.Reporter.
func (f *filtered) Filtered(c claims.Claim) { f.report("filtered " + c.Name) }

// FilterFailed implements filters.Reporter.
func (f *filtered) FilterFailed(c claims.Claim, err error) {
	f.report(fmt.Sprintf("failed %s: %v", c.Name, err))
}

func (f *filtered) report(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reported = append(f.reported, what)
}

func (f *filtered) list() []claims.Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.claims)
}

// apply does a keeper's work for a sandbox.
func (f *filtered) apply(_ context.Context, uid types.UID) (bool, error) {
	for _, e := range f.list() {
		if e.UID != uid {
			continue
		}
		rules, err := f.rules(&e.Claim)
		if err != nil {
			return false, err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.fails != nil {
			return false, f.fails
		}
		changed := !slices.Equal(f.has[uid], rules)
		f.has[uid] = rules
		return changed, nil
	}
	return false, nil
}

// rules returns the rules of a claim's filters, without repetition.
func (f *filtered) rules(c *claims.Claim) ([]string, error) {
	all, err := f.Of(c, &c.Topologies[0])
	slices.SortStableFunc(all.Filters, func(a, b netstate.Filter) int { return cmp.Compare(a.Place, b.Place) })
	out := []string{}
	for _, o := range all.Filters {
		out = append(out, o.Rule)
	}
	return slices.Compact(out), err
}

func (f *filtered) want(t *testing.T, claim types.UID, rules ...string) {
	t.Helper()
	f.eventually(t, fmt.Sprintf("claim %s has %q", claim, rules), func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if have := f.has[claim]; have == nil || !slices.Equal(have, rules) && len(have)+len(rules) > 0 {
			return fmt.Errorf("it has %q (%q)", have, f.reported)
		}
		return nil
	})
}

// pod creates a pod on the node, and returns the record of its claim.
func (f *filtered) pod(t *testing.T, namespace, name string, labels map[string]string) claims.Entry {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	if err := f.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return claims.Entry{In: []claims.Sandbox{{ID: name, Phase: claims.Attached}}, Claim: claims.Claim{
		UID: types.UID("of-" + name), Namespace: namespace, Name: name, Pod: claims.Pod{Name: name, UID: p.UID},
		Topologies: []claims.Topology{{Object: v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "rail", UID: "t", Labels: map[string]string{"rail": "storage"}}}}},
	}}
}

func (f *filtered) prepared(e claims.Entry) {
	f.mu.Lock()
	f.claims = append(f.claims, e)
	f.mu.Unlock()
	f.recorded.Changed()
}

// qos is an object that marks what pods send over topologies with a label.
func qos(namespace, name, spec string) string {
	return "apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {namespace: " + namespace + ", name: " + name + "}\nspec: {" + spec + "}\n"
}

const onStorage = "networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {matchLabels: {rail: storage}}}}]"

// TestNetworkQoS: an agent compiles the objects of a real API server, with its rights
// alone: before the kind is served and after it, as objects, pods and topologies change.
func TestNetworkQoS(t *testing.T) {
	b := start(t)
	manifest, err := b.Chart(t.Context(), "networkQoS.enabled=true")
	if err != nil {
		t.Fatal(err)
	}
	crd, webhooks, written := "", []string{}, []string{}
	for doc := range strings.SplitSeq(manifest, "\n---\n") {
		switch {
		case strings.Contains(doc, "name: networkqoses.k8s.ovn.org"):
			crd = doc
		case field(doc, "kind: ") == "ClusterRole":
			b.mustKubectl(t, doc, "apply", "-f", "-")
		case field(doc, "kind: ") == "ValidatingWebhookConfiguration":
			webhooks = append(webhooks, b.served(doc))
		case strings.HasPrefix(field(doc, "kind: "), "ValidatingAdmissionPolicy") && strings.Contains(doc, "-destinations\n"):
			written = append(written, doc)
		}
	}
	config, err := b.ServiceAccount(t.Context(), cluster.ProductNamespace, "plumbline-agent", cluster.TokenFor{})
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	pods, err := metadata.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	contracts, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	f := &filtered{bench: b, has: map[types.UID][]string{}}
	f.Follower = filters.New(filters.Options{
		Client: objects, Pods: pods, NodeName: "n1", Contracts: contracts, Claims: f.list, Topologies: &f.topologies, WokenBy: []table.Source{&f.recorded}, Reporter: f, Pause: time.Millisecond, Again: time.Second,
		Spread: 50 * time.Millisecond, ReportPause: 50 * time.Millisecond, NodeUID: func() types.UID { return "of-n1" },
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Now: time.Now,
	})
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer running.Wait()
	defer stop()
	running.Go(func() { f.Run(ctx) })
	running.Go(func() { f.Updates(f.apply).Run(ctx) })

	for _, namespace := range []string{"ai", "other"} {
		b.mustKubectl(t, "", "create", "namespace", namespace)
		b.mustKubectl(t, "", "-n", namespace, "create", "serviceaccount", "default") // no controller manager does
	}
	a := f.pod(t, "ai", "a", map[string]string{"role": "store"})
	// Before anything is known of the namespace, nothing is attached.
	if _, err := f.Of(&a.Claim, &a.Topologies[0]); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), `NetworkQoS objects of namespace "ai" are not known`) {
		t.Errorf("error %v", err)
	}
	b.eventually(t, "what covers the pod is known, without the kind", func() error { return f.Known("ai", a.Pod) })
	f.prepared(a)
	f.topologies.Put("rail", &v1alpha1.NetworkTopology{ObjectMeta: a.Topologies[0].Object.ObjectMeta})
	f.want(t, "of-a")

	b.mustKubectl(t, crd, "apply", "-f", "-")
	b.eventually(t, "the kind is served", func() error {
		_, err := b.Kubectl(t.Context(), nil, "get", "networkqoses", "-A")
		return err
	})
	b.validated(t)
	b.mustKubectl(t, strings.Join(written, "\n---\n"), "apply", "-f", "-")
	b.run(t, "--network-qos=all")
	b.mustKubectl(t, qos("ai", "mark", "priority: 5, egress: [{dscp: 8, classifier: {to: [{ipBlock: {cidr: 192.0.2.0/24}}]}}], podSelector: {matchLabels: {role: store}}, "+onStorage), "apply", "-f", "-")
	f.want(t, "of-a", "ai/mark[0]")
	b.counts(t, f)

	// A pod of another namespace has nothing of it.
	o := f.pod(t, "other", "o", map[string]string{"role": "store"})
	b.eventually(t, "what covers the other pod is known", func() error { return f.Known("other", o.Pod) })
	f.prepared(o)
	f.want(t, "of-o")

	// Objects that are refused, and one about networks of others.
	b.mustKubectl(t, qos("ai", "bad", "priority: 9, egress: [{dscp: 8, classifier: {to: [{ipBlock: {cidr: nowhere}}]}}], "+onStorage)+"---\n"+
		qos("ai", "pods", "priority: 9, egress: [{dscp: 8, classifier: {to: [{podSelector: {}}]}}], "+onStorage)+"---\n"+
		qos("ai", "primary", "priority: 9, egress: [{dscp: 8}]"), "apply", "-f", "-")
	b.mustKubectl(t, qos("ai", "second", "priority: 4, egress: [{dscp: 9}], netAttachRefs: [{kind: NetworkTopology, name: rail}]"), "apply", "-f", "-")
	f.want(t, "of-a", "ai/mark[0]", "ai/second[0]")
	b.mustKubectl(t, qos("ai", "also", "priority: 4, egress: [{dscp: 7, classifier: {to: [{ipBlock: {cidr: 192.0.2.0/24}}]}}], podSelector: {matchLabels: {role: none}}, "+onStorage), "apply", "-f", "-")
	b.conditions(t, "ai", map[string]string{
		"also":    `True Accepted 1 rule; enforced by tc filters in pods, and by OVN QoS rows on OVN networks; True SamePrecedence rules of two objects match the same packets with the same precedence, and the object first by name decides: egress[0] and a rule of "second": "also" decides. Give them different priorities`,
		"second":  `True Accepted 1 rule; enforced by tc filters in pods, and by OVN QoS rows on OVN networks; True SamePrecedence rules of two objects match the same packets with the same precedence, and the object first by name decides: egress[0] and a rule of "also": "also" decides. Give them different priorities`,
		"mark":    `True Accepted 1 rule; enforced by tc filters in pods, and by OVN QoS rows on OVN networks; False NoTie no other object has a rule of the same precedence for the same packets`,
		"bad":     `False Invalid spec.egress[0].classifier.to[0].ipBlock.cidr: "nowhere" is not a prefix, such as 192.0.2.0/24 or 2001:db8::/32; False NoTie the object has no effect`,
		"pods":    `True Accepted 1 rule; enforced by tc filters in pods, and by OVN QoS rows on OVN networks; the pods that egress[0].classifier.to[0] selects have no address on these networks, so it matches no packet: use ipBlock for nodes and for pods on the host network; False NoTie no other object has a rule of the same precedence for the same packets`,
		"primary": `False NoTopology it selects no NetworkTopology, and nothing else is enforced. The primary network of pods is that of the CNI plugin: ovn-kubernetes enforces objects there, with its own CRD and controller. For networks of claims add networkSelectors with networkSelectionType NetworkTopologies; False NoTie the object has no effect`,
	})
	b.mustKubectl(t, "", "-n", "ai", "delete", "networkqos", "also")
	b.conditions(t, "ai", map[string]string{
		"second": `True Accepted 1 rule; enforced by tc filters in pods, and by OVN QoS rows on OVN networks; False NoTie no other object has a rule of the same precedence for the same packets`,
	})

	b.destinations(t, f, a)
	b.definition(t)
	b.networksByLabels(t, f)

	b.mustKubectl(t, "", "-n", "ai", "label", "pod", "a", "role-")
	f.want(t, "of-a", "ai/second[0]")
	b.mustKubectl(t, "", "-n", "ai", "label", "pod", "a", "role=store")
	f.want(t, "of-a", "ai/mark[0]", "ai/second[0]")
	f.topologies.Put("rail", &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "rail", UID: "t"}})
	f.want(t, "of-a", "ai/second[0]")
	f.topologies.Put("rail", nil) // it no longer exists
	b.mustKubectl(t, "", "-n", "ai", "delete", "networkqos", "second")
	f.want(t, "of-a")

	// More objects than are enforced of a namespace: the oldest are, pods start, and other namespaces do not notice.
	b.mustKubectl(t, qos("other", "mark", "priority: 5, egress: [{dscp: 8}], netAttachRefs: [{kind: NetworkTopology, name: rail}]"), "apply", "-f", "-")
	f.want(t, "of-o", "other/mark[0]")
	var many []string
	for i := range qosof.MaxObjects + 20 {
		many = append(many, qos("other", fmt.Sprintf("more-%03d", i), "priority: 1, egress: [{dscp: 8}], podSelector: {matchLabels: {role: none}}, netAttachRefs: [{kind: NetworkTopology, name: rail}]"))
	}
	b.mustKubectl(t, strings.Join(many, "---\n"), "create", "-f", "-")
	last := fmt.Sprintf("more-%03d", qosof.MaxObjects+19)
	b.conditions(t, "other", map[string]string{
		last: `False TooManyObjects not enforced: the namespace exceeds 256 NetworkQoS objects, 2048 KiB or 4096 labels and values, and older objects come first: delete some, or give them fewer destinations and labels; False NoTie the object has no effect`,
	})
	b.mustKubectl(t, "", "-n", "other", "patch", "networkqos", last, "--type=merge", "-p", `{"spec":{"podSelector":null}}`)
	b.mustKubectl(t, "", "-n", "other", "patch", "networkqos", "mark", "--type=merge", "-p", `{"spec":{"egress":[{"dscp":8,"classifier":{"to":[{"ipBlock":{"cidr":"192.0.2.0/24"}}]}},{"dscp":9,"classifier":{"to":[{"ipBlock":{"cidr":"192.0.2.0/25"}}]}}]}}`)
	f.want(t, "of-o", "other/mark[1]", "other/mark[0]") // and not the last one, which selects the pod too
	if err := f.Known("other", o.Pod); err != nil {
		t.Errorf("a pod that starts: %v", err)
	}
	// One that was left out is enforced when there is room.
	b.mustKubectl(t, "", "-n", "other", "delete", "networkqos", "--field-selector=metadata.name!="+last+",metadata.name!=mark")
	f.want(t, "of-o", "other/mark[1]", "other/mark[0]", "other/"+last+"[0]")
	b.mustKubectl(t, qos("ai", "second", "priority: 4, egress: [{dscp: 9}], netAttachRefs: [{kind: NetworkTopology, name: rail}]"), "apply", "-f", "-")
	f.want(t, "of-a", "ai/second[0]")

	// The pod is deleted while its sandbox is left: it keeps what it has.
	if err := b.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ai", Name: "a"}}, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	b.eventually(t, "the pod is not known any more", func() error {
		if f.Known("ai", a.Pod) == nil {
			return fmt.Errorf("it is")
		}
		return nil
	})
	b.mustKubectl(t, "", "-n", "ai", "delete", "networkqos", "second")
	f.want(t, "of-a", "ai/second[0]")
	b.admitted(t, strings.Join(webhooks, "\n---\n"))
}

// destinations holds that the addresses of the pods that are the destination of object pods are those
// of its filters in pod a, as the status of their claims has them, and for as long as it does.
func (b *bench) destinations(t *testing.T, f *filtered, a claims.Entry) {
	t.Helper()
	want := func(what string, addresses ...string) {
		t.Helper()
		began := time.Now()
		b.eventually(t, what, func() error {
			all, err := f.Of(&a.Claim, &a.Topologies[0])
			if err != nil {
				return err
			}
			var have []string
			for _, o := range all.Filters {
				if o.Rule == "ai/pods[0]" {
					have = append(have, *o.To)
				}
			}
			slices.Sort(have)
			if !slices.Equal(have, addresses) {
				return fmt.Errorf("the filters are to %q", have)
			}
			return nil
		})
		t.Logf("%s: the node has it after %s", what, time.Since(began).Round(time.Millisecond))
	}
	want("no pod has an address")
	b.mustKubectl(t, `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: rail, labels: {rail: storage}}
spec: {steps: [{name: d0, type: dummy}]}
`, "apply", "-f", "-")
	peers := map[string]*resourceapi.ResourceClaim{}
	holds := func(namespace, name string, addresses ...string) {
		t.Helper()
		c := peers[name]
		c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{
			Driver: claim.Driver, Pool: "n2", Device: "d", Data: &runtime.RawExtension{Raw: []byte(`{"topology":"rail"}`)},
			NetworkData: &resourceapi.NetworkDeviceData{InterfaceName: "net1", IPs: addresses},
		}}
		if err := b.Client.Status().Update(t.Context(), c); err != nil {
			t.Fatalf("%s/%s: %v", namespace, name, err)
		}
	}
	peer := func(namespace, name string, addresses ...string) {
		t.Helper()
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "db"}},
			Spec:       corev1.PodSpec{NodeName: "n2", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}
		if err := b.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "d", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "rail-d0", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}}}
		if err := b.Create(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "d", Driver: claim.Driver, Pool: "n2", Device: "d"}},
			Config: []resourceapi.DeviceAllocationConfiguration{{
				Source: resourceapi.AllocationConfigSourceClass,
				DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
					Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: []byte(`{"networkTopologyRef":{"name":"rail","uid":"t","generation":1},"step":"d0"}`)},
				}},
			}},
		}}
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: p.UID}}
		if err := b.Client.Status().Update(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		peers[name] = c
		holds(namespace, name, addresses...)
	}
	to := func(selectors string) {
		t.Helper()
		b.mustKubectl(t, "", "-n", "ai", "patch", "networkqos", "pods", "--type=json", "-p", `[{"op":"replace","path":"/spec/egress/0/classifier/to","value":[`+selectors+`]}]`)
	}
	peer("ai", "db-1", "192.0.2.50/24", "2001:db8::50/64")
	want("a pod with two addresses", "192.0.2.50/32", "2001:db8::50/128")
	holds("ai", "db-1", "192.0.2.51/24")
	want("another address", "192.0.2.51/32")
	b.quietWrites(t, func(i int) {
		holds("ai", "db-1", fmt.Sprintf("192.0.2.%d/24", 52+i))
		want("one more address", fmt.Sprintf("192.0.2.%d/32", 52+i))
	})
	holds("ai", "db-1", "192.0.2.51/24")
	want("the address of before", "192.0.2.51/32")
	to(`{"podSelector":{"matchLabels":{"app":"db"}}}`)
	want("an edit that selects the same", "192.0.2.51/32")
	to(`{"podSelector":{"matchLabels":{"app":"none"}}}`)
	want("an edit that selects none")
	to(`{"namespaceSelector":{"matchLabels":{"team":"data"}},"podSelector":{"matchLabels":{"app":"db"}}}`)
	peer("other", "db-2", "192.0.2.60/24")
	b.mustKubectl(t, "", "label", "namespace", "other", "team=data")
	want("the label of a namespace", "192.0.2.60/32")
	uid := b.mustKubectl(t, "", "-n", "ai", "get", "networkqos", "pods", "-o", "jsonpath={.metadata.uid}")
	if said := b.mustKubectl(t, "", "get", "networkqosdestinations", uid, "-o", "jsonpath={.destinations}"); said != `{"observedGeneration":4,"sets":[{"addresses":["192.0.2.60"],"rule":0,"to":0,"topology":"rail"}]}` {
		t.Errorf("it has %s", said)
	}
	b.readByTenants(t, "192.0.2.60")
	b.writtenByController(t, uid)
	b.mustKubectl(t, "", "delete", "networkqosdestinations", uid)
	b.eventually(t, "what was deleted is written again", func() error {
		_, err := b.Kubectl(t.Context(), nil, "get", "networkqosdestinations", uid)
		return err
	})
	want("and has the same", "192.0.2.60/32")
	b.mustKubectl(t, "", "-n", "ai", "label", "--overwrite", "pod", "db-1", "app=db") // no change
	b.mustKubectl(t, "", "label", "networktopology", "rail", "rail-")
	want("the object does not cover the topology for the controller")
	b.mustKubectl(t, "", "label", "networktopology", "rail", "rail=storage")
	want("and does again", "192.0.2.60/32")

	// The controller is stopped, and another one starts: it writes what has changed meanwhile.
	b.mustKubectl(t, qos("ai", "short", "priority: 1, egress: [{dscp: 8, classifier: {to: [{podSelector: {}}]}}], podSelector: {matchLabels: {role: none}}, "+onStorage), "apply", "-f", "-")
	short := b.mustKubectl(t, "", "-n", "ai", "get", "networkqos", "short", "-o", "jsonpath={.metadata.uid}")
	b.eventually(t, "a second object", func() error {
		_, err := b.Kubectl(t.Context(), nil, "get", "networkqosdestinations", short)
		return err
	})
	b.stop(t)
	holds("other", "db-2", "192.0.2.61/24")
	b.mustKubectl(t, "", "-n", "ai", "delete", "networkqos", "short")
	want("nobody writes", "192.0.2.60/32")
	b.run(t, "--network-qos=all")
	want("another controller", "192.0.2.61/32")
	b.noDestinations(t, "an object that was deleted meanwhile", short)
	if err := b.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "db-2"}}, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	want("the pod is deleted")
	to(`{"ipBlock":{"cidr":"198.51.100.0/24"}}`)
	want("addresses instead of pods", "198.51.100.0/24")
	b.noDestinations(t, "an object without destinations that are pods", uid)
	to(`{"podSelector":{}}`)
	b.eventually(t, "it has some again", func() error {
		_, err := b.Kubectl(t.Context(), nil, "get", "networkqosdestinations", uid)
		return err
	})
	b.mustKubectl(t, "", "-n", "ai", "delete", "networkqos", "pods")
	b.noDestinations(t, "a deleted object", uid)
	b.mustKubectl(t, "", "-n", "ai", "delete", "pod", "db-1", "--force", "--grace-period=0")
	f.want(t, "of-a", "ai/mark[0]", "ai/second[0]")
}

// noDestinations waits until nothing is written of an object.
func (b *bench) noDestinations(t *testing.T, what, uid string) {
	t.Helper()
	b.eventually(t, what, func() error {
		said, err := b.Kubectl(t.Context(), nil, "get", "networkqosdestinations", "--ignore-not-found", "-o", "name", uid)
		if err == nil && said != "" {
			return fmt.Errorf("there is %s", said)
		}
		return err
	})
}

// readByTenants holds that a user with all roles that a tenant may have in its namespace, and even every right there, reads an
// address of another namespace's pod in no object of the API groups that are ours.
func (b *bench) readByTenants(t *testing.T, address string) {
	t.Helper()
	b.mustKubectl(t, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: tenant, namespace: ai}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: everything, namespace: ai}
rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: everything, namespace: ai}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: everything}
subjects: [{kind: ServiceAccount, name: tenant, namespace: ai}]
`, "apply", "-f", "-")
	for _, role := range []string{"view", "edit", "admin"} {
		b.mustKubectl(t, "", "-n", "ai", "create", "rolebinding", "tenant-"+role, "--clusterrole="+role, "--serviceaccount=ai:tenant")
	}
	const as = "--as=system:serviceaccount:ai:tenant"
	read := 0
	for _, group := range []string{"k8s.ovn.org", "networking.dra.io", "cni.networking.k8s.io", "resource.k8s.io"} {
		for kind := range strings.FieldsSeq(b.mustKubectl(t, "", "api-resources", "--verbs=list", "-o", "name", "--api-group="+group)) {
			out, err := b.Kubectl(t.Context(), nil, "-n", "ai", "get", kind, "-o", "json", "--show-managed-fields", as)
			switch {
			case err != nil && !strings.Contains(err.Error(), "Forbidden") && !strings.Contains(err.Error(), "forbidden"):
				t.Errorf("%s: %v", kind, err)
			case err == nil:
				read++
			}
			if strings.Contains(out, address) {
				t.Errorf("a tenant reads %s in %s:\n%s", address, kind, out)
			}
		}
	}
	if read < 2 {
		t.Errorf("the tenant reads %d kinds", read)
	}
	if out, err := b.Kubectl(t.Context(), nil, "get", "networkqosdestinations", as); err == nil {
		t.Errorf("a tenant reads\n%s", out)
	}
}

// writtenByController holds that nobody else writes what agents enforce, not even a cluster administrator.
func (b *bench) writtenByController(t *testing.T, uid string) {
	t.Helper()
	b.eventually(t, "the policy is in force", func() error {
		out, err := b.Kubectl(t.Context(), nil, "patch", "networkqosdestinations", uid, "--type=merge", "--dry-run=server", "-p", `{"destinations":{"sets":[]}}`)
		if err == nil {
			return fmt.Errorf("patched: %s", out)
		}
		if !strings.Contains(err.Error(), "the controller writes these objects, and nobody else") {
			return err
		}
		return nil
	})
}

// quietWrites holds that the addresses that the controller writes do not have it read the objects again: an
// object has up to a thousand of them, and a namespace 256 objects.
func (b *bench) quietWrites(t *testing.T, change func(i int)) {
	t.Helper()
	reads := func() (n float64) {
		t.Helper()
		for line := range strings.Lines(b.mustKubectl(t, "", "get", "--raw", "/metrics")) {
			if strings.HasPrefix(line, "apiserver_request_total{") && strings.Contains(line, `resource="networkqoses"`) && strings.Contains(line, `verb="LIST"`) {
				value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
				if err != nil {
					t.Fatal(err)
				}
				n += value
			}
		}
		return n
	}
	const changes = 6 // at most one a second is written, after which a namespace is read
	before := reads()
	for i := range changes {
		change(i)
	}
	if n := reads() - before; n >= changes/2 {
		t.Errorf("%d changes of addresses had objects listed %.0f times", changes, n)
	}
}

// place is what plumbline validate says before the sentences of the webhook.
var place = regexp.MustCompile(`^plumbline: standard input:\d+: `)

// admitted holds that an invalid object is refused with the sentences of plumbline validate, unless it may be one
// that ovn-kubernetes accepts for its own networks, and that a webhook that does not answer refuses nothing.
func (b *bench) admitted(t *testing.T, webhooks string) {
	t.Helper()
	b.mustKubectl(t, webhooks, "apply", "-f", "-")
	b.registered(t, true)
	const nowhere = "egress: [{dscp: 8, classifier: {to: [{ipBlock: {cidr: nowhere}}]}}, {dscp: 9, classifier: {to: [{ipBlock: {cidr: elsewhere}}]}}]"
	invalid := qos("default", "invalid", "priority: 9, "+nowhere+", "+onStorage)
	b.eventually(t, "the webhook is asked about NetworkQoS objects", func() error {
		_, err := b.Kubectl(t.Context(), strings.NewReader(invalid), "create", "--dry-run=server", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), denied) {
			return fmt.Errorf("said: %w", err)
		}
		return nil
	})
	validate := exec.CommandContext(t.Context(), b.program, "validate", "-f", "-")
	validate.Stdin = strings.NewReader(invalid)
	said, err := validate.CombinedOutput()
	if err == nil {
		t.Fatalf("plumbline validate accepts\n%s", invalid)
	}
	want := ""
	for line := range strings.Lines(string(said)) {
		want += "\n  " + strings.TrimSpace(place.ReplaceAllString(line, ""))
	}
	if strings.Count(want, "\n") != 2 {
		t.Errorf("plumbline validate said %q, want two problems", said)
	}
	b.says(t, invalid, want)
	b.refused(t, qos("default", "invalid", "priority: 9, "+nowhere))
	b.mustKubectl(t, qos("default", "valid", "priority: 9, egress: [{dscp: 8}], "+onStorage), "create", "-f", "-")
	if said := b.mustRefuse(t, "", "-n", "default", "patch", "networkqos", "valid", "--type=merge", "-p", `{"spec":{"egress":[{"dscp":8,"classifier":{"to":[{"ipBlock":{"cidr":"nowhere"}}]}}]}}`); !strings.Contains(said, `"nowhere" is not a prefix`) {
		t.Errorf("an edit: said %s", said)
	}
	// One that was there before keeps what it has, and its labels can be changed.
	b.mustKubectl(t, "", "-n", "ai", "label", "networkqos", "bad", "a=b")

	b.stop(t)
	b.run(t, "--network-qos=topologies")
	b.mustKubectl(t, qos("default", "of-others", "priority: 9, "+nowhere), "create", "-f", "-")
	b.says(t, invalid, want)
	b.stop(t)
	b.mustKubectl(t, invalid, "create", "-f", "-")
}

// conditions waits until objects have these conditions, Accepted and Tied.
func (b *bench) conditions(t *testing.T, namespace string, want map[string]string) {
	t.Helper()
	for name, text := range want {
		b.eventually(t, "the conditions of "+name, func() error {
			said, err := b.Kubectl(t.Context(), nil, "-n", namespace, "get", "networkqos", name, "-o",
				`jsonpath={range .status.conditions[*]}{.status} {.reason} {.message}; {end}`)
			if err == nil && !strings.HasPrefix(said, text+"; ") { // Ready follows
				return fmt.Errorf("they are %s\nwant %s", said, text)
			}
			return err
		})
	}
}

// counts holds what the status of an object says of pods: as they are attached, as it changes,
// where it fails, and on many nodes.
func (b *bench) counts(t *testing.T, f *filtered) {
	t.Helper()
	status := func(want string) {
		t.Helper()
		b.eventually(t, "the status is "+want, func() error {
			said, err := b.Kubectl(t.Context(), nil, "-n", "ai", "get", "networkqos", "mark", "-o", `jsonpath={.metadata.generation}{range .status.conditions[?(@.type=="Ready")]} {.observedGeneration} {.status} {.reason}: {.message}{end}; `+
				`{range .status.conditions[?(@.type=="MarkingUnsupported")]}{.status}{end}; {range .status.backends[*]}{.backend} {.rules} {.pods} {.inPlace} {.markingUnsupported} {.nodes} {.failingNodes}{range .failing[*]} {.node}{end}{end}`)
			if err == nil && said != want {
				return fmt.Errorf("it is %s", said)
			}
			return err
		})
	}
	edit := func(dscp int) {
		t.Helper()
		b.mustKubectl(t, "", "-n", "ai", "patch", "networkqos", "mark", "--type=json", "-p", fmt.Sprintf(`[{"op":"replace","path":"/spec/egress/0/dscp","value":%d}]`, dscp))
	}
	fails := func(err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.fails = err
	}
	status(`1 1 True InPlace: in place in 1 of 1 pod on 1 node; False; tc 1 1 1 0 1 0`)
	fails(fault.New(fault.Invalid, fmt.Errorf("no room for filters")))
	edit(9)
	status(`2 2 False Failing: in place in 0 of 1 pod on 1 node; it fails on 1 node, first on "n1": no room for filters; False; tc 1 1 0 0 1 1 n1`)
	fails(nil)
	edit(10)
	status(`3 3 True InPlace: in place in 1 of 1 pod on 1 node; False; tc 1 1 1 0 1 0`)

	// A pod with an RDMA device, before it is attached and afterwards, and one that is not covered.
	r := f.pod(t, "ai", "r", map[string]string{"role": "store"})
	r.Topologies[0].Devices = []claims.Device{{Host: inventory.Device{RDMA: true}}}
	r.In = nil
	f.prepared(r)
	f.prepared(f.pod(t, "ai", "none", nil))
	status(`3 3 False Updating: in place in 1 of 2 pods on 1 node; True; tc 1 2 1 1 1 0`)
	f.mu.Lock()
	f.claims = slices.Clone(f.claims)
	for i := range f.claims {
		f.claims[i].In = []claims.Sandbox{{ID: "s", Phase: claims.Attached}}
	}
	f.mu.Unlock()
	f.recorded.Changed()
	status(`3 3 True InPlace: in place in 2 of 2 pods on 1 node; True; tc 1 2 2 1 1 0`)

	// Other nodes, one of which does not know the last generation, and then many that fail.
	report := func(node string, of v1alpha1.QoSReport) {
		t.Helper()
		of.Namespace, of.Name = "ai", "mark"
		o := &v1alpha1.NetworkQoSReport{ObjectMeta: metav1.ObjectMeta{Name: node}}
		if err := b.Get(t.Context(), client.ObjectKeyFromObject(o), o); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		o.Objects = []v1alpha1.QoSReport{of}
		write := b.Create
		if o.ResourceVersion != "" {
			write = func(ctx context.Context, o client.Object, _ ...client.CreateOption) error { return b.Update(ctx, o) }
		}
		if err := write(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	report("n2", v1alpha1.QoSReport{Generation: 2, Pods: 3, InPlace: 3})
	status(`3 3 False Updating: in place in 2 of 5 pods on 2 nodes; not reported on this generation by 1 node; True; tc 1 5 2 1 2 0`)
	report("n2", v1alpha1.QoSReport{Generation: 3, Pods: 3, InPlace: 3})
	status(`3 3 True InPlace: in place in 5 of 5 pods on 2 nodes; True; tc 1 5 5 1 2 0`)
	for i := range 12 {
		report(fmt.Sprintf("many-%02d", i), v1alpha1.QoSReport{Generation: 3, Pods: 1, Problem: "no modules"})
	}
	status(`3 3 False Failing: in place in 5 of 17 pods on 14 nodes; it fails on 12 nodes, first on "many-00": no modules; True; tc 1 17 5 1 14 12 many-00 many-01 many-02 many-03 many-04 many-05 many-06 many-07`)
	b.mustKubectl(t, "", "delete", "networkqosreports", "n2", "many-00", "many-01", "many-02", "many-03", "many-04", "many-05", "many-06", "many-07", "many-08", "many-09", "many-10", "many-11")
	b.mustKubectl(t, "", "-n", "ai", "delete", "pod", "r", "none", "--force", "--grace-period=0")
	status(`3 3 True InPlace: in place in 1 of 1 pod on 1 node; False; tc 1 1 1 0 1 0`)
	if owner := b.mustKubectl(t, "", "get", "networkqosreport", "n1", "-o", "jsonpath={.metadata.ownerReferences[0].kind} {.metadata.ownerReferences[0].uid}"); owner != "Node of-n1" {
		t.Errorf("the report goes with %s", owner)
	}
	f.mu.Lock()
	f.claims = f.claims[:1]
	f.mu.Unlock()
	f.recorded.Changed()
}

// validated holds what the API server refuses by the CRD alone.
func (b *bench) validated(t *testing.T) {
	t.Helper()
	for spec, want := range map[string]string{
		"priority: 101, egress: []":                                                 "should be less than or equal to 100",
		"priority: 1, egress: [{dscp: 64}]":                                         "should be less than or equal to 63",
		"priority: 1, egress: [{}]":                                                 "dscp: Required value",
		"egress: []":                                                                "priority: Required value",
		"priority: 1, egress: [{dscp: 1, bandwidth: {burst: 5}}]":                   "burst needs a rate",
		"priority: 1, egress: [{dscp: 1, bandwidth: {rate: 4294967296}}]":           "should be less than or equal to 4294967295",
		"priority: 1, egress: [{dscp: 1, classifier: {ports: [{protocol: TCPX}]}}]": "should match",
		"priority: 1, egress: [{dscp: 1, classifier: {to: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]}}]":                                     "Can't specify both podSelector/namespaceSelector and ipBlock",
		"priority: 1, egress: [], networkSelectors: [{networkSelectionType: NetworkTopologies}]":                                                   "networkSelectionType NetworkTopologies needs networkTopologySelector",
		"priority: 1, egress: [], networkSelectors: [{networkSelectionType: DefaultNetwork}], netAttachRefs: [{kind: X}]":                          "netAttachRefs is the older form of networkSelectors",
		"priority: 1, egress: [" + strings.TrimSuffix(strings.Repeat("{dscp: 1},", 21), ",") + "]":                                                 "must have at most 20 items",
		"priority: 1, egress: [{dscp: 1, classifier: {port: {protocol: TCP}, ports: [{protocol: UDP}]}}]":                                          "port is the older form of ports",
		"priority: 1, egress: [], networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {namespaceSelector: {}}}]": "NetworkTopologies are in no namespace",
	} {
		if said := b.refused(t, qos("default", "q", spec)); !strings.Contains(said, want) {
			t.Errorf("%s: said\n%s\nwant %s", spec, said, want)
		}
	}
	// Both spellings, and a reference that cannot be changed afterwards.
	b.mustKubectl(t, qos("default", "draft", "priority: 1, egress: [{dscp: 1, classifier: {port: {protocol: TCP, port: 80}}}], netAttachRefs: [{kind: NetworkTopology, name: x}]"), "create", "-f", "-")
	if said := b.mustRefuse(t, "", "-n", "default", "patch", "networkqos", "draft", "--type=merge", "-p", `{"spec":{"netAttachRefs":[{"kind":"NetworkTopology","name":"y"}]}}`); !strings.Contains(said, "netAttachRefs is immutable") {
		t.Errorf("said %s", said)
	}
	b.mustKubectl(t, "", "-n", "default", "delete", "networkqos", "draft")
}

// mustRefuse returns what kubectl says when it fails.
func (b *bench) mustRefuse(t *testing.T, input string, arguments ...string) string {
	t.Helper()
	out, err := b.Kubectl(t.Context(), strings.NewReader(input), arguments...)
	if err == nil {
		t.Fatalf("kubectl %q succeeded: %s", arguments, out)
	}
	return err.Error()
}

// definition holds that an object about a NetworkAttachmentDefinition has an effect once a topology stands for that, and what the
// column Status says.
func (b *bench) definition(t *testing.T) {
	t.Helper()
	summary := func(want string) {
		t.Helper()
		b.eventually(t, "the status of the object is "+want, func() error {
			if have := b.mustKubectl(t, "", "-n", "ai", "get", "networkqos", "nad", "-o", "jsonpath={.status.status}"); have != want {
				return fmt.Errorf("it is %q", have)
			}
			return nil
		})
	}
	b.mustKubectl(t, qos("ai", "nad", "priority: 3, egress: [{dscp: 3}], podSelector: {matchLabels: {role: none}}, netAttachRefs: [{kind: NetworkAttachmentDefinition, namespace: default, name: ovn-storage}]"), "apply", "-f", "-")
	b.conditions(t, "ai", map[string]string{
		"nad": `False NoNetwork no NetworkTopology has a step with netAttachDefName default/ovn-storage, or the annotation networking.dra.io/net-attach-def: default/ovn-storage, so plumbline enforces nothing on this network; ovn-kubernetes enforces the networks that it makes, by its own CRD and controller; False NoTie the object has no effect`,
	})
	summary("NoNetwork")
	b.mustKubectl(t, "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: nad, annotations: {networking.dra.io/net-attach-def: default/ovn-storage}}\nspec: {steps: [{name: d, type: dummy}]}\n", "apply", "-f", "-")
	b.conditions(t, "ai", map[string]string{
		"nad": `True Accepted 1 rule; enforced by tc filters in pods, and by OVN QoS rows on OVN networks; False NoTie no other object has a rule of the same precedence for the same packets`,
	})
	summary("NetworkQoS Destinations applied")
	b.mustKubectl(t, "", "delete", "networktopology", "nad")
	b.conditions(t, "ai", map[string]string{
		"nad": `False NoNetwork no NetworkTopology has a step with netAttachDefName default/ovn-storage, or the annotation networking.dra.io/net-attach-def: default/ovn-storage, so plumbline enforces nothing on this network; ovn-kubernetes enforces the networks that it makes, by its own CRD and controller; False NoTie the object has no effect`,
	})
	b.mustKubectl(t, "", "-n", "ai", "delete", "networkqos", "nad")
}

// definitionKinds are the kinds of others by whose labels networks are selected, as far as a NetworkQoS is about them.
var definitionKinds = func() (out string) {
	for _, k := range [][4]string{
		{"k8s.cni.cncf.io", "network-attachment-definitions", "NetworkAttachmentDefinition", "Namespaced"},
		{"k8s.ovn.org", "userdefinednetworks", "UserDefinedNetwork", "Namespaced"},
		{"k8s.ovn.org", "clusteruserdefinednetworks", "ClusterUserDefinedNetwork", "Cluster"},
	} {
		out += fmt.Sprintf(`---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]s.%[1]s}
spec:
  group: %[1]s
  scope: %[4]s
  names: {plural: %[2]s, kind: %[3]s, singular: %[5]s, listKind: %[3]sList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`, k[0], k[1], k[2], k[3], strings.ToLower(k[2]))
	}
	return out
}()

// networksByLabels holds that an object which selects networks by the labels of objects of others covers the interfaces on these, with the
// controller's rights: before their kinds are served, as they come and change, and until they are gone.
func (b *bench) networksByLabels(t *testing.T, f *filtered) {
	t.Helper()
	const (
		elsewhere = `False NoNetwork no NetworkTopology has an interface on the networks that networkSelectors selects by labels (NetworkAttachmentDefinitions, UserDefinedNetworks, ClusterUserDefinedNetworks), so plumbline enforces nothing there; ovn-kubernetes enforces the networks that it makes, by its own CRD and controller; False NoTie the object has no effect`
		enforced  = `True Accepted 1 rule; enforced by tc filters in pods, and by OVN QoS rows on OVN networks; False NoTie no other object has a rule of the same precedence for the same packets`
	)
	blue := f.pod(t, "ai", "blue", map[string]string{"role": "blue"})
	blue.Topologies[0].Object.ObjectMeta = metav1.ObjectMeta{Name: "on-blue", UID: "b", Annotations: map[string]string{v1alpha1.AnnotationDefinition: "default/blue"}}
	f.topologies.Put("on-blue", &v1alpha1.NetworkTopology{ObjectMeta: blue.Topologies[0].Object.ObjectMeta})
	b.mustKubectl(t, "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: on-blue, annotations: {networking.dra.io/net-attach-def: default/blue}}\nspec: {steps: [{name: d, type: dummy}]}\n", "apply", "-f", "-")
	object := func(selector string) string {
		return qos("ai", "labels", "priority: 3, egress: [{dscp: 3}], podSelector: {matchLabels: {role: blue}}, networkSelectors: ["+selector+"]")
	}
	b.mustKubectl(t, object("{networkSelectionType: NetworkAttachmentDefinitions, networkAttachmentDefinitionSelector: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}, networkSelector: {matchLabels: {net: blue}}}}"), "apply", "-f", "-")
	b.conditions(t, "ai", map[string]string{"labels": elsewhere})
	b.eventually(t, "what covers the pod is known", func() error { return f.Known("ai", blue.Pod) })
	f.prepared(blue)
	f.want(t, "of-blue")

	b.mustKubectl(t, definitionKinds, "apply", "-f", "-")
	b.eventually(t, "the kinds are served", func() error {
		_, err := b.Kubectl(t.Context(), nil, "get", "network-attachment-definitions,userdefinednetworks,clusteruserdefinednetworks", "-A")
		return err
	})
	definition := func(name, labels string) string {
		return "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {namespace: default, name: " + name + ", labels: {" + labels + "}}\nspec: {config: '{}'}\n"
	}
	b.mustKubectl(t, definition("blue", "net: red")+"---\n"+definition("other", "net: blue"), "apply", "-f", "-")
	b.conditions(t, "ai", map[string]string{"labels": elsewhere})
	b.mustKubectl(t, definition("blue", "net: blue"), "apply", "-f", "-")
	f.want(t, "of-blue", "ai/labels[0]")
	f.want(t, "of-a", "ai/mark[0]", "ai/second[0]")
	b.conditions(t, "ai", map[string]string{"labels": enforced})
	b.mustKubectl(t, "", "-n", "default", "delete", "network-attachment-definitions", "blue")
	f.want(t, "of-blue")
	b.conditions(t, "ai", map[string]string{"labels": elsewhere})

	// UserDefinedNetworks by their role, and a ClusterUserDefinedNetwork by what it owns.
	const network = "apiVersion: k8s.ovn.org/v1\nkind: UserDefinedNetwork\nmetadata: {namespace: default, name: blue, labels: {net: blue}}\nspec: {topology: Layer2, layer2: {role: %s}}\n"
	b.mustKubectl(t, fmt.Sprintf(network, "Primary"), "apply", "-f", "-")
	b.mustKubectl(t, "", "-n", "ai", "delete", "networkqos", "labels")
	b.mustKubectl(t, object("{networkSelectionType: SecondaryUserDefinedNetworks, secondaryUserDefinedNetworkSelector: {namespaceSelector: {}, networkSelector: {matchLabels: {net: blue}}}}"), "apply", "-f", "-")
	b.conditions(t, "ai", map[string]string{"labels": elsewhere})
	b.mustKubectl(t, fmt.Sprintf(network, "Secondary"), "apply", "-f", "-")
	f.want(t, "of-blue", "ai/labels[0]")
	b.mustKubectl(t, "", "-n", "ai", "delete", "networkqos", "labels")
	f.want(t, "of-blue")
	b.mustKubectl(t, "", "delete", "networktopology", "on-blue")
	f.mu.Lock()
	f.claims = slices.DeleteFunc(f.claims, func(e claims.Entry) bool { return e.UID == "of-blue" })
	f.mu.Unlock()
	f.recorded.Changed()
	b.mustKubectl(t, definitionKinds, "delete", "-f", "-")
}
