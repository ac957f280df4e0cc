package kernel

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/ops/netstate"
)

// tree makes a sysfs of files and links; a link's value begins with "->".
func tree(t *testing.T, entries map[string]string) sysfs {
	t.Helper()
	root := t.TempDir()
	for path, value := range entries {
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if len(value) > 2 && value[:2] == "->" {
			err = os.Symlink(value[2:], full)
		} else {
			err = os.WriteFile(full, []byte(value), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return sysfs{root}
}

func TestSysfs(t *testing.T) {
	const dir = "bus/pci/devices/"
	f := tree(t, map[string]string{
		dir + "0000:03:00.0/driver":                                        "->../../../bus/pci/drivers/mlx5_core",
		dir + "0000:03:00.0/virtfn0":                                       "->../0000:03:00.2",
		dir + "0000:03:00.0/virtfn10":                                      "->../0000:03:01.4",
		dir + "0000:03:00.0/net/aaa_rep/phys_port_name":                    "pf0vf1\n",
		dir + "0000:03:00.0/net/enp3s0f0/phys_port_name":                   "p0\n",
		dir + "0000:03:00.0/net/enp3s0f0/dev_port":                         "0\n",
		dir + "0000:03:01.4/physfn":                                        "->../0000:03:00.0",
		dir + "0000:04:00.0/net/port1/dev_port":                            "1\n",
		dir + "0000:04:00.0/net/second/dev_port":                           "0\n",
		dir + "0000:05:00.0/virtio3/net/eth0/dev_port":                     "0\n",
		dir + "0000:03:01.4/infiniband/mlx5_7/node_guid":                   "0\n",
		"bus/auxiliary/devices/mlx5_core.sf.4/infiniband/mlx5_8/node_guid": "0\n",
		"bus/virtio/devices/virtio3":                                       "->../../../devices/pci0000:00/0000:05:00.0/virtio3",
		"bus/virtio/devices/virtio4":                                       "->../../../devices/platform/a003e00.virtio_mmio/virtio4",
	})
	for id, want := range map[string][]string{
		"0000:03:00.0": {"enp3s0f0", "aaa_rep"}, // its own before that of a virtual function
		"0000:04:00.0": {"second", "port1"},
		"0000:05:00.0": {"eth0"},
		"0000:03:01.4": nil,
		"0000:09:00.0": nil,
	} {
		if got := f.netdevs(id); !slices.Equal(got, want) {
			t.Errorf("netdevs of %s: %v, want %v", id, got, want)
		}
	}
	if got := f.driver(netstate.Device{ID: "0000:03:00.0"}); got != "mlx5_core" {
		t.Errorf("driver %q", got)
	}
	if got := f.driver(netstate.Device{ID: "0000:04:00.0"}); got != "" {
		t.Errorf("driver %q", got)
	}
	if got := f.physicalFunction("0000:03:01.4"); got != "0000:03:00.0" {
		t.Errorf("physical function %q", got)
	}
	if n, ok := f.virtualIndex("0000:03:00.0", "0000:03:01.4"); n != 10 || !ok {
		t.Errorf("virtual function %d, %v", n, ok)
	}
	if _, ok := f.virtualIndex("0000:03:00.0", "0000:03:07.7"); ok {
		t.Error("a virtual function that is none")
	}
	for name, want := range map[[2]string]string{
		{"pci", "0000:03:00.0"}: "0000:03:00.0", {"virtio", "virtio3"}: "0000:05:00.0",
		{"virtio", "virtio4"}: "", {"usb", "1-1:1.0"}: "", {"auxiliary", "mlx5_core.sf.4"}: "",
	} {
		if got := f.deviceID(name[0], name[1]); got != want {
			t.Errorf("device of %v: %q, want %q", name, got, want)
		}
	}
	for _, c := range []struct{ id, parent, want string }{
		{"0000:03:01.4", "pci/0000:03:01.4", "mlx5_7"},
		{"if:enp3s0f0s4", "auxiliary/mlx5_core.sf.4", "mlx5_8"},
		{"0000:03:00.0", "pci/0000:03:00.0", ""},
		{"if:dummy0", "", ""},
	} {
		if got := strings.Join(f.rdmaDevices(netstate.Device{ID: c.id, Parent: c.parent}), " "); got != c.want {
			t.Errorf("RDMA devices of %q: %q, want %q", c.id, got, c.want)
		}
	}
	for id, want := range map[string]bool{"0000:03:00.0": true, "0000:09:00.0": false, "if:eth0": false, "": false, "../devices": false} {
		if f.exists(netstate.Device{ID: id}) != want {
			t.Errorf("%q exists: %v", id, !want)
		}
	}
}

// TestRDMAOfDevice: a device has the RDMA devices of its hardware with their device nodes, or those in software on its link,
// and nothing that a name in sysfs could lead elsewhere.
func TestRDMAOfDevice(t *testing.T) {
	const dir = "bus/pci/devices/"
	f := tree(t, map[string]string{
		dir + "0000:03:00.2/infiniband/mlx5_2/node_guid":            "0\n",
		dir + "0000:03:00.2/infiniband_verbs/uverbs2/ibdev":         "mlx5_2\n",
		dir + "0000:03:00.2/infiniband_verbs/uverbs2/uevent":        "MAJOR=231\nMINOR=194\nDEVNAME=infiniband/uverbs2\n",
		dir + "0000:03:00.2/infiniband_mad/umad2/ibdev":             "mlx5_2\n",
		dir + "0000:03:00.2/infiniband_mad/umad2/uevent":            "DEVNAME=infiniband/umad2\n",
		dir + "0000:03:00.3/infiniband/mlx5_3/node_guid":            "0\n",
		dir + "0000:03:00.4/infiniband/mlx5_4/node_guid":            "0\n",
		dir + "0000:03:00.4/infiniband_verbs/uverbs4/ibdev":         "mlx5_4\n",
		dir + "0000:03:00.4/infiniband_verbs/uverbs4/uevent":        "DEVNAME=../sda\n",
		dir + "0000:04:00.0/vendor":                                 "0x8086\n",
		"class/misc/rdma_cm/uevent":                                 "DEVNAME=infiniband/rdma_cm\n",
		"class/infiniband/rxe0":                                     "->../../devices/virtual/infiniband/rxe0",
		"class/infiniband/mlx5_2":                                   "->../../devices/pci0000:00/0000:03:00.2/infiniband/mlx5_2",
		"devices/virtual/infiniband/rxe0/ports/1/gid_attrs/ndevs/0": "enp4s0f0\n",
		"class/infiniband_verbs/uverbs9/ibdev":                      "rxe0\n",
		"class/infiniband_verbs/uverbs9/uevent":                     "DEVNAME=infiniband/uverbs9\n",
		"module/ib_core/parameters/netns_mode":                      "N\n",
	})
	for _, c := range []struct {
		id, link string
		want     []netstate.RDMADevice
	}{
		{"0000:03:00.2", "enp3s0f0v0", []netstate.RDMADevice{{Name: "mlx5_2", Nodes: []string{"/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"}}}},
		{"0000:03:00.2", "", []netstate.RDMADevice{{Name: "mlx5_2", Nodes: []string{"/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"}}}},
		{"0000:03:00.3", "", []netstate.RDMADevice{{Name: "mlx5_3"}}}, // ib_uverbs is not loaded
		{"0000:03:00.4", "", []netstate.RDMADevice{{Name: "mlx5_4"}}}, // no name of a device node
		{"0000:04:00.0", "enp4s0f0", []netstate.RDMADevice{{Name: "rxe0", Nodes: []string{"/dev/infiniband/uverbs9", "/dev/infiniband/rdma_cm"}, Software: true}}},
		{"0000:04:00.0", "", nil},
		{"0000:04:00.0", "enp5s0", nil},
		{"../../etc", "", nil},
	} {
		if diff := cmp.Diff(c.want, f.rdma(netstate.Device{ID: c.id}, c.link)); diff != "" {
			t.Errorf("device %s, link %q (-want +got):\n%s", c.id, c.link, diff)
		}
	}
	if !f.rdmaExclusive() {
		t.Error("netns_mode N is exclusive")
	}
	if tree(t, nil).rdmaExclusive() {
		t.Error("without RDMA nothing is exclusive")
	}
}
