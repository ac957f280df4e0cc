// Package draplugin is kubelet's side of the node agent: it prepares and unprepares
// ResourceClaims. Preparing a claim decides everything that needs the API server, once:
// which topologies its devices are for (by the config of their classes, never by the
// claim's own), whether they are complete and valid, which devices of the host are meant,
// and that no other claim has them. The decision is recorded (reconcile/pod/claims); a
// repeated request is answered from the record. The kernel is not changed: that is done
// when the pod's sandbox exists (reconcile/pod/attachment). The kubelet gets the CDI device
// of the claim's gate (reconcile/pod/gate), which is closed at that time. A claim does not
// wait for another: each has a lock of its own, and all are locked only while devices are
// reserved. For temporary conditions, such as an unreachable API server or a device that
// another pod is about to return, the plugin waits within the kubelet's request, as the
// kubelet retries only a minute later. See docs/adr/0019.
//
// It refuses a claim that is reserved for more than one pod, since a device that is moved
// is in one pod at a time, and one whose topology is not the one its classes were generated
// from. The errors are for users: kubelet shows them as Events of the pod. They do not name
// what other tenants have. New creates the plugin, Run serves it; two processes may overlap
// during a rolling update.
package draplugin
