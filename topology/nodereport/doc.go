// Package nodereport writes the object in which the agent of a node reports to the cluster.
//
// Its name is that of the node, and it goes with the node. A change of the cluster has all
// nodes report, so each waits for a random time before it writes.
package nodereport
