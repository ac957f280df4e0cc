package rollout

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
)

// Effect is the effect of an edit on a step.
type Effect string

// The effects. They are part of the command line's interface.
const (
	ChangedLive Effect = "changed live"
	Replaced    Effect = "replaced"
	Added       Effect = "added"
	Removed     Effect = "removed"
)

// Preview lists the changes of a later version of a topology in a sandbox that runs it.
type Preview struct {
	// Sandbox has the later version and what its steps are given.
	Sandbox reconcile.Sandbox
	// Plan is nil when the sandbox keeps what it has, because of HeldBack.
	Plan     *ops.Plan
	HeldBack error
	// Effects are the effects on the steps that are changed.
	Effects map[string]Effect
	// Interrupted are the links over which connections are interrupted.
	Interrupted []string
}

// PreviewOf plans a later version of a topology in a sandbox, which may use these
// devices. The plan is made by plan, which is that of the engine.
func PreviewOf(ctx context.Context, sb reconcile.Sandbox, later *topology.Topology, devices []claims.Device, set contract.Set,
	ported Ported, plan func(context.Context, reconcile.Sandbox) (*ops.Plan, error),
) (Preview, error) {
	was, had := sb.Topology, sb.Given
	sb.Topology, sb.Given = later, sb.Given.ForSteps(later).Networks()
	p := Preview{Sandbox: sb, Effects: map[string]Effect{}, Interrupted: []string{}}
	err := samePorts(ctx, had, was, later, set, ported)
	if err == nil {
		err = Fits(ctx, had, was, later, devices, set)
	}
	if err != nil {
		if _, held := errors.AsType[*HeldBack](err); !held {
			return p, err
		}
		p.HeldBack = err
		return p, nil
	}
	for _, s := range later.Roots() {
		if i := slices.IndexFunc(devices, func(d claims.Device) bool { return d.Step == s.Name }); i >= 0 {
			sb.Given[s.Name] = devices[i].Given().WithNetwork(sb.Given[s.Name])
		}
	}
	if p.Plan, err = plan(ctx, sb); err != nil {
		return p, err
	}
	p.Effects, p.Interrupted = effects(was, later, p.Plan.Changes), interrupted(p.Plan.Changes)
	return p, nil
}

// effects returns the effect on each step that is changed.
func effects(was, is *topology.Topology, changes []netstate.Change) map[string]Effect {
	out := map[string]Effect{}
	deleted := map[netstate.Key]bool{}
	for _, c := range changes {
		if c.Step == "" {
			continue
		}
		_, before := was.Step(c.Step)
		_, after := is.Step(c.Step)
		link, isLink := c.Object().(netstate.Link)
		switch {
		case !before:
			out[c.Step] = Added
		case !after:
			out[c.Step] = Removed
		case isLink && c.Action() == netstate.Replace:
			out[c.Step] = Replaced
		case isLink && c.Implied && c.Action() == netstate.Delete:
			deleted[link.Key()] = true // with the link below it
		case isLink && c.Action() == netstate.Create && deleted[link.Key()]:
			out[c.Step] = Replaced
		case !c.Implied && out[c.Step] == "":
			out[c.Step] = ChangedLive
		}
	}
	return out
}

// interrupted lists the links of the sandbox over which connections are interrupted: they
// are deleted, moved or set down, perhaps for a moment.
func interrupted(changes []netstate.Change) []string {
	names := map[string]bool{}
	made := map[string]bool{}
	for _, c := range changes {
		switch o := c.Object().(type) {
		case netstate.Link:
			before, was := c.Before.(netstate.Link)
			after, is := c.After.(netstate.Link)
			switch {
			case netstate.OnHost(o.Name):
			case !was:
				made[o.Name] = !names[o.Name]
			case !is, c.Action() == netstate.Replace, after.Up != nil && !*after.Up && (before.Up == nil || *before.Up):
				names[o.Name] = names[o.Name] || !made[o.Name]
			}
		case netstate.Device:
			before, was := c.Before.(netstate.Device)
			if was && before.At != nil && o.At != nil && *before.At != *o.At && !netstate.OnHost(*before.At) {
				names[*before.At] = true
			}
		}
	}
	maps.DeleteFunc(names, func(_ string, is bool) bool { return !is })
	return slices.Sorted(maps.Keys(names))
}
