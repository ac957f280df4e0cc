package exposure

import (
	"github.com/plumbline/plumbline/topology/objectfile"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Decode reads the policies of a YAML or JSON file, and counts the documents of other
// kinds. Unknown fields are refused.
func Decode(data []byte) (policies []*v1alpha1.DeviceExposurePolicy, others int, err error) {
	return objectfile.Decode[v1alpha1.DeviceExposurePolicy](data, v1alpha1.GroupVersion.WithKind(v1alpha1.PolicyKind))
}
