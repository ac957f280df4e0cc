package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/plumbline/plumbline/inventory/maintenance"
)

func (a *app) maintain() *cobra.Command {
	var of kubeFlags
	var evict, done bool
	var format string
	cmd := &cobra.Command{
		Use:   "maintain NODE/DEVICE [--evict | --done]",
		Short: "Take a device of a cluster out of service",
		Long: `Creates a DeviceTaintRule for a device, and lists the pods that use it. The rule has no
effect at first. With --evict it has the effect NoExecute: Kubernetes deletes these pods,
without regard to a PodDisruptionBudget, and allocates the device to no other. --done
removes the rule.

DEVICE is a name in the ResourceSlices, or the interface on the host. The interface of a
PF stands for the PF and all its virtual functions.

Needs the rights to list ResourceSlices and ResourceClaims and to write DeviceTaintRules.`,
		Example: `  plumbline maintain n1/enp3s0f0
  plumbline maintain n1/enp3s0f0 --evict`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return errors.New("name one device, as in n1/enp3s0f0: see `plumbline maintain --help`")
			case evict && done:
				return errors.New("--evict and --done exclude each other")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			config, _, err := of.config()
			if err != nil {
				return err
			}
			kube, err := kubernetes.NewForConfig(config)
			if err != nil {
				return fmt.Errorf("API server: %w", err)
			}
			if done {
				return a.endMaintenance(cmd.Context(), kube, args[0], format)
			}
			return a.beginMaintenance(cmd.Context(), kube, args[0], evict, format)
		},
	}
	of.flags(cmd, cmd.Flags())
	outputFlag(cmd, &format, formatText, formatJSON, formatYAML)
	cmd.Flags().BoolVar(&evict, "evict", false, "evict the pods that use the device")
	cmd.Flags().BoolVar(&done, "done", false, "put the device into service again")
	return cmd
}

func (a *app) beginMaintenance(ctx context.Context, kube kubernetes.Interface, word string, evict bool, format string) error {
	devices, err := maintenance.Find(ctx, kube, word)
	if err != nil {
		return err
	}
	if err := maintenance.Begin(ctx, kube, word, devices, evict); err != nil {
		return err
	}
	users, err := maintenance.Users(ctx, kube, devices)
	if err != nil {
		return err
	}
	if format != formatText {
		return a.document(format, maintainedDocument{Devices: devices, Evicted: evict, Pods: append([]maintenance.User{}, users...)})
	}
	t := a.text()
	for _, d := range devices {
		t.line("%s", d)
		for _, u := range users {
			switch {
			case u.Device != d:
			case u.Stays != "":
				t.line("  %s/%s (claim %s): %s", u.Namespace, u.Pod, u.Claim, u.Stays)
			case evict:
				t.line("  %s/%s (claim %s): is evicted", u.Namespace, u.Pod, u.Claim)
			default:
				t.line("  %s/%s (claim %s): would be evicted", u.Namespace, u.Pod, u.Claim)
			}
		}
	}
	if evict {
		t.line("No pod is given these devices until plumbline maintain %s --done.", word)
	} else {
		t.line("Nothing is evicted, and new pods still get these devices, until plumbline maintain %s --evict.", word)
	}
	return nil
}

func (a *app) endMaintenance(ctx context.Context, kube kubernetes.Interface, word, format string) error {
	removed, err := maintenance.End(ctx, kube, word)
	if format != formatText {
		return errors.Join(a.document(format, maintainedDocument{
			Devices: append([]maintenance.Device{}, removed...), InService: true,
			Pods: []maintenance.User{},
		}), err)
	}
	for _, d := range removed {
		a.text().line("%s is in service again", d)
	}
	return err
}
