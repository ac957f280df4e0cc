package controller

import (
	"context"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/plumbline/plumbline/qos"
)

// setNetwork adds or replaces an object of others that defines a network. It is read only: ADR 90.
func (d *Destinations) setNetwork(o *qos.Definition) {
	d.lock()
	defer d.mu.Unlock()
	d.defined(d.networks.Set(o), o)
}

// deleteNetwork forgets such an object.
func (d *Destinations) deleteNetwork(id qos.NetworkID) {
	d.lock()
	defer d.mu.Unlock()
	d.defined(d.networks.Delete(id), nil)
}

// defined has those policies resolved again that select other networks since an object has changed. Which ones these are is computed
// when a policy is written, at most once a second for each: users may edit such objects at any rate. The caller holds mu.
func (d *Destinations) defined(old, now *qos.Definition) {
	if old != nil && now != nil && maps.Equal(old.Labels, now.Labels) && old.Owner == now.Owner && ptr.Equal(old.Primary, now.Primary) {
		return
	}
	for key, p := range d.policies {
		if p.ByLabels() && (d.selects(p, old) != d.selects(p, now) || d.ownerOf(p, old) || d.ownerOf(p, now)) {
			d.stale[key] = true
			d.changed(key)
		}
	}
}

// selects reports whether a policy selects an object, which may be nil. The caller holds mu.
func (d *Destinations) selects(p *qos.Policy, o *qos.Definition) bool {
	return o != nil && p.SelectsDefinition(o, d.compiler.NamespaceLabels(o.Namespace))
}

// ownerOf reports whether a policy selects the owner of an object, which may be nil. The caller holds mu.
func (d *Destinations) ownerOf(p *qos.Policy, o *qos.Definition) bool {
	return o != nil && d.selects(p, d.networks.Get(o.Owner))
}

// relabelled has those policies resolved again of which a selector selects networks in a namespace now and did not, or the other way round.
// One that is not known has no labels. The caller holds mu.
func (d *Destinations) relabelled(old, now map[string]string) {
	if maps.Equal(old, now) {
		return
	}
	for key, p := range d.policies {
		if p.TellsApart(old, now) {
			d.stale[key] = true
			d.changed(key)
		}
	}
}

// resolve finds the networks that a policy selects by labels, if they may be others, and compiles it with them. The caller holds mu.
func (d *Destinations) resolve(p *qos.Policy) {
	if !d.stale[p.Key] {
		return
	}
	delete(d.stale, p.Key)
	now := d.networks.Selected(p, d.compiler.NamespaceLabels, func(name string) bool { return d.onTopology[name] > 0 },
		d.selected[p.Key].Names)
	d.selected[p.Key] = now
	d.report(d.compiler.SetPolicy(p.WithNetworks(now.Names)))
}

// setNamed sets on which networks of NetworkAttachmentDefinitions a topology is: these come first for objects that select too many.
func (d *Destinations) setNamed(topology string, definitions []string) {
	d.lock()
	defer d.mu.Unlock()
	if slices.Equal(d.named[topology], definitions) {
		return
	}
	for _, name := range definitions {
		d.onTopology[name]++
	}
	for _, name := range d.named[topology] {
		if d.onTopology[name]--; d.onTopology[name] == 0 {
			delete(d.onTopology, name)
		}
	}
	if d.named[topology] = definitions; len(definitions) == 0 {
		delete(d.named, topology)
	}
	for key, s := range d.selected {
		if s.Partial {
			d.stale[key] = true
			d.changed(key)
		}
	}
}

// unselect forgets the networks of a policy. The caller holds mu.
func (d *Destinations) unselect(key types.NamespacedName) {
	delete(d.stale, key)
	delete(d.selected, key)
}

// networkResources are the kinds of objects of others that define networks.
var networkResources = map[qos.NetworkKind]schema.GroupVersionResource{
	qos.NetworkAttachmentDefinition: {Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"},
	qos.UserDefinedNetwork:          {Group: "k8s.ovn.org", Version: "v1", Resource: "userdefinednetworks"},
	qos.ClusterUserDefinedNetwork:   {Group: "k8s.ovn.org", Version: "v1", Resource: "clusteruserdefinednetworks"},
}

// followNetworks follows the objects of others that define networks, from the first object that selects some by labels. A kind that the API
// server does not serve has none, and is asked for again.
func (w *destinationWriter) followNetworks(ctx context.Context) {
	stores := []*keptStore{w.namespaces(ctx)}
	for kind, resource := range networkResources {
		id := func(key types.NamespacedName) qos.NetworkID {
			return qos.NetworkID{Kind: kind, Namespace: key.Namespace, Name: key.Name}
		}
		s := &keptStore{
			resource: resource, again: qosAgain, synced: make(chan struct{}),
			set: func(key types.NamespacedName, o *cachedMeta) {
				w.setNetwork(&qos.Definition{
					NetworkID: id(key), Labels: o.Labels, Primary: o.primary,
					Owner: ownerOf(o.OwnerReferences, key.Namespace),
				})
			},
			remove: func(key types.NamespacedName) { w.deleteNetwork(id(key)) },
		}
		if kind == qos.UserDefinedNetwork { // its metadata does not have the role
			s.whole, s.of = w.owner.Objects, roleOf
		}
		go s.run(ctx, w.owner.Metadata)
		stores = append(stores, s)
	}
	if allSynced(ctx, stores) {
		close(w.networksSynced)
	}
}

// ownerOf is the object that ovn-kubernetes has made a NetworkAttachmentDefinition in a namespace for.
func ownerOf(references []metav1.OwnerReference, namespace string) qos.NetworkID {
	for _, r := range references {
		switch version, _ := schema.ParseGroupVersion(r.APIVersion); {
		case version.Group != networkResources[qos.UserDefinedNetwork].Group:
		case r.Kind == string(qos.UserDefinedNetwork):
			return qos.NetworkID{Kind: qos.UserDefinedNetwork, Namespace: namespace, Name: r.Name}
		case r.Kind == string(qos.ClusterUserDefinedNetwork):
			return qos.NetworkID{Kind: qos.ClusterUserDefinedNetwork, Name: r.Name}
		}
	}
	return qos.NetworkID{}
}

// roleOf returns what is kept of a UserDefinedNetwork.
func roleOf(o *unstructured.Unstructured) *cachedMeta {
	out := labelledOf(o)
	for _, topology := range []string{"layer2", "layer3", "localnet"} {
		if role, found, _ := unstructured.NestedString(o.Object, "spec", topology, "role"); found {
			out.primary = new(role == "Primary")
		}
	}
	return out
}
