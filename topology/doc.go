// Package topology is the NetworkTopology: reading it, its graph of steps,
// its validation, and the results that flow along the graph.
//
// Decode reads a file, FromObject an API object. Validate says everything that
// is wrong with a topology in the words an admission webhook, the command line
// and the node all use. Order gives the order of execution; Merge and
// Result.Field say what a step sees of the steps before it.
//
// The package is pure: no clock, no I/O, no logs, no step type known by name.
// What a type takes and gives is read off package contract, references are
// parsed by package ref, and nothing here applies anything.
package topology
