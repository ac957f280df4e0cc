package attachment

import (
	"context"
	"sync"
	"time"

	"github.com/plumbline/plumbline/reconcile"
)

// urgentFor is how long one topology may delay repairs: an attachment in the background may
// take minutes.
const urgentFor = 2 * time.Second

// ensureUrgent calls the engine for a pod that waits for its network. Meanwhile, but no
// longer than urgentFor, the loop starts no repair.
func (k *Keeper) ensureUrgent(ctx context.Context, sb reconcile.Sandbox) (reconcile.Report, error) {
	if k.Yield != nil {
		done := sync.OnceFunc(k.Yield())
		defer done()
		defer time.AfterFunc(urgentFor, done).Stop()
	}
	return k.Engine.Ensure(ctx, sb)
}
