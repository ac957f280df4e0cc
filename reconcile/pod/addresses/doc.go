// Package addresses gives addresses of pools to claims, on one node.
//
// What the node may give it holds as leases: objects of the API server whose name is
// that of a block, so that their creation is the lock. Run keeps them: it creates
// one when a pool has nothing left to give here, ahead of need, ends those that are idle,
// and asks the API server about each that is unknown or missing before it believes it.
// Take and GiveBack are local. They change one file, under a lock that another agent on
// the node takes too, and it is written before anything is answered.
//
// The arithmetic, and what is true after a crash, is in package addresspool.
package addresses
