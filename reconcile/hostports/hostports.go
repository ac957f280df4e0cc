// Package hostports deletes ports of the host that no sandbox has. They outlive the sandbox to which they lead: if its record is
// lost, nobody releases them, and they would lead to the sandbox that gets the address next.
package hostports

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/topology/fault"
)

// Release deletes the ports of the host that no record has, and that lead to an address
// of another sandbox, or to one of which unused says that this node gives it to sandboxes, and
// that none has it. It returns what it has deleted. If records cannot be read, it deletes
// nothing; those of other versions keep the ports that they mention to addresses of no other
// sandbox. An error that is frame.Damage says only that a record was lost.
func Release(ctx context.Context, r *reconcile.Reconciler, unused func(netip.Addr) bool) ([]netstate.PortMapping, error) {
	d, err := r.HostDomain()
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return release(ctx, d, r, func(netstate.PortMapping, netip.Addr) bool { return true }, unused)
}

// records are those of a Reconciler.
type records interface {
	List() ([]reconcile.Record, []error)
	OtherVersions() []*frame.OtherVersion
}

// release does the same for some ports. It locks neither records nor the table
// meanwhile: a port is recorded before it is created, so that one that was seen and has no
// record afterwards belongs to no sandbox.
func release(ctx context.Context, d reconcile.Domain, of records, some func(netstate.PortMapping, netip.Addr) bool, unused func(netip.Addr) bool) (deleted []netstate.PortMapping, err error) {
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
	all, errs := of.List()
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
	for _, m := range lostPorts(ports, all, of.OtherVersions(), unused) {
		if err := d.Apply(ctx, netstate.Change{Before: m}); err != nil {
			return deleted, err
		}
		deleted = append(deleted, m)
	}
	return deleted, errors.Join(damaged...)
}

// lostPorts are those of the ports that no record has, see Release. A record has a port
// wherever it leads: a check of its sandbox restores that.
func lostPorts(ports []netstate.PortMapping, records []reconcile.Record, others []*frame.OtherVersion, unused func(netip.Addr) bool) (lost []netstate.PortMapping) {
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

// Before implements reconcile.Before: it deletes the ports that lead to an address which the plan gives to the sandbox, and
// that no sandbox has. The addresses are recorded by now.
func Before(ctx context.Context, w reconcile.Writing) (notes []string, err error) {
	given := map[netip.Addr]bool{}
	own := map[netstate.Key]bool{}
	for _, c := range w.Plan.Changes {
		if a, ok := c.After.(netstate.Addr); ok && !netstate.OfHost(a) {
			if pre, err := netip.ParsePrefix(a.Address); err == nil {
				given[pre.Addr()] = true
			}
		}
	}
	if !w.Plan.ViaHost || len(given) == 0 {
		return nil, nil
	}
	for _, c := range w.History {
		own[c.Key()] = true
	}
	deleted, err := release(ctx, w.Domain, w.Reconciler,
		func(m netstate.PortMapping, to netip.Addr) bool { return given[to] && !own[m.Key()] },
		func(netip.Addr) bool { return false })
	for _, m := range deleted {
		notes = append(notes, fmt.Sprintf("port %s of the host led to %s, which an earlier sandbox without a record had: it was deleted", m.Host, *m.To))
	}
	if frame.IsDamage(err) { // it is reported once, and does not concern this sandbox
		return append(notes, err.Error()), nil
	}
	if err != nil {
		return notes, fmt.Errorf("ports of the host that lead to addresses of the sandbox: %w", err)
	}
	return notes, nil
}
