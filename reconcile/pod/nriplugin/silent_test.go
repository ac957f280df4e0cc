package nriplugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile/pod/attachment"
)

// containerd17 is the runtime's side of the interface as containerd 1.7 has it (nri v0.6.1,
// pkg/adaptation): it serves one connection after the other; when Synchronize fails or takes
// longer than the request timeout, it logs that, keeps the connection and calls no hook.
type containerd17 struct {
	t     *testing.T
	ctx   context.Context
	conns chan net.Conn
	node

	mu      sync.Mutex
	gaveUp  int
	dials   []time.Duration // since the start
	plugins []api.PluginService
	begun   time.Time
}

const requestTimeout = 2 * time.Second

// node sets how slow a runtime is.
type node struct {
	busy time.Duration // between Configure and Synchronize
	// transit is how long what the plugin sends is on its way, per connection; later ones are
	// as the last.
	transit []time.Duration
}

// slowly delays what is read: half of it for the head of a message, half for its body.
type slowly struct {
	net.Conn
	transit time.Duration
}

func (c slowly) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.transit > 0 {
		time.Sleep(c.transit / 2)
	}
	return n, err
}

func (r *containerd17) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	r.mu.Lock()
	n := len(r.dials)
	r.dials = append(r.dials, time.Since(r.begun))
	r.mu.Unlock()
	if k := len(r.transit); k > 0 {
		far = slowly{far, r.transit[min(n, k-1)]}
	}
	r.conns <- far
	return near, nil
}

func (r *containerd17) serve() {
	for {
		select {
		case c := <-r.conns:
			if err := r.accept(c); err != nil {
				r.t.Logf("after %s: %v", time.Since(r.begun), err)
			}
		case <-r.ctx.Done():
			return
		}
	}
}

// registration is the runtime's service of one connection.
type registration chan struct{}

func (r registration) RegisterPlugin(context.Context, *api.RegisterPluginRequest) (*api.Empty, error) {
	close(r)
	return &api.Empty{}, nil
}

func (r registration) UpdateContainers(context.Context, *api.UpdateContainersRequest) (*api.UpdateContainersResponse, error) {
	return nil, errors.New("not expected")
}

func (r *containerd17) accept(c net.Conn) error {
	mux := multiplex.Multiplex(c, multiplex.WithBlockedRead()) // else what comes before Serve may be dropped
	l, err := mux.Listen(multiplex.RuntimeServiceConn)
	if err != nil {
		return err
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	registered := make(registration)
	api.RegisterRuntimeService(server, registered)
	to, err := mux.Open(multiplex.PluginServiceConn)
	if err != nil {
		return err
	}
	lost := make(chan struct{})
	client := ttrpc.NewClient(to, ttrpc.WithOnClose(func() { close(lost) }))
	go server.Serve(r.ctx, l) //nolint:errcheck // it ends with the connection
	mux.Unblock()
	context.AfterFunc(r.ctx, func() {
		mux.Close()
		client.Close()
		server.Close()
	})
	select {
	case <-registered:
	case <-lost:
		return errors.New("lost before it registered")
	}
	plugin := api.NewPluginClient(client)
	if _, err := plugin.Configure(r.ctx, &api.ConfigureRequest{RuntimeName: "containerd", RuntimeVersion: "1.7.24"}); err != nil {
		return err
	}
	if r.busy > 0 { // containerd holds a lock while it creates a pod
		time.Sleep(r.busy)
	}
	ctx, cancel := context.WithTimeout(r.ctx, requestTimeout)
	defer cancel()
	if _, err := plugin.Synchronize(ctx, &api.SynchronizeRequest{Pods: []*api.PodSandbox{{Id: "s0", Uid: "u0"}}}); err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.gaveUp++
		return fmt.Errorf("failed to synchronize plugin: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plugins = append(r.plugins, plugin)
	return nil
}

// runPod calls the hooks of the plugins that were synchronized; the closed ones answer with an error.
func (r *containerd17) runPod(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.plugins {
		ctx, cancel := context.WithTimeout(r.ctx, requestTimeout)
		_, _ = p.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: &api.PodSandbox{Id: id, Uid: "uid-" + id}})
		cancel()
	}
}

// gave returns how often the runtime has given up.
func (r *containerd17) gave() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gaveUp
}

func (r *containerd17) dialed() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.dials)
}

// slow is a Keeper whose n-th Synchronize takes the n-th time, later ones the last.
type slow struct {
	Keeper
	takes   []time.Duration
	waiting []types.UID

	mu    sync.Mutex
	syncs int
	hooks []string
}

func (k *slow) Synchronize([]attachment.Pod) error {
	k.mu.Lock()
	takes := k.takes[min(k.syncs, len(k.takes)-1)]
	k.syncs++
	k.mu.Unlock()
	time.Sleep(takes)
	return nil
}

func (k *slow) Attach(_ context.Context, pod attachment.Pod) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hooks = append(k.hooks, pod.Sandbox)
	return nil
}

func (k *slow) Waiting() []types.UID {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.waiting)
}

func (k *slow) wait(claims ...types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiting = claims
}

func (k *slow) called() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.hooks)
}

// silently runs f with a plugin that is connected to such a runtime, on a clock of its own.
func silently(t *testing.T, k *slow, n node, f func(r *containerd17, p *Plugin)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		r := &containerd17{t: t, ctx: ctx, conns: make(chan net.Conn, 100), node: n, begun: time.Now()}
		go r.serve()
		p := New(Options{
			Keeper: k, Recorder: NewMetrics(), Index: "30", Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now,
		})
		p.dialer = r.dial
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		f(r, p)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		after(time.Minute) // what is on its way arrives
	})
}

// after lets time pass on the clock of the test.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestLateSynchronize holds that the plugin connects again after it has answered Synchronize
// so late that the runtime may have given up, says until then that it is not connected, and
// waits before for what the late one goes on to do.
func TestLateSynchronize(t *testing.T) {
	k := &slow{takes: []time.Duration{5 * time.Second, 0}}
	silently(t, k, node{transit: []time.Duration{400 * time.Millisecond}}, func(r *containerd17, p *Plugin) {
		after(4 * time.Second)
		if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "late") {
			t.Errorf("ready after a synchronization that the runtime has given up: %v", err)
		}
		after(6 * time.Second) // 5 s for the synchronization, 1 s before the next, and the way of its messages
		if err := p.Ready(); err != nil {
			t.Errorf("after the next synchronization: %v", err)
		}
		if have := r.dialed(); len(have) != 2 || have[1] < 6*time.Second || r.gave() != 1 {
			t.Errorf("connected after %v, the runtime gave up %d times", have, r.gave())
		}
		r.runPod("s1")
		if have := k.called(); !slices.Equal(have, []string{"s1"}) {
			t.Errorf("called for %q", have)
		}
		after(time.Hour)
		if have := r.dialed(); len(have) != 2 {
			t.Errorf("connected again at %v without a reason", have)
		}
	})
}

// TestLostAnswer holds that the plugin connects again when its answer to Synchronize, sent in
// time, arrived after the runtime had given up, and a claim waits for a hook.
func TestLostAnswer(t *testing.T) {
	k := &slow{takes: []time.Duration{0}}
	silently(t, k, node{transit: []time.Duration{2500 * time.Millisecond, 0}}, func(r *containerd17, p *Plugin) {
		after(10 * time.Second)
		k.wait("claim-1")
		r.runPod("s1")
		if have := k.called(); len(have) > 0 || r.gave() != 1 {
			t.Fatalf("called for %q, the runtime gave up %d times", have, r.gave())
		}
		after(70 * time.Second)
		r.runPod("s1")
		if have := k.called(); !slices.Equal(have, []string{"s1"}) {
			t.Errorf("called for %q", have)
		}
		if err := p.Ready(); err != nil {
			t.Error(err)
		}
	})
}

// TestAlwaysLate holds that a node on which every synchronization is late, without the runtime
// giving up, gets hooks in the end: the plugin does not connect again and again.
func TestAlwaysLate(t *testing.T) {
	k := &slow{takes: []time.Duration{1500 * time.Millisecond}}
	silently(t, k, node{}, func(r *containerd17, p *Plugin) {
		after(time.Hour)
		if have := r.dialed(); len(have) != 1+mostLate {
			t.Errorf("connected at %v, want %d times", have, 1+mostLate)
		}
		if err := p.Ready(); err != nil {
			t.Error(err)
		}
		r.runPod("s1")
		if have := k.called(); !slices.Equal(have, []string{"s1"}) {
			t.Errorf("called for %q", have)
		}
	})
}

// TestLateWithHook holds that a hook proves that a late answer has arrived.
func TestLateWithHook(t *testing.T) {
	k := &slow{takes: []time.Duration{5 * time.Second}}
	silently(t, k, node{}, func(r *containerd17, p *Plugin) {
		after(3 * time.Second)
		r.runPod("s1")
		after(10 * time.Second)
		if have := r.dialed(); len(have) != 1 {
			t.Errorf("connected at %v", have)
		}
		if err := p.Ready(); err != nil {
			t.Error(err)
		}
	})
}

// TestNoHook holds that the plugin connects again, ever more rarely, while a prepared claim waits
// and the runtime calls no hook at all; and that neither a quiet node nor a runtime that calls hooks does that.
func TestNoHook(t *testing.T) {
	k := &slow{takes: []time.Duration{0}}
	silently(t, k, node{}, func(r *containerd17, p *Plugin) {
		after(time.Hour)
		if have := r.dialed(); len(have) != 1 {
			t.Fatalf("connected at %v while no claim waits", have)
		}
		k.wait("claim-1")
		after(61 * time.Second) // seen twice, 30 s apart, and 1 s before the next connection
		if have := r.dialed(); len(have) != 2 {
			t.Errorf("connected at %v while a claim waits", have)
		}
		after(24 * time.Hour)
		if have := r.dialed(); len(have) < 8 || len(have) > 60 {
			t.Errorf("connected %d times in a day: %v", len(have), have)
		}
		before := len(r.dialed())
		r.runPod("s1")
		after(24 * time.Hour)
		if have := r.dialed(); len(have) != before {
			t.Errorf("connected at %v after a hook", have[before:])
		}
		if err := p.Ready(); err != nil {
			t.Error(err)
		}
	})
}

// TestOtherClaims holds that claims that wait a short time each are no reason to connect again.
func TestOtherClaims(t *testing.T) {
	k := &slow{takes: []time.Duration{0}}
	silently(t, k, node{}, func(r *containerd17, _ *Plugin) {
		for i := range 100 {
			k.wait(types.UID(fmt.Sprint("claim-", i)))
			after(30 * time.Second)
		}
		if have := r.dialed(); len(have) != 1 {
			t.Errorf("connected at %v", have)
		}
	})
}

// TestBusyRuntime holds that the plugin waits longer each time for a runtime that takes its time
// until it calls Synchronize, and names that as the reason.
func TestBusyRuntime(t *testing.T) {
	k := &slow{takes: []time.Duration{0}}
	silently(t, k, node{busy: 100 * time.Second}, func(r *containerd17, p *Plugin) {
		after(60500 * time.Millisecond)
		if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "was not synchronized within 1m0s") {
			t.Errorf("ready: %v", err)
		}
		after(20 * time.Minute)
		if err := p.Ready(); err != nil {
			t.Error(err)
		}
		if have := r.dialed(); len(have) > 5 {
			t.Errorf("connected at %v", have)
		}
	})
}
