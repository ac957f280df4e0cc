package qos

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/qos/v1alpha1"
)

// Read reads and checks an object as the API server sends it. Of one that is no NetworkQoS,
// which a CRD of others may let pass, the policy has the error, and the object is empty.
func Read(u *unstructured.Unstructured) (*Policy, *v1alpha1.NetworkQoS) {
	o := &v1alpha1.NetworkQoS{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
		return &Policy{
			Key: types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}, UID: u.GetUID(),
			Generation: u.GetGeneration(), Err: err,
		}, &v1alpha1.NetworkQoS{}
	}
	return New(o), o
}
