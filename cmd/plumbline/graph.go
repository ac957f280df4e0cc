package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/graph"
)

func (a *app) graph() *cobra.Command {
	var file, format, netns string
	var addresses []string
	var withStatus bool
	formats := append(graph.Formats(), formatText, formatJSON, formatYAML)
	cmd := &cobra.Command{
		Use:   "graph {-f FILE | --status [--netns NAMESPACE]} [-o " + strings.Join(formats, "|") + "]",
		Short: "Draw a topology, or the state of a sandbox",
		Long: `Draws a topology with the interfaces of its steps, their IDs, MTUs and addresses. With
--status, draws applied topologies with the state of each step
(in sync: green, waiting: yellow, broken: red), differing fields and errors; as text or
data for all sandboxes, or as a picture (dot, svg) for the one that --netns selects. The
exit status is then that of status.`,
		Example: `  plumbline graph -f topology.yaml
  plumbline graph -f topology.yaml -o svg > topology.svg
  plumbline graph --status --netns blue -o svg > blue.svg`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case withStatus && file != "":
				return errors.New("--status draws what was applied: leave out --filename")
			case withStatus:
				if !cmd.Flags().Changed("output") {
					format = formatText
				}
				return a.graphStatus(cmd, netns, format)
			case file == "":
				return fmt.Errorf("--filename: is missing: see `%s --help`", cmd.CommandPath())
			case cmd.Flags().Changed("netns"):
				return errors.New("--netns is of use with --status only")
			}
			plans := target{files: fileList{file}, addresses: addresses}
			_, given, from, err := plans.inputs(cmd.Context(), a)
			if err != nil {
				return err
			}
			t, err := a.decode(cmd.Context(), from.topology, given)
			if err != nil {
				return err
			}
			return a.drawn(t, plans.facts(cmd.Context(), a, from, t, given), format)
		},
	}
	fileFlag(cmd, (*oneFile)(&file))
	addressFlag(cmd, &addresses, "")
	cmd.Flags().BoolVar(&withStatus, "status", false, "draw the applied topologies with their state")
	netnsFlag(cmd, &netns, "with --status: only the sandboxes of this `namespace`")
	outputFlag(cmd, &format, formats...)
	a.ovn.flags(cmd, defaultOVS, defaultNB)
	return cmd
}

// facts are what the plan of an imagined node says of each step. A topology that cannot be planned there is drawn without.
func (t *target) facts(ctx context.Context, a *app, from source, topo *topology.Topology, asked ops.Givens) map[string]graph.Status {
	topo, err := t.ownNetwork(a, topo, asked, false)
	if err != nil {
		return nil
	}
	given, _, err := from.examples(topo, asked, true)
	if err != nil {
		return nil
	}
	plan, given, err := a.registry.PlanImagined(ctx, topo, given, ops.Rules{})
	if err != nil {
		return nil
	}
	maps.DeleteFunc(given, func(step string, _ ops.Given) bool { return len(asked[step].Addresses) > 0 })
	of := map[string]graph.Status{}
	for step, lines := range plan.Facts(topo, given) {
		of[step] = graph.Status{Notes: lines}
	}
	return of
}

func (a *app) graphStatus(cmd *cobra.Command, netns, format string) error {
	e, err := a.engine("graph --status", false, nil)
	if err != nil {
		return err
	}
	defer e.Close()
	found, err := a.look(cmd, e, netns)
	if err != nil {
		return err
	}
	return cmp.Or(a.drawnStatus(found.verdicts, format), found.differ())
}

// drawnStatus writes the state of sandboxes.
func (a *app) drawnStatus(all []verdict, format string) error {
	if slices.Contains(graph.Formats(), format) {
		switch len(all) {
		case 0:
			return errors.New("there is no sandbox to draw")
		case 1:
			t, of := stepsOf(all[0])
			return a.drawn(t, of, format)
		}
		var names []string
		for _, v := range all {
			names = append(names, string(v.Sandbox))
		}
		return fmt.Errorf("a picture shows one sandbox, and there are %d: %s", len(names), strings.Join(names, ", "))
	}
	doc := graphStatusDocument{Sandboxes: []sandboxGraph{}}
	for _, v := range all {
		t, of := stepsOf(v)
		if format == formatText {
			a.text().sandbox(v.Status)
			if err := a.text().graph(t, of); err != nil {
				return err
			}
			a.text().backends(v.backends())
			continue
		}
		d, err := graphDocumentOf(t, of)
		if err != nil {
			return err
		}
		doc.Sandboxes = append(doc.Sandboxes, sandboxGraph{v.Sandbox, v.Netns, v.State, d, v.backends()})
	}
	switch {
	case format != formatText:
		return a.document(format, doc)
	case len(all) == 0:
		a.text().line("No sandboxes.")
	}
	return nil
}

// drawn writes a topology.
func (a *app) drawn(t *topology.Topology, of map[string]graph.Status, format string) error {
	switch format {
	case formatText:
		return a.text().graph(t, of)
	case formatJSON, formatYAML:
		doc, err := graphDocumentOf(t, of)
		if err != nil {
			return err
		}
		return a.document(format, doc)
	}
	picture, err := graph.Render(t, format, of)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(a.out, picture)
	return err
}

// The states of a step, as they are drawn.
const (
	wordDrifted  = "drifted"
	wordFighting = "fighting"
	wordFailed   = "failed"
)

// elsewhere is the name of the box for problems that belong to no step; no step can have
// this name.
const elsewhere = "(no step)"

// stepsOf assigns the problems of a sandbox to its steps. Problems that belong to no step
// get a box of their own, in a copy of the topology.
func stepsOf(v verdict) (*topology.Topology, map[string]graph.Status) {
	of := map[string]graph.Status{}
	note := func(step, word, text string) {
		if _, ok := v.topology.Step(step); !ok {
			step = elsewhere
		}
		s := of[step]
		if s.Word == "" || s.Word == graph.OK || s.Word == graph.Pending {
			s.Word = word
		}
		s.Notes = append(s.Notes, strings.TrimPrefix(text, fmt.Sprintf("step %q: ", step)))
		of[step] = s
	}
	if v.Kind == "" { // otherwise the sandbox could not be observed
		for i := range v.topology.Steps {
			of[v.topology.Steps[i].Name] = graph.Status{Word: graph.OK}
		}
	}
	for _, f := range v.Failures {
		for line := range strings.SplitSeq(f.Message, "\n") {
			note(f.Step, wordFailed, line)
		}
	}
	if len(v.Failures) == 0 && v.Failure != "" { // the sandbox could not be looked at
		note("", wordFailed, v.Failure)
	}
	for _, f := range v.Fighting {
		note(f.Step, wordFighting, f.String())
	}
	for _, d := range v.Drift {
		word := wordDrifted
		if d.Object == (netstate.Key{}) {
			word = graph.Pending
		}
		note(d.Step, word, d.String())
	}
	t := v.topology
	if _, ok := of[elsewhere]; ok {
		more := *t
		more.Steps = append(append([]topology.Step{}, t.Steps...), topology.Step{Name: elsewhere, Type: "sandbox"})
		t = &more
	}
	return t, of
}

// graph draws the steps in order, each below its dependencies, with its problems below it.
func (t text) graph(top *topology.Topology, of map[string]graph.Status) error {
	order, err := topology.Order(top)
	if err != nil {
		return err
	}
	wide := 0
	for _, s := range of {
		wide = max(wide, len(s.Word))
	}
	for _, s := range order {
		line := fmt.Sprintf("%s (%s)", s.Name, s.Type)
		if len(s.DependOn) > 0 {
			line += " ← " + strings.Join(s.DependOn, ", ")
		}
		st := of[s.Name]
		if wide > 0 {
			line = fmt.Sprintf("%-*s  %s", wide, dash(st.Word), line)
		}
		t.line("  %s", t.coloured(st.Word, line))
		for _, n := range st.Notes {
			t.line("  %*s    %s", wide, "", t.coloured(st.Word, n))
		}
	}
	return nil
}

// backends writes which rule holds on which interface, and what enforces it.
func (t text) backends(rules []ruleStatus) {
	for _, r := range rules {
		t.line("  rule %s on %s, by %s", r.Rule, r.Interface, r.Backend)
	}
}

// coloured colours a line by the state of its step.
func (t text) coloured(word, line string) string {
	verb := "!"
	switch word {
	case "":
		return line
	case graph.OK:
		verb = "+"
	case graph.Pending:
		verb = "~"
	}
	return t.colour(colourOf[verb], line)
}

// sandbox writes the heading of a sandbox.
func (t text) sandbox(st reconcile.Status) {
	t.line("%s", t.bold(fmt.Sprintf("%s  %s", st.Sandbox, st.State))+fmt.Sprintf("  (%s, topology %s)", placeOf(st.Netns), st.Topology))
}
