package ref

import (
	"net/http" // want depguard

	"github.com/plumbline/plumbline/topology/nearest"
)

var _, _ = http.Get, nearest.Known
