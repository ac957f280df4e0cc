package inventory

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Driver is the name under which the devices are published and under which
// selectors find them: device.driver and the domain of the attributes.
const Driver = "dra.networking"

// Kind is the kind of a device, published as the attribute "type".
type Kind string

// The kinds.
const (
	KindPF      Kind = "pf"      // a PCI function that can have virtual functions, whether it has any or not
	KindVF      Kind = "vf"      // a virtual function of a PF of this host
	KindNIC     Kind = "nic"     // any other hardware: PCI without SR-IOV, USB, virtio, platform
	KindVirtual Kind = "virtual" // software only (bond, vlan, veth, dummy, ...): gone for good when its namespace dies
)

// LinkType is the kind of network a device speaks.
type LinkType string

// The link types; empty means unknown.
const (
	Ethernet   LinkType = "ethernet"
	InfiniBand LinkType = "infiniband"
)

// HostUse is the reason why the host keeps a device; it is empty if the device can be offered.
type HostUse string

// The uses. The kernel would let any of these be moved into a pod, and the host
// would lose a link it works with. DefaultRoute and Unread are set by GuardUplinks,
// and no policy may override them; Unread is a device of which nobody can say
// whether it carries a default route. OtherPort is that of a team, a vrf or another
// master.
const (
	DefaultRoute    HostUse = "default route"
	Unread          HostUse = "perhaps a default route: it cannot be read"
	BridgePort      HostUse = "bridge port"
	BondPort        HostUse = "bond port"
	OpenVSwitchPort HostUse = "openvswitch port"
	OtherPort       HostUse = "port"
)

// Device is one network device of the node. The field names of its JSON form
// are part of the command line's interface.
type Device struct {
	// ID is the PCI address ("0000:03:00.2"), or "if:NAME" for a netdev that is
	// no PCI function.
	ID string `json:"id"`
	// Name is the name in a ResourceSlice. That of a PCI function survives a
	// rename and a move of its interface.
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	// IfName is the interface in this network namespace; empty when there is
	// none here.
	IfName string `json:"ifName,omitempty"`
	// OtherIfNames are further netdevs of the same function: the second port of
	// a two-port card, representors, subfunctions. They are not devices of
	// their own.
	OtherIfNames []string `json:"otherIfNames,omitempty"`
	// DevType is the kernel's word for the kind of netdev (bond, bridge, vlan,
	// vxlan, wlan, ...); many kinds have none.
	DevType string `json:"devType,omitempty"`
	// PF is set for a KindVF.
	PF *PF `json:"pf,omitempty"`
	// NumVFs are the virtual functions a KindPF has now, TotalVFs those it could have.
	NumVFs   int `json:"numVFs,omitempty"`
	TotalVFs int `json:"totalVFs,omitempty"`
	// Vendor and DeviceID are the PCI IDs, four hexadecimal digits without "0x",
	// as the SR-IOV network operator writes them.
	Vendor   string `json:"vendor,omitempty"`
	DeviceID string `json:"deviceID,omitempty"`
	// Driver is the kernel driver bound to the PCI function.
	Driver string `json:"driver,omitempty"`
	// NUMANode is nil when the device has no affinity (sysfs says -1).
	NUMANode *int     `json:"numaNode,omitempty"`
	LinkType LinkType `json:"linkType,omitempty"`
	// RDMA says that at least one RDMA device belongs to this one.
	RDMA        bool     `json:"rdma"`
	RDMADevices []string `json:"rdmaDevices,omitempty"`
	// RDMAOnly says that the function has an RDMA device and never an interface, as those of EFA, or of InfiniBand without IPoIB.
	RDMAOnly bool `json:"rdmaOnly,omitempty"`
	// RDMANetns is RDMAShared or RDMAExclusive where there is an RDMA device, and "" where the kernel does not say.
	RDMANetns string `json:"rdmaNetns,omitempty"`
	// PCIeRoot is the root complex, "pci0000:00".
	PCIeRoot   string `json:"pcieRoot,omitempty"`
	IOMMUGroup string `json:"iommuGroup,omitempty"`
	// PhysicalNetwork is the network that the device is wired to, if Options or a policy name it.
	// Where it is wired to several networks it is the first of PhysicalNetworks.
	PhysicalNetwork string `json:"physicalNetwork,omitempty"`
	// PhysicalNetworks are those that a policy names.
	PhysicalNetworks []PhysicalNetwork `json:"physicalNetworks,omitempty"`
	// Networks are those of the addresses that IfName has on the host.
	Networks []netip.Prefix `json:"networks,omitempty"`
	// Additional are the attributes that a policy gives the device, by domain/name.
	Additional map[string]string `json:"additional,omitempty"`
	// Neighbour is the other end of the wire, as LLDP says; nil is not known, and empty is
	// that nobody is there who says. A virtual function has that of its PF.
	Neighbour *Neighbour `json:"neighbour,omitempty"`
	// Rail is derived from Neighbour by a policy.
	Rail string `json:"rail,omitempty"`
	// MTU, MAC, Up and Carrier are those of IfName.
	MTU     int    `json:"mtu,omitempty"`
	MAC     string `json:"mac,omitempty"`
	Up      bool   `json:"up"`
	Carrier bool   `json:"carrier"`
	// Master is the interface IfName is a port of; Uppers are all interfaces
	// stacked directly on IfName, the master among them.
	Master string   `json:"master,omitempty"`
	Uppers []string `json:"uppers,omitempty"`
	// HostUse is why the device is not offered.
	HostUse HostUse `json:"hostUse,omitempty"`
	// Shared is how the device is offered to several claims, nil for one that is given
	// away as a whole. Discover does not know.
	Shared *Sharing `json:"shared,omitempty"`
	// Exposure is the current decision of the cluster's policies on the device. It is not
	// part of records.
	Exposure Exposure `json:"-"`
}

// PhysicalNetwork is a network that a device is wired to.
type PhysicalNetwork struct {
	Name string `json:"name"`
	// VLAN is the ID of the network on the wire; 0 is none.
	VLAN int `json:"vlan,omitempty"`
	// AddressPool names the pool of the network's addresses.
	AddressPool string `json:"addressPool,omitempty"`
}

// AddressPool returns the pool of the physical networks that the device is wired to, and the first of these. It is empty if the
// only network has none, or the device is wired to none; with several that do not have the same pool the error names them.
func (d *Device) AddressPool() (pool, network string, err error) {
	if len(d.PhysicalNetworks) == 0 {
		return "", d.PhysicalNetwork, nil
	}
	first := d.PhysicalNetworks[0]
	pool = first.AddressPool
	if !slices.ContainsFunc(d.PhysicalNetworks, func(n PhysicalNetwork) bool { return n.AddressPool != pool }) {
		return pool, first.Name, nil
	}
	texts := make([]string, len(d.PhysicalNetworks))
	for i, n := range d.PhysicalNetworks {
		of := "no AddressPool"
		if n.AddressPool != "" {
			of = fmt.Sprintf("AddressPool %q", n.AddressPool)
		}
		texts[i] = fmt.Sprintf("%q (%s)", n.Name, of)
	}
	last := len(texts) - 1
	return "", "", fmt.Errorf("device %q is on the physical networks %s and %s", d.Name, strings.Join(texts[:last], ", "), texts[last])
}

// Neighbour is the switch port that a port is connected to.
type Neighbour struct {
	// Switch is the name of the system, or the ID of its chassis if it has no name.
	Switch string `json:"switch,omitempty"`
	// Port is the ID of its port.
	Port string `json:"port,omitempty"`
}

// Verdict is the decision of policies about a device.
type Verdict string

// The verdicts; that of a device that no policy selects is empty, and it is offered
// by the built-in rules.
const (
	Exposed   Verdict = "exposed"   // offered, if the built-in rules allow it
	Withheld  Verdict = "withheld"  // not offered
	Undecided Verdict = "undecided" // as it was before: the policies do not say what applies
)

// Exposure is the decision of the policies about a device, and its origin.
type Exposure struct {
	// Policy is the name of the one that decides, or that prevents a decision.
	Policy  string
	Verdict Verdict
	// Reason is why a device is undecided.
	Reason string
	// Rivals are policies of the same priority that say something else of the device.
	Rivals []string
	// Expects says that a policy expects a neighbour, and Miswired why it is not there.
	Expects  bool
	Miswired string
	// NoPool is why a physical network of the device has no AddressPool, whose name follows from the device and its node.
	NoPool string
	// BesideDrivers are other drivers that may publish the device, too.
	BesideDrivers []string
	// BesideFunctions has a PF offered as a whole that has virtual functions, until one
	// of both is taken.
	BesideFunctions bool
	// Sharing is how the device is shared; nil is not at all.
	Sharing *Sharing
}

// PF is the physical function a virtual function belongs to.
type PF struct {
	PCIAddress string `json:"pciAddress"`
	// IfName is the PF's interface in this network namespace; empty when there is none here.
	IfName string `json:"ifName,omitempty"`
	// VFIndex counts the PF's virtual functions from 0; -1 when it could not be read.
	VFIndex int `json:"vfIndex"`
}

// Uplink reports whether the node reaches others over the device, or may do so.
func (d Device) Uplink() bool { return d.HostUse == DefaultRoute || d.HostUse == Unread }

// PCIAddress returns the PCI address, or "" for a device without one.
func (d Device) PCIAddress() string {
	if strings.HasPrefix(d.ID, ifPrefix) {
		return ""
	}
	return d.ID
}

// State describes the use of the device in a few words.
func (d Device) State() string {
	switch {
	case d.HostUse != "" && d.Master != "" && !d.Uplink():
		return string(d.HostUse) + " of " + d.Master
	case d.HostUse != "":
		return string(d.HostUse)
	case d.IfName != "" && !d.Up:
		return "down"
	case d.IfName != "" && !d.Carrier:
		return "no carrier"
	case d.IfName != "":
		return "up"
	case d.Driver == "":
		return "no driver"
	case userspaceDriver(d.Driver):
		return "userspace"
	case d.RDMAOnly:
		return "RDMA"
	}
	// A network driver is bound, so there is a netdev, only not in this network
	// namespace: as a rule it is in a pod.
	return "not here"
}

// userspaceDriver reports whether a PCI driver hands the function to a process
// or a guest and therefore makes no netdev.
func userspaceDriver(driver string) bool {
	switch driver {
	case "uio_pci_generic", "igb_uio", "pci-stub", "pciback", "xen-pciback":
		return true
	}
	return strings.Contains(driver, "vfio") // vfio-pci and the variant drivers, mlx5_vfio_pci and so on
}

// Compare orders devices: PCI functions by address, then the others by
// interface name. It is the order of Discover and of First.
func Compare(a, b Device) int {
	x, y := a.PCIAddress(), b.PCIAddress()
	switch {
	case x != "" && y != "":
		// Domains have four digits or more, so a shorter address comes first.
		return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y))
	case x != "":
		return -1
	case y != "":
		return 1
	}
	return cmp.Compare(a.ID, b.ID)
}

const ifPrefix = "if:"

// maxPlain is the longest interface name the kernel allows.
const maxPlain = 15

var (
	pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	plainName  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
)

func pciName(address string) string {
	return "pci-" + strings.NewReplacer(":", "-", ".", "-").Replace(address)
}

// netName makes a DNS label of an interface name. If the name is not a label, invalid
// characters are replaced and a hash is added: "br_ex" and "br.ex" may both exist.
func netName(ifName string) string {
	if len(ifName) <= maxPlain && plainName.MatchString(ifName) {
		return "net-" + ifName
	}
	legible := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9':
			return r
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, ifName)
	legible = strings.Trim(legible[:min(len(legible), maxPlain)], "-")
	sum := sha256.Sum256([]byte(ifName))
	return strings.Join(slices.DeleteFunc([]string{"net", legible, hex.EncodeToString(sum[:4])},
		func(s string) bool { return s == "" }), "-")
}

// pciOf returns the PCI function nearest to the end of a sysfs path, and the
// components that follow it.
func pciOf(sysPath string) (address string, rest []string) {
	parts := strings.Split(path.Clean(sysPath), "/")
	for i, part := range slices.Backward(parts) {
		if pciAddress.MatchString(part) {
			return part, parts[i+1:]
		}
	}
	return "", nil
}
