package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/enforce"
	"github.com/plumbline/plumbline/qos/ovn"
	"github.com/plumbline/plumbline/qos/ovn/northbound"
)

func (a *app) northbound() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ovn plan|apply|delete",
		Short: "Write NetworkQoS objects into an OVN Northbound database",
		Long: `Writes the rules of NetworkQoS objects for one logical switch port into an OVN Northbound
database, as rows of table QoS that match what the port sends. Rows of others are not
read and not changed. Needs no cluster.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var p, d ovnPort
	plan := &cobra.Command{
		Use:   "plan -f FILE --switch SWITCH --port PORT",
		Short: "Show what apply would change",
		Long:  "Shows what apply would change, and writes nothing. Exit status 2 if there is anything.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			changes, err := a.ovnPass(cmd.Context(), &p, planAll)
			if err == nil && !changes.Empty() {
				err = status(exitDiffers)
			}
			return err
		},
	}
	apply := &cobra.Command{
		Use:   "apply -f FILE --switch SWITCH --port PORT",
		Short: "Apply NetworkQoS objects to a logical switch port",
		Long: `Makes the rows of a logical switch port those of the objects that cover a pod of --namespace
with --labels on the default network, and prints the changes. All are made in one
transaction. A second apply changes nothing.`,
		Example: `  plumbline ovn apply -f qos.yaml --switch sw0 --port ai_worker-0 --namespace ai --labels app=training`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := a.ovnPass(cmd.Context(), &p, applyAll)
			return err
		},
	}
	remove := &cobra.Command{
		Use:   "delete --port PORT",
		Short: "Delete the rows of a logical switch port",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := a.ovnPass(cmd.Context(), &d, applyAll)
			return err
		},
	}
	for _, c := range []*cobra.Command{plan, apply} {
		p.flags(c)
		fileFlag(c, &p.files)
		c.Flags().Lookup("filename").Usage = "`file` with NetworkQoS objects; - is standard input; may be repeated"
		c.Flags().StringVar(&p.port.Switch, "switch", "", "`name` of the logical switch")
		c.Flags().StringVar(&p.pod.Namespace, "namespace", "", "`namespace` of the pod; default if not given")
		c.Flags().StringToStringVar(&p.pod.Labels, "labels", nil, "labels of the pod: `KEY=VALUE,...`")
		for _, name := range []string{"switch", "namespace", "labels"} {
			_ = c.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
		}
		_ = c.MarkFlagRequired("filename")
		_ = c.MarkFlagRequired("switch")
	}
	d.flags(remove)
	cmd.AddCommand(plan, apply, remove)
	return cmd
}

func planAll(ctx context.Context, c *northbound.Client, want *ovn.Desired) (ovn.Changes, error) {
	return c.Plan(ctx, want)
}

// applyAll applies nothing if a part cannot be applied.
func applyAll(ctx context.Context, c *northbound.Client, want *ovn.Desired) (ovn.Changes, error) {
	if _, err := c.Plan(ctx, want); err != nil {
		return ovn.Changes{}, err
	}
	return c.Apply(ctx, want)
}

// ovnPort is a port whose rows are written, and the database.
type ovnPort struct {
	port      ovn.Port
	pod       enforce.Pod
	files     fileList
	endpoints string
	credentials
}

func (p *ovnPort) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.port.Name, "port", "", "`name` of the logical switch port")
	f.StringVar(&p.endpoints, "nb", defaultNB, "`endpoint` of the database: unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT; several with commas")
	p.credentials.flags(cmd, "")
	for _, name := range []string{"port", "nb"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	_ = cmd.MarkFlagRequired("port")
}

// ovnPass reads the files, and does one pass on the database.
func (a *app) ovnPass(ctx context.Context, p *ovnPort, pass func(context.Context, *northbound.Client, *ovn.Desired) (ovn.Changes, error)) (changes ovn.Changes, err error) {
	owner := "plumbline ovn: " + p.port.Name
	want, err := a.ovnRows(owner, p)
	if err != nil {
		return changes, err
	}
	secured, err := p.tls()
	if err != nil {
		return changes, err
	}
	c, err := northbound.New(northbound.Options{Endpoints: strings.Split(p.endpoints, ","), TLS: secured, Owner: owner})
	if err != nil {
		return changes, fmt.Errorf("--nb: %w", err)
	}
	defer c.Close()
	ctx, cancel := a.limited(ctx)
	defer cancel()
	changes, err = pass(ctx, c, want)
	for _, line := range changes.Lines() {
		fmt.Fprintln(a.out, line)
	}
	if err == nil && changes.Empty() {
		fmt.Fprintln(a.out, "nothing to do")
	}
	return changes, err
}

// ovnRows compiles the files. Without a file nothing is wanted.
func (a *app) ovnRows(owner string, p *ovnPort) (*ovn.Desired, error) {
	var files [][]byte
	for _, f := range p.files {
		data, name, err := a.read(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		switch objects, _, err := qos.Decode(data); {
		case err != nil:
			return nil, inFile(name, err)
		case len(objects) == 0:
			return nil, fmt.Errorf("%s: has no NetworkQoS", name)
		}
		files = append(files, data)
	}
	network := qos.Network{NetworkID: qos.NetworkID{Kind: qos.DefaultNetwork}, Primary: true}
	rules, members, notes, err := enforce.Rules(files, network, p.pod)
	if err != nil {
		return nil, err
	}
	for _, n := range notes {
		fmt.Fprintf(a.err, "plumbline: note: %s\n", n)
	}
	return ovn.Compile(owner, p.port, rules, members)
}
