package attachment_test

import (
	"fmt"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile/pod/attachment"
)

// TestEndsAlways: whichever write of a release fails, once or forever, the devices of the pod return, its gate is closed, the
// kubelet is answered that the claim has ended, and other pods keep what they have. So a pod that has filled the disk ends.
func TestEndsAlways(t *testing.T) {
	stops := func(w *world, pod attachment.Pod) error { return w.Detach(t.Context(), pod) }
	ends := func(w *world, _ attachment.Pod) error { return w.Withdraw(t.Context(), "a") }
	for what, calls := range map[string][]func(*world, attachment.Pod) error{
		"stopped, then withdrawn": {stops, ends},
		"withdrawn only":          {ends}, // no hook was called
		"stopped twice":           {stops, stops, ends},
	} {
		for _, lasts := range []bool{false, true} {
			for fails := 1; ; fails++ {
				w := newWorld(t)
				w.prepare("a", "one", "two")
				w.prepareFor("b", "q", "three")
				pod := w.sandbox("s", 1)
				w.ok(w.Attach(t.Context(), pod))
				other := w.sandbox("r", 2)
				other.UID = "q"
				w.ok(w.Attach(t.Context(), other))
				n, failed := 0, ""
				w.write = func(what string) error {
					if n++; n == fails || lasts && n > fails {
						failed = fmt.Sprintf("write %d (%s, forever: %v)", n, what, lasts)
						return syscall.ENOSPC
					}
					return nil
				}
				var err error
				for _, call := range calls {
					err = call(w, pod)
					if len(w.held) != 1 {
						t.Errorf("%s: %s: the engine has not released all: %v", what, failed, w.held)
					}
					w.wantGate("a", "")
				}
				if err != nil {
					t.Errorf("%s: %s: %v", what, failed, err)
				}
				for uid, want := range map[types.UID]bool{"a": false, "b": true} {
					if _, known, err := w.store.Get(uid); err != nil || known != want {
						t.Errorf("%s: %s: claim %s has a record: %v, %v", what, failed, uid, known, err)
					}
				}
				w.wantGate("b", "r")
				if failed == "" { // no write is left
					break
				}
			}
		}
	}
}
