package netstate

// FDB is another end of a VXLAN tunnel: frames for all stations, or for one that is not
// known, are sent to each of them. For the kernel it is one destination of the entry with
// the MAC 00:00:00:00:00:00 in the link's forwarding database. All of it is its identity, as
// for the kernel. Source: drivers/net/vxlan/vxlan_core.c, bridge(8).
type FDB struct {
	Link   string `json:"link" plan:"key"`
	Remote string `json:"remote" plan:"key"`
	// Via is the link that packets leave through; "" is by the routes. The kernel does not
	// derive it from the tunnel's.
	Via string `json:"via,omitempty" plan:"key"`
}

// Key is everything the kernel distinguishes entries by.
func (f FDB) Key() Key {
	id := "00:00:00:00:00:00 dst " + f.Remote
	if f.Via != "" {
		id += " via " + f.Via
	}
	return Key{KindFDB, id + " on " + f.Link}
}

// LivesOn is the tunnel.
func (f FDB) LivesOn() Key { return LinkKey(f.Link) }

// A tunnel that goes down keeps permanent entries (vxlan_stop). They come after links: a
// tunnel whose remote is removed loses the entry of that remote.
var fdbTraits = Traits{Phase: PhaseRoutes, Cost: 8}

// Traits returns the traits of forwarding entries.
func (FDB) Traits() *Traits { return &fdbTraits }
