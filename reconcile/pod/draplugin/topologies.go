package draplugin

import (
	"context"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Cluster reads the objects that the plugin needs from the API server.
type Cluster interface {
	// Topology returns a NetworkTopology; an error of kind NotReady when there
	// is none.
	Topology(ctx context.Context, name string) (*v1alpha1.NetworkTopology, error)
	// Claim returns a ResourceClaim, nil when there is none.
	Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// Beside returns the PCI addresses of the devices that a claim has of other drivers, as far as these publish them.
	Beside(ctx context.Context, rc *resourceapi.ResourceClaim) ([]string, error)
}

// client is a Cluster. It keeps no cache: a claim is prepared once, and a cache would need
// the permissions list and watch, and could be older than the class with which the claim
// was allocated.
type client struct {
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	node    string
}

// NewCluster returns a Cluster for a node. It needs the permission get on networktopologies and
// resourceclaims, and list on resourceslices.
func NewCluster(kube kubernetes.Interface, dyn dynamic.Interface, node string) Cluster {
	return client{kube, dyn, node}
}

// attemptTimeout bounds one request: a dead connection is given up in time for another.
const attemptTimeout = 10 * time.Second

func (c client) Topology(ctx context.Context, name string) (*v1alpha1.NetworkTopology, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	o, err := c.dynamic.Resource(v1alpha1.Resource()).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil,
			fault.New(fault.NotReady, fmt.Errorf("NetworkTopology %q does not exist: create it, or use the DeviceClasses of another", name))
	}
	if err != nil {
		return nil, passing(fault.New(fault.NotReady, fmt.Errorf("NetworkTopology %q: %w", name, err)))
	}
	t := &v1alpha1.NetworkTopology{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, t); err != nil {
		return nil, fault.New(fault.Invalid, fmt.Errorf("NetworkTopology %q: %w", name, err))
	}
	return t, nil
}

func (c client) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	rc, err := c.kube.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, passing(fault.New(fault.NotReady, fmt.Errorf("ResourceClaim %q: %w", name, err)))
	}
	return rc, nil
}

func (c client) Beside(ctx context.Context, rc *resourceapi.ResourceClaim) (out []string, err error) {
	if rc.Status.Allocation == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	slices := map[string][]resourceapi.ResourceSlice{} // by driver
	for _, r := range rc.Status.Allocation.Devices.Results {
		if r.Driver == claim.Driver {
			continue
		}
		of, read := slices[r.Driver]
		if !read {
			list, err := c.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
				FieldSelector: fields.Set{
					resourceapi.ResourceSliceSelectorDriver:   r.Driver,
					resourceapi.ResourceSliceSelectorNodeName: c.node,
				}.String(),
			})
			if err != nil {
				return nil, passing(fault.New(fault.NotReady, fmt.Errorf("ResourceSlices of driver %q: %w", r.Driver, err)))
			}
			of, slices[r.Driver] = list.Items, list.Items
		}
		if address := pciBusID(of, r); address != "" {
			out = append(out, address)
		}
	}
	return out, nil
}

// pciBusID returns the standard attribute of an allocated device, "" if its driver does not publish it.
func pciBusID(of []resourceapi.ResourceSlice, r resourceapi.DeviceRequestAllocationResult) string {
	for i := range of {
		if of[i].Spec.Driver != r.Driver || of[i].Spec.Pool.Name != r.Pool {
			continue
		}
		for _, d := range of[i].Spec.Devices {
			if a := d.Attributes[deviceattribute.StandardDeviceAttributePCIBusID]; d.Name == r.Device && a.StringValue != nil {
				return *a.StringValue
			}
		}
	}
	return ""
}
