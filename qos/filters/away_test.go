package filters

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
)

// TestDeletedWhileAway: a pod keeps the filters of an object that was deleted while the agent was away until the objects are known, and
// loses them then.
func TestDeletedWhileAway(t *testing.T) {
	before, _ := crowded(t, 1)
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		entry := claims.Entry{In: []claims.Sandbox{{ID: "s", Phase: claims.Attached}}, Claim: *before.claims["of-p-0"]}
		f, n := crowded(t, 0) // an agent that has just started
		n.err = errUnread
		f.pods, f.topologies = before.pods, map[string]*network{"rail": {"t", entry.Topologies[0].Object.Labels}}
		f.Claims = func() []claims.Entry { return []claims.Entry{entry} }
		f.Reporter = nobody{}
		var mu sync.Mutex
		var given []ops.Rules
		updates := f.Updates(func(_ context.Context, uid types.UID) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			c := f.claims[uid]
			rules, err := f.Of(c, &c.Topologies[0])
			given = append(given, rules)
			return true, err
		})
		var running sync.WaitGroup
		running.Go(func() { updates.Run(ctx) })
		f.mu.Lock()
		n.stop = stop // it is not followed: there is no API server
		f.mu.Unlock()
		f.follow(ctx, &running)
		synctest.Wait()
		mu.Lock()
		if len(given) > 0 {
			t.Errorf("before the objects are known, the pod is given %+v", given)
		}
		mu.Unlock()
		n.store().Around(true, func() {}) // a list without objects
		synctest.Wait()
		mu.Lock()
		if len(given) != 1 || !given[0].Empty() {
			t.Errorf("the pod is given %+v, want nothing, once", given)
		}
		mu.Unlock()
		stop()
		running.Wait()
	})
}

// nobody is told nothing.
type nobody struct{}

// Filtered implements Reporter.
func (nobody) Filtered(claims.Claim) {}

// FilterFailed implements Reporter.
func (nobody) FilterFailed(claims.Claim, error) {}
