package reconcile

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/topology/fault"
)

// Ports of the host outlive the sandbox to which they lead. If its record is lost, nobody
// releases them: they would lead to the sandbox that gets the address next.

// ReleaseHostPorts deletes the ports of the host that no record has, and that lead to an address
// of another sandbox, or to one of which unused says that this node gives it to sandboxes, and
// that none has it. It returns what it has deleted. If records cannot be read, it deletes
// nothing; those of other versions keep the ports that they mention to addresses of no other
// sandbox. An error that is frame.Damage says only that a record was lost.
func (r *Reconciler) ReleaseHostPorts(ctx context.Context, unused func(netip.Addr) bool) ([]netstate.PortMapping, error) {
	d, err := r.opts.Open("")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return r.releaseHostPorts(ctx, d, func(netstate.PortMapping, netip.Addr) bool { return true }, unused)
}

// releaseHostPorts does the same for some ports. It locks neither records nor the table
// meanwhile: a port is recorded before it is created, so that one that was seen and has no
// record afterwards belongs to no sandbox.
func (r *Reconciler) releaseHostPorts(ctx context.Context, d Domain, some func(netstate.PortMapping, netip.Addr) bool, unused func(netip.Addr) bool) (deleted []netstate.PortMapping, err error) {
	seen := netstate.NewSnapshot()
	switch err := d.Extend(ctx, seen, []netstate.Object{netstate.PortMapping{}}); {
	case fault.Of(err) == fault.Unsupported:
		return nil, nil
	case err != nil:
		return nil, err
	}
	ports := slices.DeleteFunc(netstate.All[netstate.PortMapping](seen), func(m netstate.PortMapping) bool { return !some(m, target(m)) })
	if len(ports) == 0 {
		return nil, nil
	}
	records, errs := r.opts.Store.List()
	var damaged, failed []error
	for _, err := range errs {
		switch {
		case frame.AsOtherVersion(err) != nil: // see lostPorts
		case frame.IsDamage(err):
			damaged = append(damaged, err)
		default:
			failed = append(failed, err)
		}
	}
	if len(failed) > 0 {
		return nil, errors.Join(failed...)
	}
	for _, m := range lostPorts(ports, records, r.OtherVersions(), unused) {
		if err := d.Apply(ctx, netstate.Change{Before: m}); err != nil {
			return deleted, err
		}
		deleted = append(deleted, m)
	}
	return deleted, errors.Join(damaged...)
}

// lostPorts are those of the ports that no record has, see ReleaseHostPorts. A record has a port
// wherever it leads: a check of its sandbox restores that.
func lostPorts(ports []netstate.PortMapping, records []Record, others []*frame.OtherVersion, unused func(netip.Addr) bool) (lost []netstate.PortMapping) {
	recorded, addresses := map[netstate.Key]bool{}, map[netip.Addr]bool{}
	for _, rec := range records {
		for _, c := range rec.History {
			switch o := c.Object().(type) {
			case netstate.PortMapping:
				recorded[o.Key()] = true
			case netstate.Addr:
				if p, err := netip.ParsePrefix(o.Address); err == nil && !netstate.OfHost(o) {
					addresses[p.Addr()] = true
				}
			}
		}
	}
	for _, m := range ports {
		mentioned := slices.ContainsFunc(others, func(o *frame.OtherVersion) bool { return o.Mentions[m.Host] })
		if to := target(m); !recorded[m.Key()] && (addresses[to] || unused(to) && !mentioned) {
			lost = append(lost, m)
		}
	}
	return lost
}

// target is the address to which a port leads.
func target(m netstate.PortMapping) netip.Addr {
	to, err := netip.ParseAddrPort(*m.To)
	if err != nil {
		return netip.Addr{}
	}
	return to.Addr()
}

// releaseHostPorts deletes the ports that lead to an address which a plan gives to the sandbox, and
// that no sandbox has. The addresses are recorded by now.
func (p *pass) releaseHostPorts(ctx context.Context, plan *ops.Plan) error {
	given := map[netip.Addr]bool{}
	own := map[netstate.Key]bool{}
	for _, c := range plan.Changes {
		if a, ok := c.After.(netstate.Addr); ok && !netstate.OfHost(a) {
			if pre, err := netip.ParsePrefix(a.Address); err == nil {
				given[pre.Addr()] = true
			}
		}
	}
	if !plan.ViaHost || len(given) == 0 {
		return nil
	}
	for _, c := range p.record.History {
		own[c.Key()] = true
	}
	deleted, err := p.r.releaseHostPorts(ctx, p.domain,
		func(m netstate.PortMapping, to netip.Addr) bool { return given[to] && !own[m.Key()] },
		func(netip.Addr) bool { return false })
	for _, m := range deleted {
		p.notes = append(p.notes, fmt.Sprintf("port %s of the host led to %s, which an earlier sandbox without a record had: it was deleted", m.Host, *m.To))
	}
	if frame.IsDamage(err) { // it is reported once, and does not concern this sandbox
		p.notes = append(p.notes, err.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("ports of the host that lead to addresses of the sandbox: %w", err)
	}
	return nil
}
