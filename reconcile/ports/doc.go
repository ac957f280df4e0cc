// Package ports watches the links that steps have made or moved in a sandbox. It identifies
// them by the record of the sandbox, reads their state from the kernel, and derives the
// effect on the pod.
//
// A pod may own its network namespace, so names are not trusted: a link is that of the
// record if its index, kind and parent device match.
package ports
