package ref

import (
	"net/http" // want depguard

	"github.com/plumbline/plumbline/topology/suggest"
)

var _, _ = http.Get, suggest.Known
