package optest

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
)

// Edited checks the law of an edit in place of a topology, in the world of the case before it: what was and what is wanted is
// afterwards as a new attachment of the edited topology makes it, also after a crash at any change; a second pass
// finds nothing to do; the record is that of a new attachment; a release restores the start; an edit that fails at any change is undone to
// what was there before. Not compared are MACs that nobody chose, and indexes. With another topology, that is attached
// beside, it changes nothing that this one wants for longer than until its next repair. An error is the refusal of a topology.
func Edited(ctx context.Context, t *testing.T, reg *ops.Registry, before, after, beside *Case) error {
	t.Helper()
	e, err := newEdit(ctx, reg, before, after, beside)
	if err != nil {
		return err
	}
	if e.otherPairs() || e.hasGUIDs() {
		return nil // known exceptions
	}
	w := e.start.clone()
	changes, err := e.edit(ctx, w, e.a.history)
	if err != nil {
		return err
	}
	e.check(ctx, t, w, netstate.Coalesce(e.a.history, netstate.Lasting(changes)...), "")
	parts := netstate.Parts(changes)
	for n := range parts {
		if parts[n].Implied {
			continue
		}
		end := RecordedWith(parts, n)
		w := e.start.clone()
		for _, c := range parts[:n] {
			if err := w.settle([]netstate.Change{c}); err != nil {
				t.Fatal(err)
			}
		}
		when := fmt.Sprintf(", interrupted before change %d (%s)", n+1, parts[n])
		again := w.clone()
		again.interrupted, again.kept = true, true
		history := netstate.Coalesce(e.a.history, netstate.Lasting(changes)...)
		more, err := e.edit(ctx, again, history)
		if err != nil {
			t.Errorf("edited%s: %v", when, err)
			continue
		}
		e.check(ctx, t, again, netstate.Coalesce(history, netstate.Lasting(more)...), when)
		e.checkUndone(t, w, parts[:end], when)
	}
	logIfFailed(t, changes)
	return nil
}

// EditedTwice checks the law of an edit for the second of two edits: what the first one has left, and recorded, does not count.
func EditedTwice(ctx context.Context, t *testing.T, reg *ops.Registry, first, second, third *Case) error {
	t.Helper()
	e, err := newEdit(ctx, reg, first, second, nil)
	if err != nil {
		return err
	}
	then, err := newEdit(ctx, reg, second, third, nil)
	if err != nil {
		return err
	}
	if e.otherPairs() || e.hasGUIDs() || then.otherPairs() || then.hasGUIDs() {
		return nil // known exceptions
	}
	changes, err := e.edit(ctx, e.start, e.a.history)
	if err != nil {
		return err
	}
	history, err := e.record(ctx, e.start, netstate.Coalesce(e.a.history, netstate.Lasting(changes)...))
	if err != nil {
		return err
	}
	then.start, then.a.history, then.a.chosen = e.start, history, e.start.chosen
	then.start.interrupted, then.start.kept = false, false
	more, err := then.edit(ctx, then.start, history)
	if err != nil {
		return err
	}
	then.check(ctx, t, then.start, netstate.Coalesce(history, netstate.Lasting(more)...), " again")
	logIfFailed(t, slices.Concat(changes, more))
	return nil
}

func logIfFailed(t *testing.T, changes []netstate.Change) {
	t.Helper()
	if t.Failed() {
		for i, c := range changes {
			t.Logf("%d %s (implied %t, foreign %t)", i+1, c, c.Implied, c.Foreign)
		}
	}
}

// edit is an edit of a topology, and what it is compared with.
type edit struct {
	reg             *ops.Registry
	start, fresh    *World
	a, b            *attachedTopology // before, and newly attached
	besideA, beside *attachedTopology // nil for none
}

func newEdit(ctx context.Context, reg *ops.Registry, before, after, beside *Case) (*edit, error) {
	before, after = before.withVFs(), after.withVFs()
	e := &edit{reg: reg, start: NewWorld(before), fresh: NewWorld(after)}
	e.start.edits, e.fresh.edits = true, true
	for _, of := range []struct {
		w      *World
		c      *Case
		it     **attachedTopology
		beside **attachedTopology
	}{{e.start, before, &e.a, &e.besideA}, {e.fresh, after, &e.b, &e.beside}} {
		var err error
		if *of.it, err = of.w.attach(ctx, reg, of.c, nil); err != nil {
			return nil, err
		}
		(*of.it).history = netstate.WithIndexes(netstate.Compact((*of.it).history, of.w.Snapshot, (*of.it).held...), of.w.Snapshot)
		if beside == nil {
			continue
		}
		if *of.beside, err = of.w.attach(ctx, reg, beside, *of.it); err != nil {
			return nil, err
		}
		(*of.beside).history = netstate.WithIndexes((*of.beside).history, of.w.Snapshot)
	}
	return e, nil
}

// withVFs says what cases leave out of virtual functions.
func (c *Case) withVFs() *Case {
	out := *c
	out.Have = slices.Clone(c.Have)
	for i, o := range c.Have {
		if vf, ok := o.(netstate.VF); ok {
			defaults := netstate.VF{
				ID: vf.ID, Protocol: new("802.1q"), LinkState: new("auto"), MinTxRateMbps: new(uint32(0)), MaxTxRateMbps: new(uint32(0)),
			}
			out.Have[i] = netstate.Merge(netstate.Merge(vf, defaults), vf)
		}
	}
	return &out
}

// hasGUIDs reports whether a virtual function of InfiniBand gets GUIDs: its driver has those that it has read when it was bound, and
// an edit that only removes them does not bind it again.
func (e *edit) hasGUIDs() bool {
	return slices.ContainsFunc(e.a.history, func(c netstate.Change) bool { return c.Key().Kind == netstate.KindBinding })
}

// otherPairs reports whether ends of a pair have other ends than before: without names in the topology the ends in the pod are named by
// their order, and change places if a step before them is removed.
func (e *edit) otherPairs() bool {
	return slices.ContainsFunc(e.a.history, func(a netstate.Change) bool {
		return slices.ContainsFunc(e.b.history, func(b netstate.Change) bool {
			if a.After == nil || b.After == nil {
				return false
			}
			was, is := netstate.Value(a.After, "veth.peer"), netstate.Value(b.After, "veth.peer")
			return was != nil && is != nil && (was == is) != (a.Key() == b.Key())
		})
	})
}

// edit applies the edited topology.
func (e *edit) edit(ctx context.Context, w *World, history []netstate.Change) ([]netstate.Change, error) {
	w.chosen, w.others = e.a.chosen, e.besideA.others()
	changes, _, err := converge(ctx, e.reg, e.b.Case, w, history)
	return changes, err
}

// check compares a world after the edit with that of a new attachment.
func (e *edit) check(ctx context.Context, t *testing.T, w *World, history []netstate.Change, when string) {
	t.Helper()
	w = w.clone()
	history, err := e.record(ctx, w, history)
	if err != nil {
		t.Errorf("edited%s: %v", when, err)
		return
	}
	chosen := w.chosen
	w.kept, w.interrupted = true, false
	if p, err := plan(ctx, e.reg, e.b.Case, w, history); err != nil || !p.Empty() {
		t.Errorf("edited%s, a second pass still changes: %v\n%s", when, err, p)
	}
	// What plumbline has chosen is kept, where a new attachment may choose something else.
	if diff := differences(e.fresh, w, e.a.history, e.b.history); len(diff) > 0 && maps.Equal(chosen, e.b.chosen) && e.sameTables(w) {
		t.Errorf("edited%s: not as newly attached (there / here):\n%s", when, strings.Join(diff, "\n"))
	}
	for _, c := range history {
		i := slices.IndexFunc(e.b.history, func(o netstate.Change) bool { return o.Key() == c.Key() })
		l, isLink := c.After.(netstate.Link)
		if isLink && netstate.OnHost(l.Name) && l.KindTraits().Shared {
			continue
		}
		if c.After == nil || i < 0 || e.b.history[i].After == nil || c.Before != nil {
			continue
		}
		for _, f := range netstate.Fields(c.After) {
			ofPort := f.Path == "mtu" && slices.Contains(w.bonded(), l.Name) // the port has it again when it leaves the bond
			if netstate.Value(e.b.history[i].After, f.Path) == nil && f.Path != "mac" && f.Path != "up" && f.Path != "master" && !ofPort {
				t.Errorf("edited%s: the record still has %s %s = %s", when, c.Key(), f.Path, netstate.FormatValue(f.Value))
			}
		}
	}
	if e.besideA == nil {
		checkUndo(t, e.a.Case, w, history, "edited"+when)
		return
	}
	w.chosen, w.others, w.kept = e.besideA.chosen, nil, true
	if _, _, err := converge(ctx, e.reg, e.besideA.Case, w, e.besideA.history); err != nil {
		t.Errorf("edited%s: repair of the topology beside: %v", when, err)
	}
	diff := differences(e.fresh, w, e.besideA.history, e.beside.history)
	if len(diff) > 0 && maps.Equal(e.besideA.chosen, e.beside.chosen) && e.sameTables(w) {
		t.Errorf("edited%s, the topology beside is not as newly attached (there / here):\n%s", when, strings.Join(diff, "\n"))
	}
}

// record is the record of a world after the edit.
func (e *edit) record(ctx context.Context, w *World, history []netstate.Change) ([]netstate.Change, error) {
	last, err := plan(ctx, e.reg, e.b.Case, w, history)
	if err != nil {
		return nil, err
	}
	history = netstate.Coalesce(history, slices.Concat(last.Shared, last.Held)...)
	return netstate.WithIndexes(last.Record(netstate.Compact(history, w.Snapshot, last.Held...)), w.Snapshot), nil
}

// sameTables reports whether VRFs have the tables that a new attachment gives them. One that the topology beside keeps has that of the
// step that has made it, which may be gone.
func (e *edit) sameTables(w *World) bool {
	return len(w.LinksWhere(func(l netstate.Link) bool {
		fresh, there := e.fresh.Link(l.Name)
		return there && l.VRF != nil && fresh.VRF != nil && netstate.Value(l, "vrf.table") != netstate.Value(fresh, "vrf.table")
	})) == 0
}

// checkUndone undoes an edit that has failed, and wants what was there before it.
func (e *edit) checkUndone(t *testing.T, w *World, changes []netstate.Change, when string) {
	t.Helper()
	w = w.clone()
	w.Snapshot = netstate.NewSnapshot(netstate.All[netstate.Object](w.Snapshot)...)
	if err := undo(w, netstate.Coalesce(nil, changes...), e.a.history...); err != nil {
		t.Errorf("edited%s, and undone: %v", when, err)
	} else if diff := differences(e.start, w, e.a.history); len(diff) > 0 {
		t.Errorf("edited%s, and undone (before / after):\n%s", when, strings.Join(diff, "\n"))
	}
}

// differences compares what histories have changed, in two worlds.
func differences(a, b *World, histories ...[]netstate.Change) (out []string) {
	a, b = a.clone(), b.clone()
	fields := map[netstate.Key]map[string]bool{}
	for _, c := range slices.Concat(histories...) {
		l, isLink := c.After.(netstate.Link)
		if c.After == nil || c.Foreign || isLink && netstate.OnHost(l.Name) && l.KindTraits().Shared {
			continue // a bridge of the host is that of all pods of the node: an edit of one changes nothing of it
		}
		if fields[c.Key()] == nil {
			fields[c.Key()] = map[string]bool{}
			for _, w := range []*World{a, b} {
				if !w.Known(c.Object()) {
					w.observe([]netstate.Object{c.Object()})
				}
			}
		}
		for _, f := range netstate.Fields(c.After) {
			fields[c.Key()][f.Path] = true
		}
		if isLink && c.Before == nil {
			fields[c.Key()]["mtu"] = true // which nobody may have set
		}
	}
	for k, paths := range fields {
		there, isThere := a.Get(k)
		here, isHere := b.Get(k)
		if isThere != isHere {
			out = append(out, fmt.Sprintf("%s: %t / %t", k, isThere, isHere))
			continue
		}
		for path := range paths {
			if !isThere {
				break
			}
			x, y := valueOf(there, path), valueOf(here, path)
			port := netstate.Value(there, "master")
			drawn := path == "mac" && (x == drawnMAC || y == drawnMAC || x == nil || y == nil || port != nil && port != "")
			own := path == "mtu" && (x == nil || y == nil) // of a link that has left a bond: as before, which the model leaves open
			if !drawn && !own && !equalOrUnset(x, y) {
				out = append(out, fmt.Sprintf("%s %s: %s / %s", k, path, netstate.FormatValue(x), netstate.FormatValue(y)))
			}
		}
	}
	slices.Sort(out)
	return out
}

// valueOf is a field, that of birth if the model leaves it open.
func valueOf(o netstate.Object, path string) any {
	if v := netstate.Value(o, path); v != nil {
		return v
	}
	born, known := netstate.AtBirth(o, path)
	if !known {
		return nil
	}
	return netstate.Value(born, path)
}

// equalOrUnset reports whether two values are equal. The model leaves options of a new link unset, which the kernel has as zero.
func equalOrUnset(a, b any) bool {
	isZero := func(v any) bool {
		return v == nil || reflect.ValueOf(v).IsZero() || reflect.ValueOf(v).Kind() == reflect.Slice && reflect.ValueOf(v).Len() == 0
	}
	return isZero(a) && isZero(b) || netstate.FormatValue(a) == netstate.FormatValue(b)
}

// RecordedWith returns the index behind the changes that are on record together with a change: what goes along with it follows.
func RecordedWith(changes []netstate.Change, n int) int {
	end := n + 1
	for end < len(changes) && changes[end].Implied {
		end++
	}
	return end
}
