package draplugin_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/plumbline/plumbline/reconcile/pod/draplugin"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestBeside: of the devices of other drivers those have an address that publish the standard attribute; the slices of a driver are read once,
// and only those of the node.
func TestBeside(t *testing.T) {
	device := func(name, address string) resourceapi.Device {
		d := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"productName": {StringValue: new("x")}}}
		if address != "" {
			d.Attributes[deviceattribute.StandardDeviceAttributePCIBusID] = resourceapi.DeviceAttribute{StringValue: &address}
		}
		return d
	}
	slice := func(name, driver, pool string, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, Pool: resourceapi.ResourcePool{Name: pool}, NodeName: new("n1"), Devices: devices,
		}}
	}
	kube := fake.NewClientset(
		slice("a", "gpu.example.com", "n1", device("gpu-0", "0000:0a:00.0"), device("gpu-1", "0000:0b:00.0")),
		slice("b", "gpu.example.com", "n2", device("gpu-0", "0000:ff:00.0")),
		slice("c", "other.example.com", "n1", device("x", "")),
	)
	result := func(driver, pool, name string) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: pool, Device: name}
	}
	rc := &resourceapi.ResourceClaim{}
	c := draplugin.NewCluster(kube, nil, "n1")
	if got, err := c.Beside(t.Context(), rc); len(got) > 0 || err != nil {
		t.Errorf("without an allocation: %q %v", got, err)
	}
	rc.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
		result(claim.Driver, "n1", "vf"), result("gpu.example.com", "n1", "gpu-1"), result("gpu.example.com", "n1", "gpu-0"),
		result("gpu.example.com", "n1", "gone"), result("other.example.com", "n1", "x"),
	}}}
	got, err := c.Beside(t.Context(), rc)
	if err != nil || !slices.Equal(got, []string{"0000:0b:00.0", "0000:0a:00.0"}) {
		t.Errorf("have %q %v", got, err)
	}
	var asked []string
	for _, a := range kube.Actions() {
		asked = append(asked, a.(clienttesting.ListAction).GetListRestrictions().Fields.String())
	}
	if want := []string{"spec.driver=gpu.example.com,spec.nodeName=n1", "spec.driver=other.example.com,spec.nodeName=n1"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	kube.PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("away")
	})
	if _, err := c.Beside(context.Background(), rc); fault.Of(err) != fault.NotReady {
		t.Errorf("without the API server: %v", err)
	}
}
