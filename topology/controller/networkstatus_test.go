package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/networkstatus"
)

// TestNetworkReports holds when a claim has the annotation of its pod written: when what was reported of networks changes, or the pod, and not
// when conditions do.
func TestNetworkReports(t *testing.T) {
	c := emptyClaims()
	c.networks = true
	counted := 0
	c.OnChange(func(string) { counted++ })
	claimWith := func(pods []string, addresses ...string) *resourceapi.ResourceClaim {
		o := allocatedWith(addresses...)
		o.Status.ReservedFor = nil
		for _, uid := range pods {
			o.Status.ReservedFor = append(o.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "p", UID: types.UID(uid)})
		}
		return o
	}
	feed(t, c, watch.Event{Type: watch.Added, Object: claimWith([]string{"a"}, "192.0.2.1/24")})
	var reports []bool
	c.OnNetwork(func(_ string, r *record) { reports = append(reports, r.reportsNetwork()) })
	want := func(what string, wanted ...bool) {
		t.Helper()
		if !slices.Equal(reports, wanted) {
			t.Errorf("%s: %v, want %v", what, reports, wanted)
		}
		reports = nil
	}
	want("what was there before", true)
	degraded := claimWith([]string{"a"}, "192.0.2.1/24")
	degraded.Status.Devices[0].Conditions[0].Status = "False"
	feed(t, c, watch.Event{Type: watch.Modified, Object: degraded})
	want("a condition")
	before := counted
	moved := claimWith([]string{"a"}, "192.0.2.2/24")
	moved.Status.Devices[0].Conditions[0].Status = "False"
	feed(t, c, watch.Event{Type: watch.Modified, Object: moved})
	want("another address", true)
	if counted != before {
		t.Error("an address counts as use of the topology")
	}
	feed(t, c, watch.Event{Type: watch.Modified, Object: claimWith([]string{"b"}, "192.0.2.2/24")})
	want("another pod", true)
	feed(t, c, watch.Event{Type: watch.Modified, Object: claimWith([]string{"a", "b"}, "192.0.2.2/24")})
	want("two pods", false)
	feed(t, c, watch.Event{Type: watch.Modified, Object: claimWith([]string{"a"}, "192.0.2.2/24")})
	want("one again", true)
	feed(t, c, watch.Event{Type: watch.Deleted, Object: claimWith([]string{"a"}, "192.0.2.2/24")})
	want("no claim", false)
	feed(t, c, watch.Event{Type: watch.Added, Object: allocated("gpu.example.com", "theirs", "red", 1)}, watch.Event{Type: watch.Added, Object: allocated(claim.Driver, "bare", "red", 1)})
	want("no network")
}

// recorder notes which pods are enqueued.
type recorder struct {
	priorityqueue.PriorityQueue[podKey]

	pods []string
}

func (r *recorder) AddWithOpts(o priorityqueue.AddOpts, pods ...podKey) {
	for _, p := range pods {
		r.pods = append(r.pods, fmt.Sprint(p.Name, " ", p.uid, " ", *o.Priority))
	}
}

// TestWhileNobodyLed: a pod whose claim has lost its report, or serves a second pod since, is read again by the next leader: it may have the
// annotation of before.
func TestWhileNobodyLed(t *testing.T) {
	c := emptyClaims()
	c.networks = true
	of := func(name string, addresses []string, pods ...string) {
		o := allocatedWith(addresses...)
		o.Name, o.Status.ReservedFor = name, []resourceapi.ResourceClaimConsumerReference{{APIGroup: "batch", Resource: "jobs", Name: "j", UID: "j"}}
		for _, p := range pods {
			o.Status.ReservedFor = append(o.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID("uid-" + p)})
		}
		if len(addresses) == 0 {
			o.Status.Devices = nil
		}
		feed(t, c, watch.Event{Type: watch.Added, Object: o})
	}
	address := []string{"192.0.2.1/24"}
	of("reports", address, "a")
	of("detached", nil, "b")
	of("shared", address, "c", "d", "e")
	of("idle", nil)
	queue := &recorder{}
	n := &NetworkStatus{Claims: c, queue: queue, of: map[podKey][]string{}, by: map[string]podKey{}}
	n.replays.Store(true)
	c.OnNetwork(n.changed)
	slices.Sort(queue.pods)
	want := []string{"a uid-a -100", "b uid-b -100", "c uid-c -100", "d uid-d -100", "e uid-e -100"}
	if !slices.Equal(queue.pods, want) {
		t.Errorf("enqueued %q, want %q", queue.pods, want)
	}
	if len(n.of) != 1 || len(n.by) != 1 || n.by["ns/reports"].Name != "a" {
		t.Errorf("claims with a report: %v, %v", n.of, n.by)
	}
}

// podServer is an API server with one pod.
type podServer struct {
	metadata.ResourceInterface

	have    *metav1.PartialObjectMetadata
	err     error
	patches []string
}

func (s *podServer) Namespace(string) metadata.ResourceInterface { return s }

func (s *podServer) Get(context.Context, string, metav1.GetOptions, ...string) (*metav1.PartialObjectMetadata, error) {
	return s.have, s.err
}

func (s *podServer) Patch(_ context.Context, _ string, _ types.PatchType, patch []byte, _ metav1.PatchOptions, _ ...string) (*metav1.PartialObjectMetadata, error) {
	s.patches = append(s.patches, string(patch))
	return s.have, nil
}

// claimServer is an API server with one claim.
type claimServer struct {
	resourceclient.ResourceClaimInterface

	claim *resourceapi.ResourceClaim
}

func (s claimServer) ResourceClaims(string) resourceclient.ResourceClaimInterface { return s }

func (s claimServer) Get(context.Context, string, metav1.GetOptions) (*resourceapi.ResourceClaim, error) {
	return s.claim, nil
}

// noTopologies is an API server without topologies.
type noTopologies struct{ client.Reader }

func (noTopologies) Get(context.Context, types.NamespacedName, client.Object, ...client.GetOption) error {
	return errors.New("not found")
}

// TestTooLarge: a pod that has more than the annotation may list has none, not the one of before, and it is not tried again.
func TestTooLarge(t *testing.T) {
	const before = `[{"name":"red","interface":"net1","dns":{}}]`
	o := allocatedWith("192.0.2.1/24")
	var links []string
	for i := range 200 {
		links = append(links, fmt.Sprintf(`{"name":"n%d","sandbox":"/run/netns/p"}`, i))
	}
	o.Status.Devices[0].Data = &apiruntime.RawExtension{Raw: []byte(`{"topology":"red","steps":[{"name":"s","result":{"interfaces":[` + strings.Join(links, ",") + `]}}]}`)}
	pod := podKey{types.NamespacedName{Namespace: "ns", Name: "pod-one"}, "pod"}
	server := &podServer{have: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: "pod", ResourceVersion: "7", Annotations: map[string]string{networkstatus.Annotation: before, networkstatus.Mark: networkstatus.Digest(before)}}}}
	n := &NetworkStatus{Topologies: noTopologies{}, pods: server, claims: claimServer{claim: o}, of: map[podKey][]string{pod: {"ns/one"}}}
	err := n.write(t.Context(), pod)
	const want = `{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/network-status":null,"networking.dra.io/network-status":null},"resourceVersion":"7","uid":"pod"}}`
	if !errors.Is(err, networkstatus.ErrTooLarge) || !slices.Equal(server.patches, []string{want}) {
		t.Errorf("%v, patches %q, want %q", err, server.patches, want)
	}
	server.have.Annotations, server.patches = nil, nil
	if err := n.write(t.Context(), pod); !errors.Is(err, networkstatus.ErrTooLarge) || len(server.patches) != 0 {
		t.Errorf("without an annotation: %v, patches %q", err, server.patches)
	}
}

// TestRetriesStayBehind: what failed after a change of leader is tried again behind the pods that start.
func TestRetriesStayBehind(t *testing.T) {
	for name, err := range map[string]error{
		"fails":    errors.New("no connection"),
		"conflict": apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("newer")),
	} {
		queue := priorityqueue.New("network-status", func(o *priorityqueue.Opts[podKey]) {
			o.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[podKey](0, 0)
		})
		n := &NetworkStatus{Log: slog.New(slog.DiscardHandler), pods: &podServer{err: err}, queue: queue}
		queue.AddWithOpts(priorityqueue.AddOpts{Priority: new(behind)}, podKey{uid: "a"})
		n.next(t.Context())
		if _, priority, _ := queue.GetWithPriority(); priority != behind {
			t.Errorf("%s: priority %d", name, priority)
		}
		queue.ShutDown()
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestOneLimit: the requests for pods and those for claims are limited together.
func TestOneLimit(t *testing.T) {
	asked := false
	config := &rest.Config{Host: "http://api.example.com", Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		asked = true
		return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	})}
	n, err := NewNetworkStatus(config, noTopologies{}, emptyClaims(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	limit := n.claims.(*resourceclient.ResourceV1Client).RESTClient().GetRateLimiter()
	for range 100 { // a token comes every 10 ms, so that one attempt may find it
		for limit.TryAccept() {
		}
		asked = false
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		_, err := n.pods.Namespace("ns").Get(ctx, "p", metav1.GetOptions{})
		early := ctx.Err() == nil
		cancel()
		if err != nil && early && !asked {
			return // refused, since a token comes too late
		}
	}
	t.Error("pods are read when requests for claims have taken all there is")
}
