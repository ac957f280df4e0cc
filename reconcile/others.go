package reconcile

import (
	"context"
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
)

// planBeside plans with regard to the other topologies of the namespace. They only take from what a repair or a check would change, so
// that a pass that finds all as it should be does not look for their records.
func (p *pass) planBeside(ctx context.Context) (*ops.Plan, error) {
	if p.trigger == TriggerRepair || p.trigger == TriggerCheck {
		plan, err := p.plan(ctx)
		if err != nil || plan.Empty() {
			return plan, err
		}
		if p.findOthers(); len(p.others) == 0 {
			return plan, nil
		}
	} else {
		p.findOthers()
	}
	return p.plan(ctx)
}

// findOthers finds the other topologies that were applied in the open namespace. One that is
// being released counts no more: it leaves to this one what both have made.
func (p *pass) findOthers() {
	p.others = nil
	if p.sandbox.Netns == "" || p.domain == nil || p.domain.NetnsID() == (NetnsID{}) {
		return
	}
	for _, rec := range p.beside() {
		if rec.NetnsID == p.domain.NetnsID() && rec.Phase != Releasing {
			p.others = append(p.others, rec)
		}
	}
}

// beside returns the records of the other sandboxes of the namespace.
func (p *pass) beside() []Record {
	return slices.DeleteFunc(p.r.opts.Store.Beside(p.sandbox.ID, p.sandbox.Netns, p.opened()),
		func(rec Record) bool { return rec.Sandbox.ID == p.sandbox.ID || !p.here(rec) })
}

// here reports whether a record is of this pass's namespace, by its path or by another one. IDs of namespaces, and paths, are those of
// one boot.
func (p *pass) here(rec Record) bool {
	return rec.BootID == p.r.opts.BootID && (rec.Sandbox.Netns == p.sandbox.Netns || p.opened().Is(rec.NetnsID))
}

// opened is the ID of the open namespace, zero if none is.
func (p *pass) opened() NetnsID {
	if p.domain == nil {
		return NetnsID{}
	}
	return p.domain.NetnsID()
}

func othersOf(records []Record) []ops.Other {
	out := make([]ops.Other, len(records))
	for i, rec := range records {
		out[i] = ops.Other{Name: rec.Sandbox.Topology.Name, History: rec.History}
	}
	return out
}

// dropLeft drops from a history each object that no step wants any more and that another topology of the pod shares: the record
// of that topology has the state before.
func (p *pass) dropLeft(history []netstate.Change, plan *ops.Plan) []netstate.Change {
	if len(p.others) == 0 {
		return history
	}
	mine := map[netstate.Key]bool{}
	for _, c := range ops.Unshared(history, othersOf(p.others)) {
		mine[c.Key()] = true
	}
	return slices.DeleteFunc(history, func(c netstate.Change) bool { return !mine[c.Key()] && !plan.Wants(c.Key()) })
}
