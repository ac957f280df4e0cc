// Package apiserver says what a cluster's API server offers of what plumbline uses: features of Kubernetes that depend on
// its version and on its feature gates.
//
// Nothing of plumbline is turned off by it. Agents and controller notice what a server lacks by what that drops
// from what they write, and say so in the conditions of the objects concerned. This package says it beforehand.
package apiserver
