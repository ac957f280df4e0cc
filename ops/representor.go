package ops

import (
	"errors"
	"fmt"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// Representor returns the link of the host that represents the virtual function, false if the
// device is no virtual function.
func (p *Planner) Representor(id string) (string, bool, error) {
	r, isVF, err := Lookup(p, netstate.Representor{ID: id})
	switch {
	case err != nil || !isVF:
		return "", false, err
	case !r.Switchdev:
		return "", true, fault.New(fault.Unsupported, fmt.Errorf("device %q is a virtual function of %q, whose switch is in mode legacy, "+
			"in which it has no representor that could be a port of Open vSwitch: "+
			"run \"devlink dev eswitch set pci/%s mode switchdev\" (docs/ovn.md), or give the step a device that is shared, or none, "+
			"and it gets a veth pair", id, r.PF, r.PF))
	case r.Link == nil || *r.Link == "":
		return "", true,
			fault.New(fault.NotReady, fmt.Errorf("device %q is virtual function %d of %q, which has no representor for it on the host: "+
				"look for phys_port_name pf*vf%d of its links; is the link in another network namespace?", id, r.Index, r.PF, r.Index))
	}
	l, err := p.Link(*r.Link)
	switch {
	case errors.Is(err, errMissing) || p.Kept():
		return *r.Link, true, err
	case err != nil:
		return "", true, err
	case l.Master != nil && *l.Master != "" && *l.Master != netstate.Datapath:
		return "", true, fault.New(fault.Conflict,
			fmt.Errorf("representor %q of device %q is a port of %q: remove it there, with \"ip link set %s nomaster\"",
				netstate.BaseName(l.Name), id, netstate.BaseName(*l.Master), netstate.BaseName(l.Name)))
	}
	return *r.Link, true, nil
}

// WantVFBehindRepresentor wants the settings on the physical function of a virtual one whose
// representor is a port of a bridge. Its VLAN is the bridge's matter.
func (p *Planner) WantVFBehindRepresentor(id string, mac string) error {
	vf := netstate.VF{ID: id, MAC: &mac}
	if rate := p.req.Given[p.stepName()].MaxTxRate; rate != 0 {
		vf.MaxTxRateMbps = &rate
	}
	if _, ok, err := Lookup(p, vf); err != nil || !ok {
		return err
	}
	return p.Want(vf)
}

// NameOnHost is the name that a device has on the host, or had before it was taken; "" if that
// is not known.
func (p *Planner) NameOnHost(d netstate.Device) string {
	for _, c := range p.req.Owned {
		if before, ok := c.Before.(netstate.Device); ok && before.ID == d.ID && before.At != nil && netstate.OnHost(*before.At) {
			return netstate.BaseName(*before.At)
		}
	}
	if d.At != nil && netstate.OnHost(*d.At) {
		return netstate.BaseName(*d.At)
	}
	return ""
}
