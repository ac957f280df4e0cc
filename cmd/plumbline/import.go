package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/objectfile"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// multiNICKind is the kind of multi-nic-cni that is converted.
const multiNICKind = "MultiNicNetwork"

func (a *app) importing() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "import -f FILE",
		Short: "Convert a network of multi-nic-cni",
		Long: `Prints the AddressPool and the NetworkTopology that a MultiNicNetwork of multi-nic-cni
stands for, in YAML, and validates both. What cannot be converted is an error that names
the field. A DeviceExposurePolicy has to share the interfaces of the hosts. The agents set the
routes between the hosts that l3 and l3s need. Needs neither root nor a cluster.`,
		Example: `  plumbline import -f multinicnetwork.yaml | kubectl apply -f -`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			data, name, err := a.read(file)
			if err != nil {
				return err
			}
			text, err := a.convert(cmd.Context(), data)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			_, err = a.out.Write(text)
			return err
		},
	}
	topologyFlag(cmd, &file)
	cmd.Flags().Lookup("filename").Usage = "`file` with a MultiNicNetwork; - is standard input"
	return cmd
}

// multiNIC is a MultiNicNetwork (api/v1/multinicnetwork_types.go of multi-nic-cni).
type multiNIC struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Subnet       string          `json:"subnet"`
		MasterNets   []string        `json:"masterNets"`
		IPAM         json.RawMessage `json:"ipam"`
		MultiNICIPAM bool            `json:"multiNICIPAM"`
		Plugin       struct {
			Type string         `json:"type"`
			Args map[string]any `json:"args"`
		} `json:"plugin"`
		AttachPolicy struct {
			Strategy string `json:"strategy"`
		} `json:"attachPolicy"`
		Namespaces []string `json:"namespaces"`
	} `json:"spec"`
}

// multiNICIPAM is its ipam, which is JSON in a string.
type multiNICIPAM struct {
	Type           string   `json:"type"`
	HostBlock      int      `json:"hostBlock"`
	InterfaceBlock int      `json:"interfaceBlock"`
	ExcludeCIDRs   []string `json:"excludeCIDRs,omitempty"`
	VLANMode       string   `json:"vlanMode,omitempty"`
}

// convert returns what the networks of a file stand for.
func (a *app) convert(ctx context.Context, data []byte) ([]byte, error) {
	found, _, err := topology.Objects(data, multiNICKind)
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, fmt.Errorf("has no %s", multiNICKind)
	}
	var out bytes.Buffer
	for _, object := range found {
		var n multiNIC
		if err := json.Unmarshal(object, &n); err != nil {
			return nil, fmt.Errorf("%s: %w", multiNICKind, err)
		}
		text, err := a.convertOne(ctx, &n)
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", multiNICKind, n.Metadata.Name, err)
		}
		if out.Len() > 0 {
			out.WriteString("---\n")
		}
		out.Write(text)
	}
	return out.Bytes(), nil
}

func (a *app) convertOne(ctx context.Context, n *multiNIC) ([]byte, error) {
	ipam, err := n.ipam()
	if err != nil {
		return nil, err
	}
	subnet := n.Spec.Subnet
	if subnet == "" {
		subnet = "172.30.0.0/16" // as multi-nic-cni has it
	}
	meta := func(kind string, spec map[string]any) map[string]any {
		return map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind, "metadata": map[string]any{"name": n.Metadata.Name}, "spec": spec,
		}
	}
	pool := map[string]any{"subnets": []any{map[string]any{"prefix": subnet}}, "hostBlock": ipam.HostBlock, "interfaceBlock": ipam.InterfaceBlock}
	if len(ipam.ExcludeCIDRs) > 0 {
		pool["exclude"] = ipam.ExcludeCIDRs
	}
	config := map[string]any{"masterNets": n.Spec.MasterNets, "ipam": ipam}
	if mtu, has := n.Spec.Plugin.Args["mtu"]; has {
		config["mtu"] = mtu
	}
	spec := map[string]any{"steps": []any{map[string]any{"name": "net1", "type": "ipvlan", "config": config}}}
	if len(n.Spec.Namespaces) > 0 {
		spec["claimTemplate"] = map[string]any{"namespaces": n.Spec.Namespaces}
	}
	poolText, err := yaml.Marshal(meta(v1alpha1.AddressPoolKind, pool))
	if err != nil {
		return nil, err
	}
	text, err := yaml.Marshal(meta(v1alpha1.Kind, spec))
	if err != nil {
		return nil, err
	}
	pools, _, err := objectfile.Decode[v1alpha1.AddressPool](poolText, v1alpha1.GroupVersion.WithKind(v1alpha1.AddressPoolKind))
	if err != nil {
		return nil, err
	}
	for _, o := range pools {
		if _, err := addresspool.Of(o); err != nil {
			return nil, err
		}
	}
	if _, _, err := validity.File(ctx, text, a.registry); err != nil {
		return nil, err
	}
	return append(append(poolText, "---\n"...), text...), nil
}

// ipam returns the ipam of a network that can be converted.
func (n *multiNIC) ipam() (out multiNICIPAM, err error) {
	text := []byte(n.Spec.IPAM)
	var quoted string
	if json.Unmarshal(text, &quoted) == nil {
		text = []byte(quoted)
	}
	args := n.Spec.Plugin.Args
	for key := range args {
		if key != "mtu" && key != "mode" {
			return out, fmt.Errorf("spec.plugin.args.%s: cannot be converted: write it into the step by hand", key)
		}
	}
	switch typ := n.Spec.Plugin.Type; {
	case typ != "" && typ != "ipvlan":
		return out, fmt.Errorf("spec.plugin.type: %q cannot be converted, only ipvlan: write a topology with a step of that type for each network", typ)
	case n.Spec.AttachPolicy.Strategy != "" && n.Spec.AttachPolicy.Strategy != "none":
		return out, fmt.Errorf("spec.attachPolicy.strategy: %q cannot be converted: requests and constraints of a claim choose the devices", n.Spec.AttachPolicy.Strategy)
	case !n.Spec.MultiNICIPAM:
		return out, errors.New("spec.multiNICIPAM: is not true, and only addresses of multi-nic-ipam can be converted: write a topology with the ipam that the plugin has")
	case len(n.Spec.MasterNets) == 0:
		return out, errors.New("spec.masterNets: is empty, which means all interfaces that a host happens to have: name the networks")
	case len(bytes.TrimSpace(text)) == 0:
		return out, errors.New("spec.ipam: is missing")
	}
	var typed struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(text, &typed) == nil && typed.Type != topology.IPAMMultiNIC {
		return out, fmt.Errorf("spec.ipam: type %q cannot be converted, only %s: write a topology with the ipam that the plugin has", typed.Type, topology.IPAMMultiNIC)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&out); err != nil {
		return out, fmt.Errorf("spec.ipam: %s: remove or correct it", strings.TrimPrefix(err.Error(), "json: "))
	}
	if mode, has := args["mode"].(string); has {
		if out.VLANMode != "" && out.VLANMode != mode {
			return out, fmt.Errorf("spec.plugin.args.mode: %q is not vlanMode, %q: remove one of them", mode, out.VLANMode)
		}
		out.VLANMode = mode
	}
	return out, nil
}
