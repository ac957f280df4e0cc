// Package population fills a cluster of the test bench with as many objects as a
// large cluster has: topologies with their DeviceClasses, claims of ours and of
// others, ResourceSlices of nodes.
//
// The objects are as a cluster at rest has them, allocated, attached and reported,
// so that a controller that starts finds nothing to do. They are written to etcd
// directly, in the API server's own encoding: through the API server a quarter of a
// million claims take an hour.
package population
