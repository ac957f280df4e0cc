package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/openvswitch"
	"github.com/plumbline/plumbline/reconcile/openvswitch/flowcounters"
)

// databases are the OVN databases that steps of type ovn-k8s-cni-overlay need.
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
	f.StringVar(&d.ovs, "ovs", ovs, "`endpoint` of the Open vSwitch database, for steps of type ovn-k8s-cni-overlay")
	f.StringVar(&d.nb, "ovn-nb", nb,
		"`endpoint` of the OVN Northbound database: unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT, comma-separated")
	d.credentials.flags(cmd, "ovn-")
	for _, name := range []string{"ovs", "ovn-nb"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
}

// open returns the databases. No connection is opened before a step needs one.
func (d *databases) open() (*hostengine.OVN, error) {
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
	out := &hostengine.OVN{Switch: vswitch, Northbound: northbound}
	first, _, _ := strings.Cut(d.ovs, ",")
	if dir := flowcounters.DirOf(first); dir != "" {
		out.Counters = &flowcounters.Reader{Dir: dir, Numbers: vswitch.Numbers}
	}
	return out, nil
}
