// Command benchmark measures, on a cluster of the test bench, how long a pod
// takes from its creation to Ready: without a network of ours, with one VF, with
// three steps and with the seven of the flagship, and, given the binary of DRANET, with
// one VF by that. All contenders run on one node in one run, since the machine is
// emulated and only ratios count. Each driver has the node to itself, several times
// in turn: what one does meanwhile is not to weigh on the others.
//
//	go run ./integration/cluster/benchmark -n 20 -dranet PATH
//
// It also prints how long the agent took to attach, by its own log.
package main
