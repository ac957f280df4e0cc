package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/fault"
)

// text writes output for people.
type text struct {
	io.Writer
	colours bool
}

func (a *app) text() text { return text{printable{a.out, a.colours()}, a.colours()} }

func (t text) line(format string, args ...any) { fmt.Fprintf(t, format+"\n", args...) }

// The colours of the verbs (ECMA-48 SGR).
var colourOf = map[string]string{"+": "32", "~": "33", "-": "31", "∓": "35", "?": "36", "!": "31"}

// mark colours a line by the verb it begins with.
func (t text) mark(line string) string {
	verb, _, _ := strings.Cut(line, " ")
	return t.colour(colourOf[verb], line)
}

func (t text) bold(s string) string { return t.colour("1", s) }

func (t text) colour(code, s string) string {
	if t.colours && code != "" {
		return "\x1b[" + code + "m" + s + "\x1b[0m"
	}
	return s
}

// netnsName is a namespace in the form of the flag --netns.
func netnsName(path string) string {
	if filepath.Dir(path) == node.NetnsDir {
		return filepath.Base(path)
	}
	return path
}

func (t text) header(sb reconcile.Sandbox) {
	t.line("%s", t.bold(fmt.Sprintf("topology %q in namespace %q (sandbox %s)", sb.Topology.Name, netnsName(sb.Netns), sb.ID)))
	devices := sb.Given.Devices()
	for _, step := range slices.Sorted(maps.Keys(devices)) {
		t.line("  step %q has device %s", step, devices[step])
	}
	t.given(sb.Given)
	all := sb.Rules
	t.holding("egress traffic", all.Of(""))
	for _, step := range slices.Sorted(maps.Keys(all.Steps)) {
		t.holding(fmt.Sprintf("egress traffic of step %q", step), all.Steps[step])
	}
}

// holding writes which NetworkQoS rules hold for egress traffic.
func (t text) holding(traffic string, of ops.Rules) {
	var rules []string
	byPlace := func(a, b netstate.Filter) int { return cmp.Compare(a.Place, b.Place) }
	for _, f := range slices.SortedStableFunc(slices.Values(of.Filters), byPlace) {
		if f.Rule != "" && !slices.Contains(rules, f.Rule) {
			rules = append(rules, f.Rule)
		}
	}
	byOVN := slices.Clone(of.LogicalRules)
	slices.SortFunc(byOVN, func(a, b netstate.LogicalRule) int { return cmp.Compare(*b.Priority, *a.Priority) })
	if len(rules) > 0 {
		t.line("  NetworkQoS rules for %s: %s (the first that matches applies)", traffic, strings.Join(rules, ", "))
	}
	if len(byOVN) > 0 {
		rules = nil
		for _, r := range byOVN {
			rules = append(rules, r.Rule)
		}
		t.line("  NetworkQoS rules of OVN for %s: %s (the first that matches applies)", traffic, strings.Join(rules, ", "))
	}
}

// given writes the addresses that steps are given.
func (t text) given(given ops.Givens) {
	for _, step := range slices.Sorted(maps.Keys(given)) {
		if all := given[step].Addresses; len(all) > 0 {
			t.line("  step %q is given %s", step, strings.Trim(fmt.Sprint(all), "[]"))
		}
	}
}

// plan writes what would change, and what containers would be told.
func (t text) plan(sb reconcile.Sandbox, p *ops.Plan, exported []topology.Variable, files []topology.File) {
	t.header(sb)
	changes := toMake(p)
	t.changes(sb.Topology, changes)
	if len(p.Pending) > 0 {
		t.line("")
	}
	for _, w := range p.Pending {
		if w.Complete { // such as that a database cannot be observed
			t.line("%s", t.mark(fmt.Sprintf("? step %q waits: %s", w.Step, w.Needs)))
			continue
		}
		t.line("%s", t.mark(fmt.Sprintf("? step %q needs %s (known after apply)", w.Step, w.Needs)))
	}
	if len(exported)+len(files) > 0 {
		t.line("")
		t.line("containers that use the claim are told")
	}
	for _, v := range exported {
		if v.Needs != "" {
			t.line("  %s needs %s (known after apply)", v.Name, v.Needs)
			continue
		}
		t.line("  %s=%s", v.Name, v.Value)
	}
	for _, f := range files {
		if f.Needs != "" {
			t.line("  file %s needs %s (known after apply)", f.Name, f.Needs)
			continue
		}
		t.line("  file %s/%s/%s:", topology.FilesDir, sb.Topology.Name, f.Name)
		for line := range strings.Lines(f.Content) {
			t.line("    %s", strings.TrimSuffix(line, "\n"))
		}
	}
	t.notes(p.Notes)
	t.line("")
	if p.Empty() {
		t.line("Nothing to do.")
		return
	}
	more := ""
	if len(p.Pending) > 0 {
		more = fmt.Sprintf(" %s to be planned then.", excerpt.Count(len(p.Pending), "step"))
	}
	t.line("%s", t.bold(fmt.Sprintf("Plan: %s.%s", tally(changes, "to create", "to change", "to replace", "to delete"), more)))
}

// toMake returns the changes that apply would make, without the implied ones.
func toMake(p *ops.Plan) []netstate.Change {
	return slices.DeleteFunc(slices.Clone(p.Changes), func(c netstate.Change) bool { return c.Implied })
}

// apply writes the changes and the resulting interfaces.
func (t text) apply(sb reconcile.Sandbox, rep reconcile.Report) {
	t.header(sb)
	t.changes(sb.Topology, rep.Changes)
	t.notes(rep.Notes)
	t.interfaces(rep.Results)
	t.line("")
	if rep.Unchanged {
		t.line("Nothing to do.")
		return
	}
	t.line("%s", t.bold(fmt.Sprintf("Applied: %s.", tally(rep.Changes, "created", "changed", "replaced", "deleted"))))
}

// deleted writes what was undone.
func (t text) deleted(sb reconcile.Sandbox, rep reconcile.Report) {
	t.header(sb)
	t.changes(sb.Topology, rep.Changes)
	t.notes(rep.Notes)
	t.line("")
	t.line("%s", t.bold(fmt.Sprintf("Deleted: sandbox %s, %s undone.", sb.ID, excerpt.Count(len(rep.Changes), "change"))))
}

func (t text) notes(notes []string) {
	if len(notes) > 0 {
		t.line("")
	}
	for _, n := range notes {
		t.line("note: %s", n)
	}
}

// tally counts changes by action. Replacements are rare, and named only if there are any.
func tally(changes []netstate.Change, create, update, replace, remove string) string {
	n := map[netstate.Action]int{}
	for _, c := range changes {
		n[c.Action()]++
	}
	parts := []string{fmt.Sprintf("%d %s", n[netstate.Create], create), fmt.Sprintf("%d %s", n[netstate.Update], update)}
	if n[netstate.Replace] > 0 {
		parts = append(parts, fmt.Sprintf("%d %s", n[netstate.Replace], replace))
	}
	return strings.Join(append(parts, fmt.Sprintf("%d %s", n[netstate.Delete], remove)), ", ")
}

// changes writes changes by step, in the order in which the steps begin.
func (t text) changes(topo *topology.Topology, changes []netstate.Change) {
	var order []string
	of := map[string][]netstate.Change{}
	for _, c := range changes {
		if of[c.Step] == nil {
			order = append(order, c.Step)
		}
		of[c.Step] = append(of[c.Step], c)
	}
	for _, name := range order {
		t.line("")
		if s, ok := topo.Step(name); ok {
			t.line("step %q (%s)", name, s.Type)
		} else {
			t.line("wanted by no step any more")
		}
		for _, c := range of[name] {
			t.line("  %s", t.mark(c.String()))
		}
	}
}

// interfaces writes the interfaces that the steps made, with their addresses.
func (t text) interfaces(results []topology.StepResult) {
	all := make([]topology.Result, 0, len(results))
	for _, r := range results {
		all = append(all, r.Result)
	}
	merged := topology.Merge(all...)
	addresses := map[int][]string{}
	for _, ip := range merged.IPs {
		if ip.Interface != nil {
			addresses[*ip.Interface] = append(addresses[*ip.Interface], ip.Address)
		}
	}
	if len(merged.Interfaces) > 0 {
		t.line("")
		tw := tabwriter.NewWriter(t, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "INTERFACE\tMAC\tMTU\tADDRESSES")
		for i, l := range merged.Interfaces {
			name := l.Name
			if l.Sandbox == "" {
				name += " (host)"
			}
			mtu := "-"
			if l.MTU != 0 {
				mtu = fmt.Sprint(l.MTU)
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", name, dash(l.MAC), mtu, dash(strings.Join(addresses[i], " ")))
		}
		tw.Flush()
	}
	for _, r := range results {
		switch d := r.Result.Devices; {
		case d == nil:
		case d.RDMADevice != "":
			t.line("step %q gives RDMA device %s: %s", r.Name, d.RDMADevice, strings.Join(d.DeviceNodes, " "))
		case len(r.Result.Interfaces) > 0:
			t.line("step %q gives %s", r.Name, strings.Join(d.DeviceNodes, " "))
		default:
			t.line("step %q has no interface: device %s %s", r.Name, d.PCIAddress, strings.Join(d.DeviceNodes, " "))
		}
	}
}

func dash(s string) string { return cmp.Or(s, "-") }

// placeOf returns the description of a sandbox's place.
func placeOf(netns string) string {
	if netns == "" {
		return "needs no namespace"
	}
	return "namespace " + netns
}

// status writes the state of each sandbox.
func (t text) status(all []sandboxStatus) {
	if len(all) == 0 {
		t.line("No sandboxes.")
	}
	for _, st := range all {
		by := ""
		if node.FromFile(st.Sandbox) {
			by = ", kept by a file"
		}
		t.line("%s", t.bold(fmt.Sprintf("%s  %s", st.Sandbox, st.State))+fmt.Sprintf("  (%s%s, applied %s)", placeOf(st.Netns), by,
			st.Updated.Format("2006-01-02 15:04:05")))
		t.given(st.Given)
		if st.Failure != "" {
			t.line("  %s", strings.ReplaceAll(st.Failure, "\n", "\n  "))
		}
		// A file's sandbox is released by plumbline run, and a pod's by the agent.
		if origin := st.Sandbox.Origin(); st.Kind == fault.Gone && origin.Netns != "" && !origin.File {
			t.line("  undo what it left on the host: plumbline delete --netns %s", netnsName(st.Netns))
		}
		for _, f := range st.Fighting {
			t.line("  %s", t.mark(fmt.Sprintf("! %s, since %s", f, f.Since.Format("2006-01-02 15:04:05"))))
		}
		for _, d := range st.Drift {
			t.line("  %s", t.mark(driftLine(d)))
		}
		t.rules(st.Rules)
	}
}

// rules writes which rule holds on which interface, with its counters.
func (t text) rules(all []ruleStatus) {
	if len(all) == 0 {
		return
	}
	tw := tabwriter.NewWriter(t, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "  RULE\tINTERFACE\tBACKEND\tMARKED\tBYTES\tDROPPED")
	for _, r := range all {
		counters := "-\t-\t-"
		if c := r.ruleCounters; c != nil {
			dropped := "-"
			if c.DroppedPackets != nil && r.Backend != v1alpha1.BackendPF { // which does not say what it drops
				dropped = fmt.Sprint(*c.DroppedPackets)
			}
			counters = fmt.Sprintf("%d\t%d\t%s", c.MarkedPackets, c.MarkedBytes, dropped)
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\n", r.Rule, r.Interface, r.Backend, counters)
	}
	tw.Flush()
}

// driftLine begins with what a repair does: it creates, deletes, replaces or changes the object,
// or waits ("?").
func driftLine(d reconcile.Drift) string {
	sign := "~"
	switch {
	case d.Object == (netstate.Key{}):
		sign = "?"
	case d.Action == netstate.Create:
		sign = "+"
	case d.Action == netstate.Delete:
		sign = "-"
	case d.Action == netstate.Replace:
		sign = "∓"
	}
	return sign + " " + d.String()
}
