package table

import "testing"

func woken(w Wake) bool {
	select {
	case <-w:
		return true
	default:
		return false
	}
}

// TestWoken: a part is woken once for all that changed before it reads, by each of its sources, and by
// no other; and a row that it reads then is at least as new as the change.
func TestWoken(t *testing.T) {
	var node Value[string]
	var pools Table[string, int]
	var other Changes
	w := Woken(&node, &pools)
	if woken(w) {
		t.Error("woken without a change")
	}
	if _, known := node.Get(); known {
		t.Error("a value is known that nobody has set")
	}
	node.Set("n1")
	pools.Put("a", 1)
	pools.Put("a", 2)
	other.Changed()
	if !woken(w) || woken(w) {
		t.Error("want one wake for three changes")
	}
	if v, known := node.Get(); v != "n1" || !known {
		t.Errorf("node %q, %v", v, known)
	}
	if v, ok := pools.Get("a"); v != 2 || !ok {
		t.Errorf("row %d, %v", v, ok)
	}
	pools.Delete("a")
	if _, ok := pools.Get("a"); !woken(w) || ok {
		t.Error("a deleted row is there, or wakes nobody")
	}
}

func TestLeave(t *testing.T) {
	var c Changes
	w := make(Wake, 1)
	leave := c.Wakes(w)
	c.Changed()
	if !woken(w) {
		t.Error("not woken")
	}
	if leave(); len(c.wakes) != 0 {
		t.Error("it is kept after it left")
	}
	if c.Changed(); woken(w) {
		t.Error("woken after it left")
	}
}
