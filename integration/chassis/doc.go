// Package chassis starts OVN and Open vSwitch on this machine: the databases, northd, and one
// chassis with the kernel's datapath, to which it plugs interfaces of pods. Nodes are several of them, in network
// namespaces, and Raft is a database of several servers. Tests and the benchmark send packets
// through it.
package chassis
