package ops

import "github.com/plumbline/plumbline/ops/netstate"

// renames give links of ours that somebody has renamed their names back.
type renames struct {
	p       *Planner
	changes []netstate.Change
}

// recognize finds links that we made and that were renamed. The plan treats them as if they
// had their old names, which its first changes restore.
func (r *renames) recognize() {
	for _, c := range r.p.req.Owned {
		made, ok := c.After.(netstate.Link)
		if !ok || c.Before != nil {
			continue
		}
		l, ok := renamed(r.p.req.Have, made)
		if !ok {
			continue
		}
		r.changes = append(r.changes, netstate.Change{
			Before: netstate.Link{Name: made.Name, Called: &l.Name}, After: netstate.Link{Name: made.Name, Called: &made.Name},
		})
		if _, taken := r.p.req.Have.Link(made.Name); !taken {
			r.needFiltersOn(made.Name, l.Name)
			r.p.req.Have = r.p.req.Have.Clone()
			r.p.req.Have.Rename(l.Name, made.Name)
		}
	}
}

// needFiltersOn has the filters of a renamed link queried. They were queried under the name
// that it had, where nothing is, and the kernel refuses to create what exists.
func (r *renames) needFiltersOn(made, now string) {
	wanted := []netstate.Object{netstate.Clsact{Link: made}}
	for _, c := range r.p.req.Owned {
		if f, ok := c.After.(netstate.Filter); ok && f.Link == made {
			wanted = append(wanted, f)
		}
	}
	filters := r.p.req.Rules.Of(r.p.makers[made]).Filters
	if _, made := r.p.makers[made]; !made { // who makes it is not known yet
		filters, _ = r.p.req.Rules.All()
	}
	if len(wanted) == 1 && len(filters) == 0 {
		return
	}
	for _, f := range filters {
		wanted = append(wanted, f)
	}
	for _, o := range wanted {
		if o = netstate.On(o, netstate.LinkKey(now)); !r.p.req.Have.Known(o) {
			r.p.need(o)
		}
	}
}

// attribute assigns the changes of recognize to the steps that want the links,
// or to none if no step does any more and the link is deleted.
func (r *renames) attribute(have *netstate.Snapshot) error {
	var out []netstate.Change
	for _, c := range r.changes {
		name := c.Key().ID
		c.Step = r.p.wants.maker(name)
		other, taken := have.Link(name)
		switch {
		case !taken:
			out = append(out, c)
		case c.Step != "":
			return r.p.req.stepError(c.Step,
				ConflictWith(name, "the name %q is taken in the sandbox by a %s that is not ours; ours was renamed to %q",
					name, describeKind(other), *c.Before.(netstate.Link).Called))
		}
	}
	r.changes = out
	return nil
}
