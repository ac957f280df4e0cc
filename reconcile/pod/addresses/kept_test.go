package addresses_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestRefusedLease holds that a lease which the API server refuses to write stops no other one: neither what is
// reported, nor the search of another pod, nor is its block lost.
func TestRefusedLease(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := newServer(kept("p", "192.0.2.0/29"))
	a := s.agent(t, "n", fileOf(t), &now)
	had := map[string]string{a.has("c0", "web-0", "p"): "web-0", a.has("c1", "web-1", "p"): "web-1"}
	both := slices.Sorted(maps.Keys(had)) // in the order in which they are reported
	first, second := both[0], both[1]
	name := func(address string) string { return "p-" + address + "-32" }
	s.refuse = func(l *v1alpha1.AddressLease) error {
		if l.Name == name(first) {
			return apierrors.NewInvalid(schema.GroupKind{Kind: v1alpha1.AddressLeaseKind}, l.Name, nil)
		}
		return nil
	}
	now = now.Add(time.Minute)
	if err := a.Pass(t.Context()); err == nil || !strings.Contains(err.Error(), first) {
		t.Errorf("a refused report is not an error: %v", err)
	}
	if l := s.leases[name(second)]; l.Spec.Used != 1 || l.Spec.For != "ns/"+had[second]+"/net/t/s" {
		t.Errorf("after a lease that is refused, another one is reported as %+v", l.Spec)
	}

	a.giveBack(types.UID("c" + strings.TrimPrefix(had[first], "web-")))
	a.has("c2", "web-2", "p")
	if got := a.has("c3", had[first], "p"); got != first {
		t.Errorf("the pod gets %s, want %s, which rests on the node", got, first)
	}
	a.giveBack("c3")
	_ = a.Pass(t.Context())
	now = now.Add(2 * time.Hour)
	if got := a.has("c4", "db-0", "p"); got != first {
		t.Errorf("after its time another pod gets %s, and the node holds %s for nobody", got, first)
	}
}
