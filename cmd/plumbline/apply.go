package main

import (
	"github.com/spf13/cobra"
)

func (a *app) apply() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "apply -f FILE --netns NAMESPACE",
		Short: "Make a network namespace what a topology says",
		Long: `Makes the network of a topology in a network namespace, and prints what was changed
and what came of it. When anything fails, everything this call did is undone. What
is right already is left alone: applying twice changes nothing.
` + targetHelp + `

The JSON form holds the changes and the result of each step, as CNI 1.1 prints it.`,
		Example: `  plumbline apply -f topology.yaml --netns blue
  plumbline apply -f topology.yaml --netns blue --device vf0=enp3s0f0v0 --device vf1=enp3s0f1v0
  plumbline apply -f topology.yaml --netns blue -o json | jq '.steps[-1].result.ips'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, sb, err := t.sandbox(cmd.Context(), a, "apply", true)
			if err != nil {
				return err
			}
			defer e.close()
			ctx, cancel := a.limited(cmd.Context())
			defer cancel()
			rep, err := e.Ensure(ctx, sb)
			if err != nil {
				return err
			}
			if t.format == formatJSON {
				return writeJSON(a.out, applyDocument(rep))
			}
			a.text().apply(sb, rep)
			return nil
		},
	}
	t.flags(cmd)
	_ = cmd.MarkFlagRequired("netns")
	return cmd
}
