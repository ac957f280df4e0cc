package netstate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Action is the verb of a change.
type Action string

// The actions, as plans and JSON name them.
const (
	Create  Action = "create"
	Update  Action = "update"
	Delete  Action = "delete"
	Replace Action = "replace" // of an object that cannot be changed in place: delete and create it
)

// Change takes one object from one state to another. Before is nil for a
// creation, After for a deletion. In an update both hold the same key and only
// the fields that differ; in a replacement both are whole.
type Change struct {
	Step     string // the step that wants it; "" for what no step wants any more
	Before   Object
	After    Object
	Recreate bool   // Before is deleted and After created, see Parts
	Implied  bool   // the kernel does it by itself, nothing is sent
	Foreign  bool   // the object is not ours: it was lost with a change of ours, or recreated for its owner
	Why      string // shown when the reason is not obvious
}

// Action returns the verb.
func (c Change) Action() Action {
	switch {
	case c.Before == nil:
		return Create
	case c.After == nil:
		return Delete
	case c.Recreate:
		return Replace
	default:
		return Update
	}
}

// Parts are the deletion and the creation that a replacement consists of; any other
// change is its only part. Histories and records hold parts: they happen to the
// object, a crash can come between them, and every version can read them.
func (c Change) Parts() []Change {
	if c.Action() != Replace {
		return []Change{c}
	}
	gone, made := c, c
	gone.After, gone.Recreate = nil, false
	made.Before, made.Recreate, made.Why = nil, false, ""
	return []Change{gone, made}
}

// Parts lists the parts of changes, in order.
func Parts(changes []Change) []Change {
	out := make([]Change, 0, len(changes))
	for _, c := range changes {
		out = append(out, c.Parts()...)
	}
	return out
}

// Reasons returns the fields that an update or a replacement is made for. Of a
// replaced object those are the ones that cannot be changed, but not what it did not
// have, such as the VLAN ID of a link that was none.
func (c Change) Reasons() []FieldDiff {
	if c.Action() != Replace {
		return c.Fields()
	}
	immutable := slices.DeleteFunc(c.Fields(), func(f FieldDiff) bool { return f.Mode != Immutable })
	had := slices.DeleteFunc(slices.Clone(immutable), func(f FieldDiff) bool { return f.Before == nil })
	if len(had) == 0 {
		return immutable
	}
	return had
}

// Object returns After, or Before where there is no after.
func (c Change) Object() Object {
	if c.After != nil {
		return c.After
	}
	return c.Before
}

// Key returns the key of the object changed.
func (c Change) Key() Key { return c.Object().Key() }

// Fields returns what differs between Before and After.
func (c Change) Fields() []FieldDiff {
	switch c.Action() {
	case Create:
		return Diff(c.After, nil)
	case Delete:
		var out []FieldDiff
		for _, f := range Fields(c.Before) {
			out = append(out, FieldDiff{f.Path, f.Mode, f.Value, nil})
		}
		return out
	default:
		return Diff(c.After, c.Before)
	}
}

// String writes the change on one line: "+ link data0 kind vlan, vlan.id 100",
// "~ link data0 mtu 1500 → 9000", "- address 10.0.0.1/24 on net1".
func (c Change) String() string {
	var b strings.Builder
	b.WriteString(map[Action]string{Create: "+ ", Update: "~ ", Delete: "- ", Replace: "∓ "}[c.Action()])
	b.WriteString(c.Key().String())
	if label := Label(c.Object()); label != "" {
		b.WriteString(" of " + label)
	}
	if c.Action() != Delete {
		between := " "
		for _, f := range c.Fields() {
			if c.Action() == Create && slices.Contains(c.After.Traits().unsaid, f.Path) && isNothing(reflect.ValueOf(f.After)) {
				continue
			}
			b.WriteString(between)
			between = ", "
			if c.Action() == Create || c.Action() == Replace && f.Before == nil {
				fmt.Fprintf(&b, "%s %s", f.Path, FormatValue(f.After))
			} else {
				fmt.Fprintf(&b, "%s %s → %s", f.Path, FormatValue(f.Before), FormatValue(f.After))
			}
		}
	}
	if c.Why != "" {
		fmt.Fprintf(&b, " (%s)", c.Why)
	}
	return b.String()
}

// changeJSON is the wire form of a change, used by the journal. The object's
// type is named so that it can be read back.
type changeJSON struct {
	Step     string          `json:"step,omitempty"`
	Type     Kind            `json:"type"`
	Before   json.RawMessage `json:"before,omitempty"`
	After    json.RawMessage `json:"after,omitempty"`
	Recreate bool            `json:"recreate,omitempty"`
	Implied  bool            `json:"implied,omitempty"`
	Foreign  bool            `json:"foreign,omitempty"`
	Why      string          `json:"why,omitempty"`
}

// Line is a Change as it is written. It is faster to write than the change, because an encoder reads again what a MarshalJSON returns.
type Line struct { // a changeJSON whose objects are written in the same go
	Step     string `json:"step,omitempty"`
	Type     Kind   `json:"type"`
	Before   Object `json:"before,omitempty"`
	After    Object `json:"after,omitempty"`
	Recreate bool   `json:"recreate,omitempty"`
	Implied  bool   `json:"implied,omitempty"`
	Foreign  bool   `json:"foreign,omitempty"`
	Why      string `json:"why,omitempty"`
}

// Lines are changes as they are written, nil for none.
func Lines(changes []Change) []Line {
	var out []Line
	for _, c := range changes {
		out = append(out, Line{c.Step, c.Key().Kind, c.Before, c.After, c.Recreate, c.Implied, c.Foreign, c.Why})
	}
	return out
}

// MarshalJSON writes the change with the kind of its object.
func (c Change) MarshalJSON() ([]byte, error) { return json.Marshal(Lines([]Change{c})[0]) }

// UnmarshalJSON reads what MarshalJSON writes. It refuses an unknown kind and
// a change of nothing, and never panics on foreign input.
func (c *Change) UnmarshalJSON(data []byte) error {
	if c.unmarshalTyped(data) {
		return nil
	}
	var j changeJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return fmt.Errorf("change: %w", err)
	}
	read := func(raw json.RawMessage) (Object, error) {
		if len(raw) == 0 || string(raw) == "null" {
			return nil, nil
		}
		o, err := ReadObject(j.Type, raw)
		if err != nil {
			return nil, fmt.Errorf("change: %w", err)
		}
		return o, nil
	}
	out := Change{Step: j.Step, Recreate: j.Recreate, Implied: j.Implied, Foreign: j.Foreign, Why: j.Why}
	var err error
	if out.Before, err = read(j.Before); err != nil {
		return err
	}
	if out.After, err = read(j.After); err != nil {
		return err
	}
	if out.Before == nil && out.After == nil {
		return fmt.Errorf("change: neither before nor after")
	}
	if out.Before != nil && out.After != nil && out.Before.Key() != out.After.Key() {
		return fmt.Errorf("change: before is %s, after is %s", out.Before.Key(), out.After.Key())
	}
	*c = out
	return nil
}

// unmarshalTyped reads a change whose kind is where MarshalJSON writes it, in one pass. It returns
// false for anything unusual or malformed, which the slow path of UnmarshalJSON reads or reports.
func (c *Change) unmarshalTyped(data []byte) bool {
	_, rest, _ := bytes.Cut(data, []byte(`"type":"`))
	kind, _, _ := bytes.Cut(rest, []byte(`"`))
	r, ok := kinds[Kind(kind)]
	return ok && r.change(c, data)
}

func readTyped[T Object](c *Change, data []byte) bool {
	var j struct {
		Step     string `json:"step"`
		Type     Kind   `json:"type"`
		Before   *T     `json:"before"`
		After    *T     `json:"after"`
		Recreate bool   `json:"recreate"`
		Implied  bool   `json:"implied"`
		Foreign  bool   `json:"foreign"`
		Why      string `json:"why"`
	}
	if err := json.Unmarshal(data, &j); err != nil || j.Before == nil && j.After == nil {
		return false
	}
	out := Change{Step: j.Step, Recreate: j.Recreate, Implied: j.Implied, Foreign: j.Foreign, Why: j.Why}
	if j.Before != nil {
		out.Before = *j.Before
	}
	if j.After != nil {
		out.After = *j.After
	}
	if out.Before != nil && out.After != nil && out.Before.Key() != out.After.Key() {
		return false
	}
	*c = out
	return true
}

// NewUpdate returns the change that takes have to want, or false if there is no difference. Both sides keep only the
// fields that differ.
func NewUpdate[T Object](step string, have, want T) (Change, bool) {
	diff := Diff(want, have)
	if len(diff) == 0 {
		return Change{}, false
	}
	keep := func(path string) bool {
		return slices.ContainsFunc(diff, func(d FieldDiff) bool { return d.Path == path })
	}
	return Change{Step: step, Before: Restrict(have, keep), After: Restrict(want, keep)}, true
}

// Coalesce folds later changes into a history that keeps, per object, the
// state before the first change and the one after the last. A release
// undoes it; order is that of the first change of each object.
//
// An object that we made stays ours when it is to be deleted: changes are recorded before they
// are made, and after a crash in between only this entry lets us remove the object.
// DropDeleted drops what is known to be deleted.
func Coalesce(history []Change, more ...Change) []Change {
	at := map[Key]int{}
	out := make([]Change, 0, len(history)+len(more))
	for _, c := range Parts(append(append([]Change(nil), history...), more...)) {
		i, seen := at[c.Key()]
		if !seen {
			at[c.Key()] = len(out)
			out = append(out, c)
			continue
		}
		out[i] = fold(out[i], c)
	}
	return out
}

// Lasting leaves out what links become by themselves with a change of another link,
// such as the MTU of a parent. It matters to the rollback of the pass that makes the
// change; a release that took it for the state before us would restore what we had made
// ourselves. So does the end of a pair that ends with the other one, which is the end that has
// to be created again.
func Lasting(changes []Change) []Change {
	return slices.DeleteFunc(Parts(changes), func(c Change) bool {
		l, _ := c.Before.(Link)
		return c.Implied && c.Key().Kind == KindLink && (c.Action() == Update || c.After == nil && l.Veth != nil)
	})
}

// DropDeleted drops from a history what we made and is gone, and what of others ended with it.
func DropDeleted(history []Change, gone func(Change) bool) []Change {
	ended := map[Key]bool{}
	for _, c := range history {
		ended[c.Key()] = c.Before == nil && gone(c)
	}
	return slices.DeleteFunc(slices.Clone(history), func(c Change) bool {
		return ended[c.Key()] || c.After == nil && ended[c.Before.LivesOn()]
	})
}

// Compact drops from a history what was restored, except for what is held: settings
// that are wanted with their earlier values. It is for a pass that is over: during a
// pass, the history also holds what is deleted for a moment and must not be lost in a
// crash.
//
// A history holds what was intended. If a pass was interrupted or could not undo
// everything, the object may still be as we had made it, such as a device in the
// sandbox that was to return to the host; then the history is corrected by what is
// observed.
func Compact(history []Change, now *Snapshot, held ...Change) []Change {
	var out []Change
	for _, c := range history {
		have, there := now.Get(c.Key())
		if there && c.Action() == Update && mistaken(c, have) {
			c.After = mergeAny(c.After, Restrict(have, func(path string) bool { return Value(c.Before, path) != nil }))
		}
		if !c.Restored() || slices.ContainsFunc(held, func(h Change) bool { return h.Key() == c.Key() }) {
			out = append(out, c)
		}
	}
	return out
}

// WithIndexes adds to a history the indexes of the links we created and of the devices
// we moved: by index they are found after a rename.
func WithIndexes(history []Change, seen *Snapshot) []Change {
	for i, c := range history {
		if moved, ok := c.After.(Device); ok && moved.At != nil {
			if d, ok := seen.Device(moved.ID); ok && d.At != nil && *d.At == *moved.At {
				moved.Index = d.Index
				history[i].After = moved
			}
			continue
		}
		made, ok := c.After.(Link)
		if !ok || c.Before != nil {
			continue
		}
		if l, ok := seen.Link(made.Name); ok && l.LinkKind == made.LinkKind {
			made.Index, made.Outdated = l.Index, false
			history[i].After = made
		}
	}
	return history
}

// mistaken reports whether an update may have intended what has not come about: a
// device that is to be on the host is in the sandbox, or something else is to be
// as it was.
func mistaken(c Change, have Object) bool {
	switch have := have.(type) {
	case Device:
		onHost := c.After.(Device).At
		return onHost != nil && OnHost(*onHost) && have.At != nil && !OnHost(*have.At)
	default:
		return c.Restored()
	}
}

// Restored reports whether the change leaves the object as it was.
func (c Change) Restored() bool {
	return c.Action() == Update && len(Diff(c.Before, c.After)) == 0 && len(Diff(c.After, c.Before)) == 0
}

func fold(first, then Change) Change {
	first.Step = cmp.Or(then.Step, first.Step)
	switch {
	case first.Before == nil: // created by us
		if then.After == nil {
			return first
		}
		if then.Before == nil {
			first.After = then.After
			return first
		}
		first.After = mergeAny(first.After, then.After)
		return first
	case first.After == nil: // deleted by us
		if then.After == nil {
			return first
		}
		first.After = then.After
		return first
	default: // updated by us: originals are write-once
		if then.Before != nil {
			// Fields that were only observed stay the first's, too: they identify a device.
			first.Before = mergeAny(mergeAny(first.Before, then.Before), first.Before)
		}
		if then.After == nil {
			first.After = nil
			return first
		}
		first.After = mergeAny(first.After, then.After)
		return first
	}
}

// mergeAny is Merge for two objects of one unknown type.
func mergeAny(base, over Object) Object {
	dst, src := clone(base), reflect.ValueOf(over)
	if dst.Type() != src.Type() {
		return over
	}
	for _, p := range planOf(src.Type()) {
		if isSet(p.at(src)) {
			p.copyTo(dst, src)
		}
	}
	return dst.Interface().(Object)
}

// isNothing reports whether a value is zero, or a list without elements.
func isNothing(v reflect.Value) bool { return v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 }
