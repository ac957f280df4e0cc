package fault

import (
	"errors"

	"github.com/plumbline/plumbline/topology/nearest" // want depguard
)

var _, _ = errors.New, nearest.Known
