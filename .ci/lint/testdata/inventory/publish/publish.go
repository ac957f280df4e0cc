// Package publish is an edge: it may log, and still knows no topology.
package publish

import (
	"log/slog"

	"github.com/plumbline/plumbline/topology" // want depguard
)

// Log says what is known.
func Log(l *slog.Logger) { l.Info(topology.Known) }
