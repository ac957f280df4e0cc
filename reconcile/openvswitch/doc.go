// Package openvswitch holds two domains of the engine beside the kernel: the Open vSwitch of
// the node, with the ports that are bound to networks of OVN, and the OVN Northbound database,
// with the logical ports, their rules and switches.
//
// Only rows with the mark of plumbline are changed. All operations of a change are one
// transaction, which holds by wait operations that what it was made for is as it was read: the
// Northbound database may be that of all nodes.
package openvswitch
