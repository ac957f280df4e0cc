// Package v1 stands for the real one.
package v1

// ResourceClaim stands for the real one.
type ResourceClaim struct{}
