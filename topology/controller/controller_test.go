package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestGrace holds that claims delay the removal of a topology only until they are prepared,
// and none of them forever.
func TestGrace(t *testing.T) {
	began := time.Unix(1000, 0)
	for _, c := range []struct {
		name  string
		use   Use
		after time.Duration
		want  time.Duration
	}{
		{"the scheduler may be late", Use{}, 0, lag},
		{"nobody uses it", Use{}, lag, 0},
		{"prepared claims", Use{Claims: 2, Pods: 2}, lag, 0},
		{"a claim that is not prepared", Use{Claims: 2, Unprepared: 1}, time.Minute, maxGrace - time.Minute},
		{"a claim that never is", Use{Claims: 1, Unprepared: 1}, maxGrace, 0},
	} {
		o := &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: began}}}
		if got := grace(o, c.use, began.Add(c.after)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestUnprepared(t *testing.T) {
	c := emptyClaims()
	feed(t, c,
		watch.Event{Type: watch.Added, Object: allocated(claim.Driver, "prepared", "red", 1)},
		watch.Event{Type: watch.Added, Object: allocated(claim.Driver, "allocated", "red", 0)})
	if u := c.Use("red", "uid-red"); u.Claims != 2 || u.Unprepared != 1 {
		t.Errorf("%+v", u)
	}
}

// TestEdited holds that the status alone is no edit.
func TestEdited(t *testing.T) {
	before := &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "red", UID: "u", ResourceVersion: "1", Generation: 1, Finalizers: []string{v1alpha1.Finalizer}}}
	for name, c := range map[string]struct {
		change func(*v1alpha1.NetworkTopology)
		want   bool
	}{
		"status":    {func(o *v1alpha1.NetworkTopology) { o.ResourceVersion, o.Status.Sandboxes = "2", 1 }, false},
		"spec":      {func(o *v1alpha1.NetworkTopology) { o.Generation = 2 }, true},
		"recreated": {func(o *v1alpha1.NetworkTopology) { o.UID = "v" }, true},
		"deletion":  {func(o *v1alpha1.NetworkTopology) { o.DeletionTimestamp = new(metav1.Now()) }, true},
		"finalizer": {func(o *v1alpha1.NetworkTopology) { o.Finalizers = nil }, true},
	} {
		after := before.DeepCopy()
		c.change(after)
		if got := edited(before, after); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestAwaited holds when a change of claims affects more than counts.
func TestAwaited(t *testing.T) {
	rolling := &v1alpha1.NetworkTopology{}
	rolling.Status.Rollout = &v1alpha1.RolloutStatus{Nodes: []string{"n1"}}
	done := &v1alpha1.NetworkTopology{}
	done.Status.Rollout = &v1alpha1.RolloutStatus{}
	going := &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}}
	going.DeletionTimestamp.Time = time.Unix(1, 0)
	for name, c := range map[string]struct {
		o    *v1alpha1.NetworkTopology
		want bool
	}{"in use": {&v1alpha1.NetworkTopology{}, false}, "rolling out": {rolling, true}, "rolled out": {done, false}, "being deleted": {going, true}} {
		if got := awaited(c.o); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
