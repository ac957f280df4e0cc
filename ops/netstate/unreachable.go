package netstate

import "fmt"

// Unreachable is a route of a table that refuses packets instead of sending them: a lookup that
// comes to it ends there, and not in the next table. It is on no link, and outlives those of the
// table. Source: ip-route(8), Documentation/networking/vrf.rst of the kernel.
type Unreachable struct {
	Dst    string `json:"dst" plan:"key"` // as of a Route
	Table  uint32 `json:"table" plan:"key"`
	Metric uint32 `json:"metric" plan:"key"` // not 0
}

// Key is everything the kernel tells such routes apart by.
func (u Unreachable) Key() Key {
	return Key{KindUnreachable, fmt.Sprintf("%s table %d metric %d", u.Dst, u.Table, u.Metric)}
}

// LivesOn is nothing.
func (Unreachable) LivesOn() Key { return Key{} }

// One is created with the links, so that nothing gets past it before.
var unreachableTraits = Traits{Phase: PhaseLinks, Cost: 8}

// Traits returns the traits of routes that refuse.
func (Unreachable) Traits() *Traits { return &unreachableTraits }
