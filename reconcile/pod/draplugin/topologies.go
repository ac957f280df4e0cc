package draplugin

import (
	"context"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Cluster is what the plugin reads from the API server.
type Cluster interface {
	// Topology returns a NetworkTopology; an error of kind NotReady when there
	// is none.
	Topology(ctx context.Context, name string) (*v1alpha1.NetworkTopology, error)
	// Claim returns a ResourceClaim, nil when there is none.
	Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
}

// client is a Cluster. It keeps no cache: a claim is prepared once, and a cache would need
// the permissions list and watch, and could be older than the class with which the claim
// was allocated.
type client struct {
	kube    kubernetes.Interface
	dynamic dynamic.Interface
}

// NewCluster returns a Cluster. It needs the permission get on networktopologies and
// resourceclaims.
func NewCluster(kube kubernetes.Interface, dyn dynamic.Interface) Cluster {
	return client{kube, dyn}
}

// attemptTimeout bounds one request: a dead connection is given up in time for another.
const attemptTimeout = 10 * time.Second

func (c client) Topology(ctx context.Context, name string) (*v1alpha1.NetworkTopology, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	o, err := c.dynamic.Resource(v1alpha1.Resource()).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fault.New(fault.NotReady, fmt.Errorf("NetworkTopology %q does not exist: create it, or use the DeviceClasses of another", name))
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
