package admission

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/plumbline/plumbline/qos"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
)

// TestNetworkQoS: an invalid object is refused with the sentences of plumbline validate, but for one
// about networks of others where ovn-kubernetes may accept it. Notes are warnings.
func TestNetworkQoS(t *testing.T) {
	const topologies = `"networkSelectors":[{"networkSelectionType":"NetworkTopologies","networkTopologySelector":{"networkSelector":{}}}]`
	for name, tt := range map[string]struct {
		spec    string
		all     bool
		refused bool
		warned  []string
	}{
		"valid":                          {spec: `"egress":[{"dscp":1}],` + topologies, all: true},
		"invalid":                        {spec: `"egress":[{"dscp":64},{}],` + topologies, refused: true},
		"invalid, ours":                  {spec: `"egress":[{"dscp":64},{}],` + topologies, all: true, refused: true},
		"invalid, of others":             {spec: `"egress":[{"dscp":64},{}]`, warned: []string{`NetworkQoS "ai/q": plumbline would not enforce it: spec.egress[0].dscp: is 64, and must be 0 to 63 (and more)`}},
		"invalid, no topology, ours":     {spec: `"egress":[{"dscp":64}]`, all: true, refused: true},
		"no topology":                    {spec: `"egress":[{"dscp":1}]`},
		"no topology, ours":              {spec: `"egress":[{"dscp":1}]`, all: true, warned: []string{`NetworkQoS "ai/q": it selects no NetworkTopology, and nothing else is enforced. The primary network of pods is that of the CNI plugin: ovn-kubernetes enforces objects there, with its own CRD and controller. For networks of claims add networkSelectors with networkSelectionType NetworkTopologies`}},
		"pods as a destination":          {spec: `"egress":[{"dscp":1,"classifier":{"to":[{"podSelector":{}}]}}],` + topologies, all: true},
		"pods of others' networks":       {spec: `"egress":[{"dscp":1,"classifier":{"to":[{"podSelector":{}}]}}]`},
		"a field without an effect":      {spec: `"egress":[{"dscp":1,"classifier":{"to":[{"ipBlock":{"cidr":"192.0.2.0/24","except":["198.51.100.1"]}}]}}],` + topologies, warned: []string{`NetworkQoS "ai/q": spec.egress[0].classifier.to[0].ipBlock.except[0]: 198.51.100.1/32 is not in 192.0.2.0/24, and has no effect`}},
		"not of this kind, of others":    {spec: `"egress":7`, warned: []string{"would not enforce it"}},
		"not of this kind, all are ours": {spec: `"egress":7`, all: true, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			raw := `{"apiVersion":"k8s.ovn.org/v1alpha1","kind":"NetworkQoS","metadata":{"name":"q","namespace":"ai"},"spec":{"priority":1,` + tt.spec + `}}`
			w := New(nil, nil, nil, nil)
			w.AllNetworkQoS = tt.all
			a := w.Handle(t.Context(), networkQoSRequest(raw))
			if a.Allowed == tt.refused {
				t.Fatalf("allowed: %v, %+v", a.Allowed, a.Result)
			}
			if tt.refused {
				o := &qosv1alpha1.NetworkQoS{}
				if err := json.Unmarshal([]byte(raw), o); err == nil {
					if want := message([]string{qos.New(o).Err.Error()}); a.Result.Message != want {
						t.Errorf("refused with %q, and plumbline validate says %q", a.Result.Message, want)
					}
				}
			}
			if !slices.EqualFunc(a.Warnings, tt.warned, strings.Contains) {
				t.Errorf("warnings %q, want %q", a.Warnings, tt.warned)
			}
		})
	}
}

func networkQoSRequest(raw string) admission.Request {
	r := admissionv1.AdmissionRequest{Operation: admissionv1.Create, Name: "q", Namespace: "ai"}
	r.Kind.Group, r.Kind.Kind, r.Object.Raw = qosv1alpha1.GroupVersion.Group, qosv1alpha1.Kind, []byte(raw)
	return admission.Request{AdmissionRequest: r}
}

// TestNetworkQoSBounds: an answer has a bounded size, however much is wrong, and what is too large or no JSON
// is left to the nodes.
func TestNetworkQoSBounds(t *testing.T) {
	var rules []string
	for range qos.MaxRules {
		var to []string
		for i := range 64 {
			to = append(to, fmt.Sprintf(`{"ipBlock":{"cidr":"%s%d"}}`, strings.Repeat("x", 300), i))
		}
		rules = append(rules, `{"dscp":99,"classifier":{"to":[`+strings.Join(to, ",")+`]}}`)
	}
	w := New(nil, nil, nil, nil)
	raw := `{"metadata":{"name":"q","namespace":"ai"},"spec":{"priority":1,"egress":[` + strings.Join(rules, ",") + `]}}`
	if a := w.Handle(t.Context(), networkQoSRequest(raw)); !a.Allowed || len(a.Warnings) != 1 || len(a.Warnings[0]) > maxWarning {
		t.Errorf("warnings: %q", a.Warnings)
	}
	w.AllNetworkQoS = true
	if a := w.Handle(t.Context(), networkQoSRequest(raw)); a.Allowed || len(a.Result.Message) > 2*maxMessage {
		t.Errorf("refused with %d bytes", len(a.Result.Message))
	}
	for _, raw := range []string{"{", strings.Repeat(" ", maxObject+1), `{"spec":` + strings.Repeat("[", 1<<20)} {
		if a := w.Handle(t.Context(), networkQoSRequest(raw)); !a.Allowed || len(a.Warnings) != 1 {
			t.Errorf("%.10q: %+v", raw, a)
		}
	}
}
