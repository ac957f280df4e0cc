// Package node is the loop of one node without a cluster: files in a directory
// say which topology is wanted in which network namespace, and the loop keeps it
// so. `plumbline run` serves it.
//
// It decides when: a file has come, changed or gone; a namespace has appeared; a
// watcher has noticed a change; a pass has failed and is repeated, later each
// time. What is done then is the engine's business (package reconcile), and
// whether a drift is repaired or only reported is the topology's.
//
// Sandboxes that others made in the same journal are watched and repaired too,
// but only those the loop made of files does it release, and none of them while
// it cannot tell what a file says. Stopping the loop leaves every network as it
// is.
//
// The choice of devices where no scheduler makes it (Assignment) and the reading
// of names of namespaces (ParseNetns) and of topologies (Load) are here for the
// command line as well.
package node
