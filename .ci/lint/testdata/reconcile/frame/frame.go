// Package frame is what the records of all stores have in common.
package frame

import (
	_ "os" // want depguard

	_ "github.com/plumbline/plumbline/reconcile" // want depguard
)
