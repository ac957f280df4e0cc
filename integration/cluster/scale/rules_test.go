package main

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops/netstate"
)

// TestPodsWithMark: a pod that is given the same filters again, or others with the same mark, is not counted twice, and an edit begins anew.
func TestPodsWithMark(t *testing.T) {
	n := &ruleAgent{of: &ruleAgents{}, has: map[types.UID]map[netstate.Key]netstate.Filter{}}
	give := func(uid types.UID, mark uint8, pref uint16) {
		n.took(uid, []netstate.Filter{{Link: "net1", Pref: 1, DSCP: new(uint8(1))}, {Link: "net1", Pref: pref, DSCP: &mark}})
	}
	edit := func(mark int64) {
		n.of.edited.Store(mark)
		n.of.began.Store(new(time.Now()))
	}
	for _, mark := range []uint8{3, 4} {
		edit(int64(mark))
		give("a", mark, 2)
		give("a", mark, 2)
		give("a", mark, 3)
		give("c", 9, 2)
		if n.mark != int64(mark) || n.current != 1 {
			t.Errorf("one pod has the mark %d, %d are counted with the mark %d", mark, n.current, n.mark)
		}
		give("b", mark, 2)
		if n.current != 2 {
			t.Errorf("two pods have the mark %d, %d are counted", mark, n.current)
		}
	}
}

func TestSmallPart(t *testing.T) {
	if have := fullRules.part(1000).nodes; have != 1 {
		t.Errorf("%d nodes", have)
	}
	if have := fullAddresses.part(100_000).nodes; have != 1 {
		t.Errorf("%d nodes of pools", have)
	}
}
