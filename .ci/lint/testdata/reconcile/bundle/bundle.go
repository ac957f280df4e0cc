// Package bundle is what packs for support.
package bundle

import (
	_ "log/slog" // want depguard
	_ "net/http" // want depguard
	_ "os"

	_ "github.com/plumbline/plumbline/reconcile" // want depguard
)
