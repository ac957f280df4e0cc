package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	names "k8s.io/apimachinery/pkg/util/validation"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/validity"
)

// What claim prints.
const (
	kindTemplate = "template"
	kindClaim    = "claim"
	kindLimits   = "limits"
)

func (a *app) claim() *cobra.Command {
	var file, kind, format, namespace, pair string
	var parameters []string
	cmd := &cobra.Command{
		Use:   "claim -f FILE [--kind template|claim|limits] [-o yaml|json]",
		Short: "Print the claim of a pod that uses a topology",
		Long: `Prints the request of a pod for a topology: a ResourceClaimTemplate with a request for
each root step that takes a device; the same as a ResourceClaim; or limits.

The ports of a bond are constrained to different physical functions, unless
spec.claimTemplate.bondPorts is Any; limits cannot express that. Standard error lists the
keys that --parameter may set (spec.claimParameters).

With --pair each device comes with one of another DeviceClass, such as a GPU, below the
same PCIe root; its driver has to publish resource.kubernetes.io/pcieRoot.`,
		Example: `  plumbline claim -f topology.yaml | kubectl apply -f -
  plumbline claim -f topology.yaml --parameter net1.addresses=192.0.2.70
  plumbline claim -f topology.yaml --pair gpu.example.com
  plumbline claim -f topology.yaml --kind limits`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := a.parse(cmd.Context(), file)
			if err != nil {
				return err
			}
			t, err := a.decode(cmd.Context(), f, nil)
			if err != nil {
				return err
			}
			_, set, err := a.parameterized(cmd.Context(), t, parameters)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("pair") {
				if err := a.checkPair(t, pair); err != nil {
					return fmt.Errorf("--pair: %w", err)
				}
			}
			return a.printClaim(t, set, kind, format, namespace, pair)
		},
	}
	fileFlag(cmd, (*oneFile)(&file))
	_ = cmd.MarkFlagRequired("filename")
	parameterFlag(cmd, &parameters)
	choiceFlag(cmd, &kind, "kind", "", "`kind` of request: "+strings.Join([]string{kindTemplate, kindClaim, kindLimits}, ", "),
		kindTemplate, kindClaim, kindLimits)
	outputFlag(cmd, &format, formatYAML, formatJSON)
	cmd.Flags().StringVar(&pair, "pair", "", "`DeviceClass` of a device for each, below the same PCIe root")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "`namespace` of the object; default: none")
	return cmd
}

// checkPair refuses a name that no DeviceClass of another device has.
func (a *app) checkPair(t *topology.Topology, class string) error {
	switch {
	case class == "":
		return errors.New(`"" is not the name of a DeviceClass: a variable of the shell may be empty`)
	case len(names.IsDNS1123Subdomain(class)) > 0:
		return fmt.Errorf("%q is not the name of a DeviceClass: lower-case letters, digits, \"-\" and \".\", "+
			"a letter or digit at both ends", class)
	}
	for _, s := range claim.Roots(t, a.registry) {
		if claim.ClassName(t.Name, s.Name) == class {
			return fmt.Errorf("%q is the DeviceClass of step %q itself: name that of the other device, such as a GPU", class, s.Name)
		}
	}
	return nil
}

func (a *app) printClaim(t *topology.Topology, set []topology.Parameters, kind, format, namespace, pair string) error {
	switch {
	case len(set) > 0 && kind == kindLimits:
		return fmt.Errorf("--parameter: %s set nothing: leave out --kind %s", kindLimits, kindLimits)
	case pair != "" && kind == kindLimits:
		return fmt.Errorf("--pair: %s constrain nothing: leave out --kind %s", kindLimits, kindLimits)
	case t.Role != "":
		return fmt.Errorf("NetworkTopology %q: it has the role %q: pods have it without a claim", t.Name, t.Role)
	case len(claim.Roots(t, a.registry)) == 0:
		return fmt.Errorf("NetworkTopology %q: %s", t.Name, validity.NoDevice)
	}
	for _, s := range validity.Shared(t, a.registry) {
		a.note("%s", s.Message())
	}
	for i := range t.ClaimParameters {
		p := &t.ClaimParameters[i]
		a.note("a claim may set the key %s of step %q: %s. Add --parameter %s.%s=VALUE", p.Key, p.Step, topology.Bound(p), p.Step, p.Key)
	}
	var out any
	var err error
	switch kind {
	case kindLimits:
		limits := map[string]int{}
		for _, l := range claim.Limits(t, a.registry) {
			limits[l.Resource] = l.Count
		}
		out = map[string]any{"resources": map[string]any{"limits": limits}}
	case kindClaim:
		of := claim.ResourceClaim(t, a.registry, namespace)
		claim.SetParameters(&of.Spec, set)
		if pair != "" {
			err = claim.Pair(&of.Spec, pair)
		}
		out = of
	default:
		of := claim.Template(t, a.registry, namespace)
		claim.SetParameters(&of.Spec.Spec, set)
		if pair != "" {
			err = claim.Pair(&of.Spec.Spec, pair)
		}
		out = of
	}
	if err != nil {
		return fmt.Errorf("NetworkTopology %q: --pair: %w", t.Name, err)
	}
	return a.document(format, out)
}
