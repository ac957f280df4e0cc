// Package claim reads the requests of a ResourceClaim for NetworkTopologies: which requests
// are for which root step, and whether any is missing.
//
// A claim names no topology itself. Its requests name DeviceClasses, and the
// class generated for a root step carries the topology and the step in its
// opaque config. The same functions serve the webhook,
// which resolves the classes of a claim that has no devices yet (Requests), and
// the node, which reads the allocation (Allocated), so that both report the same.
//
// Only a class may name a topology. Opaque config for our driver in a claim is always
// refused: its author is a tenant.
//
// The package is pure: it reads no API and knows no node.
package claim
