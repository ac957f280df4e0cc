// Package addresses gives addresses of pools to claims, on one node.
//
// The node holds blocks of addresses as leases: objects of the API server with the name of
// the block, so that creating one takes the lock. Run maintains them: it creates a lease
// before a pool runs out of addresses on this node, deletes idle ones, and verifies unknown
// or missing leases with the API server before it acts on them. Take and GiveBack are local:
// they change one file, under a lock that is shared with other agents on the node, and
// write it before they return.
//
// The arithmetic, and the state after a crash, are in package addresspool.
package addresses
