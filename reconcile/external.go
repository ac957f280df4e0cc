package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// External observes and changes objects that are not in the kernel, such as rows of a
// database. A Domain is one, too. Its objects are read by key.
type External interface {
	// Extend reads objects into a snapshot; what does not exist is
	// recorded as absent. Rules of a LogicalPort are also recorded without a query.
	Extend(ctx context.Context, s *netstate.Snapshot, queried []netstate.Object) error
	// Apply makes one change. On an error the object is as it was, or the error says
	// that it is not.
	Apply(ctx context.Context, c netstate.Change) error
	// Close releases what the view holds.
	Close() error
}

// Adopter is an External that recognizes objects of ours which no history has, such as those that a restored database
// brings back. They are deleted if nothing wants them.
type Adopter interface {
	// Adopt returns what to add to the history of a sandbox.
	Adopt(s *netstate.Snapshot, history []netstate.Change) []netstate.Change
}

// ExternalDomain says which kinds of objects a domain holds. All other kinds are the
// kernel's.
//
// A domain that cannot be observed blocks nothing else: steps that want its objects are
// pending, a repair and a release do the rest, and the record keeps what is still to be
// undone.
type ExternalDomain struct {
	Name  string // for messages, e.g. "the OVN database"
	Kinds []netstate.Kind
	// Durable: its objects outlive a boot, so that their history is kept at the next
	// one.
	Durable bool
	// Open opens the domain's view of a sandbox, when a pass first needs it.
	Open func(context.Context, Sandbox) (External, error)
}

// errWithheld says that everything is undone except objects of a domain that cannot be
// observed.
var errWithheld = errors.New("still to undo")

// externalOf returns the index of the domain that a kind belongs to, false for the
// kernel.
func (r *Reconciler) externalOf(k netstate.Kind) (int, bool) {
	i := slices.IndexFunc(r.opts.External, func(d ExternalDomain) bool { return slices.Contains(d.Kinds, k) })
	return i, i >= 0
}

// external opens a domain, once in a pass.
func (p *pass) external(ctx context.Context, i int) (External, error) {
	if d, ok := p.externals[i]; ok {
		return d, nil
	}
	d, err := p.r.opts.External[i].Open(ctx, p.sandbox)
	if err != nil {
		return nil, err
	}
	if p.externals == nil {
		p.externals = map[int]External{}
	}
	p.externals[i] = d
	return d, nil
}

// kernels returns those of the objects that are the kernel's.
func (p *pass) kernels(queried []netstate.Object) []netstate.Object {
	if len(p.r.opts.External) == 0 {
		return queried
	}
	return slices.DeleteFunc(slices.Clone(queried), func(o netstate.Object) bool {
		_, external := p.r.externalOf(o.Key().Kind)
		return external
	})
}

// extendExternal reads those of the objects that are not the kernel's. A domain that
// cannot be observed is marked in the snapshot.
func (p *pass) extendExternal(ctx context.Context, queried []netstate.Object) {
	byDomain := map[int][]netstate.Object{}
	for _, o := range queried {
		if i, external := p.r.externalOf(o.Key().Kind); external {
			byDomain[i] = append(byDomain[i], o)
		}
	}
	for i, objects := range byDomain {
		d, err := p.external(ctx, i)
		if err == nil {
			err = d.Extend(ctx, p.snapshot, objects)
		}
		if err == nil {
			if a, ok := d.(Adopter); ok {
				p.record.History = append(slices.Clip(p.record.History), a.Adopt(p.snapshot, p.record.History)...)
			}
			continue
		}
		for _, k := range p.r.opts.External[i].Kinds {
			p.snapshot.Withhold(netstate.Key{Kind: k}, fmt.Errorf("%s cannot be observed: %w", p.r.opts.External[i].Name, err))
		}
	}
}

// applyTo makes a change in the domain of its object.
func (p *pass) applyTo(ctx context.Context, c netstate.Change) error {
	i, external := p.r.externalOf(c.Key().Kind)
	if !external {
		return p.domain.Apply(ctx, c)
	}
	d, err := p.external(ctx, i)
	if err != nil {
		return fault.New(fault.NotReady, fmt.Errorf("open %s: %w", p.r.opts.External[i].Name, err))
	}
	return d.Apply(ctx, c)
}

// withheld returns the changes of a history that cannot be undone now, as their domain
// cannot be observed, and why.
func (p *pass) withheld(history []netstate.Change) (left []netstate.Change, why error) {
	if p.snapshot == nil {
		return nil, nil
	}
	for _, c := range history {
		if err := p.snapshot.Withheld(c.Object()); err != nil {
			left, why = append(left, c), err
		}
	}
	if why != nil {
		why = fault.New(fault.NotReady, fmt.Errorf("%w: %s: %w", errWithheld, left[0].Key(), why))
	}
	return left, why
}

// durable returns the changes of a history that a reboot does not undo.
func (r *Reconciler) durable(history []netstate.Change) []netstate.Change {
	var out []netstate.Change
	for _, c := range history {
		if i, external := r.externalOf(c.Key().Kind); external && r.opts.External[i].Durable {
			out = append(out, c)
		}
	}
	return out
}
