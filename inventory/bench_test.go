package inventory_test

import (
	"testing"

	"github.com/plumbline/plumbline/inventory"
)

func BenchmarkDiscover(b *testing.B) {
	tree := open(b, "stack").tree
	for b.Loop() {
		if _, err := inventory.Discover(tree, inventory.Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	expr := cel(b, selectVF0)
	for b.Loop() {
		compile(b, expr)
	}
}

func BenchmarkFirst(b *testing.B) {
	all, s := devices(b, "stack"), compile(b, cel(b, selectVF0))
	for b.Loop() {
		if _, err := inventory.First(b.Context(), all, s, nil); err != nil {
			b.Fatal(err)
		}
	}
}
