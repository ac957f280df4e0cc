// Package inventory says which network devices a node has.
//
// It owns the Device model; Discover, which fills it from a sysfs tree given as
// an fs.FS; GuardUplinks, which takes the node's own uplinks out of the offer;
// Attributes, the names a device carries in a ResourceSlice; and Selector, a
// CEL expression with the meaning the scheduler gives it. Table and JSON print
// devices.
//
// Discovery reads and never writes, opens no socket and runs no program. What
// only netlink knows (the default route, alternative names) is handed in by
// the caller or left out. A function without a netdev in this network
// namespace, because it sits in a pod or is bound to vfio-pci, is listed all
// the same: it is known by its PCI address, and its name does not change when
// its interface is renamed or moved. Which devices are published to whom is
// decided in inventory/publish, not here.
//
// The lookups in lookup_linux.go ask the running system one question instead
// of reading everything.
package inventory
