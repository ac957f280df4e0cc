package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/openvswitch"
	"github.com/plumbline/plumbline/reconcile/openvswitch/flowcounters"
	"github.com/plumbline/plumbline/reconcile/ports"
)

// databases are those of OVN that steps of type ovn-k8s-cni-overlay need.
type databases struct {
	ovs string // endpoints of Open vSwitch; "" for none
	nb  string // of the Northbound database
	credentials
}

const (
	defaultOVS = "unix:/var/run/openvswitch/db.sock"
	defaultNB  = "unix:/var/run/ovn/ovnnb_db.sock"
)

// flags adds the flags to a command.
func (d *databases) flags(cmd *cobra.Command, ovs, nb string) {
	f := cmd.Flags()
	f.StringVar(&d.ovs, "ovs", ovs, "`endpoint` of the database of Open vSwitch, for steps of type ovn-k8s-cni-overlay; without it they wait")
	f.StringVar(&d.nb, "ovn-nb", nb, "`endpoint` of the OVN Northbound database: unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT; several with commas")
	d.credentials.flags(cmd, "ovn-")
	for _, name := range []string{"ovs", "ovn-nb"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
}

// ovnDatabases are databases, open; nil if there are none.
type ovnDatabases struct {
	vswitch    *openvswitch.Switch
	northbound *openvswitch.Northbound
	counters   *flowcounters.Reader // nil if Open vSwitch is not on this node
}

// open returns the databases. No connection is opened before a step needs one.
func (d *databases) open() (*ovnDatabases, error) {
	if d.ovs == "" || d.nb == "" {
		return nil, nil
	}
	secured, err := d.tls()
	if err != nil {
		return nil, err
	}
	vswitch, err := openvswitch.NewSwitch(openvswitch.Server{Endpoints: strings.Split(d.ovs, ",")})
	if err != nil {
		return nil, fmt.Errorf("--ovs: %w", err)
	}
	northbound, err := openvswitch.NewNorthbound(openvswitch.Server{Endpoints: strings.Split(d.nb, ","), TLS: secured})
	if err != nil {
		return nil, fmt.Errorf("--ovn-nb: %w", err)
	}
	out := &ovnDatabases{vswitch: vswitch, northbound: northbound}
	first, _, _ := strings.Cut(d.ovs, ",")
	if dir := flowcounters.DirOf(first); dir != "" {
		out.counters = &flowcounters.Reader{Dir: dir, Numbers: vswitch.Numbers}
	}
	return out, nil
}

// readings reads the counters of rules that OVN enforces. Without Open vSwitch on this node none is known.
func (o *ovnDatabases) readings(ctx context.Context, of []ports.LogicalRule) ([]ports.Reading, error) {
	if o == nil || o.counters == nil {
		return make([]ports.Reading, len(of)), nil
	}
	return o.counters.Read(ctx, of)
}

// domains are those of the engine.
func (o *ovnDatabases) domains() []reconcile.ExternalDomain {
	if o == nil {
		return openvswitch.Absent(errors.New("this process was given no databases of OVN: on a cluster, set agent.ovn.enabled in the chart's values; else give --ovs and --ovn-nb"))
	}
	return []reconcile.ExternalDomain{o.northbound.Domain(), o.vswitch.Domain()}
}

func (o *ovnDatabases) close() {
	if o != nil {
		o.northbound.Close()
		o.vswitch.Close()
	}
}
