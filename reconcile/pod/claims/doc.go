// Package claims owns the node's records of prepared ResourceClaims: what was decided for a
// claim when it was prepared, and the sandboxes it is in.
//
// A directory holds two files per claim, named after its UID:
//
//	UID.claim      the claim as prepared: topologies as they were then, devices, pod
//	UID.sandboxes  where it is now: sandbox, namespace, phase
//
// The first is durable (fsync and rename) and does not follow the API server, so that
// neither an edited topology nor an unreachable API server affects a running pod, and a
// reboot needs no new decision. While an edit is applied to the pod, both generations are
// in it. The second is of this boot only: after another boot, or damaged, it counts as
// empty, because a namespace does not survive either. Both are one frame.
//
// A claim file that is damaged is set aside as NAME.damaged-N and reported, and one that
// another version has written is left alone (package frame); neither affects other claims.
// Nothing is kept in memory alone: two processes may use one directory, under the locks the
// caller takes with Lock and LockAll. The content of a file is cached until the kernel
// notifies of a change.
//
// The package decides nothing and touches no network; see reconcile/pod/attachment.
package claims
