// Package reconcile stands for the real one.
package reconcile

import (
	"log/slog" // want depguard
	"time"

	resource "k8s.io/api/resource/v1" // want depguard

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/journal" // want depguard
)

// Known is here to be imported.
const Known = "reconcile"

var _, _, _, _ = slog.Info, resource.ResourceClaim{}, ops.Known, journal.Known

// The clock's one home.
var _ = time.Now
