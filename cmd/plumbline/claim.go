package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/validity"
)

// The output formats of claim.
const (
	formatTemplate = "template"
	formatClaim    = "claim"
	formatLimits   = "limits"
)

func (a *app) claim() *cobra.Command {
	var file, format, namespace, pair string
	var parameters []string
	cmd := &cobra.Command{
		Use:   "claim -f FILE [-o template|claim|limits]",
		Short: "Print the claim of a pod that uses a topology",
		Long: `Prints what a pod that uses a topology asks for, in YAML: a ResourceClaimTemplate with a
request for each root step that takes a device and the constraints between them; the
same as a ResourceClaim; or the limits of the containers of a pod without a claim.

The ports of a bond are constrained to virtual functions of different physical
functions, unless spec.claimTemplate.bondPorts of the topology says Any; limits cannot
express that. With --parameter the claim sets keys of steps' configs, which spec.claimParameters
of the topology permits; standard error lists these. spec.claimTemplate adds other constraints, and has the controller of a cluster keep
the ResourceClaimTemplate.

With --pair each device comes with one of another DeviceClass, such as a GPU, below the
same PCIe root: its driver has to publish resource.kubernetes.io/pcieRoot.`,
		Example: `  plumbline claim -f topology.yaml | kubectl apply -f -
  plumbline claim -f topology.yaml --parameter net1.addresses=192.0.2.70
  plumbline claim -f topology.yaml --pair gpu.example.com
  plumbline claim -f topology.yaml -o limits`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := a.load(cmd.Context(), file, nil)
			if err != nil {
				return err
			}
			_, set, err := a.parameterized(cmd.Context(), t, parameters)
			if err != nil {
				return err
			}
			return a.printClaim(t, set, format, namespace, pair)
		},
	}
	topologyFlag(cmd, &file)
	parameterFlag(cmd, &parameters)
	outputFlag(cmd, &format, formatTemplate, formatClaim, formatLimits)
	cmd.Flags().StringVar(&pair, "pair", "", "`DeviceClass` of a device that comes with each, below the same PCIe root")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "`namespace` of the object; default: none, so that kubectl decides")
	return cmd
}

func (a *app) printClaim(t *topology.Topology, set []topology.Parameters, format, namespace, pair string) error {
	switch {
	case len(set) > 0 && format == formatLimits:
		return fmt.Errorf("--parameter: %s set nothing: leave out -o %s", formatLimits, formatLimits)
	case pair != "" && format == formatLimits:
		return fmt.Errorf("--pair: %s constrain nothing: leave out -o %s", formatLimits, formatLimits)
	case t.Role != "":
		return fmt.Errorf("NetworkTopology %q: it has the role %q: pods have it without a claim", t.Name, t.Role)
	case len(claim.Roots(t, a.registry)) == 0:
		return fmt.Errorf("NetworkTopology %q: %s", t.Name, validity.NoDevice)
	}
	for _, s := range validity.Shared(t, a.registry) {
		fmt.Fprintf(printable{Writer: a.err}, "plumbline: note: %s\n", s.Message())
	}
	for i := range t.ClaimParameters {
		p := &t.ClaimParameters[i]
		fmt.Fprintf(printable{Writer: a.err}, "plumbline: note: a claim may set the key %s of step %q: %s. Add --parameter %s.%s=VALUE\n", p.Key, p.Step, topology.Bound(p), p.Step, p.Key)
	}
	var out any
	switch format {
	case formatLimits:
		limits := map[string]int{}
		for _, l := range claim.Limits(t, a.registry) {
			limits[l.Resource] = l.Count
		}
		out = map[string]any{"resources": map[string]any{"limits": limits}}
	case formatClaim:
		of := claim.ResourceClaim(t, a.registry, namespace)
		claim.SetParameters(&of.Spec, set)
		if pair != "" {
			claim.Pair(&of.Spec, pair)
		}
		out = of
	default:
		of := claim.Template(t, a.registry, namespace)
		claim.SetParameters(&of.Spec.Spec, set)
		if pair != "" {
			claim.Pair(&of.Spec.Spec, pair)
		}
		out = of
	}
	text, err := yaml.Marshal(out)
	if err != nil {
		return err
	}
	_, err = a.out.Write(text)
	return err
}
