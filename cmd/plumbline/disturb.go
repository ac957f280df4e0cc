//go:build !soak

package main

import "github.com/plumbline/plumbline/reconcile/kernel"

// disturb is kernel.Options.Disturb of the agent: none.
func disturb() func(kernel.Message) error { return nil }
