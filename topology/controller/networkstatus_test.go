package controller

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/plumbline/plumbline/topology/claim"
)

// TestNetworkReports holds when a claim has the annotation of its pod written: when what was reported of networks changes, or the pod, and not
// when conditions do.
func TestNetworkReports(t *testing.T) {
	c := emptyClaims()
	c.networks = true
	counted := 0
	c.OnChange(func(string) { counted++ })
	claimWith := func(pods []string, addresses ...string) *resourceapi.ResourceClaim {
		o := allocatedWith(addresses...)
		o.Status.ReservedFor = nil
		for _, uid := range pods {
			o.Status.ReservedFor = append(o.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "p", UID: types.UID(uid)})
		}
		return o
	}
	feed(t, c, watch.Event{Type: watch.Added, Object: claimWith([]string{"a"}, "192.0.2.1/24")})
	var reports []bool
	c.OnNetwork(func(_ string, r *record) { reports = append(reports, r.reportsNetwork()) })
	want := func(what string, wanted ...bool) {
		t.Helper()
		if !slices.Equal(reports, wanted) {
			t.Errorf("%s: %v, want %v", what, reports, wanted)
		}
		reports = nil
	}
	want("what was there before", true)
	degraded := claimWith([]string{"a"}, "192.0.2.1/24")
	degraded.Status.Devices[0].Conditions[0].Status = "False"
	feed(t, c, watch.Event{Type: watch.Modified, Object: degraded})
	want("a condition")
	before := counted
	moved := claimWith([]string{"a"}, "192.0.2.2/24")
	moved.Status.Devices[0].Conditions[0].Status = "False"
	feed(t, c, watch.Event{Type: watch.Modified, Object: moved})
	want("another address", true)
	if counted != before {
		t.Error("an address counts as use of the topology")
	}
	feed(t, c, watch.Event{Type: watch.Modified, Object: claimWith([]string{"b"}, "192.0.2.2/24")})
	want("another pod", true)
	feed(t, c, watch.Event{Type: watch.Modified, Object: claimWith([]string{"a", "b"}, "192.0.2.2/24")})
	want("two pods", false)
	feed(t, c, watch.Event{Type: watch.Modified, Object: claimWith([]string{"a"}, "192.0.2.2/24")})
	want("one again", true)
	feed(t, c, watch.Event{Type: watch.Deleted, Object: claimWith([]string{"a"}, "192.0.2.2/24")})
	want("no claim", false)
	feed(t, c, watch.Event{Type: watch.Added, Object: allocated("gpu.example.com", "theirs", "red", 1)}, watch.Event{Type: watch.Added, Object: allocated(claim.Driver, "bare", "red", 1)})
	want("no network")
}
