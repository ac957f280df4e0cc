package podstatus_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/podstatus"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// world is a pod with one claim for the topology "ai", which is in it as it should be, until a case changes that.
type world struct {
	pod       *corev1.Pod
	claim     *resourceapi.ResourceClaim // nil: there is none
	class     *resourceapi.DeviceClass
	topology  map[string]any // of the object, nil: there is none
	events    []*corev1.Event
	slices    []*resourceapi.ResourceSlice
	forbidden []string // resources that the user may not read
}

const data = `{"topology":"ai","generation":3,"step":"vf0","later":{"x":1},"steps":[{"name":"data","type":"vlan","result":{
"interfaces":[{"name":"net1","sandbox":"/n"},{"name":"data","sandbox":"/n"}],"ips":[{"address":"192.0.2.5/24","interface":1}]}}]}`

func newWorld() *world {
	name := "web-net"
	w := &world{
		pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "pod-1"},
			Spec:       corev1.PodSpec{NodeName: "n1", ResourceClaims: []corev1.PodResourceClaim{{Name: "net", ResourceClaimTemplateName: new("ai")}}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "net", ResourceClaimName: &name}}},
		},
		claim: &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"}},
		class: &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "ai-vf0", Labels: map[string]string{claim.LabelTopology: "ai"}}},
		topology: map[string]any{
			"apiVersion": "networking.dra.io/v1alpha1", "kind": "NetworkTopology", "metadata": map[string]any{"name": "ai", "generation": int64(3)},
			"spec": map[string]any{"later": true, "steps": []any{map[string]any{"name": "vf0", "type": "sriov"}, map[string]any{"name": "data", "type": "vlan", "dependOn": []any{"vf0"}}}},
		},
	}
	w.claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "vf0", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "ai-vf0"}}}
	w.claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "vf0", Driver: claim.Driver, Pool: "n1", Device: "pci-0"}},
		Config: []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClass, Requests: []string{"vf0"},
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: []byte(`{"networkTopologyRef":{"name":"ai","generation":3},"step":"vf0"}`)},
			}},
		}},
	}}
	w.claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{
		Driver: claim.Driver, Pool: "n1", Device: "pci-0", Data: &runtime.RawExtension{Raw: []byte(data)},
		NetworkData: &resourceapi.NetworkDeviceData{InterfaceName: "net1", IPs: []string{"192.0.2.4/24"}},
		Conditions:  []metav1.Condition{{Type: "Ready", Status: "True"}, {Type: "InSync", Status: "True"}, {Type: "LinkUp", Status: "True"}, {Type: "Later", Status: "True"}},
	}}
	return w
}

func (w *world) condition(kind, status, reason, message string) {
	of := w.claim.Status.Devices[0].Conditions
	i := slices.IndexFunc(of, func(c metav1.Condition) bool { return c.Type == kind })
	of[i] = metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status), Reason: reason, Message: message}
}

func (w *world) data(text string) {
	w.claim.Status.Devices[0].Data = &runtime.RawExtension{Raw: []byte(text)}
}

func (w *world) pending() {
	w.pod.Spec.NodeName, w.pod.Status.Phase = "", corev1.PodPending
	w.claim.Status = resourceapi.ResourceClaimStatus{}
}

// needs has the pod wait for a device in an RDMA mode, which its class chooses as the controller writes it.
func (w *world) needs(selector string) {
	w.pending()
	w.class.Labels[claim.LabelStep] = "vf0"
	w.class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: `device.driver == "dra.networking" && ` + strings.ReplaceAll(selector, "MODE", `device.attributes["dra.networking"].rdmaNetns`),
	}}}
}

const (
	notExclusive = `device.attributes["dra.networking"].rdma && (!has(MODE) || MODE != "exclusive")`
	exclusive    = `has(MODE) && MODE == "exclusive"`
)

// node publishes a device of a node in an RDMA mode; "" for one without RDMA.
func (w *world) node(name, mode string) {
	d := resourceapi.Device{Name: "pci-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"rdma": {BoolValue: new(mode != "")}}}
	if mode != "" {
		d.Attributes["rdmaNetns"] = resourceapi.DeviceAttribute{StringValue: &mode}
	}
	w.slices = append(w.slices, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: claim.Driver, Pool: resourceapi.ResourcePool{Name: name}, NodeName: &name, Devices: []resourceapi.Device{d},
	}})
}

func (w *world) event(reason, from, message string, uid string, minute int) {
	w.events = append(w.events, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("e%d", len(w.events)), Namespace: "shop"}, Type: "Warning", Reason: reason, Message: message, Count: 2,
		Source: corev1.EventSource{Component: from}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "web", Namespace: "shop", UID: "pod-1"},
		LastTimestamp: metav1.NewTime(time.Date(2026, 11, 1, 12, minute, 0, 0, time.UTC)),
	})
	if uid != "" {
		w.events[len(w.events)-1].InvolvedObject.UID = "another"
	}
}

func (w *world) read(t *testing.T, name string) (*podstatus.Status, error) {
	t.Helper()
	objects := []runtime.Object{w.pod, w.class}
	if w.claim != nil {
		objects = append(objects, w.claim)
	}
	for _, e := range w.events {
		objects = append(objects, e)
	}
	for _, e := range w.slices {
		objects = append(objects, e)
	}
	kube := fake.NewClientset(objects...)
	scheme := runtime.NewScheme()
	var custom []runtime.Object
	if w.topology != nil {
		custom = append(custom, &unstructured.Unstructured{Object: w.topology})
	}
	topologies := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(scheme, map[schema.GroupVersionResource]string{v1alpha1.Resource(): "NetworkTopologyList"}, custom...)
	refuse := func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.GetResource()
		return slices.Contains(w.forbidden, r.Resource), nil, apierrors.NewForbidden(r.GroupResource(), "", nil)
	}
	kube.PrependReactor("*", "*", refuse)
	topologies.PrependReactor("*", "*", refuse)
	s, err := podstatus.NewReader(kube, topologies).Read(t.Context(), "shop", name)
	for _, a := range append(kube.Actions(), topologies.Actions()...) {
		if verb := a.GetVerb(); verb != "get" && (verb != "list" || !slices.Contains([]string{"events", "resourceslices"}, a.GetResource().Resource)) {
			t.Errorf("it needs %s on %s", verb, a.GetResource().Resource)
		}
	}
	return s, err
}

// TestExplain: what is wrong is said once, with what to do; what may not be read is named; nothing is said of what is as
// it should be, whatever later versions have added.
func TestExplain(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   []string // parts of the findings, in order
		unread []string
	}{
		"as it should be": {change: func(*world) {}},
		"no claim": {
			change: func(w *world) { w.pod.Spec.ResourceClaims = nil },
			want:   []string{"~ the pod has no claim, and none was made for its extended resources"},
		},
		"ended": {
			change: func(w *world) {
				w.pod.Status.Phase = corev1.PodSucceeded
				w.condition("Ready", "False", "Detached", "")
			},
			want: []string{"~ the pod has ended (Succeeded)"},
		},
		"no template": {
			change: func(w *world) {
				w.pending()
				w.pod.Status.ResourceClaimStatuses, w.claim = nil, nil
				w.event("FailedResourceClaimCreation", "resource_claim", `resourceclaimtemplates "ai" not found`, "", 1)
			},
			want: []string{`! the claim "net" of the pod was not created from ResourceClaimTemplate "ai" yet`, `! Event FailedResourceClaimCreation of resource_claim (2 times): resourceclaimtemplates "ai" not found`},
		},
		"no claim of that name": {change: func(w *world) { w.pending(); w.claim = nil }, want: []string{`! ResourceClaim "web-net" does not exist`}},
		"no device is free": {
			change: func(w *world) {
				w.pending()
				w.event("FailedScheduling", "default-scheduler", "old", "another", 5)
				w.event("FailedScheduling", "default-scheduler", "cannot allocate all claims", "", 4)
				w.event("Pulled", "kubelet", "image", "", 6)
			},
			want: []string{`! ResourceClaim "web-net" is not allocated: no node has free devices for all of its requests (DeviceClasses ai-vf0)`, "! Event FailedScheduling of default-scheduler (2 times): cannot allocate all claims"},
		},
		"no policy shares a device": {
			change: func(w *world) {
				w.pending()
				w.topology["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Shared", "status": "False", "reason": "NoPolicy", "message": "apply this"}, map[string]any{"type": "Valid", "status": "True"}}}
			},
			want: []string{`! ResourceClaim "web-net" is not allocated`, `! NetworkTopology "ai" has the condition Shared: False (NoPolicy): apply this`},
		},
		"every node is in exclusive mode": {
			change: func(w *world) {
				w.needs(notExclusive)
				w.node("n2", "exclusive")
				w.node("n1", "exclusive")
				w.node("n3", "")
			},
			want: []string{"! ResourceClaim", `! step "vf0" of topology "ai" needs a node whose RDMA devices are shared between network namespaces (attribute rdmaNetns); ` +
				"nodes in exclusive mode are left out: n1, n2"},
		},
		"one node is in exclusive mode": {
			change: func(w *world) {
				w.needs(notExclusive)
				w.node("n1", "exclusive")
				w.node("n2", "shared")
				w.node("n3", "")
			},
			want: []string{"! ResourceClaim", `~ step "vf0" of topology "ai" needs a node whose RDMA devices are shared between network namespaces (attribute rdmaNetns); ` +
				"nodes in exclusive mode are left out: n1; it fits devices of: n2"},
		},
		"InfiniBand in exclusive mode, beside Ethernet": {
			change: func(w *world) {
				w.needs(`device.attributes["dra.networking"].rdma && (!has(MODE) || MODE != "exclusive" || ` +
					`device.attributes["dra.networking"].?linkType.orValue("") != "infiniband")`)
				for _, name := range []string{"n1", "n2", "n2"} { // n2 has one of each
					w.node(name, "exclusive")
				}
				for _, of := range w.slices[:2] {
					of.Spec.Devices[0].Attributes["linkType"] = resourceapi.DeviceAttribute{StringValue: new("infiniband")}
				}
				w.slices[2].Name = "n2-ethernet"
			},
			want: []string{"! ResourceClaim", `~ step "vf0" of topology "ai" needs a node whose RDMA devices are shared between network namespaces (attribute rdmaNetns); ` +
				"nodes in exclusive mode are left out: n1; it fits devices of: n2"},
		},
		"a selector of exclusive mode": {
			change: func(w *world) { w.needs(exclusive); w.node("n1", "shared") },
			want: []string{"! ResourceClaim", `! step "vf0" of topology "ai" needs a node whose RDMA devices belong to one network namespace each (attribute rdmaNetns); ` +
				"nodes in shared mode are left out: n1"},
		},
		"a selector of the claim": {
			change: func(w *world) {
				w.needs("true")
				w.claim.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
					Expression: `device.attributes["dra.networking"].?rdmaNetns.orValue("") == "exclusive"`,
				}}}
				w.node("n1", "shared")
			},
			want: []string{"! ResourceClaim", `! step "vf0" of topology "ai" needs a node whose RDMA devices belong to one network namespace each`},
		},
		"the mode leaves no node out": {
			change: func(w *world) { w.needs(notExclusive); w.node("n1", "shared"); w.node("n2", "") },
			want:   []string{"! ResourceClaim"},
		},
		"many nodes in exclusive mode": {
			change: func(w *world) {
				w.needs(notExclusive)
				for i := range 9 {
					w.node(fmt.Sprintf("n%d", i), "exclusive")
				}
			},
			want: []string{"! ResourceClaim", `! step "vf0" of topology "ai" needs a node whose RDMA devices are shared between network namespaces (attribute rdmaNetns); ` +
				"nodes in exclusive mode are left out: n0, n1, n2, n3, n4 and 4 more"},
		},
		"modes that cannot be read": {
			change: func(w *world) {
				w.needs(notExclusive)
				w.node("n1", "exclusive")
				w.forbidden = []string{"resourceslices"}
			},
			want:   []string{"! ResourceClaim", `~ step "vf0" of topology "ai" chooses devices by the RDMA mode of their node (attribute rdmaNetns): nodes in the other mode are left out`},
			unread: []string{"ResourceSlices: you may not list them, so the nodes that this leaves out are not known: ask for list on resourceslices of resource.k8s.io"},
		},
		"no topology": {change: func(w *world) { w.pending(); w.topology = nil }, want: []string{"! ResourceClaim", `! NetworkTopology "ai" does not exist`}},
		"allocated, and nothing reported": {
			change: func(w *world) { w.claim.Status.Devices = nil },
			want:   []string{`! node "n1" has reported nothing of topology "ai" in claim "web-net" yet`},
		},
		"a step failed": {
			change: func(w *world) {
				w.condition("Ready", "False", "Conflict", "words of the condition")
				w.condition("InSync", "Unknown", "Conflict", "")
				w.data(`{"topology":"ai","step":"vf0","failure":{"step":"data","kind":"Conflict","message":"step \"data\": taken"}}`)
			},
			want: []string{`! topology "ai" failed (Conflict): step "data": taken`},
		},
		"not ready, without more": {
			change: func(w *world) { w.condition("Ready", "False", "Attaching", "since 12:00"); w.data(`{}`) },
			want:   []string{`! topology "ai" is not ready (Attaching): since 12:00`},
		},
		"drift": {
			change: func(w *world) { w.condition("InSync", "False", "Fighting", "mtu is 1500, not 9000") },
			want:   []string{`! the network differs from topology "ai" (Fighting): mtu is 1500, not 9000`},
		},
		"a port is down": {
			change: func(w *world) { w.condition("LinkUp", "False", "NoCarrier", "no carrier") },
			want:   []string{`! step "vf0", device "pci-0": its port is not up (NoCarrier): no carrier`},
		},
		"an old failure, and all is well": {change: func(w *world) { w.event("NetworkFailed", "plumbline", "once", "", 1) }},
		"an old failure, and no claim": {
			change: func(w *world) {
				w.pod.Spec.ResourceClaims = nil
				w.event("FailedScheduling", "default-scheduler", "once", "", 1)
			},
			want: []string{"~ the pod has no claim"},
		},
		"an old failure, and edited": {
			change: func(w *world) {
				w.topology["metadata"].(map[string]any)["generation"] = int64(5)
				w.event("NetworkDrift", "plumbline", "once", "", 1)
			},
			want: []string{"~ the pod has generation 3"},
		},
		"edited": {
			change: func(w *world) { w.topology["metadata"].(map[string]any)["generation"] = int64(5) },
			want:   []string{`~ the pod has generation 3 of topology "ai", which has generation 5 now`},
		},
		"held back": {
			change: func(w *world) {
				w.data(`{"topology":"ai","generation":3,"update":{"generation":5,"state":"HeldBack","message":"takes another device"}}`)
			},
			want: []string{`~ generation 5 of topology "ai" is not in the pod (HeldBack): takes another device`},
		},
		"a later report": {
			change: func(w *world) { w.data(`{"topology":{"name":"ai"}}`) },
			unread: []string{`the report of device "pci-0" cannot be read, perhaps as the agent of node "n1" has another version`},
		},
		"a later topology": {
			change: func(w *world) { w.topology["spec"] = "in another form" },
			unread: []string{`NetworkTopology "ai" cannot be read, perhaps as it is of another version`},
		},
		"a claim that cannot be read": {
			change: func(w *world) { w.forbidden = []string{"resourceclaims", "events"} },
			unread: []string{`ResourceClaim "web-net": you may not read it`, "Events: you may not list them"},
		},
		"a topology that cannot be read": {
			change: func(w *world) { w.forbidden = []string{"networktopologies"} },
			unread: []string{`NetworkTopology "ai": you may not read it`},
		},
		"a class that cannot be read": {
			change: func(w *world) { w.pending(); w.forbidden = []string{"deviceclasses"} },
			want:   []string{"! ResourceClaim"}, unread: []string{`DeviceClass "ai-vf0": you may not read it`},
		},
		"devices of others": {change: func(w *world) { w.claim.Status.Allocation.Devices.Results[0].Driver = "gpu.example.com" }},
		"config from the claim": {
			change: func(w *world) {
				w.claim.Status.Allocation.Devices.Config[0].Source = resourceapi.AllocationConfigSourceClaim
			},
			want: []string{"! the allocation of the claim cannot be used"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			c.change(w)
			s, err := w.read(t, "web")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range s.Explain() {
				verb := "~ "
				if f.Problem {
					verb = "! "
				}
				got = append(got, verb+f.What)
			}
			compare(t, "findings", got, c.want)
			compare(t, "unread", s.Unread, c.unread)
		})
	}
}

func compare(t *testing.T, what string, got, want []string) {
	t.Helper()
	same := len(got) == len(want)
	for i := range got {
		same = same && strings.HasPrefix(got[i], want[i])
	}
	if !same {
		t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestRead: the status has what the node has reported.
func TestRead(t *testing.T) {
	s, err := newWorld().read(t, "web")
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Claims) != 1 || len(s.Claims[0].Uses) != 1 || len(s.Claims[0].Uses[0].Devices) != 1 {
		t.Fatalf("claims %+v", s.Claims)
	}
	u := s.Claims[0].Uses[0]
	if d := u.Devices[0]; s.Node != "n1" || u.Topology != "ai" || u.Generation != 3 || d.Interface != "net1" || !slices.Equal(d.Addresses, []string{"192.0.2.4/24"}) || len(u.Steps) != 1 || u.Steps[0].Name != "data" {
		t.Errorf("use %+v", u)
	}
	if len(s.Topologies) != 1 || s.Topologies[0].Object == nil || s.Topologies[0].UpdatePolicy != v1alpha1.Immutable {
		t.Errorf("topologies %+v", s.Topologies)
	}
}

// TestPodCannotBeRead: the error says what to do.
func TestPodCannotBeRead(t *testing.T) {
	if _, err := newWorld().read(t, "other"); err == nil || !strings.HasPrefix(err.Error(), `pod "other" does not exist in namespace "shop": name another namespace with -n`) {
		t.Errorf("another name: %v", err)
	}
	w := newWorld()
	w.forbidden = []string{"pods"}
	if _, err := w.read(t, "web"); err == nil || !strings.HasPrefix(err.Error(), `you may not read pod "web" in namespace "shop": ask for the ClusterRole view`) {
		t.Errorf("forbidden: %v", err)
	}
}
