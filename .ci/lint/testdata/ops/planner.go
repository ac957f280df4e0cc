// Package ops stands for the real one.
package ops

import (
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/vlan" // want depguard
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/ref"
)

var _, _, _, _ = netstate.Known, vlan.Known, topology.Known, ref.Known

// Known is here to be imported.
const Known = "ops"
