package kernel

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// spent is how long the tests with a lane took. A lane of the machine runs for as long as all of them
// together, so each run says which are the longest.
var spent = struct {
	sync.Mutex
	by map[string]time.Duration
}{by: map[string]time.Duration{}}

// countTime adds the time until the end of the test to that of its top-level test.
func countTime(t *testing.T) {
	began := time.Now()
	name, _, _ := strings.Cut(t.Name(), "/")
	t.Cleanup(func() {
		spent.Lock()
		defer spent.Unlock()
		spent.by[name] += time.Since(began)
	})
}

func printLongest() {
	names := slices.SortedFunc(maps.Keys(spent.by), func(a, b string) int { return cmp.Compare(spent.by[b], spent.by[a]) })
	var longest []string
	for _, name := range names[:min(len(names), 20)] {
		longest = append(longest, fmt.Sprintf("%s %.0f s", name, spent.by[name].Seconds()))
	}
	if len(longest) > 0 {
		fmt.Println("longest tests:", strings.Join(longest, ", "))
	}
}
