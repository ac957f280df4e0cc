package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

func (a *app) status() *cobra.Command {
	var netns, format string
	cmd := &cobra.Command{
		Use:   "status [--netns NAMESPACE]",
		Short: "Compare sandboxes with their topologies",
		Long: `Compares every sandbox with its topology and writes nothing. States: InSync; Drifted,
with field, object and step; Fighting, if another writer changes a field back after each
repair, with both values; Failed, with the reason. NetworkQoS rules are listed by
interface and precedence, with backend, and packets and bytes marked and dropped ("-":
not known). Records of another version of plumbline are listed.

Exit status: 0 all in sync; 2 something is not, a journal file is damaged, or a record is
of another version; 1 an error.`,
		Example: `  plumbline status --netns blue
  plumbline status -o json | jq -r '.sandboxes[] | select(.state != "InSync") | .sandbox'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, err := a.engine("status", false, nil)
			if err != nil {
				return err
			}
			defer e.Close()
			found, err := a.look(cmd, e, netns)
			if err != nil {
				return err
			}
			doc := statusDocument{Sandboxes: []sandboxStatus{}, Damaged: found.damaged, OtherVersions: found.others}
			byOVN := a.logical(cmd.Context(), e, found.verdicts)
			for _, st := range found.verdicts {
				own := byOVN[:len(st.logical)]
				byOVN = byOVN[len(own):]
				doc.Sandboxes = append(doc.Sandboxes,
					sandboxStatus{Status: st.Status, Steps: stepDocuments(st.Steps), Rules: a.rules(cmd.Context(), e, &st, own)})
			}
			if format != formatText {
				err = a.document(format, doc)
			} else {
				a.text().status(doc.Sandboxes)
			}
			return cmp.Or(err, found.differ())
		},
	}
	netnsFlag(cmd, &netns, "only the sandboxes of this `namespace`")
	outputFlag(cmd, &format, formatText, formatJSON, formatYAML)
	a.ovn.flags(cmd, defaultOVS, defaultNB)
	return cmd
}

// findings are the results of checking the sandboxes.
type findings struct {
	verdicts []verdict
	damaged  []string
	others   []string // records of other versions
}

// verdict is the result of checking one sandbox.
type verdict struct {
	reconcile.Status
	topology *topology.Topology
	netns    reconcile.NetnsID
	rules    []ports.Rule
	logical  []ports.LogicalRule
	onPF     []ports.FunctionRule
}

// backends are the rules of a sandbox with what enforces them, without counters.
func (v *verdict) backends() (out []ruleStatus) {
	for _, r := range v.rules {
		by := v1alpha1.BackendTC
		if r.OnPF { // which limits what the filters match
			by = v1alpha1.BackendPF
		}
		out = append(out, ruleStatus{Rule: r.Name, Interface: r.Port.Name, Backend: by})
	}
	for _, r := range v.logical {
		out = append(out, ruleStatus{Rule: r.Name, Interface: r.Interface, Backend: v1alpha1.BackendOVN})
	}
	for _, r := range v.onPF {
		out = append(out, ruleStatus{Rule: r.Name, Interface: r.Function, Backend: v1alpha1.BackendPF})
	}
	return out
}

// look compares the sandboxes with their topologies: all, or those of the namespace that
// the flag --netns names. It reports damaged records and those of other versions first.
func (a *app) look(cmd *cobra.Command, e *engine, netns string) (findings, error) {
	in := func(reconcile.Record) bool { return true }
	if cmd.Flags().Changed("netns") {
		ns, err := node.ParseNetns(netns)
		if err != nil {
			return findings{}, fmt.Errorf("--netns: %w", err)
		}
		in = e.In(ns.Path)
	}
	records, damaged := e.List()
	var out findings
	for _, rec := range records {
		if !in(rec) {
			continue
		}
		st, err := e.verdict(cmd.Context(), rec)
		if err != nil {
			return findings{}, err
		}
		out.verdicts = append(out.verdicts, verdict{
			st, rec.Sandbox.Topology, rec.NetnsID, ports.RulesOf(&rec, ports.Of(&rec)),
			ports.LogicalRulesOf(&rec), ports.FunctionRulesOf(&rec),
		})
	}
	out.damaged = damagedFiles(e, damaged)
	out.others = otherVersions(e.otherVersions(a.stateDir))
	for _, d := range slices.Concat(out.damaged, out.others) {
		complain(a.err, errors.New(d))
	}
	return out, nil
}

// rules are the rules of a sandbox with their counters, of which those of OVN are given. They are
// no part of its state: what cannot be read is a complaint.
func (a *app) rules(ctx context.Context, e *engine, v *verdict, byOVN []ports.Reading) []ruleStatus {
	out := v.backends()
	filters, others := out[:len(v.rules)], out[len(v.rules):]
	for i, r := range byOVN {
		others[i].ruleCounters = countersOf(r)
	}
	if len(filters) == 0 || v.Netns == "" || v.Kind == fault.Gone {
		return others
	}
	readings, err := e.Host.RuleReadings(ctx, v.Netns, v.netns, v.rules)
	if err != nil {
		complain(a.err, fmt.Errorf("counters of sandbox %s: %w", v.Sandbox, err))
		return others
	}
	for i := range filters {
		filters[i].ruleCounters = countersOf(readings[i])
	}
	return out
}

// logical reads the counters of the rules that OVN enforces, of all sandboxes at once, over one connection.
func (a *app) logical(ctx context.Context, e *engine, all []verdict) []ports.Reading {
	var rules []ports.LogicalRule
	for i := range all {
		rules = append(rules, all[i].logical...)
	}
	readings, err := e.OVN.Readings(ctx, rules)
	if err != nil {
		complain(a.err, fmt.Errorf("counters of rules that OVN enforces: %w", err))
	}
	return readings
}

// verdict compares a sandbox with its topology. It fails only when ctx ends, so that an
// error of one sandbox does not hide the others.
func (e *engine) verdict(ctx context.Context, rec reconcile.Record) (reconcile.Status, error) {
	st, err := e.Check(ctx, rec.Sandbox.ID)
	if ctx.Err() != nil {
		return st, ctx.Err()
	}
	if err != nil {
		st = reconcile.Status{
			Sandbox: rec.Sandbox.ID, Topology: rec.Sandbox.Topology.Name, Netns: rec.Sandbox.Netns, Updated: rec.Updated,
			State: reconcile.StateFailed, Failure: err.Error(), Failures: reconcile.FailuresOf(err), Kind: fault.Of(err),
		}
	}
	return st, nil
}

// differ returns an exit status if something is not in sync, damaged, or of another version.
func (f findings) differ() error {
	if len(f.damaged)+len(f.others) > 0 || slices.ContainsFunc(f.verdicts, func(v verdict) bool { return v.State != reconcile.InSync }) {
		return status(exitDiffers)
	}
	return nil
}
