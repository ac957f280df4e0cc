package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/openvswitch"
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

// domains returns the domains of the engine, and what closes them. No connection is opened before
// a step needs one.
func (d *databases) domains() ([]reconcile.ExternalDomain, func(), error) {
	if d.ovs == "" || d.nb == "" {
		return openvswitch.Absent(errors.New("this process was given no databases of OVN: on a cluster, set agent.ovn.enabled in the chart's values; else give --ovs and --ovn-nb")), func() {}, nil
	}
	secured, err := d.tls()
	if err != nil {
		return nil, nil, err
	}
	vswitch, err := openvswitch.NewSwitch(openvswitch.Server{Endpoints: strings.Split(d.ovs, ",")})
	if err != nil {
		return nil, nil, fmt.Errorf("--ovs: %w", err)
	}
	northbound, err := openvswitch.NewNorthbound(openvswitch.Server{Endpoints: strings.Split(d.nb, ","), TLS: secured})
	if err != nil {
		return nil, nil, fmt.Errorf("--ovn-nb: %w", err)
	}
	return []reconcile.ExternalDomain{northbound.Domain(), vswitch.Domain()}, func() {
		northbound.Close()
		vswitch.Close()
	}, nil
}
