package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/rollout"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
)

// The words for what becomes of a step.
const (
	changedLive = "changed live"
	replaced    = "replaced"
	added       = "added"
	removed     = "removed"
)

// runningDocument is what plan prints of a sandbox that runs the topology.
type runningDocument struct {
	plannedDocument
	Netns string `json:"netns"`
	// Steps maps the steps that are changed to how.
	Effects map[string]string `json:"effects"`
	// Interrupted lists the links whose connections are interrupted.
	Interrupted []string `json:"interrupted"`
	// HeldBack is why the sandbox keeps what it has.
	HeldBack string `json:"heldBack,omitempty"`
}

// planRunning shows what a topology would change where it runs.
func (a *app) planRunning(ctx context.Context, t *target) error {
	topo, err := a.load(ctx, t.file)
	if err != nil {
		return err
	}
	e, err := a.engine("plan", false, nil)
	if err != nil {
		return err
	}
	defer e.close()
	records, errs := e.List()
	for _, err := range errs {
		complain(a.err, err)
	}
	documents := []runningDocument{}
	differs := false
	for _, rec := range records {
		if rec.Sandbox.Topology == nil || rec.Sandbox.Topology.Name != topo.Name || rec.Phase == reconcile.Releasing || !node.Alive(rec, e.host.BootID()) {
			continue
		}
		d, plan, err := a.edit(ctx, e, rec, topo)
		if err != nil {
			return err
		}
		differs = differs || plan != nil && !plan.Empty()
		documents = append(documents, d)
		if t.format == formatText {
			if len(documents) > 1 {
				a.text().line("")
			}
			a.text().running(rec.Sandbox, topo, d, plan)
		}
	}
	switch {
	case t.format == formatJSON:
		err = writeJSON(a.out, documents)
	case len(documents) == 0:
		a.text().line("No sandbox runs topology %q.", topo.Name)
	}
	if err == nil && differs {
		err = status(exitDiffers)
	}
	return err
}

// edit plans a later version of a topology in a sandbox that runs it. The plan is
// nil when the sandbox keeps what it has.
func (a *app) edit(ctx context.Context, e *engine, rec reconcile.Record, topo *topology.Topology) (runningDocument, *ops.Plan, error) {
	sb := rec.Sandbox
	sb.Topology, sb.Given = topo, ops.Givens{}
	d := runningDocument{plannedDocument: planDocument(sb, &ops.Plan{}), Netns: sb.Netns, Effects: map[string]string{}, Interrupted: []string{}}
	devices, err := a.devicesOf(e, rec)
	if err != nil {
		return d, nil, err
	}
	if err := rollout.Fits(ctx, topo, devices, a.registry); err != nil {
		if _, held := errors.AsType[*rollout.HeldBack](err); !held {
			return d, nil, err
		}
		d.HeldBack = err.Error()
		return d, nil, nil
	}
	for _, s := range topo.Roots() {
		if i := slices.IndexFunc(devices, func(d claims.Device) bool { return d.Step == s.Name }); i >= 0 {
			sb.Given[s.Name] = devices[i].Given()
		}
	}
	plan, err := e.Plan(ctx, sb)
	if err != nil {
		return d, nil, err
	}
	d.plannedDocument = planDocument(sb, plan)
	d.Effects, d.Interrupted = effects(rec.Sandbox.Topology, topo, plan.Changes), interrupted(plan.Changes)
	return d, plan, nil
}

// devicesOf returns the devices a sandbox may use: those of its claim, else those
// it was given on the command line or by a file.
func (a *app) devicesOf(e *engine, rec reconcile.Record) ([]claims.Device, error) {
	origin := rec.Sandbox.ID.Origin()
	dir := filepath.Join(a.stateDir, "claims")
	if _, err := os.Stat(dir); err == nil && origin.ClaimUID != "" {
		store, err := claims.Open(claims.Options{Dir: dir, Locker: e.journal, BootID: e.host.BootID(), Now: time.Now})
		if err != nil {
			return nil, err
		}
		entry, known, err := store.Get(types.UID(origin.ClaimUID))
		if err != nil {
			return nil, err
		}
		if t := entry.Topology(origin.Topology); known && t != nil {
			return t.Devices, nil
		}
	}
	found, err := discoverOn(context.Background(), e.host)
	given := rec.Sandbox.Given.Devices()
	var out []claims.Device
	for _, step := range slices.Sorted(maps.Keys(given)) {
		id := given[step]
		d := claims.Device{Device: claim.Device{Step: step}}
		for _, host := range found {
			if host.ID == id {
				d.Name, d.Host = host.Name, host
			}
		}
		if d.Host.ID == "" {
			return nil, errors.Join(errors.New("device "+id+" is not to be found"), err)
		}
		out = append(out, d)
	}
	return out, nil
}

// effects says what becomes of each step of which something is changed.
func effects(was, is *topology.Topology, changes []netstate.Change) map[string]string {
	out := map[string]string{}
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
			out[c.Step] = added
		case !after:
			out[c.Step] = removed
		case isLink && c.Action() == netstate.Replace:
			out[c.Step] = replaced
		case isLink && c.Implied && c.Action() == netstate.Delete:
			deleted[link.Key()] = true // with the link below it
		case isLink && c.Action() == netstate.Create && deleted[link.Key()]:
			out[c.Step] = replaced
		case !c.Implied && out[c.Step] == "":
			out[c.Step] = changedLive
		}
	}
	return out
}

// interrupted lists the links of the sandbox over which connections do not go on:
// they are deleted, moved or put down, perhaps for a moment.
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

// running writes what an edit would change in a sandbox.
func (t text) running(sb reconcile.Sandbox, topo *topology.Topology, d runningDocument, p *ops.Plan) {
	if p == nil {
		t.header(sb)
		t.line("")
		t.line("It keeps what it has until its pod is made anew: %s", d.HeldBack)
		return
	}
	sb.Topology, sb.Given = topo, d.given
	t.plan(sb, p)
	for _, effect := range []string{changedLive, replaced, added, removed} {
		var steps []string
		for _, s := range slices.Sorted(maps.Keys(d.Effects)) {
			if d.Effects[s] == effect {
				steps = append(steps, s)
			}
		}
		if len(steps) > 0 {
			t.line("  %s: %s", effect, strings.Join(steps, ", "))
		}
	}
	if len(d.Interrupted) > 0 {
		t.line("  connections are interrupted over %s", strings.Join(d.Interrupted, ", "))
	} else if len(d.Effects) > 0 {
		t.line("  no connection is interrupted")
	}
}
