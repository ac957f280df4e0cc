package netstate

import (
	"fmt"
	"hash/fnv"
)

// DHCPLease is a lease of a DHCP server for a link, and the client that keeps it. What the
// server gives is observed: it is neither wanted nor drift.
type DHCPLease struct {
	Link string `json:"link" plan:"key"`
	// ClientID is the client identifier (option 61) in hexadecimal digits, and Hostname the
	// host name (option 12), "" for none. Both are sent to the server.
	ClientID *string `json:"clientID,omitempty" plan:"replace"`
	Hostname *string `json:"hostname,omitempty" plan:"replace"`
	// Active: the lease has not expired, or a client requests one.
	Active *bool `json:"active,omitempty" plan:"live"`
	// Observed only.
	// Address is the leased address with its prefix length, "" without a lease; Router is in
	// its network, "" for none.
	Address string `json:"address,omitempty" plan:"-"`
	Router  string `json:"router,omitempty" plan:"-"`
	Server  string `json:"server,omitempty" plan:"-"`
	// Expires is the end of the lease in seconds since boot.
	Expires int64 `json:"expires,omitempty" plan:"-"`
	// Failure is what the client has tried without success.
	Failure string `json:"failure,omitempty" plan:"-"`
}

// Key is the link.
func (l DHCPLease) Key() Key { return Key{KindDHCPLease, l.Link} }

// LivesOn is the link.
func (l DHCPLease) LivesOn() Key { return LinkKey(l.Link) }

// On is the same on another link.
func (l DHCPLease) On(carrier Key) Object {
	l.Link = carrier.ID
	return l
}

var dhcpLeaseTraits = Traits{Phase: PhaseAddresses, Cost: 8, Elsewhere: true, unsaid: []string{"hostname"}, effects: (*model).dhcpLease}

// Traits are those of leases.
func (DHCPLease) Traits() *Traits { return &dhcpLeaseTraits }

// dhcpLease has a server give an address, different for each link.
func (m *model) dhcpLease(c Change) {
	m.store(c)
	if have, ok := Lookup(m.Snapshot, DHCPLease{Link: c.Key().ID}); ok && have.Active != nil && *have.Active {
		sum := fnv.New32a()
		sum.Write([]byte(have.Link))
		n := sum.Sum32()
		have.Address, have.Router, have.Expires = fmt.Sprintf("198.19.%d.%d/16", byte(n>>8), 2+byte(n)%250), "198.19.0.1", 1<<40
		m.Put(have)
	}
}
