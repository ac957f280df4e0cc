package netstate

// Neighbor is a static entry of a link's neighbor table (ARP, NDP): what the kernel
// has learned by itself is none. Source: net/core/neighbour.c, ip-neighbour(8).
type Neighbor struct {
	Link    string  `json:"link" plan:"key"`
	Address string  `json:"address" plan:"key"`
	MAC     *string `json:"mac,omitempty" plan:"live"`
}

// Key is link and address.
func (n Neighbor) Key() Key { return Key{KindNeighbor, n.Address + " on " + n.Link} }

// LivesOn is the link.
func (n Neighbor) LivesOn() Key { return LinkKey(n.Link) }

// A link that goes down, or gets another MAC, loses them (neigh_ifdown,
// neigh_changeaddr in net/core/neighbour.c), so they come when links are as they
// will be.
var neighborTraits = Traits{Phase: PhaseRoutes, Cost: 8, Flushed: true}

// Traits returns the traits of neighbors.
func (Neighbor) Traits() *Traits { return &neighborTraits }
