package population

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// TestObjects holds that a cluster is as described, and at rest: topologies
// agree with their claims, and classes are correct.
func TestObjects(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	size := Full.Part(250)
	keys, users, reported := map[string]bool{}, map[string]int{}, map[string]int{}
	said := map[string]v1alpha1.NetworkTopologyStatus{}
	count := map[string]int{}
	encoder := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	for o, err := range Objects(size, registry) {
		if err != nil {
			t.Fatal(err)
		}
		key, err := keyOf(o)
		if err != nil || keys[key] {
			t.Fatalf("key %q twice, or %v", key, err)
		}
		keys[key] = true
		raw, err := encode(encoder, o)
		if err != nil {
			t.Fatal(err)
		}
		switch o := o.(type) {
		case *v1alpha1.NetworkTopology:
			count["topologies"]++
			said[o.Name] = o.Status
			if _, _, err := validity.Object(t.Context(), o, registry); err != nil {
				t.Error(err)
			}
		case *resourceapi.DeviceClass:
			count["classes"]++
		case *resourceapi.ResourceSlice:
			count["slices"]++
		case *resourceapi.ResourceClaim:
			count["claims"]++
			back, _, err := encoder.Decode(raw, nil, &resourceapi.ResourceClaim{})
			if err != nil || runtime.Object(o).GetObjectKind().GroupVersionKind() != back.GetObjectKind().GroupVersionKind() {
				t.Fatalf("%v as %v", err, back)
			}
			for _, u := range claim.Uses(o) {
				count["ours"]++
				users[u.Name]++
			}
			for _, r := range claim.Reports(o) {
				reported[r.Topology] += int(r.Generation)
			}
		}
	}
	for what, want := range map[string]int{"topologies": size.Topologies, "classes": 2 * size.Topologies, "claims": size.Claims, "ours": size.Ours, "slices": size.Nodes} {
		if count[what] != want {
			t.Errorf("%d %s, want %d", count[what], what, want)
		}
	}
	for name, s := range said {
		pods := 0
		for _, g := range s.Generations {
			pods += int(g.Pods)
		}
		if int(s.Sandboxes) != users[name] || pods != reported[name] || pods != int(s.Sandboxes) {
			t.Errorf("%s says %d pods, %d reported; its claims say %d and %d", name, s.Sandboxes, pods, users[name], reported[name])
		}
	}
	if got := Users(size); got != int(said[TopologyName(0)].Sandboxes) {
		t.Errorf("%d claims for the first topology, and it says %d", got, said[TopologyName(0)].Sandboxes)
	}
}
