// Package node is the loop of one node without a cluster: files in a directory say
// which topology is wanted in which network namespace, and the loop applies them and
// repairs drift. `plumbline run` serves it.
//
// It decides when a sandbox is reconciled: a file was added, changed or removed; a
// namespace has appeared; a watcher has reported a change; a pass has failed and is
// retried with backoff. The engine (package reconcile) does the rest;
// whether drift is repaired or only reported is up to the topology.
//
// Sandboxes that other programs recorded in the same journal are watched and repaired
// too. The loop releases only those it made from files, and none of them while a file
// cannot be read. Stopping the loop leaves every network as it is.
//
// The choice of devices where no scheduler makes it (Assignment) and the reading
// of names of namespaces (ParseNetns) and of topologies (Load) are here for the
// command line as well.
package node
