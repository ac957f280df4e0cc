package netstate

import (
	"errors"

	"github.com/plumbline/plumbline/topology/fault"
)

// Chassis is the Open vSwitch of the node as OVN uses it. It is read and never
// changed. Source: ovn-controller(8), "CONFIGURATION".
type Chassis struct {
	ID   string  `json:"id" plan:"key"`                // always that of ThisChassis
	Name *string `json:"name,omitempty" plan:"live"`   // system-id; "" if OVN does not know this node
	Int  *string `json:"bridge,omitempty" plan:"live"` // the integration bridge; "" if it does not exist
	// Observed only.
	// Networks are the physical networks that have a bridge, nil if not known.
	Networks []string `json:"networks,omitempty" plan:"-"`
	// OVNKubernetes says that ovn-kubernetes has attached the node.
	OVNKubernetes bool `json:"ovnKubernetes,omitempty" plan:"-"`
}

// ThisChassis is the only one that a node knows.
var ThisChassis = Chassis{ID: "local"}

// Key is the same for all.
func (c Chassis) Key() Key { return Key{KindChassis, c.ID} }

// LivesOn is none: it is the node's.
func (Chassis) LivesOn() Key { return Key{} }

var chassisTraits = Traits{
	Setting: true, Phase: PhasePrepare, Cost: 8,
	absent: func(Object) error {
		return fault.New(fault.NotReady, errors.New("the Open vSwitch of this node has no settings"))
	},
	imagined: func(o Object, on Imagined) Object {
		return Chassis{ID: o.(Chassis).ID, Name: new("chassis-" + on.Domain), Int: new("br-int")}
	},
}

// Traits returns the traits of a chassis.
func (Chassis) Traits() *Traits { return &chassisTraits }

// LogicalPort is a port of a logical switch in an OVN Northbound database. Its switch is made
// with the first port, and deleted with the last: Switch, PhysicalNetwork and VLAN are the
// switch's, and the same for all ports of one switch.
// Source: ovn-nb(5).
type LogicalPort struct {
	Name   string  `json:"name" plan:"key"` // unique in the database
	Switch *string `json:"switch,omitempty" plan:"replace"`
	// PhysicalNetwork is the network that the switch's localnet port leads to, "" without
	// one; VLAN is its tag there, 0 for none.
	PhysicalNetwork *string `json:"physicalNetwork,omitempty" plan:"live"`
	VLAN            *uint16 `json:"vlan,omitempty" plan:"live"`
	// Addresses are those that the switch expects behind the port: a MAC, and IP addresses
	// after it. PortSecurity are the only ones that the port may send from.
	Addresses    []string `json:"addresses,omitempty" plan:"live"`
	PortSecurity []string `json:"portSecurity,omitempty" plan:"live"`
	// Holder is the only user of the port: an interface of Open vSwitch with another one
	// is not bound to it (iface-id-ver).
	Holder *string `json:"holder,omitempty" plan:"live"`
	// Chassis is the only one that may bind the port.
	Chassis *string `json:"chassis,omitempty" plan:"live"`
}

// Key is the name.
func (p LogicalPort) Key() Key { return Key{KindLogicalPort, p.Name} }

// LivesOn is none: it is in a database.
func (LogicalPort) LivesOn() Key { return Key{} }

// A port exists before the interface that is bound to it, and after it.
var logicalPortTraits = Traits{Phase: PhasePrepare, Cost: 8, unsaid: []string{"physicalNetwork", "vlan"}}

// Traits returns the traits of logical ports.
func (LogicalPort) Traits() *Traits { return &logicalPortTraits }

// OVSPort is a port of a bridge of Open vSwitch, with the interface that is bound to a
// logical port. It does not live on its link: if that is deleted, the port remains in the
// database, with an error, until it is deleted.
// Source: ovs-vswitchd.conf.db(5), ovn-controller(8).
type OVSPort struct {
	Link   string  `json:"link" plan:"key"` // of the host, with its place
	Bridge *string `json:"bridge,omitempty" plan:"replace"`
	// LogicalPort and Holder are those of the LogicalPort (iface-id, iface-id-ver).
	LogicalPort *string `json:"logicalPort,omitempty" plan:"live"`
	Holder      *string `json:"holder,omitempty" plan:"live"`
	// MAC and Addresses are those of the interface in the sandbox, for people and other
	// programs (attached_mac, ip_addresses).
	MAC       *string  `json:"mac,omitempty" plan:"live"`
	Addresses []string `json:"addresses,omitempty" plan:"live"`
	// Function is the name on the host of the virtual function that the link represents
	// (vf-netdev-name). It is not managed for another link.
	Function *string `json:"function,omitempty" plan:"live"`
	// Observed only.
	// Installed: ovn-controller has installed the flows of the port.
	Installed bool `json:"installed,omitempty" plan:"-"`
	// Failure is the error that Open vSwitch reports for the interface.
	Failure string `json:"failure,omitempty" plan:"-"`
}

// Key is the link.
func (p OVSPort) Key() Key { return Key{KindOVSPort, p.Link} }

// LivesOn is none, see OVSPort.
func (OVSPort) LivesOn() Key { return Key{} }

var ovsPortTraits = Traits{Phase: PhaseLinks, Cost: 8, effects: (*model).ovsPort}

// Traits returns the traits of ports of Open vSwitch.
func (OVSPort) Traits() *Traits { return &ovsPortTraits }

// Datapath is the link that is the master of all ports of Open vSwitch in the kernel.
const Datapath = HostPrefix + "ovs-system"

// ovsPort adds a link to the datapath, and has OVN install it.
func (m *model) ovsPort(c Change) {
	m.store(c)
	name, master := c.Key().ID, ""
	if p, ok := c.After.(OVSPort); ok {
		have, _ := Lookup(m.Snapshot, p)
		have.Installed = true
		m.Put(have)
		master = Datapath
	}
	if l, ok := m.Link(name); ok {
		m.put(Merge(l, Link{Name: name, Master: &master}))
	}
}
