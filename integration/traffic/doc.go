// Package traffic makes network namespaces like those of pods, sends numbered packets out of them,
// and receives them elsewhere, for tests and benchmarks of what is marked and limited.
package traffic
