package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is the kind of a schema object.
const Kind = "CNIPluginSchema"

// GroupVersion is the API group and version of the types in this package.
var GroupVersion = schema.GroupVersion{Group: "cni.networking.k8s.io", Version: "v1alpha1"}

// AddToScheme registers the types with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &CNIPluginSchema{}, &CNIPluginSchemaList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
