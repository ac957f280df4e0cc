//go:build linux

package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
)

// sysfs reads what only sysfs shows: the netdevs of a PCI function, and the physical
// function of a virtual one. Everything else about a netdev comes from netlink.
type sysfs struct{ root string }

func (f sysfs) function(id string) string { return filepath.Join(f.root, "bus/pci/devices", id) }

// dir is the directory of a device with an address on a bus, "" for another one.
func (f sysfs) dir(d netstate.Device) string {
	if d.HasPCIAddress() {
		if !pciAddress.MatchString(d.ID) {
			return ""
		}
		return f.function(d.ID)
	}
	if bus, name, ok := strings.Cut(d.Parent, "/"); ok {
		return filepath.Join(f.root, "bus", bus, "devices", name)
	}
	return ""
}

// exists reports whether there is a device at the device's address.
func (f sysfs) exists(d netstate.Device) bool {
	dir := f.dir(d)
	if dir == "" {
		return false
	}
	_, err := os.Stat(dir)
	return err == nil
}

// driver returns the name of the driver bound to a device, "" for none.
func (f sysfs) driver(d netstate.Device) string {
	dir := f.dir(d)
	if dir == "" {
		return ""
	}
	return f.target(dir, "driver")
}

// names lists a folder, which is empty if it is not there.
func (f sysfs) names(folder ...string) (out []string) {
	entries, _ := os.ReadDir(filepath.Join(folder...))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// listable returns an error if folders of a device are there and cannot be listed.
func (f sysfs) listable(d netstate.Device, folders ...string) error {
	for _, folder := range folders {
		if _, err := os.ReadDir(filepath.Join(f.dir(d), folder)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("device %q: %w", d.ID, err)
		}
	}
	return nil
}

// target returns the last component of a symbolic link's target, "" without one.
func (f sysfs) target(dir, link string) string {
	to, err := os.Readlink(filepath.Join(dir, link))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// uppers lists the links on a link, such as its VLANs: those in the namespace sysfs was mounted
// in, with which they would be deleted or cut off.
func (f sysfs) uppers(name string) []string {
	dir, err := os.Open(filepath.Join(f.root, "class/net", name))
	if err != nil {
		return nil
	}
	defer dir.Close()
	files, _ := dir.Readdirnames(-1)
	var out []string
	for _, file := range files {
		if upper, ok := strings.CutPrefix(file, "upper_"); ok {
			out = append(out, upper)
		}
	}
	slices.Sort(out)
	return out
}

var (
	pciAddress  = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	representor = regexp.MustCompile(`^(c[0-9]+)?pf[0-9]+(vf|sf)[0-9]+$`)
)

// netdevs returns the names of a function's netdevs in the namespace sysfs was mounted
// in: the function's own first, representors of its virtual functions last. The netdev
// of a virtio card is one level deeper.
func (f sysfs) netdevs(id string) []string {
	dirs := []string{f.function(id)}
	if names := f.names(dirs[0], "net"); len(names) == 1 {
		return names // the usual case
	}
	virtio, _ := filepath.Glob(filepath.Join(dirs[0], "virtio[0-9]*"))
	type netdev struct {
		name string
		rank int
		port uint64
	}
	var all []netdev
	for _, d := range append(dirs, virtio...) {
		for _, name := range f.names(d, "net") {
			n := netdev{name: name}
			at := filepath.Join(d, "net", n.name)
			if representor.MatchString(f.text(at, "phys_port_name")) {
				n.rank = 1
			}
			n.port, _ = strconv.ParseUint(f.text(at, "dev_port"), 10, 32)
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b netdev) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.port, b.port), cmp.Compare(a.name, b.name))
	})
	var out []string
	for _, n := range all {
		out = append(out, n.name)
	}
	return out
}

// interfaceOf returns the name of a function's own netdev on the host. That of a function that is in a pod is not there; representors of
// its virtual functions can be.
func (f sysfs) interfaceOf(id string) (string, error) {
	names := f.netdevs(id)
	if len(names) == 0 || representor.MatchString(f.text(filepath.Join(f.function(id), "net", names[0]), "phys_port_name")) {
		return "", unix.ENODEV
	}
	return names[0], nil
}

// rdmaDevices returns the names of the RDMA devices of a device. In exclusive mode sysfs shows an RDMA device only in the network namespace
// that it belongs to (ib_class in drivers/infiniband/core/device.c), and its character devices everywhere (uverbs_class in uverbs_main.c).
func (f sysfs) rdmaDevices(d netstate.Device) []string {
	dir := f.dir(d)
	if dir == "" {
		return nil
	}
	out := f.names(dir, "infiniband")
	if len(out) > 0 && !f.rdmaExclusive() {
		return out
	}
	for _, verbs := range f.names(dir, "infiniband_verbs") {
		if name := f.line(filepath.Join(dir, "infiniband_verbs", verbs), "ibdev"); name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// rdma returns the RDMA devices of a device with the character devices for programs: those of the hardware, those in software on the
// link of that name in the host's namespace, or those of the hardware below it. Sources: ib_uverbs_add_one in
// drivers/infiniband/core/uverbs_main.c and ucma_misc in ucma.c (names of the device nodes), ib_devices_shared_netns in
// device.c (the parameter netns_mode).
func (f sysfs) rdma(d netstate.Device, link string) []netstate.RDMADevice {
	if names := f.rdmaDevices(d); len(names) > 0 {
		return f.rdmaIn(filepath.Join(f.dir(d), "infiniband_verbs"), names, false)
	}
	if link == "" {
		return nil
	}
	if names := f.softRDMA(link); len(names) > 0 {
		return f.rdmaIn(filepath.Join(f.root, "class/infiniband_verbs"), names, true)
	}
	return f.rdmaBelow(link, map[string]bool{})
}

// rdmaIn returns RDMA devices with the character devices that a folder lists, and one beside it.
func (f sysfs) rdmaIn(verbs string, names []string, software bool) (out []netstate.RDMADevice) {
	management := filepath.Join(filepath.Dir(verbs), "infiniband_mad") // ib_umad_init_port in user_mad.c
	for _, name := range names {
		out = append(out, netstate.RDMADevice{
			Name: name, Nodes: f.nodesIn(verbs, name), Management: f.nodesOf(management, name),
			Software: software,
		})
	}
	return out
}

// rdmaBelow returns the RDMA devices of the hardware below a bond or a VLAN of the host, whose addresses are GIDs of them
// (is_eth_port_of_netdev_filter in drivers/infiniband/core/roce_gid_mgmt.c). Of the ports of a bond that mlx5 merges, one has the RDMA
// device (mlx5_bond_0). Seen are the links that were followed.
func (f sysfs) rdmaBelow(link string, seen map[string]bool) (out []netstate.RDMADevice) {
	dir := filepath.Join(f.root, "class/net", link)
	if seen[link] || !followed(f.text(dir, "uevent")) {
		return nil
	}
	seen[link] = true
	for _, entry := range f.names(dir) {
		lower, ok := strings.CutPrefix(entry, "lower_")
		if !ok || seen[lower] {
			continue
		}
		found := f.rdmaBelow(lower, seen)
		if id := f.target(filepath.Join(f.root, "class/net", lower), "device"); pciAddress.MatchString(id) {
			found = f.rdma(netstate.Device{ID: id}, "")
		}
		for _, r := range found {
			if !slices.ContainsFunc(out, func(have netstate.RDMADevice) bool { return have.Name == r.Name }) {
				out = append(out, r)
			}
		}
	}
	return out
}

// followed reports whether the hardware below a link has its RDMA device, by the link's uevent: a bond or a VLAN. RoCE does not pass
// through others, such as a bridge.
func followed(uevent string) bool {
	for line := range strings.SplitSeq(uevent, "\n") {
		if line == "DEVTYPE=bond" || line == "DEVTYPE=vlan" {
			return true
		}
	}
	return false
}

// rdmaNodes returns the character devices for programs of an RDMA device of any kind.
func (f sysfs) rdmaNodes(name string) []string {
	return f.nodesIn(filepath.Join(f.root, "class/infiniband_verbs"), name)
}

// nodesIn returns the character devices of an RDMA device that a folder lists, and that of the connection manager.
func (f sysfs) nodesIn(verbs, name string) (out []string) {
	out = f.nodesOf(verbs, name)
	if manager := f.node(filepath.Join(f.root, "class/misc/rdma_cm")); manager != "" && len(out) > 0 {
		out = append(out, manager)
	}
	return out
}

// nodesOf returns the character devices of an RDMA device that a folder lists.
func (f sysfs) nodesOf(folder, name string) (out []string) {
	for _, entry := range f.names(folder) {
		at := filepath.Join(folder, entry)
		if node := f.node(at); node != "" && f.line(at, "ibdev") == name {
			out = append(out, node)
		}
	}
	return out
}

// lostNodes returns those of the character devices that a device no longer has: of its RDMA devices, or the one in software of that
// name, and its clocks. Those of the node itself, and groups of VFIO, do not change.
func (f sysfs) lostNodes(id, rdma string, nodes []string) []string {
	d := netstate.Device{ID: id}
	has := f.otherNodes(d, map[string][]string{})[netstate.NodePTP]
	of := f.rdma(d, "")
	if len(of) == 0 && rdma != "" {
		of = []netstate.RDMADevice{{Nodes: f.rdmaNodes(rdma), Management: f.nodesOf(filepath.Join(f.root, "class/infiniband_mad"), rdma)}}
	}
	for _, r := range of {
		has = slices.Concat(has, r.Nodes, r.Management)
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool {
		changes := strings.HasPrefix(n, "/dev/infiniband/") || strings.HasPrefix(n, "/dev/ptp")
		return !changes || slices.Contains(has, n)
	})
}

// otherNodes returns the character devices of a device and, as nodesOfHost returns them, those of the node, that are given where
// a topology names them. Sources: ptp_clock_register in drivers/ptp/ptp_clock.c; vhost_net_misc in drivers/vhost/net.c; tun_miscdev
// in drivers/net/tun.c.
func (f sysfs) otherNodes(d netstate.Device, host map[string][]string) map[string][]string {
	out := maps.Clone(host)
	if dir := f.dir(d); dir != "" {
		for _, clock := range f.names(dir, "ptp") {
			if node := f.node(filepath.Join(dir, "ptp", clock)); node != "" {
				out[netstate.NodePTP] = append(out[netstate.NodePTP], node)
			}
		}
	}
	return out
}

// nodesOfHost returns those of the node.
func (f sysfs) nodesOfHost() map[string][]string {
	out := map[string][]string{}
	for _, kind := range []string{netstate.NodeVhost, netstate.NodeTun} {
		if node := f.node(filepath.Join(f.root, "class/misc", kind)); node != "" {
			out[kind] = []string{node}
		}
	}
	return out
}

// hasRDMA reports whether there may be RDMA devices.
func (f sysfs) hasRDMA() bool {
	_, err := os.Stat(filepath.Join(f.root, "module/ib_core"))
	return err == nil
}

// isSoftRDMA reports whether an RDMA device is one in software. In exclusive mode one that is not the host's is known by
// its character device only.
func (f sysfs) isSoftRDMA(name string) bool {
	to, err := os.Readlink(filepath.Join(f.root, "class/infiniband", name))
	if err == nil {
		return strings.Contains(to, "/virtual/")
	}
	verbs := filepath.Join(f.root, "class/infiniband_verbs")
	for _, entry := range f.names(verbs) {
		if f.line(filepath.Join(verbs, entry), "ibdev") == name {
			to, _ := os.Readlink(filepath.Join(verbs, entry))
			return strings.Contains(to, "/virtual/")
		}
	}
	return false
}

// rdmaLinkOf returns the name of the link that an RDMA device of the host is on, "" if none is known. The link may be in another namespace.
func (f sysfs) rdmaLinkOf(name string) string {
	return f.text(filepath.Join(f.root, "class/infiniband", filepath.Base(name), "ports/1/gid_attrs/ndevs"), "0")
}

// softRDMA returns the names of the RDMA devices in software on a link of the host.
func (f sysfs) softRDMA(link string) []string {
	return slices.DeleteFunc(f.names(f.root, "class/infiniband"), func(name string) bool {
		return !f.isSoftRDMA(name) || f.rdmaLinkOf(name) != link
	})
}

// deviceNode is the kernel's name of a device node that containers may be given.
var deviceNode = regexp.MustCompile(`^(infiniband/[a-z_]+[0-9]*|ptp[0-9]+|vhost-net|net/tun)$`)

// node returns the path of the device node of a class device, "" without one.
func (f sysfs) node(dir string) string {
	for line := range strings.SplitSeq(f.text(dir, "uevent"), "\n") {
		if name, ok := strings.CutPrefix(line, "DEVNAME="); ok && deviceNode.MatchString(name) {
			return "/dev/" + name
		}
	}
	return ""
}

// rdmaExclusive reports whether each RDMA device belongs to one network namespace.
func (f sysfs) rdmaExclusive() bool {
	return f.text(filepath.Join(f.root, "module/ib_core/parameters"), "netns_mode") == "N"
}

func (f sysfs) text(dir, file string) string {
	b, _ := readFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(b))
}

// line returns the content of a file without the end of its line. A name that a pod can choose may have spaces around it.
func (f sysfs) line(dir, file string) string {
	b, _ := readFile(filepath.Join(dir, file))
	return strings.TrimSuffix(string(b), "\n")
}

// deviceID returns the PCI address of a netdev's parent device, "" for one that is no
// PCI function.
func (f sysfs) deviceID(bus, name string) string {
	switch bus {
	case "pci":
		return name
	case "virtio":
		to, err := os.Readlink(filepath.Join(f.root, "bus/virtio/devices", name))
		if err != nil {
			return ""
		}
		if id := filepath.Base(filepath.Dir(to)); pciAddress.MatchString(id) {
			return id
		}
	}
	return ""
}

// physicalFunction returns the function a virtual one belongs to, "" for one
// that is not virtual.
func (f sysfs) physicalFunction(id string) string { return f.target(f.function(id), "physfn") }

// isVirtual reports whether a virtual function is the index-th of pf.
func (f sysfs) isVirtual(id, pf string, index int) bool {
	return f.physicalFunction(id) == pf && f.target(f.function(pf), "virtfn"+strconv.Itoa(index)) == id
}

// virtualIndex returns the number of a physical function's virtual function at that
// address.
func (f sysfs) virtualIndex(pf, id string) (int, bool) {
	links, _ := filepath.Glob(filepath.Join(f.function(pf), "virtfn[0-9]*"))
	for _, l := range links {
		if f.target(filepath.Dir(l), filepath.Base(l)) != id {
			continue
		}
		if n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(l), "virtfn")); err == nil {
			return n, true
		}
	}
	return 0, false
}
