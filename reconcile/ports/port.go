package ports

import (
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// Port is a link in a sandbox that a step has made or moved there.
type Port struct {
	Step string
	// Name is the name in the record. The link may have another one now.
	Name string
	// Index, Kind and Parent identify the link: they cannot be changed from within the
	// namespace. Kind is that of netstate.Link, Parent that of netstate.Device.
	Index  int
	Kind   string
	Parent string
	// Device is the ID of the device that was moved, "" for a link that was made.
	Device string
}

// Of returns the ports of a sandbox by its record, in the order in which they were made.
// A link that no verified pass has seen yet has no index, and is left out.
func Of(rec *reconcile.Record) []Port {
	var out []Port
	for _, c := range rec.History {
		p := Port{Step: c.Step}
		switch o := c.After.(type) {
		case netstate.Device:
			if o.At == nil || netstate.OnHost(*o.At) {
				continue
			}
			facts := netstate.Recorded(rec.History, netstate.Device{ID: o.ID})
			p.Name, p.Index, p.Kind, p.Parent, p.Device = *o.At, o.Index, facts.LinkKind, facts.Parent, o.ID
			if step := stepOf(rec, o.ID); step != "" {
				p.Step = step
			}
		case netstate.Link:
			if c.Before != nil || netstate.OnHost(o.Name) {
				continue
			}
			p.Name, p.Index, p.Kind = o.Name, o.Index, o.LinkKind
		default:
			continue
		}
		if p.Index == 0 || p.Kind == "" || p.Step == "" {
			continue
		}
		out = append(out, p)
	}
	slices.SortStableFunc(out, func(a, b Port) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// stepOf returns the step a device was given to.
func stepOf(rec *reconcile.Record, device string) string {
	for step, given := range rec.Sandbox.Given {
		if given.Device == device {
			return step
		}
	}
	return ""
}

// Counters are the kernel's counters of a link (struct rtnl_link_stats64).
type Counters struct {
	ReceivedBytes, SentBytes     uint64
	ReceivedPackets, SentPackets uint64
	ReceiveErrors, SendErrors    uint64
	ReceiveDropped, SendDropped  uint64
}

// State is the state of a port in the kernel.
type State struct {
	// Found: the link exists. Without it the rest is zero.
	Found bool
	// Up: it is set up. While it is not, the kernel does not know its carrier.
	Up, Carrier bool
	// CarrierChanges counts them since the link was made.
	CarrierChanges uint32
	// Bond is the state of the port in its bond, nil if it is in none.
	Bond *BondPort
	// RDMA is the state of the RDMA port that belongs to the link, nil if there is none or if
	// it is not known.
	RDMA *RDMAPort
	Counters
}

// RDMAPort is the state of a port of an RDMA device.
type RDMAPort struct {
	Active bool
}

// BondPort is the state of a port of a bond.
type BondPort struct {
	MII bool // the bond's monitor reports the port as up
	// LACP: the bond uses LACP. Partner: LACP has found a partner on this port, and both
	// have agreed to use the port.
	LACP, Partner bool
}
