package kernel

import (
	"fmt"
	"testing"
	"time"

	"github.com/plumbline/plumbline/reconcile"
)

// TestRDMALinks: a pod that adds and removes RDMA devices all the time makes neither its own
// sandbox nor others search for their ports repeatedly.
func TestRDMALinks(t *testing.T) {
	now := time.Unix(1000, 0)
	r := newRDMALinks(func() time.Time { return now })
	with := rdmaLink{reconcile.NetnsID{Cookie: 1}, 7}
	without := rdmaLink{reconcile.NetnsID{Cookie: 2}, 7}
	search := func(names []string, link rdmaLink, found rdmaPort) bool {
		p, known := r.get(names, link)
		if !known {
			r.put(link, found)
		} else if p != found {
			t.Fatalf("%+v is %+v, want %+v", link, p, found)
		}
		return !known
	}
	port := rdmaPort{device: 3, port: 1}
	names := []string{"a"}
	for i := range 3 {
		if first := search(names, with, port); first != (i == 0) {
			t.Errorf("reading %d: searched %v", i, first)
		}
		if first := search(names, without, rdmaPort{}); first != (i == 0) {
			t.Errorf("reading %d, without a port: searched %v", i, first)
		}
	}
	if searched := search([]string{"a", "b"}, without, rdmaPort{}); !searched {
		t.Error("a device was added, and nobody searched for a port of the link that had none")
	}
	searches := 0
	const minutes = 10
	for i := range minutes * 60 * 10 {
		now = now.Add(time.Second / 10)
		churn := []string{"a", fmt.Sprint("hostile", i)}
		if search(churn, with, port) {
			t.Fatal("searched for a port that is known")
		}
		if search(churn, without, rdmaPort{}) {
			searches++
		}
	}
	if most := rdmaListsBurst + minutes*60*rdmaListsPerSecond; searches > most || searches < minutes {
		t.Errorf("%d searches in %d minutes, want %d at most", searches, minutes, most)
	}
	for i := range 2 * rdmaKnown {
		search(names, rdmaLink{reconcile.NetnsID{Cookie: 3}, i + 1}, rdmaPort{})
	}
	if len(r.of) > rdmaKnown {
		t.Errorf("%d links are remembered", len(r.of))
	}
}
