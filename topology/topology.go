package topology

import (
	"slices"

	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Topology is a NetworkTopology, decoded.
type Topology struct {
	Name         string       `json:"name"`
	Generation   int64        `json:"generation,omitempty"`
	DriftPolicy  DriftPolicy  `json:"driftPolicy,omitempty"`
	UpdatePolicy UpdatePolicy `json:"updatePolicy,omitempty"`
	// AllowPodUplink lets steps change the pod's own interface to the cluster.
	AllowPodUplink bool   `json:"allowPodUplink,omitempty"`
	Steps          []Step `json:"steps"`
	// Role is spec.role; "" for a topology that claims request.
	Role v1alpha1.Role `json:"role,omitempty"`
	// ClaimTemplate is spec.claimTemplate; nil if there is none.
	ClaimTemplate *v1alpha1.ClaimTemplate `json:"claimTemplate,omitempty"`
	// Export is spec.export; nil if there is none. No step depends on it, so no record of the engine has it.
	Export *v1alpha1.Export `json:"-"`
	// ClaimParameters is spec.claimParameters: what claims may set in the configs of steps, which have these values.
	ClaimParameters []v1alpha1.ClaimParameter `json:"-"`
	// Ignored lists the other documents of the file, as in `Pod "ai-training"`.
	Ignored []string `json:"-"`
	// Expanded says of each step that one with masterNets or forEach stands for which step was written, and
	// the index in these. Problems are named after that.
	Expanded map[string]Expansion `json:"-"`
}

// Expansion is a step as it was written.
type Expansion struct {
	Step    string
	Index   int
	ForEach bool // of values of forEach, not of masterNets
}

// Step is one node of the graph.
type Step struct {
	Name     string   `json:"name"`
	Type     string   `json:"type"`
	DependOn []string `json:"dependOn,omitempty"`
	Selector string   `json:"selector,omitempty"` // a CEL expression; root steps only
	// ExtendedResourceName is the resource by which pods without a claim request its
	// device; root steps only.
	ExtendedResourceName string `json:"extendedResourceName,omitempty"`
	// Config is as the user wrote it: aliases not folded, references in place.
	Config map[string]any `json:"config,omitempty"`
	// AllowDuplicate lets several pods have the literal addresses of the config.
	AllowDuplicate bool `json:"allowDuplicate,omitempty"`
	// DriftPolicy is the step's own or, after decoding, the topology's.
	DriftPolicy DriftPolicy `json:"driftPolicy,omitempty"`
}

// DriftPolicy selects what happens when the network drifts from the topology.
type DriftPolicy = v1alpha1.DriftPolicy

// The drift policies.
const (
	Repair  = v1alpha1.Repair  // change it back; the default
	Observe = v1alpha1.Observe // report it
)

// UpdatePolicy selects whether a topology in use may change.
type UpdatePolicy = v1alpha1.UpdatePolicy

// The update policies.
const (
	Immutable = v1alpha1.Immutable // never; the default
	InPlace   = v1alpha1.InPlace   // changes are applied to running pods
)

// Root reports whether the step attaches a device instead of building on others.
func (s *Step) Root() bool { return len(s.DependOn) == 0 }

// Step returns a step by name.
func (t *Topology) Step(name string) (*Step, bool) {
	i := slices.IndexFunc(t.Steps, func(s Step) bool { return s.Name == name })
	if i < 0 {
		return nil, false
	}
	return &t.Steps[i], true
}

// Roots returns the root steps in order of declaration.
func (t *Topology) Roots() []*Step {
	var out []*Step
	for i := range t.Steps {
		if t.Steps[i].Root() {
			out = append(out, &t.Steps[i])
		}
	}
	return out
}

// Names returns the names of all steps in order of declaration.
func (t *Topology) Names() []string {
	return excerpt.Texts(t.Steps, func(s Step) string { return s.Name })
}
