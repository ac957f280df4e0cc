// Package hostports deletes ports of the host, and guards of ports of bridges, that no sandbox has. They outlive their sandbox: if its
// record is lost, nobody releases them. The ports would lead to the sandbox that gets the address next, and the guards stay.
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

// records are the records of a Reconciler.
type records interface {
	List() ([]reconcile.Record, []error)
	OtherVersions() []*frame.OtherVersion
}

// release does the same for some ports. It locks neither records nor the table
// meanwhile: a port is recorded before it is created, so that one that was seen and has no
// record afterwards belongs to no sandbox.
func release(ctx context.Context, d reconcile.Domain, of records, some func(netstate.PortMapping, netip.Addr) bool,
	unused func(netip.Addr) bool,
) (deleted []netstate.PortMapping, err error) {
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
	all, damaged, err := readable(of)
	if err != nil {
		return nil, err
	}
	for _, m := range lostPorts(ports, all, of.OtherVersions(), unused) {
		if err := d.Apply(ctx, netstate.Change{Before: m}); err != nil {
			return deleted, err
		}
		deleted = append(deleted, m)
	}
	return deleted, damaged
}

// readable returns the records, and which are damaged. An error says that others cannot be read; those of other versions are
// left out.
func readable(of records) (all []reconcile.Record, damaged, err error) {
	all, errs := of.List()
	var failed []error
	for _, err := range errs {
		switch {
		case frame.AsOtherVersion(err) != nil:
		case frame.IsDamage(err):
			damaged = errors.Join(damaged, err)
		default:
			failed = append(failed, err)
		}
	}
	return all, damaged, errors.Join(failed...)
}

// ReleaseGuards deletes the guards of ports that no record has, and of which there is no link. It returns the names of these ports. A
// guard is recorded before it is created, and so are all of its table before the records are read. Records that cannot
// be read count as in Release.
func ReleaseGuards(ctx context.Context, r *reconcile.Reconciler) (deleted []string, err error) {
	d, err := r.HostDomain()
	if err != nil {
		return nil, err
	}
	defer d.Close()
	seen := netstate.NewSnapshot()
	switch err := d.Extend(ctx, seen, []netstate.Object{netstate.PortGuard{}}); {
	case fault.Of(err) == fault.Unsupported:
		return nil, nil
	case err != nil:
		return nil, err
	}
	guards := netstate.All[netstate.PortGuard](seen)
	ports := make([]netstate.Object, len(guards))
	for i, g := range guards {
		ports[i] = netstate.Link{Name: netstate.HostName(g.Port)}
	}
	if err := d.Extend(ctx, seen, ports); err != nil {
		return nil, err
	}
	guards = slices.DeleteFunc(guards, func(g netstate.PortGuard) bool { _, there := seen.Link(netstate.HostName(g.Port)); return there })
	if len(guards) == 0 { // as on most nodes: no record needs to be read
		return nil, nil
	}
	all, damaged, err := readable(r)
	if err != nil {
		return nil, err
	}
	for _, g := range lostGuards(guards, all, r.OtherVersions()) {
		if err := d.Apply(ctx, netstate.Change{Before: g}); err != nil {
			return deleted, err
		}
		deleted = append(deleted, g.Port)
	}
	return deleted, damaged
}

// lostGuards are those of the guards that no record has, see ReleaseGuards.
func lostGuards(guards []netstate.PortGuard, records []reconcile.Record, others []*frame.OtherVersion) []netstate.PortGuard {
	recorded := map[netstate.Key]bool{}
	for _, rec := range records {
		for _, c := range rec.History {
			recorded[c.Key()] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(guards), func(g netstate.PortGuard) bool {
		return recorded[g.Key()] || slices.ContainsFunc(others, func(o *frame.OtherVersion) bool { return o.Mentions[g.Port] })
	})
}

// lostPorts are those of the ports that no record has, see Release. A record has a port
// wherever it leads: a check of its sandbox restores that.
func lostPorts(ports []netstate.PortMapping, records []reconcile.Record, others []*frame.OtherVersion,
	unused func(netip.Addr) bool,
) (lost []netstate.PortMapping) {
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
		notes = append(notes,
			fmt.Sprintf("port %s of the host led to %s, which an earlier sandbox without a record had: it was deleted", m.Host, *m.To))
	}
	if frame.IsDamage(err) { // it is reported once, and does not concern this sandbox
		return append(notes, err.Error()), nil
	}
	if err != nil {
		return notes, fmt.Errorf("ports of the host that lead to addresses of the sandbox: %w", err)
	}
	return notes, nil
}
