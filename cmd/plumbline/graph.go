package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/topology/graph"
)

func (a *app) graph() *cobra.Command {
	var file, format string
	cmd := &cobra.Command{
		Use:   "graph -f FILE [-o " + strings.Join(graph.Formats(), "|") + "]",
		Short: "Draw a topology",
		Example: `  plumbline graph -f topology.yaml
  plumbline graph -f topology.yaml -o svg > topology.svg
  plumbline graph -f topology.yaml -o dot | dot -Tpng > topology.png`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			t, err := a.load(file)
			if err != nil {
				return err
			}
			text, err := graph.Render(t, format, nil)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(a.out, text)
			return err
		},
	}
	topologyFlag(cmd, &file)
	outputFlag(cmd, &format, graph.Formats()...)
	return cmd
}
