package ops

import (
	"maps"
	"net/netip"
)

// Given is what was decided for a step outside the plan: by a scheduler, by an
// allocator or by a user. It is an input of the plan like the topology, so it is in
// every record from which a plan is made.
type Given struct {
	// Device is the identity of a root step's device (netstate.Device.ID).
	Device string `json:"device,omitempty"`
	// Share is the ShareID of an allocation that gives a part of the device.
	Share string `json:"share,omitempty"`
	// Addresses are added to those of the step's config.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// VLAN is that of the physical network a virtual function is wired to; 0 is none. The
	// step's config comes before it.
	VLAN uint16 `json:"vlan,omitempty"`
}

// Givens is what is given to the steps of one topology, by step.
type Givens map[string]Given

// GivenDevices gives devices alone.
func GivenDevices(devices map[string]string) Givens { return Givens(nil).WithDevices(devices) }

// WithDevices adds devices to what is given.
func (g Givens) WithDevices(devices map[string]string) Givens {
	if len(devices) == 0 {
		return g
	}
	out := make(Givens, len(g)+len(devices))
	maps.Copy(out, g)
	for step, id := range devices {
		given := out[step]
		given.Device = id
		out[step] = given
	}
	return out
}

// WithoutDevices is what is given beside devices; steps to which nothing else is
// given are left out.
func (g Givens) WithoutDevices() Givens {
	out := Givens{}
	for step, given := range g {
		if given.Share != "" || len(given.Addresses) > 0 || given.VLAN != 0 {
			given.Device = ""
			out[step] = given
		}
	}
	return out
}

// Addressed reports whether addresses or a VLAN are given to a step: an agent that does
// not know of them would take them for drift.
func (g Givens) Addressed() bool {
	for _, given := range g {
		if len(given.Addresses) > 0 || given.VLAN != 0 {
			return true
		}
	}
	return false
}

// Devices returns the devices, by step.
func (g Givens) Devices() map[string]string {
	out := map[string]string{}
	for step, given := range g {
		if given.Device != "" {
			out[step] = given.Device
		}
	}
	return out
}
