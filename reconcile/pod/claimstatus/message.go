package claimstatus

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/excerpt"
)

func attached(topologyName string, steps []topology.StepResult) verdict {
	if steps == nil {
		steps = []topology.StepResult{}
	}
	return verdict{
		ready:  &condition{metav1.ConditionTrue, reasonReady, readyMessage(topologyName, steps)},
		inSync: &condition{metav1.ConditionTrue, reasonInSync, ""},
		steps:  steps,
	}
}

func attaching(at string) verdict {
	return verdict{
		ready:  &condition{metav1.ConditionFalse, reasonAttaching, at},
		inSync: &condition{metav1.ConditionUnknown, reasonAttaching, ""},
		bare:   true,
	}
}

func failed(topologyName string, err error) verdict {
	f := &failure{Kind: kindOf(err), Message: err.Error()}
	if step, ok := errors.AsType[*ops.StepError](err); ok {
		f.Step = step.Step
	}
	if prefix := fmt.Sprintf("topology %q: ", topologyName); topologyName != "" && !strings.Contains(f.Message, prefix) {
		f.Message = prefix + f.Message
	}
	return verdict{
		ready:   &condition{metav1.ConditionFalse, f.Kind, f.Message},
		inSync:  &condition{metav1.ConditionUnknown, f.Kind, ""},
		failure: f,
	}
}

func readyMessage(topologyName string, steps []topology.StepResult) string {
	var names []string
	for _, s := range steps {
		for _, i := range s.Result.Interfaces {
			if i.Sandbox != "" && !slices.Contains(names, i.Name) {
				names = append(names, i.Name)
			}
		}
	}
	message := fmt.Sprintf("topology %q: %d steps done", topologyName, len(steps))
	if len(names) > 0 {
		message += ", interfaces " + strings.Join(names, ", ")
	}
	return message
}

// driftMax is the number of differences that a message lists.
const driftMax = 3

func driftMessage(topologyName string, drift []reconcile.Drift) string {
	return fmt.Sprintf("topology %q: %s", topologyName, excerpt.Few(drift, driftMax, reconcile.Drift.String))
}

// contentionMessage lists what is contended, and says that repairs are slowed down.
func contentionMessage(topologyName string, contended []reconcile.Contention) string {
	few := excerpt.Few(contended, driftMax, reconcile.Contention.String)
	return fmt.Sprintf("topology %q: %s; repairs are slowed down", topologyName, few)
}
