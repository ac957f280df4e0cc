package controller

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestEchoes: the event of an own write is recognized before and after its answer, and no other one is lost.
func TestEchoes(t *testing.T) {
	key, other := types.NamespacedName{Namespace: "n", Name: "q"}, types.NamespacedName{Namespace: "n", Name: "o"}
	var got []types.NamespacedName
	e := newEchoes(func(key types.NamespacedName) { got = append(got, key) })
	for _, c := range []struct {
		name string
		do   func()
		want []types.NamespacedName
	}{
		{"nothing is written", func() { e.event(key, "1") }, []types.NamespacedName{key}},
		{"the event comes after the answer", func() { e.begin(key); e.end("2"); e.event(key, "2") }, nil},
		{"it comes before", func() { e.begin(key); e.event(key, "3"); e.end("3") }, nil},
		{"it comes once", func() { e.event(key, "3") }, []types.NamespacedName{key}},
		{"another change before it", func() { e.begin(key); e.event(key, "4"); e.end("5"); e.event(key, "5") }, []types.NamespacedName{key}},
		{"another change before it, late", func() { e.begin(key); e.end("7"); e.event(key, "6"); e.event(key, "7") }, []types.NamespacedName{key}},
		{"another change after it", func() { e.begin(key); e.event(key, "8"); e.event(key, "9"); e.end("8") }, []types.NamespacedName{key}},
		{"the write fails", func() { e.begin(key); e.event(key, "10"); e.end("") }, []types.NamespacedName{key}},
		{"another object", func() { e.begin(key); e.event(other, "11"); e.end("11"); e.event(key, "11") }, []types.NamespacedName{other}},
		{"the object is deleted", func() { e.begin(key); e.end("12"); e.forget(key); e.event(key, "13") }, []types.NamespacedName{key}},
	} {
		got = nil
		if c.do(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if len(e.written) > 0 || len(e.early) > 0 {
		t.Errorf("%d versions are kept", len(e.written)+len(e.early))
	}
}
