package ports

import "fmt"

// Status summarizes a port's state.
type Status string

// The statuses.
const (
	Up      Status = "Up"
	Down    Status = "Down"
	Unknown Status = "Unknown" // it is set down, or does not exist: that is drift, and the state of the wire is unknown
)

// Reason is the reason of a Status.
type Reason string

// The reasons. They are reasons of conditions, too.
const (
	Carrier   Reason = "Carrier"
	NoCarrier Reason = "NoCarrier"
	// NotUsed: the bond's monitor reports the port as down, although it has a carrier.
	NotUsed Reason = "NotUsedByBond"
	// NoPartner: LACP has found no partner on this port, although it has a carrier.
	NoPartner Reason = "NoLACPPartner"
	// RDMADown: the RDMA port of this link is not active, although the link has a carrier.
	RDMADown Reason = "RDMAPortDown"
	// Flapping: the carrier changes repeatedly.
	Flapping Reason = "Flapping"
	SetDown  Reason = "SetDown"
	NotFound Reason = "NotFound"
)

// Verdict is a status with its reason.
type Verdict struct {
	Status Status
	Reason Reason
}

// Judge returns the verdict on a state.
func Judge(s State) Verdict {
	switch b := s.Bond; {
	case !s.Found:
		return Verdict{Unknown, NotFound}
	case !s.Up:
		return Verdict{Unknown, SetDown}
	case !s.Carrier:
		return Verdict{Down, NoCarrier}
	case b != nil && !b.MII:
		return Verdict{Down, NotUsed}
	case b != nil && b.LACP && !b.Partner:
		return Verdict{Down, NoPartner}
	case s.RDMA != nil && !s.RDMA.Active:
		return Verdict{Down, RDMADown}
	}
	return Verdict{Up, Carrier}
}

var texts = map[Reason]string{
	Carrier:   "link %q has a carrier",
	NoCarrier: "link %q has no carrier",
	NotUsed:   "link %q has a carrier, but the monitor of its bond takes it for down",
	NoPartner: "link %q has a carrier, but no LACP partner has agreed to use it",
	RDMADown:  "link %q has a carrier, but its RDMA port is not active",
	Flapping:  "the carrier of link %q changes repeatedly",
	SetDown:   "link %q was set down",
	NotFound:  "link %q does not exist",
}

// Text is the message about a port.
func (v Verdict) Text(p Port) string { return fmt.Sprintf(texts[v.Reason], p.Name) }
