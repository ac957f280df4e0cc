package claim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
)

// Source is the object with the requests, as messages name it.
type Source struct {
	Kind, Name string
	// Pod is the pod whose extended resources the requests come from: the scheduler creates
	// the claim, which no user has written.
	Pod string
}

// SourceOf returns the source of a claim's, or a template's, requests. A user who sets the
// scheduler's annotation on a claim changes only the messages.
func SourceOf(kind string, o metav1.Object) Source {
	s := Source{Kind: kind, Name: o.GetName()}
	s.Name = cmp.Or(s.Name, o.GetGenerateName()+"*")
	if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == "Pod" &&
		o.GetAnnotations()[resourceapi.ExtendedResourceClaimAnnotation] == "true" {
		s.Pod = owner.Name
	}
	return s
}

func (s Source) String() string {
	if s.Pod != "" {
		return fmt.Sprintf("extended resources of Pod %q", s.Pod)
	}
	return fmt.Sprintf("%s %q", s.Kind, s.Name)
}

// Limit is an extended resource and how many of it a pod requests.
type Limit struct {
	Resource string
	Count    int
}

// Limits returns what a pod without a claim requests in the limits of its containers to use
// a topology: each DeviceClass is an extended resource with an implicit name, also if it
// has no extendedResourceName.
func Limits(t *topology.Topology, set contract.Set) []Limit {
	var out []Limit
	for _, s := range Requested(t, set) {
		name := cmp.Or(s.ExtendedResourceName, resourceapi.ResourceDeviceClassPrefix+ClassName(t.Name, s.Name))
		i := slices.IndexFunc(out, func(l Limit) bool { return l.Resource == name })
		if i < 0 {
			out = append(out, Limit{Resource: name})
			i = len(out) - 1
		}
		out[i].Count++
	}
	return out
}

// limits is Limits as a sentence.
func limits(t *topology.Topology, set contract.Set) string {
	var each []string
	for _, l := range Limits(t, set) {
		each = append(each, fmt.Sprintf("%s: %d", l.Resource, l.Count))
	}
	return "The limits of its containers must have, taken together, " + strings.Join(each, ", ") + "."
}
