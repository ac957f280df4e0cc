package addresses_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
)

// TestContention holds how long claims on several nodes wait that each need up to all addresses that are left of a pool, while
// there is room for one of them: also while an older claim waits for more than there is.
func TestContention(t *testing.T) {
	const bound = 45 // seconds; in 800 worlds half had theirs after 2, nine of ten after 9, and the last one after 22
	shapes := []shape{flat(28, 1, ""), flat(28, 1, "", "2001:db8:1::/124"), flat(27, 4, "", "2001:db8:1::/124")}
	type start struct{ seed, world uint64 }
	starts := []start{{5, 322}, {6, 276}} // 87 and 97 seconds without one half of the cure (ADR 92)
	worlds := 6
	if effort.Long() {
		worlds = 400
	}
	seed := effort.Seed(t)
	for i := range worlds {
		starts = append(starts, start{seed, uint64(i)})
	}
	for _, s := range starts {
		rng := rand.New(rand.NewPCG(s.seed, s.world))
		w := newWorld(t, rng, shapes[s.world%uint64(len(shapes)):][:1])
		for len(w.nodes) < 4 {
			w.addNode()
		}
		left, older := 2+rng.IntN(3), rng.IntN(3) > 0
		for w.left(3) > left {
			w.wanting("holder", 3, 1)
			for slices.ContainsFunc(w.pods, func(p *livePod) bool { return p.given == nil }) {
				w.second()
			}
		}
		left = min(w.left(0), w.left(1)) // the rest of a block that holders use is their node's
		if left == 0 {
			continue
		}
		if older {
			w.wanting("older", rng.IntN(4), left+1)
			for range rng.IntN(20) {
				w.second()
			}
		}
		w.wanting("x", 0, left)
		w.wanting("y", 1, 1+rng.IntN(left))
		for range rng.IntN(3) {
			w.wanting("z", rng.IntN(4), 1+rng.IntN(left))
		}
		seconds := 0
		for ; seconds <= bound && slices.ContainsFunc(w.pods, func(p *livePod) bool { return p.given == nil && w.room(p) }); seconds++ {
			w.second()
		}
		if seconds > bound {
			t.Errorf("seed %d, world %d: %d addresses are left, and claims that need no more wait for %d s; an older one waits for more: %v", s.seed, s.world, left, bound, older)
		}
	}
}

// wanting starts a pod on a node that needs a number of addresses of the first pool.
func (w *world) wanting(name string, node, addressesOf int) {
	w.serial++
	p := &livePod{name: fmt.Sprint(name, "-", w.serial), node: w.nodes[node], uid: types.UID(fmt.Sprint("claim-", w.serial))}
	for i := range addressesOf {
		p.wants = append(p.wants, addresses.Want{Topology: "t", Step: fmt.Sprint("s", i), Pool: "pool-0"})
	}
	w.pods = append(w.pods, p)
}

// left counts the addresses of the first pool that another pod of a node could have.
func (w *world) left(node int) int {
	n := math.MaxInt
	for _, is4 := range w.layouts["pool-0"].Families() {
		n = min(n, w.free(addresses.Want{Pool: "pool-0"}, is4, &livePod{node: w.nodes[node]}, w.used()))
	}
	return n
}
