package population

import (
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Size is how many objects there are.
type Size struct {
	Topologies int // each with two DeviceClasses
	Claims     int // of all drivers
	Ours       int // of these, for topologies; a tenth of them for the first topology
	Nodes      int // each with a ResourceSlice of ours
}

// Full is a large cluster.
var Full = Size{Topologies: 10_000, Claims: 250_000, Ours: 50_000, Nodes: 5_000}

// Part returns one n-th of a size.
func (s Size) Part(n int) Size {
	return Size{Topologies: s.Topologies / n, Claims: s.Claims / n, Ours: s.Ours / n, Nodes: s.Nodes / n}
}

// Namespace is where the claims are.
const Namespace = "population"

// GPUClass is the DeviceClass of the claims that are not ours.
const GPUClass = "gpu.example.com"

// TopologyName returns the name of one of the topologies.
func TopologyName(i int) string { return fmt.Sprintf("topology-%05d", i) }

// NodeName returns the name of one of the nodes.
func NodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

var created = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

func object(namespace, name string, kind, n int) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", kind, n)), CreationTimestamp: created,
		Generation: 1,
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "a-controller", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &created,
			FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:a":{}}},` +
				`"f:status":{"f:allocation":{".":{},"f:devices":{".":{},"f:config":{},"f:results":{}},"f:nodeSelector":{}},` +
				`"f:reservedFor":{".":{},"k:{\"uid\":\"u\"}":{}}}}`),
		}},
	}
}

// Objects returns all objects of a size. set holds the built-in contracts.
func Objects(size Size, set contract.Set) iter.Seq2[client.Object, error] {
	return func(yield func(client.Object, error) bool) {
		ns := &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: object("", Namespace, 0, 0)}
		ns.Status.Phase = corev1.NamespaceActive
		if !yield(ns, nil) {
			return
		}
		for i := range size.Topologies {
			o, classes, err := topologyOf(size, i, set)
			if !yield(o, err) {
				return
			}
			for n, c := range classes {
				c.UID, c.CreationTimestamp, c.Generation = types.UID(fmt.Sprintf("00000002-0000-4000-8000-%012x", 2*i+n)), created, 1
				if !yield(c, nil) {
					return
				}
			}
		}
		for i := range size.Claims {
			c := foreign(i)
			if i < size.Ours {
				c = ours(size, i)
			}
			if !yield(c, nil) {
				return
			}
		}
		for i := range size.Nodes {
			if !yield(slice(i), nil) {
				return
			}
		}
	}
}

// usedBy returns which topology a claim of ours is for.
func usedBy(size Size, i int) int {
	if i < size.Ours/10 {
		return 0
	}
	return i % size.Topologies
}

// Users returns how many claims are for the first topology.
func Users(size Size) int {
	n := 0
	for i := range size.Ours {
		if usedBy(size, i) == 0 {
			n++
		}
	}
	return n
}

func topologyOf(size Size, i int, set contract.Set) (*v1alpha1.NetworkTopology, []*resourceapi.DeviceClass, error) {
	o := &v1alpha1.NetworkTopology{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind},
		ObjectMeta: object("", TopologyName(i), 1, i),
	}
	o.Finalizers = []string{v1alpha1.Finalizer}
	cel := &v1alpha1.Selector{CEL: fmt.Sprintf(`device.driver == "dra.networking" && device.attributes["dra.networking"].type == "vf" && `+
		`device.attributes["dra.networking"].pfName == "enp%ds0"`, i%100)}
	config := func(text string) *runtime.RawExtension { return &runtime.RawExtension{Raw: []byte(text)} }
	o.Spec = v1alpha1.NetworkTopologySpec{DriftPolicy: v1alpha1.Repair, UpdatePolicy: v1alpha1.Immutable, Steps: []v1alpha1.Step{
		{Name: "vf0", Type: "sriov", Selector: cel, Config: config(`{"trust":true,"spoofchk":false}`)},
		{Name: "vf1", Type: "sriov", Selector: cel, Config: config(`{"trust":true,"spoofchk":false}`)},
		{Name: "bond0", Type: "bond", DependOn: []string{"vf0", "vf1"}, Config: config(`{"mode":"active-backup"}`)},
		{Name: "vlan100", Type: "vlan", DependOn: []string{"bond0"}, Config: config(fmt.Sprintf(`{"id":%d,"name":"data0"}`, 1+i%4000))},
	}}
	t, err := topology.FromObject(o)
	if err != nil {
		return nil, nil, fmt.Errorf("topology: %w", err)
	}
	classes := controller.Classes(o, t, set)
	o.Status = controller.StatusOf(o, controller.Outcome{Steps: len(o.Spec.Steps), Classes: len(classes), Use: useOf(size, i)})
	for n := range o.Status.Conditions {
		o.Status.Conditions[n].LastTransitionTime = created
	}
	return o, classes, nil
}

func useOf(size Size, topology int) controller.Use {
	var u controller.Use
	add := func(i int) {
		c := ours(size, i)
		u.Claims++
		u.Pods++
		u.Runs = append(u.Runs, controller.Run{
			Namespace: c.Namespace, Claim: c.Name, PodUID: c.Status.ReservedFor[0].UID,
			Reported: claim.Reported{
				Node:   c.Status.Allocation.Devices.Results[0].Pool,
				Report: claim.Report{Topology: TopologyName(topology), Generation: 1},
			},
		})
	}
	if topology == 0 {
		for i := range size.Ours / 10 {
			add(i)
		}
	}
	first := size.Ours / 10
	for i := first + (topology-first%size.Topologies+size.Topologies)%size.Topologies; i < size.Ours; i += size.Topologies {
		add(i)
	}
	return u
}

// ours is a claim of two devices, as scheduler and node leave it.
func ours(size Size, i int) *resourceapi.ResourceClaim {
	of, node := usedBy(size, i), NodeName(i%max(size.Nodes, 1))
	name := TopologyName(of)
	c := &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim"},
		ObjectMeta: object(Namespace, fmt.Sprintf("claim-%06d", i), 3, i),
	}
	c.Finalizers = []string{"resource.kubernetes.io/delete-protection"}
	allocation := &resourceapi.AllocationResult{NodeSelector: on(node)}
	for n, step := range []string{"vf0", "vf1"} {
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, request(step, claim.ClassName(name, step)))
		device := fmt.Sprintf("vf-0000-%02x-10-%d", i%64, n)
		allocation.Devices.Results = append(allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: step, Driver: claim.Driver, Pool: node, Device: device})
		// of strings and a number
		raw, _ := json.Marshal(claim.Config{NetworkTopologyRef: claim.TopologyRef{
			Name: name, UID: object("", name, 1, of).UID,
			Generation: 1,
		}, Step: step})
		allocation.Devices.Config = append(allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClass, Requests: []string{step},
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver:     claim.Driver,
				Parameters: runtime.RawExtension{Raw: raw},
			}},
		})
		c.Status.Devices = append(c.Status.Devices, resourceapi.AllocatedDeviceStatus{
			Driver: claim.Driver, Pool: node, Device: device,
			Conditions: []metav1.Condition{{
				Type: "Ready", Status: metav1.ConditionTrue, Reason: "Attached", Message: "4 steps",
				LastTransitionTime: created,
			}},
			Data: &runtime.RawExtension{Raw: fmt.Appendf(nil,
				`{"topology":%q,"generation":1,"steps":[{"name":%q,"interfaces":[{"name":"net%d","mac":"02:00:00:00:%02x:%02x"}]}]}`, name,
				step, n, i%256, n)},
			NetworkData: &resourceapi.NetworkDeviceData{
				InterfaceName:   fmt.Sprint("net", n),
				HardwareAddress: fmt.Sprintf("02:00:00:00:%02x:%02x", i%256, n),
			},
		})
	}
	c.Status.Allocation = allocation
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{
		Resource: "pods", Name: fmt.Sprintf("pod-%06d", i),
		UID: types.UID(fmt.Sprintf("00000004-0000-4000-8000-%012x", i)),
	}}
	return c
}

// foreign is a claim of a GPU.
func foreign(i int) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim"},
		ObjectMeta: object(Namespace, fmt.Sprintf("gpu-%06d", i), 5, i),
	}
	c.Finalizers = []string{"resource.kubernetes.io/delete-protection"}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{request("gpu", GPUClass)}
	c.Status.Allocation = &resourceapi.AllocationResult{NodeSelector: on(NodeName(i % 5000)), Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "gpu", Driver: GPUClass, Pool: NodeName(i % 5000),
			Device: fmt.Sprint("gpu-", i%8),
		}},
		Config: []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClass, Requests: []string{"gpu"},
			DeviceConfiguration: resourceapi.DeviceConfiguration{
				Opaque: &resourceapi.OpaqueDeviceConfiguration{
					Driver:     GPUClass,
					Parameters: runtime.RawExtension{Raw: []byte(`{"sharing":{"strategy":"` + strings.Repeat("x", 200) + `"}}`)},
				},
			},
		}},
	}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{
		Resource: "pods", Name: fmt.Sprintf("gpu-pod-%06d", i),
		UID: types.UID(fmt.Sprintf("00000006-0000-4000-8000-%012x", i)),
	}}
	return c
}

func request(name, class string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class,
		AllocationMode:  resourceapi.DeviceAllocationModeExactCount, Count: 1,
	}}
}

func on(node string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
	}}}}
}

// slice is a node with a card of sixteen functions.
func slice(i int) *resourceapi.ResourceSlice {
	node := NodeName(i)
	s := &resourceapi.ResourceSlice{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceSlice"},
		ObjectMeta: object("", node+"-dra.networking-0", 7, i),
		Spec: resourceapi.ResourceSliceSpec{
			Driver: claim.Driver, NodeName: &node,
			Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		},
	}
	for n := range 16 {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
			Name: fmt.Sprintf("vf-0000-01-10-%d", n),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"dra.networking/type": {StringValue: new("vf")}, "dra.networking/pfName": {StringValue: new("enp1s0")},
				"dra.networking/numaNode": {IntValue: new(int64(0))},
			},
		})
	}
	return s
}
