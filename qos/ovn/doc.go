// Package ovn compiles the rules of a logical switch port to rows of an OVN Northbound database, as objects that the
// engine writes.
//
// Rows are of direction from-lport: those of to-lport are evaluated on the chassis of the
// destination when the switch spans nodes (OVN layer2), which does not know the source. As in
// package tc, each port has rows of its own, so that a limit is that of one interface of one
// pod: OVN has one meter for each row. The row of a rule without a limit has the largest one if
// a rule that it precedes has a limit, as OVN before 24.09 looks for the mark and for the meter
// of a packet one after the other.
package ovn
