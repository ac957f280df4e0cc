// Package fleet fills a node with pods, without a cluster: namespaces, prepared
// claims, and the agent of reconcile/agent that attaches and repairs them, as during an outage of
// the API server. The calls of the runtime and of the kubelet are the caller's.
//
// Every pod has the shape of the flagship topology, on dummy links, so that there
// may be more pods than a card has functions. The benchmark holds hundreds of them,
// the tests of the kernel lane some, and both by the same code.
//
// An Agent that is stopped leaves everything as it is; another one on the same
// directory takes over, as after a restart. It changes network namespaces and is
// meant for the virtual machine alone.
package fleet
