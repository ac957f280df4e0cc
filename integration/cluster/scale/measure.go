package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/integration/cluster/population"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// results are the measurements of one controller; a negative one was not made.
type results struct {
	name             string
	first            time.Duration // from the first start until all topologies are reconciled
	ready            time.Duration // from another start until then
	passes           float64
	startRequests    float64
	startWrites      float64
	started, rested  usage
	rest             float64 // percent of a processor
	answers          map[string][]time.Duration
	podRequests      float64 // for each pod that starts
	podWrites        float64
	podsTook         time.Duration
	agentStarted     time.Duration
	agentRequests    float64
	agentHeap        float64 // MiB
	agentBytes       float64 // for each pod that starts elsewhere
	deleted          time.Duration
	deletionRequests float64
	deletion         usage
}

type row struct {
	what  string
	value float64
}

func (r *results) rows() []row {
	rows := []row{
		{"first start until all are reconciled, their statuses written, s", r.first.Seconds()},
		{"start until all are reconciled, s", r.ready.Seconds()},
		{"processor until then, s", r.started.processor.Seconds()},
		{"passes over topologies until then", r.passes},
		{"requests until then", r.startRequests},
		{"of these writes", r.startWrites},
		{"resident, MiB", r.started.resident},
		{"largest, MiB", r.started.peak},
		{"processor at rest, %", r.rest},
	}
	for _, kind := range kinds {
		took := r.answers[kind]
		rows = append(rows, row{"admission of " + kind + ", median, ms", quantile(took, 0.5)}, row{"p99, ms", quantile(took, 0.99)})
	}
	return append(rows,
		row{"requests for each pod that starts", r.podRequests},
		row{"statuses for each pod that starts", r.podWrites},
		row{fmt.Sprintf("an agent with %d claims: start, s", agentClaims), r.agentStarted.Seconds()},
		row{"its requests then", r.agentRequests},
		row{"its memory for them, MiB", r.agentHeap},
		row{"bytes it is sent for each pod that starts on another node", r.agentBytes},
		row{"deletion of a topology, s", r.deleted.Seconds()},
		row{"its requests", r.deletionRequests},
		row{"largest then, MiB", r.deletion.peak})
}

// quantile returns milliseconds.
func quantile(took []time.Duration, q float64) float64 {
	if len(took) == 0 {
		return -1
	}
	slices.Sort(took)
	return float64(took[min(len(took)-1, int(q*float64(len(took))))].Microseconds()) / 1000
}

// The kinds of claims that admission decides on.
var kinds = []string{"a claim of ours", "a claim of another driver", "a claim for a class that does not exist"}

func (b *bench) measure(ctx context.Context, commit string, patience time.Duration) (*results, error) {
	r := &results{name: name(commit), first: -time.Second, ready: -time.Second, answers: map[string][]time.Duration{}}
	program, err := b.build(ctx, commit)
	if err != nil {
		return r, err
	}
	// Statuses are as another version has left them. The first start rewrites them, and
	// describes the step types; the second one finds nothing to do.
	first, err := startController(ctx, b.Cluster, program)
	if err != nil {
		return r, err
	}
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = first.settled(within, b.size.Topologies)
	r.first = time.Since(first.began)
	if err = errors.Join(err, first.stop()); err != nil {
		return r, err
	}
	p, err := startController(ctx, b.Cluster, program)
	if err != nil {
		return r, err
	}
	defer p.stop() //nolint:errcheck // what it says at its end is in its log
	if r.passes, err = p.settled(within, b.size.Topologies); err != nil {
		return r, err
	}
	r.ready = time.Since(p.began)
	if r.started, err = p.used(); err != nil {
		return r, err
	}
	if r.startRequests, r.startWrites, err = p.requests(ctx); err != nil {
		return r, err
	}
	select {
	case <-ctx.Done():
		return r, context.Cause(ctx)
	case <-time.After(b.rest):
	}
	if r.rested, err = p.used(); err != nil {
		return r, err
	}
	r.rest = 100 * (r.rested.processor - r.started.processor).Seconds() / b.rest.Seconds()
	if err := b.admission(ctx, p, r); err != nil {
		return r, err
	}
	if err := b.agent(ctx, p, r); err != nil {
		return r, err
	}
	return r, b.deletion(ctx, p, r)
}

// agent has pods start while a node with many claims follows its topologies.
func (b *bench) agent(ctx context.Context, p *controllerProcess, r *results) error {
	before, began := heap(), time.Now()
	a, err := b.follow(ctx)
	if err != nil {
		return err
	}
	defer a.stop()
	r.agentStarted = a.followed.Sub(began)
	r.agentRequests, r.agentHeap = float64(a.requests.Load()), max(0, heap()-before)
	bytes := a.bytes.Load()
	if err := b.podStarts(ctx, p, r, podsStarted); err != nil {
		return err
	}
	r.agentBytes = float64(a.bytes.Load()-bytes) / podsStarted
	return nil
}

// admission calls the webhook as an API server does, one claim after the other, the kinds in
// turn: the controller collects garbage now and then, which is no kind's own. This process, which
// holds much, collects none meanwhile.
func (b *bench) admission(ctx context.Context, p *controllerProcess, r *results) error {
	debug.FreeOSMemory()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	// it is our own
	asker := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer asker.CloseIdleConnections()
	for i := range b.asks {
		for _, kind := range kinds {
			of := population.TopologyName(i % b.size.Topologies)
			classes := []string{claim.ClassName(of, "vf0"), claim.ClassName(of, "vf1")}
			switch kind {
			case kinds[1]:
				classes = []string{population.GPUClass}
			case kinds[2]:
				classes = []string{fmt.Sprintf("nobodys-%d", i)}
			}
			took, err := ask(ctx, asker, p.webhook, newClaim("asked", classes...))
			if err != nil {
				return err
			}
			r.answers[kind] = append(r.answers[kind], took)
		}
	}
	return nil
}

func ask(ctx context.Context, asker *http.Client, url string, c *resourceapi.ResourceClaim) (time.Duration, error) {
	object, err := json.Marshal(c)
	if err != nil {
		return 0, err
	}
	review := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "u", Kind: metav1.GroupVersionKind{Group: resourceapi.GroupName, Version: "v1", Kind: "ResourceClaim"},
			Name: c.Name, Namespace: c.Namespace, Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: object},
		},
	}
	body, err := json.Marshal(review)
	if err != nil {
		return 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	began := time.Now()
	answer, err := asker.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	review = admissionv1.AdmissionReview{}
	if err := json.NewDecoder(answer.Body).Decode(&review); err != nil {
		return 0, fmt.Errorf("%s: %w", answer.Status, err)
	}
	took := time.Since(began)
	if r := review.Response; r == nil || !r.Allowed || len(r.Warnings) > 0 {
		return 0, fmt.Errorf("the webhook says %+v", r)
	}
	return took, nil
}

func newClaim(name string, classes ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: population.Namespace, Name: name}}
	for i, class := range classes {
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests,
			resourceapi.DeviceRequest{Name: fmt.Sprintf("vf%d", i), Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			}})
	}
	return c
}

// podsStarted is how many pods start to see what that costs.
const podsStarted = 20

// podStarts writes what pods of the first topology that start have written: their
// claim, its allocation, and what the node reports. It counts what the controller
// asks of the API server meanwhile, and what every node with a claim of the topology
// is sent.
func (b *bench) podStarts(ctx context.Context, p *controllerProcess, r *results, pods int) error {
	o := &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: population.TopologyName(0)}}
	if err := b.client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return err
	}
	statuses, stop, err := b.count(ctx, o)
	if err != nil {
		return err
	}
	defer stop()
	before, _, err := p.requests(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	for i := range pods {
		if err := b.startPod(ctx, o, fmt.Sprintf("%s-%d", r.name, i), i); err != nil {
			return err
		}
	}
	// All of them are counted by now or after the time for which counts are collected.
	if err := b.counted(ctx, o, population.Users(b.size)+pods); err != nil {
		return err
	}
	after, _, err := p.requests(ctx)
	if err != nil {
		return err
	}
	r.podsTook = time.Since(began)
	r.podRequests, r.podWrites = (after-before)/float64(pods), float64(statuses.Load())/float64(pods)
	for i := range pods {
		if err := b.client.Delete(ctx, newClaim(fmt.Sprintf("%s-%d", r.name, i))); err != nil {
			return err
		}
	}
	return b.counted(ctx, o, population.Users(b.size))
}

// count counts the versions of a topology until stop is called.
func (b *bench) count(ctx context.Context, o *v1alpha1.NetworkTopology) (*atomic.Int64, func(), error) {
	w, err := b.client.Watch(ctx, &v1alpha1.NetworkTopologyList{}, &client.ListOptions{Raw: &metav1.ListOptions{
		FieldSelector: "metadata.name=" + o.Name, ResourceVersion: o.ResourceVersion,
	}})
	if err != nil {
		return nil, nil, err
	}
	n, done := &atomic.Int64{}, make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			if e.Type == watch.Modified {
				n.Add(1)
			}
		}
	}()
	return n, func() { w.Stop(); <-done }, nil
}

// startPod writes a claim as scheduler and node do.
func (b *bench) startPod(ctx context.Context, o *v1alpha1.NetworkTopology, name string, i int) error {
	steps := []string{"vf0", "vf1"}
	c := newClaim(name, claim.ClassName(o.Name, steps[0]), claim.ClassName(o.Name, steps[1]))
	if err := b.client.Create(ctx, c); err != nil {
		return err
	}
	node := population.NodeName(i % b.size.Nodes)
	allocation := &resourceapi.AllocationResult{}
	for _, step := range steps {
		raw, err := json.Marshal(claim.ConfigOf(o, step))
		if err != nil {
			return err
		}
		allocation.Devices.Results = append(allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: step, Driver: claim.Driver, Pool: node, Device: name + "-" + step})
		allocation.Devices.Config = append(allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClass, Requests: []string{step},
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver:     claim.Driver,
				Parameters: runtime.RawExtension{Raw: raw},
			}},
		})
	}
	c.Status.Allocation = allocation
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: types.UID(name)}}
	if err := b.client.Status().Update(ctx, c); err != nil {
		return err
	}
	for _, result := range allocation.Devices.Results {
		c.Status.Devices = append(c.Status.Devices, resourceapi.AllocatedDeviceStatus{
			Driver: claim.Driver, Pool: result.Pool, Device: result.Device,
			Data: &runtime.RawExtension{Raw: fmt.Appendf(nil, `{"topology":%q,"generation":1}`, o.Name)},
			Conditions: []metav1.Condition{{
				Type: "Ready", Status: metav1.ConditionTrue, Reason: "Attached",
				LastTransitionTime: metav1.Now(),
			}},
		})
	}
	return b.client.Status().Update(ctx, c)
}

// counted waits until a topology's status counts so many pods and reports.
func (b *bench) counted(ctx context.Context, o *v1alpha1.NetworkTopology, pods int) error {
	return b.wait(ctx, func(ctx context.Context) error {
		if err := b.client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if want := fmt.Sprintf("%d/%d", pods, pods); int(o.Status.Sandboxes) != pods || o.Status.Updated != want {
			return fmt.Errorf("%d pods, %s updated, want %s", o.Status.Sandboxes, o.Status.Updated, want)
		}
		return nil
	})
}

// deletion makes a topology and deletes it.
func (b *bench) deletion(ctx context.Context, p *controllerProcess, r *results) error {
	o := &v1alpha1.NetworkTopology{
		ObjectMeta: metav1.ObjectMeta{Name: "deleted"},
		Spec:       v1alpha1.NetworkTopologySpec{Steps: []v1alpha1.Step{{Name: "vf0", Type: "sriov"}, {Name: "vf1", Type: "sriov"}}},
	}
	if err := b.client.Create(ctx, o); err != nil {
		return err
	}
	err := b.wait(ctx, func(ctx context.Context) error {
		if err := b.client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if o.Status.DeviceClasses != 2 {
			return errors.New("it has no classes")
		}
		return nil
	})
	if err != nil {
		return err
	}
	before, _, err := p.requests(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.client.Delete(ctx, o); err != nil {
		return err
	}
	err = b.wait(ctx, func(ctx context.Context) error {
		err := b.client.Get(ctx, client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
	if err != nil {
		return err
	}
	r.deleted = time.Since(began)
	after, _, err := p.requests(ctx)
	if err != nil {
		return err
	}
	r.deletionRequests = after - before
	r.deletion, err = p.used()
	return err
}

// patience is how long is waited for what the controller does of itself.
const patience = 5 * time.Minute

// wait queries until there is no error.
func (b *bench) wait(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}
