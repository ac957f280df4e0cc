// Command throughput measures, on two wired nodes of the test bench, how many bytes a second
// arrive at one from the other: between the hosts, and between pods over each kind of network,
// all in one run, in turn, since the machines are emulated and only ratios count. It also
// measures how long routes of the host are missing after somebody has deleted them.
//
//	make bench-throughput BENCH='-n 20'
package main
