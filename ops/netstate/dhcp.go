package netstate

import (
	"fmt"
	"hash/fnv"
	"strings"
)

// DHCPLease is a lease of a DHCP server for a link, and the client that keeps it. What the
// server gives is observed: it is neither wanted nor drift.
type DHCPLease struct {
	Link string `json:"link" plan:"key"`
	// ClientID is the client identifier (option 61) in hexadecimal digits, and Hostname the
	// host name (option 12), "" for none. Both are sent to the server.
	ClientID *string `json:"clientID,omitempty" plan:"replace"`
	Hostname *string `json:"hostname,omitempty" plan:"replace"`
	// Requested are the codes of options that are requested of the server beside those of each lease: those of routes
	// (121) and the MTU (26), sorted and separated by commas.
	Requested *string `json:"requested,omitempty" plan:"replace"`
	// Active: the lease has not expired, or a client requests one.
	Active *bool `json:"active,omitempty" plan:"live"`
	// Observed only.
	// Address is the leased address with its prefix length, "" without a lease; Router is in
	// its network, "" for none.
	Address string `json:"address,omitempty" plan:"-"`
	Router  string `json:"router,omitempty" plan:"-"`
	Server  string `json:"server,omitempty" plan:"-"`
	// Routes are those of option 121, which replace Router, and MTU is that of option 26, in bytes; 0 for none.
	Routes []LeasedRoute `json:"routes,omitempty" plan:"-"`
	MTU    uint32        `json:"mtu,omitempty" plan:"-"`
	// Expires is the end of the lease in seconds since boot.
	Expires int64 `json:"expires,omitempty" plan:"-"`
	// Failure describes the client's failed attempts.
	Failure string `json:"failure,omitempty" plan:"-"`
}

// LeasedRoute is a route that a DHCP server gives.
type LeasedRoute struct {
	Destination string `json:"destination"`
	Gateway     string `json:"gateway,omitempty"` // "" is the link itself
}

// Key is the link.
func (l DHCPLease) Key() Key { return Key{KindDHCPLease, l.Link} }

// LivesOn is the link.
func (l DHCPLease) LivesOn() Key { return LinkKey(l.Link) }

var dhcpLeaseTraits = Traits{
	Phase: PhaseAddresses, Cost: 8, Elsewhere: true,
	unsaid: []string{"hostname", "requested"}, effects: (*model).dhcpLease,
}

// Traits returns the traits of leases.
func (DHCPLease) Traits() *Traits { return &dhcpLeaseTraits }

// dhcpLease has a server give an address, different for each link.
func (m *model) dhcpLease(c Change) {
	m.store(c)
	if have, ok := Lookup(m.Snapshot, DHCPLease{Link: c.Key().ID}); ok && have.Active != nil && *have.Active {
		sum := fnv.New32a()
		sum.Write([]byte(have.Link))
		n := sum.Sum32()
		have.Address, have.Router, have.Expires = fmt.Sprintf("198.19.%d.%d/16", byte(n>>8), 2+byte(n)%250), "198.19.0.1", 1<<40
		if have.Requested != nil && strings.Contains(*have.Requested, "121") {
			have.Routes = []LeasedRoute{{Destination: "198.51.100.0/24", Gateway: "198.19.0.1"}}
		}
		if have.Requested != nil && strings.Contains(*have.Requested, "26") {
			have.MTU = 1300
		}
		m.Put(have)
	}
}
