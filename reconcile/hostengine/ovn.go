package hostengine

import (
	"context"
	"errors"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/openvswitch"
	"github.com/plumbline/plumbline/reconcile/openvswitch/flowcounters"
	"github.com/plumbline/plumbline/reconcile/ports"
)

// OVN are the databases that steps of type ovn-k8s-cni-overlay need. A nil pointer is none of them.
type OVN struct {
	Switch     *openvswitch.Switch
	Northbound *openvswitch.Northbound
	Counters   *flowcounters.Reader // nil if Open vSwitch is not on this node
}

// Readings reads the counters of rules that OVN enforces. Without Open vSwitch on this node none is known.
func (o *OVN) Readings(ctx context.Context, of []ports.LogicalRule) ([]ports.Reading, error) {
	if o == nil || o.Counters == nil {
		return make([]ports.Reading, len(of)), nil
	}
	return o.Counters.Read(ctx, of)
}

// domains returns the domains of the engine.
func (o *OVN) domains() []reconcile.ExternalDomain {
	if o == nil {
		return openvswitch.Absent(errors.New("this process was given no databases of OVN: " +
			"on a cluster, set agent.ovn.enabled in the chart's values; else give --ovs and --ovn-nb"))
	}
	return []reconcile.ExternalDomain{o.Northbound.Domain(), o.Switch.Domain()}
}

func (o *OVN) close() {
	if o != nil {
		o.Northbound.Close()
		o.Switch.Close()
	}
}
