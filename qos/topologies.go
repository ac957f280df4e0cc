package qos

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology"
	topologyv1alpha1 "github.com/plumbline/plumbline/topology/v1alpha1"
)

// SelectsTopologies reports whether a policy may cover NetworkTopologies. One that does not
// is about networks of others, such as those of ovn-kubernetes.
func (p *Policy) SelectsTopologies() bool {
	return slices.ContainsFunc(p.networks, func(t networkTerm) bool {
		return t.kind == NetworkTopology || t.definition() != "" || t.byLabels() || t.among != nil
	})
}

// SelectsPrimary reports whether a policy may cover the primary network of pods.
func (p *Policy) SelectsPrimary() bool {
	return len(p.networks) == 0 || slices.ContainsFunc(p.networks, func(t networkTerm) bool { return t.kind == DefaultNetwork })
}

// Selects reports whether a policy may cover a network that agents make: a NetworkTopology, or the primary network of pods if
// agents make that, too. A Share counts it.
func (p *Policy) Selects(podNetwork bool) bool {
	return p.SelectsTopologies() || podNetwork && p.SelectsPrimary()
}

// Covers reports whether a policy covers a network without regard to the labels of namespaces, which topologies do not have.
func (p *Policy) Covers(n Network) bool { return p.mayCover(n) }

// Definitions are the NetworkAttachmentDefinitions that a policy refers to, as NAMESPACE/NAME; only says that it selects nothing
// else but networks by labels.
func (p *Policy) Definitions() (names []string, only bool) {
	only = len(p.networks) > 0
	for _, t := range p.networks {
		d := t.definition()
		if d != "" {
			names = append(names, d)
		}
		only = only && (d != "" || t.byLabels() || t.among != nil)
	}
	return names, only
}

// definition is the NetworkAttachmentDefinition that the term refers to, "" if it does to none. Ovn-kubernetes makes one of the
// name of a UserDefinedNetwork, in its namespace, and of a ClusterUserDefinedNetwork one in each namespace that this selects:
// of these, pods use that of their own.
func (t networkTerm) definition() string {
	switch {
	case t.name == "":
	case t.kind == NetworkAttachmentDefinition || t.kind == UserDefinedNetwork:
		return t.namespace + "/" + t.name
	case t.kind == ClusterUserDefinedNetwork:
		return t.of + "/" + t.name
	}
	return ""
}

// TopologyLabels returns the labels by which policies select a topology: its own, and by its key the annotation that names a
// NetworkAttachmentDefinition. Selectors do not see that.
func TopologyLabels(o *metav1.ObjectMeta) map[string]string {
	definition, ok := o.Annotations[topologyv1alpha1.AnnotationDefinition]
	if !ok {
		return o.Labels
	}
	return withDefinition(o.Labels, definition)
}

func withDefinition(labels map[string]string, definition string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, labels)
	out[topologyv1alpha1.AnnotationDefinition] = definition
	return out
}

// between separates definitions: no name of an object contains it.
const between = ","

// WithDefinitions returns labels of a topology as a whole, of which some interfaces are on networks of these
// NetworkAttachmentDefinitions: see TopologyLabels.
func WithDefinitions(labels map[string]string, definitions map[string]string) map[string]string {
	if len(definitions) == 0 {
		return labels
	}
	all := slices.Collect(maps.Values(definitions))
	if one := labels[topologyv1alpha1.AnnotationDefinition]; one != "" {
		all = append(all, one)
	}
	slices.Sort(all)
	return withDefinition(labels, strings.Join(slices.Compact(all), between))
}

// Defined reports whether a topology with these labels is, or one of its interfaces is on, the network of a NetworkAttachmentDefinition.
func Defined(labels map[string]string, definition string) bool {
	return definedAmong(labels, map[string]bool{definition: true})
}

// DefinitionsIn are the NetworkAttachmentDefinitions that Defined reports of these labels.
func DefinitionsIn(labels map[string]string) []string {
	all := strings.Split(labels[topologyv1alpha1.AnnotationDefinition], between)
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

func definedAmong(labels map[string]string, definitions map[string]bool) bool {
	for is := range strings.SplitSeq(labels[topologyv1alpha1.AnnotationDefinition], between) {
		if is != "" && definitions[is] {
			return true
		}
	}
	return false
}

// TopologyAttachments are those of a pod with a topology of these labels: one of the interfaces that are on the topology's own network, and
// one for each NetworkAttachmentDefinition whose network other interfaces are on, by step: see topology.Definitions. Interface is
// that definition.
func TopologyAttachments(name string, labels map[string]string, definitions map[string]string) []Attachment {
	id := NetworkID{Kind: NetworkTopology, Name: name}
	out := []Attachment{{Network: Network{NetworkID: id, Labels: labels}}}
	for _, d := range slices.Compact(slices.Sorted(maps.Values(definitions))) {
		out = append(out, Attachment{Network: Network{NetworkID: id, Labels: withDefinition(labels, d)}, Interface: d})
	}
	return out
}

// labelsAlone are the labels of TopologyLabels.
type labelsAlone map[string]string

// Lookup implements labels.Labels.
func (l labelsAlone) Lookup(key string) (string, bool) {
	if key == topologyv1alpha1.AnnotationDefinition {
		return "", false
	}
	v, ok := l[key]
	return v, ok
}

// Get implements labels.Labels.
func (l labelsAlone) Get(key string) string {
	v, _ := l.Lookup(key)
	return v
}

// Has implements labels.Labels.
func (l labelsAlone) Has(key string) bool {
	_, ok := l.Lookup(key)
	return ok
}

// SelectsTopology reports whether a policy covers a NetworkTopology with these labels: see TopologyLabels.
func (p *Policy) SelectsTopology(name string, of map[string]string) bool {
	return p.mayCover(Network{NetworkID: NetworkID{Kind: NetworkTopology, Name: name}, Labels: of})
}

// NoTopology is the message about a policy that selects no NetworkTopology, where nothing but their networks is
// enforced.
const NoTopology = "it selects no NetworkTopology, and nothing else is enforced. The primary network of pods is that of the CNI plugin: " +
	"ovn-kubernetes enforces objects there, with its own CRD and controller. " +
	"For networks of claims add networkSelectors with networkSelectionType " + string(v1alpha1.NetworkTopologies)

// Notes returns remarks on what is valid and has no effect: fields, or the whole policy on these topologies. ours:
// nothing but topologies is enforced. podNetwork: one of them may be the primary network of pods.
func (p *Policy) Notes(ours, podNetwork bool) []string {
	out := slices.Clone(p.Warnings)
	if p.Err == nil && ours && !p.Selects(podNetwork) {
		out = append(out, NoTopology)
	}
	return out
}

// Reason returns what is wrong with an object in one line, "" if nothing is.
func (p *Policy) Reason() string {
	invalid, ok := errors.AsType[*topology.Listed](p.Err)
	switch {
	case p.Err == nil:
		return ""
	case !ok:
		return p.Err.Error()
	case len(invalid.Problems) > 1:
		return fmt.Sprintf("%s (and more)", invalid.Problems[0])
	default:
		return invalid.Problems[0]
	}
}
