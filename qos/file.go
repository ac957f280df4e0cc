package qos

import (
	"github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/objectfile"
)

// Objects reads the NetworkQoS objects of a file. Unknown fields are refused.
func Objects(f *topology.Manifest) (objects []*v1alpha1.NetworkQoS, err error) {
	return objectfile.Decode[v1alpha1.NetworkQoS](f, v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))
}
