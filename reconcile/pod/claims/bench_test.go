package claims_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
)

// BenchmarkList measures what the existing claims cost the start of a pod, while other
// claims are recorded.
func BenchmarkList(b *testing.B) {
	for _, n := range []int{1, 100, 500} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := open(b, b.TempDir(), "boot")
			for i := range n {
				c := example(types.UID(fmt.Sprintf("claim-%d", i)))
				if err := s.Put(c); err != nil {
					b.Fatal(err)
				}
				e := claims.Entry{Claim: c}
				e.Set(claims.Sandbox{ID: fmt.Sprintf("sandbox-%d", i), PodUID: c.Pod.UID, Netns: "/n", NetnsID: reconcile.NetnsID{Inode: 7}, Phase: claims.Attached})
				if err := s.PutSandboxes(e); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if e, errs := s.List(); len(errs) > 0 || len(e) != n {
					b.Fatalf("%d claims, %v", len(e), errs)
				}
			}
		})
	}
}
