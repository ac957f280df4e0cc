package deviceclass

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/plumbline/plumbline/inventory"
)

// selector is what is asked of a compiled selector.
type selector struct {
	err        error // why it does not compile
	passesOver bool  // it says no to the devices of other drivers
}

// To compile a selector takes most of the time in which a topology is judged, and
// topologies share selectors. The cache is of bounded size, whoever names selectors:
// no expression that is longer is kept.
const (
	maxSelectors   = 4096
	maxSelectorLen = 1 << 10
	selectorLife   = 24 * time.Hour
)

var selectorCache = cache.NewLRUExpireCache(maxSelectors)

func compiled(expr string) selector {
	if known, ok := selectorCache.Get(expr); ok {
		if s, ok := known.(selector); ok {
			return s
		}
	}
	c, err := inventory.Compile(expr)
	s := selector{err: err, passesOver: err == nil && c.PassesOver(context.Background())}
	if len(expr) <= maxSelectorLen {
		selectorCache.Add(expr, s, selectorLife)
	}
	return s
}
