package controller

import (
	"encoding/json"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/nested"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Destinations knows the addresses of the pods that rules of NetworkQoS objects have as a
// destination, and which objects a change is about. Of all objects it keeps those with such
// rules, and of all pods their labels. It is safe for concurrent use.
type Destinations struct {
	mu       sync.Mutex
	compiler *qos.Compiler
	policies map[types.NamespacedName]*qos.Policy
	shares   map[string]*qos.Share // of policies, by namespace
	pods     map[types.NamespacedName]labelled
	labels   map[string]map[string]string // of topologies
	// definitions are the NetworkAttachmentDefinitions of a topology's steps.
	definitions map[string]map[string]string
	deleted     map[string]bool // topologies that pods still have
	claims      map[string]*claim.Held
	of          nested.Map[types.NamespacedName, string, bool] // claims of a pod
	using       nested.Map[string, types.NamespacedName, bool] // pods by topology
	// PodNetwork says that agents make the primary network of pods, whose addresses are then destinations there. It is set
	// before anything else.
	PodNetwork bool
	primaries  map[string]map[string]string // labels of topologies of role primary
	// networks are the objects of others that define networks, and stale the policies that may select other networks than those they were
	// compiled with.
	networks   qos.Definitions
	named      map[string][]string // NetworkAttachmentDefinitions by topology, see setNamed
	onTopology map[string]int      // on how many topologies these are
	stale      map[types.NamespacedName]bool
	selected   map[types.NamespacedName]qos.Selection
	edited     map[types.NamespacedName]bool // objects that are to be read
	decided    map[types.NamespacedName]decision
	// changed is called with objects that have other addresses, or are to be read, while mu
	// is held.
	changed func(types.NamespacedName)
	// room is called with a namespace that may have room for an object that was left out, perhaps while mu is held.
	room func(namespace string)

	// heldMu guards claims that are not processed yet. It is not mu, which is held while sets are computed: claims
	// are set under a lock that the webhook waits for.
	heldMu sync.Mutex
	held   map[string]*claim.Held
	wake   chan struct{} // has an element when there are some
}

// decision is what was written of a generation of an object.
type decision struct {
	generation int64
	Decision
}

// labelled is the part of a pod that is kept.
type labelled struct {
	uid       types.UID
	labels    map[string]string
	addresses []netip.Addr // on the primary network, if that is ours
}

// NewDestinations returns one that knows nothing.
func NewDestinations() *Destinations {
	return &Destinations{
		compiler: qos.NewCompiler(), policies: map[types.NamespacedName]*qos.Policy{}, shares: map[string]*qos.Share{},
		pods:   map[types.NamespacedName]labelled{},
		labels: map[string]map[string]string{}, definitions: map[string]map[string]string{}, primaries: map[string]map[string]string{},
		deleted: map[string]bool{}, claims: map[string]*claim.Held{}, edited: map[types.NamespacedName]bool{},
		decided: map[types.NamespacedName]decision{}, changed: func(types.NamespacedName) {},
		named: map[string][]string{}, onTopology: map[string]int{},
		stale: map[types.NamespacedName]bool{}, selected: map[types.NamespacedName]qos.Selection{},
		room: func(string) {}, held: map[string]*claim.Held{}, wake: make(chan struct{}, 1),
	}
}

// OnChange has f called with each object that has other addresses, or is to be read. f must not
// block, and not call Destinations.
func (d *Destinations) OnChange(f func(types.NamespacedName)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changed = f
	for key := range d.edited {
		f(key)
	}
}

// Edited notes that an object may have changed, or no longer exists.
func (d *Destinations) Edited(key types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.edited[key] = true
	d.changed(key)
}

// take reports whether an object is to be read, once.
func (d *Destinations) take(key types.NamespacedName) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	is := d.edited[key]
	delete(d.edited, key)
	return is
}

// untake has take report an object once more.
func (d *Destinations) untake(key types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.edited[key] = true
}

// SetPolicy adds or replaces an object. An object is not kept if none of its destinations is pods and it selects no
// network by labels, if it is not enforced on topologies, or if its namespace has no room for it.
func (d *Destinations) SetPolicy(p *qos.Policy) {
	d.lock()
	defer d.mu.Unlock()
	old := d.policies[p.Key]
	switch {
	case p.Err != nil || !p.Selects(d.PodNetwork) || !p.Written():
		d.deletePolicy(p.Key)
		return
	case old != nil && old.UID == p.UID && old.Generation == p.Generation:
		return
	}
	share := d.shares[p.Key.Namespace]
	if share == nil {
		share = &qos.Share{}
		d.shares[p.Key.Namespace] = share
	}
	left := share.Put(p)
	d.policies[p.Key] = p
	if !slices.Contains(left, p) {
		d.stale[p.Key] = p.ByLabels()
		d.report(d.compiler.SetPolicy(p.WithNetworks(d.selected[p.Key].Names)))
	}
	for _, o := range left {
		delete(d.policies, o.Key)
		d.unselect(o.Key)
		d.report(d.compiler.DeletePolicy(o.Key))
		d.changed(o.Key)
	}
	d.changed(p.Key)
	d.checkRoom(p.Key.Namespace)
}

// DeletePolicy removes an object.
func (d *Destinations) DeletePolicy(key types.NamespacedName) {
	d.lock()
	defer d.mu.Unlock()
	d.deletePolicy(key)
}

func (d *Destinations) deletePolicy(key types.NamespacedName) {
	delete(d.decided, key)
	d.unselect(key)
	if d.policies[key] != nil {
		delete(d.policies, key)
		d.report(d.compiler.DeletePolicy(key))
	}
	share := d.shares[key.Namespace]
	if share == nil {
		return
	}
	share.Delete(key)
	if len(share.Policies()) == 0 && !share.Stale() {
		delete(d.shares, key.Namespace)
	}
	d.checkRoom(key.Namespace)
}

func (d *Destinations) checkRoom(namespace string) {
	if share := d.shares[namespace]; share != nil && share.Stale() {
		d.room(namespace)
	}
}

// reread queues the objects of a namespace that were left out, and may have room now, to be read again.
func (d *Destinations) reread(namespace string, enforced []*qos.Policy) {
	d.lock()
	defer d.mu.Unlock()
	share := d.shares[namespace]
	if share == nil || !share.Stale() {
		return
	}
	again := &qos.Share{}
	for _, p := range share.Policies() {
		again.Put(p)
	}
	d.shares[namespace] = again
	for _, p := range enforced {
		if p.Written() && d.policies[p.Key] == nil {
			d.edited[p.Key] = true
			d.changed(p.Key)
		}
	}
	if len(again.Policies()) == 0 {
		delete(d.shares, namespace)
	}
}

// SetNamespace sets the labels of a namespace.
func (d *Destinations) SetNamespace(name string, of map[string]string) {
	d.lock()
	defer d.mu.Unlock()
	d.relabelled(d.compiler.NamespaceLabels(name), of)
	d.report(d.compiler.SetNamespace(name, of))
}

// DeleteNamespace removes a namespace.
func (d *Destinations) DeleteNamespace(name string) {
	d.lock()
	defer d.mu.Unlock()
	d.relabelled(d.compiler.NamespaceLabels(name), nil)
	d.report(d.compiler.DeleteNamespace(name))
}

// SetPod sets the labels of a pod that has not ended, and its addresses on the primary network, which are none unless agents make it.
func (d *Destinations) SetPod(key types.NamespacedName, uid types.UID, of map[string]string, primary []netip.Addr) {
	d.lock()
	defer d.mu.Unlock()
	if old, known := d.pods[key]; known && old.uid == uid && maps.Equal(old.labels, of) && slices.Equal(old.addresses, primary) {
		return
	}
	d.pods[key] = labelled{uid, of, primary}
	d.place(key)
}

// SetPrimary sets the labels of a topology of role primary, or with deleted forgets a topology that is gone or has
// no such role. Pods reach one another by their primary addresses whichever of these topologies their nodes have, so
// each has the addresses of all pods.
func (d *Destinations) SetPrimary(name string, of map[string]string, deleted bool) {
	d.lock()
	defer d.mu.Unlock()
	old, was := d.primaries[name]
	switch {
	case deleted && !was || !deleted && was && maps.Equal(old, of):
		return
	case deleted:
		delete(d.primaries, name)
	default:
		d.primaries[name] = of
	}
	for key, pod := range d.pods {
		if len(pod.addresses) > 0 {
			d.place(key)
		}
	}
}

// DeletePod removes a pod.
func (d *Destinations) DeletePod(key types.NamespacedName) {
	d.lock()
	defer d.mu.Unlock()
	delete(d.pods, key)
	d.place(key)
}

// setTopology sets the labels of a topology.
func (d *Destinations) setTopology(name string, of map[string]string) {
	d.lock()
	defer d.mu.Unlock()
	delete(d.deleted, name)
	if old, known := d.labels[name]; known && maps.Equal(old, of) {
		return
	}
	d.labels[name] = of
	for key := range d.using[name] {
		d.place(key)
	}
}

// setDefinitions sets the NetworkAttachmentDefinitions of the networks that interfaces of a topology are on, by step. The
// addresses of a pod are known by topology: those of all its interfaces are destinations on each of these networks.
func (d *Destinations) setDefinitions(name string, of map[string]string) {
	d.lock()
	defer d.mu.Unlock()
	if maps.Equal(d.definitions[name], of) {
		return
	}
	if d.definitions[name] = of; len(of) == 0 {
		delete(d.definitions, name)
	}
	for key := range d.using[name] {
		d.place(key)
	}
}

// deleteTopology forgets the labels of a topology with the last pod that has it: pods keep the network of a topology
// that is deleted, and their nodes its labels.
func (d *Destinations) deleteTopology(name string) {
	d.lock()
	defer d.mu.Unlock()
	if len(d.using[name]) > 0 {
		d.deleted[name] = true
	} else {
		delete(d.labels, name)
		delete(d.definitions, name)
	}
}

// SetClaim sets what the pod of a claim has, nil for nothing. It waits for no computation: see lock.
func (d *Destinations) SetClaim(key string, h *claim.Held) {
	d.heldMu.Lock()
	d.held[key] = h
	d.heldMu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// lock locks mu, and takes into account what SetClaim was given.
func (d *Destinations) lock() {
	d.mu.Lock()
	d.heldMu.Lock()
	held := d.held
	d.held = map[string]*claim.Held{}
	d.heldMu.Unlock()
	for key, h := range held {
		d.setClaim(key, h)
	}
}

// setClaim is SetClaim for a caller that holds mu.
func (d *Destinations) setClaim(key string, h *claim.Held) {
	pods := map[types.NamespacedName]bool{}
	old := d.claims[key]
	if old != nil {
		pods[old.Pod] = true
		delete(d.claims, key)
		d.of.Delete(old.Pod, key)
		for name := range old.Addresses {
			d.using.Delete(name, old.Pod)
		}
	}
	if h != nil {
		pods[h.Pod] = true
		d.claims[key] = h
		d.of.Set(h.Pod, key, true)
	}
	for pod := range pods {
		d.place(pod)
	}
	if old != nil {
		for name := range old.Addresses {
			if d.deleted[name] && len(d.using[name]) == 0 {
				delete(d.deleted, name)
				delete(d.labels, name)
				delete(d.definitions, name)
			}
		}
	}
}

// place gives the compiler a pod with the addresses that its claims have, if it has some. The
// caller holds mu.
func (d *Destinations) place(key types.NamespacedName) {
	known, ok := d.pods[key]
	by := map[string][]netip.Addr{}
	for claim := range d.of[key] {
		h := d.claims[claim]
		for name, addresses := range h.Addresses {
			d.using.Set(name, key, true)
			if ok && h.UID == known.uid { // not those of an earlier pod of the name
				by[name] = append(by[name], addresses...)
			}
		}
	}
	if len(by) == 0 && (len(known.addresses) == 0 || len(d.primaries) == 0) {
		d.report(d.compiler.DeletePod(key))
		return
	}
	pod := &qos.Pod{Key: key, Labels: known.labels}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		slices.SortFunc(by[name], netip.Addr.Compare)
		pod.Attachments = append(pod.Attachments, qos.Attachment{
			Network: qos.Network{
				NetworkID: qos.NetworkID{Kind: qos.NetworkTopology, Name: name},
				Labels:    qos.WithDefinitions(d.labels[name], d.definitions[name]),
			},
			Addresses: slices.Compact(by[name]),
		})
	}
	if len(known.addresses) > 0 {
		for _, name := range slices.Sorted(maps.Keys(d.primaries)) {
			pod.Attachments = append(pod.Attachments,
				qos.Attachment{Network: qos.PodNetwork(name, d.primaries[name]), Addresses: known.addresses})
		}
	}
	d.report(d.compiler.SetPod(pod))
}

// report calls changed with the objects of a change, each once. The caller holds mu.
func (d *Destinations) report(changed qos.Changed) {
	objects := map[types.NamespacedName]bool{}
	for id := range changed.Sets {
		objects[id.Policy] = true
	}
	for key := range objects {
		d.changed(key)
	}
}

// decide notes whether destinations are too many, and reports whether that was not known.
func (d *Destinations) decide(key types.NamespacedName, status *v1alpha1.Destinations) (changed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := decision{status.ObservedGeneration, Decision{status.TooMany > 0, status.Networks, status.TooManyNetworks}}
	before, known := d.decided[key]
	d.decided[key] = now
	return !known || before.generation != now.generation || before.Over != now.Over ||
		before.TooManyNetworks != now.TooManyNetworks || !slices.Equal(before.Networks, now.Networks)
}

// Decided returns what was written of an object, if that is known: what Conditions is told of it.
func (d *Destinations) Decided(p *qos.Policy) (_ Decision, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, known := d.decided[p.Key]
	return now.Decision, known && now.generation == p.Generation
}

// maxMeant bounds how many labels of pods are compared for unaddressed in one go.
const maxMeant = 1 << 17

// unaddressed returns the first destination of an object whose selected pods all lack an address on the covered networks, such as pods
// that use the host's network; "" if there is none. It subtracts the labels that it compares from left, which starts at maxMeant.
func (d *Destinations) unaddressed(p *qos.Policy, left *int) string {
	d.lock()
	defer d.mu.Unlock()
	if now := d.policies[p.Key]; now == nil || now.Generation != p.Generation {
		return ""
	}
	return d.compiler.Unaddressed(p.Key, func(yield func(types.NamespacedName, map[string]string) bool) {
		for key, pod := range d.pods {
			if *left--; *left < 0 || !yield(key, pod.labels) {
				return
			}
		}
	})
}

// needs reports what is needed to write an object: pods, networks of others.
func (d *Destinations) needs(key types.NamespacedName) (toPods, byLabels bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.policies[key]
	return p != nil && p.ToPods(), p != nil && p.ByLabels()
}

// Status returns the destinations of an object, nil if none of them is pods, and its UID.
func (d *Destinations) Status(key types.NamespacedName) (types.UID, *v1alpha1.Destinations) {
	d.lock()
	defer d.mu.Unlock()
	p := d.policies[key]
	if p == nil {
		return "", nil
	}
	d.resolve(p)
	sets, over := d.compiler.Sets(key)
	out := qos.WriteSets(p.Generation, sets, over)
	out.Networks, out.TooManyNetworks = d.selected[key].Names, d.selected[key].TooMany
	return p.UID, out
}

// digest stands for the destinations of an object, so that they need not be kept; 0 for nothing.
func digest(in *v1alpha1.Destinations) uint64 {
	if in == nil {
		return 0
	}
	h := fnv.New64a()
	_ = json.NewEncoder(h).Encode(in) // of strings and numbers, into a hash
	return h.Sum64()
}
