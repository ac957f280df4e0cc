package controller

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/qos"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/watchstore"
)

// NetworkQoS writes the status of NetworkQoS objects: conditions that do not depend on pods,
// and the sums of the nodes' reports. Its permissions, and no more:
//
//	k8s.ovn.org       networkqoses        list watch
//	k8s.ovn.org       networkqoses/status patch
//	networking.dra.io networkqosreports   list watch
//	networking.dra.io networkqosdestinations list watch create patch delete
//	networking.dra.io networktopologies   list watch
//	                  pods, namespaces    list watch
//	k8s.cni.cncf.io   network-attachment-definitions list watch
//	k8s.ovn.org       userdefinednetworks, clusteruserdefinednetworks list watch
//
// The last rows are for the addresses of pods that are destinations, and for networks that are selected by labels: see Destinations.
//
// It keeps no object: users may create any number. A change in a namespace has its objects
// read again, a bounded number.
type NetworkQoS struct {
	Objects  dynamic.Interface
	Metadata metadata.Interface
	// Claims has the addresses of pods. If it is nil, none is known.
	Claims Claims
	// Ours says that no one else enforces objects of this kind: then one that selects no
	// NetworkTopology has no effect, and its condition says so.
	Ours bool
	// PodNetwork says that agents make the primary network of pods where a topology has the role primary.
	PodNetwork bool
	// Topologies has the labels and roles of all topologies. If it is nil, none is known.
	Topologies ctrlcache.Cache
	// Contracts say which steps are on networks of NetworkAttachmentDefinitions. If it is nil, none is.
	Contracts contract.Set
	Log       *slog.Logger
	Now       func() time.Time
	// Interval is how long the changes in a namespace are collected.
	Interval time.Duration
	// Reported is how long the reports on a namespace are collected: after an edit each node
	// with one of its pods reports.
	Reported time.Duration

	queue        workqueue.TypedRateLimitingInterface[string] // of namespaces
	reports      *Reports
	destinations *Destinations
}

// Claims gives the addresses that claims hold; controller.Claims of package topology/controller implements it.
type Claims interface {
	// WaitForSync waits until all claims are known.
	WaitForSync(ctx context.Context) error
	// OnHeld has f called with the "namespace/name" of each claim with addresses, at once and whenever these change, with nil
	// when it has none. f must not block.
	OnHeld(f func(key string, h *claim.Held))
}

// qosPage bounds an answer of the API server; an object may have over a megabyte.
const qosPage = 16

// pageSize bounds an answer with metadata, some kilobytes each.
const pageSize = 500

// qosAgain is after how long an API server is asked again that does not serve the kind.
const qosAgain = 30 * time.Second

// qosManager is the field manager of the conditions.
const qosManager = "plumbline-controller"

// The reasons of the conditions of a NetworkQoS.
const (
	reasonAccepted   = "Accepted"
	reasonInvalid    = "Invalid"
	reasonTooMany    = "TooManyObjects"
	reasonNoTopology = "NoTopology"
	reasonPrimary    = "PrimaryNetwork"
	reasonNoNetwork  = "NoNetwork"
	reasonTooManyTo  = "TooManyDestinations"
	reasonTooManyNet = "TooManyNetworks"
	reasonTied       = "SamePrecedence"
	reasonUntied     = "NoTie"
)

// NeedLeaderElection implements manager.LeaderElectionRunnable: one replica writes.
func (*NetworkQoS) NeedLeaderElection() bool { return true }

// Start follows the objects until ctx ends. An API server without the kind is asked again.
func (c *NetworkQoS) Start(ctx context.Context) error {
	c.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute))
	c.reports = NewReports(func(namespaces map[string]bool) {
		for name := range namespaces {
			c.queue.AddAfter(name, c.Reported)
		}
	})
	go c.reports.follow(ctx, c.Objects)
	c.destinations = NewDestinations()
	c.destinations.PodNetwork = c.PodNetwork
	writer := &destinationWriter{Destinations: c.destinations, owner: c}
	writer.room = func(namespace string) { c.queue.AddAfter(namespace, c.Interval) }
	if err := c.followTopologies(ctx); err != nil { // before something is written: it decides which networks come first
		return err
	}
	defer writer.run(ctx)()
	go c.store().Follow(ctx, "NetworkQoS", qosv1alpha1.Kind, c.list, c.watch)
	go func() {
		<-ctx.Done()
		c.queue.ShutDown()
	}()
	select { // without reports every object would be not Ready for a moment
	case <-c.reports.synced:
	case <-ctx.Done():
		return nil
	}
	turns := turns{}
	for {
		namespace, stopped := c.queue.Get()
		if stopped {
			return nil
		}
		var err error
		rest, began := false, c.Now()
		if wait := turns.wait(namespace, began); wait > 0 {
			c.queue.AddAfter(namespace, wait)
			c.queue.Done(namespace)
			continue
		}
		failed := "the status of NetworkQoS objects could not be written: retrying"
		if namespace == everywhere {
			_, err = c.list(ctx, metav1.ListOptions{})
			failed = "failed to list NetworkQoS objects after a NetworkTopology changed; their conditions may be out of date: retrying"
		} else {
			rest, err = c.reconcile(ctx, namespace)
		}
		turns.took(namespace, c.Now().Sub(began), c.Now())
		if err != nil && ctx.Err() == nil {
			c.Log.Warn(failed, "namespace", namespace, "error", err)
			c.queue.AddRateLimited(namespace)
		} else {
			c.queue.Forget(namespace)
		}
		if rest {
			c.queue.AddAfter(namespace, c.Interval)
		}
		c.queue.Done(namespace)
	}
}

// everywhere is in the queue of namespaces if the objects of all are to be read again.
const everywhere = ""

// followTopologies has all objects read again when the pod network changes, which no object is enforced on, or a topology
// that is selected by the name of a NetworkAttachmentDefinition.
func (c *NetworkQoS) followTopologies(ctx context.Context) error {
	if c.Topologies == nil {
		return nil
	}
	informer, err := c.Topologies.GetInformer(ctx, &v1alpha1.NetworkTopology{})
	if err != nil {
		return fmt.Errorf("topologies: %w", err)
	}
	again := func(all ...any) {
		for _, o := range all {
			if t, ok := o.(*v1alpha1.NetworkTopology); ok &&
				(t.Spec.Role == v1alpha1.Primary || qosLabels(t, c.Contracts)[v1alpha1.AnnotationDefinition] != "") {
				c.queue.AddAfter(everywhere, c.Interval)
				return
			}
		}
	}
	all, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			c.define(o)
			again(o)
		},
		UpdateFunc: func(before, after any) {
			was, ok := before.(*v1alpha1.NetworkTopology)
			if is, both := after.(*v1alpha1.NetworkTopology); ok && both &&
				(was.Spec.Role != is.Spec.Role || !maps.Equal(qosLabels(was, c.Contracts), qosLabels(is, c.Contracts))) {
				c.define(is)
				again(was, is)
			}
		},
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if t, ok := o.(*v1alpha1.NetworkTopology); ok {
				c.destinations.SetPrimary(t.Name, nil, true)
				c.destinations.setNamed(t.Name, nil)
			}
			again(o)
		},
	})
	if err != nil {
		return fmt.Errorf("topologies: %w", err)
	}
	cache.WaitForCacheSync(ctx.Done(), all.HasSynced)
	return nil
}

// define registers the networks of a topology's interfaces, and the primary network, for destinations that are pods.
func (c *NetworkQoS) define(o any) {
	t, ok := o.(*v1alpha1.NetworkTopology)
	if !ok {
		return
	}
	c.destinations.setNamed(t.Name, qos.DefinitionsIn(qosLabels(t, c.Contracts)))
	if c.Contracts != nil {
		c.destinations.setDefinitions(t.Name, topology.DefinitionsOf(t, c.Contracts))
	}
	if c.PodNetwork {
		c.destinations.SetPrimary(t.Name, qos.TopologyLabels(&t.ObjectMeta), t.Spec.Role != v1alpha1.Primary)
	}
}

// topologies are the known topologies.
func (c *NetworkQoS) topologies(ctx context.Context) ([]v1alpha1.NetworkTopology, error) {
	if c.Topologies == nil {
		return nil, nil
	}
	var all v1alpha1.NetworkTopologyList
	if err := c.Topologies.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list topologies: %w", err)
	}
	return all.Items, nil
}

// list queues the namespaces that have objects, and returns none of them.
func (c *NetworkQoS) list(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	for options := (metav1.ListOptions{Limit: pageSize}); ; {
		page, err := c.Metadata.Resource(qosv1alpha1.Resource()).List(ctx, options)
		if apierrors.IsNotFound(err) {
			return &metav1.PartialObjectMetadataList{}, nil
		}
		if err != nil {
			return nil, err // not wrapped: the reflector checks its type
		}
		for i := range page.Items {
			c.edited(types.NamespacedName{Namespace: page.Items[i].Namespace, Name: page.Items[i].Name})
		}
		if options.Continue = page.Continue; options.Continue == "" {
			page.Items = nil
			return page, nil
		}
	}
}

func (c *NetworkQoS) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := c.Metadata.Resource(qosv1alpha1.Resource()).Watch(ctx, options)
	return watchstore.Watched(w, err, qosAgain, func(o *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata { return o }, nil)
}

// edited has an object and its namespace read again.
func (c *NetworkQoS) edited(key types.NamespacedName) {
	c.queue.AddAfter(key.Namespace, c.Interval)
	c.destinations.Edited(key)
}

// store is the store that a reflector fills for NetworkQoS: it queues the namespaces of changes; list has queued
// everything.
func (c *NetworkQoS) store() *watchstore.Store[types.NamespacedName, *metav1.PartialObjectMetadata] {
	return &watchstore.Store[types.NamespacedName, *metav1.PartialObjectMetadata]{
		What: "metadata of a " + qosv1alpha1.Kind,
		Name: func(o *metav1.PartialObjectMetadata) types.NamespacedName {
			return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
		},
		Put:    func(key types.NamespacedName, _ *metav1.PartialObjectMetadata) { c.edited(key) },
		Remove: c.edited,
	}
}

// maxWithout bounds the objects without effect whose status one pass writes: users may create any number of them in a namespace, and
// others wait for the end of a pass.
const maxWithout = qos.MaxObjects

// reconcile writes the status of the objects of a namespace where it differs. It keeps those that are enforced, which
// are a bounded number, and a page at a time of the others. It reports whether a later pass is to write the rest.
func (c *NetworkQoS) reconcile(ctx context.Context, namespace string) (rest bool, err error) {
	share, statuses, written := &qos.Share{}, map[*qos.Policy]*qosv1alpha1.Status{}, 0
	for options := (metav1.ListOptions{Limit: qosPage}); ; {
		page, err := c.Objects.Resource(qosv1alpha1.Resource()).Namespace(namespace).List(ctx, options)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("list: %w", err)
		}
		for i := range page.Items {
			p, o := qos.Read(&page.Items[i])
			statuses[p] = &o.Status
			without := []*qos.Policy{p}
			if p.Err == nil && p.Selects(c.PodNetwork) {
				without = share.Put(p)
			}
			for _, p := range without {
				outcome, is := Without(p, c.speaks(statuses[p]), c.PodNetwork)
				if rest = rest || is && written == maxWithout; is && !rest {
					wrote, err := c.write(ctx, statuses[p], &outcome)
					if err != nil {
						return false, err
					}
					if wrote {
						written++
					}
				}
				delete(statuses, p)
			}
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			break
		}
	}
	topologies, err := c.topologies(ctx)
	if err != nil {
		return rest, err
	}
	enforced := share.Policies()
	unknown := map[*qos.Policy]bool{}
	decided := func(p *qos.Policy) (d Decision) {
		if !p.Written() {
			return d
		}
		if d, known := c.destinations.Decided(p); known {
			return d
		}
		unknown[p] = p.ByLabels()
		// Before it is known, it is as an earlier controller has said.
		accepted := meta.FindStatusCondition(statuses[p].Conditions, qosv1alpha1.ConditionAccepted)
		d.Over = accepted != nil && accepted.Reason == reasonTooManyTo && accepted.ObservedGeneration == p.Generation
		return d
	}
	left := maxMeant
	for _, o := range Conditions(enforced, decided, topologies, c.Contracts, c.PodNetwork, c.reports.Sum(namespace, enforced)) {
		switch {
		case unknown[o.Policy]:
			continue // until its networks are: then the namespace is queued
		case o.Elsewhere && !c.speaks(statuses[o.Policy]):
			continue // ovn-kubernetes enforces it, and not we
		}
		o.noteUnaddressed(c.destinations.unaddressed(o.Policy, &left))
		if _, err := c.write(ctx, statuses[o.Policy], &o); err != nil {
			return rest, err
		}
	}
	c.destinations.reread(namespace, enforced)
	return rest, nil
}

// speaks reports whether objects that are not enforced get conditions: beside ovn-kubernetes only one that has some of ours, from a time
// when it was enforced.
func (c *NetworkQoS) speaks(has *qosv1alpha1.Status) bool {
	return c.Ours || meta.FindStatusCondition(has.Conditions, qosv1alpha1.ConditionAccepted) != nil
}

// write writes the status of an object where it differs from the one that it has.
func (c *NetworkQoS) write(ctx context.Context, has *qosv1alpha1.Status, o *Outcome) (wrote bool, err error) {
	status, err := c.statusOf(has, o)
	if err != nil || status == nil {
		return false, err
	}
	key := o.Policy.Key
	_, err = c.Objects.Resource(qosv1alpha1.Resource()).Namespace(key.Namespace).ApplyStatus(ctx, key.Name,
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": qosv1alpha1.GroupVersion.String(), "kind": qosv1alpha1.Kind,
			"metadata": map[string]any{"name": key.Name, "namespace": key.Namespace},
			"status":   status,
		}}, metav1.ApplyOptions{FieldManager: qosManager, Force: true})
	if err != nil && !apierrors.IsNotFound(err) {
		return true, fmt.Errorf("write the status of %q: %w", o.Policy.Name(), err)
	}
	return true, nil
}

// statusOf returns our part of a status, nil if the object has it.
func (c *NetworkQoS) statusOf(have *qosv1alpha1.Status, o *Outcome) (map[string]any, error) {
	ours := qosv1alpha1.Status{Backends: o.Backends}
	if c.Ours { // else ovn-kubernetes writes it
		ours.Status = o.Summary()
	}
	before := slices.DeleteFunc(slices.Clone(have.Backends), func(b qosv1alpha1.Backend) bool {
		return !slices.Contains([]string{qosv1alpha1.BackendTC, qosv1alpha1.BackendOVN, qosv1alpha1.BackendPF}, b.Backend)
	})
	changed := len(before) != len(o.Backends) || c.Ours && have.Status != ours.Status
	for _, b := range o.Backends {
		changed = changed || !slices.ContainsFunc(before, func(h qosv1alpha1.Backend) bool { return equality.Semantic.DeepEqual(h, b) })
	}
	now := slices.Clone(have.Conditions)
	for _, condition := range o.Conditions {
		changed = meta.SetStatusCondition(&now, condition) || changed
		set := meta.FindStatusCondition(now, condition.Type)
		if set.LastTransitionTime.IsZero() {
			set.LastTransitionTime = metav1.NewTime(c.Now())
		}
		ours.Conditions = append(ours.Conditions, *set)
	}
	if !changed {
		return nil, nil
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(&ours)
}

// Outcome is the result of processing a NetworkQoS.
type Outcome struct {
	Policy     *qos.Policy
	Conditions []metav1.Condition
	Backends   []qosv1alpha1.Backend // none if it is not enforced
	// Elsewhere says that the object selects networks by labels of objects of others, and that no interface of a topology is on one.
	Elsewhere bool
}

// accepted reports whether the object is enforced.
func (o *Outcome) accepted() bool { return o.Conditions[0].Status == metav1.ConditionTrue }

// Decision is the result that was written of an object for agents.
type Decision struct {
	Over            bool     // its destinations are more than are enforced
	Networks        []string // that it selects by labels, as NAMESPACE/NAME
	TooManyNetworks bool
}

// noteUnaddressed adds to an object that is enforced that a destination selects pods without an address.
func (o *Outcome) noteUnaddressed(destination string) {
	if accepted := &o.Conditions[0]; destination != "" && o.accepted() {
		accepted.Message = excerpt.Lines(
			fmt.Sprintf("%s; the pods that %s selects have no address on these networks, so it matches no packet: "+
				"use ipBlock for nodes and for pods on the host network", accepted.Message, destination), maxMessage)
	}
}

// Applied is the summary of an object whose rules are in place, in the words of ovn-kubernetes.
const Applied = "NetworkQoS Destinations applied"

// Summary is one line for people: Applied, or the first reason why not.
func (o *Outcome) Summary() string {
	for _, of := range []string{qosv1alpha1.ConditionAccepted, qosv1alpha1.ConditionReady} {
		if c := meta.FindStatusCondition(o.Conditions, of); c != nil && c.Status != metav1.ConditionTrue {
			return c.Reason
		}
	}
	return Applied
}

// Bounds of the API, and of what people can read.
const (
	maxMessage  = 8 << 10
	maxWarnings = 5
)

// maxTies is how many ties a condition names.
const maxTies = 4

// Without returns the conditions of an object that is not enforced: it is invalid, selects no network that agents
// make, or its namespace has older objects that reach the bounds. An object that selects no such network may be about
// networks of others: unless ours is set, it gets no conditions.
func Without(p *qos.Policy, ours, podNetwork bool) (o Outcome, is bool) {
	var c metav1.Condition
	switch selects := p.Selects(podNetwork) && (ours || !p.OnlyByLabels()); {
	case !selects && !ours:
		return o, false
	case p.Err != nil:
		c.Reason, c.Message = reasonInvalid, p.Reason()
	case !selects:
		c.Reason, c.Message = reasonNoTopology, qos.NoTopology
	default:
		c.Reason, c.Message = reasonTooMany, fmt.Sprintf(
			"not enforced: the namespace exceeds %d NetworkQoS objects, %d KiB or %d labels and values, and older objects come first: "+
				"delete some, or give them fewer destinations and labels", qos.MaxObjects, qos.MaxNamespaceBytes>>10,
			qos.MaxNamespaceLabels)
	}
	return withoutEffect(p, c.Reason, c.Message), true
}

// withoutEffect is the outcome of an object that is not enforced, with the reason.
func withoutEffect(p *qos.Policy, reason, message string) Outcome {
	const without = "the object has no effect"
	out := Outcome{Policy: p}
	for _, c := range []metav1.Condition{
		{Type: qosv1alpha1.ConditionAccepted, Reason: reason, Message: excerpt.Lines(message, maxMessage)},
		{Type: qosv1alpha1.ConditionTied, Reason: reasonUntied, Message: without},
		{Type: qosv1alpha1.ConditionReady, Reason: reason, Message: without},
	} {
		c.Status, c.ObservedGeneration = metav1.ConditionFalse, p.Generation
		out.Conditions = append(out.Conditions, c)
	}
	return out
}

// onPrimary returns the first of the topologies of role primary that an object covers as the primary network of pods, "" for none,
// and whether it covers no other topology.
func onPrimary(p *qos.Policy, topologies []selectable) (name string, only bool) {
	others := false
	for _, t := range topologies {
		switch {
		case !t.primary:
			others = others || p.SelectsTopology(t.name, t.labels)
		case p.Covers(qos.PodNetwork(t.name, t.own)) && (name == "" || t.name < name):
			name = t.name
		}
	}
	return name, name != "" && !others
}

// selectable is a topology as objects select it. It is made once for all objects, since it may take to decode the topology.
type selectable struct {
	name        string
	primary     bool              // it has that role
	own, labels map[string]string // of the topology, and with the networks of its interfaces
}

func selectables(topologies []v1alpha1.NetworkTopology, contracts contract.Set) []selectable {
	out := make([]selectable, len(topologies))
	for i := range topologies {
		t := &topologies[i]
		out[i] = selectable{t.Name, t.Spec.Role == v1alpha1.Primary, qos.TopologyLabels(&t.ObjectMeta), qosLabels(t, contracts)}
	}
	return out
}

// qosLabels are the labels by which objects select a topology: see qos.WithDefinitions.
func qosLabels(t *v1alpha1.NetworkTopology, contracts contract.Set) map[string]string {
	labels := qos.TopologyLabels(&t.ObjectMeta)
	if contracts == nil {
		return labels
	}
	return qos.WithDefinitions(labels, topology.DefinitionsOf(t, contracts))
}

// elsewhere is the message about networks that an object selects by labels, of which no interface of a topology is on one. It names none:
// whoever reads the object may not read those of other namespaces.
const elsewhere = "no NetworkTopology has an interface on the networks that networkSelectors selects by labels " +
	"(NetworkAttachmentDefinitions, UserDefinedNetworks, ClusterUserDefinedNetworks), so plumbline enforces nothing there; " +
	"ovn-kubernetes enforces the networks that it makes, by its own CRD and controller"

// undefined says which NetworkAttachmentDefinitions that an object refers to no topology stands for, and whether it covers no other
// network, those by labels left out.
func undefined(p *qos.Policy, topologies []selectable) (message string, none bool) {
	names, only := p.Definitions()
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(topologies, func(t selectable) bool { return qos.Defined(t.labels, name) })
	})
	if len(missing) == 0 {
		return "", false
	}
	return fmt.Sprintf("no NetworkTopology has a step with netAttachDefName %s, or the annotation %s: %[1]s, so plumbline enforces "+
		"nothing on this network; ovn-kubernetes enforces the networks that it makes, by its own CRD and controller", missing[0],
		v1alpha1.AnnotationDefinition), only && len(missing) == len(names)
}

// Conditions returns what becomes of the objects of a namespace that are enforced, with what nodes report on them, by name.
// podNetwork says that agents make the networks of topologies of role primary; else none is enforced there. decided says what agents were
// told of an object.
func Conditions(enforced []*qos.Policy, decided func(*qos.Policy) Decision, topologies []v1alpha1.NetworkTopology, contracts contract.Set,
	podNetwork bool, reported map[string]*Sum,
) []Outcome {
	var out []Outcome
	var accepted []*qos.Policy
	all := selectables(topologies, contracts)
	for _, p := range enforced {
		is := decided(p)
		known := p.WithNetworks(is.Networks)
		o := outcome(p, known, is, all, podNetwork)
		if o.accepted() {
			sum := reported[p.Key.Name]
			o.Backends, o.Conditions = Backends(p, sum), append(o.Conditions, Ready(p, sum)...)
			accepted = append(accepted, known)
		}
		out = append(out, o)
	}
	ties, complete := qos.PossibleTies(accepted)
	for i := range out {
		if o := &out[i]; o.accepted() {
			o.Conditions = slices.Insert(o.Conditions, 1, tied(o.Policy, ties[o.Policy.Key], complete))
		}
	}
	return out
}

// outcome returns what becomes of an object that is enforced, before nodes report on it. known is the object with the networks that it
// selects by labels.
func outcome(p, known *qos.Policy, is Decision, topologies []selectable, podNetwork bool) Outcome {
	if is.TooManyNetworks {
		return withoutEffect(p, reasonTooManyNet, fmt.Sprintf(
			"networkSelectors selects more than %d networks of topologies by labels: narrow networkSelector or namespaceSelector",
			v1alpha1.MaxQoSNetworks))
	}
	if is.Over {
		return withoutEffect(p, reasonTooManyTo, fmt.Sprintf(
			"classifier.to selects pods with more than %d addresses, or all objects of the namespace select more than %d pods: "+
				"select fewer pods, or write prefixes as ipBlock", v1alpha1.MaxDestinationAddresses,
			qos.MaxNamespaceMembers))
	}
	primary, only := onPrimary(known, topologies)
	if only && !podNetwork {
		return withoutEffect(p, reasonPrimary,
			fmt.Sprintf("it selects only topology %q of role primary, which needs podNetwork.enabled of the chart: "+
				"set that, or select topologies of claims", primary))
	}
	others := p.SelectsPrimary() && (primary == "" || !podNetwork) // the primary network is another plugin's
	if others && !p.SelectsTopologies() {
		return withoutEffect(p, reasonNoTopology, qos.NoTopology)
	}
	unknown, none := undefined(p, topologies)
	apart := p.ByLabels() && !slices.ContainsFunc(topologies,
		func(t selectable) bool { return !t.primary && known.SelectedByLabels(t.labels) })
	switch {
	case apart && p.OnlyByLabels():
		o := withoutEffect(p, reasonNoNetwork, elsewhere)
		o.Elsewhere = true
		return o
	case none && (!p.ByLabels() || apart):
		return withoutEffect(p, reasonNoNetwork, unknown)
	}
	says := []string{excerpt.Count(len(p.Rules), "rule"), "enforced by tc filters in pods, and by OVN QoS rows on OVN networks"}
	switch {
	case others:
		says = append(says, "not on the pods' primary network, which another CNI plugin makes")
	case primary != "" && !podNetwork:
		says = append(says, fmt.Sprintf(
			"not on topology %q of role primary, which needs podNetwork.enabled of the chart", primary))
	}
	if unknown != "" {
		says = append(says, unknown)
	}
	if apart {
		says = append(says, elsewhere)
	}
	says = append(says, p.Warnings[:min(len(p.Warnings), maxWarnings)]...)
	return Outcome{Policy: p, Conditions: []metav1.Condition{{
		Type: qosv1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, ObservedGeneration: p.Generation, Reason: reasonAccepted,
		Message: excerpt.Lines(strings.Join(says, "; "), maxMessage),
	}}}
}

// tied says which rule decides where two objects have one precedence.
func tied(p *qos.Policy, ties []qos.Tie, complete bool) metav1.Condition {
	c := metav1.Condition{
		Type: qosv1alpha1.ConditionTied, Status: metav1.ConditionFalse, Reason: reasonUntied,
		Message: "no other object has a rule of the same precedence for the same packets", ObservedGeneration: p.Generation,
	}
	if len(ties) == 0 {
		if !complete {
			c.Status, c.Reason = metav1.ConditionUnknown, reasonTooMany
			c.Message = "not compared with other objects: too many rules have the same priority"
		}
		return c
	}
	slices.SortFunc(ties, func(a, b qos.Tie) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Other.Name, b.Other.Name))
	})
	few := excerpt.Few(ties, maxTies, func(t qos.Tie) string {
		winner := p.Key.Name
		if !t.Wins {
			winner = t.Other.Name
		}
		return fmt.Sprintf("egress[%d] and a rule of %q: %q decides", t.Rule, t.Other.Name, winner)
	})
	c.Status, c.Reason = metav1.ConditionTrue, reasonTied
	c.Message = "rules of two objects match the same packets with the same precedence, and the object first by name decides: " + few +
		". Give them different priorities"
	return c
}
