package kernel

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// TestPhysicalInterface: the counters of a port are those of its physical function's own interface on the host, not of a representor of a
// virtual function, and none are taken while that changes.
func TestPhysicalInterface(t *testing.T) {
	const dir = "bus/pci/devices/"
	f := tree(t, map[string]string{
		dir + "0000:03:00.0/net/aaa_rep/phys_port_name":  "pf0vf1\n",
		dir + "0000:03:00.0/net/enp3s0f0/phys_port_name": "p0\n",
		dir + "0000:03:01.4/physfn":                      "->../0000:03:00.0",
		dir + "0000:04:00.0/net/rep/phys_port_name":      "c1pf0vf1\n", // its own interface is in a pod
		dir + "0000:05:00.0/driver":                      "->../../drivers/vfio-pci",
		dir + "0000:06:00.0/net/eth6/mtu":                "1500\n",
	})
	h := &Host{sysfs: f}
	for id, want := range map[string]string{"0000:03:01.4": "0000:03:00.0", "0000:03:00.0": "", "../devices/0000:03:01.4": "", "mlx5_core.sf.4": ""} {
		if got := h.PhysicalFunction(id); got != want {
			t.Errorf("the physical function of %s is %q, want %q", id, got, want)
		}
	}
	all := []string{"0000:03:00.0", "0000:04:00.0", "0000:05:00.0", "0000:06:00.0", "0000:07:00.0"}
	got := stableCounters(all, f.interfaceOf, func(name string) map[string]uint64 { return map[string]uint64{name: 1} })
	if want := map[string]map[string]uint64{"0000:03:00.0": {"enp3s0f0": 1}, "0000:06:00.0": {"eth6": 1}}; !cmp.Equal(got, want) {
		t.Errorf("have %v, want %v", got, want)
	}
	got = stableCounters(all, f.interfaceOf, func(name string) map[string]uint64 {
		if err := os.RemoveAll(filepath.Join(f.root, dir, "0000:06:00.0/net", name)); err != nil {
			t.Fatal(err)
		}
		return map[string]uint64{name: 1}
	})
	if len(got) != 1 || got["0000:06:00.0"] != nil {
		t.Errorf("while an interface leaves: %v", got)
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
