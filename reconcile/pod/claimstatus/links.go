package claimstatus

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/ports"
)

var linkUp = map[ports.Status]metav1.ConditionStatus{
	ports.Up: metav1.ConditionTrue, ports.Down: metav1.ConditionFalse, ports.Unknown: metav1.ConditionUnknown,
}

// Links reports what is known of the ports of a sandbox: as conditions of the devices,
// and as Events where a device has gone down or come up. The Monitor has debounced it,
// and bounds how often it is reported.
func (r *Reporter) Links(c claims.Claim, of ports.Report) {
	links := map[string]condition{}
	if of.Gone {
		r.update(c, of.Topology.Name, verdict{links: links})
		return
	}
	for i := range of.Topology.Steps {
		step := &of.Topology.Steps[i]
		at := ports.Leg(of.Ports, step.Name)
		if len(step.DependOn) > 0 || at < 0 || of.Verdicts[at].Status == "" {
			continue
		}
		v, before := of.Verdicts[at], of.Before[at]
		text := v.Text(of.Ports[at])
		switch severity, failed := of.Devices[step.Name]; {
		case failed && severity == ports.Lost:
			text += "; the network built on it is lost"
		case failed:
			text += "; links built on it continue without it"
		}
		links[step.Name] = condition{
			linkUp[v.Status], string(v.Reason),
			fmt.Sprintf("topology %q step %q: %s", of.Topology.Name, step.Name, text),
		}
		switch {
		case v == before:
		case v.Status == ports.Down:
			r.events.warning(c, "NetworkLinkDown", links[step.Name].message)
		case v.Status == ports.Up && before.Status == ports.Down:
			r.events.normal(c, "NetworkLinkUp", links[step.Name].message)
		}
	}
	r.update(c, of.Topology.Name, verdict{links: links})
}
