// Package filters decides which filters the sandboxes of this node's pods have: those that
// NetworkQoS objects of a pod's namespace compile to, for the topologies of its claims.
//
// It follows the objects of the namespaces that have claims on this node, the labels of this
// node's pods and those of the topologies in use. The addresses of pods that are destinations are
// in the status of the objects. An attachment is given its filters from
// what is known; while something is not known, there is an error. When something changes, the
// running sandboxes it matters to are updated in place, and no others.
package filters
