package netstate

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/topology/fault"
)

// RDMALink is an RDMA device in software on a link, as "rdma link add NAME type rxe netdev IF" makes it. A link has
// one at most, and the device ends when the link ends or leaves its network namespace.
// Sources: rdma-link(8); rxe_newlink and rxe_notify in drivers/infiniband/sw/rxe.
type RDMALink struct {
	Link string `json:"link" plan:"key"`
	// Name is that of the RDMA device. In shared mode it is unique on the node, whichever namespace the link is in.
	Name *string `json:"name,omitempty" plan:"live"`
	Type *string `json:"type,omitempty" plan:"replace"` // rxe, siw
	// Netns is which network namespace the device belongs to: RDMAOfHost or RDMAOfSandbox, nil on a node in shared mode. In
	// exclusive mode one that is made inside of a sandbox belongs to the host until it is moved.
	Netns *string `json:"netns,omitempty" plan:"live"`
	// Nodes are observed only: see RDMADevice.
	Nodes []string `json:"nodes,omitempty" plan:"-"`
	// HostOnly, observed only: the kernel exchanges no data over it, as its link is not in the host's network namespace.
	HostOnly bool `json:"hostOnly,omitempty" plan:"-"`
}

// Key is the link.
func (r RDMALink) Key() Key { return Key{KindRDMALink, r.Link} }

// LivesOn is the link.
func (r RDMALink) LivesOn() Key { return LinkKey(r.Link) }

// After the links, since a device that is moved to another namespace loses it.
var rdmaLinkTraits = Traits{Phase: PhaseAddresses, Cost: 8, effects: (*model).rdmaLink}

// Traits returns the traits of RDMA links.
func (RDMALink) Traits() *Traits { return &rdmaLinkTraits }

// rdmaLink has the kernel give the device its nodes and its port GIDs, one for each address of the link. The model has none
// on the host, where they matter to nobody. The model is in exclusive mode if a device says so.
func (m *model) rdmaLink(c Change) {
	m.store(c)
	have, ok := Lookup(m.Snapshot, RDMALink{Link: c.Key().ID})
	if !ok || have.Name == nil || OnHost(have.Link) {
		return
	}
	exclusive := slices.ContainsFunc(All[Device](m.Snapshot), func(d Device) bool { return d.RDMAExclusive })
	if have.Netns == nil && exclusive {
		have.Netns = new(RDMAOfHost)
		m.Put(have)
	}
	if have.Netns != nil && *have.Netns == RDMAOfHost {
		return // no program of the sandbox can use it
	}
	have.Nodes = []string{"/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"}
	m.Put(have)
	port := RDMAPort{Device: *have.Name, Link: have.Link, State: new("ACTIVE"), RateMbps: 2500}
	for _, a := range All[Addr](m.Snapshot) {
		if p, err := netip.ParsePrefix(a.Address); err == nil && a.Link == have.Link {
			port.GIDs = append(port.GIDs, RDMAGID{Index: len(port.GIDs) + 1, GID: p.Addr().String(), Type: "RoCEv2"})
		}
	}
	m.Put(port)
}

// RDMAPort is the first port of an RDMA device, with those of its GIDs that are of one link. It is read and never
// changed. Sources: Documentation/ABI/stable/sysfs-class-infiniband; drivers/infiniband/core/roce_gid_mgmt.c.
type RDMAPort struct {
	Device string `json:"device" plan:"key"`
	Link   string `json:"link,omitempty" plan:"key"` // with its place; "" is for all GIDs
	// State is that of the port, as the kernel calls it: DOWN, INIT, ARMED, ACTIVE.
	State *string `json:"state,omitempty" plan:"live"`
	// Observed only.
	RateMbps uint32    `json:"rateMbps,omitempty" plan:"-"`
	GIDs     []RDMAGID `json:"gids,omitempty" plan:"-"`
	// Only is, in a query, the index of the one GID that is asked for, -1 for none: a table has hundreds of entries. If no GID of
	// the link has that index, all are read, and Only of what was read is nil.
	Only *int `json:"-" plan:"-"`
}

// RDMAGID is an entry of the GID table of a port.
type RDMAGID struct {
	Index int    `json:"index"`
	GID   string `json:"gid"`  // as an IP address; that of an IPv4 address is IPv4
	Type  string `json:"type"` // IB, RoCEv1, RoCEv2
}

// Key is the device, and the link.
func (r RDMAPort) Key() Key {
	if r.Link == "" {
		return Key{KindRDMAPort, r.Device}
	}
	return Key{KindRDMAPort, r.Device + " on " + r.Link}
}

// LivesOn is the link.
func (r RDMAPort) LivesOn() Key {
	if r.Link == "" {
		return Key{}
	}
	return LinkKey(r.Link)
}

var rdmaPortTraits = Traits{
	Setting: true, Cost: 8,
	absent: func(o Object) error {
		return fault.New(fault.NotReady, fmt.Errorf("RDMA device %q does not exist", o.(RDMAPort).Device))
	},
	imagined: func(o Object, _ Imagined) Object {
		r := o.(RDMAPort)
		return RDMAPort{Device: r.Device, Link: r.Link, State: new("ACTIVE")}
	},
}

// Traits returns the traits of ports of RDMA devices.
func (RDMAPort) Traits() *Traits { return &rdmaPortTraits }
