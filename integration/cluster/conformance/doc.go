// Package conformance runs Kubernetes' own tests of networks on nodes whose pods have their network from plumbline, and judges
// their results: [Judge] compares them with the list of tests that a conformant cluster passes.
package conformance
