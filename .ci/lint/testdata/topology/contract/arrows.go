package contract

import (
	"github.com/plumbline/plumbline/topology/ref"
)

var _ = ref.Known
