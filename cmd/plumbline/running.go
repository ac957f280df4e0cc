package main

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/rollout"
	"github.com/plumbline/plumbline/topology"
)

// runningDocument is the output of plan for a sandbox that runs the topology.
type runningDocument struct {
	plannedDocument
	Netns string `json:"netns"`
	// Effects maps each changed step to the kind of change.
	Effects map[string]rollout.Effect `json:"effects"`
	// Interrupted lists the links whose connections are interrupted.
	Interrupted []string `json:"interrupted"`
	// HeldBack is the reason why the sandbox is not changed.
	HeldBack string `json:"heldBack,omitempty"`
}

// planRunning shows what a topology would change in the sandboxes that run it.
func (a *app) planRunning(ctx context.Context, t *target) error {
	from, err := a.sources(ctx, t.files)
	if err != nil {
		return err
	}
	topo, invalid := a.decode(ctx, from.topology, nil)
	decoded, err := from.topology.Topology()
	if err != nil {
		return cmp.Or(invalid, err)
	}
	e, err := a.engine("plan", false, nil)
	if err != nil {
		return err
	}
	defer e.Close()
	records, errs := e.List()
	for _, err := range errs {
		complain(a.err, err)
	}
	documents := []runningDocument{}
	differs := false
	for _, rec := range records {
		if rec.Sandbox.Topology == nil || rec.Sandbox.Topology.Name != decoded.Name || rec.Phase == reconcile.Releasing ||
			!node.Alive(rec, e.Host.BootID()) {
			continue
		}
		if given := rec.Sandbox.Given.ForSteps(decoded); given.Addressed() || given.Plugged() {
			if topo, err = a.decode(ctx, from.topology, given); err != nil {
				return err
			}
		} else if invalid != nil {
			return invalid
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
	case invalid != nil && len(documents) == 0:
		return invalid
	case t.format != formatText:
		err = a.document(t.format, documents)
	case len(documents) == 0:
		a.text().line("No sandbox runs topology %q.", decoded.Name)
	}
	if err == nil && differs {
		err = status(exitDiffers)
	}
	return err
}

// edit plans a later version of a topology in a sandbox that runs it. The plan is nil if
// the sandbox is not changed.
func (a *app) edit(ctx context.Context, e *engine, rec reconcile.Record, topo *topology.Topology) (runningDocument, *ops.Plan, error) {
	devices, err := a.devicesOf(e, rec)
	if err != nil {
		return runningDocument{}, nil, err
	}
	var ported rollout.Ported
	if e.OVN != nil && rec.Sandbox.ID.Origin().ClaimUID != "" {
		ported = e.OVN.Switch.OVNKubernetes
	}
	p, err := rollout.PreviewOf(ctx, rec.Sandbox, topo, devices, a.registry, ported, e.Plan)
	if err != nil {
		return runningDocument{}, nil, err
	}
	d := runningDocument{
		plannedDocument: planDocument(p.Sandbox, cmp.Or(p.Plan, &ops.Plan{}), nil, nil), Netns: p.Sandbox.Netns, Effects: p.Effects,
		Interrupted: p.Interrupted,
	}
	if p.HeldBack != nil {
		d.HeldBack = p.HeldBack.Error()
	}
	return d, p.Plan, nil
}

// devicesOf returns the devices a sandbox may use: those of its claim, else those
// it was given on the command line or by a file.
func (a *app) devicesOf(e *engine, rec reconcile.Record) ([]claims.Device, error) {
	origin := rec.Sandbox.ID.Origin()
	dir := filepath.Join(a.stateDir, "claims")
	if _, err := os.Stat(dir); err == nil && origin.ClaimUID != "" {
		store, err := claims.Open(claims.Options{Dir: dir, Locker: e.Journal, BootID: e.Host.BootID()})
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
	found, err := hostengine.Devices(context.Background(), e.Host, nil)
	devices, missing := claims.DevicesOf(rec.Sandbox.Given.Devices(), found)
	if missing != nil {
		return nil, errors.Join(missing, err)
	}
	return devices, nil
}

// running writes what an edit would change in a sandbox.
func (t text) running(sb reconcile.Sandbox, topo *topology.Topology, d runningDocument, p *ops.Plan) {
	if p == nil {
		t.header(sb)
		t.line("")
		t.line("It keeps what it has until its pod is recreated: %s", d.HeldBack)
		return
	}
	sb.Topology, sb.Given = topo, d.given
	t.plan(sb, p, nil, nil)
	for _, effect := range []rollout.Effect{rollout.ChangedLive, rollout.Replaced, rollout.Added, rollout.Removed} {
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
