package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/podstatus"
)

// The names under which kubectl runs this program: as a plugin, and to complete what follows that.
const (
	pluginName   = "kubectl-plumbline"
	completeName = "kubectl_complete-plumbline"
)

// program returns the command for the name by which this program was called, and its arguments.
func program(called string, args []string, std stdio) (*cobra.Command, []string) {
	switch name := strings.TrimSuffix(filepath.Base(called), ".exe"); name {
	case pluginName:
		return newPlugin(std), args
	case completeName:
		return newPlugin(std), append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	return newRoot(std), args
}

// newPlugin is the command plumbline pod as a program of its own.
func newPlugin(std stdio) *cobra.Command {
	a := &app{stdio: std}
	cmd := a.pod()
	cmd.Use, cmd.Annotations = pluginName, map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl plumbline"}
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetIn(std.in)
	cmd.SetOut(std.out)
	cmd.SetErr(std.err)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: see `%s --help`", err, cmd.CommandPath())
	})
	cmd.AddCommand(a.version())
	return cmd
}

// podCommand holds what the commands about a pod share.
type podCommand struct {
	app    *app
	of     kubeFlags
	format string
	// clients makes the clients; tests replace it.
	clients func(*rest.Config) (kubernetes.Interface, dynamic.Interface, error)
}

func (a *app) pod() *cobra.Command {
	p := &podCommand{app: a, clients: newClients}
	cmd := &cobra.Command{
		Use:   "pod",
		Short: "Show a pod's network as the objects of the cluster report it",
		Long: `Shows the network of a pod by the cluster's objects. Needs get on pods and resourceclaims
and list on events in the namespace, and get on networktopologies and deviceclasses; list
on resourceslices, to name the nodes that an RDMA mode leaves out. An object that may not be
read is named and left out.

Named kubectl-plumbline in the PATH, the program is a plugin of kubectl: kubectl plumbline
status POD. Named kubectl_complete-plumbline, it completes that.`,
		Example: `  plumbline pod status web-0 -n shop
  kubectl plumbline explain web-0 -n shop`,
		Args: func(cmd *cobra.Command, args []string) error { return unknownCommand(cmd, args) },
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := cmd.PersistentFlags()
	p.of.flags(cmd, f)
	f.StringVarP(&p.of.namespace, "namespace", "n", "", "`namespace` of the pod; default: that of the context")
	f.StringVar(&p.of.as, "as", "", "`user` to impersonate")
	_ = cmd.RegisterFlagCompletionFunc("namespace", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("as", cobra.NoFileCompletions)
	cmd.AddCommand(
		p.command("status", "Show a pod's claims, interfaces and Events",
			`Shows the pod's node, its claims with topology and generation, its devices with interface,
addresses and conditions, and the latest Events about its network.

Exit status: 0 its network is as it should be; 2 something differs, see explain; 1 an
error.`, podStatus),
		p.command("plan", "Show the steps that a pod has, or gets when it starts",
			`Shows the steps of each topology of the pod, the device of each root step, the interface
in the pod, and whether the topology was edited since.

On the node, plumbline plan -f FILE --running shows what an edit would change in the
kernel.`, plansOf),
		p.command("explain", "Explain what is wrong with a pod's network, and what to do",
			`Says why the pod lacks its network, the cause first, and what to do.

Exit status: 0 nothing is wrong; 2 something is; 1 an error.`, explanationOf))
	return cmd
}

// command is one about a pod. show returns what is printed as data, and what writes it for people, below the pod's line.
func (p *podCommand) command(name, short, long string, show func(*podstatus.Status) (data any, lines func(text))) *cobra.Command {
	cmd := &cobra.Command{
		Use: name + " POD", Short: short, Long: long,
		Example: fmt.Sprintf("  kubectl plumbline %s web-0 -n shop -o yaml", name),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || podName(args[0]) == "" {
				return fmt.Errorf("name one pod, as in web-0: see `%s --help`", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			reader, namespace, err := p.reader()
			if err != nil {
				return err
			}
			s, err := reader.Read(cmd.Context(), namespace, podName(args[0]))
			if p.of.as != "" && apierrors.IsForbidden(err) { // which of both, the server says in its own words only
				err = fmt.Errorf("--as: either user %q may not read this, or you may not impersonate that user: %w", p.of.as, err)
			}
			if err != nil {
				return err
			}
			if err := p.print(s, show); err != nil {
				return err
			}
			for _, f := range s.Explain() {
				if f.Problem && name != "plan" {
					return status(exitDiffers)
				}
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			reader, namespace, err := p.reader()
			if err != nil || len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			ctx, stop := context.WithTimeout(cmd.Context(), 3*time.Second)
			defer stop()
			names, _ := reader.Names(ctx, namespace)
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
	outputFlag(cmd, &p.format, formatText, formatJSON, formatYAML)
	return cmd
}

// podName is the name of a pod, which may be given as kubectl get -o name prints it.
func podName(argument string) string { return strings.TrimPrefix(argument, "pod/") }

// reader returns what reads as the user of the kubeconfig, and the namespace.
func (p *podCommand) reader() (*podstatus.Reader, string, error) {
	config, namespace, err := p.of.config()
	if err != nil {
		return nil, "", err
	}
	kube, custom, err := p.clients(config)
	if err != nil {
		return nil, "", fmt.Errorf("API server: %w", err)
	}
	return podstatus.NewReader(kube, custom), namespace, nil
}

func newClients(config *rest.Config) (kubernetes.Interface, dynamic.Interface, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	custom, err := dynamic.NewForConfig(config)
	return kube, custom, err
}

func (p *podCommand) print(s *podstatus.Status, show func(*podstatus.Status) (any, func(text))) error {
	data, lines := show(s)
	if p.format != formatText {
		return p.app.document(p.format, data)
	}
	t := p.app.text()
	t.podHeader(s)
	lines(t)
	for _, line := range s.Unread { // what could not be read
		p.app.note("%s", line)
	}
	return nil
}

func (t text) podHeader(s *podstatus.Status) {
	where := "not scheduled"
	if s.Node != "" {
		where = "on node " + s.Node
	}
	phase := s.Phase
	if s.Deleting {
		phase += ", being deleted"
	}
	t.line("%s", t.bold(fmt.Sprintf("pod %s/%s %s: %s", s.Namespace, s.Pod, where, phase)))
}

func podStatus(s *podstatus.Status) (any, func(text)) { return s, func(t text) { t.podStatus(s) } }

func (t text) podStatus(s *podstatus.Status) {
	for i := range s.Claims {
		t.podClaim(&s.Claims[i])
	}
	if len(s.Claims) == 0 {
		t.line("It has no claim: see kubectl plumbline explain %s -n %s.", s.Pod, s.Namespace)
	}
	if len(s.Events) > 0 {
		t.line("")
		tw := tabwriter.NewWriter(t, 0, 0, 2, ' ', 0)
		for _, e := range s.Events {
			times := ""
			if e.Count > 1 {
				times = fmt.Sprintf(" (%d times)", e.Count)
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s%s\n", e.Last.UTC().Format(time.RFC3339), e.Type, e.Reason, e.Message, times)
		}
		_ = tw.Flush() // what it writes to fails again
	}
}

// podClaim prints a claim of a pod.
func (t text) podClaim(c *podstatus.Claim) {
	name := c.Name
	switch {
	case c.As == "":
		name += " (made for extended resources)"
	case name == "":
		name = fmt.Sprintf("%s (from template %s)", c.As, c.Template)
	case name != c.As:
		name = fmt.Sprintf("%s (%s)", name, c.As)
	}
	t.line("")
	t.line("claim %s: %s", name, c.State)
	if c.Invalid != "" {
		t.line("  %s", c.Invalid)
	}
	for _, u := range c.Uses {
		generation := ""
		if u.Generation > 0 {
			generation = fmt.Sprintf(", generation %d", u.Generation)
		}
		t.line("topology %s%s", u.Topology, generation)
		if len(u.Devices) == 0 {
			continue
		}
		tw := tabwriter.NewWriter(t, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "  STEP\tDEVICE\tINTERFACE\tADDRESSES\tSTATE")
		for _, d := range u.Devices {
			fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\n", d.Step, d.Name, dash(d.Interface), dash(strings.Join(d.Addresses, ", ")),
				deviceState(d))
		}
		for _, step := range u.Steps {
			name, addresses := made(step)
			fmt.Fprintf(tw, "  %s\t(%s)\t%s\t%s\t\n", step.Name, step.Type, dash(name), dash(strings.Join(addresses, ", ")))
		}
		_ = tw.Flush() // what it writes to fails again
	}
}

// deviceState is in a few words what a node has reported of a device.
func deviceState(d podstatus.Device) string {
	if len(d.Conditions) == 0 {
		return "not reported"
	}
	var out []string
	for _, c := range d.Conditions {
		switch {
		case c.Status == "True":
			out = append(out, c.Type)
		case c.Type == claim.InSync && c.Status == "Unknown": // while it is not ready
		default:
			out = append(out, fmt.Sprintf("not %s (%s)", c.Type, c.Reason))
		}
	}
	return strings.Join(out, ", ")
}

// made returns the interface that a step has made, and its addresses.
func made(step topology.StepResult) (name string, addresses []string) {
	last, ok := step.Result.Last()
	if !ok {
		return "", nil
	}
	for _, ip := range step.Result.IPs {
		if ip.Interface != nil && *ip.Interface >= 0 && *ip.Interface < len(step.Result.Interfaces) &&
			step.Result.Interfaces[*ip.Interface].Name == last.Name {
			addresses = append(addresses, ip.Address)
		}
	}
	return last.Name, addresses
}

// podPlan is the output of plan for one topology.
type podPlan struct {
	Topology   string    `json:"topology"`
	Generation int64     `json:"generation,omitempty"` // now
	Has        int64     `json:"has,omitempty"`        // the generation of the pod
	Steps      []podStep `json:"steps"`
	Unread     string    `json:"unread,omitempty"`
}

// podStep is a step of it.
type podStep struct {
	Name      string   `json:"name"`
	Type      string   `json:"type"`
	DependOn  []string `json:"dependOn,omitempty"`
	Device    string   `json:"device,omitempty"`
	Interface string   `json:"interface,omitempty"`
}

func plansOf(s *podstatus.Status) (any, func(text)) {
	plans := []podPlan{}
	for i := range s.Claims {
		for j := range s.Claims[i].Uses {
			plans = append(plans, planOf(s, &s.Claims[i].Uses[j]))
		}
	}
	return plans, func(t text) {
		for _, plan := range plans {
			t.line("")
			t.podPlan(plan)
		}
		if len(plans) == 0 {
			t.line("No topology of its claims is known: see kubectl plumbline explain %s -n %s.", s.Pod, s.Namespace)
		}
	}
}

func planOf(s *podstatus.Status, u *podstatus.Use) podPlan {
	out := podPlan{Topology: u.Topology, Has: u.Generation, Steps: []podStep{}}
	i := slices.IndexFunc(s.Topologies, func(t podstatus.Topology) bool { return t.Name == u.Topology })
	if i < 0 {
		return out
	}
	now := &s.Topologies[i]
	switch {
	case now.Missing:
		out.Unread = "the topology was deleted; a running pod keeps its network"
		return out
	case now.Object == nil:
		out.Unread = "it cannot be read"
		return out
	}
	out.Generation = now.Generation
	decoded, err := topology.FromObject(now.Object)
	var steps []*topology.Step
	if err == nil {
		steps, err = topology.Order(decoded)
	}
	if err != nil {
		out.Unread = err.Error()
		return out
	}
	for _, step := range steps {
		to := podStep{Name: step.Name, Type: step.Type, DependOn: step.DependOn}
		for _, d := range u.Devices {
			if d.Step == step.Name {
				to.Device, to.Interface = d.Name, d.Interface
			}
		}
		for _, r := range u.Steps {
			if r.Name == step.Name {
				to.Interface, _ = made(r)
			}
		}
		out.Steps = append(out.Steps, to)
	}
	return out
}

func (t text) podPlan(plan podPlan) {
	which := ""
	switch {
	case plan.Generation == 0:
	case plan.Has == 0:
		which = fmt.Sprintf(", generation %d: the pod gets it when it starts", plan.Generation)
	case plan.Has == plan.Generation:
		which = fmt.Sprintf(", generation %d: the pod has it", plan.Generation)
	default:
		which = fmt.Sprintf(", generation %d: the pod has generation %d, see explain", plan.Generation, plan.Has)
	}
	t.line("%s", t.bold("topology "+plan.Topology+which))
	if plan.Unread != "" {
		t.line("  %s", plan.Unread)
	}
	if len(plan.Steps) == 0 {
		return
	}
	tw := tabwriter.NewWriter(t, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "  STEP\tTYPE\tON\tINTERFACE")
	for _, step := range plan.Steps {
		on := strings.Join(step.DependOn, ", ")
		if step.Device != "" {
			on = "device " + step.Device
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\n", step.Name, step.Type, dash(on), dash(step.Interface))
	}
	_ = tw.Flush() // what it writes to fails again
}

func explanationOf(s *podstatus.Status) (any, func(text)) {
	findings := append([]podstatus.Finding{}, s.Explain()...)
	return findings, func(t text) {
		for _, f := range findings {
			verb := "~"
			if f.Problem {
				verb = "!"
			}
			t.line("%s", t.mark(verb+" "+f.What))
			if f.Do != "" {
				t.line("  %s", f.Do)
			}
		}
		if len(findings) == 0 {
			t.line("Nothing is wrong as far as is reported.")
		}
	}
}
