package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/integration/cluster/population"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/filters"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	podtable "github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// ruleSize is how many pods one NetworkQoS covers, and how often it is edited.
type ruleSize struct {
	nodes, pods int // pods of each node
	edits       int
}

var fullRules = ruleSize{nodes: 100, pods: 50, edits: 20}

func (s ruleSize) part(n int) ruleSize {
	s.nodes = max(1, s.nodes/max(1, n))
	return s
}

// ruleResults are the measurements.
type ruleResults struct {
	created  time.Duration   // until all pods have the filters of a new object
	known    []time.Duration // after an edit of one rule, until the agent of each node knows it
	last     []time.Duration // until that of the last node does
	pods     []time.Duration // until all pods were given their filters, but for the kernel
	written  float64         // filters of a pod that change with a rule
	filters  float64         // of a pod
	requests float64         // of each agent for an edit
	used     time.Duration   // processor time of each agent for an edit, with what asks and waits here
}

// ruleAgents are the parts of the agents of all nodes that follow NetworkQoS objects, in this process.
type ruleAgents struct {
	*bench
	edited   atomic.Int64 // the mark of the last edit
	began    atomic.Pointer[time.Time]
	requests atomic.Int64
	nodes    []*ruleAgent
}

// ruleAgent is that of one node.
type ruleAgent struct {
	of      *ruleAgents
	follow  *filters.Follower
	claims  map[types.UID]*claims.Claim
	entries []claims.Entry

	mu      sync.Mutex
	mark    int64         // that this node knows
	known   time.Duration // when it did, after the edit
	has     map[types.UID]map[netstate.Key]netstate.Filter
	current int // pods with that mark
	written int // filters that differ from those before, of all pods since the edit
}

// Filtered implements filters.Reporter.
func (*ruleAgent) Filtered(claims.Claim) {}

// FilterFailed implements filters.Reporter.
func (*ruleAgent) FilterFailed(claims.Claim, error) {}

// rulesOf is an object with as many rules as one may have, of which the last has a mark.
func rulesOf(mark int64) []byte {
	var out strings.Builder
	out.WriteString(`{"apiVersion":"k8s.ovn.org/v1alpha1","kind":"NetworkQoS","metadata":{"name":"scale"},"spec":{"priority":1,` +
		`"networkSelectors":[{"networkSelectionType":"NetworkTopologies","networkTopologySelector":{}}],"egress":[`)
	for i := range qos.MaxRules {
		dscp := int64(1)
		if i == qos.MaxRules-1 {
			dscp = mark
		}
		fmt.Fprintf(&out, `{"dscp":%d,"classifier":{"to":[{"ipBlock":{"cidr":"198.51.100.%d/32"}}]}},`, dscp, i)
	}
	return []byte(strings.TrimSuffix(out.String(), ",") + "]}}")
}

// apply does what the agent does when the filters of a claim may have changed, but for the kernel.
func (n *ruleAgent) apply(_ context.Context, uid types.UID) (bool, error) {
	c := n.claims[uid]
	rules, err := n.follow.Of(c, &c.Topologies[0])
	if err != nil {
		return false, err
	}
	return n.took(uid, rules.Filters), nil
}

// markOf is the mark of the object that filters are of, 0 without one.
func markOf(fs map[netstate.Key]netstate.Filter) int64 {
	for _, f := range fs {
		if f.DSCP != nil && *f.DSCP > 1 {
			return int64(*f.DSCP)
		}
	}
	return 0
}

// took counts what a pod is given, and reports whether that differs from before.
func (n *ruleAgent) took(uid types.UID, given []netstate.Filter) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	old, written := n.has[uid], 0
	now := make(map[netstate.Key]netstate.Filter, len(given))
	for _, f := range given {
		if before, ok := old[f.Key()]; !ok || len(netstate.Diff(f, before)) > 0 {
			written++
		}
		now[f.Key()] = f
	}
	for k := range old {
		if _, ok := now[k]; !ok {
			written++
		}
	}
	n.has[uid] = now
	if mark, edited := markOf(now), n.of.edited.Load(); mark == edited && mark != 0 {
		if n.mark != edited {
			n.mark, n.known, n.current, n.written = edited, time.Since(*n.of.began.Load()), 0, 0
		}
		if markOf(old) != mark { // it may be given the same again
			n.current++
		}
		n.written += written
	}
	return written > 0
}

// startRuleAgents starts an agent for each node, whose pods exist.
func (b *bench) startRuleAgents(ctx context.Context, size ruleSize) (_ *ruleAgents, stop func(), err error) {
	registry, err := all.Registry()
	if err != nil {
		return nil, nil, err
	}
	a := &ruleAgents{bench: b}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	stop = func() { cancel(); running.Wait() }
	config := b.Config()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			a.requests.Add(1)
			return next.RoundTrip(r)
		})
	})
	config.QPS, config.Burst = 50, 100        // as the agent has it
	config.Dial = (&net.Dialer{}).DialContext // so that no two clients share a connection
	for i := range size.nodes {
		n, err := a.agentOf(ctx, config, population.NodeName(i), size.pods, registry)
		if err != nil {
			stop()
			return nil, nil, err
		}
		a.nodes = append(a.nodes, n)
		updates := n.follow.Updates(n.apply)
		running.Go(func() { n.follow.Run(ctx) })
		running.Go(func() { updates.Run(ctx) })
	}
	return a, stop, nil
}

func (a *ruleAgents) agentOf(ctx context.Context, config *rest.Config, node string, pods int, contracts contract.Set) (*ruleAgent, error) {
	n := &ruleAgent{of: a, claims: map[types.UID]*claims.Claim{}, has: map[types.UID]map[netstate.Key]netstate.Filter{}}
	topology := v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "rail", UID: "t"}}
	var mu sync.Mutex
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range pods {
		g.Go(func() error {
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: population.Namespace, Name: fmt.Sprintf("%s-%d", node, i)},
				Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
			}
			if err := a.client.Create(within, p); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			n.entries = append(n.entries, claims.Entry{In: []claims.Sandbox{{ID: p.Name, Phase: claims.Attached}}, Claim: claims.Claim{
				UID: types.UID("of-" + p.Name), Namespace: p.Namespace, Name: p.Name, Pod: claims.Pod{Name: p.Name, UID: p.UID},
				Topologies: []claims.Topology{{Object: topology}},
			}})
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i := range n.entries {
		n.claims[n.entries[i].UID] = &n.entries[i].Claim
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	labels, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	var topologies podtable.Table[string, *v1alpha1.NetworkTopology]
	topologies.Put(topology.Name, &topology)
	n.follow = filters.New(filters.Options{
		Client: objects, Pods: labels, NodeName: node, NodeUID: func() types.UID { return types.UID(node) }, Contracts: contracts,
		Claims: func() []claims.Entry { return n.entries }, Topologies: &topologies, Reporter: n,
		Log: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	return n, nil
}

// settled waits until all pods have the mark of the last edit, and returns how long after it they had.
func (a *ruleAgents) settled(ctx context.Context, pods int) (time.Duration, error) {
	err := a.wait(ctx, func(context.Context) error {
		for _, n := range a.nodes {
			n.mu.Lock()
			mark, current := n.mark, n.current
			n.mu.Unlock()
			if mark != a.edited.Load() || current < pods {
				return fmt.Errorf("node %q: %d of %d pods have the mark %d", n.follow.NodeName, current, pods, mark)
			}
		}
		return nil
	})
	return time.Since(*a.began.Load()), err
}

// edit gives the object another mark in its last rule.
func (a *ruleAgents) edit(mark int64, write func() error) error {
	a.edited.Store(mark)
	a.began.Store(new(time.Now()))
	return write()
}

// rules measures how long an edit of one rule of an object that covers all pods takes to the agents of all nodes, through the API server.
func (b *bench) rules(ctx context.Context, size ruleSize) (_ *ruleResults, err error) {
	if _, err := b.Kubectl(ctx, nil, "create", "-f",
		filepath.Join(b.Checkout(), "chart/plumbline/optional/k8s.ovn.org_networkqoses.yaml")); err != nil {
		return nil, err
	}
	if _, err := b.Kubectl(ctx, nil, "wait", "--for=condition=Established", "--timeout=60s", "crd",
		"networkqoses.k8s.ovn.org"); err != nil {
		return nil, err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: population.Namespace}}
	if err := b.client.Create(ctx, namespace); client.IgnoreAlreadyExists(err) != nil {
		return nil, err
	}
	// No controller makes the account that pods have.
	if err := b.client.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: population.Namespace,
		Name:      "default",
	}}); client.IgnoreAlreadyExists(err) != nil {
		return nil, err
	}
	a, stop, err := b.startRuleAgents(ctx, size)
	if err != nil {
		return nil, err
	}
	defer stop()
	object := func(mark int64) func() error {
		return func() error {
			_, err := b.Kubectl(ctx, strings.NewReader(string(rulesOf(mark))), "apply", "-n", population.Namespace, "-f", "-")
			return err
		}
	}
	r := &ruleResults{}
	if err := a.edit(2, object(2)); err != nil {
		return nil, err
	}
	if r.created, err = a.settled(ctx, size.pods); err != nil {
		return nil, err
	}
	api, err := dynamic.NewForConfig(b.Config())
	if err != nil {
		return nil, err
	}
	before, used, written, has := a.requests.Load(), processorTime(), 0, 0
	for i := range size.edits {
		if !loop.Wait(ctx, 1500*time.Millisecond, nil) { // a pod gets other filters at most once a second
			return nil, ctx.Err()
		}
		mark := int64(3 + i%60)
		patch := fmt.Appendf(nil, `[{"op":"replace","path":"/spec/egress/%d/dscp","value":%d}]`, qos.MaxRules-1, mark)
		if err := a.edit(mark, func() error {
			_, err := api.Resource(qosv1alpha1.Resource()).Namespace(population.Namespace).Patch(ctx, "scale", types.JSONPatchType, patch,
				metav1.PatchOptions{})
			return err
		}); err != nil {
			return nil, err
		}
		took, err := a.settled(ctx, size.pods)
		if err != nil {
			return nil, err
		}
		r.pods = append(r.pods, took)
		last := time.Duration(0)
		for _, n := range a.nodes {
			n.mu.Lock()
			r.known, last = append(r.known, n.known), max(last, n.known)
			written += n.written
			for _, f := range n.has {
				has = len(f)
			}
			n.mu.Unlock()
		}
		r.last = append(r.last, last)
	}
	r.used = (processorTime() - used) / time.Duration(size.nodes*size.edits)
	r.requests = float64(a.requests.Load()-before) / float64(size.nodes*size.edits)
	r.written, r.filters = float64(written)/float64(size.nodes*size.pods*size.edits), float64(has)
	return r, nil
}

// processorTime is that of this process.
func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(unix.TimevalToNsec(u.Utime) + unix.TimevalToNsec(u.Stime))
}

func (r *ruleResults) write(out io.Writer, size ruleSize) {
	fmt.Fprintf(out, "one object of %d rules, %d nodes with %d pods each, %d edits of one rule\n\n| | |\n|---|---|\n", qos.MaxRules,
		size.nodes, size.pods, size.edits)
	for _, row := range []row{
		{"the object is created: until all pods were given their filters, s", r.created.Seconds()},
		{"an edit: until the agent of a node knows it, median, ms", quantile(r.known, 0.5)},
		{"until that of the last node does, median, ms", quantile(r.last, 0.5)},
		{"largest, ms", quantile(r.last, 1)},
		{"until all pods were given their filters, but for the kernel, median, ms", quantile(r.pods, 0.5)},
		{"filters of a pod", r.filters},
		{"of these written for the rule", r.written},
		{"requests of each agent for it", r.requests},
		{"its processor time for it, ms", float64(r.used.Microseconds()) / 1000},
	} {
		fmt.Fprintf(out, "| %s | %s |\n", row.what, strings.TrimSpace(number(row.value)))
	}
}

func runRules(ctx context.Context, out io.Writer, log io.Writer, size ruleSize) (err error) {
	b, err := start(ctx, log, population.Size{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	r, err := b.rules(ctx, size)
	if err != nil {
		return err
	}
	r.write(out, size)
	return nil
}
