// Package agent builds the agent of a node from one Config, and runs it. The program, the load tests
// and the benchmarks use it, so that they measure the agent that nodes run.
package agent
