package inventory_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/plumbline/plumbline/inventory"
)

type classes map[string]*resourceapi.DeviceClass

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) { return c[name], nil }
func (c classes) List() ([]*resourceapi.DeviceClass, error)         { return nil, nil }

// schedule lets the scheduler's own allocator choose for one claim, on a node
// that offers these devices; it returns the name of the chosen one or "".
func schedule(t *testing.T, expr string, devices []inventory.Device, taken map[string]bool) (string, error) {
	t.Helper()
	all, err := allocate(t, []string{expr}, nil, devices, taken)
	if len(all) == 0 {
		return "", err
	}
	return all[0], err
}

// allocate is that for a claim with a request for each expression, and with constraints.
func allocate(t *testing.T, exprs []string, constraints []resourceapi.DeviceConstraint, devices []inventory.Device, taken map[string]bool) (chosen []string, err error) {
	t.Helper()
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "slice"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: inventory.Driver, NodeName: new("node"),
			Pool: resourceapi.ResourcePool{Name: "node", Generation: 1, ResourceSliceCount: 1},
		},
	}
	allocated := structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID]()}
	for _, d := range devices {
		if d.HostUse != "" {
			continue // not published
		}
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: d.Name, Attributes: inventory.Attributes(d)})
		if taken[d.ID] {
			allocated.AllocatedDevices.Insert(structured.MakeDeviceID(inventory.Driver, "node", d.Name))
		}
	}
	known := classes{}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: "default", UID: "1"}}
	claim.Spec.Devices.Constraints = constraints
	for i, expr := range exprs {
		name := fmt.Sprintf("class%d", i)
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expr}}}
		known[name] = class
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{
			Name:    fmt.Sprintf("nic%d", i),
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
		})
	}

	features := structured.Features{ConsumableCapacity: true, PrioritizedList: true}
	allocator, err := structured.NewAllocator(t.Context(), features, allocated, known,
		[]*resourceapi.ResourceSlice{slice}, dracel.NewCache(10, dracel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		t.Fatal(err)
	}
	results, err := allocator.Allocate(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, []*resourceapi.ResourceClaim{claim})
	if err != nil || len(results) == 0 {
		return nil, err
	}
	for _, r := range results[0].Devices.Results {
		chosen = append(chosen, r.Device)
	}
	return chosen, nil
}

// TestAsTheScheduler holds First to the allocator of kube-scheduler: one
// node would give a pod here the same devices as the cluster.
func TestAsTheScheduler(t *testing.T) {
	for _, block := range []string{selectVF0, selectVF1, selectGPU, selectOVN, selectUplink, selectLocalnet} {
		for _, node := range []string{"igb", "stack", "mlx5", "ovn", "others"} {
			expr, all, taken := cel(t, block), devices(t, node), map[string]bool{}
			for range 3 {
				want, err := schedule(t, expr, all, taken)
				if err != nil {
					t.Errorf("%s: the scheduler gives up: %v", node, err)
				}
				have, err := inventory.First(t.Context(), all, compile(t, expr), taken)
				if have.Name != want {
					t.Errorf("%s: %s\nhave %q (%v)\nwant %q", node, expr, have.Name, err, want)
				}
				taken[have.ID] = true
			}
		}
	}
}

// TestSchedulerGivesUp is why some attributes are always present: if one device without
// the attribute is evaluated before one that matches, the scheduler stops with an error
// instead of going on.
func TestSchedulerGivesUp(t *testing.T) {
	all := devices(t, "mlx5")
	expr := `device.attributes["dra.networking"].numaNode == 4`
	if have, err := schedule(t, expr, all, nil); have != "pci-0000-41-00-0" || err != nil {
		t.Errorf("have %q, %v", have, err)
	}
	all[0].NUMANode = nil
	have, err := schedule(t, expr, all, nil)
	if err == nil {
		t.Fatalf("have %q without an error", have)
	}
	want := "class class0: selector #0 on device dra.networking/node/pci-0000-03-00-0: CEL runtime error: no such key: numaNode. consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() for optional fields"
	if fmt.Sprint(err) != want {
		t.Errorf("have %v\nwant %s", err, want)
	}
	if d, err := inventory.First(t.Context(), all, compile(t, expr), nil); d.ID != "0000:41:00.0" || err != nil {
		t.Errorf("First: have %q, %v; it passes such devices over", d.ID, err)
	}
}

// TestSameNumberOnEachRail: the constraint matchAttribute dra.networking/vfIndex has eight rails get the functions with one number, the first that
// is free on all of them, and none where there is no such number.
func TestSameNumberOnEachRail(t *testing.T) {
	var devices []inventory.Device
	var exprs []string
	taken := map[string]bool{}
	for rail := range 8 {
		for vf := range 8 {
			id := fmt.Sprintf("0000:%02x:10.%d", rail+1, vf)
			devices = append(devices, inventory.Device{ID: id, Name: fmt.Sprintf("rail%d-vf%d", rail, vf), Kind: inventory.KindVF, Rail: fmt.Sprint(rail), PF: &inventory.PF{VFIndex: vf}})
			taken[id] = vf == rail && vf != 5 || vf == 6
		}
		exprs = append(exprs, fmt.Sprintf(`device.attributes["dra.networking"].rail == "%d"`, rail))
	}
	same := []resourceapi.DeviceConstraint{{MatchAttribute: new(resourceapi.FullyQualifiedName(inventory.Driver + "/" + string(inventory.AttrVFIndex)))}}
	got, err := allocate(t, exprs, same, devices, taken)
	if err != nil || len(got) != 8 {
		t.Fatalf("chosen: %q %v", got, err)
	}
	for rail, name := range got {
		if name != fmt.Sprintf("rail%d-vf5", rail) {
			t.Errorf("rail %d has %s, want the function with number 5 on each", rail, name)
		}
	}
	taken["0000:03:10.5"] = true
	if got, err := allocate(t, exprs, same, devices, taken); err != nil || len(got) > 0 {
		t.Errorf("no number is free on all rails: %q %v", got, err)
	}
}
