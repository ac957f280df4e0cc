package nested_test

import (
	"maps"
	"testing"

	"github.com/plumbline/plumbline/topology/nested"
)

// TestMap: an inner map is there while it has values.
func TestMap(t *testing.T) {
	var m nested.Map[string, int, bool]
	m.Delete("a", 1)
	m.Set("a", 1, true)
	m.Set("a", 2, true)
	m.Set("a", 2, false)
	if !maps.Equal(m["a"], map[int]bool{1: true, 2: false}) {
		t.Errorf("%v", m)
	}
	m.Delete("a", 2)
	m.Delete("b", 1)
	if len(m) != 1 || !m["a"][1] {
		t.Errorf("%v", m)
	}
	if m.Delete("a", 1); len(m) != 0 {
		t.Errorf("%v is left", m)
	}
}
