//go:build linux

package kernel

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
		dir + "0000:03:00.2/infiniband_mad/issm2/ibdev":             "mlx5_2\n",
		dir + "0000:03:00.2/infiniband_mad/issm2/uevent":            "DEVNAME=infiniband/issm2\n",
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
		// In exclusive mode the name of a device of a pod is shown with its character devices only.
		dir + "0000:03:00.5/infiniband_verbs/uverbs5/ibdev":  "mlx5_5\n",
		dir + "0000:03:00.5/infiniband_verbs/uverbs5/uevent": "DEVNAME=infiniband/uverbs5\n",
	})
	for _, c := range []struct {
		id, link string
		want     []netstate.RDMADevice
	}{
		{"0000:03:00.2", "enp3s0f0v0", []netstate.RDMADevice{{Name: "mlx5_2", Nodes: []string{"/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"}, Management: []string{"/dev/infiniband/issm2", "/dev/infiniband/umad2"}}}},
		{"0000:03:00.2", "", []netstate.RDMADevice{{Name: "mlx5_2", Nodes: []string{"/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"}, Management: []string{"/dev/infiniband/issm2", "/dev/infiniband/umad2"}}}},
		{"0000:03:00.3", "", []netstate.RDMADevice{{Name: "mlx5_3"}}}, // ib_uverbs is not loaded
		{"0000:03:00.4", "", []netstate.RDMADevice{{Name: "mlx5_4"}}}, // no name of a device node
		{"0000:04:00.0", "enp4s0f0", []netstate.RDMADevice{{Name: "rxe0", Nodes: []string{"/dev/infiniband/uverbs9", "/dev/infiniband/rdma_cm"}, Software: true}}},
		{"0000:03:00.5", "", []netstate.RDMADevice{{Name: "mlx5_5", Nodes: []string{"/dev/infiniband/uverbs5", "/dev/infiniband/rdma_cm"}}}},
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

// TestRDMABelow: a bond or a VLAN of the host has the RDMA devices of the hardware below it. Where mlx5 has merged those of two ports,
// there is one, whose parent is the first port's function (mlx5_ib_stage_ib_reg_init in drivers/infiniband/hw/mlx5/main.c). RoCE does not pass
// a bridge.
func TestRDMABelow(t *testing.T) {
	entries := map[string]string{
		"class/misc/rdma_cm/uevent":        "DEVNAME=infiniband/rdma_cm\n",
		"devices/virtual/net/bond0/uevent": "DEVTYPE=bond\nINTERFACE=bond0\nIFINDEX=8\n", "class/net/bond0": "->../../devices/virtual/net/bond0",
		"devices/virtual/net/bond0.5/uevent": "DEVTYPE=vlan\nINTERFACE=bond0.5\n", "class/net/bond0.5": "->../../devices/virtual/net/bond0.5",
		"devices/virtual/net/bond0.5/lower_bond0": "->../bond0", "devices/virtual/net/bond0/upper_bond0.5": "->../bond0.5",
		"devices/virtual/net/bond1/uevent": "DEVTYPE=bond\n", "class/net/bond1": "->../../devices/virtual/net/bond1",
		"devices/virtual/net/br0/uevent": "DEVTYPE=bridge\n", "class/net/br0": "->../../devices/virtual/net/br0",
		"devices/virtual/net/loop/uevent": "DEVTYPE=vlan\n", "class/net/loop": "->../../devices/virtual/net/loop", "devices/virtual/net/loop/lower_loop": "->../loop",
		"class/infiniband/rxe0": "->../../devices/virtual/infiniband/rxe0",
		"devices/virtual/infiniband/rxe0/ports/1/gid_attrs/ndevs/0": "soft\n",
		"devices/virtual/net/soft/uevent":                           "DEVTYPE=vlan\n", "class/net/soft": "->../../devices/virtual/net/soft",
	}
	port := func(n int, rdma, uppers string) {
		id, name, number := fmt.Sprintf("0000:03:00.%d", n), fmt.Sprintf("p%d", n), strconv.Itoa(n)
		dir := "devices/pci0000:00/" + id
		entries["bus/pci/devices/"+id] = "->../../../" + dir
		entries["class/net/"+name], entries[dir+"/net/"+name+"/device"] = "->../../"+dir+"/net/"+name, "->../../../"+id
		for upper := range strings.FieldsSeq(uppers) {
			entries["devices/virtual/net/"+upper+"/lower_"+name] = "->../../../pci0000:00/" + id + "/net/" + name
		}
		if rdma != "" {
			entries[dir+"/infiniband/"+rdma+"/node_guid"] = "0\n"
			entries[dir+"/infiniband_verbs/uverbs"+number+"/ibdev"] = rdma + "\n"
			entries[dir+"/infiniband_verbs/uverbs"+number+"/uevent"] = "DEVNAME=infiniband/uverbs" + number + "\n"
		}
	}
	port(0, "mlx5_bond_0", "bond0 soft")
	port(1, "", "bond0")
	port(2, "mlx5_2", "bond1 br0")
	port(3, "mlx5_3", "bond1")
	f := tree(t, entries)
	for link, want := range map[string]string{
		"bond0": "mlx5_bond_0", "bond0.5": "mlx5_bond_0", "bond1": "mlx5_2 mlx5_3", "br0": "", "loop": "", "none": "", "p1": "", "soft": "rxe0",
	} {
		var got []string
		for _, r := range f.rdma(netstate.Device{ID: netstate.VirtualPrefix + link}, link) {
			got = append(got, r.Name)
			if nodes := []string{"/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"}; r.Name == "mlx5_bond_0" && (r.Software || !slices.Equal(r.Nodes, nodes)) {
				t.Errorf("%s: %+v, want the nodes %q", link, r, nodes)
			}
		}
		if is := strings.Join(got, " "); is != want {
			t.Errorf("%s has the RDMA devices %q, want %q", link, is, want)
		}
	}
}

// TestLostNodes: after the driver of two functions was loaded again, each has the character devices that the other one had, also under its
// name; those of soft RoCE are found by name.
func TestLostNodes(t *testing.T) {
	const dir = "bus/pci/devices/"
	verbs := func(function, n, name string) map[string]string {
		at := dir + function
		return map[string]string{
			at + "/infiniband/" + name + "/node_guid":       "0\n",
			at + "/infiniband_verbs/uverbs" + n + "/ibdev":  name + "\n",
			at + "/infiniband_verbs/uverbs" + n + "/uevent": "DEVNAME=infiniband/uverbs" + n + "\n",
			at + "/infiniband_mad/umad" + n + "/ibdev":      name + "\n",
			at + "/infiniband_mad/umad" + n + "/uevent":     "DEVNAME=infiniband/umad" + n + "\n",
			at + "/ptp/ptp" + n + "/uevent":                 "DEVNAME=ptp" + n + "\n",
			"class/infiniband_verbs/uverbs" + n + "/ibdev":  name + "\n",
			"class/infiniband_verbs/uverbs" + n + "/uevent": "DEVNAME=infiniband/uverbs" + n + "\n",
			"class/misc/rdma_cm/uevent":                     "DEVNAME=infiniband/rdma_cm\n",
			"class/infiniband_verbs/uverbs9/ibdev":          "pl0\n",
			"class/infiniband_verbs/uverbs9/uevent":         "DEVNAME=infiniband/uverbs9\n",
		}
	}
	node := func(first, second string) sysfs {
		files := verbs("0000:03:00.2", first, "mlx5_"+first)
		maps.Copy(files, verbs("0000:03:00.3", second, "mlx5_"+second))
		return tree(t, files)
	}
	before, after := node("2", "3"), node("3", "2")
	of2 := []string{"/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm", "/dev/infiniband/umad2", "/dev/ptp2", "/dev/net/tun", "/dev/vfio/7"}
	for name, c := range map[string]struct {
		f            sysfs
		device, rdma string
		nodes        []string
		lost         string
	}{
		"as before":                {before, "0000:03:00.2", "mlx5_2", of2, ""},
		"exchanged":                {after, "0000:03:00.2", "mlx5_2", of2, "/dev/infiniband/uverbs2 /dev/infiniband/umad2 /dev/ptp2"},
		"the driver is not loaded": {tree(t, map[string]string{dir + "0000:03:00.2/vendor": "0x15b3\n"}), "0000:03:00.2", "mlx5_2", of2, "/dev/infiniband/uverbs2 /dev/infiniband/rdma_cm /dev/infiniband/umad2 /dev/ptp2"},
		"soft RoCE":                {after, "", "pl0", []string{"/dev/infiniband/uverbs9", "/dev/infiniband/rdma_cm"}, ""},
		"soft RoCE of another pod": {after, "", "pl1", []string{"/dev/infiniband/uverbs9"}, "/dev/infiniband/uverbs9"},
		"without RDMA":             {after, "0000:03:00.3", "", []string{"/dev/ptp2", "/dev/vhost-net"}, ""},
		"no device nodes":          {after, "", "", nil, ""},
	} {
		if got := strings.Join(c.f.lostNodes(c.device, c.rdma, c.nodes), " "); got != c.lost {
			t.Errorf("%s: lost %q, want %q", name, got, c.lost)
		}
	}
}

// TestOtherNodes: a device has the nodes of its clocks and of the node, and nothing that a name in sysfs could lead elsewhere.
func TestOtherNodes(t *testing.T) {
	const dir = "bus/pci/devices/"
	f := tree(t, map[string]string{
		dir + "0000:03:00.0/ptp/ptp1/uevent": "MAJOR=248\nMINOR=1\nDEVNAME=ptp1\n",
		dir + "0000:03:00.1/ptp/ptp2/uevent": "DEVNAME=ptp2/../mem\n",
		"class/misc/vhost-net/uevent":        "MAJOR=10\nMINOR=238\nDEVNAME=vhost-net\n",
		"class/misc/tun/uevent":              "MAJOR=10\nMINOR=200\nDEVNAME=net/tun\n",
	})
	node := map[string][]string{netstate.NodeVhost: {"/dev/vhost-net"}, netstate.NodeTun: {"/dev/net/tun"}}
	clock := map[string][]string{netstate.NodePTP: {"/dev/ptp1"}, netstate.NodeVhost: {"/dev/vhost-net"}, netstate.NodeTun: {"/dev/net/tun"}}
	for id, want := range map[string]map[string][]string{"0000:03:00.0": clock, "0000:03:00.1": node, "if:dummy0": node} {
		if diff := cmp.Diff(want, f.otherNodes(netstate.Device{ID: id}, f.nodesOfHost())); diff != "" {
			t.Errorf("device %s (-want +got):\n%s", id, diff)
		}
	}
}

// TestRDMAPort reads what Linux 6.12 shows of a soft RoCE device with two addresses, and of a port of InfiniBand as in
// Documentation/ABI/stable/sysfs-class-infiniband.
func TestRDMAPort(t *testing.T) {
	const rxe, ib = "class/infiniband/rxe0/ports/1/", "class/infiniband/mlx5_0/ports/1/"
	files := map[string]string{
		rxe + "state": "4: ACTIVE\n", rxe + "rate": "2.5 Gb/sec (1X SDR)\n", rxe + "link_layer": "Ethernet\n",
		ib + "state": "1: DOWN\n", ib + "rate": "100 Gb/sec (4X EDR)\n", ib + "link_layer": "InfiniBand\n",
		ib + "gids/0": "fe80:0000:0000:0000:506b:4b03:00ab:cdef\n", ib + "gid_attrs/types/0": "IB/RoCE v1\n",
	}
	for i := range 200 {
		files[rxe+"gids/"+strconv.Itoa(i)] = "0000:0000:0000:0000:0000:0000:0000:0000\n"
	}
	for i, gid := range map[string][3]string{
		"0":   {"fe80:0000:0000:0000:fc17:26ff:fe29:d476", "RoCE v2", "d0"},
		"1":   {"0000:0000:0000:0000:0000:ffff:0a09:0001", "RoCE v2", "d0"},
		"2":   {"2001:0db8:0000:0000:0000:0000:0000:0001", "RoCE v2", "d0"},
		"40":  {"0000:0000:0000:0000:0000:ffff:0a09:0002", "IB/RoCE v1", "d0.7"},
		"150": {"2001:0db8:0000:0000:0000:0000:0000:0009", "RoCE v2", "d0"},
	} {
		files[rxe+"gids/"+i], files[rxe+"gid_attrs/types/"+i], files[rxe+"gid_attrs/ndevs/"+i] = gid[0]+"\n", gid[1]+"\n", gid[2]+"\n"
	}
	f := tree(t, files)
	for _, want := range []netstate.RDMAPort{
		{Device: "rxe0", Link: "d0", State: new("ACTIVE"), RateMbps: 2500, GIDs: []netstate.RDMAGID{
			{Index: 0, GID: "fe80::fc17:26ff:fe29:d476", Type: "RoCEv2"}, {Index: 1, GID: "10.9.0.1", Type: "RoCEv2"}, {Index: 2, GID: "2001:db8::1", Type: "RoCEv2"}, {Index: 150, GID: "2001:db8::9", Type: "RoCEv2"},
		}},
		{Device: "rxe0", Link: "host:d0.7", State: new("ACTIVE"), RateMbps: 2500, GIDs: []netstate.RDMAGID{{Index: 40, GID: "10.9.0.2", Type: "RoCEv1"}}},
		// A GID of InfiniBand is of no interface: print_ndev in drivers/infiniband/core/sysfs.c is an error.
		{Device: "mlx5_0", Link: "net1", State: new("DOWN"), RateMbps: 100_000, GIDs: []netstate.RDMAGID{{Index: 0, GID: "fe80::506b:4b03:ab:cdef", Type: "IB"}}},
		{Device: "mlx5_0", State: new("DOWN"), RateMbps: 100_000, GIDs: []netstate.RDMAGID{{Index: 0, GID: "fe80::506b:4b03:ab:cdef", Type: "IB"}}},
	} {
		if got, ok := f.rdmaPort(netstate.RDMAPort{Device: want.Device, Link: want.Link}, func(string) {}); !ok {
			t.Errorf("no port of %s", want.Device)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Device, diff)
		}
	}
	for _, none := range []string{"rxe1", "../infiniband/rxe0x", ""} {
		if got, ok := f.rdmaPort(netstate.RDMAPort{Device: none}, func(string) {}); ok {
			t.Errorf("port of %q: %+v", none, got)
		}
	}
}

// TestRDMAPortReads counts the files that are read of a port whose table has 256 entries, three of them in use.
func TestRDMAPortReads(t *testing.T) {
	const port = "class/infiniband/mlx5_0/ports/1/"
	files := map[string]string{port + "state": "4: ACTIVE\n", port + "rate": "100 Gb/sec (4X EDR)\n", port + "link_layer": "Ethernet\n"}
	for i := range 256 {
		files[port+"gids/"+strconv.Itoa(i)] = "0000:0000:0000:0000:0000:0000:0000:0000\n"
	}
	for i, link := range []string{"d0", "d0", "d1"} {
		n := strconv.Itoa(i)
		files[port+"gids/"+n], files[port+"gid_attrs/types/"+n], files[port+"gid_attrs/ndevs/"+n] = "2001:0db8:0000:0000:0000:0000:0000:000"+n+"\n", "RoCE v2\n", link+"\n"
	}
	f := tree(t, files)
	for name, tt := range map[string]struct {
		only  *int
		reads int
		gids  []int
	}{
		"all":                        {nil, 3 + 257 + 3 + 2, []int{0, 1}},
		"the one that was told":      {new(1), 3 + 3, []int{1}},
		"one that is free by now":    {new(7), 3 + 1 + 257 + 3 + 2, []int{0, 1}},
		"one of another link by now": {new(2), 3 + 2 + 257 + 3 + 2, []int{0, 1}},
		"one beyond the table":       {new(1000), 3 + 1 + 257 + 3 + 2, []int{0, 1}},
		"none":                       {new(-1), 3, nil},
	} {
		t.Run(name, func(t *testing.T) {
			reads := 0
			got, there := f.rdmaPort(netstate.RDMAPort{Device: "mlx5_0", Link: "d0", Only: tt.only}, func(string) { reads++ })
			var gids []int
			for _, g := range got.GIDs {
				gids = append(gids, g.Index)
			}
			if !there || !slices.Equal(gids, tt.gids) || *got.State != "ACTIVE" || got.RateMbps != 100_000 {
				t.Errorf("%+v, want the GIDs %v", got, tt.gids)
			}
			if whole := len(tt.gids) == 2; whole != (got.Only == nil) {
				t.Errorf("only %v was read", got.Only)
			}
			if reads > tt.reads {
				t.Errorf("%d files were read, want %d", reads, tt.reads)
			}
		})
	}
}

// TestRDMANameWithSpaces: a pod may rename its RDMA device, to a name with spaces at an end too. It is found under the name that the kernel
// knows, in the pod and, once the pod has ended, on the host.
func TestRDMANameWithSpaces(t *testing.T) {
	const at = "bus/pci/devices/0000:03:00.2/"
	for _, name := range []string{"mlx5_2 ", " ", "\tmlx5_2\n"} {
		inPod := map[string]string{
			"module/ib_core/parameters/netns_mode": "N\n",
			at + "infiniband_verbs/uverbs2/ibdev":  name + "\n",
			at + "infiniband_verbs/uverbs2/uevent": "DEVNAME=infiniband/uverbs2\n",
		}
		d := netstate.Device{ID: "0000:03:00.2"}
		if diff := cmp.Diff([]string{name}, tree(t, inPod).rdmaDevices(d)); diff != "" {
			t.Errorf("%q in the pod: -want +have:\n%s", name, diff)
		}
		inPod[at+"infiniband/"+name+"/node_guid"] = "0\n" // it has returned
		want := []netstate.RDMADevice{{Name: name, Nodes: []string{"/dev/infiniband/uverbs2"}}}
		if diff := cmp.Diff(want, tree(t, inPod).rdma(d, "")); diff != "" {
			t.Errorf("%q on the host: -want +have:\n%s", name, diff)
		}
	}
}

// TestRDMAOwnerUnreadable: that the RDMA device of a function cannot be read does not mean that it has none: a release would leave it in
// the pod.
func TestRDMAOwnerUnreadable(t *testing.T) {
	const function = "0000:03:00.2"
	for _, folder := range []string{"infiniband", "infiniband_verbs"} {
		f := tree(t, map[string]string{
			"module/ib_core/parameters/netns_mode":       "N\n",
			"bus/pci/devices/" + function + "/" + folder: "no folder",
		})
		if name, _, _, err := (&Sandbox{host: &Host{sysfs: f}}).rdmaOwner(t.Context(), function); err == nil {
			t.Errorf("%s: no error, and the device has the RDMA device %q", folder, name)
		}
	}
}
