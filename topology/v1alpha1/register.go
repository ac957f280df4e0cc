package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is the kind of a topology object.
const Kind = "NetworkTopology"

// GroupVersion is the API group and version of the types in this package.
var GroupVersion = schema.GroupVersion{Group: "networking.dra.io", Version: "v1alpha1"}

// CauseRefused is a cause in the status with which the webhook refuses an object: clients tell its refusals
// from others by it.
const CauseRefused metav1.CauseType = "RefusedByPlumbline"

// Resource returns the plural name clients use.
func Resource() schema.GroupVersionResource { return GroupVersion.WithResource("networktopologies") }

// AddToScheme registers the types with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &NetworkTopology{}, &NetworkTopologyList{},
		&DeviceExposurePolicy{}, &DeviceExposurePolicyList{}, &DeviceExposureReport{}, &DeviceExposureReportList{},
		&AddressPool{}, &AddressPoolList{}, &AddressLease{}, &AddressLeaseList{},
		&NetworkQoSReport{}, &NetworkQoSReportList{}, &NetworkQoSDestinations{}, &NetworkQoSDestinationsList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
