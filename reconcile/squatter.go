package reconcile

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// ErrAddressTaken means that the kernel refuses an address because another link on the same master has
// it, in whichever network namespace: of ipvlan links each address is one's (ipvlan_addr_busy in
// drivers/net/ipvlan/ipvlan_core.c).
var ErrAddressTaken = errors.New("another link on the same master has it")

// maxTaken bounds how often a change takes an address from others, which may have it again at once.
const maxTaken = 3

// takeAddress makes an address free that another link on the same master has, if that is in a sandbox
// whose record does not have the address: a pod may give its link any. It deletes that one address, and
// reports it as drift of that sandbox. Otherwise it returns refused, with who has the address. It waits
// for no other sandbox: if that is locked or being released, the error is of kind NotReady.
func (p *pass) takeAddress(ctx context.Context, a netstate.Addr, refused error) error {
	prefix, err := netip.ParsePrefix(a.Address)
	if err != nil {
		return refused
	}
	seen, err := p.domain.Observe(ctx, nil)
	if err != nil {
		return refused
	}
	link, ok := seen.Link(a.Link)
	if !ok || link.Parent == nil {
		return refused
	}
	h := holder{link: link, ip: prefix.Addr()}
	if addr, ok := h.in(seen, a.Link); ok {
		return p.takeFrom(ctx, p.domain, append([]Record{p.record}, p.beside()...), addr, refused)
	}
	if !netstate.OnHost(*link.Parent) {
		return refused
	}
	unread := ""
	for _, records := range p.r.withLinks(link.LinkKind) {
		if slices.ContainsFunc(records, p.here) {
			continue
		}
		d, addr, err := p.r.findHolder(ctx, h, records[0])
		if errors.Is(err, ErrPartial) {
			unread = fmt.Sprintf("; the namespace of sandbox %q cannot be read in full", records[0].Sandbox.ID)
		}
		if d == nil {
			continue
		}
		defer d.Close()
		return p.takeFrom(ctx, d, records, addr, refused)
	}
	family := 4
	if h.ip.Is6() {
		family = 6
	}
	master := netstate.BaseName(*link.Parent)
	return fault.Detailed(fmt.Errorf("no sandbox of this node has it: look for %s links on %q in other namespaces and on the host: %w",
		link.LinkKind, master, refused),
		fmt.Sprintf("to search named namespaces: ip -all netns exec ip -%d -o address show to %s%s", family, h.ip, unread))
}

// holder is the object of the search: a link like this one with the address.
type holder struct {
	link netstate.Link
	ip   netip.Addr
}

// in finds the address in a snapshot, on another link than that of the name.
func (h holder) in(s *netstate.Snapshot, except string) (netstate.Addr, bool) {
	for _, a := range netstate.All[netstate.Addr](s) {
		l, ok := s.Link(a.Link)
		if !ok || l.Name == except || l.LinkKind != h.link.LinkKind || l.Parent == nil || *l.Parent != *h.link.Parent {
			continue
		}
		if has, err := netip.ParsePrefix(a.Address); err == nil && has.Addr() == h.ip {
			return a, true
		}
	}
	return netstate.Addr{}, false
}

// withLinks returns the records of this boot that have made a link of a kind, by namespace, in order of ID.
func (r *Reconciler) withLinks(kind string) map[string][]Record {
	out := map[string][]Record{}
	records, _ := r.opts.Store.List() // damaged records are reported by List's other callers
	for _, rec := range records {
		if rec.Sandbox.Netns != "" && rec.BootID == r.opts.BootID && slices.ContainsFunc(rec.History, func(c netstate.Change) bool {
			l, ok := c.After.(netstate.Link)
			return ok && l.LinkKind == kind
		}) {
			out[rec.Sandbox.Netns] = append(out[rec.Sandbox.Netns], rec)
		}
	}
	return out
}

// findHolder searches the namespace of a record. The domain is nil if the address is not there.
func (r *Reconciler) findHolder(ctx context.Context, h holder, rec Record) (Domain, netstate.Addr, error) {
	d, err := r.opts.Open(rec.Sandbox.Netns)
	if err != nil {
		return nil, netstate.Addr{}, err
	}
	if d.NetnsID() == rec.NetnsID {
		var seen *netstate.Snapshot
		if seen, err = d.Observe(ctx, nil); err == nil {
			if a, ok := h.in(seen, ""); ok {
				return d, a, nil
			}
		}
	}
	d.Close()
	return nil, netstate.Addr{}, err
}

// takeFrom deletes an address in an open namespace, unless one of its records has it.
func (p *pass) takeFrom(ctx context.Context, d Domain, records []Record, a netstate.Addr, refused error) error {
	var from Record
	for i, rec := range records {
		if rec.Sandbox.ID != p.sandbox.ID {
			unlock, err := p.r.opts.Store.Lock(WithoutWait(ctx), rec.Sandbox.ID)
			if err != nil {
				return p.later("is in use", rec, refused)
			}
			defer unlock()
			// It may have been edited since, to have the address.
			now, known, err := p.r.opts.Store.Get(rec.Sandbox.ID)
			if err != nil {
				return refused
			}
			if !known || now.Phase == Releasing {
				return p.later("is being released", rec, refused)
			}
			rec = now
		}
		if rec.has(a, rec.Sandbox.ID == p.sandbox.ID || p.here(rec)) {
			return fault.Detailed(
				fmt.Errorf("another sandbox has it by its topology: give one of them another address, or end that pod: %w", refused),
				fmt.Sprintf("sandbox %q has it on link %q", rec.Sandbox.ID, a.Link))
		}
		if i == 0 || rec.made(a.Link) != "" {
			from = rec
		}
	}
	drift := Drift{Step: from.made(a.Link), Action: netstate.Delete, Object: a.Key()}
	name, types := from.Sandbox.Topology.Name, map[string]string{}
	if s, ok := from.Sandbox.Topology.Step(drift.Step); ok {
		drift.Type, types[s.Name] = s.Type, s.Type
	}
	deletion := netstate.Change{Step: drift.Step, Before: a}
	if err := d.Apply(ctx, deletion); err != nil {
		return errors.Join(refused, fmt.Errorf("and it cannot be taken from the link that has it: %w", err))
	}
	if from.Sandbox.ID == p.sandbox.ID {
		p.notes = append(p.notes,
			fmt.Sprintf("link %q of the pod had address %s, which no topology wants there: it was deleted", a.Link, a.Address))
		return nil
	}
	p.r.opts.Recorder.Drift(from.Sandbox.ID, name, []Drift{drift})
	p.r.opts.Recorder.Pass(Pass{
		Sandbox: from.Sandbox.ID, Topology: name,
		Trigger: TriggerRepair, Changes: []netstate.Change{deletion}, StepTypes: types,
	})
	p.notes = append(p.notes, fmt.Sprintf(
		"a link of another sandbox on the same master had address %s, which its topology does not want: it was deleted there", a.Address))
	return nil
}

// later is the error while another sandbox cannot be changed. An attachment tries again, for as long as
// it waits for what is not ready; a repair is tried again as a whole.
func (p *pass) later(why string, rec Record, refused error) error {
	kind := fault.NotReady
	if p.trigger == TriggerRepair {
		kind = fault.Conflict
	}
	return fault.Detailed(fault.New(kind, fmt.Errorf("a sandbox that may have it %s: %w", why, refused)),
		fmt.Sprintf("it is sandbox %q", rec.Sandbox.ID))
}

// has reports whether a record has an address, on that link or on any.
func (r Record) has(a netstate.Addr, there bool) bool {
	wanted, err := netip.ParsePrefix(a.Address)
	is := func(address string) bool {
		p, e := netip.ParsePrefix(address)
		return err == nil && e == nil && p.Addr() == wanted.Addr()
	}
	for _, c := range r.History {
		if own, ok := c.After.(netstate.Addr); ok && !netstate.OfHost(own) && is(own.Address) && (!there || own.Link == a.Link) {
			return true
		}
	}
	if there {
		return false
	}
	for _, step := range r.Results {
		for _, ip := range step.Result.IPs {
			if is(ip.Address) {
				return true
			}
		}
	}
	return false
}

// made returns the step that has made a link, "" for none.
func (r Record) made(link string) string {
	for _, c := range r.History {
		if l, ok := c.After.(netstate.Link); ok && l.Name == link {
			return c.Step
		}
	}
	return ""
}
