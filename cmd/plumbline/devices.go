package main

import (
	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/inventory"
)

func (a *app) devices() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "devices [-o text|json]",
		Short: "List the network devices of this host",
		Long: `Lists the network devices that root steps can be given, and what keeps the host from
giving one away. Selectors see them as the scheduler of a cluster would.`,
		Example: `  plumbline devices
  plumbline devices -o json | jq -r '.[] | select(.kind == "vf") | .id'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			devices, err := discover(cmd.Context())
			if err != nil {
				complain(a.err, err)
			}
			if format == formatJSON {
				return inventory.JSON(a.out, devices)
			}
			return inventory.Table(a.text(), devices)
		},
	}
	outputFlag(cmd, &format, formatText, formatJSON)
	return cmd
}
