package fault

import (
	"errors"

	"github.com/plumbline/plumbline/topology/suggest" // want depguard
)

var _, _ = errors.New, suggest.Known
