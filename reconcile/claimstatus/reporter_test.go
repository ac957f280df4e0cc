package claimstatus

import (
	"errors"
	"log/slog"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestLimit tells of more claims than may wait, without anybody who writes.
func TestLimit(t *testing.T) {
	r := New(Options{Limit: 2, Log: slog.New(slog.DiscardHandler)})
	defer r.events.broadcaster.Shutdown()
	defer r.queue.ShutDown()
	r.Failed(Subject{Pod: Object{"ns", "pod", "p1"}}, "", errors.New("a pod without a claim"))
	for _, uid := range []types.UID{"a", "b", "a", "c", "b", "d"} {
		r.Attached(Subject{Claim: Object{"ns", "claim", uid}}, "t", nil)
	}
	if waiting, dropped := r.Waiting(); waiting != 2 || dropped != 2 {
		t.Errorf("%d wait and %d were dropped, want 2 and 2", waiting, dropped)
	}
}
