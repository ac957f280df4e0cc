package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/node"
)

func (a *app) status() *cobra.Command {
	var netns, format string
	cmd := &cobra.Command{
		Use:   "status [--netns NAMESPACE]",
		Short: "Compare what was applied with what is",
		Long: `Compares every sandbox with its topology and writes nothing. A sandbox is InSync;
Drifted, and then each field that differs is named with its object and its step;
Fighting, where somebody else changes a field back after each repair and is answered
later each time, with both values; or Failed, with the reason.

Exit status: 0 all is in sync, 2 something is not or a journal file is damaged, 1 an error.`,
		Example: `  plumbline status
  plumbline status --netns blue
  plumbline status -o json | jq -r '.sandboxes[] | select(.state != "InSync") | .sandbox'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := ""
			if cmd.Flags().Changed("netns") {
				ns, err := node.ParseNetns(netns)
				if err != nil {
					return fmt.Errorf("--netns: %w", err)
				}
				path = ns.Path
			}
			e, err := a.engine("status", false, nil)
			if err != nil {
				return err
			}
			defer e.close()
			records, damaged := e.List()
			doc := statusDocument{Sandboxes: []sandboxStatus{}, Damaged: damagedFiles(e, damaged)}
			code := status(0)
			if len(doc.Damaged) > 0 {
				code = exitDiffers
			}
			for _, rec := range records {
				if path != "" && rec.Sandbox.Netns != path {
					continue
				}
				st, err := e.Check(cmd.Context(), rec.Sandbox.ID)
				if cmd.Context().Err() != nil {
					return cmd.Context().Err()
				}
				if err != nil { // of this sandbox; the others are looked at all the same
					st = reconcile.Status{
						Sandbox: rec.Sandbox.ID, Topology: rec.Sandbox.Topology.Name, Netns: rec.Sandbox.Netns, Updated: rec.Updated,
						State: reconcile.StateFailed, Failure: err.Error(), Kind: fault.Of(err),
					}
				}
				if st.State != reconcile.InSync {
					code = exitDiffers
				}
				doc.Sandboxes = append(doc.Sandboxes, sandboxStatus{Status: st, Steps: stepDocuments(st.Steps)})
			}
			for _, d := range doc.Damaged {
				fmt.Fprintf(a.err, "plumbline: %s\n", d)
			}
			if format == formatJSON {
				err = writeJSON(a.out, doc)
			} else {
				a.text().status(doc.Sandboxes)
			}
			if err == nil && code != 0 {
				err = code
			}
			return err
		},
	}
	netnsFlag(cmd, &netns, "only the sandboxes of this `namespace`")
	outputFlag(cmd, &format, formatText, formatJSON)
	return cmd
}
