package topology

import (
	"github.com/plumbline/plumbline/ops/fault" // want depguard
	"github.com/plumbline/plumbline/topology/contract"
)

var _, _ = fault.Known, contract.Known
