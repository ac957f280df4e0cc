package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

func (a *app) validate() *cobra.Command {
	var files fileList
	var addresses []string
	cmd := &cobra.Command{
		Use:   "validate -f FILE",
		Short: "Validate a topology, or policies",
		Long: `Validates a NetworkTopology like the admission webhook of a cluster, and reports every
problem: its steps and their order, each step's config, the references between steps,
the CEL selectors of root steps, and whether the steps contradict each other, planned
for a node that has everything they need. What is allowed, but probably a mistake, is a
note. DeviceExposurePolicies in the file are validated, too. -f may be repeated: each file
is validated by itself. Needs neither root nor a cluster.

A topology that refers to addresses which apply gives it, or names a gateway among
them, is valid only with such addresses.`,
		Example: `  plumbline validate -f topology.yaml
  plumbline validate -f data.yaml -f storage.yaml
  plumbline validate -f topology.yaml --address data0=192.0.2.5/24
  kubectl get networktopology ai -o yaml | plumbline validate -f -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			given, err := node.ParseAddresses(addresses)
			if err != nil {
				return fmt.Errorf("--address: %w", err)
			}
			if len(given) > 0 && len(files) > 1 {
				return errors.New("--address: names a step of one topology: leave out the other files")
			}
			var all []error
			for _, file := range files {
				all = append(all, a.validateFile(cmd.Context(), file, given))
			}
			return errors.Join(all...)
		},
	}
	fileFlag(cmd, &files)
	_ = cmd.MarkFlagRequired("filename")
	addressFlag(cmd, &addresses, "")
	return cmd
}

// validateFile checks the topology and the policies of a file.
func (a *app) validateFile(ctx context.Context, file string, given ops.Givens) error {
	data, name, err := a.read(file)
	if err != nil {
		return fmt.Errorf("topology: %w", err)
	}
	// A file that cannot be read is reported as a topology.
	policies, others, _ := topology.Objects(data, v1alpha1.PolicyKind)
	if len(policies) > 0 {
		if err := a.validatePolicies(data, name); err != nil {
			return err
		}
	}
	if len(policies) > 0 && others == 0 {
		return nil
	}
	return a.validateTopology(ctx, data, name, given, len(policies) > 0)
}

// validateTopology checks the topology of a file; a file with policies need not have one.
func (a *app) validateTopology(ctx context.Context, data []byte, name string, given ops.Givens, optional bool) error {
	if found, _, err := topology.Objects(data, v1alpha1.Kind); optional && err == nil && len(found) == 0 {
		return nil
	}
	t, notes, err := a.decode(ctx, data, name, given)
	if err != nil {
		return err
	}
	for _, other := range t.Ignored {
		if !optional {
			fmt.Fprintf(a.err, "plumbline: note: %s is not checked\n", other)
		}
	}
	for _, note := range notes {
		fmt.Fprintf(a.err, "plumbline: note: %s\n", note)
	}
	fmt.Fprintf(a.out, "NetworkTopology %q is valid: %s.\n", t.Name, count(len(t.Steps), "step"))
	return nil
}
