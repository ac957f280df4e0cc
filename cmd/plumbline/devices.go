package main

import (
	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/publish"
)

func (a *app) devices() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "devices [-o text|json]",
		Short: "List the network devices of this host",
		Long: `Lists the network devices of this host, and for each whether it is offered to pods, or
why not, with the attributes that the selectors of topologies see. A device that is in
a pod now is listed as far as the host can see it.`,
		Example: `  plumbline devices
  plumbline devices -o json | jq -r '.[] | select(.kind == "vf") | .id'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			devices, err := discover(cmd.Context())
			if err != nil {
				complain(a.err, err)
			}
			list := inventory.List(devices, publish.Why(devices))
			if format == formatJSON {
				return inventory.JSON(a.out, list)
			}
			return inventory.Table(a.text(), list)
		},
	}
	outputFlag(cmd, &format, formatText, formatJSON)
	return cmd
}
