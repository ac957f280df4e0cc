// Package flowcounters reads what Open vSwitch has counted for rules that OVN enforces: packets and bytes of
// their flows, and packets that their meters have dropped.
//
// Nothing but the node is read: the bridge's management socket speaks OpenFlow 1.5 (ovs-vswitchd(8)), and
// ovn-controller uses the same one. OVN translates a row of table QoS into flows that match the datapath
// (metadata) and the port (register 14) and have the priority of the row (ovn-architecture(7)); which datapath
// and port these are, the flow of the port's number in table 0 says. Where that is not certain, there is no count.
package flowcounters
