package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) validate() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "validate -f FILE",
		Short: "Validate a topology",
		Long: `Validates a NetworkTopology like the admission webhook of a cluster, and reports every
problem: its steps and their order, each step's config, the references between steps,
the CEL selectors of root steps, and whether the steps contradict each other, planned
for a node that has everything they need. What is allowed, but probably a mistake, is a
note. Needs neither root nor a cluster.`,
		Example: `  plumbline validate -f topology.yaml
  kubectl get networktopology ai -o yaml | plumbline validate -f -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, notes, err := a.loadNoting(cmd.Context(), file)
			if err != nil {
				return err
			}
			for _, other := range t.Ignored {
				fmt.Fprintf(a.err, "plumbline: note: %s is not looked at\n", other)
			}
			for _, note := range notes {
				fmt.Fprintf(a.err, "plumbline: note: %s\n", note)
			}
			fmt.Fprintf(a.out, "NetworkTopology %q is valid: %s.\n", t.Name, count(len(t.Steps), "step"))
			return nil
		},
	}
	topologyFlag(cmd, &file)
	return cmd
}
