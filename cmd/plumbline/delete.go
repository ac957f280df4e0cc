package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/node"
)

func (a *app) delete() *cobra.Command {
	var netns, topology, format string
	cmd := &cobra.Command{
		Use:   "delete --netns NAMESPACE [--topology NAME]",
		Short: "Undo what was applied to a network namespace",
		Long: `Undoes everything that was applied to a network namespace, in reverse order: devices
return to the host with their old name and settings, other settings get their old
values, and created objects are removed. If the namespace no longer exists, its
changes on the host are undone. After an error, run the command again.`,
		Example: `  plumbline delete --netns blue --topology ai-bonded
  plumbline delete --netns blue -o json | jq '.sandboxes[].changes'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ns, err := node.ParseNetns(netns)
			if err != nil {
				return fmt.Errorf("--netns: %w", err)
			}
			e, err := a.engine("delete", false, nil)
			if err != nil {
				return err
			}
			defer e.Close()
			in := e.In(ns.Path)
			records, damaged := e.List()
			for _, err := range damaged {
				if frame.AsOtherVersion(err) == nil {
					complain(a.err, err)
				}
			}
			ctx, cancel := a.limited(cmd.Context())
			defer cancel()
			var failed error
			for _, other := range e.OtherVersions() {
				if other.Mentions[ns.Path] {
					failed = errors.Join(failed, fmt.Errorf("record %q, which mentions namespace %q, was %w", other.Path, ns.Name, other))
				}
			}
			found := failed != nil
			document := deletedDocument{Sandboxes: []undoneDocument{}}
			for _, rec := range records {
				if !in(rec) || topology != "" && rec.Sandbox.Topology.Name != topology {
					continue
				}
				found = true
				if node.FromFile(rec.Sandbox.ID) {
					a.note("sandbox %q is described by a file of `plumbline run`, which will make it again", rec.Sandbox.ID)
				}
				rep, err := e.AwaitRelease(ctx, rec.Sandbox.ID)
				if err != nil {
					failed = errors.Join(failed, err)
					continue
				}
				document.Sandboxes = append(document.Sandboxes,
					undoneDocument{rec.Sandbox.ID, changeDocuments(rep.Changes), append([]string{}, rep.Notes...)})
				if format == formatText {
					a.text().deleted(rec.Sandbox, rep)
				}
				if rep.Unclean != "" {
					failed = errors.Join(failed, errors.New(rep.Unclean))
				}
			}
			switch {
			case format != formatText:
				failed = errors.Join(a.document(format, document), failed)
			case !found && topology != "":
				fmt.Fprintf(a.out, "Nothing to delete: topology %q is not applied to namespace %q.\n", topology, ns.Name)
			case !found:
				fmt.Fprintf(a.out, "Nothing to delete: no topology is applied to namespace %q.\n", ns.Name)
			}
			return failed
		},
	}
	netnsFlag(cmd, &netns, "`namespace`: a name in "+node.NetnsDir+", or a path; it may no longer exist")
	_ = cmd.MarkFlagRequired("netns")
	outputFlag(cmd, &format, formatText, formatJSON, formatYAML)
	cmd.Flags().StringVar(&topology, "topology", "", "delete only this topology; default: all topologies of the namespace")
	_ = cmd.RegisterFlagCompletionFunc("topology", cobra.NoFileCompletions)
	a.ovn.flags(cmd, defaultOVS, defaultNB)
	return cmd
}
