package ops

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// Holder names the sandbox and the step, the same for no two of them in a cluster.
func (p *Planner) Holder() string {
	if p.req.Sandbox == "" {
		return p.req.Netns + "/" + p.req.Topology.Name + "/" + p.stepName()
	}
	return p.req.Sandbox + "/" + p.stepName()
}

// StableMAC is a MAC address for the interface of this step that is known before the
// interface exists, and the same each time: locally administered, unicast, and different for
// other sandboxes and other values of scope.
func (p *Planner) StableMAC(scope string) string {
	sum := sha256.Sum256([]byte(scope + "\x00" + p.req.Netns + "\x00" + p.Holder()))
	return fmt.Sprintf("02:%02x:%02x:%02x:%02x:%02x", sum[0], sum[1], sum[2], sum[3], sum[4])
}

// GivenPort is the port that ovn-kubernetes has made for the pod, nil if there is none.
func (p *Planner) GivenPort() *Port { return p.req.Given[p.stepName()].Port }

// Imagined reports whether the plan is made without a node, to validate the topology.
func (p *Planner) Imagined() bool { return p.req.imagined != nil }

// WantInstalled wants a port of Open vSwitch, and lets the step wait until OVN has installed
// it.
func (p *Planner) WantInstalled(port netstate.OVSPort) error {
	if err := p.Want(port); err != nil {
		return err
	}
	p.settling = append(p.settling, port)
	have, exists := netstate.Lookup(p.req.Have, port)
	if !exists || have.Installed {
		return nil
	}
	why := errors.New("ovn-controller has not installed it: " +
		"look at the log of ovn-controller on this node, and whether it is connected to the Southbound database")
	if have.Failure != "" {
		why = fmt.Errorf("its interface has an error: %s", have.Failure)
	}
	needs := fmt.Sprintf("the installation of port %q by OVN", netstate.BaseName(port.Link))
	p.current.await(needs, &settling{fault.New(fault.NotReady,
		fmt.Errorf("port %q of bridge %q: %w", netstate.BaseName(port.Link), *port.Bridge, why))})
	return nil
}
