package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/validity"
)

// parameterFlag adds --parameter.
func parameterFlag(cmd *cobra.Command, parameters *[]string) {
	cmd.Flags().StringArrayVar(parameters, "parameter", nil, "value set by the claim (claimParameters): `STEP.KEY=VALUE`; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("parameter", cobra.NoFileCompletions)
}

// parameterized returns a topology with the parameters of the flag, and these as a claim has them.
func (a *app) parameterized(ctx context.Context, t *topology.Topology,
	arguments []string,
) (*topology.Topology, []topology.Parameters, error) {
	var set []topology.Parameters
	for _, argument := range arguments {
		name, value, ok := strings.Cut(argument, "=")
		step, key, dotted := strings.Cut(name, ".")
		if !ok || !dotted || value == "" {
			return nil, nil, fmt.Errorf("--parameter: %q is not of the form STEP.KEY=VALUE, as in net1.addresses=192.0.2.7", argument)
		}
		i := slices.IndexFunc(set, func(p topology.Parameters) bool { return p.Step == step })
		if i < 0 {
			set, i = append(set, topology.Parameters{Step: step}), len(set)
		}
		switch key {
		case "addresses":
			set[i].Addresses = append(set[i].Addresses, value)
		case "ifName":
			set[i].IfName = value
		case "mac":
			set[i].MAC = value
		case "name":
			set[i].Name = value
		default:
			return nil, nil, fmt.Errorf("--parameter: %q is not a key that a claim can set: these are addresses, ifName, mac and name", key)
		}
	}
	if len(set) == 0 {
		return t, nil, nil
	}
	with, permitted, err := validity.Parameters(ctx, t, set, a.registry)
	if err != nil {
		return nil, nil, fmt.Errorf("--parameter: %w", err)
	}
	return with, permitted, nil
}
