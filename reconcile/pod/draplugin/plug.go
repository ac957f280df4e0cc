package draplugin

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// plug gives steps the ports that ovn-kubernetes has made for the pod, on a node whose OVN is its.
// Ports of an earlier pod of the claim are removed. ovn-kubernetes makes ports when it sees the
// pod, so they may still be missing.
func (d *decision) plug(ctx context.Context, c *claims.Claim) error {
	var asked, used bool
	stepOf := map[string]string{} // by attachment
	for i := range c.Topologies {
		t, err := c.Topologies[i].Decoded()
		if err != nil {
			return err
		}
		for j := range t.Steps {
			s := &t.Steps[j]
			known, _ := d.Contracts.Contract(s.Type)
			if len(known.Output.Attachment) == 0 {
				continue
			}
			if d.Attachments == nil {
				// How it is to be attached is decided once, here.
				return passing(fault.New(fault.NotReady, errorOf(t, s,
					errors.New("the agent has no databases of OVN: set agent.ovn.enabled in the chart's values (docs/ovn.md)"))))
			}
			if !asked {
				if used, err = d.Attachments.Used(ctx); err != nil {
					return passing(fault.New(fault.NotReady, errorOf(t, s, err)))
				}
				asked = true
			}
			given := ops.Given{}
			if used {
				if given, err = d.portOf(ctx, c, s, known.Output.Attachment[0], stepOf); err != nil {
					return errorOf(t, s, err)
				}
			}
			out := ops.Givens{}
			maps.Copy(out, c.Topologies[i].Given)
			if out[s.Name].Port != nil || given.Port != nil {
				out[s.Name] = out[s.Name].WithNetwork(given)
				c.Topologies[i].Given = out
			}
		}
	}
	return nil
}

func errorOf(t *topology.Topology, s *topology.Step, err error) error {
	return fmt.Errorf("NetworkTopology %q step %q: %w", t.Name, s.Name, err)
}

// portOf returns the port for one step.
func (d *decision) portOf(ctx context.Context, c *claims.Claim, s *topology.Step, key string, stepOf map[string]string) (ops.Given, error) {
	attachment, _ := s.Config[key].(string)
	switch other := stepOf[attachment]; {
	case attachment == "":
		return ops.Given{}, invalid("%s: is missing: ovn-kubernetes has attached this node to OVN, "+
			"and makes the pod's port on the network of a NetworkAttachmentDefinition; name that", key)
	case other != "":
		return ops.Given{},
			invalid("%s: %q is also named by step %q: ovn-kubernetes has made one port of the pod there; remove one of the steps", key,
				attachment, other)
	}
	stepOf[attachment] = s.Name
	given, err := d.Attachments.Given(ctx, c.Namespace, c.Pod, attachment)
	switch {
	case fault.Of(err) == fault.NotReady:
		return given, passing(err)
	case err != nil:
		return given, err
	case given.Port.Addressed && s.Config["ipam"] != nil:
		return given, invalid("ipam: has no effect: ovn-kubernetes gives the pod the addresses of NetworkAttachmentDefinition %q; "+
			"remove it, or remove the subnets of that", attachment)
	}
	return given, nil
}
