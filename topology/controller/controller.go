package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/exposure"
	schemav1alpha1 "github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// Controller writes the DeviceClasses and the status of NetworkTopologies. Its permissions,
// and no more:
//
//	networking.dra.io     networktopologies         get list watch patch (finalizers)
//	networking.dra.io     networktopologies/status  update
//	networking.dra.io     deviceexposurepolicies    get list watch
//	networking.dra.io     addresspools              get list watch create patch
//	resource.k8s.io       deviceclasses             get list watch create update delete
//	resource.k8s.io       resourceclaims            get list watch
//	resource.k8s.io       resourceclaimtemplates    get list watch create update delete
//	                      namespaces                get list watch
//	cni.networking.k8s.io cnipluginschemas          get list watch create update delete
//	events.k8s.io         events                    create patch
//
// and in its own namespace leases of coordination.k8s.io (get, create, update;
// events beside them), for the election of a leader among several replicas.
type Controller struct {
	Client    client.Client // reads from caches that are indexed (Index)
	Live      client.Reader // reads from the API server
	Claims    *Claims
	Contracts *Contracts
	Policies  *exposure.Compiled
	Recorder  events.EventRecorder
	Log       *slog.Logger
	Now       func() time.Time
	// Interval is how long changes that only affect counts are collected before the status
	// is written, which every node with a claim of the topology watches.
	Interval time.Duration

	// left are the resource versions of classes, by name, when they were last as they should be. One that differs in this
	// version was not edited: something else is wanted of it.
	left sync.Map
}

// workers is how many topologies are reconciled at a time. A pass waits for the API
// server most of its time.
const workers = 4

// Setup registers the controller with a manager.
func (c *Controller) Setup(mgr manager.Manager) error {
	return builder.ControllerManagedBy(mgr).
		Named("networktopology").
		Watches(&v1alpha1.NetworkTopology{}, &edits{Controller: c}).
		Watches(&resourceapi.DeviceClass{}, handler.EnqueueRequestsFromMapFunc(c.forClass)).
		Watches(&v1alpha1.DeviceExposurePolicy{}, handler.EnqueueRequestsFromMapFunc(c.forPolicy), onlyEdits).
		Watches(&v1alpha1.AddressPool{}, handler.EnqueueRequestsFromMapFunc(c.forPool), onlyEdits).
		Watches(&schemav1alpha1.CNIPluginSchema{}, handler.EnqueueRequestsFromMapFunc(c.forSchema)).
		Watches(&resourceapi.ResourceClaimTemplate{}, handler.EnqueueRequestsFromMapFunc(c.forTemplate)).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(c.forNamespace), builder.WithPredicates(relabelled)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.forNode), builder.WithPredicates(readiness)).
		WatchesRawSource(changes{c}).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(c)
}

// edits enqueues topologies when they are created, deleted or edited.
type edits struct {
	handler.EnqueueRequestForObject
	*Controller
}

// Update implements handler.EventHandler. A change of the status alone, which usually is
// ours, enqueues nothing: otherwise the pass after each write would find new counts and
// write again, as fast as pods are created and deleted.
func (e *edits) Update(ctx context.Context, u event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	if edited(u.ObjectOld, u.ObjectNew) {
		e.EnqueueRequestForObject.Update(ctx, u, queue)
		return
	}
	queue.AddAfter(requests(u.ObjectNew.GetName())[0], e.collect(ctx, u.ObjectNew.GetName()))
}

// edited reports whether two versions of an object differ in more than its status.
func edited(before, after client.Object) bool {
	return before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() ||
		before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() ||
		!slices.Equal(before.GetFinalizers(), after.GetFinalizers())
}

// onlyEdits leaves out changes of a status.
var onlyEdits = builder.WithPredicates(predicate.Funcs{
	UpdateFunc: func(u event.UpdateEvent) bool { return edited(u.ObjectOld, u.ObjectNew) },
})

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// enqueue enqueues a request some time after an object was created or deleted, or was changed in a way that counts, nil for any.
func enqueue(r reconcile.Request, after time.Duration, counts func(before, now client.Object) bool) handler.Funcs {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, _ event.CreateEvent, q queue) { q.AddAfter(r, after) },
		DeleteFunc: func(_ context.Context, _ event.DeleteEvent, q queue) { q.AddAfter(r, after) },
		UpdateFunc: func(_ context.Context, u event.UpdateEvent, q queue) {
			if counts == nil || counts(u.ObjectOld, u.ObjectNew) {
				q.AddAfter(r, after)
			}
		},
	}
}

// changes enqueues topologies when their claims change.
type changes struct{ *Controller }

// Start implements source.Source.
func (c changes) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	c.Claims.OnChange(func(topology string) { queue.AddAfter(requests(topology)[0], c.collect(ctx, topology)) })
	return nil
}

// WaitForSync implements source.SyncingSource.
func (c changes) WaitForSync(ctx context.Context) error { return c.Claims.WaitForSync(ctx) }

// prompt bounds how long changes are collected that a rollout or a deletion waits for.
const prompt = time.Second

// collect returns how long changes of a topology's claims are collected, from the first of
// them.
func (c *Controller) collect(ctx context.Context, topology string) time.Duration {
	o := &v1alpha1.NetworkTopology{}
	err := c.Client.Get(ctx, client.ObjectKey{Name: topology}, o, client.UnsafeDisableDeepCopy)
	if err == nil && awaited(o) {
		return min(prompt, c.Interval)
	}
	return c.Interval
}

// awaited reports whether more than a count depends on the claims: the next nodes of a
// rollout, or the end of the topology.
func awaited(o *v1alpha1.NetworkTopology) bool {
	return !o.DeletionTimestamp.IsZero() || o.Status.Rollout != nil && len(o.Status.Rollout.Nodes) > 0
}

func refsOfClass(class *resourceapi.DeviceClass) []claim.TopologyRef {
	var out []claim.TopologyRef
	for _, e := range class.Spec.Config {
		if e.Opaque == nil || e.Opaque.Driver != claim.Driver {
			continue
		}
		if cfg, err := claim.ParseConfig(e.Opaque.Parameters.Raw); err == nil {
			out = append(out, cfg.NetworkTopologyRef)
		}
	}
	return out
}

func requests(names ...string) []reconcile.Request {
	out := make([]reconcile.Request, len(names))
	for i, n := range names {
		out[i] = reconcile.Request{NamespacedName: types.NamespacedName{Name: n}}
	}
	return out
}

// forClass returns the topologies that a class belongs to, and those that would have a
// class of its name.
func (c *Controller) forClass(ctx context.Context, o client.Object) []reconcile.Request {
	class, ok := o.(*resourceapi.DeviceClass)
	if !ok {
		return nil
	}
	names := map[string]bool{}
	if ref := metav1.GetControllerOf(class); ref != nil && ref.Kind == v1alpha1.Kind {
		names[ref.Name] = true
	}
	for _, r := range refsOfClass(class) {
		names[r.Name] = true
	}
	wanting, err := Wanting(ctx, c.Client, class.Name)
	if err != nil {
		c.Log.Error("cannot find the topology of a changed DeviceClass", "class", class.Name, "error", err)
	}
	if name := class.Spec.ExtendedResourceName; name != nil {
		_, named, err := Named(ctx, c.Client, *name)
		if err != nil {
			c.Log.Error("cannot find the topologies with the extended resource name of a changed DeviceClass", "class", class.Name,
				"error", err)
		}
		wanting = append(wanting, named...)
	}
	for i := range wanting {
		names[wanting[i].Name] = true
	}
	return requests(slices.Sorted(maps.Keys(names))...)
}

// forSchema returns the topologies with a step of the type described.
func (c *Controller) forSchema(ctx context.Context, o client.Object) []reconcile.Request {
	schema, ok := o.(*schemav1alpha1.CNIPluginSchema)
	if !ok {
		return nil
	}
	if _, builtIn := c.Contracts.BuiltIn.Contract(schema.Spec.CNIType); builtIn {
		return nil
	}
	return c.requestsFor(ctx, c.Log.With("schema", schema.Name), "cannot find the topologies of a changed CNIPluginSchema", nil,
		client.MatchingFields{indexType: schema.Spec.CNIType})
}

// requestsFor returns the topologies of a list that are accepted, nil for all. If they cannot be listed, it logs what failed.
func (c *Controller) requestsFor(ctx context.Context, log *slog.Logger, failed string, accept func(*v1alpha1.NetworkTopology) bool,
	of ...client.ListOption,
) []reconcile.Request {
	var all v1alpha1.NetworkTopologyList
	if err := c.Client.List(ctx, &all, append(of, client.UnsafeDisableDeepCopy)...); err != nil {
		log.Error(failed, "error", err)
	}
	var names []string
	for i := range all.Items {
		if o := &all.Items[i]; accept == nil || accept(o) {
			names = append(names, o.Name)
		}
	}
	return requests(names...)
}

// Reconcile writes the classes and the status of one topology.
func (c *Controller) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	o := &v1alpha1.NetworkTopology{}
	if err := c.Client.Get(ctx, r.NamespacedName, o); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	result, err := c.reconcile(ctx, o)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		// The cache lags behind our own last write, or another writer was faster.
		return reconcile.Result{RequeueAfter: 50 * time.Millisecond}, nil
	}
	if err != nil {
		return result, fmt.Errorf("NetworkTopology %q: %w", o.Name, err)
	}
	return result, nil
}

func (c *Controller) reconcile(ctx context.Context, o *v1alpha1.NetworkTopology) (reconcile.Result, error) {
	use := c.Claims.Use(o.Name, o.UID)
	if !o.DeletionTimestamp.IsZero() {
		return c.finalize(ctx, o, use)
	}
	// Before the first class, without which nobody can use it.
	if err := c.patch(ctx, o, controllerutil.AddFinalizer); err != nil {
		return reconcile.Result{}, err
	}
	found := Outcome{Use: use, NotReady: func(node string) time.Duration { return c.notReady(ctx, o, node) }}
	found.Err = c.program(ctx, o, &found)
	result := reconcile.Result{}
	if len(found.Pools) > 0 {
		result.RequeueAfter = retryClash // it names topologies, of whose end it is not told
	}
	var failed error
	if t := found.Templates; t != nil {
		if t.Clashes > 0 || t.Refused != "" {
			result.RequeueAfter = retryClash
		}
		failed = t.Err
	}
	if err := cmp.Or(found.Err, failed); apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return reconcile.Result{}, err // it is retried, without a condition
	}
	err := c.report(ctx, o, found)
	if r := o.Status.Rollout; result.RequeueAfter == 0 && r != nil && len(r.Nodes) > 0 {
		result.RequeueAfter = deadNode / 10 // for a node that is not ready nothing else changes
	}
	return result, errors.Join(found.Err, failed, err)
}

// patch changes the finalizers.
func (c *Controller) patch(ctx context.Context, o *v1alpha1.NetworkTopology, change func(client.Object, string) bool) error {
	before := o.DeepCopy()
	if !change(o, v1alpha1.Finalizer) {
		return nil
	}
	if err := c.Client.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write finalizer: %w", err)
	}
	return nil
}

// finalize deletes the classes of a topology that is being deleted, at once: without them
// no claim is allocated for it any more. The topology itself is removed after grace, even
// if claims still use it.
func (c *Controller) finalize(ctx context.Context, o *v1alpha1.NetworkTopology, use Use) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(o, v1alpha1.Finalizer) {
		return reconcile.Result{}, nil
	}
	classes, err := c.classes(ctx, o)
	if err != nil {
		return reconcile.Result{}, err
	}
	for i := range classes {
		if err := c.delete(ctx, &classes[i]); err != nil {
			return reconcile.Result{}, err
		}
	}
	templates, err := c.ownTemplates(ctx, o)
	if err != nil {
		return reconcile.Result{}, err
	}
	for i := range templates {
		if err := c.deleteTemplate(ctx, &templates[i]); err != nil {
			return reconcile.Result{}, err
		}
	}
	if left := grace(o, use, c.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: left}, c.reportUse(ctx, o, use)
	}
	if err := c.patch(ctx, o, controllerutil.RemoveFinalizer); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	c.Log.Info("deleted", "topology", o.Name, "claims", use.Claims, "unprepared", use.Unprepared)
	return reconcile.Result{}, nil
}

// Bounds of the time from the deletion of a topology to its end.
const (
	// lag covers claims that the scheduler allocates, and that reach our cache, shortly
	// after the classes are deleted. Deletion timestamps are cut to seconds.
	lag = 2 * time.Second
	// maxGrace is for claims that are allocated and not prepared yet: a kubelet retries
	// every 60 to 90 seconds.
	maxGrace = 5 * time.Minute
)

// grace returns how long a topology that is being deleted is kept. Claims that nodes have
// prepared do not need it any more, and later allocations cannot extend it beyond maxGrace.
func grace(o *v1alpha1.NetworkTopology, use Use, now time.Time) time.Duration {
	until := o.DeletionTimestamp.Add(lag)
	if use.Unprepared > 0 {
		until = o.DeletionTimestamp.Add(maxGrace)
	}
	return max(0, until.Sub(now))
}

// reportUse reports what delays the removal of a topology; nothing else is decided then.
func (c *Controller) reportUse(ctx context.Context, o *v1alpha1.NetworkTopology, use Use) error {
	s := *o.Status.DeepCopy()
	s.DeviceClasses, s.Sandboxes, s.Degraded = 0, int32(use.Pods), int32(use.Degraded)
	used := usage(o, use)
	used.ObservedGeneration = o.Generation
	if meta.SetStatusCondition(&s.Conditions, used) && used.Status == metav1.ConditionTrue {
		c.event(o, corev1.EventTypeWarning, "InUse", "Delete", used.Message)
	}
	return c.write(ctx, o, s)
}

// program creates or updates the classes of a valid topology, all or none of them.
func (c *Controller) program(ctx context.Context, o *v1alpha1.NetworkTopology, found *Outcome) error {
	have, err := c.classes(ctx, o)
	if err != nil {
		return err
	}
	found.Classes = len(have)
	set, err := c.Contracts.Set(ctx)
	if err != nil {
		return err
	}
	t, _, err := validity.Object(ctx, o, set)
	if err != nil && ctx.Err() == nil {
		found.Invalid = err
		return nil
	}
	if err != nil {
		return err
	}
	found.Steps = len(t.Steps)
	if found.Shares, err = c.shares(ctx, t, set); err != nil {
		return err
	}
	if found.Unknown = Unknown(t, c.Contracts.BuiltIn); len(found.Unknown) > 0 {
		return nil
	}
	want := Classes(o, t, set)
	if found.Clashes, err = c.clashes(ctx, o, have, want); err != nil || len(found.Clashes) > 0 {
		return err
	}
	if found.Classes, found.Unnamed, err = c.apply(ctx, o, have, want); err != nil {
		return err
	}
	if found.Pools, err = c.subnets(ctx, t.NetworkPools()); err == nil {
		templates := c.templates(ctx, o, t, set)
		found.Templates = &templates
	}
	return err
}

// classes returns the classes of this topology, from the cache.
func (c *Controller) classes(ctx context.Context, o *v1alpha1.NetworkTopology) ([]resourceapi.DeviceClass, error) {
	var all resourceapi.DeviceClassList
	if err := c.Client.List(ctx, &all, client.MatchingFields{indexUID: string(o.UID)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list classes: %w", err)
	}
	return slices.DeleteFunc(all.Items, func(d resourceapi.DeviceClass) bool { return !Owned(&d, o) }), nil
}

// clashes describes the names of classes that other owners already use.
func (c *Controller) clashes(ctx context.Context, o *v1alpha1.NetworkTopology, have []resourceapi.DeviceClass,
	want []*resourceapi.DeviceClass,
) ([]string, error) {
	var out []string
	for _, w := range want {
		other := &resourceapi.DeviceClass{}
		err := c.Client.Get(ctx, client.ObjectKeyFromObject(w), other, client.UnsafeDisableDeepCopy)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("get DeviceClass %q: %w", w.Name, err)
		case !Owned(other, o):
			out = append(out, Clash(other))
		}
		if w.Spec.ExtendedResourceName == nil {
			continue
		}
		clash, err := c.nameClash(ctx, o, have, w)
		if err != nil {
			return nil, err
		}
		if clash != "" {
			out = append(out, clash)
		}
	}
	return out, nil
}

// nameClash describes which other class has the extended resource name that a class should
// have. If our class has the name by now, the name is removed from it: of two classes the
// scheduler takes the later one, and then the other is not found under its implicit name
// either.
func (c *Controller) nameClash(ctx context.Context, o *v1alpha1.NetworkTopology, have []resourceapi.DeviceClass,
	want *resourceapi.DeviceClass,
) (string, error) {
	name := *want.Spec.ExtendedResourceName
	named, _, err := Named(ctx, c.Client, name)
	if err != nil {
		return "", err
	}
	var ours *resourceapi.DeviceClass
	if i := slices.IndexFunc(have, func(h resourceapi.DeviceClass) bool {
		return h.Spec.ExtendedResourceName != nil && *h.Spec.ExtendedResourceName == name
	}); i >= 0 {
		ours = &have[i]
	}
	for i := range named {
		if other := &named[i]; Owned(other, o) || !yields(ours, other) {
			continue
		}
		if ours != nil {
			without := ours.DeepCopy()
			without.Spec.ExtendedResourceName = nil
			if err := c.Client.Update(ctx, without); err != nil {
				return "", fmt.Errorf("take extended resource name %q from DeviceClass %q: %w", name, ours.Name, err)
			}
			c.left.Store(without.Name, without.ResourceVersion)
		}
		return NameClash(want.Labels[claim.LabelStep], &named[i]), nil
	}
	return "", nil
}

// apply creates, repairs and deletes classes. It returns how many there are afterwards, and
// the steps of those that the API server has written without their extended resource name.
func (c *Controller) apply(ctx context.Context, o *v1alpha1.NetworkTopology, have []resourceapi.DeviceClass,
	want []*resourceapi.DeviceClass,
) (n int, unnamed []string, err error) {
	there := map[string]*resourceapi.DeviceClass{}
	for i := range have {
		there[have[i].Name] = &have[i]
	}
	var created, updated []string
	for _, w := range want {
		h, exists := there[w.Name]
		delete(there, w.Name)
		named := w.Spec.ExtendedResourceName != nil
		if !exists {
			if err := c.Client.Create(ctx, w); err != nil {
				return len(have), nil, fmt.Errorf("create DeviceClass %q: %w", w.Name, err)
			}
			c.left.Store(w.Name, w.ResourceVersion)
			created = append(created, w.Name)
			if named && w.Spec.ExtendedResourceName == nil { // as it was written
				unnamed = append(unnamed, w.Labels[claim.LabelStep])
			}
			continue
		}
		fixed := h.DeepCopy()
		if !Repair(fixed, w) {
			c.left.Store(h.Name, h.ResourceVersion)
			continue
		}
		if err := c.Client.Update(ctx, fixed); err != nil {
			return len(have), nil, fmt.Errorf("update DeviceClass %q: %w", w.Name, err)
		}
		was, known := c.left.Swap(w.Name, fixed.ResourceVersion)
		if named && fixed.Spec.ExtendedResourceName == nil {
			unnamed = append(unnamed, w.Labels[claim.LabelStep])
		}
		if equality.Semantic.DeepEqual(normalize(fixed.Spec), normalize(h.Spec)) && maps.Equal(fixed.Labels, h.Labels) &&
			equality.Semantic.DeepEqual(fixed.OwnerReferences, h.OwnerReferences) {
			continue // nothing else differs, and nobody has edited it: only managedFields may have changed
		}
		updated = append(updated, w.Name)
		if was == h.ResourceVersion || o.Status.ObservedGeneration != o.Generation {
			continue // a step type or the topology has changed
		}
		if known {
			c.event(o, corev1.EventTypeWarning, "Repaired", "Update",
				fmt.Sprintf("DeviceClass %q was edited by hand and has been restored. To change it, edit the topology", w.Name))
		} else {
			c.event(o, corev1.EventTypeNormal, "Repaired", "Update",
				fmt.Sprintf("DeviceClass %q differed from its topology when the controller started, and has been restored: "+
					"another version of plumbline wrote it, or it was edited by hand. To change it, edit the topology", w.Name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(there)) {
		if err := c.delete(ctx, there[name]); err != nil {
			return len(have), nil, err
		}
	}
	if len(created)+len(updated)+len(there) > 0 {
		c.Log.Info("programmed", "topology", o.Name, "generation", o.Generation, "created", created, "updated", updated, "deleted",
			slices.Sorted(maps.Keys(there)))
	}
	return len(want), unnamed, nil
}

// delete removes a class if it is unchanged since it was found to belong to this topology.
func (c *Controller) delete(ctx context.Context, class *resourceapi.DeviceClass) error {
	err := c.Client.Delete(ctx, class, client.Preconditions{UID: &class.UID, ResourceVersion: &class.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete DeviceClass %q: %w", class.Name, err)
	}
	c.left.Delete(class.Name)
	return nil
}

// Repair restores a class of ours to what is wanted, and reports whether anything changed.
// Foreign labels and annotations are kept, as are owners that do not control it.
func Repair(have, want *resourceapi.DeviceClass) (changed bool) {
	for k, v := range want.Labels {
		if have.Labels[k] != v {
			changed = true
			metav1.SetMetaDataLabel(&have.ObjectMeta, k, v)
		}
	}
	owner := want.OwnerReferences[0]
	if ref := metav1.GetControllerOf(have); ref == nil || !equality.Semantic.DeepEqual(*ref, owner) {
		changed = true
		have.OwnerReferences = append(slices.DeleteFunc(have.OwnerReferences, func(r metav1.OwnerReference) bool {
			return r.UID == owner.UID || r.Controller != nil && *r.Controller
		}), owner)
	}
	if !equality.Semantic.DeepEqual(normalize(have.Spec), normalize(want.Spec)) {
		changed = true
		have.Spec = *want.Spec.DeepCopy()
	}
	return changed
}

// normalize returns a spec with its opaque JSON in one spelling.
func normalize(s resourceapi.DeviceClassSpec) resourceapi.DeviceClassSpec {
	s = *s.DeepCopy()
	for i := range s.Config {
		o := s.Config[i].Opaque
		if o == nil {
			continue
		}
		var v any
		if json.Unmarshal(o.Parameters.Raw, &v) != nil {
			continue
		}
		if raw, err := json.Marshal(v); err == nil {
			o.Parameters.Raw = raw
		}
	}
	return s
}

// report writes the status and emits Events.
func (c *Controller) report(ctx context.Context, o *v1alpha1.NetworkTopology, found Outcome) error {
	s := StatusOf(o, found)
	before, after := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady),
		meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady)
	switch {
	case before != nil && before.Status == after.Status && before.Message == after.Message:
	case after.Status != metav1.ConditionTrue:
		c.event(o, corev1.EventTypeWarning, after.Reason, "Program", after.Message)
	case before == nil || before.Status != metav1.ConditionTrue:
		c.event(o, corev1.EventTypeNormal, "Programmed", "Program", after.Message)
	}
	c.emitUnshared(o, &s)
	c.emitRollout(o, &s)
	return c.write(ctx, o, s)
}

// emitRollout emits an Event when a rollout has begun, has ended, or was stopped.
func (c *Controller) emitRollout(o *v1alpha1.NetworkTopology, s *v1alpha1.NetworkTopologyStatus) {
	before, after := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionUpdated),
		meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionUpdated)
	if after == nil || before != nil && before.Reason == after.Reason && before.ObservedGeneration == after.ObservedGeneration {
		return
	}
	switch {
	case after.Reason == reasonRollingOut:
		c.event(o, corev1.EventTypeNormal, "RollingOut", "Update", after.Message)
	case after.Reason == reasonComplete && before != nil && before.Reason != reasonComplete:
		c.event(o, corev1.EventTypeNormal, "Updated", "Update", after.Message)
	case after.Reason == reasonFailed, after.Reason == reasonHeldBack, after.Reason == reasonRetrying:
		c.event(o, corev1.EventTypeWarning, "Update"+after.Reason, "Update", after.Message)
	}
}

func (c *Controller) event(o client.Object, kind, reason, action, message string) {
	c.Recorder.Eventf(o, nil, kind, reason, action, "%s", excerpt.Lines(message, maxNote))
}

func (c *Controller) write(ctx context.Context, o *v1alpha1.NetworkTopology, s v1alpha1.NetworkTopologyStatus) error {
	if equality.Semantic.DeepEqual(o.Status, s) {
		return nil
	}
	o.Status = s
	if err := client.IgnoreNotFound(c.Client.Status().Update(ctx, o)); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}
