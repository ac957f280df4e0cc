// Package hostroutes keeps routes of the host to the pods of other nodes: pods with ipvlan links
// in mode l3 or l3s send through the routing table of the host, and no other host answers for
// their addresses (Documentation/networking/ipvlan.rst).
//
// A node with such pods publishes its own address in each network below them, in its leases of
// the pool. Every other node with such pods routes what the lease is for to that address. The
// destination follows from the name of the lease, so that a node can only publish where its own
// pods are.
//
// These routes are in a table of their own (netstate.HostTable), for packets with a source address
// of the pool: nothing of the host itself uses them.
//
// A node that gives pods their own network also routes to the pod CIDRs of the other nodes, as
// their Node objects say, in a second table (netstate.PodTable), which the host uses too.
//
// Entries of the tables with our protocol number are ours, so that no record is needed to find it
// after a crash, and nothing that was there before is replaced.
package hostroutes
