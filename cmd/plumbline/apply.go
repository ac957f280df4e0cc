package main

import (
	"github.com/spf13/cobra"
)

func (a *app) apply() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "apply -f FILE --netns NAMESPACE",
		Short: "Apply a topology to a network namespace",
		Long: `Applies a topology to a network namespace, and prints the changes. If one fails, all are
rolled back. A second apply changes nothing.

A root step takes the device of --device or its config; else that of an earlier apply;
else the first free match of its selector in plumbline devices. A step keeps the
addresses of an earlier apply unless --address names others.

Further files of -f may have NetworkQoS objects, for a pod of --namespace with --labels;
without them, rules of an earlier apply are removed.

The JSON form holds the changes and a CNI 1.1 result for each step.`,
		Example: `  plumbline apply -f topology.yaml --netns blue --device vf0=enp3s0f0v0 --device vf1=enp3s0f1v0
  plumbline apply -f topology.yaml -f qos.yaml --netns blue --namespace ai --labels app=training
  plumbline apply -f topology.yaml --netns blue -o json | jq '.steps[-1].result.ips'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, sb, err := t.sandbox(cmd.Context(), a, "apply", true)
			if err != nil {
				return err
			}
			defer e.Close()
			ctx, cancel := a.limited(cmd.Context())
			defer cancel()
			rep, err := e.Ensure(ctx, sb)
			if err != nil {
				return err
			}
			if t.format != formatText {
				return a.document(t.format, document{rep.Sandbox, changeDocuments(rep.Changes), stepDocuments(rep.Results)})
			}
			a.text().apply(sb, rep)
			return nil
		},
	}
	t.flags(cmd)
	a.ovn.flags(cmd, defaultOVS, defaultNB)
	_ = cmd.MarkFlagRequired("netns")
	return cmd
}
