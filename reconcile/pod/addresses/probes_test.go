package addresses

import (
	"fmt"
	"testing"
)

// TestProbes holds that each number is tried once, in an order of each seed's own, and that few
// blocks are tried in vain when many nodes lease most of a pool.
func TestProbes(t *testing.T) {
	for _, n := range []uint64{0, 1, 2, 3, 6, 97, 1000, 4096} {
		orders := map[string]bool{}
		for seed := range 20 {
			seen, order := map[uint64]bool{}, ""
			for i, at := range probes(fmt.Sprint("node-", seed), n) {
				if at >= n || seen[at] || i != len(seen) {
					t.Fatalf("of %d numbers, probe %d is %d after %v", n, i, at, seen)
				}
				if seen[at] = true; i < 8 {
					order += fmt.Sprint(at, " ")
				}
			}
			if uint64(len(seen)) != n {
				t.Errorf("of %d numbers %d are tried", n, len(seen))
			}
			orders[order] = true
		}
		if n >= 97 && len(orders) < 20 {
			t.Errorf("of %d numbers, 20 seeds have %d orders", n, len(orders))
		}
	}
	for range probes("node", 1<<63-1) { // the largest pool; it is not walked
		break
	}

	const blocks, leased = 16384, 13107 // what is leased ahead of need
	taken, tried, listed := map[uint64]bool{}, 0, 0
	for node := 0; len(taken) < leased; node++ {
		done := false
		for i, at := range probes(fmt.Sprintf("worker-%d.example.com/pool/0", node), blocks) {
			if i == tries {
				break
			}
			if tried++; !taken[at] {
				taken[at], done = true, true
				break
			}
		}
		if !done {
			listed++
		}
	}
	if each := float64(tried) / leased; each > 2.2 || listed > leased/300 {
		t.Errorf("%.1f tries for each of %d leases, and %d lists", each, leased, listed)
	}
}
