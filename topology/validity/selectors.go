package validity

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology/suggest"
)

// Selector is what is known of a selector once it is compiled.
type Selector struct {
	Err     error    // why it does not compile
	Unknown []string // remarks on attributes it reads that no device has
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

// Compiled compiles a selector, or remembers what came of it before.
func Compiled(expr string) Selector {
	if known, ok := selectorCache.Get(expr); ok {
		if s, ok := known.(Selector); ok {
			return s
		}
	}
	c, err := inventory.Compile(expr)
	s := Selector{Err: err}
	if err == nil {
		for _, name := range c.Unknown() {
			s.Unknown = append(s.Unknown, fmt.Sprintf("no device has an attribute %q, and the scheduler gives up a pod whose selector reads a missing one%s",
				name, suggest.Hint(name, inventory.AttributeNames())))
		}
	}
	if len(expr) <= maxSelectorLen {
		selectorCache.Add(expr, s, selectorLife)
	}
	return s
}
