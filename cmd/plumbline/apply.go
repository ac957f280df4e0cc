package main

import (
	"github.com/spf13/cobra"
)

func (a *app) apply() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "apply -f FILE --netns NAMESPACE",
		Short: "Apply a topology to a network namespace",
		Long: `Applies a topology to a network namespace, and prints the changes and the result. If
anything fails, all changes of this call are rolled back. Only what differs is
changed: a second apply changes nothing.

A root step takes the device that --device or its config names; else that of an
earlier apply; else the first free one of plumbline devices that its selector matches.
--address gives a step addresses beside those of its config; without it, a step keeps
those of an earlier apply.

Further files of -f may have NetworkQoS objects for a pod of --namespace with --labels;
without them nothing is marked or limited any more.

The JSON form holds the changes and the result of each step, as CNI 1.1 prints it.`,
		Example: `  plumbline apply -f topology.yaml --netns blue
  plumbline apply -f topology.yaml --netns blue --device vf0=enp3s0f0v0 --device vf1=enp3s0f1v0
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
				return a.document(t.format, applyDocument(rep))
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
