// Package ports knows the links that steps have made or moved in a sandbox: which they
// are by the record of the sandbox, what the kernel says of them, and what that means for
// the pod.
//
// A pod may own its network namespace. So nothing here trusts a name: a link is the one
// of the record if its index, kind and parent device are.
package ports
