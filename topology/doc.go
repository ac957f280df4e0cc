// Package topology is the NetworkTopology: reading it, its graph of steps,
// its validation, and the results that flow along the graph.
//
// Decode reads a file, FromObject an API object. Validate returns all errors of a topology,
// with the messages that the admission webhook, the command line and the node all use.
// Order returns the order of execution; Merge and Result.Field compute what a step sees of
// the steps before it.
//
// The package is pure: no clock, no I/O, no logs, no step type known by name.
// The input and output of a type come from package contract, references are
// parsed by package ref, and nothing here applies anything.
package topology
