package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"reflect"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/nested"
	"github.com/plumbline/plumbline/topology/networkstatus"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/watchstore"
)

// Claims keeps the allocated claims of every topology. The API server has no selector for
// "claims of this driver", so all claims of the cluster are read, one page or one event at
// a time; of those that are allocated for a topology it keeps what Use is computed from:
// some hundred bytes each.
//
// It is a Runnable of a manager, on every replica.
type Claims struct {
	api resourceclient.ResourceV1Interface

	synced chan struct{} // closed when all claims have been read once

	mu      sync.RWMutex
	records map[string]*record                  // by "namespace/name" of the claim
	of      nested.Map[string, string, *record] // by name of the topology, then as records
	changed func(topology string)
	held    func(key string, h *claim.Held)
	// networks says that records have a digest of what was reported of networks. It is set before Start.
	networks bool
	network  func(key string, r *record)
}

// pageSize bounds an answer of the API server with claims, some kilobytes each.
const pageSize = 500

// NewClaims returns Claims that are empty until Start has read them.
func NewClaims(config *rest.Config) (*Claims, error) {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf // a third of the bytes of JSON
	api, err := resourceclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	c := emptyClaims()
	c.api = api
	return c, nil
}

func emptyClaims() *Claims {
	return &Claims{synced: make(chan struct{}), records: map[string]*record{}}
}

// Start follows the claims until ctx ends.
func (c *Claims) Start(ctx context.Context) error {
	pages := c.pages()
	all := &cache.ListWatch{ListWithContextFunc: pages.List, WatchFuncWithContext: pages.Watch}
	cache.NewReflectorWithOptions(all, nil, c.store(),
		cache.ReflectorOptions{Name: "claims", TypeDescription: "ResourceClaim"}).RunWithContext(ctx)
	return nil
}

// NeedLeaderElection is false: the webhook of every replica queries who uses a topology.
func (*Claims) NeedLeaderElection() bool { return false }

// Synced reports whether all claims have been read once.
func (c *Claims) Synced() bool {
	select {
	case <-c.synced:
		return true
	default:
		return false
	}
}

// WaitForSync waits until all claims have been read once.
func (c *Claims) WaitForSync(ctx context.Context) error {
	select {
	case <-c.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("read all claims: %w", context.Cause(ctx))
	}
}

// OnChange has f called with the name of a topology whose Use has changed.
func (c *Claims) OnChange(f func(topology string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = f
}

// OnHeld has f called with the "namespace/name" of each claim with addresses, at once and whenever
// these change, with nil when it has none. f must not block, and not call Claims.
func (c *Claims) OnHeld(f func(key string, h *claim.Held)) {
	c.mu.Lock()
	c.held = f
	keys := slices.Collect(maps.Keys(c.records))
	c.mu.Unlock()
	for _, key := range keys { // f may take long for all of them, and the webhook waits for the lock
		c.mu.Lock()
		if r := c.records[key]; r != nil && r.held != nil {
			f(key, r.held)
		}
		c.mu.Unlock()
	}
}

// OnNetwork has f called at once with the record of each claim that pods have: also of one without a report on networks, which may
// have had one when nobody followed it. Later f is called whenever that report or its pod changes, with nil for a claim that is no longer
// allocated. f must not block, and not call Claims.
func (c *Claims) OnNetwork(f func(key string, r *record)) {
	c.mu.Lock()
	c.network = f
	keys := slices.Collect(maps.Keys(c.records))
	c.mu.Unlock()
	for _, key := range keys { // see OnHeld
		c.mu.Lock()
		if r := c.records[key]; r != nil && r.pods > 0 {
			f(key, r)
		}
		c.mu.Unlock()
	}
}

// Use returns who uses a topology of a name and UID.
func (c *Claims) Use(name string, uid types.UID) Use {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var u Use
	for key, r := range c.of[name] {
		r.count(&u, key, name, uid)
	}
	return u
}

// Users returns how many claims are allocated for a topology of a name and UID.
func (c *Claims) Users(name string, uid types.UID) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := 0
	for _, r := range c.of[name] {
		if r.uses(name, uid) {
			n++
		}
	}
	return n
}

// replace replaces the record of one claim, nil when the claim uses no topology, and adds the topologies
// whose use changes. The caller holds mu.
func (c *Claims) replace(key string, r *record, touched map[string]bool) {
	before := c.records[key]
	if c.held != nil && !reflect.DeepEqual(before.holds(), r.holds()) {
		c.held(key, r.holds())
	}
	if c.network != nil && (before.reportsNetwork() || r.reportsNetwork()) && !before.sameNetwork(r) {
		c.network(key, r)
	}
	if before != nil && r != nil && before.same(r) {
		before.held, before.network, before.others = r.held, r.network, r.others
		return
	}
	if before == nil && r == nil {
		return
	}
	if before != nil {
		for _, t := range before.topologies {
			touched[t.Name] = true
			c.of.Delete(t.Name, key)
		}
		delete(c.records, key)
	}
	if r != nil {
		c.records[key] = r
		for _, t := range r.topologies {
			touched[t.Name] = true
			c.of.Set(t.Name, key, r)
		}
	}
}

func (c *Claims) notify(touched map[string]bool) {
	c.mu.RLock()
	changed := c.changed
	c.mu.RUnlock()
	if changed == nil {
		return
	}
	for name := range touched {
		changed(name)
	}
}

// record is the part of a claim that is kept.
type record struct {
	topologies []claim.TopologyRef // those it is allocated for
	pods       int                 // for which it is reserved
	pod        string              // the last of them
	podUID     types.UID
	degraded   bool             // one of its devices is not ready
	reports    []claim.Reported // of its node, one of each topology
	held       *claim.Held      // nil without addresses, or if it is for several pods
	network    uint64           // digest of what was reported of networks in its only pod, 0 for nothing
	others     []consumer       // the pods before the last, if networks are followed: at most 255
}

// consumer is a pod for which a claim is reserved.
type consumer struct {
	name string
	uid  types.UID
}

// holds returns the addresses of a claim, nil for none.
func (r *record) holds() *claim.Held {
	if r == nil {
		return nil
	}
	return r.held
}

// reportsNetwork reports whether a claim has a network in one pod.
func (r *record) reportsNetwork() bool { return r != nil && r.network != 0 }

// sameNetwork reports whether two records have the same network in the same pod.
func (r *record) sameNetwork(other *record) bool {
	return r.reportsNetwork() == other.reportsNetwork() &&
		(r == nil || other == nil || r.network == other.network && r.podUID == other.podUID)
}

// recordOf returns nil when a claim uses no topology.
func recordOf(c *resourceapi.ResourceClaim, networks bool) *record {
	topologies := claim.Uses(c)
	if len(topologies) == 0 {
		return nil
	}
	r := &record{topologies: topologies, reports: claim.Reports(c)}
	for i := range r.reports {
		if u := r.reports[i].Update; u != nil {
			u.State, u.Step, u.Message = claim.State(excerpt.Lines(string(u.State), maxNote)), excerpt.Lines(u.Step, maxNote),
				excerpt.Lines(u.Message, maxNote)
		}
	}
	for _, p := range c.Status.ReservedFor {
		if p.APIGroup == "" && p.Resource == "pods" {
			if networks && r.pods > 0 {
				r.others = append(r.others, consumer{r.pod, r.podUID})
			}
			r.pods++
			r.pod, r.podUID = p.Name, p.UID
		}
	}
	r.degraded = slices.ContainsFunc(c.Status.Devices, func(d resourceapi.AllocatedDeviceStatus) bool {
		return d.Driver == claim.Driver && meta.IsStatusConditionPresentAndEqual(d.Conditions, v1alpha1.ConditionReady,
			metav1.ConditionFalse)
	})
	if r.pods == 1 {
		if networks {
			r.network = networkDigest(c)
		}
		if addresses := claim.Addresses(c); len(addresses) > 0 {
			r.held = &claim.Held{Pod: types.NamespacedName{Namespace: c.Namespace, Name: r.pod}, UID: r.podUID, Addresses: addresses}
		}
	}
	return r
}

// networkDigest is a digest of the networks in the status of a claim, 0 if there are none.
func networkDigest(c *resourceapi.ResourceClaim) uint64 {
	all := networkstatus.Of(c, func(topology string) string { return topology })
	if len(all) == 0 {
		return 0
	}
	h := fnv.New64a()
	_ = json.NewEncoder(h).Encode(all)
	return max(1, h.Sum64())
}

// same reports whether two records count alike.
func (r *record) same(other *record) bool {
	a, b := *r, *other
	a.held, b.held = nil, nil
	a.network, b.network = 0, 0
	a.others, b.others = nil, nil
	return reflect.DeepEqual(a, b)
}

// uses reports whether the claim is allocated for this topology, by its UID: an earlier topology of the same name
// does not count.
func (r *record) uses(name string, uid types.UID) bool {
	return slices.ContainsFunc(r.topologies, func(t claim.TopologyRef) bool {
		return t.Name == name && (t.UID == "" || t.UID == uid)
	})
}

// item carries a record, nil for none, through a reflector.
type item struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	*record
}

// DeepCopyObject is for the interface runtime.Object. Records are not changed.
func (i *item) DeepCopyObject() runtime.Object { return new(*i) }

func (i *item) ours() bool { return i.record != nil }

func (c *Claims) itemOf(o *resourceapi.ResourceClaim) *item {
	return &item{record: recordOf(o, c.networks), ObjectMeta: watchstore.Meta(o)}
}

// pages lists the newest claims, and holds one page at a time; it also watches them, for an API server that streams those that exist. New
// claims that are not ours are left out. A claim that changes may have been ours.
func (c *Claims) pages() watchstore.Pages[*resourceapi.ResourceClaimList, *resourceapi.ResourceClaim, *item] {
	return watchstore.Pages[*resourceapi.ResourceClaimList, *resourceapi.ResourceClaim, *item]{
		API: c.api.ResourceClaims(metav1.NamespaceAll), Of: c.itemOf, Limit: pageSize,
		Keep: (*item).ours,
	}
}

// store lets a reflector fill Claims.
func (c *Claims) store() *watchstore.Store[string, *item] {
	var touched map[string]bool
	return &watchstore.Store[string, *item]{
		What: "claim", Name: func(i *item) string { return i.Namespace + "/" + i.Name },
		Put:    func(key string, i *item) { c.replace(key, i.record, touched) },
		Remove: func(key string) { c.replace(key, nil, touched) },
		Known:  func() iter.Seq[string] { return maps.Keys(c.records) },
		Around: func(_ bool, change func()) {
			touched = map[string]bool{}
			c.mu.Lock()
			change()
			c.mu.Unlock()
			c.notify(touched)
		},
		Synced: c.synced,
	}
}
