package admission

import (
	"strconv"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// TestDue: a registration is written again once, a while after each change, and never before it has
// an authority. Whoever removes the annotation has it back a while later.
func TestDue(t *testing.T) {
	r := &admissionregistrationv1.ValidatingWebhookConfiguration{Webhooks: make([]admissionregistrationv1.ValidatingWebhook, 1)}
	r.Name = Definitions
	now := time.Unix(1000, 0)
	a := &again{now: func() time.Time { return now }, changed: map[string]change{}}
	due := func(step, generation string, wait time.Duration) {
		t.Helper()
		if got, after := a.due(r); got != generation || after != wait {
			t.Errorf("%s: generation %q is due in %s, want %q in %s", step, got, after, generation, wait)
		}
	}
	is := func(generation int64, authority string) {
		r.Generation, r.Webhooks[0].ClientConfig.CABundle = generation, []byte(authority)
	}
	write := func() {
		r.Annotations = map[string]string{GenerationAnnotation: strconv.FormatInt(r.Generation, 10)}
		delete(a.changed, r.Name) // as reconcile does
	}
	is(1, "")
	due("no authority", "", 0)
	is(2, "one")
	due("first seen", "2", settled)
	now = now.Add(2 * time.Second)
	due("seen again", "2", settled-2*time.Second)
	is(3, "two")
	due("changed meanwhile", "3", settled)
	now = now.Add(settled)
	due("settled", "3", 0)
	write()
	due("written", "", 0)
	now = now.Add(time.Hour)
	r.Annotations = nil
	due("the annotation is removed", "3", settled)
	now = now.Add(settled)
	due("still removed", "3", 0)
	write()
	r.Annotations = nil
	due("removed before the write was seen", "3", settled)
	now = now.Add(settled)
	write()
	is(4, "")
	due("the authority is lost", "", 0)
	is(5, "two")
	due("the same authority again", "5", settled)
	now = now.Add(settled)
	write()
	is(6, "two")
	due("other rules", "6", settled)
}
