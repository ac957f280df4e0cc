// Package inventory lists the network devices of a node.
//
// It owns the Device model; Discover, which fills it from a sysfs tree given as
// an fs.FS; GuardUplinks, which takes the node's own uplinks out of the offer;
// Attributes, the names a device carries in a ResourceSlice; and Selector, a
// CEL expression with the meaning the scheduler gives it. Table and JSON print
// devices.
//
// Discovery reads and never writes, opens no socket and runs no program. Data
// that only netlink has (the default route, alternative names) is passed by
// the caller or left out. A function without a netdev in this network
// namespace, because it is in a pod or bound to vfio-pci, is listed too: it is
// identified by its PCI address, and its name does not change when its
// interface is renamed or moved. Package inventory/publish decides which
// devices are published.
//
// The lookups in lookup_linux.go answer a single query without a complete
// discovery.
package inventory
