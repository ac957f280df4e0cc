package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) validate() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "validate -f FILE",
		Short: "Say everything that is wrong with a topology",
		Long: `Checks a NetworkTopology as the admission webhook of a cluster does: its steps and
their order, each step's config, the references between steps, the CEL selectors of
root steps, and what the steps would do together on a node that has all they ask
for. What is allowed but can hardly be meant is a note. It needs neither root nor a
cluster.`,
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
