package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/objectfile"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

func (a *app) devices() *cobra.Command {
	var format string
	var policies []string
	var labels map[string]string
	cmd := &cobra.Command{
		Use:   "devices [-o text|json|yaml] [--policy FILE]",
		Short: "List the network devices of this host",
		Long: `Lists the network devices of this host: whether each is offered to pods, or why not, and
the attributes for selectors. A device in a pod is listed as far as the host can see it.

With --policy it shows what DeviceExposurePolicies would decide, without a cluster.

What cannot be read is reported after the list, with exit status 1. Without root the
routes of the host cannot be read, and no device with an interface is listed as offered.`,
		Example: `  plumbline devices --policy policies.yaml --node-label pool=gpu
  plumbline devices -o json | jq -r '.[] | select(.kind == "vf") | .id'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			devices, incomplete := discover(cmd.Context())
			if incomplete != nil && len(devices) == 0 { // an empty list would be wrong
				return incomplete
			}
			var err error
			if len(policies) > 0 {
				if devices, err = a.decide(cmd.Context(), policies, labels, devices); err != nil {
					return err
				}
			}
			list := inventory.List(devices, publish.Why(devices))
			switch format {
			case formatText:
				err = inventory.Table(a.text(), list)
			case formatJSON:
				err = inventory.JSON(a.out, list)
			default:
				err = a.document(format, append([]inventory.Listed{}, list...))
			}
			return errors.Join(err, incomplete)
		},
	}
	outputFlag(cmd, &format, formatText, formatJSON, formatYAML)
	cmd.Flags().StringArrayVar(&policies, "policy", nil, "`file` with DeviceExposurePolicies; may be repeated; - is standard input")
	cmd.Flags().StringToStringVar(&labels, "node-label", nil,
		"`label=value` of the node, for the nodeSelector of policies; may be repeated")
	cmd.Flags().Lookup("node-label").DefValue = "" // or help shows an empty list
	_ = cmd.MarkFlagFilename("policy", "yaml", "yml", "json")
	return cmd
}

// decide returns the devices with the decisions of the policies in some files.
func (a *app) decide(ctx context.Context, files []string, labels map[string]string,
	devices []inventory.Device,
) ([]inventory.Device, error) {
	var all []*exposure.Policy
	documents := map[string]topology.Document{}
	for _, file := range files {
		data, name, err := a.read(ctx, file)
		if err != nil {
			return nil, fmt.Errorf("policy: %w", err)
		}
		f, err := topology.Parse(name, data)
		if err != nil {
			return nil, err
		}
		objects, err := objectfile.Decode[v1alpha1.DeviceExposurePolicy](f, v1alpha1.GroupVersion.WithKind(v1alpha1.PolicyKind))
		if err != nil {
			return nil, err
		}
		if len(objects) == 0 {
			return nil, fmt.Errorf("%s: no DeviceExposurePolicy", name)
		}
		for i, o := range objects {
			all = append(all, exposure.New(o))
			documents[o.Name] = f.Objects(v1alpha1.PolicyKind)[i]
		}
	}
	ordered, _ := exposure.Limit(all)
	for _, p := range ordered {
		if p.Err != nil {
			complain(a.err, documents[p.Name].Located(p.Err)) // the list shows its effect
		}
	}
	host, err := os.Hostname() // the kubelet's default for the name of the node
	if err != nil {
		return nil, err
	}
	return exposure.NewSet(all, exposure.Node{Name: strings.ToLower(host), Labels: labels}).Decide(ctx, devices)
}
