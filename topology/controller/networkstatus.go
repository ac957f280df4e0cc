package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/plumbline/plumbline/topology/networkstatus"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// NetworkStatus writes the annotation k8s.v1.cni.cncf.io/network-status of pods from the status of their claims, for programs
// that read it where Multus runs. A pod of which somebody else writes it, or which asks Multus for networks, is left
// alone. Its permissions, beside those of Controller:
//
//	pods         get
//	pods/status  patch
//
// It is the controller's task since it is one identity: an agent with this right could write the metadata of the
// pods of all nodes. Of pods only the metadata is read.
//
// A pod is read and written when the report on one of its claims has changed. A pod with k claims that starts takes k+2
// requests, so that a hundred in a second are 33 pods with one claim; when a claim loses its report, its pod is read
// once more. After a change of leader each pod with a claim is read again, with k+1 requests, behind those that start:
// 20,000 pods with one claim take some 400 s.
type NetworkStatus struct {
	Topologies client.Reader
	Claims     *Claims
	Log        *slog.Logger

	pods   metadata.Getter
	claims resourceclient.ResourceClaimsGetter
	queue  priorityqueue.PriorityQueue[podKey]

	replays atomic.Bool // while the claims of before are enqueued

	mu sync.Mutex
	of map[podKey][]string // the claims of a pod that have a report, sorted
	by map[string]podKey
}

type podKey struct {
	types.NamespacedName

	uid types.UID
}

const (
	// statusWorkers is how many pods are written at a time.
	statusWorkers = 4
	// statusQPS is the bound for its requests, of pods and claims together.
	statusQPS = 100
	// statusSettle is how long the reports on the claims of a pod are collected.
	statusSettle  = 300 * time.Millisecond
	statusTimeout = 15 * time.Second
	statusManager = "plumbline-controller"
	// behind is the priority of pods that are read again after a change of leader.
	behind = -100
)

// NewNetworkStatus has the claims report on networks, and so it is called before they are read.
func NewNetworkStatus(config *rest.Config, topologies client.Reader, claims *Claims, log *slog.Logger) (*NetworkStatus, error) {
	config = rest.CopyConfig(config)
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(statusQPS, 2*statusQPS) // one: of QPS each client makes its own
	pods, err := metadata.NewForConfig(config)
	api, also := resourceclient.NewForConfig(config)
	if err = cmp.Or(err, also); err != nil {
		return nil, fmt.Errorf("network status: %w", err)
	}
	claims.networks = true
	return &NetworkStatus{
		Topologies: topologies, Claims: claims, Log: log,
		pods: pods.Resource(corev1.SchemeGroupVersion.WithResource("pods")), claims: api,
	}, nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: one replica writes.
func (*NetworkStatus) NeedLeaderElection() bool { return true }

// Start writes until ctx ends.
func (n *NetworkStatus) Start(ctx context.Context) error {
	if err := n.Claims.WaitForSync(ctx); err != nil {
		return nil //nolint:nilerr // ctx has ended
	}
	n.of, n.by = map[podKey][]string{}, map[string]podKey{}
	n.queue = priorityqueue.New("network-status", func(o *priorityqueue.Opts[podKey]) {
		o.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[podKey](time.Second, 2*time.Minute)
	})
	n.replays.Store(true)
	n.Claims.OnNetwork(n.changed)
	n.replays.Store(false)
	var running sync.WaitGroup
	for range statusWorkers {
		running.Go(func() {
			for n.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	n.queue.ShutDown()
	running.Wait()
	return nil
}

// changed follows one claim. The caller holds the lock of Claims.
func (n *NetworkStatus) changed(key string, r *record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	enqueue := func(p podKey) {
		options := priorityqueue.AddOpts{After: statusSettle}
		if n.replays.Load() {
			options.Priority = new(behind)
		}
		n.queue.AddWithOpts(options, p)
	}
	if was, known := n.by[key]; known {
		if n.of[was] = slices.DeleteFunc(n.of[was], func(other string) bool { return other == key }); len(n.of[was]) == 0 {
			delete(n.of, was)
		}
		delete(n.by, key)
		enqueue(was)
	}
	if r == nil || r.pods == 0 {
		return
	}
	namespace, _, _ := strings.Cut(key, "/")
	is := podKey{types.NamespacedName{Namespace: namespace, Name: r.pod}, r.podUID}
	if !r.reportsNetwork() { // the pods may have what was written when it had a report
		enqueue(is)
		for _, o := range r.others {
			enqueue(podKey{types.NamespacedName{Namespace: namespace, Name: o.name}, o.uid})
		}
		return
	}
	n.by[key] = is
	n.of[is] = append(n.of[is], key)
	slices.Sort(n.of[is])
	enqueue(is)
}

func (n *NetworkStatus) next(ctx context.Context) bool {
	pod, priority, stopped := n.queue.GetWithPriority()
	if stopped {
		return false
	}
	defer n.queue.Done(pod)
	err := n.write(ctx, pod)
	switch {
	case err == nil || ctx.Err() != nil:
		n.queue.Forget(pod)
	case apierrors.IsConflict(err):
		n.queue.AddWithOpts(priorityqueue.AddOpts{After: statusSettle, Priority: &priority}, pod)
	case errors.Is(err, networkstatus.ErrTooLarge):
		n.Log.Warn("the annotation network-status of a pod was not written: it would be too large", "annotation",
			networkstatus.Annotation, "pod", pod.NamespacedName,
			"error", err)
		n.queue.Forget(pod)
	default:
		n.Log.Warn("the annotation network-status of a pod could not be written: retrying", "annotation", networkstatus.Annotation, "pod",
			pod.NamespacedName, "error", err)
		n.queue.AddWithOpts(priorityqueue.AddOpts{RateLimited: true, Priority: &priority}, pod)
	}
	return true
}

// write brings the annotation of a pod up to date. With ErrTooLarge it has removed it.
func (n *NetworkStatus) write(ctx context.Context, pod podKey) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	have, err := n.pods.Namespace(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get pod: %w", err)
	case have.UID != pod.uid || have.DeletionTimestamp != nil || !networkstatus.Ours(have.Annotations):
		return nil
	}
	n.mu.Lock()
	keys := slices.Clone(n.of[pod])
	n.mu.Unlock()
	var all []networkstatus.Status
	for _, key := range keys {
		of, err := n.ofClaim(ctx, key, pod)
		if err != nil {
			return err
		}
		all = append(all, of...)
	}
	text, tooLarge := networkstatus.Text(all)
	if tooLarge != nil && !errors.Is(tooLarge, networkstatus.ErrTooLarge) {
		return tooLarge
	}
	if text == have.Annotations[networkstatus.Annotation] {
		return tooLarge
	}
	_, err = n.pods.Namespace(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, networkStatusPatch(have, text),
		metav1.PatchOptions{FieldManager: statusManager}, "status")
	if apierrors.IsConflict(err) {
		return err
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("patch pod: %w", err)
	}
	return tooLarge
}

// ofClaim returns the entries of a claim, none if it is gone or no longer for the pod.
func (n *NetworkStatus) ofClaim(ctx context.Context, key string, pod podKey) ([]networkstatus.Status, error) {
	namespace, name, _ := strings.Cut(key, "/")
	c, err := n.claims.ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get claim: %w", err)
	}
	if !slices.ContainsFunc(c.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == pod.uid }) {
		return nil, nil
	}
	return networkstatus.Of(c, func(topology string) string {
		o := &v1alpha1.NetworkTopology{}
		if n.Topologies.Get(ctx, types.NamespacedName{Name: topology}, o) != nil {
			return topology
		}
		return networkstatus.NameOf(topology, o.Annotations[v1alpha1.AnnotationDefinition])
	}), nil
}

// networkStatusPatch sets the annotation of a pod that has not changed since it was read, or removes it if the text is empty.
func networkStatusPatch(pod *metav1.PartialObjectMetadata, text string) []byte {
	annotations := map[string]any{networkstatus.Annotation: nil, networkstatus.Mark: nil}
	if text != "" {
		annotations = map[string]any{networkstatus.Annotation: text, networkstatus.Mark: networkstatus.Digest(text)}
	}
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{ // of strings
		"uid": pod.UID, "resourceVersion": pod.ResourceVersion, "annotations": annotations,
	}})
	return patch
}
