package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Options for Discover. The zero value is fine.
type Options struct {
	// PhysicalNetworks names the network a device is wired to, by interface name
	// or PCI address. A virtual function of which they say nothing is wired to what its
	// PF is wired to: it has no wire of its own.
	PhysicalNetworks map[string]string
	// UplinkOf returns the interface of a PF that has several, as one in
	// switchdev mode has: its own and a representor for each virtual function.
	// LookupUplink asks devlink, which knows. Where it is nil or fails, the
	// interfaces' port names decide.
	UplinkOf func(pciAddress string) (ifName string, err error)
	// RDMANetdevs returns, by name, which interface of the host each of these RDMA devices is on
	// that is on one; with an error, perhaps not all. It is called at most once, with the devices
	// that no PCI function has. sysfs shows such devices of all network namespaces with the name of their
	// interface, which a pod may name like one of the host. Where it is nil, sysfs decides.
	RDMANetdevs func(names []string) (ifNames map[string]string, err error)
}

// Discover lists the network devices in a sysfs tree: os.DirFS("/sys") or a
// fixture. The tree must be able to read symbolic links (fs.ReadLinkFS).
//
// The list is sorted by Compare and is useful even when the error is not nil:
// a device of which some files could not be read is listed with what could be
// read, and the error joins one line per file. A device that goes away while it
// is being read is left out without an error. The loopback interface is left
// out always.
func Discover(sys fs.FS, opt Options) ([]Device, error) {
	tree, ok := sys.(fs.ReadLinkFS)
	if !ok {
		return nil, fmt.Errorf("discover network devices: a %T cannot read symbolic links", sys)
	}
	s := &scan{tree: tree, dirs: map[string]string{}, functions: map[string]*Device{}, netdevs: map[string]*netdev{}}
	s.readNetdevs()
	s.readFunctions()
	s.assignNetdevs(opt.UplinkOf)
	s.readRDMA(opt.RDMANetdevs)
	s.linkFunctions()

	vanished, errs := s.settle()
	devices := make([]Device, 0, len(s.functions)+len(s.others))
	for _, d := range slices.Concat(slices.Collect(maps.Values(s.functions)), s.others) {
		if vanished[d.ID] {
			continue
		}
		d.PhysicalNetwork = opt.networkOf(d)
		devices = append(devices, *d)
	}
	slices.SortFunc(devices, Compare)
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return devices, fmt.Errorf("discover network devices: %w", errors.Join(errs...))
	}
	return devices, nil
}

func (opt Options) networkOf(d *Device) string {
	own := cmp.Or(opt.PhysicalNetworks[d.ID], opt.PhysicalNetworks[d.IfName])
	if own == "" && d.PF != nil {
		return cmp.Or(opt.PhysicalNetworks[d.PF.PCIAddress], opt.PhysicalNetworks[d.PF.IfName])
	}
	return own
}

const (
	netDir        = "class/net"
	pciDir        = "bus/pci/devices"
	infinibandDir = "class/infiniband"
)

// scan is one reading of a sysfs tree.
type scan struct {
	tree      fs.ReadLinkFS
	netdevs   map[string]*netdev // by interface name
	functions map[string]*Device // by PCI address
	others    []*Device          // netdevs that are no PCI function
	dirs      map[string]string  // by device ID
	problems  []problem
}

// problem is a file that could not be read, with its device.
type problem struct {
	id  string
	err error
}

// netdev is one entry of /sys/class/net.
type netdev struct {
	name     string
	path     string // resolved, below the root of the tree
	pci      string // nearest PCI function above it, of whatever class
	below    []string
	arpType  int
	portName string // phys_port_name: "p0" for an uplink, "pf0vf1" for a representor
	devPort  int
	device   *Device // the device it was assigned to as IfName
}

func (s *scan) fail(id, file string, err error) {
	s.report(id, fmt.Errorf("read %q: %w", file, err))
}

func (s *scan) report(id string, err error) {
	s.problems = append(s.problems, problem{id, fmt.Errorf("device %q: %w", id, err)})
}

// settle drops the problems of devices that went away while they were read.
func (s *scan) settle() (vanished map[string]bool, errs []error) {
	vanished = map[string]bool{}
	for _, p := range s.problems {
		if dir := s.dirs[p.id]; dir != "" && s.gone(dir) {
			vanished[p.id] = true
			continue
		}
		errs = append(errs, p.err)
	}
	return vanished, errs
}

// names lists a directory. A missing directory is empty: a machine without
// RDMA has no class/infiniband, a machine without PCI no bus/pci.
func (s *scan) names(dir string) []string {
	entries, err := fs.ReadDir(s.tree, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.problems = append(s.problems, problem{err: fmt.Errorf("list %q: %w", dir, err)})
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}

// resolve follows one link and returns a path below the root of the tree.
// sysfs links are relative and lead to real directories, so one step is enough.
func (s *scan) resolve(link string) (string, error) {
	target, err := s.tree.ReadLink(link)
	if err != nil {
		return "", err
	}
	resolved := path.Join(path.Dir(link), target)
	if path.IsAbs(target) || !fs.ValidPath(resolved) {
		return "", fmt.Errorf("link %q leads out of the tree: %q", link, target)
	}
	return resolved, nil
}

// base returns the last component of a link's target: the name of a driver, of
// an IOMMU group, of a PCI function. A link that is not there is "".
func (s *scan) base(id, dir, link string) string {
	target, err := s.tree.ReadLink(path.Join(dir, link))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.fail(id, link, err)
		}
		return ""
	}
	return path.Base(target)
}

func (s *scan) text(dir, file string) (string, error) {
	b, err := fs.ReadFile(s.tree, path.Join(dir, file))
	return strings.TrimSpace(string(b)), err
}

func (s *scan) number(dir, file string, base int) (int, error) {
	t, err := s.text(dir, file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(t, base, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", clip(t))
	}
	return int(n), nil
}

// optional is number for a file that need not exist.
func (s *scan) optional(id, dir, file string) (n int, ok bool) {
	n, err := s.number(dir, file, 10)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.fail(id, file, err)
		}
		return 0, false
	}
	return n, true
}

// gone reports whether a directory has disappeared since it was listed.
func (s *scan) gone(dir string) bool {
	_, err := fs.Stat(s.tree, dir)
	return errors.Is(err, fs.ErrNotExist)
}

// clip shortens the content of a file for an error message.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}

// From linux/if_arp.h.
const (
	arphrdEther      = 1
	arphrdInfiniBand = 32
	arphrdLoopback   = 772
)

func (s *scan) readNetdevs() {
	for _, name := range s.names(netDir) {
		if name == "bonding_masters" { // a file of the bonding module, no netdev
			continue
		}
		dir, err := s.resolve(path.Join(netDir, name))
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				s.report(ifPrefix+name, err)
			}
			continue
		}
		if s.gone(dir) { // the link outlives its target by a moment
			continue
		}
		s.dirs[ifPrefix+name] = dir
		n := &netdev{name: name, path: dir}
		n.pci, n.below = pciOf(path.Dir(dir))
		if n.arpType, err = s.number(dir, "type", 10); err != nil {
			s.fail(ifPrefix+name, "type", err)
		}
		if n.arpType == arphrdLoopback {
			continue
		}
		// Both fail on netdevs without ports (EOPNOTSUPP): that is an answer.
		n.portName, _ = s.text(dir, "phys_port_name")
		n.devPort, _ = s.number(dir, "dev_port", 10)
		s.netdevs[name] = n
	}
}

// readFunctions lists the PCI functions of class 0x02, and those that have a netdev
// although their class cannot be read.
func (s *scan) readFunctions() {
	parents := map[string]bool{}
	for _, n := range s.netdevs {
		parents[n.pci] = true
	}
	for _, address := range s.names(pciDir) {
		if !pciAddress.MatchString(address) {
			continue
		}
		dir, err := s.resolve(path.Join(pciDir, address))
		if err != nil {
			s.report(address, err)
			continue
		}
		s.dirs[address] = dir
		class, err := s.number(dir, "class", 0)
		if err != nil {
			s.fail(address, "class", err)
			if !parents[address] {
				continue
			}
		} else if class>>16 != 0x02 {
			continue
		}
		s.functions[address] = s.function(address, dir, class)
	}
}

func (s *scan) function(address, dir string, class int) *Device {
	d := &Device{ID: address, Name: pciName(address), Kind: KindNIC}
	for _, f := range []struct {
		file string
		to   *string
	}{{"vendor", &d.Vendor}, {"device", &d.DeviceID}} {
		n, err := s.number(dir, f.file, 0)
		if err == nil && (n < 0 || n > 0xffff) {
			err = errors.New("not a PCI ID")
		}
		if err != nil {
			s.fail(address, f.file, err)
			continue
		}
		*f.to = fmt.Sprintf("%04x", n)
	}
	d.Driver = s.base(address, dir, "driver")
	d.IOMMUGroup = s.base(address, dir, "iommu_group")
	if n, ok := s.optional(address, dir, "numa_node"); ok && n >= 0 {
		d.NUMANode = &n
	}
	// Unknown for instance below a platform bridge; drivers of other devices,
	// which use the same rule, do not know it there either.
	d.PCIeRoot, _ = pcieRoot(s.tree, address)

	switch class >> 8 & 0xff { // 0x0200 Ethernet, 0x0207 InfiniBand, 0x0280 other
	case 0x00:
		if class != 0 {
			d.LinkType = Ethernet
		}
	case 0x07:
		d.LinkType = InfiniBand
	}

	if pf := s.base(address, dir, "physfn"); pf != "" {
		d.Kind, d.PF = KindVF, &PF{PCIAddress: pf, VFIndex: -1}
	} else if n, ok := s.optional(address, dir, "sriov_totalvfs"); ok && n > 0 {
		d.Kind, d.TotalVFs = KindPF, n
		d.NumVFs, _ = s.optional(address, dir, "sriov_numvfs")
	}
	return d
}

// assignNetdevs gives every netdev to its PCI function, or makes a device of it.
func (s *scan) assignNetdevs(uplinkOf func(string) (string, error)) {
	byFunction := map[string][]*netdev{}
	for _, name := range slices.Sorted(maps.Keys(s.netdevs)) {
		n := s.netdevs[name]
		if s.functions[n.pci] != nil {
			byFunction[n.pci] = append(byFunction[n.pci], n)
			continue
		}
		// A USB card is below a PCI function too, but that is not a network device.
		d := &Device{ID: ifPrefix + name, Name: netName(name), Kind: KindNIC}
		if strings.HasPrefix(n.path, "devices/virtual/") {
			d.Kind = KindVirtual
		}
		s.others = append(s.others, d)
		s.describe(d, n)
	}
	for address, ns := range byFunction {
		slices.SortStableFunc(ns, func(a, b *netdev) int { return cmp.Or(a.rank()-b.rank(), a.devPort-b.devPort) }) // then by name
		d := s.functions[address]
		known := d.Kind == KindPF && len(ns) > 1 && first(ns, address, uplinkOf)
		if known || ns[0].rank() < subfunction {
			s.describe(d, ns[0])
			ns = ns[1:]
		}
		for _, n := range ns {
			d.OtherIfNames = append(d.OtherIfNames, n.name)
		}
	}
}

// first puts the uplink first, if it can be queried.
func first(ns []*netdev, address string, uplinkOf func(string) (string, error)) bool {
	if uplinkOf == nil {
		return false
	}
	name, err := uplinkOf(address)
	i := slices.IndexFunc(ns, func(n *netdev) bool { return n.name == name })
	if err != nil || i < 0 {
		return false
	}
	n := ns[i]
	copy(ns[1:], ns[:i])
	ns[0] = n
	return true
}

const (
	uplink = iota
	representor
	subfunction
)

// rank distinguishes the netdev of a function from its representors (phys_port_name
// pf0vf1, pf0sf3, also c1pf0vf1) and its subfunctions (below an auxiliary
// device, mlx5_core.sf.4).
func (n *netdev) rank() int {
	if slices.ContainsFunc(n.below, func(s string) bool { return strings.Contains(s, ".sf.") }) {
		return subfunction
	}
	if strings.Contains(n.portName, "pf") {
		return representor
	}
	return uplink
}

// describe makes n the interface of d and reads what only the netdev knows.
func (s *scan) describe(d *Device, n *netdev) {
	d.IfName, n.device = n.name, d
	switch n.arpType {
	case arphrdEther:
		d.LinkType = Ethernet
	case arphrdInfiniBand:
		d.LinkType = InfiniBand
	}
	var err error
	if d.MTU, err = s.number(n.path, "mtu", 10); err != nil {
		s.fail(d.ID, "mtu", err)
	}
	if d.MAC, err = s.text(n.path, "address"); err != nil {
		s.fail(d.ID, "address", err)
	}
	flags, err := s.number(n.path, "flags", 0)
	if err != nil {
		s.fail(d.ID, "flags", err)
	}
	d.Up = flags&1 != 0 // IFF_UP
	if d.Up {
		// EINVAL while the interface is down, absent on some tunnels.
		carrier, _ := s.text(n.path, "carrier")
		d.Carrier = carrier == "1"
	}
	uevent, _ := s.text(n.path, "uevent")
	for line := range strings.Lines(uevent) {
		if devType, ok := strings.CutPrefix(line, "DEVTYPE="); ok {
			d.DevType = strings.TrimSpace(devType)
		}
	}
	for _, entry := range s.names(n.path) {
		if upper, ok := strings.CutPrefix(entry, "upper_"); ok {
			d.Uppers = append(d.Uppers, upper)
		}
	}
	d.Master = s.base(d.ID, n.path, "master")
	d.HostUse = s.portOf(d.Master)
}

func (s *scan) portOf(master string) HostUse {
	if master == "" {
		return ""
	}
	m := s.netdevs[master]
	switch {
	case m == nil:
	case !s.gone(path.Join(m.path, "bonding")):
		return BondPort
	case !s.gone(path.Join(m.path, "bridge")):
		return BridgePort
	case master == "ovs-system": // the kernel datapath; the bridge is known to ovs-vswitchd only
		return OpenVSwitchPort
	}
	return OtherPort
}

// readRDMA finds the owner of every RDMA device: the PCI function above it or,
// for a software device, its netdev.
func (s *scan) readRDMA(netdevs func([]string) (map[string]string, error)) {
	var others []string
	ifNames, mode := map[string]string{}, s.rdmaMode()
	hardware := map[string][]string{} // RDMA devices by function
	for _, name := range s.names(infinibandDir) {
		dir, err := s.resolve(path.Join(infinibandDir, name))
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				s.problems = append(s.problems, problem{err: fmt.Errorf("RDMA device %q: %w", name, err)})
			}
			continue
		}
		address, _ := pciOf(path.Dir(dir))
		if d := s.functions[address]; d != nil {
			d.addRDMA(name, mode)
			hardware[address] = append(hardware[address], name)
			d.RDMAOnly = d.IfName == "" && !userspaceDriver(d.Driver) && (d.RDMAOnly || len(d.RDMADevices) == 1) && s.hasNoInterface(dir)
			continue
		}
		others = append(others, name)
		if netdevs == nil {
			ifNames[name], _ = s.text(dir, "ports/1/gid_attrs/ndevs/0") // ENOENT, EINVAL: no netdev
		}
	}
	if netdevs != nil && len(others) > 0 {
		var err error
		if ifNames, err = netdevs(others); err != nil {
			s.problems = append(s.problems, problem{err: fmt.Errorf("RDMA devices: %w", err)})
		}
	}
	for _, name := range others {
		if n := s.netdevs[ifNames[name]]; n != nil && n.device != nil {
			n.device.addRDMA(name, mode)
		}
	}
	for _, d := range s.others {
		if below := s.rdmaBelow(d.IfName, hardware, map[string]bool{}); !d.RDMA && len(below) == 1 {
			d.addRDMA(below[0], mode)
		}
	}
}

// rdmaBelow returns the RDMA devices of the functions below a bond or a VLAN, whose addresses are GIDs of them (roce_gid_mgmt.c in
// drivers/infiniband/core). Of the ports of a bond that mlx5 merges, one has the RDMA device (mlx5_bond_0). With several a step that
// shares the link is refused, so only one counts. Seen are the links that were followed.
func (s *scan) rdmaBelow(name string, hardware map[string][]string, seen map[string]bool) (out []string) {
	n := s.netdevs[name]
	if n == nil || seen[name] {
		return nil
	}
	seen[name] = true
	if s.functions[n.pci] != nil {
		return hardware[n.pci]
	}
	if n.device == nil || n.device.DevType != "bond" && n.device.DevType != "vlan" { // RoCE does not pass through others
		return nil
	}
	for _, entry := range s.names(n.path) {
		if lower, ok := strings.CutPrefix(entry, "lower_"); ok {
			out = append(out, s.rdmaBelow(lower, hardware, seen)...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// hasNoInterface reports whether an RDMA device has no network interface in any namespace. One with a port of Ethernet has one, since
// RoCE takes its GIDs from it; one of InfiniBand has one if the module for that is loaded (ipoib_add_one in
// drivers/infiniband/ulp/ipoib).
func (s *scan) hasNoInterface(dir string) bool {
	ports, _ := fs.ReadDir(s.tree, path.Join(dir, "ports"))
	ipoib := !s.gone("module/ib_ipoib")
	for _, p := range ports {
		layer, err := s.text(path.Join(dir, "ports", p.Name()), "link_layer")
		if err != nil || layer == "Ethernet" || layer == "InfiniBand" && ipoib {
			return false
		}
	}
	return len(ports) > 0
}

// Whether all network namespaces share the RDMA devices of a node (rdma-system(8)).
const (
	RDMAShared    = "shared"
	RDMAExclusive = "exclusive"
)

// rdmaMode reads the parameter netns_mode of ib_core, which rdma system set changes too (drivers/infiniband/core/device.c).
func (s *scan) rdmaMode() string {
	switch t, _ := s.text("module/ib_core/parameters", "netns_mode"); t {
	case "Y":
		return RDMAShared
	case "N":
		return RDMAExclusive
	}
	return ""
}

func (d *Device) addRDMA(name, mode string) {
	d.RDMA, d.RDMADevices, d.RDMANetns = true, append(d.RDMADevices, name), mode
}

// linkFunctions completes the virtual functions: which one of its PF each is,
// and what the PF's interface is called.
func (s *scan) linkFunctions() {
	indexes := map[string]int{}
	for address, d := range s.functions {
		for i := range d.NumVFs {
			vf := s.base(address, path.Join(pciDir, address), "virtfn"+strconv.Itoa(i))
			if vf == "" {
				break // the links are numbered without gaps
			}
			indexes[vf] = i
		}
	}
	for address, d := range s.functions {
		if d.PF == nil {
			continue
		}
		if pf := s.functions[d.PF.PCIAddress]; pf != nil {
			d.PF.IfName = pf.IfName
		}
		if i, ok := indexes[address]; ok {
			d.PF.VFIndex = i
		} else {
			s.report(address, fmt.Errorf("PF %q has no link to it", d.PF.PCIAddress))
		}
	}
}
