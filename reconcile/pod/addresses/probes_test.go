package addresses

import (
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/effort"
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

// TestApart holds that of nodes which lease blocks of a pool with hostBlock at once, as when it is created, each needs few
// tries, and that one which is alone has the first free block, and comes to each.
func TestApart(t *testing.T) {
	seed := effort.Seed(t)
	for _, c := range []struct{ nodes, blocks, leased, bound int }{
		// With 25 seeds the last of 1000 nodes needed 43 requests, where there is a block for each, and else 25.
		{1000, 1024, 0, 60}, {1000, 1000, 0, 60}, {1000, 4096, 100, 40}, {5000, 65536, 0, 40}, {2, 2, 0, 3}, {1, 1, 0, 1},
	} {
		rng := rand.New(rand.NewPCG(seed, uint64(c.nodes+c.blocks)))
		leases := map[uint64]bool{}
		for i := range c.leased {
			leases[uint64(i)] = true
		}
		type claimant struct {
			next      func() (uint64, bool)
			stop      func()
			conflicts int
		}
		list := func() (next func() (uint64, bool), stop func()) {
			taken := maps.Clone(leases)
			return iter.Pull(freeBlocks(0, uint64(c.blocks), uint64(len(taken)), func(i uint64) bool { return !taken[i] }, rng.Uint64N))
		}
		waiting := make([]claimant, c.nodes)
		for i := range waiting {
			waiting[i].next, waiting[i].stop = list()
		}
		rounds, requests := 0, 0
		for ; len(waiting) > 0; rounds++ {
			if rounds > 10*c.bound {
				t.Fatalf("%+v: %d nodes have no block after %d rounds", c, len(waiting), rounds)
			}
			var left []claimant
			rng.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
			for _, w := range waiting {
				requests++
				index, some := w.next()
				if some && !leases[index] {
					leases[index] = true
					w.stop()
					continue
				}
				if w.conflicts++; !some || w.conflicts%tries == 0 {
					w.stop()
					w.next, w.stop = list()
				}
				left = append(left, w)
			}
			waiting = left
		}
		t.Logf("%+v: %d requests at most, %.1f on average", c, rounds, float64(requests)/float64(c.nodes))
		if rounds > c.bound {
			t.Errorf("%+v: the last node needs %d requests", c, rounds)
		}
	}

	var first []uint64
	for i := range freeBlocks(0, 6, 2, func(i uint64) bool { return i != 0 && i != 3 }, func(below uint64) uint64 { return below - 1 }) {
		first = append(first, i)
	}
	if got := fmt.Sprint(first); !strings.HasPrefix(got, "[1 2 ") {
		t.Errorf("of 1, 2, 4 and 5 are tried %s", got)
	}
	for range freeBlocks(0, 4, 4, func(uint64) bool { return false }, rand.N[uint64]) {
		t.Error("of none, one is tried")
	}
}
