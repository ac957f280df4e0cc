package topology

import (
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault" // want depguard
)

var _, _ = fault.Known, contract.Known
