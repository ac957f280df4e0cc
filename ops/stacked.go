package ops

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// StackedConfig holds the common keys of ipvlan, macvlan and ipoib: a link on a parent that stays
// where it is.
type StackedConfig struct {
	DeviceConfig
	AddressConfig
	RDMAConfig
	Name      string `json:"name,omitempty"`
	Master    string `json:"master,omitempty"`
	MasterNet string `json:"masterNet,omitempty"`
	// MasterNets is decoded of derived steps only, which are refused with it: a root step with
	// masterNets has become one step with MasterNet for each when its topology was decoded.
	MasterNets      []string `json:"masterNets,omitempty"`
	Mode            string   `json:"mode"`
	MTU             *uint32  `json:"mtu,omitempty"`
	LinkInContainer *bool    `json:"linkInContainer,omitempty"`
}

// StackedParams describes the keys of StackedConfig, except mode. The argument describes the default of the key mtu.
func StackedParams(mtu string) []contract.Param {
	return slices.Concat([]contract.Param{
		NameParam(RootName + "; of a derived step its name"),
		{Name: "master", Type: contract.String, Format: contract.LinkName, Description: "interface below; default: " +
			"the dependencies' last; of a root step the allocated device, else that of the default route"},
		{
			Name: "masterNet", Type: contract.String, Format: contract.Prefix,
			Description: "of a root step, instead of the name: the master is the node's interface with an address in this network",
		},
		{
			Name: "masterNets", Type: contract.List, Items: &contract.Param{Type: contract.String, Format: contract.Prefix},
			Description: "of a root step: one step for each network, as with masterNet; steps and interfaces are NAME-0, NAME-1, …; " +
				"with ipam of type pool or multi-nic-ipam the position is the pool's interface",
		},
		MTUParam(mtu),
		{Name: "linkInContainer", Type: contract.Boolean, Description: "the master is in the pod; default: in a derived step"},
	}, DeviceParams(), RDMAParams(" of a root step's device, which others share. Default: false"), AddressParams())
}

// StackedOutput is the output of ipvlan, macvlan and ipoib.
func StackedOutput(out contract.Output) contract.Output {
	out.Devices = RDMAFields()
	return out
}

// Complete adds a link that the step has wanted to the step's result, with its addresses and what its containers get of the device below.
func (c StackedConfig) Complete(p *Planner, name, parent string) error {
	p.Produce(name)
	if err := p.Address(name, c.AddressConfig); err != nil {
		return err
	}
	return c.share(p, name, parent)
}

// Links returns the name of the step's link, and the link below it.
func (c StackedConfig) Links(p *Planner) (name, parent string, err error) {
	if parent, err = c.parent(p); err == nil {
		name, err = p.DefaultName(c.Name)
	}
	return name, parent, err
}

// parent finds the link to stack on.
func (c StackedConfig) parent(p *Planner) (string, error) {
	inside := !p.Root()
	if c.LinkInContainer != nil {
		inside = *c.LinkInContainer
	}
	if len(c.MasterNets) > 0 {
		return "", Invalid("masterNets", "are networks of the host, and the master of this step is in the sandbox: use master")
	}
	if c.MasterNet != "" {
		return c.onNetwork(p, inside)
	}
	if c.Master != "" && !inside {
		if _, err := SharedLink(p, c.Master, "master"); err != nil {
			return "", err
		}
	}
	if c.Master != "" || inside && !p.Root() {
		return Master(p, c.Master, !inside)
	}
	if inside {
		return c.choose(p, "by the default route", func() (string, error) {
			for _, r := range p.Routes() {
				if r.IsDefault() && r.Table == netstate.TableMain {
					return r.Link, nil
				}
			}
			return "", Invalid("master", "is needed: no interface of the sandbox has a default route")
		})
	}
	id, ok := p.AssignedDevice()
	if !ok {
		id = c.DeviceID
	}
	id = cmp.Or(id, c.RuntimeConfig.DeviceID)
	if id == "" {
		return c.choose(p, "by the default route", func() (string, error) {
			d, exists, err := Lookup(p, netstate.Device{ID: netstate.DefaultRouteDevice})
			if err == nil && (!exists || d.At == nil) {
				err = Invalid("master", "is needed: no interface of the host has a default route")
			}
			return at(d), err
		})
	}
	d, err := carrier(p, id)
	if err != nil {
		return "", err
	}
	if _, err := p.Link(*d.At); err != nil {
		return "", err
	}
	return *d.At, nil
}

// carrier returns a device that has an interface on the host.
func carrier(p *Planner, id string) (netstate.Device, error) {
	d, exists, err := Lookup(p, netstate.Device{ID: id})
	if err == nil && (!exists || d.At == nil || !netstate.OnHost(*d.At)) {
		err = Conflict("device %q has no interface on the host to stack on", id)
	}
	return d, err
}

// onNetwork finds the interface of the host with an address in the network: the device that
// was allocated for it, which the pod keeps whatever becomes of the address, else the one
// that has it now.
func (c StackedConfig) onNetwork(p *Planner, inside bool) (string, error) {
	switch network, err := netip.ParsePrefix(c.MasterNet); {
	case inside:
		return "", Invalid("masterNet", "is a network of the host, and the master of this step is in the sandbox: use master")
	case c.Master != "":
		return "", Invalid("masterNet", "names the interface below, as master does: remove one of them")
	case err != nil || network.Bits() == 0:
		return "", Invalid("masterNet", "%q is not the network of an interface, such as 10.0.1.0/24", c.MasterNet)
	}
	if link, err := SharedLink(p, "", ""); link != "" || err != nil {
		return link, err
	}
	return c.choose(p, "in "+c.MasterNet, func() (string, error) {
		d, exists, err := Lookup(p, netstate.Device{ID: netstate.NetworkPrefix + c.MasterNet})
		if err == nil && (!exists || d.At == nil) {
			err = fault.New(fault.NotReady, fmt.Errorf(
				"masterNet: no interface of the host has an address in %q: give one an address there, or run the pod on another node",
				c.MasterNet))
		}
		return at(d), err
	})
}

// choose returns the link below the step's, which is found by what others may change at any
// time, the default route or an address: the one that the step's link is on, else the one that
// is found now.
func (c StackedConfig) choose(p *Planner, how string, find func() (string, error)) (string, error) {
	name, err := p.DefaultName(c.Name)
	if err != nil {
		return "", err
	}
	parent, err := p.Choose(netstate.LinkKey(name), "parent "+how, func() (string, error) {
		if l, there := p.req.Have.Link(name); there && l.Parent != nil && p.req.Kept && p.Owned(l.Key()) { // of a record without choices
			return *l.Parent, nil
		}
		return find()
	})
	if err != nil {
		return "", err
	}
	_, err = p.Link(parent)
	return parent, err
}

// at is where a device is, "" for nowhere.
func at(d netstate.Device) string {
	if d.At == nil {
		return ""
	}
	return *d.At
}

// IsUplink reports whether the node has its default route over a link of the host.
func IsUplink(p *Planner, link string) (bool, error) {
	if p.req.imagined != nil || !netstate.OnHost(link) {
		return false, nil
	}
	d, exists, err := Lookup(p, netstate.Device{ID: netstate.DefaultRouteDevice})
	return exists && at(d) == link, err
}

// leaveToNode refuses an address of a link on an interface of the host that the node has itself: ipvlan gives the
// packets for them to the pod (ipvlan_addr_lookup, drivers/net/ipvlan/ipvlan_core.c), and beside a macvlan two answer for
// them. Of a link that is there already nothing is asked.
func (p *Planner) leaveToNode(link string, a Address) error {
	l, exists, err := Lookup(p, netstate.Link{Name: link})
	if err != nil || !exists || l.Parent == nil || !netstate.OnHost(*l.Parent) || !l.KindTraits().RxHandler || p.req.imagined != nil {
		return err
	}
	if _, there := p.req.Have.Link(link); there {
		return nil
	}
	prefix, err := a.Prefix()
	if err != nil {
		return err
	}
	d, exists, err := Lookup(p, netstate.Device{ID: netstate.AddressPrefix + prefix.Addr().String()})
	if err == nil && exists && d.At != nil {
		return Conflict("address %s is the node's own, on its interface %q: use another one, or exclude it from the pool", prefix.Addr(),
			netstate.BaseName(*d.At))
	}
	return err
}

// SharedLink returns the interface of the device that is allocated to a root step, on the
// host; "" if none is. An interface that the config names has to be the same: the
// scheduler has counted the share of this device.
func SharedLink(p *Planner, named, key string) (string, error) {
	id, ok := p.AssignedDevice()
	if !ok || p.req.imagined != nil { // what is imagined is of no kind
		return "", nil
	}
	d, err := carrier(p, id)
	switch {
	case err != nil:
		return "", err
	case named != "" && *d.At != p.OwnName(netstate.HostName(named)) && !slices.Contains(d.AltNames, named):
		return "", Invalid(key, "%q is not the interface %q of the device that was allocated: "+
			"remove the key, or have the step's selector choose that interface", named, netstate.BaseName(*d.At))
	}
	return *d.At, nil
}

// CheckStack refuses links that the kernel would refuse, or that silently change others.
func CheckStack(p *Planner, parent, name, kind string) error {
	for _, l := range p.Links() {
		if l.Name == name || l.Parent == nil || *l.Parent != parent || p.Leaves(l.Key()) {
			continue
		}
		if other := l.LinkKind; other != kind && l.KindTraits().RxHandler {
			return ConflictWith(l.Name,
				"%q carries the %s link %q, and a link carries %s or %s, not both: use type %s here, too, or another device",
				netstate.BaseName(parent), other, l.Name, min(other, kind), max(other, kind), other)
		}
	}
	return nil
}
