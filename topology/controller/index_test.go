package controller

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

func TestIndexes(t *testing.T) {
	o := &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "ai"}}
	o.Spec.Steps = []v1alpha1.Step{{Name: "vf0", Type: "sriov"}, {Name: "vf1", Type: "sriov"}, {Name: "b", Type: "bond", DependOn: []string{"vf0", "vf1"}}}
	if got := classesOfTopology(o); !slices.Equal(got, []string{"ai-vf0", "ai-vf1"}) {
		t.Errorf("classes %q", got)
	}
	if got := typesOfTopology(o); !slices.Equal(got, []string{"sriov", "bond"}) {
		t.Errorf("types %q", got)
	}
}

// TestStripClass holds that of a class of another driver only names and owner are cached,
// and that a class of ours is cached whole, however it was edited.
func TestStripClass(t *testing.T) {
	config := func(driver string) []resourceapi.DeviceClassConfiguration {
		return []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte("{}")}},
		}}}
	}
	owner := func(kind string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: kind, Name: "ai", UID: "u", Controller: new(true)}}
	}
	for name, c := range map[string]struct {
		class *resourceapi.DeviceClass
		whole bool
	}{
		"ours":             {&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owner(v1alpha1.Kind)}, Spec: resourceapi.DeviceClassSpec{Config: config(claim.Driver)}}, true},
		"without config":   {&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owner(v1alpha1.Kind)}, Spec: resourceapi.DeviceClassSpec{Config: config("gpu")}}, true},
		"without an owner": {&resourceapi.DeviceClass{Spec: resourceapi.DeviceClassSpec{Config: config(claim.Driver)}}, true},
		"a GPU's":          {&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owner("Operator")}, Spec: resourceapi.DeviceClassSpec{Config: config("gpu")}}, false},
	} {
		c.class.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
		if _, err := stripClass(c.class); err != nil {
			t.Fatal(err)
		}
		if whole := len(c.class.Spec.Config) > 0; whole != c.whole || c.class.ManagedFields != nil {
			t.Errorf("%s: %+v", name, c.class)
		}
		if c.class.OwnerReferences == nil != (name == "without an owner") {
			t.Errorf("%s: owner %+v", name, c.class.OwnerReferences)
		}
	}
}

// TestStripNode: of the nodes of a cluster their metadata is cached, too, of which only the name and the UID are used.
func TestStripNode(t *testing.T) {
	full := metav1.ObjectMeta{
		Name: "n1", UID: "u", CreationTimestamp: metav1.Unix(1e9, 0), Labels: map[string]string{"l": "v"}, Annotations: map[string]string{"a": "v"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
	}
	for _, o := range []metav1.Object{&corev1.Node{ObjectMeta: full}, &metav1.PartialObjectMetadata{ObjectMeta: full}} {
		if _, err := stripNode(o); err != nil {
			t.Fatal(err)
		}
		if o.GetName() != "n1" || o.GetUID() != "u" || o.GetCreationTimestamp() != full.CreationTimestamp ||
			o.GetManagedFields() != nil || o.GetAnnotations() != nil || o.GetLabels() != nil {
			t.Errorf("%+v", o)
		}
	}
}
