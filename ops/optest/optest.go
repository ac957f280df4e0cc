// Package optest runs the laws of planning over the cases of any step type.
//
// A case is a txtar file:
//
//	have.yaml      what the sandbox and the host hold, as a list of objects
//	topology.yaml  the NetworkTopology to plan
//	appears.yaml   what a link brings along when it is made, such as ethtool
//	               features; optional
//	given.yaml     what is given to steps, such as a root step's device; optional
//	filters.yaml, logicalrules.yaml, refused.yaml
//	               the fields Filters, LogicalRules and Refused of the request; optional
//	plan.txt       the plan wanted, one change a line (go test -update rewrites it)
//	error.txt      the error wanted, instead of plan.txt
//
// The laws, for every case with a plan: planning what a plan leads to finds
// nothing to do; undoing it leads back to the start; so does undoing after any
// prefix of it, as a crash would leave it; and planning again after any prefix
// converges.
package optest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/topology"
)

var update = flag.Bool("update", false, "rewrite the plans and errors in testdata")

// Case is one case read from a file.
type Case struct {
	Name     string
	Topology *topology.Topology
	Given    ops.Givens
	Filters  []netstate.Filter
	Rules    []netstate.LogicalRule
	// Refused is the field of ops.Request.
	Refused map[string]string
	Have    []netstate.Object
	Appears []netstate.Object
	// Sandbox is the name of the network namespace, "pod" if empty.
	Sandbox string
	archive *txtar.Archive
}

// Run checks every case in a folder with the given step types. One of them at
// least must have a plan, and one an error.
func Run(t *testing.T, reg *ops.Registry, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases in %s: %v", dir, err)
	}
	kinds := map[string]bool{}
	defer func() {
		if !kinds["plan.txt"] || !kinds["error.txt"] {
			t.Errorf("%s needs a case with a plan and a case with an error", dir)
		}
	}()
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) { kinds[runFile(t, reg, file)] = true })
	}
}

// runFile returns what the case has, plan.txt or error.txt.
func runFile(t *testing.T, reg *ops.Registry, file string) string {
	c, err := Read(file)
	var got string
	var planned []netstate.Change
	if err == nil {
		err = topology.Validate(t.Context(), c.Topology, ops.Giving(reg, c.Given))
	}
	if err == nil {
		planned, got, err = converge(t.Context(), reg, c, NewWorld(c), nil)
	}
	if err != nil {
		if _, isLaw := errors.AsType[*brokenLaw](err); isLaw { // never what a case expects, so not written down either
			t.Fatal(err)
		}
		golden(t, c, file, "error.txt", err.Error()+"\n")
		return "error.txt"
	}
	golden(t, c, file, "plan.txt", got)
	Laws(t.Context(), t, reg, c, planned)
	Order(t, c, planned)
	Addressed(t, planned)
	Disobey(t.Context(), t, reg, c)
	return "plan.txt"
}

// brokenLaw is a plan that does not do what plans must.
type brokenLaw struct{ text string }

func (b *brokenLaw) Error() string { return b.text }

func broken(format string, args ...any) error { return &brokenLaw{fmt.Sprintf(format, args...)} }

func golden(t *testing.T, c *Case, file, name, got string) {
	t.Helper()
	if c == nil {
		t.Fatal(got)
	}
	for i, f := range c.archive.Files {
		if f.Name != name {
			continue
		}
		if *update {
			c.archive.Files[i].Data = []byte(got)
			write(t, file, c.archive)
		} else if diff := gocmp.Diff(string(f.Data), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		return
	}
	if !*update {
		t.Fatalf("the case has no %s, but got:\n%s", name, got)
	}
	var files []txtar.File
	for _, f := range c.archive.Files {
		if f.Name != "plan.txt" && f.Name != "error.txt" {
			files = append(files, f)
		}
	}
	c.archive.Files = append(files, txtar.File{Name: name, Data: []byte(got)})
	write(t, file, c.archive)
}

func write(t *testing.T, file string, a *txtar.Archive) {
	t.Helper()
	if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Read reads a case. The case comes back also with an error, where the error is
// about its topology.
func Read(file string) (*Case, error) {
	a, err := txtar.ParseFile(file)
	if err != nil {
		return nil, err
	}
	c := &Case{Name: strings.TrimSuffix(filepath.Base(file), ".txtar"), archive: a}
	for _, f := range a.Files {
		switch f.Name {
		case "have.yaml":
			if c.Have, err = readObjects(f.Data); err != nil {
				return nil, fmt.Errorf("%s: have.yaml: %w", file, err)
			}
		case "appears.yaml":
			if c.Appears, err = readObjects(f.Data); err != nil {
				return nil, fmt.Errorf("%s: appears.yaml: %w", file, err)
			}
		case "given.yaml":
			if err := yaml.UnmarshalStrict(f.Data, &c.Given); err != nil {
				return nil, fmt.Errorf("%s: given.yaml: %w", file, err)
			}
		case "filters.yaml":
			if err := yaml.UnmarshalStrict(f.Data, &c.Filters); err != nil {
				return nil, fmt.Errorf("%s: filters.yaml: %w", file, err)
			}
		case "refused.yaml":
			if err := yaml.UnmarshalStrict(f.Data, &c.Refused); err != nil {
				return nil, fmt.Errorf("%s: refused.yaml: %w", file, err)
			}
		case "logicalrules.yaml":
			if err := yaml.UnmarshalStrict(f.Data, &c.Rules); err != nil {
				return nil, fmt.Errorf("%s: logicalrules.yaml: %w", file, err)
			}
		case "topology.yaml":
			if c.Topology, err = topology.Decode(f.Data); err != nil {
				return c, err
			}
		case "plan.txt", "error.txt":
		default:
			return nil, fmt.Errorf("%s: no case has a file %q", file, f.Name)
		}
	}
	return c, nil
}

// readObjects reads a list of {kind: object}.
func readObjects(data []byte) ([]netstate.Object, error) {
	var list []map[netstate.Kind]json.RawMessage
	if err := yaml.UnmarshalStrict(data, &list); err != nil {
		return nil, err
	}
	var out []netstate.Object
	for _, m := range list {
		for kind, raw := range m {
			o, err := netstate.ReadObject(kind, raw)
			if err != nil {
				return nil, err
			}
			out = append(out, o)
		}
	}
	return out, nil
}

// World is a sandbox and its host in memory, for the laws only: the kernel's
// model, whose truth the tests in the virtual machine hold.
type World struct {
	*netstate.Snapshot
	appears map[netstate.Key]netstate.Object
	// interrupted says that a crash came before.
	interrupted bool
	// kept says that the topology was applied before, see ops.Request.
	kept bool
	// edits says that the world has sysctls of new links.
	edits bool
	// links is how many links the kernel has made: it counts their indexes.
	links int
	// own are the MTUs and MACs of ports of bonds, which they have again when they leave (original_mtu and perm_hwaddr in
	// drivers/net/bonding/bond_main.c).
	own map[string]netstate.Link
	// chosen are the choices of the last plan, as the record has them.
	chosen ops.Choices
	// others are the other topologies of the sandbox.
	others []ops.Other
}

// NewWorld returns the world a case starts in.
func NewWorld(c *Case) *World {
	w := &World{
		Snapshot: netstate.NewSnapshot(c.Have...), appears: map[netstate.Key]netstate.Object{}, own: map[string]netstate.Link{},
	}
	w.Put(netstate.Sysctl{Path: "net/ipv6/conf/default/accept_ra", Value: new("1")}) // the kernel has IPv6
	for _, o := range c.Appears {
		w.appears[o.Key()] = o
	}
	return w
}

func (w *World) clone() *World {
	out := *w
	out.Snapshot, out.own = w.Clone(), maps.Clone(w.own)
	return &out
}

// observe answers what a plan or an undo misses: what is not there is absent.
func (w *World) observe(missing []netstate.Object) {
	for _, o := range missing {
		if a, ok := w.appears[o.Key()]; ok && w.linkThere(a) {
			w.Put(a)
		} else if sc, ok := o.(netstate.Sysctl); ok && sc.Link() != "" && w.linkThere(sc) && !withoutIPv6(w.Snapshot, sc) {
			of, _ := sc.OfNewLinks()
			have, _ := netstate.Lookup(w.Snapshot, of)
			w.Put(netstate.Sysctl{Path: sc.Path, Value: cmp.Or(have.Value, new("default"))}) // every link has them
		} else if ok && w.edits && strings.Contains(sc.Path, "/conf/default/") {
			w.Put(netstate.Sysctl{Path: sc.Path, Value: new("default")})
		} else {
			w.PutAbsent(o.Key())
		}
	}
}

// linkThere reports whether the link an object lives on exists.
func (w *World) linkThere(o netstate.Object) bool {
	_, ok := w.Link(netstate.LinkOf(o))
	return ok
}

// withoutIPv6 reports whether a sysctl is of IPv6, which a link with a smaller MTU does not get (addrconf_notify in net/ipv6/addrconf.c).
func withoutIPv6(w *netstate.Snapshot, s netstate.Sysctl) bool {
	on, _ := w.Link(s.Link())
	return strings.HasPrefix(s.Path, "net/ipv6/") && on.MTU != nil && *on.MTU < netstate.MinIPv6MTU
}

func refuseIPv6(s *netstate.Snapshot, c netstate.Change) error {
	if want, ok := c.After.(netstate.Sysctl); ok && !c.Implied && want.Link() != "" && withoutIPv6(s, want) {
		return broken("%q has no sysctl of IPv6 with an MTU below %d: %s", want.Link(), netstate.MinIPv6MTU, want.Path)
	}
	return nil
}

// plan plans until nothing is missing.
func plan(ctx context.Context, reg *ops.Registry, c *Case, w *World, owned []netstate.Change) (*ops.Plan, error) {
	for range 32 {
		p, err := reg.Plan(ctx,
			ops.Request{
				Topology: c.Topology, Netns: "/run/netns/" + cmp.Or(c.Sandbox, "pod"), Sandbox: c.Sandbox, Given: c.Given,
				Rules: ops.Rules{Filters: c.Filters, LogicalRules: c.Rules}, Refused: c.Refused,
				Have: w.Snapshot, Owned: owned, Chosen: w.chosen, Others: w.others, Interrupted: w.interrupted,
				Kept: w.kept,
			})
		if err != nil || len(p.Missing) == 0 {
			if err == nil {
				w.chosen = p.Chosen
			}
			return p, err
		}
		w.observe(p.Missing)
	}
	return nil, broken("planning never stops querying objects")
}

// drawnMAC is the MAC of a link that nobody gave one.
const drawnMAC = "02:00:00:00:00:fe"

// firstIndex is above the index of each link that a case has.
const firstIndex = 1000

// settle models the time between two stages: a link that was made now has
// everything a kernel gives it, so nothing about it is fresh any more.
func (w *World) settle(changes []netstate.Change) error {
	for _, c := range changes {
		if c.Implied {
			continue // was made with the change before
		}
		if err := w.apply(c); err != nil {
			return err
		}
	}
	all := netstate.All[netstate.Object](w.Snapshot)
	for i, o := range all {
		l, ok := o.(netstate.Link)
		if !ok || !w.Fresh(l.Name) {
			continue
		}
		if l.MAC == nil {
			l = netstate.Merge(l, netstate.Link{MAC: new(drawnMAC)}) // the kernel's choice
		}
		w.links++
		l.Index = firstIndex + w.links
		all[i] = l
	}
	w.Snapshot = netstate.NewSnapshot(all...)
	return nil
}

// apply makes a change, and gives what leaves a bond by it the MTU and MAC that it had before.
func (w *World) apply(c netstate.Change) error {
	bonded := w.bonded()
	if want, ok := c.After.(netstate.Link); ok && want.Master != nil && !slices.Contains(bonded, want.Name) {
		have, _ := w.Link(want.Name)
		w.own[want.Name] = netstate.Link{MTU: cmp.Or(want.MTU, have.MTU), MAC: cmp.Or(want.MAC, have.MAC)}
	}
	if err := Apply(w.Snapshot, c); err != nil {
		return err
	}
	for _, name := range bonded {
		l, there := w.Link(name)
		own := w.own[name]
		if own.Name = name; there && l.MTU == nil {
			own.MAC = cmp.Or(l.MAC, own.MAC)
			w.Put(netstate.Merge(l, own))
			w.follow(name, own.MAC)
		}
	}
	return nil
}

// follow gives links on a link whose MAC was not known that MAC.
func (w *World) follow(link string, mac *string) {
	for _, c := range w.LinksWhere(func(c netstate.Link) bool {
		return c.Parent != nil && *c.Parent == link && c.MAC == nil && c.KindTraits().ParentMAC
	}) {
		w.Put(netstate.Merge(c, netstate.Link{MAC: mac}))
		w.follow(c.Name, mac)
	}
}

// bonded are the names of the ports of bonds.
func (w *World) bonded() (names []string) {
	for _, l := range w.LinksWhere(func(l netstate.Link) bool { return l.Master != nil && *l.Master != "" }) {
		if m, ok := w.Link(*l.Master); ok && m.KindTraits().ForcesPorts {
			names = append(names, l.Name)
		}
	}
	return names
}

// Apply makes the snapshot what the kernel would be after the change, or says what
// the kernel would: that a bond takes only a port that is down, that a VLAN comes up only
// over a parent that is up, and that some fields change only while a link is down or has
// no ports.
func Apply(s *netstate.Snapshot, c netstate.Change) error {
	if err := errors.Join(refuseAbsent(s, c), refuseMode(s, c), refuseMTU(s, c), refuseIPv6(s, c)); err != nil {
		return err
	}
	if want, ok := c.After.(netstate.Link); ok && !c.Implied && want.Master != nil {
		have, _ := s.Link(want.Name)
		if c.Action() == netstate.Replace {
			have = netstate.Link{} // it is made again
		}
		master, _ := s.Link(*want.Master)
		if master.KindTraits().ForcesPorts && (have.Up != nil && *have.Up || want.Up != nil && *want.Up) {
			return fmt.Errorf("%s: device can not be enslaved while up", c)
		}
	}
	if want, ok := c.After.(netstate.Link); ok && !c.Implied && want.Up != nil && *want.Up {
		vlan := want
		if have, ok := s.Link(want.Name); ok {
			vlan = netstate.Merge(have, want)
			vlan.LinkKind = have.LinkKind
		}
		if vlan.KindTraits().ParentState && vlan.Parent != nil {
			if parent, ok := s.Link(*vlan.Parent); ok && parent.Up != nil && !*parent.Up {
				return fmt.Errorf("%s: network is down", c)
			}
		}
	}
	s.Apply(c)
	return nil
}

// refuseAbsent refuses a link in or on one that is not there.
func refuseAbsent(s *netstate.Snapshot, c netstate.Change) error {
	want, isLink := c.After.(netstate.Link)
	if c.Implied || !isLink {
		return nil
	}
	for _, other := range []*string{want.Master, want.Parent} {
		if other == nil || *other == "" {
			continue
		}
		if _, there := s.Link(*other); !there && !netstate.OnHost(*other) {
			return fmt.Errorf("%s: no such device: %q", c, *other)
		}
	}
	return nil
}

// refuseMode refuses an update of a link that the kernel takes only when the link is down or
// has no ports.
func refuseMode(s *netstate.Snapshot, c netstate.Change) error {
	if c.Implied || c.Action() != netstate.Update {
		return nil
	}
	want, isLink := c.After.(netstate.Link)
	have, there := s.Link(want.Name)
	if !isLink || !there {
		return nil
	}
	for _, f := range netstate.Diff(want, have) {
		switch {
		case f.Mode != netstate.Down && f.Mode != netstate.NoPorts:
		case have.Up != nil && *have.Up:
			return fmt.Errorf("%s: %s can not change while the link is up", c, f.Path)
		case f.Mode == netstate.NoPorts &&
			len(s.LinksWhere(func(l netstate.Link) bool { return l.Master != nil && *l.Master == want.Name })) > 0:
			return fmt.Errorf("%s: %s can not change while the link has ports", c, f.Path)
		}
	}
	return nil
}

// refuseMTU refuses an MTU above that of the link below (vlan_newlink in net/8021q/vlan_netlink.c, macvlan_common_newlink in
// drivers/net/macvlan.c, and the functions that change it).
func refuseMTU(s *netstate.Snapshot, c netstate.Change) error {
	want, isLink := c.After.(netstate.Link)
	if c.Implied || !isLink {
		return nil
	}
	if want.Master != nil {
		if bond, there := s.Link(*want.Master); there && bond.KindTraits().ForcesPorts {
			want.MTU = bond.MTU
		}
	}
	if want.MTU == nil {
		return nil
	}
	if have, there := s.Link(want.Name); there && c.Action() == netstate.Update {
		want.LinkKind, want.Parent = have.LinkKind, have.Parent
	}
	if want.KindTraits().ForcesPorts { // bond_change_mtu in drivers/net/bonding/bond_main.c
		for _, port := range s.LinksWhere(func(l netstate.Link) bool { return l.Master != nil && *l.Master == want.Name }) {
			if err := refuseMTU(s, netstate.Change{Before: port, After: netstate.Link{Name: port.Name, MTU: want.MTU}}); err != nil {
				return fmt.Errorf("%s: of its port: %w", c, err)
			}
		}
	}
	if want.LinkKind != "vlan" && want.LinkKind != "macvlan" || want.Parent == nil {
		return nil
	}
	if parent, there := s.Link(*want.Parent); there && parent.MTU != nil && *want.MTU > *parent.MTU {
		return fmt.Errorf("%s: mtu exceeds the %d of %q", c, *parent.MTU, *want.Parent)
	}
	return nil
}

// converge plans and applies in stages until nothing is left to do. It returns
// all changes and their text, stages set apart by a line.
func converge(ctx context.Context, reg *ops.Registry, c *Case, w *World, owned []netstate.Change) ([]netstate.Change, string, error) {
	var all []netstate.Change
	var text strings.Builder
	var confirmed *ops.Plan
	for stage := range 8 {
		p, err := plan(ctx, reg, c, w, netstate.Coalesce(owned, netstate.Lasting(all)...))
		if err != nil {
			return all, "", err
		}
		if err := agree(confirmed, p); err != nil {
			return all, "", err
		}
		if stage > 0 && !p.Empty() {
			text.WriteString("then:\n")
		}
		text.WriteString(p.String())
		if p.Empty() {
			for _, n := range p.Notes {
				fmt.Fprintln(&text, "! "+n)
			}
			return all, text.String(), nil
		}
		if len(p.Changes) == 0 {
			return all, text.String(), broken("stuck:\n%s", p)
		}
		if err := w.settle(p.Changes); err != nil {
			return all, "", broken("the kernel would refuse: %v", err)
		}
		w.observe(slices.DeleteFunc(p.ToQuery(), func(o netstate.Object) bool { return w.Known(o) }))
		ok := false
		if confirmed, ok = p.Confirm(w.Snapshot); !ok && len(p.Pending) == 0 {
			return all, "", broken("the plan led elsewhere than it foresaw:\n%s", p)
		}
		all = append(all, p.Changes...)
	}
	return all, "", broken("no end of changes:\n%s", text.String())
}

// Converge applies the plans of a case until there is nothing left to do, and returns what they have led to.
func Converge(ctx context.Context, reg *ops.Registry, c *Case) (*World, []netstate.Change, error) {
	w := NewWorld(c)
	changes, _, err := converge(ctx, reg, c, w, nil)
	return w, changes, err
}

// agree holds a plan to what was said of the world before it was made: that
// everything is as foreseen, so that this plan finds nothing to do.
func agree(confirmed, p *ops.Plan) error {
	switch {
	case confirmed == nil:
		return nil
	case !p.Empty():
		return broken("confirmed, but still to do:\n%s", p)
	case !reflect.DeepEqual(confirmed.Results, p.Results), !slices.Equal(confirmed.Notes, p.Notes):
		return broken("confirmed %+v %q, planned %+v %q", confirmed.Results, confirmed.Notes, p.Results, p.Notes)
	}
	return nil
}

// Outcome is all that a case leads to, as text: its plan with the notes, and the results of its steps. The
// error is a refusal.
func Outcome(ctx context.Context, reg *ops.Registry, c *Case) (string, error) {
	if err := topology.Validate(ctx, c.Topology, ops.Giving(reg, c.Given)); err != nil {
		return "", err
	}
	w := NewWorld(c)
	changes, text, err := converge(ctx, reg, c, w, nil)
	if err != nil {
		return "", err
	}
	p, err := plan(ctx, reg, c, w, netstate.Coalesce(nil, changes...))
	if err != nil {
		return "", err
	}
	results, err := json.Marshal(p.Results)
	return fmt.Sprintf("%s%s\nsettles in %d ms\n", text, results, p.SettlesMillis), err
}

// Laws checks the laws for a case whose changes are given.
func Laws(ctx context.Context, t *testing.T, reg *ops.Registry, c *Case, changes []netstate.Change) {
	t.Helper()
	changes = netstate.Parts(changes)
	for n := range len(changes) + 1 {
		// A crash after n changes; the record knows all that were intended.
		w := NewWorld(c)
		for _, ch := range changes[:n] {
			if err := w.settle([]netstate.Change{ch}); err != nil {
				t.Fatal(err)
			}
		}
		history := netstate.Coalesce(nil, changes...)
		again := w.clone()
		again.interrupted = true
		more, _, err := converge(ctx, reg, c, again, history)
		if err != nil {
			t.Errorf("after %d of %d changes, planning again does not converge: %v", n, len(changes), err)
		}
		checkUndo(t, c, again, netstate.Compact(netstate.Coalesce(history, more...), again.Snapshot),
			fmt.Sprintf("after %d of %d changes and planning again", n, len(changes)))
		checkUndo(t, c, w, history, fmt.Sprintf("after %d of %d changes", n, len(changes)))
	}
}

// Disobey holds the verification: where the world did not make one of the changes
// of a plan, Confirm does not say that it did.
func Disobey(ctx context.Context, t *testing.T, reg *ops.Registry, c *Case) {
	t.Helper()
	w := NewWorld(c)
	p, err := plan(ctx, reg, c, w, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Pending) > 0 {
		return // only a new plan can tell
	}
	after := func(skip int) *World {
		v := w.clone()
		for i, ch := range p.Changes {
			if i != skip {
				v.Apply(ch)
			}
		}
		v.Snapshot = netstate.NewSnapshot(netstate.All[netstate.Object](v.Snapshot)...)
		v.observe(slices.DeleteFunc(p.ToQuery(), func(o netstate.Object) bool { return v.Known(o) }))
		return v
	}
	obeyed := after(-1)
	for i, ch := range p.Changes {
		v := after(i)
		if ch.Implied || len(netstatetest.Differences(obeyed.Snapshot, v.Snapshot)) == 0 {
			continue // one that a later change undoes or recreates
		}
		if _, ok := p.Confirm(v.Snapshot); ok {
			t.Errorf("confirmed, although this was not done: %s", ch)
		}
	}
}

// checkUndo undoes a history and wants the start back.
func checkUndo(t *testing.T, c *Case, w *World, history []netstate.Change, when string) {
	t.Helper()
	if err := undo(w, history); err != nil {
		t.Errorf("%s: %v", when, err)
		return
	}
	start := NewWorld(c)
	for _, s := range netstate.All[netstate.Sysctl](w.Snapshot) {
		if s.Value != nil && *s.Value == "default" && s.Link() == "" {
			start.Put(s) // was only observed
		}
	}
	if diff := netstatetest.Differences(start.Snapshot, w.Snapshot); len(diff) > 0 {
		t.Errorf("%s, undo does not restore the start:\n%s", when, strings.Join(diff, "\n"))
	}
}

// Hold checks the laws for a case that has no golden plan, and two more: what other writers
// add changes nothing of ours, and after drift planning again converges. Undoing still
// restores the start, with what the others have added. An error is one of planning.
func Hold(ctx context.Context, t *testing.T, reg *ops.Registry, c *Case,
	others func(*World) []netstate.Object, drift func(*World, []netstate.Change),
) error {
	t.Helper()
	w := NewWorld(c)
	changes, _, err := converge(ctx, reg, c, w, nil)
	if err != nil {
		return err
	}
	Laws(ctx, t, reg, c, changes)
	Order(t, c, changes)
	Addressed(t, changes)
	settled, err := plan(ctx, reg, c, w, netstate.Coalesce(nil, changes...))
	if err != nil {
		return err
	}
	history := netstate.Coalesce(changes, settled.Held...)
	c = c.with(w, others(w))
	again, err := plan(ctx, reg, c, w, history)
	if err != nil {
		return fmt.Errorf("after what others added: %w", err)
	}
	if !again.Empty() {
		t.Errorf("nothing of ours was disturbed, and it is changed:\n%s", again)
		return nil
	}
	drift(w, history)
	w.Snapshot = netstate.NewSnapshot(netstate.All[netstate.Object](w.Snapshot)...)
	repairs, _, err := converge(ctx, reg, c, w, history)
	if err != nil {
		return fmt.Errorf("after drift: %w", err)
	}
	checkUndo(t, c, w, netstate.Compact(netstate.Coalesce(history, repairs...), w.Snapshot, settled.Held...), "after drift and repair")
	return nil
}

// Beside checks the laws for two topologies of one sandbox, of which the second may be refused:
// applying, or releasing, one of them changes nothing of the other, whichever ends first, and
// when both have ended the start is there again.
func Beside(ctx context.Context, t *testing.T, reg *ops.Registry, first, second *Case) error {
	t.Helper()
	for _, firstEnds := range []bool{true, false} {
		w := NewWorld(first)
		a, err := w.attach(ctx, reg, first, nil)
		if err != nil {
			return err
		}
		b, err := w.attach(ctx, reg, second, a)
		if err != nil {
			return err
		}
		w.undisturbed(ctx, t, reg, a, "beside the second")
		if !firstEnds {
			a, b = b, a
		}
		w.end(t, a, b)
		w.undisturbed(ctx, t, reg, b, "after the other was released")
		w.end(t, b, nil)
		if diff := netstatetest.Differences(NewWorld(first).Snapshot, w.Snapshot); len(diff) > 0 {
			t.Errorf("after both of two topologies were released, the first first: %t:\n%s", firstEnds, strings.Join(diff, "\n"))
		}
	}
	return nil
}

// OnOneNode is Beside for two topologies in different sandboxes on one host: the second starts with the host as the first has left
// it. The second may be refused.
func OnOneNode(ctx context.Context, t *testing.T, reg *ops.Registry, first, second *Case) error {
	t.Helper()
	for _, firstEnds := range []bool{true, false} {
		one := NewWorld(first)
		a, err := one.attach(ctx, reg, first, nil)
		if err != nil {
			return err
		}
		two := NewWorld(second)
		two.hostOf(one)
		b, err := two.attach(ctx, reg, second, nil)
		if err != nil {
			return err
		}
		one.hostOf(two)
		one.undisturbed(ctx, t, reg, a, "beside that of another pod")
		ends, stays := one, two
		if !firstEnds {
			a, b, ends, stays = b, a, two, one
			ends.hostOf(stays)
		}
		ends.end(t, a, nil)
		stays.hostOf(ends)
		stays.undisturbed(ctx, t, reg, b, "after that of another pod was released")
		stays.end(t, b, nil)
		one.hostOf(stays)
		two.hostOf(stays)
		for _, w := range []struct {
			*World
			of *Case
		}{{one, first}, {two, second}} {
			if diff := netstatetest.Differences(NewWorld(w.of).Snapshot, w.Snapshot); len(diff) > 0 {
				t.Errorf("after two pods of a node ended, the first first: %t: of topology %q:\n%s", firstEnds, w.of.Topology.Name,
					strings.Join(diff, "\n"))
			}
		}
	}
	return nil
}

// hostOf makes the host that of another sandbox, whose devices are not seen there.
func (w *World) hostOf(other *World) {
	var all []netstate.Object
	for _, o := range netstate.All[netstate.Object](w.Snapshot) {
		if moved(o) || !netstate.OfHost(o) {
			all = append(all, o)
		}
	}
	for _, o := range netstate.All[netstate.Object](other.Snapshot) {
		if netstate.OfHost(o) && !moved(o) {
			all = append(all, o)
		}
	}
	w.Snapshot = netstate.NewSnapshot(all...)
}

// moved reports whether an object is a device in the sandbox.
func moved(o netstate.Object) bool {
	d, ok := o.(netstate.Device)
	return ok && d.At != nil && !netstate.OnHost(*d.At)
}

// attachedTopology is a topology of a world, with its record.
type attachedTopology struct {
	*Case
	history []netstate.Change
	held    []netstate.Change
	chosen  ops.Choices
}

func (a *attachedTopology) others() []ops.Other {
	if a == nil {
		return nil
	}
	return []ops.Other{{Name: a.Topology.Name, History: a.history}}
}

func (w *World) attach(ctx context.Context, reg *ops.Registry, c *Case, beside *attachedTopology) (*attachedTopology, error) {
	w.chosen, w.others = nil, beside.others()
	changes, _, err := converge(ctx, reg, c, w, nil)
	if err != nil {
		return nil, err
	}
	settled, err := plan(ctx, reg, c, w, netstate.Coalesce(nil, changes...))
	if err != nil {
		return nil, err
	}
	history := netstate.Coalesce(nil, slices.Concat(settled.Shared, netstate.Lasting(changes), settled.Held)...)
	return &attachedTopology{c, history, settled.Held, w.chosen}, nil
}

// undisturbed holds that a check of a topology finds nothing to do.
func (w *World) undisturbed(ctx context.Context, t *testing.T, reg *ops.Registry, a *attachedTopology, when string) {
	t.Helper()
	w.chosen, w.others = a.chosen, nil
	if p, err := plan(ctx, reg, a.Case, w, a.history); err != nil || !p.Empty() {
		t.Errorf("topology %q, %s: %v\n%s", a.Topology.Name, when, err, p)
	}
}

func (w *World) end(t *testing.T, a, beside *attachedTopology) {
	t.Helper()
	if err := undo(w, ops.Unshared(a.history, beside.others())); err != nil {
		t.Errorf("release of topology %q: %v", a.Topology.Name, err)
	}
	w.Snapshot = netstate.NewSnapshot(netstate.All[netstate.Object](w.Snapshot)...)
}

// with puts what others add into the world, and returns the case as it would have been had
// they added it before. What they add to a link of ours ends with that.
func (c *Case) with(w *World, added []netstate.Object) *Case {
	then := *c
	start := NewWorld(c)
	for _, o := range added {
		w.Put(o)
		if link := netstate.LinkOf(o); link == "" || start.linkThere(o) {
			then.Have = append(slices.Clip(then.Have), o)
		}
	}
	return &then
}

func undo(w *World, history []netstate.Change, kept ...netstate.Change) error {
	for range 32 {
		changes, missing := ops.Undo(w.Snapshot, history, kept...)
		if len(missing) > 0 {
			w.observe(missing)
			continue
		}
		if len(changes) == 0 {
			return nil
		}
		for _, c := range changes {
			if err := w.apply(c); err != nil {
				return fmt.Errorf("undo: %w", err)
			}
		}
		w.Snapshot = netstate.NewSnapshot(netstate.All[netstate.Object](w.Snapshot)...)
	}
	return fmt.Errorf("undo finds no end")
}
