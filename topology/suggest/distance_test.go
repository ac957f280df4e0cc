package suggest

import (
	"math/rand/v2"
	"testing"
)

// TestDistanceLimit holds that the limit does not change distances below it.
func TestDistanceLimit(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		out := make([]byte, rng.IntN(9))
		for i := range out {
			out[i] = "abc"[rng.IntN(3)]
		}
		return string(out)
	}
	for range 20_000 {
		a, b := word(), word()
		whole := levenshtein(a, b, 9)
		for limit := range 4 {
			if got := levenshtein(a, b, limit); (got <= limit || whole <= limit) && got != whole {
				t.Fatalf("%q and %q, at most %d: got %d, want %d", a, b, limit, got, whole)
			}
		}
	}
}
