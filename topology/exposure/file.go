package exposure

import (
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/objectfile"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Decode reads the policies of a file. Unknown fields are refused.
func Decode(f *topology.Manifest) (policies []*v1alpha1.DeviceExposurePolicy, err error) {
	return objectfile.Decode[v1alpha1.DeviceExposurePolicy](f, v1alpha1.GroupVersion.WithKind(v1alpha1.PolicyKind))
}
