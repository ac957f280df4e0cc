// Command plumbline stands for the real one.
package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/bond" // want depguard
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

func main() {
	slog.Info("cmd may log", "at", time.Now())
	fmt.Println(all.Known, bond.Known, journal.Known, kernel.Known)
}
