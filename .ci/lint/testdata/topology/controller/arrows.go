// Package controller stands for the real one.
package controller

import (
	"log/slog"

	"github.com/plumbline/plumbline/ops/all" // want depguard
)

var (
	_ = all.Known
	_ slog.Level
)
