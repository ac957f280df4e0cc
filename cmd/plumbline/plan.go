package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/inventory/ncclfile"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos/enforce"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/validity"
)

// target holds the flags of plan and apply that name the topology and the sandbox.
type target struct {
	files     fileList
	namespace string
	labels    map[string]string
	netns     string
	devices   []string
	addresses []string
	format    string
	// parameters are values that a claim would set.
	parameters []string

	notes []string // on what the plan has assumed
}

func (t *target) flags(cmd *cobra.Command) {
	fileFlag(cmd, &t.files)
	_ = cmd.MarkFlagRequired("filename")
	cmd.Flags().StringVar(&t.namespace, "namespace", "", "`namespace` of the pod, for NetworkQoS objects (default if empty)")
	_ = cmd.RegisterFlagCompletionFunc("namespace", cobra.NoFileCompletions)
	cmd.Flags().StringToStringVar(&t.labels, "labels", nil, "labels of the pod, for NetworkQoS objects: `KEY=VALUE,...`")
	_ = cmd.RegisterFlagCompletionFunc("labels", cobra.NoFileCompletions)
	netnsFlag(cmd, &t.netns, "`namespace`: a name in "+node.NetnsDir+", or a path")
	cmd.Flags().StringArrayVar(&t.devices, "device", nil, "device of a root step: `STEP=DEVICE`, by PCI address or interface name")
	_ = cmd.RegisterFlagCompletionFunc("device", func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		step, _, named := strings.Cut(begun, "=")
		if !named {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		devices, _ := discover(cmd.Context()) // without root, as far as they are seen
		var out []string
		for _, d := range devices {
			for _, name := range []string{d.IfName, d.ID} {
				if name != "" {
					out = append(out, step+"="+name)
				}
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	})
	parameterFlag(cmd, &t.parameters)
	addressFlag(cmd, &t.addresses, "; may be repeated; STEP="+node.NoAddresses+" removes those of an earlier apply")
	outputFlag(cmd, &t.format, formatText, formatJSON, formatYAML)
}

// inputs reads what the flags name.
func (t *target) inputs(ctx context.Context, a *app) (asked map[string]string, given ops.Givens, from source, err error) {
	if asked, err = node.ParseDevices(t.devices); err != nil {
		return nil, nil, from, fmt.Errorf("--device: %w", err)
	}
	if given, err = node.ParseAddresses(t.addresses); err != nil {
		return nil, nil, from, fmt.Errorf("--address: %w", err)
	}
	from, err = a.sources(ctx, t.files)
	return asked, given, from, err
}

// imagined plans on a node that nobody has.
func (t *target) imagined(ctx context.Context, a *app) (reconcile.Sandbox, *ops.Plan, error) {
	sb := reconcile.Sandbox{ID: "imagined/pod"}
	asked, given, from, err := t.inputs(ctx, a)
	if err != nil {
		return sb, nil, err
	}
	topo, err := a.decode(ctx, from.topology, given)
	if err == nil {
		topo, _, err = a.parameterized(ctx, topo, t.parameters)
	}
	var rules ops.Rules
	if err == nil {
		rules, err = t.rules(a, from)
	}
	if err == nil {
		topo, err = t.ownNetwork(a, topo, given, false)
	}
	if err != nil {
		return sb, nil, err
	}
	given, notes, err := from.examples(topo, given, true)
	if err != nil {
		return sb, nil, err
	}
	for step, device := range asked {
		if !slices.ContainsFunc(topo.Roots(), func(s *topology.Step) bool { return s.Name == step }) {
			return sb, nil, fmt.Errorf("--device: %q is not a root step of topology %q: see `plumbline graph`", step, topo.Name)
		}
		if !strings.Contains(device, ":") { // the name of an interface
			device = netstate.VirtualPrefix + device
		}
		g := given[step]
		g.Device = device
		given[step] = g
	}
	plan, given, err := a.registry.PlanImagined(ctx, topo, given, rules)
	if err != nil {
		return sb, nil, err
	}
	plan.Notes = append(plan.Notes, slices.Concat(t.notes, notes)...)
	sb.Netns, sb.Topology, sb.Given, sb.Rules = node.NetnsDir+"/pod", topo, given, rules
	return sb, plan, nil
}

// sandbox checks the flags and makes a sandbox of them. Nothing is written.
func (t *target) sandbox(ctx context.Context, a *app, command string, writes bool) (*engine, reconcile.Sandbox, error) {
	fail := func(err error) (*engine, reconcile.Sandbox, error) { return nil, reconcile.Sandbox{}, err }
	asked, given, from, err := t.inputs(ctx, a)
	if err != nil {
		return fail(err)
	}
	topo, invalid := a.decode(ctx, from.topology, given)
	decoded, err := from.topology.Topology()
	if err != nil {
		return fail(cmp.Or(invalid, err))
	}
	ns, err := node.ParseNetns(t.netns)
	if err == nil {
		err = ns.Exists()
	}
	if err != nil {
		return fail(cmp.Or(invalid, fmt.Errorf("--netns: %w", err)))
	}
	rules, err := t.rules(a, from)
	if err != nil {
		return fail(cmp.Or(invalid, err))
	}
	e, err := a.engine(command, writes && invalid == nil, nil)
	if err != nil {
		return fail(cmp.Or(invalid, err))
	}
	own := e.own(a, ns.ID(decoded.Name))
	given, kept := keepAddresses(given, own, decoded)
	if invalid != nil && kept { // the topology may be valid with the kept addresses
		topo, invalid = a.decode(ctx, from.topology, given)
	}
	if invalid != nil && own.LastApplied(decoded, given) {
		a.note("an earlier version applied this topology here, so it is kept, although it is invalid: %v", invalid)
		topo, invalid = decoded, nil
	}
	var sb reconcile.Sandbox
	if err = invalid; err == nil {
		topo, _, err = a.parameterized(ctx, topo, t.parameters)
	}
	if err == nil {
		topo, err = t.ownNetwork(a, topo, given, writes)
	}
	if err == nil && !writes {
		var notes []string
		given, notes, err = from.examples(topo, given, false)
		t.notes = append(t.notes, notes...)
	}
	if err == nil {
		sb, err = e.sandbox(ctx, a, topo, ns, own, asked, given, rules)
	}
	if err != nil {
		e.Close()
		return fail(err)
	}
	return e, sb, nil
}

// ownNetwork returns the topology as a pod has it, if it is the pod network. Its
// addresses are of the node's pod CIDRs, which only the agent knows: a plan has examples.
func (t *target) ownNetwork(a *app, topo *topology.Topology, given ops.Givens, writes bool) (*topology.Topology, error) {
	switch {
	case writes || topo.Role == "":
		return node.WithoutAgent(topo, a.registry)
	case topo.UsesPodCIDRs(a.registry) && len(given[topo.Roots()[0].Name].Addresses) == 0:
		t.notes = append(t.notes, fmt.Sprintf("the pod CIDRs %s are examples: a pod gets addresses from those of its node",
			strings.Trim(fmt.Sprint(validity.ExamplePodCIDRs), "[]")))
	}
	return topo.ForPod(a.registry, validity.ExamplePodCIDRs, topology.PodInterface), nil
}

// rules compiles the NetworkQoS objects of the files.
func (t *target) rules(a *app, from source) (ops.Rules, error) {
	if len(from.qos) == 0 {
		if t.namespace != "" || len(t.labels) > 0 {
			return ops.Rules{}, errors.New("--namespace and --labels: are of use with NetworkQoS objects only: add their file with -f")
		}
		return ops.Rules{}, nil
	}
	rules, notes, err := enforce.Objects(from.qos, from.topology, enforce.Pod{Namespace: t.namespace, Labels: t.labels}, a.registry)
	for _, n := range notes {
		a.note("%s", n)
	}
	return rules, err
}

// keepAddresses adds the addresses of an earlier apply for steps that --address does not
// name.
func keepAddresses(given ops.Givens, own *reconcile.Record, t *topology.Topology) (all ops.Givens, kept bool) {
	if own == nil || own.Phase == reconcile.Releasing {
		return given, false
	}
	all = ops.Givens{}
	for step, had := range own.Sandbox.Given.ForSteps(t).Networks() {
		if _, said := given[step]; !said {
			all[step] = had
		}
	}
	kept = len(all) > 0
	maps.Copy(all, given)
	return all, kept
}

// show prints a plan.
func (t *target) show(a *app, sb reconcile.Sandbox, plan *ops.Plan, imagined bool) error {
	exported, err := sb.Topology.Variables(a.registry, plan.Results)
	if err != nil {
		return fmt.Errorf("NetworkTopology %q: %w", sb.Topology.Name, err)
	}
	var devices func(pci, rdma []string) (string, error)
	if !imagined {
		devices = func(own, rdma []string) (string, error) {
			return ncclfile.Node{Sys: "/sys", CPUInfo: "/proc/cpuinfo", Arch: runtime.GOARCH}.Of(own, rdma, nil)
		}
	}
	files, err := sb.Topology.Files(a.registry, plan.Results, devices)
	if err != nil {
		return fmt.Errorf("NetworkTopology %q: %w", sb.Topology.Name, err)
	}
	switch {
	case t.format != formatText:
		document := planDocument(sb, plan, exported, files)
		document.Imagined = imagined
		err = a.document(t.format, document)
	default:
		out := a.text()
		if imagined {
			out.line("On an imagined node: its devices, links and MTUs are invented. With --netns NAMESPACE the plan is for this host.")
		}
		out.plan(sb, plan, exported, files)
	}
	if err == nil && !plan.Empty() {
		err = status(exitDiffers)
	}
	return err
}

func (a *app) plan() *cobra.Command {
	var t target
	var running bool
	cmd := &cobra.Command{
		Use:   "plan -f FILE [--netns NAMESPACE | --running]",
		Short: "Show what apply would change",
		Long: `Shows what apply would change in a network namespace, and writes nothing.

Without --netns it plans for an imagined node with all devices and links that the
topology needs, and MTUs of 1500; it needs no root, and the JSON has the field imagined.

Devices, addresses and NetworkQoS objects are chosen as by apply. Addresses of pools
(from a file of -f), of host-local ranges and of the pod network are examples.

--running shows for each sandbox of the topology on this node which steps an edit would
change live, replace, add or remove, which links it would interrupt, and which sandboxes
would keep their network.

Exit status: 0 nothing would change; 2 something would; 1 an error.`,
		Example: `  plumbline plan -f topology.yaml
  plumbline plan -f topology.yaml --netns /proc/4711/ns/net --device vf0=0000:03:10.0
  plumbline plan -f topology.yaml -f qos.yaml --netns blue --namespace ai --labels app=training
  plumbline plan -f edited.yaml --running`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case running && (t.namespace != "" || len(t.labels) > 0):
				return errors.New(
					"--running: is about all sandboxes, with the NetworkQoS objects they have: leave out --namespace and --labels")
			case running && (t.netns != "" || len(t.devices) > 0 || len(t.addresses) > 0):
				return errors.New("--running: is about all sandboxes, with the devices and addresses they have: " +
					"leave out --netns, --device and --address")
			case running:
				return a.planRunning(cmd.Context(), &t)
			case t.netns == "":
				sb, plan, err := t.imagined(cmd.Context(), a)
				if err != nil {
					return err
				}
				return t.show(a, sb, plan, true)
			}
			e, sb, err := t.sandbox(cmd.Context(), a, "plan", false)
			if err != nil {
				return err
			}
			defer e.Close()
			plan, err := e.Plan(cmd.Context(), sb)
			if err != nil {
				return err
			}
			plan.Notes = append(plan.Notes, t.notes...)
			return t.show(a, sb, plan, false)
		},
	}
	t.flags(cmd)
	a.ovn.flags(cmd, defaultOVS, defaultNB)
	cmd.Flags().BoolVar(&running, "running", false, "plan the edit for this node's sandboxes of the topology")
	return cmd
}
