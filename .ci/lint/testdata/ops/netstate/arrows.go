package netstate

import (
	"log/slog" // want depguard
	"os"       // want depguard
	"time"     // want depguard

	"github.com/plumbline/plumbline/topology" // want depguard
	"github.com/plumbline/plumbline/topology/fault"
)

var _, _, _, _, _ = slog.Info, os.Open, time.Second, fault.Known, topology.Known
