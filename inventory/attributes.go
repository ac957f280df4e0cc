package inventory

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

// The attributes in the domain dra.networking, written without the domain as
// the API wants it for a driver's own.
const (
	AttrType            resourceapi.QualifiedName = "type"                // string: pf, vf, nic, virtual, or rdma
	AttrIfName          resourceapi.QualifiedName = "ifName"              // string
	AttrPFName          resourceapi.QualifiedName = "pfName"              // string: interface of the PF, for a vf
	AttrVFIndex         resourceapi.QualifiedName = "vfIndex"             // int: number of the VF on its PF, from 0, for a vf
	AttrRDMA            resourceapi.QualifiedName = "rdma"                // bool
	AttrRDMANetns       resourceapi.QualifiedName = "rdmaNetns"           // string: shared or exclusive, of the node
	AttrPhysicalNetwork resourceapi.QualifiedName = "physicalNetworkName" // string
	AttrPhysicalNets    resourceapi.QualifiedName = "physicalNetworks"    // string: all of them, with commas
	AttrSwitch          resourceapi.QualifiedName = "switch"              // string: what the wire leads to, by LLDP
	AttrSwitchPort      resourceapi.QualifiedName = "switchPort"          // string: its port
	AttrRail            resourceapi.QualifiedName = "rail"                // string: what a policy makes of them
	AttrVendor          resourceapi.QualifiedName = "vendor"              // string: PCI ID, "15b3"
	AttrDevice          resourceapi.QualifiedName = "device"              // string: PCI ID, "101e"
	AttrDriver          resourceapi.QualifiedName = "driver"              // string: kernel driver
	AttrNUMANode        resourceapi.QualifiedName = "numaNode"            // int
	AttrLinkType        resourceapi.QualifiedName = "linkType"            // string: ethernet or infiniband
	AttrNetworks        resourceapi.QualifiedName = "networks"            // string: of its addresses on the host, with commas
	// string: step types with commas, or any; empty unless it is shared
	AttrSharedBy resourceapi.QualifiedName = "sharedBy"
)

// attributeNames are all of them.
var attributeNames = []resourceapi.QualifiedName{
	AttrType, AttrIfName, AttrPFName, AttrVFIndex, AttrRDMA, AttrRDMANetns, AttrPhysicalNetwork, AttrPhysicalNets,
	AttrSwitch, AttrSwitchPort, AttrRail, AttrVendor, AttrDevice, AttrDriver, AttrNUMANode, AttrLinkType, AttrNetworks, AttrSharedBy,
}

// AttributeNames returns the names of the attributes in our own domain.
func AttributeNames() []string {
	out := make([]string, len(attributeNames))
	for i, n := range attributeNames {
		out[i] = string(n)
	}
	return out
}

// attrDeviceK8sPCIeRoot is an old spelling of resource.kubernetes.io/pcieRoot
// which claims in the field use in constraints; it carries the same value.
const attrDeviceK8sPCIeRoot resourceapi.QualifiedName = "device.k8s.io/pcieRoot"

// extendedBDF is the form the standard attribute pciBusID must have. A PCI
// domain above ffff (Intel VMD) does not fit.
var extendedBDF = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$`)

// Attributes returns what a ResourceSlice of driver "dra.networking" says about
// a device. They are few, and none changes with the link's state. networks changes with
// the host's addresses: steps with masterNet choose by it.
// ifName, rdma and driver are of the moment, too: while a device is prepared
// for a pod, publish what was true before.
//
// type, ifName, pfName, rdma, physicalNetworkName, physicalNetworks and sharedBy are always
// there, empty where they do not apply. Reading a missing attribute is an evaluation
// error, and one such error on one device makes the scheduler give the pod up, not
// merely skip the device or the node: `physicalNetworkName == "localnet1"` would do so
// wherever a device without a physical network is evaluated first. The others are
// omitted when unknown, for "" or -1 would match another unknown in a matchAttribute
// constraint.
func Attributes(d Device) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	pfName := ""
	var neighbour Neighbour
	if d.Neighbour != nil {
		neighbour = *d.Neighbour
	}
	if d.PF != nil {
		pfName = d.PF.IfName
	}
	attrs := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		AttrType:            text(publishedType(d)),
		AttrIfName:          text(d.IfName),
		AttrPFName:          text(pfName),
		AttrRDMA:            {BoolValue: &d.RDMA},
		AttrPhysicalNetwork: text(d.PhysicalNetwork),
		AttrPhysicalNets:    text(JoinNetworks(d)),
		AttrSharedBy:        text(d.sharedBy()),
	}
	for name, value := range d.Additional {
		attrs[resourceapi.QualifiedName(name)] = text(value)
	}
	for name, value := range map[resourceapi.QualifiedName]string{
		AttrSwitch:            neighbour.Switch,
		AttrSwitchPort:        neighbour.Port,
		AttrRail:              d.Rail,
		AttrVendor:            d.Vendor,
		AttrDevice:            d.DeviceID,
		AttrDriver:            d.Driver,
		AttrLinkType:          string(d.LinkType),
		AttrRDMANetns:         d.RDMANetns,
		AttrNetworks:          joinAddressed(d),
		attrDeviceK8sPCIeRoot: d.PCIeRoot,
		deviceattribute.StandardDeviceAttributePCIeRoot: d.PCIeRoot,
	} {
		if a := text(value); *a.StringValue != "" {
			attrs[name] = a
		}
	}
	if extendedBDF.MatchString(d.PCIAddress()) {
		attrs[deviceattribute.StandardDeviceAttributePCIBusID] = text(d.PCIAddress())
	}
	if d.PF != nil && d.PF.VFIndex >= 0 {
		attrs[AttrVFIndex] = resourceapi.DeviceAttribute{IntValue: new(int64(d.PF.VFIndex))}
	}
	if d.NUMANode != nil && *d.NUMANode >= 0 {
		node := int64(*d.NUMANode)
		attrs[AttrNUMANode] = resourceapi.DeviceAttribute{IntValue: &node}
		attrs[deviceattribute.StandardDeviceAttributeNUMANode] = resourceapi.DeviceAttribute{IntValue: &node}
	}
	return attrs
}

// publishedType is the kind of a device, but for those without an interface, which no step that moves one may get.
func publishedType(d Device) string {
	if d.RDMAOnly {
		return TypeRDMA
	}
	return string(d.Kind)
}

// TypeRDMA is the type of a function with an RDMA device and no interface.
const TypeRDMA = "rdma"

// JoinNetworks names all physical networks of a device. An attribute of several
// values is an alpha feature of the API, and a selector can split a string.
func JoinNetworks(d Device) string {
	if len(d.PhysicalNetworks) == 0 {
		return d.PhysicalNetwork
	}
	names := make([]string, len(d.PhysicalNetworks))
	for i, n := range d.PhysicalNetworks {
		names[i] = n.Name
	}
	return strings.Join(names, ",")
}

// joinAddressed names the networks that the host has addresses of on a device, IPv4 first:
// as many as fit into an attribute, since of a value that is too long nothing would be left.
func joinAddressed(d Device) string {
	sorted := slices.SortedFunc(slices.Values(d.Networks), func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(a.Addr().BitLen(), b.Addr().BitLen()), a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	out := ""
	for _, p := range sorted {
		next := p.String()
		if out != "" {
			next = out + "," + next
		}
		if len(next) > resourceapi.DeviceAttributeMaxValueLength {
			break
		}
		out = next
	}
	return out
}

// text is a string attribute. A value the API would refuse counts as empty: one
// bad attribute makes a whole ResourceSlice invalid.
func text(s string) resourceapi.DeviceAttribute {
	if len(s) > resourceapi.DeviceAttributeMaxValueLength || !utf8.ValidString(s) {
		s = ""
	}
	return resourceapi.DeviceAttribute{StringValue: &s}
}
