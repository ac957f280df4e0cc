package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/integration/cluster/population"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// addressSize is how many nodes allocate addresses of one pool.
type addressSize struct {
	nodes     int
	pods      int           // of each node, with an address each
	atOnce    int           // nodes whose pods start at the same time
	followers int           // nodes that follow the leases of all, for their routes
	away      time.Duration // of the API server; each node gets one more pod at the beginning and at the end of that time
}

// fullAddresses are 100,000 addresses of 5,000 nodes.
var fullAddresses = addressSize{nodes: 5000, pods: 20, atOnce: 500, followers: 20}

func (s addressSize) part(n int) addressSize {
	s.nodes = max(1, s.nodes/max(1, n))
	return s
}

// prefix is that of a pool of which the addresses are less than half, and which is large enough
// to have blocks.
func (s addressSize) prefix() netip.Prefix {
	bits := 20
	for 1<<(32-bits) < 5*s.nodes*s.pods/2 {
		bits--
	}
	return netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), bits)
}

const (
	scalePool = "scale"
	grace     = 5 * time.Second // after which the leases of a node that is gone end
)

// addressResults are the measurements.
type addressResults struct {
	started          time.Duration // until all agents know the pool
	startRequests    float64       // of each agent
	heap             float64       // KiB of each agent, with its addresses
	all, one, away   []time.Duration
	allTook          time.Duration
	writes, requests float64 // for each address
	oneRequests      float64
	followed         time.Duration   // until those that follow all leases know them
	joined           []time.Duration // after a node joins, of each of them
	awayFailed       int
	dials            float64       // of each client, each minute without the API server
	awayProcessor    time.Duration // of all agents in that time
	known            time.Duration // until all agents know a change made when it is back
	backRequests     float64       // of each agent, when the API server is back
	lost             int           // leases
	lostTook         time.Duration
	lostRequests     float64 // of the controller, for each lease
	controller       usage
}

// addressAgents are the agents of all nodes, in this process: their clients of the API server,
// and what leases and allocates addresses.
type addressAgents struct {
	*bench
	gate             gate
	requests, writes atomic.Int64
	// others are the requests but those that a node with addresses sends all the time: reads of its Node object,
	// reports of how many are used, and watches, which end after some minutes.
	others  atomic.Int64
	nodes   []*addressAgent
	config  *rest.Config
	shared  []*http.Client // for agentsPerClient each
	started int
	dir     string
	atOnce  int
}

type addressAgent struct {
	name      string
	client    *addresses.Client
	allocator *addresses.Allocator
	stop      func()

	mu   sync.Mutex
	had  map[types.UID]netip.Addr
	last int
}

// gate are the connections to the API server, which can be cut.
type gate struct {
	mu     sync.Mutex
	closed bool
	dials  int // attempts while it was closed
	conns  map[net.Conn]bool
}

var errCut = errors.New("the API server is away")

func (g *gate) dial(ctx context.Context, network, address string) (net.Conn, error) {
	g.mu.Lock()
	closed := g.closed
	if closed {
		g.dials++
	}
	g.mu.Unlock()
	if closed {
		return nil, errCut
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns[c] = true
	return c, nil
}

// attempts returns how often a connection was tried while it was closed.
func (g *gate) attempts() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dials
}

func (g *gate) set(closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = closed
	for c := range g.conns {
		if closed {
			_ = c.Close()
		}
	}
	if closed {
		clear(g.conns)
	}
}

// startAgents starts an agent for each node, and returns when all of them know the pool.
func (b *bench) startAgents(ctx context.Context, dir string, size addressSize) (*addressAgents, error) {
	a := &addressAgents{bench: b, gate: gate{conns: map[net.Conn]bool{}}, dir: dir, atOnce: size.atOnce}
	config := b.Config()
	config.Dial = a.gate.dial
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			a.requests.Add(1)
			if r.Method != http.MethodGet {
				a.writes.Add(1)
			}
			if r.Method != http.MethodPut && (r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/nodes/") &&
				!r.URL.Query().Has("watch")) {
				a.others.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
	// A hundred watches share a connection. On a busy machine a late answer would end all of them,
	// and each would begin with all leases again.
	if err := os.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "0"); err != nil {
		return nil, err
	}
	a.config = config
	for i := range size.nodes {
		n, err := a.startAgent(ctx, population.NodeName(i))
		if err != nil {
			a.stop()
			return nil, err
		}
		a.nodes = append(a.nodes, n)
	}
	known := 0
	return a, b.wait(ctx, func(context.Context) error {
		for ; known < len(a.nodes); known++ {
			n := a.nodes[known]
			if pools, err := n.client.Pools(); err != nil || len(pools) == 0 ||
				!slices.Contains(pools[0].Finalizers, v1alpha1.AddressPoolFinalizer) {
				return fmt.Errorf("node %q knows %d pools: %w", n.name, len(pools), err)
			}
		}
		return nil
	})
}

// agentsPerClient is how many agents share connections: one client for all would be slower than the API server.
const agentsPerClient = 100

// clientsOf are the clients of one agent, with a limit of requests of its own.
func (a *addressAgents) clientsOf() (kubernetes.Interface, dynamic.Interface, error) {
	if a.started%agentsPerClient == 0 {
		client, err := rest.HTTPClientFor(a.config) // with connections of its own, as Dial is set
		if err != nil {
			return nil, nil, err
		}
		a.shared = append(a.shared, client)
	}
	a.started++
	shared := a.shared[len(a.shared)-1]
	config := rest.CopyConfig(a.config)
	config.QPS, config.Burst = 50, 100 // as the agent has it
	kube, err := kubernetes.NewForConfigAndClient(config, shared)
	if err != nil {
		return nil, nil, err
	}
	dyn, err := dynamic.NewForConfigAndClient(config, shared)
	return kube, dyn, err
}

func (a *addressAgents) startAgent(ctx context.Context, name string) (*addressAgent, error) {
	kube, dyn, err := a.clientsOf()
	if err != nil {
		return nil, err
	}
	n := &addressAgent{name: name, client: addresses.NewClient(kube, dyn, name, time.Now), had: map[types.UID]netip.Addr{}}
	n.allocator, err = addresses.Open(addresses.Options{
		Leases: n.client, NodeName: name, File: filepath.Join(a.dir, name), Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Sync:     func(*os.File) error { return nil },
		Recorded: func() []addresspool.Grant { return nil },
		Ended:    func(context.Context, addresspool.Grant) (bool, error) { return false, nil },
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { n.client.Run(ctx) })
	running.Go(func() { n.allocator.Run(ctx) })
	n.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	return n, nil
}

func (a *addressAgents) stop() { stopAll(a.nodes) }

func stopAll(nodes []*addressAgent) {
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(n.stop)
	}
	all.Wait()
}

// allocate gives one more claim of a node its address, and returns how long that took.
func (n *addressAgent) allocate(ctx context.Context) (time.Duration, error) {
	n.mu.Lock()
	n.last++
	of := addresses.Claim{
		UID: types.UID(fmt.Sprint(n.name, "-", n.last)), Namespace: population.Namespace, Name: fmt.Sprint(n.last),
		Pod: fmt.Sprint(n.last),
	}
	n.mu.Unlock()
	want := addresses.Want{Topology: "t", Step: "s", Pool: scalePool}
	began := time.Now()
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		given, err := n.allocator.Take(of, []addresses.Want{want})
		if err == nil {
			took := time.Since(began)
			n.mu.Lock()
			defer n.mu.Unlock()
			n.had[of.UID] = given[want].Addresses[0].Addr()
			return took, nil
		}
		if fault.Of(err) != fault.NotReady {
			return 0, err
		}
		select {
		case <-ctx.Done():
			return 0, errors.Join(context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}

// each has nodes allocate pods addresses each, one after the other, some nodes at the same time.
func (a *addressAgents) each(ctx context.Context, nodes []*addressAgent, pods int) ([]time.Duration, error) {
	var mu sync.Mutex
	var all []time.Duration
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(a.atOnce)
	for _, n := range nodes {
		g.Go(func() error {
			for range pods {
				took, err := n.allocate(ctx)
				if err != nil {
					return fmt.Errorf("node %q: %w", n.name, err)
				}
				mu.Lock()
				all = append(all, took)
				mu.Unlock()
			}
			return nil
		})
	}
	return all, g.Wait()
}

// waitIdle waits until agents have sent no other requests for two seconds.
func (a *addressAgents) waitIdle(ctx context.Context) error {
	sent, since := a.others.Load(), time.Now()
	return a.wait(ctx, func(context.Context) error {
		if n := a.others.Load(); n != sent {
			sent, since = n, time.Now()
		}
		if time.Since(since) < 2*time.Second {
			return errors.New("agents still send requests")
		}
		return nil
	})
}

// different returns an error if two claims have one address.
func different(nodes []*addressAgent) error {
	of := map[netip.Addr]types.UID{}
	for _, n := range nodes {
		for uid, address := range n.had {
			if other, twice := of[address]; twice {
				return fmt.Errorf("claims %q and %q both have %s", uid, other, address)
			}
			of[address] = uid
		}
	}
	return nil
}

// leases counts those of nodes.
func (b *bench) leases(ctx context.Context, of func(node string) bool) (int, error) {
	var list v1alpha1.AddressLeaseList
	n := 0
	for {
		if err := b.client.List(ctx, &list, client.Limit(5000), client.Continue(list.Continue)); err != nil {
			return 0, err
		}
		for i := range list.Items {
			if of(list.Items[i].Spec.Node) {
				n++
			}
		}
		if list.Continue == "" {
			return n, nil
		}
	}
}

// addresses has nodes allocate addresses of one pool, then loses the API server, then a tenth
// of the nodes.
func (b *bench) addresses(ctx context.Context, size addressSize) (_ *addressResults, err error) {
	klog.SetLogger(logr.Discard()) // watches end
	r := &addressResults{}
	program, err := b.build(ctx, "")
	if err != nil {
		return nil, err
	}
	if err := b.populate(ctx, size); err != nil {
		return nil, err
	}
	p, err := startController(ctx, b.Cluster, program, "--lease-grace", grace.String())
	if err != nil {
		return nil, err
	}
	defer p.stop() //nolint:errcheck // what it says at its end is in its log
	// All nodes would share one disk.
	dir, err := os.MkdirTemp("/dev/shm", "plumbline-addresses-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	before, began := heap(), time.Now()
	a, err := b.startAgents(ctx, dir, size)
	if err != nil {
		return nil, err
	}
	defer a.stop()
	r.started = time.Since(began)
	if err := a.waitIdle(ctx); err != nil {
		return nil, err
	}
	r.startRequests = float64(a.requests.Load()) / float64(size.nodes)

	if err := a.allocate(ctx, size, r); err != nil {
		return nil, err
	}
	r.heap = max(0, heap()-before) * 1024 / float64(size.nodes)
	if err := a.allocateOne(ctx, size, r); err != nil {
		return nil, err
	}

	if err := b.join(ctx, a, size, r); err != nil {
		return nil, err
	}

	if err := b.away(ctx, a, size, r); err != nil {
		return nil, err
	}

	if err := b.lose(ctx, a, p, size, r); err != nil {
		return nil, err
	}
	if r.controller, err = p.used(); err != nil {
		return nil, err
	}
	return r, different(a.nodes)
}

// populate creates the nodes and the pool.
func (b *bench) populate(ctx context.Context, size addressSize) error {
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(32)
	for i := range size.nodes {
		g.Go(func() error {
			return b.client.Create(within, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: population.NodeName(i)}})
		})
	}
	pool := &v1alpha1.AddressPool{
		ObjectMeta: metav1.ObjectMeta{Name: scalePool},
		Spec:       v1alpha1.AddressPoolSpec{Subnets: []v1alpha1.AddressSubnet{{Prefix: size.prefix().String()}}},
	}
	return errors.Join(g.Wait(), b.client.Create(ctx, pool))
}

// allocate has all nodes allocate all of their addresses at once.
func (a *addressAgents) allocate(ctx context.Context, size addressSize, r *addressResults) error {
	requests, writes := a.requests.Load(), a.writes.Load()
	began := time.Now()
	var err error
	if r.all, err = a.each(ctx, a.nodes, size.pods); err != nil {
		return err
	}
	r.allTook = time.Since(began)
	if err := a.waitIdle(ctx); err != nil {
		return err
	}
	count := float64(size.nodes * size.pods)
	r.requests, r.writes = float64(a.requests.Load()-requests)/count, float64(a.writes.Load()-writes)/count
	return nil
}

// allocateOne has one node after the other allocate one address more.
func (a *addressAgents) allocateOne(ctx context.Context, size addressSize, r *addressResults) error {
	requests := a.requests.Load()
	for _, n := range a.nodes {
		took, err := n.allocate(ctx)
		if err != nil {
			return err
		}
		r.one = append(r.one, took)
	}
	if err := a.waitIdle(ctx); err != nil {
		return err
	}
	r.oneRequests = float64(a.requests.Load()-requests) / float64(size.nodes)
	return nil
}

// lose loses a tenth of the nodes, with all of their leases.
func (b *bench) lose(ctx context.Context, a *addressAgents, p *controllerProcess, size addressSize, r *addressResults) error {
	gone := map[string]bool{}
	lost := a.nodes[:size.nodes/10]
	stopAll(lost)
	for _, n := range lost {
		gone[n.name] = true
	}
	of := func(node string) bool { return gone[node] }
	var err error
	if r.lost, err = b.leases(ctx, of); err != nil {
		return err
	}
	asked, _, err := p.requests(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	for name := range gone {
		if err := b.client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
	}
	if err := b.wait(ctx, func(ctx context.Context) error {
		if left, err := b.leases(ctx, of); err != nil || left > 0 {
			return errors.Join(err, fmt.Errorf("%d leases of nodes that are gone", left))
		}
		return nil
	}); err != nil {
		return err
	}
	r.lostTook = time.Since(began)
	now, _, err := p.requests(ctx)
	if err != nil {
		return err
	}
	r.lostRequests = (now - asked) / float64(r.lost)
	return nil
}

// away takes the API server from all agents for a time. Without it a node has what it has leased before.
func (b *bench) away(ctx context.Context, a *addressAgents, size addressSize, r *addressResults) error {
	before, err := usedBy(os.Getpid())
	if err != nil {
		return err
	}
	a.gate.set(true)
	began := time.Now()
	if err := a.without(ctx, r); err != nil {
		return err
	}
	if size.away > 0 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(size.away - time.Since(began)):
		}
		if err := a.without(ctx, r); err != nil {
			return err
		}
	}
	after, err := usedBy(os.Getpid())
	if err != nil {
		return err
	}
	r.awayProcessor = after.processor - before.processor
	r.dials = float64(a.gate.attempts()) / float64(len(a.shared)) / time.Since(began).Minutes()
	requests := a.requests.Load()
	a.gate.set(false)
	began = time.Now()
	if _, err := a.each(ctx, a.nodes, 1); err != nil {
		return err
	}
	if err := b.known(ctx, a); err != nil {
		return err
	}
	r.known = time.Since(began)
	if err := a.waitIdle(ctx); err != nil {
		return err
	}
	r.backRequests = float64(a.requests.Load()-requests) / float64(size.nodes)
	return nil
}

// known changes the pool, and waits until all agents know the change.
func (b *bench) known(ctx context.Context, a *addressAgents) error {
	pool := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: scalePool}}
	change := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"back":"yes"}}}`))
	if err := b.client.Patch(ctx, pool, change); err != nil {
		return err
	}
	known := 0
	return b.wait(ctx, func(context.Context) error {
		for ; known < len(a.nodes); known++ {
			if pools, err := a.nodes[known].client.Pools(); err != nil || len(pools) == 0 || pools[0].Labels["back"] == "" {
				return fmt.Errorf("node %q does not know the change: %w", a.nodes[known].name, err)
			}
		}
		return nil
	})
}

// without has each node allocate an address without the API server.
func (a *addressAgents) without(ctx context.Context, r *addressResults) error {
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, n := range a.nodes {
		all.Go(func() {
			took, err := n.allocate(short)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				r.awayFailed++
			} else {
				r.away = append(r.away, took)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

func (r *addressResults) write(out io.Writer, size addressSize) {
	fmt.Fprintf(out, "%d nodes with %d pods each, of %d nodes at a time, pool %s\n\n| | |\n|---|---|\n", size.nodes, size.pods,
		min(size.nodes, size.atOnce), size.prefix())
	for _, row := range []row{
		{"agents' start until all know the pool, s", r.started.Seconds()},
		{"requests of each agent then", r.startRequests},
		{"memory of an agent's leases and clients, with its addresses, KiB", r.heap},
		{"all pods, until the last has its address, s", r.allTook.Seconds()},
		{"time to allocate then, median, ms", quantile(r.all, 0.5)},
		{"p99, ms", quantile(r.all, 0.99)},
		{"writes for each address", r.writes},
		{"requests for each address", r.requests},
		{"one pod after the other: time to allocate, median, ms", quantile(r.one, 0.5)},
		{"p99, ms", quantile(r.one, 0.99)},
		{"requests for each", r.oneRequests},
		{fmt.Sprintf("%d nodes follow the leases of all: until they know them, s", size.followers), r.followed.Seconds()},
		{"a node joins: from its first pod until they know its block, median, ms", quantile(r.joined, 0.5)},
		{"p99, ms", quantile(r.joined, 0.99)},
		{"without the API server: addresses that could not be allocated, %", 100 * float64(r.awayFailed) / float64(r.awayFailed+
			len(r.away))},
		{"time to allocate the others, p99, ms", quantile(r.away, 0.99)},
		{fmt.Sprintf("connections that a client tries each minute, each for %d agents", agentsPerClient), r.dials},
		{"processor time of all agents then, s", r.awayProcessor.Seconds()},
		{"it is back: until all agents know a change made then, s", r.known.Seconds()},
		{"requests of each agent when it is back, with one more address", r.backRequests},
		{"a tenth of the nodes deleted: their leases", float64(r.lost)},
		{fmt.Sprintf("until all of them ended, of which %s are the grace, s", grace), r.lostTook.Seconds()},
		{"requests of the controller for each", r.lostRequests},
		{"controller, largest, MiB", r.controller.peak},
		{"its processor time in all, s", r.controller.processor.Seconds()},
	} {
		fmt.Fprintf(out, "| %s | %s |\n", row.what, strings.TrimSpace(number(row.value)))
	}
}
