// Command scale measures the controller on an API server with as many objects as a
// large cluster has (package population): 10,000 topologies, 20,000 classes, 250,000
// claims of which 50,000 are ours, 5,000 nodes' slices, or a part of that.
//
//	go run ./integration/cluster/scale -part 10 -before c3bdea8
//
// With -addresses it measures pools of addresses instead: 5,000 nodes lease blocks of one pool
// and allocate 100,000 addresses, with the code of the agent, and then lose the API server and a
// tenth of the nodes.
//
// With -rules it measures edits of a NetworkQoS that covers 5,000 pods of 100 nodes, until the agents
// of all nodes, whose code runs here, have given these pods their filters, but for the kernel.
//
// With -before it measures the controller of another commit, too, on the same
// objects in the same run, since the machine may be busy: only ratios count. Its test
// counts, on a small part, what does not depend on the machine.
package main
