// Package all may import the step types.
package all

import (
	"github.com/plumbline/plumbline/ops/bond"
	"github.com/plumbline/plumbline/ops/vlan"
	"github.com/plumbline/plumbline/reconcile/kernel" // want depguard
)

var _, _, _ = bond.Known, vlan.Known, kernel.Known

// Known is here to be imported.
const Known = "all"
