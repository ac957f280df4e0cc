package qos

import (
	"github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology/objectfile"
)

// Decode reads the NetworkQoS objects of a YAML or JSON file, and counts the documents of
// other kinds. Unknown fields are refused.
func Decode(data []byte) (objects []*v1alpha1.NetworkQoS, others int, err error) {
	return objectfile.Decode[v1alpha1.NetworkQoS](data, v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))
}
