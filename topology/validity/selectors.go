package validity

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology/suggest"
)

// Selector is the result of compiling a selector.
type Selector struct {
	Err     error    // why it does not compile
	Unknown []string // remarks on attributes it reads that no device has, or that it compares with values of another type
	// Functions is whether it is about virtual functions: it reads an attribute that their
	// physical function does not have with the same value.
	Functions bool
}

// Compiling selectors takes most of the time of a validation, and topologies share
// selectors. The cache is bounded in entries, and longer expressions are not cached.
const (
	maxSelectors   = 4096
	maxSelectorLen = 1 << 10
	selectorLife   = 24 * time.Hour
)

var selectorCache = cache.NewLRUExpireCache(maxSelectors)

// Compiled compiles a selector, or returns the cached result.
func Compiled(expr string) Selector {
	if known, ok := selectorCache.Get(expr); ok {
		if s, ok := known.(Selector); ok {
			return s
		}
	}
	c, err := inventory.Compile(expr)
	s := Selector{Err: err, Functions: err == nil && c.Reads(inventory.AttrType, inventory.AttrPFName)}
	if err == nil {
		for _, name := range c.Unknown() {
			s.Unknown = append(s.Unknown,
				fmt.Sprintf("no device has an attribute %q, and the scheduler gives up a pod whose selector reads a missing one%s",
					name, suggest.Hint(name, inventory.AttributeNames())))
		}
		s.Unknown = append(s.Unknown, c.Doubts(nil, suggest.Name)...)
	}
	if len(expr) <= maxSelectorLen {
		selectorCache.Add(expr, s, selectorLife)
	}
	return s
}
