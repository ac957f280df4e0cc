package kernel

import (
	"errors"
	"maps"
	"slices"
	"testing"
)

// TestStableCounters: counters are those of an index, whatever name it has, and none are taken while a pod swaps names.
func TestStableCounters(t *testing.T) {
	names := map[int]string{3: "net1", 4: "net2", 5: "d0"}
	nameOf := func(index int) (string, error) {
		if name, ok := names[index]; ok {
			return name, nil
		}
		return "", errors.New("no such device")
	}
	swap := false
	read := func(name string) map[string]uint64 {
		if name == "d0" {
			return nil
		}
		out := map[string]uint64{name: 1}
		if swap {
			names[3], names[4] = names[4], names[3]
		}
		return out
	}
	all := []int{3, 4, 5, 9}
	if got := stableCounters(all, nameOf, read); len(got) != 2 || got[3]["net1"] != 1 || got[4]["net2"] != 1 {
		t.Errorf("have %v", got)
	}
	names[3], names[4] = "net2", "net1"
	if got := stableCounters(all, nameOf, read); len(got) != 2 || got[3]["net2"] != 1 || got[4]["net1"] != 1 {
		t.Errorf("with other names: %v", got)
	}
	swap = true
	if got := stableCounters(all, nameOf, read); len(got) != 0 {
		t.Errorf("while names are swapped: %v", slices.Collect(maps.Keys(got)))
	}
}

// TestNameOf: a name is that of the index in the namespace of the socket.
func TestNameOf(t *testing.T) {
	e, err := openEthtoolIoctl("")
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	if name, err := e.nameOf(1); name != "lo" || err != nil {
		t.Errorf("the first interface is %q, %v", name, err)
	}
	if name, err := e.nameOf(1 << 30); err == nil {
		t.Errorf("an interface that does not exist is %q", name)
	}
}
