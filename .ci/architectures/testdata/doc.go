// Package test type-checks on each architecture but one.
package test
