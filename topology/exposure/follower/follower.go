package follower

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	coreinformers "k8s.io/client-go/informers/core/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/nodereport"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Options configures a Follower. Its rights: get, list and watch of
// deviceexposurepolicies, nodes and resourceslices, create and patch of
// deviceexposurereports.
type Options struct {
	Kube     kubernetes.Interface
	Dynamic  dynamic.Interface
	NodeName string
	// Changed is called when devices have to be decided again. It must not block.
	Changed func()
	Log     *slog.Logger
	// Spread is the time over which the nodes of a cluster write their reports after an
	// edit that all of them receive at once; default 10 s.
	Spread time.Duration
}

// Follower knows what the cluster says of the devices of one node.
type Follower struct {
	Options
	policies, node, slices cache.SharedIndexInformer
	ready                  chan struct{}
	absent                 chan struct{} // the cluster has no such CRD
	once                   sync.Once
	recreated              chan struct{} // closed by sawNode
	reports                *nodereport.Writer

	mu     sync.Mutex
	first  types.UID                      // of the Node object
	read   map[types.UID]*exposure.Policy // compiled, by object
	stale  bool                           // set is older than the last change
	set    exposure.Set
	report *v1alpha1.DeviceExposureReport
}

// New returns a Follower that does nothing until Run.
func New(o Options) *Follower {
	f := &Follower{
		Options: o, ready: make(chan struct{}), absent: make(chan struct{}), recreated: make(chan struct{}),
		read: map[types.UID]*exposure.Policy{}, stale: true,
	}
	f.reports = nodereport.New(nodereport.Options{
		Client: o.Dynamic, Resource: v1alpha1.ReportResource(), Kind: v1alpha1.ReportKind, NodeName: o.NodeName, NodeUID: f.NodeUID,
		Log: o.Log, Spread: o.Spread,
		Report: func() any {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.report == nil {
				return nil
			}
			return f.report
		},
	})
	f.policies = dynamicinformer.NewFilteredDynamicInformer(o.Dynamic, v1alpha1.PolicyResource(), metav1.NamespaceAll, 0,
		cache.Indexers{}, nil).Informer()
	f.node = coreinformers.NewFilteredNodeInformer(o.Kube, 0, cache.Indexers{}, func(l *metav1.ListOptions) {
		l.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, o.NodeName).String()
	})
	f.slices = resourceinformers.NewFilteredResourceSliceInformer(o.Kube, 0, cache.Indexers{}, func(l *metav1.ListOptions) {
		l.FieldSelector = fields.AndSelectors(
			fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, o.NodeName),
			fields.OneTermNotEqualSelector(resourceapi.ResourceSliceSelectorDriver, inventory.Driver)).String()
	})
	return f
}

// Ready is closed when devices can be decided.
func (f *Follower) Ready() <-chan struct{} { return f.ready }

// Recreated is closed when the Node object is another one than that which was seen first: it was deleted and created again.
func (f *Follower) Recreated() <-chan struct{} { return f.recreated }

func (f *Follower) sawNode(o any) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.first = cmp.Or(f.first, n.UID)
	select {
	case <-f.recreated:
	default:
		if n.UID != f.first {
			close(f.recreated)
		}
	}
}

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, i := range []struct {
		what      string
		informer  cache.SharedIndexInformer
		transform cache.TransformFunc
		changed   cache.ResourceEventHandler
	}{
		{"policies", f.policies, nil, f.onAny()},
		{"the node", f.node, ofNode, cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { f.sawNode(o); f.changed() },
			UpdateFunc: func(before, after any) {
				f.sawNode(after)
				if a, b := before.(*corev1.Node), after.(*corev1.Node); !maps.Equal(a.Labels, b.Labels) {
					f.changed()
				}
			},
		}},
		{"slices of other drivers", f.slices, identitiesOnly, f.onAny()},
	} {
		if err := errors.Join(i.informer.SetTransform(i.transform),
			i.informer.SetWatchErrorHandlerWithContext(f.onError(i.what))); err != nil {
			f.Log.Error("cannot watch "+i.what, "error", err) // it runs already, which it does not
			return
		}
		if _, err := i.informer.AddEventHandler(i.changed); err != nil {
			f.Log.Error("cannot watch "+i.what, "error", err)
			return
		}
		wg.Go(func() { i.informer.RunWithContext(ctx) })
	}
	if !f.sync(ctx) {
		return
	}
	close(f.ready)
	f.changed()
	f.reports.Run(ctx)
}

// sync waits until everything was read, or the cluster turns out to have no policies.
func (f *Follower) sync(ctx context.Context) bool {
	if !cache.WaitForCacheSync(ctx.Done(), f.node.HasSynced, f.slices.HasSynced) {
		return false
	}
	known := make(chan struct{})
	go func() {
		defer close(known)
		cache.WaitForCacheSync(ctx.Done(), f.policies.HasSynced)
	}()
	select {
	case <-known:
	case <-f.absent:
	}
	return ctx.Err() == nil
}

func (f *Follower) onAny() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { f.changed() }, DeleteFunc: func(any) { f.changed() },
		UpdateFunc: func(before, after any) {
			// A status that is written changes nothing for a node.
			if a, ok := before.(*unstructured.Unstructured); ok {
				if b, ok := after.(*unstructured.Unstructured); ok && a.GetUID() == b.GetUID() && a.GetGeneration() == b.GetGeneration() {
					return
				}
			}
			f.changed()
		},
	}
}

func (f *Follower) onError(what string) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, r *cache.Reflector, err error) {
		if what == "policies" && apierrors.IsNotFound(err) {
			f.once.Do(func() {
				f.Log.Info("the cluster has no policies for devices: their CRD is not installed")
				close(f.absent)
			})
			return
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			f.Log.Warn("cannot watch "+what, "error", err)
		}
	}
}

// changed triggers a new decision for all devices.
func (f *Follower) changed() {
	f.mu.Lock()
	f.stale = true
	f.mu.Unlock()
	f.Changed()
}

// current returns the policies that count on the node, and which attributes they add.
func (f *Follower) current() exposure.Set {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stale {
		return f.set
	}
	// Reset before reading: a change meanwhile makes it stale again.
	f.stale = false
	kept := map[types.UID]*exposure.Policy{}
	var all []*exposure.Policy
	for _, v := range f.policies.GetStore().List() {
		u, ok := v.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		p := f.read[u.GetUID()]
		if p == nil || p.Generation != u.GetGeneration() {
			p = policyOf(u)
		}
		kept[u.GetUID()] = p
		all = append(all, p)
	}
	f.read = kept
	f.set = exposure.NewSet(all, exposure.Node{Name: f.NodeName, Labels: f.self().Labels})
	return f.set
}

// policyOf reads a policy. One of another shape, as a later version may have, says
// nothing clearly, and leaves the devices as they were.
func policyOf(u *unstructured.Unstructured) *exposure.Policy {
	o := &v1alpha1.DeviceExposurePolicy{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
		priority, _, _ := unstructured.NestedInt64(u.Object, "spec", "priority")
		return exposure.Unreadable(u.GetName(), u.GetGeneration(), int32(priority), err)
	}
	return exposure.New(o)
}

// self is the node's object, an empty one when there is none.
func (f *Follower) self() *corev1.Node {
	v, _, _ := f.node.GetStore().GetByKey(f.NodeName)
	if n, ok := v.(*corev1.Node); ok {
		return n
	}
	return &corev1.Node{}
}

// NodeUID returns the UID of the Node object, "" while it is not known.
func (f *Follower) NodeUID() types.UID { return f.self().UID }

// Decide says of each device what the policies decide, and which attributes any policy
// of the cluster adds. It fails until Ready.
func (f *Follower) Decide(ctx context.Context, devices []inventory.Device) ([]inventory.Device, []string, error) {
	select {
	case <-f.ready:
	default:
		return nil, nil, errors.New("the policies of the cluster are not known yet")
	}
	set := f.current()
	out, err := set.Decide(ctx, devices)
	return out, set.Attributes(), err
}

// Node returns the labels and the pod CIDRs of the node; false while they are not known.
func (f *Follower) Node() (labels map[string]string, podCIDRs []string, known bool) {
	n := f.self()
	return n.Labels, n.Spec.PodCIDRs, n.Name != ""
}

// ofNode keeps in memory what policies select nodes by, and where the addresses of its
// pods are from.
func ofNode(v any) (any, error) {
	n, ok := v.(*corev1.Node)
	if !ok {
		return v, nil
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels},
		Spec:       corev1.NodeSpec{PodCIDRs: n.Spec.PodCIDRs},
	}, nil
}

// count returns how many devices there are that could be offered.
func count(devices []inventory.Device) int {
	n := 0
	for _, d := range devices {
		if d.Kind != inventory.KindVirtual {
			n++
		}
	}
	return n
}

// Offered takes which of the devices that were decided are offered, for the report.
func (f *Follower) Offered(devices []inventory.Device, offered map[string]bool) {
	set := f.current()
	r := &v1alpha1.DeviceExposureReport{
		Devices: int32(count(devices)), Offered: int32(len(offered)), Policies: set.Reports(devices, offered),
	}
	f.mu.Lock()
	f.report = r
	f.mu.Unlock()
	f.reports.Changed()
}
