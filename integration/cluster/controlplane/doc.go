// Package controlplane holds the controller and the admission webhook to what
// they promise, on a real API server: the CRDs, the DeviceClasses, the schemas,
// and every refusal as a user of kubectl reads it.
//
// The controller runs as a process of this host under the service account, the
// roles and the webhook registrations that the chart renders, so what these
// forget is missing here, too; only the webhook's address is another. There is no
// node, scheduler or controller manager: what they would do, such as allocating a
// claim, the tests write themselves, as the API allows administrators to.
//
// It has tests alone, with the build tag "cluster": make test-cluster.
package controlplane
