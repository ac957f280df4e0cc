package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/qos"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/objectfile"
	"github.com/plumbline/plumbline/topology/suggest"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

func (a *app) validate() *cobra.Command {
	var files fileList
	var addresses []string
	cmd := &cobra.Command{
		Use:   "validate -f FILE",
		Short: "Validate topologies, pools, policies and NetworkQoS objects",
		Long: `Validates a NetworkTopology like the admission webhook of a cluster, and reports every
problem: its steps and their order, each step's config, the references between steps,
the CEL selectors of root steps, and whether the steps contradict each other, planned
for a node that has everything they need. What is allowed, but probably a mistake, is a
note. AddressPools, DeviceExposurePolicies and NetworkQoS objects in the file are validated,
too. -f may be repeated: each file is validated by itself. Needs neither root nor a cluster.

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

// validateFile checks the topology and the other objects of a file.
func (a *app) validateFile(ctx context.Context, file string, given ops.Givens) error {
	data, name, err := a.read(file)
	if err != nil {
		return fmt.Errorf("topology: %w", err)
	}
	checked, rest := 0, 0
	kinds := []string{v1alpha1.Kind}
	for _, other := range []struct {
		kind     string
		validate func(data []byte, name string) error
	}{
		{v1alpha1.PolicyKind, a.validatePolicies},
		{v1alpha1.AddressPoolKind, a.validatePools},
		{qosv1alpha1.Kind, a.validateQoS},
	} {
		kinds = append(kinds, other.kind)
		// A file that cannot be read is reported as a topology.
		found, others, _ := topology.Objects(data, other.kind)
		if len(found) == 0 {
			continue
		}
		if err := other.validate(data, name); err != nil {
			return err
		}
		checked, rest = checked+len(found), others+len(found)
	}
	others, err := topology.Others(data, kinds...)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, other := range others {
		if checked > 0 {
			fmt.Fprintf(a.err, "plumbline: note: %s is not checked\n", other)
		}
	}
	if checked > 0 && checked == rest {
		return nil
	}
	return a.validateTopology(ctx, data, name, given, checked > 0)
}

// inFile names the file in each line of an error.
func inFile(name string, err error) error {
	var lines []error
	for line := range strings.Lines(err.Error()) {
		lines = append(lines, fmt.Errorf("%s: %s", name, strings.TrimSuffix(line, "\n")))
	}
	return errors.Join(lines...)
}

// validatePools checks the AddressPools of a file.
func (a *app) validatePools(data []byte, name string) error {
	pools, _, err := objectfile.Decode[v1alpha1.AddressPool](data, v1alpha1.GroupVersion.WithKind(v1alpha1.AddressPoolKind))
	if err != nil {
		return inFile(name, err)
	}
	var errs []error
	var valid []string
	for _, o := range pools {
		if o.Name == "" {
			errs = append(errs, fmt.Errorf("%s %q: metadata.name: is missing", v1alpha1.AddressPoolKind, o.Name))
		}
		l, err := addresspool.Of(o)
		if errs = append(errs, err); err != nil {
			continue
		}
		var sizes []string
		single := len(l.Families()) == 1
		for _, is4 := range l.Families() {
			family := "IPv6"
			if is4 {
				family = "IPv4"
			}
			size := fmt.Sprint(l.Size(is4))
			single = single && size == "1"
			if l.Size(is4) == math.MaxInt64 { // as far as is counted
				size = "more than 10^18"
			}
			sizes = append(sizes, size+" "+family)
		}
		noun := "addresses"
		if single {
			noun = "address"
		}
		valid = append(valid, fmt.Sprintf("%s %q is valid: %s %s.\n", v1alpha1.AddressPoolKind, o.Name, strings.Join(sizes, " and "), noun))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err = io.WriteString(a.out, strings.Join(valid, ""))
	return err
}

// validateQoS checks the NetworkQoS objects of a file.
func (a *app) validateQoS(data []byte, name string) error {
	objects, _, err := qos.Decode(data)
	if err != nil {
		return inFile(name, err)
	}
	var errs []error
	var valid []string
	for _, o := range objects {
		p := qos.New(o)
		for _, w := range p.Notes(false) {
			fmt.Fprintf(a.err, "plumbline: note: %s %q: %s\n", qosv1alpha1.Kind, p.Name(), w)
		}
		if p.Err == nil && !p.SelectsTopologies() {
			fmt.Fprintf(a.err, "plumbline: note: %s %q: selects no NetworkTopology, so that it has no effect on any: add networkSelectors with networkSelectionType %s, unless it is for networks of ovn-kubernetes or for `plumbline ovn`\n", qosv1alpha1.Kind, p.Name(), qosv1alpha1.NetworkTopologies)
		}
		errs = append(errs, p.Err)
		valid = append(valid, fmt.Sprintf("%s %q is valid: %s.\n", qosv1alpha1.Kind, p.Name(), count(len(p.Rules), "rule")))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err = io.WriteString(a.out, strings.Join(valid, ""))
	return err
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
	for _, note := range append(notes, otherPools(t, data)...) {
		fmt.Fprintf(a.err, "plumbline: note: %s\n", note)
	}
	fmt.Fprintf(a.out, "NetworkTopology %q is valid: %s.\n", t.Name, count(len(t.Steps), "step"))
	return nil
}

// otherPools notes steps with addresses of an AddressPool that the file does not have, if it has
// others. That one may exist in the cluster.
func otherPools(t *topology.Topology, data []byte) []string {
	pools, _, err := objectfile.Decode[v1alpha1.AddressPool](data, v1alpha1.GroupVersion.WithKind(v1alpha1.AddressPoolKind))
	if err != nil || len(pools) == 0 {
		return nil
	}
	var names, notes []string
	for _, o := range pools {
		names = append(names, o.Name)
	}
	for i := range t.Steps {
		pool, _, ok := topology.FromPool(&t.Steps[i])
		if ok && pool != topology.LocalPool && !slices.Contains(names, pool) {
			notes = append(notes, fmt.Sprintf("step %q: the file has no %s %q%s: pods wait until there is one", t.Steps[i].Name, v1alpha1.AddressPoolKind, pool, suggest.Hint(pool, names)))
		}
	}
	return notes
}
