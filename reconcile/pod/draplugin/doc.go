// Package draplugin is kubelet's side of the node agent: it prepares
// ResourceClaims and ends what was prepared.
//
// To prepare a claim is to decide everything that needs the API server, once:
// which topologies its devices are for (by the config of their classes, never by
// the claim's own), whether they are complete and valid, which devices of the host
// are meant, and that no other claim has them. The decision is recorded
// (reconcile/pod/claims); the same claim asked for again is answered from the record.
// Nothing in the kernel is touched: that is done when the pod's sandbox is there
// (reconcile/pod/attachment). What kubelet gets is the CDI device of the claim's gate
// (reconcile/pod/gate), which is closed then.
//
// A claim waits for no other: each has a lock of its own, and all are locked only
// while devices are reserved. What passes by itself, such as an API server that is
// away or a device that another pod is about to return, is waited for inside the
// kubelet's request, as it comes again a minute later only. See docs/adr/0019.
//
// It refuses a claim that is reserved for more than one pod, since a device that
// is moved is in one pod at a time, and one whose topology is another than its
// classes were made of. The errors are for users: kubelet shows them as Events of
// the pod. They do not name what other tenants have.
//
// New makes the plugin, Run serves it; one and the same process may overlap with
// another during a rolling update.
package draplugin
