// Package pluginschema stands for the real one.
package pluginschema

import (
	_ "net/http" // want depguard

	"github.com/plumbline/plumbline/topology/contract"
)

var _ = contract.Known
