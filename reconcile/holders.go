package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/topology/fault"
)

// refuseTaken refuses devices that another sandbox holds. With free, another sandbox is
// released first if its namespace no longer exists.
func (p *pass) refuseTaken(ctx context.Context, free bool) error {
	// A device in the sandbox's own record is held by no other sandbox. Checking the others
	// costs a read each.
	wanted := p.sandbox.Given.Devices()
	maps.DeleteFunc(wanted, func(_, device string) bool { return holds(p.record, device) })
	if len(wanted) == 0 {
		return nil
	}
	for _, other := range p.r.opts.Store.Holders(slices.Collect(maps.Values(wanted))) {
		if other.Sandbox.ID == p.sandbox.ID || other.Sandbox.ID == p.sandbox.Prepared || other.BootID != p.r.opts.BootID {
			continue
		}
		step, device := sharedDevice(wanted, other)
		if device == "" {
			continue
		}
		// Other tenants must not see which sandbox has it.
		held := fault.Detailed(fmt.Errorf("device %q is held by another sandbox: delete that first, or choose another device", device),
			fmt.Sprintf("sandbox %q has it", other.Sandbox.ID))
		if !p.alive(other) {
			if !free {
				continue // it will be released
			}
			rep, err := p.r.AwaitRelease(ctx, other.Sandbox.ID)
			if err == nil && rep.Unclean == "" {
				continue
			}
			if err == nil {
				err = errors.New(rep.Unclean)
			}
			held = fault.Detailed(fmt.Errorf("device %q is held by another sandbox, whose namespace no longer exists", device), err.Error())
		}
		return &ops.StepError{Topology: p.sandbox.Topology.Name, Step: step, Err: fault.New(fault.Conflict, held)}
	}
	return p.refuseOtherVersions(wanted)
}

// refuseOtherVersions refuses devices that a record of another version mentions: only
// that version knows whether they were released.
func (p *pass) refuseOtherVersions(wanted map[string]string) error {
	maps.DeleteFunc(wanted, func(step, _ string) bool { return !p.takes(step) })
	for _, other := range p.r.OtherVersions() {
		for _, step := range slices.Sorted(maps.Keys(wanted)) {
			if device := wanted[step]; other.Mentions[device] {
				err := fmt.Errorf("device %q is held by record %q: %w", device, other.Path, other)
				return &ops.StepError{Topology: p.sandbox.Topology.Name, Step: step, Err: fault.New(fault.Conflict, err)}
			}
		}
	}
	return nil
}

// takes reports whether a step moves its device away from the host.
func (p *pass) takes(step string) bool {
	s, ok := p.sandbox.Topology.Step(step)
	if !ok {
		return false
	}
	c, ok := p.r.opts.Registry.Contract(s.Type)
	return ok && c.Input.Device
}

// OtherVersions returns the records that other versions of plumbline have written, except
// those that name another boot. They are not changed, and the devices they mention count as
// held. It returns those that List, Record or a pass has found.
func (r *Reconciler) OtherVersions() []*frame.OtherVersion {
	return slices.DeleteFunc(r.opts.Store.OtherVersions(),
		func(o *frame.OtherVersion) bool { return o.BootID != "" && o.BootID != r.opts.BootID })
}

// alive reports whether the namespace of a record still exists.
func (p *pass) alive(rec Record) bool {
	d, err := p.r.opts.Open(rec.Sandbox.Netns)
	if err != nil {
		return fault.Of(err) != fault.Gone
	}
	defer d.Close()
	return rec.NetnsID == NetnsID{} || d.NetnsID() == rec.NetnsID
}

func sharedDevice(devices map[string]string, other Record) (step, device string) {
	for _, step := range slices.Sorted(maps.Keys(devices)) {
		if holds(other, devices[step]) {
			return step, devices[step]
		}
	}
	return "", ""
}

// holds reports whether the record's sandbox has the device.
func holds(rec Record, device string) bool {
	return slices.Contains(rec.Devices(), device)
}

// Devices lists the devices that the sandbox holds.
func (r Record) Devices() []string {
	var out []string
	for _, c := range r.History {
		if o := c.Object(); o.Traits().Host && !slices.Contains(out, o.Key().ID) {
			out = append(out, o.Key().ID)
		}
	}
	return out
}

// mayTake reports whether this pass may be the first to move the device, and so has to
// record its settings.
func (p *pass) mayTake(device string) bool {
	return (p.trigger == TriggerEnsure || p.trigger == TriggerPlan) &&
		slices.Contains(slices.Collect(maps.Values(p.sandbox.Given.Devices())), device)
}

// addHolder adds to a conflict which sandbox holds the conflicting object.
func (p *pass) addHolder(err error) error {
	way, ok := errors.AsType[*ops.InTheWay](err)
	if !ok {
		return err
	}
	for _, other := range p.beside() {
		for _, c := range other.History {
			if l, ok := c.Object().(netstate.Link); ok && l.Name == way.Link {
				return fmt.Errorf("%w (sandbox %q made it)", err, other.Sandbox.ID)
			}
		}
	}
	return err
}
