package admission

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/plumbline/plumbline/qos"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
)

// networkQoS decides on a NetworkQoS. Beside ovn-kubernetes one that selects no topology is for its
// networks: what is wrong with that one is a warning, as ovn-kubernetes decides what it accepts.
func (w *Webhook) networkQoS(r admission.Request) (a answer, err error) {
	object, err := decode[map[string]any](r)
	if err != nil {
		return a, err
	}
	u := &unstructured.Unstructured{Object: *object}
	if u.GetDeletionTimestamp() != nil {
		return a, nil
	}
	if u.GetNamespace() == "" {
		u.SetNamespace(r.Namespace)
	}
	p, _ := qos.Read(u)
	switch {
	case p.Err == nil:
	case w.AllNetworkQoS || p.Selects(w.PodNetwork) && !p.OnlyByLabels():
		a.refuse(p.Err)
	default:
		a.warn("%s %q: plumbline would not enforce it: %s", qosv1alpha1.Kind, p.Name(), p.Reason())
	}
	for _, note := range p.Notes(w.AllNetworkQoS, w.PodNetwork) {
		a.warn("%s %q: %s", qosv1alpha1.Kind, p.Name(), note)
	}
	return a, nil
}
