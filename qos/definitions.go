package qos

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/topology/nested"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Definition is an object of others that defines a network, and that policies select by its labels.
type Definition struct {
	// NetworkID has the kind NetworkAttachmentDefinition, UserDefinedNetwork or ClusterUserDefinedNetwork.
	NetworkID
	Labels map[string]string
	// Primary says whether a UserDefinedNetwork has the role Primary; nil if it has none.
	Primary *bool
	// Owner is the object of the other two kinds that ovn-kubernetes has made a NetworkAttachmentDefinition for.
	Owner NetworkID
}

// byLabels reports whether the term selects networks of others by the labels of their objects.
func (t networkTerm) byLabels() bool {
	return t.name == "" && t.among == nil && (t.kind == NetworkAttachmentDefinition || t.kind == UserDefinedNetwork ||
		t.kind == ClusterUserDefinedNetwork)
}

// ByLabels reports whether the policy selects networks of others by the labels of their objects. Agents do not read these objects:
// the controller resolves the selectors for them, see WithNetworks.
func (p *Policy) ByLabels() bool { return slices.ContainsFunc(p.networks, networkTerm.byLabels) }

// LabelsInCluster is a note on a policy that selects networks by labels, where no cluster is asked.
const LabelsInCluster = "spec.networkSelectors: NetworkAttachmentDefinitions, UserDefinedNetworks and ClusterUserDefinedNetworks that " +
	"are selected by labels are known in a cluster only; by name, in netAttachRefs, they are known here"

// OnlyByLabels reports whether the policy selects networks of others by the labels of their objects, and nothing else.
func (p *Policy) OnlyByLabels() bool {
	return len(p.networks) > 0 && !slices.ContainsFunc(p.networks, func(t networkTerm) bool { return !t.byLabels() })
}

// Written reports whether the controller writes a NetworkQoSDestinations of the policy: it has pods as a destination, or
// selects networks by the labels of objects of others.
func (p *Policy) Written() bool { return p.ToPods() || p.ByLabels() }

// WithNetworks returns the policy with the NetworkAttachmentDefinitions that it selects by labels, as NAMESPACE/NAME.
func (p *Policy) WithNetworks(names []string) *Policy {
	if !p.ByLabels() {
		return p
	}
	out := *p
	out.networks = slices.DeleteFunc(slices.Clone(p.networks), networkTerm.byLabels)
	among := networkTerm{kind: NetworkAttachmentDefinition, among: map[string]bool{}}
	for _, name := range names {
		among.among[name] = true
	}
	out.networks = append(out.networks, among)
	return &out
}

// SelectedByLabels reports whether a topology with these labels is on a network of those that WithNetworks was given.
func (p *Policy) SelectedByLabels(of map[string]string) bool {
	return slices.ContainsFunc(p.networks, func(t networkTerm) bool { return t.among != nil && definedAmong(of, t.among) })
}

// SelectsDefinition reports whether the policy selects the object by its labels and those of its namespace.
func (p *Policy) SelectsDefinition(d *Definition, namespace map[string]string) bool {
	return slices.ContainsFunc(p.networks, func(t networkTerm) bool {
		return t.byLabels() && t.covers(Network{NetworkID: d.NetworkID, Labels: d.Labels, Primary: d.Primary != nil && *d.Primary},
			labels.Set(namespace)) &&
			(t.primary == nil || d.Primary != nil)
	})
}

// selectsNamespace reports whether the policy selects networks by labels in a namespace with these labels.
func (p *Policy) selectsNamespace(namespace map[string]string) bool {
	return slices.ContainsFunc(p.networks, func(t networkTerm) bool {
		return t.byLabels() && t.namespaces != nil && t.namespaces.Matches(labels.Set(namespace))
	})
}

// TellsApart reports whether the policy selects networks by labels otherwise in namespaces with these labels.
func (p *Policy) TellsApart(a, b map[string]string) bool {
	return slices.ContainsFunc(p.networks, func(t networkTerm) bool {
		return t.byLabels() && t.namespaces != nil && t.namespaces.Matches(labels.Set(a)) != t.namespaces.Matches(labels.Set(b))
	})
}

// Definitions are the objects of others that define networks. Its zero value has none. It is not safe for concurrent use.
type Definitions struct {
	of nested.Map[string, NetworkID, *Definition] // by namespace, "" for those that have none
	// owned are the NetworkAttachmentDefinitions of an owner.
	owned nested.Map[NetworkID, NetworkID, bool]
}

// Set adds or replaces an object, and returns the earlier one.
func (d *Definitions) Set(o *Definition) (old *Definition) {
	old = d.Delete(o.NetworkID)
	d.of.Set(o.Namespace, o.NetworkID, o)
	if o.Owner.Name != "" {
		d.owned.Set(o.Owner, o.NetworkID, true)
	}
	return old
}

// Delete removes an object, and returns it.
func (d *Definitions) Delete(id NetworkID) (old *Definition) {
	if old = d.Get(id); old != nil {
		d.of.Delete(id.Namespace, id)
		d.owned.Delete(old.Owner, id)
	}
	return old
}

// Get returns an object, nil if there is none.
func (d *Definitions) Get(id NetworkID) *Definition { return d.of[id.Namespace][id] }

// Selection is the networks that a policy selects by labels.
type Selection struct {
	// Names are their NetworkAttachmentDefinitions, as NAMESPACE/NAME, sorted, at most v1alpha1.MaxQoSNetworks.
	Names []string
	// Partial says that they are more, so that some are left out on which no topology is.
	Partial bool
	// TooMany says that topologies are on more of them; then Names is empty.
	TooMany bool
}

// Selected returns the networks that a policy selects by labels. A UserDefinedNetwork or ClusterUserDefinedNetwork stands for the
// definition of its name that a reference means, and for those of the same namespace that it owns.
//
// Tenants may make any number of such objects, which is not to end a policy of others. So if the networks are more than the bound,
// first come those of which topology says that one is on it, then those of before: running pods may have interfaces that their
// topology no longer has.
func (d *Definitions) Selected(
	p *Policy, namespaces func(string) map[string]string, topology func(name string) bool, before []string,
) Selection {
	var out Selection
	written := map[string]bool{}
	for _, name := range before {
		written[name] = true
	}
	on, former, others := map[string]bool{}, map[string]bool{}, map[string]bool{}
	add := func(namespace, name string) {
		switch name = (types.NamespacedName{Namespace: namespace, Name: name}).String(); {
		case topology(name):
			on[name] = true
		case written[name]:
			former[name] = true
		case len(others) <= v1alpha1.MaxQoSNetworks:
			others[name] = true
		}
	}
	for namespace, all := range d.of {
		var of map[string]string
		if namespace != "" {
			if of = namespaces(namespace); !p.selectsNamespace(of) {
				continue
			}
		}
		for id, o := range all {
			if !p.SelectsDefinition(o, of) {
				continue
			}
			in := id.Namespace
			if id.Kind == ClusterUserDefinedNetwork {
				in = p.Key.Namespace
			}
			add(in, id.Name)
			for owned := range d.owned[id] {
				if owned.Namespace == in {
					add(in, owned.Name)
				}
			}
			if len(on) > v1alpha1.MaxQoSNetworks {
				return Selection{Partial: true, TooMany: true}
			}
		}
	}
	out.Names = slices.Sorted(maps.Keys(on))
	if out.Partial = len(on)+len(former)+len(others) > v1alpha1.MaxQoSNetworks; out.Partial {
		clear(others)
	}
	rest := append(slices.Sorted(maps.Keys(former)), slices.Collect(maps.Keys(others))...)
	out.Names = append(out.Names, rest[:min(len(rest), v1alpha1.MaxQoSNetworks-len(on))]...)
	slices.Sort(out.Names)
	return out
}
