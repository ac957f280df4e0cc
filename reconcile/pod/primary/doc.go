// Package primary gives pods their own network on a node without CNI plugins: the one by
// which they reach the cluster, as a NetworkTopology describes it.
//
// The container runtime starts a small plugin, which passes each call to this package over
// a socket (package cnisocket). A call is idempotent. The network is a sandbox of the
// engine, under reconcile.IDOfPrimary, so that drift repair, status and metrics treat it as
// any other; its record in the journal is all that the node remembers of the pod. Addresses
// are owned by reconcile.OwnerOfPrimary, and are recorded before they are used.
//
// Calls for one interface of a container are serialized, others run in parallel, up to a
// bound. ADD is rolled back when the runtime does not wait any longer; DEL is completed.
//
// The end of a sandbox is its DEL. As a runtime may not call it, after a reboot or when
// another network took over, Run also releases sandboxes whose namespace is gone.
package primary
