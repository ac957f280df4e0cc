package nriplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/reconcile/attachment"
	"github.com/plumbline/plumbline/topology/claim"
)

// Keeper brings claims and sandboxes together.
type Keeper interface {
	Attach(ctx context.Context, pod attachment.Pod) error
	Admit(ctx context.Context, pod attachment.Pod, env []string) error
	Detach(ctx context.Context, pod attachment.Pod) error
	Forget(ctx context.Context, pod attachment.Pod) error
	Synchronize(pods []attachment.Pod) error
}

// Recorder is told of every hook. It must not block.
type Recorder interface {
	// Hook tells how long a hook took, and of which kind its error was; "" is
	// none.
	Hook(name string, outcome fault.Kind, took time.Duration)
	// Connected tells whether the runtime is connected.
	Connected(bool)
}

// Options is what a Plugin works with.
type Options struct {
	Keeper   Keeper
	Recorder Recorder
	Socket   string // of the runtime
	Index    string // two digits: the order among plugins
	Log      *slog.Logger
	Now      func() time.Time
	// Backoff is the wait before the first try to connect again; it doubles up
	// to sixty times as much. Default 1 s.
	Backoff time.Duration
}

// Plugin is an NRI plugin.
type Plugin struct {
	Options

	mu     sync.Mutex
	up     bool          // connected and synchronised
	reason error         // why not
	first  chan struct{} // closed when it was for the first time
	hooks  sync.WaitGroup
}

var (
	_ stub.ConfigureInterface       = (*Plugin)(nil)
	_ stub.SynchronizeInterface     = (*Plugin)(nil)
	_ stub.RunPodInterface          = (*Plugin)(nil)
	_ stub.CreateContainerInterface = (*Plugin)(nil)
	_ stub.StopPodInterface         = (*Plugin)(nil)
	_ stub.RemovePodInterface       = (*Plugin)(nil)
)

// New returns a plugin that is not connected.
func New(o Options) *Plugin {
	o.Backoff = cmp.Or(o.Backoff, time.Second)
	return &Plugin{Options: o, first: make(chan struct{}), reason: errors.New("not connected yet")}
}

// Run keeps the plugin connected until ctx ends. When it returns no hook is at
// work any more.
func (p *Plugin) Run(ctx context.Context) error {
	defer p.hooks.Wait()
	for wait := p.Backoff; ; wait = min(2*wait, 60*p.Backoff) {
		begun := p.Now()
		err := p.connect(ctx)
		p.set(false, err)
		if ctx.Err() != nil {
			return nil
		}
		if p.Now().Sub(begun) > time.Minute { // it was a long connection
			wait = p.Backoff
		}
		p.Log.Warn("the runtime is not connected: pods with claims wait", "socket", p.Socket, "again", wait, "error", err)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// grace is what hooks get to be answered when the plugin is to stop: a runtime
// that loses a plugin in the middle of a hook goes on without it.
const grace = 3 * time.Second

// connect serves one connection.
func (p *Plugin) connect(stopping context.Context) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(stopping))
	defer cancel()
	defer context.AfterFunc(stopping, func() {
		idle := make(chan struct{})
		go func() {
			p.hooks.Wait()
			close(idle)
		}()
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-idle:
		case <-timer.C:
		}
		cancel()
	})()
	s, err := stub.New(p,
		stub.WithPluginName(claim.Driver), stub.WithPluginIdx(p.Index),
		stub.WithDialer(func(string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", p.Socket)
		}),
		stub.WithLogger(logger{p.Log}),
		// Without a handler the stub ends the process.
		stub.WithOnClose(func() { p.set(false, errors.New("the connection was lost")) }),
		// Runtimes that know it (none is released yet) fail the pod, not us.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true, KeepConnected: true}),
	)
	if err != nil {
		return fmt.Errorf("NRI: %w", err)
	}
	if err := s.Run(ctx); err != nil {
		return fmt.Errorf("NRI: %w", err)
	}
	return errors.New("NRI: the runtime has closed the connection")
}

func (p *Plugin) set(up bool, reason error) {
	p.mu.Lock()
	was := p.up
	p.up, p.reason = up, reason
	select {
	case <-p.first:
	default:
		if up {
			close(p.first)
		}
	}
	p.mu.Unlock()
	if was != up {
		p.Recorder.Connected(up)
	}
}

// Ready returns nil while the runtime is connected and has told its sandboxes.
func (p *Plugin) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.up {
		return nil
	}
	return fmt.Errorf("container runtime: %w", p.reason)
}

// Connected is closed once the runtime has been connected and synchronised.
func (p *Plugin) Connected() <-chan struct{} { return p.first }

// Configure implements stub.ConfigureInterface.
func (p *Plugin) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	p.Log.Info("connected", "runtime", runtime, "version", version, "index", p.Index)
	return 0, nil // what the type implements
}

// Synchronize implements stub.SynchronizeInterface.
func (p *Plugin) Synchronize(ctx context.Context, pods []*api.PodSandbox, _ []*api.Container) ([]*api.ContainerUpdate, error) {
	all := make([]attachment.Pod, len(pods))
	for i, pod := range pods {
		all[i] = podOf(pod)
	}
	err := p.within(ctx, "Synchronize", "", func(context.Context) error { return p.Keeper.Synchronize(all) })
	if err != nil {
		p.Log.Error("synchronize", "error", err)
	}
	p.set(true, nil)
	return nil, nil
}

// RunPodSandbox implements stub.RunPodInterface.
func (p *Plugin) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return p.within(ctx, "RunPodSandbox", pod.GetId(), func(ctx context.Context) error { return p.Keeper.Attach(ctx, podOf(pod)) })
}

// CreateContainer implements stub.CreateContainerInterface.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return nil, nil, p.within(ctx, "CreateContainer", pod.GetId(), func(ctx context.Context) error {
		return p.Keeper.Admit(ctx, podOf(pod), c.GetEnv())
	})
}

// StopPodSandbox implements stub.StopPodInterface.
func (p *Plugin) StopPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return p.within(ctx, "StopPodSandbox", pod.GetId(), func(ctx context.Context) error { return p.Keeper.Detach(ctx, podOf(pod)) })
}

// RemovePodSandbox implements stub.RemovePodInterface.
func (p *Plugin) RemovePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return p.within(ctx, "RemovePodSandbox", pod.GetId(), func(ctx context.Context) error { return p.Keeper.Forget(ctx, podOf(pod)) })
}

// within gives a hook three quarters of the time its runtime allows, and a little
// more to undo what it did; then it is answered for, and goes on undoing behind.
func (p *Plugin) within(ctx context.Context, hook, sandbox string, f func(context.Context) error) error {
	begun := p.Now()
	work, answer := ctx, context.Context(ctx)
	if end, ok := ctx.Deadline(); ok {
		whole := end.Sub(begun)
		var cancel context.CancelFunc
		work, cancel = context.WithTimeout(context.WithoutCancel(ctx), whole*3/4)
		defer cancel()
		answer, cancel = context.WithTimeout(ctx, whole*9/10)
		defer cancel()
	}
	done := make(chan error, 1)
	p.hooks.Go(func() { done <- f(work) })
	var err error
	select {
	case err = <-done:
	case <-answer.Done():
		// What f does goes on, and is waited for by whoever comes next for the
		// same claim.
		err = fault.New(fault.NotReady, fmt.Errorf("plumbline: %s was not done in time and is being undone: it is tried again", hook))
	}
	took := p.Now().Sub(begun)
	p.Recorder.Hook(hook, fault.Of(err), took)
	if err != nil {
		p.Log.Warn("hook", "hook", hook, "sandbox", sandbox, "kind", fault.Of(err), "took", took.Round(time.Microsecond), "error", err)
	} else {
		p.Log.Debug("hook", "hook", hook, "sandbox", sandbox, "took", took.Round(time.Microsecond))
	}
	return err
}

func podOf(pod *api.PodSandbox) attachment.Pod {
	out := attachment.Pod{Sandbox: pod.GetId(), UID: types.UID(pod.GetUid()), Namespace: pod.GetNamespace(), Name: pod.GetName()}
	for _, ns := range pod.GetLinux().GetNamespaces() {
		if ns.GetType() == "network" {
			out.Netns = ns.GetPath()
		}
	}
	return out
}
