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
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile/defaults"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
)

// Keeper attaches claims to sandboxes.
type Keeper interface {
	Attach(ctx context.Context, pod attachment.Pod) error
	Admit(ctx context.Context, pod attachment.Pod, env []string) error
	// Admitted is called with the name and the environment of a container that Admit has accepted.
	Admitted(pod attachment.Pod, container string, env []string)
	Detach(ctx context.Context, pod attachment.Pod) error
	Forget(ctx context.Context, pod attachment.Pod) error
	Synchronize(pods []attachment.Pod) error
	// Waiting returns the prepared claims whose pod has had no hook yet.
	Waiting() []types.UID
}

// Options are the settings of a Plugin.
type Options struct {
	Keeper   Keeper
	Recorder *Metrics
	Socket   string // of the runtime
	Index    string // two digits: the order among plugins
	Log      *slog.Logger
	Now      func() time.Time
	// Backoff is the wait before the first try to connect again; it doubles up
	// to sixty times as much. Default 1 s.
	Backoff time.Duration
	// RegistrationTimeout bounds the time from dialing to the runtime's
	// Configure. Default 10 s, twice what a runtime allows for its own part.
	RegistrationTimeout time.Duration
	// SynchronizationTimeout bounds the time from Configure to the end of
	// Synchronize, and doubles up to eight times as much with each that it ends. Default
	// 1 min: a runtime calls no Synchronize while it creates pods.
	SynchronizationTimeout time.Duration
	// HookTimeout is the time between two looks for claims that wait while the runtime has
	// called no hook yet. Default 30 s: that of a pod follows soon after it is prepared. It
	// doubles up to sixty-four times as much with each connection that it ends.
	HookTimeout time.Duration
	// Alive is called by Run each time it has made progress. The next call comes within
	// the time given, or at any time when that is zero. May be nil.
	Alive func(within time.Duration)
}

// Plugin is an NRI plugin.
type Plugin struct {
	Options

	mu      sync.Mutex
	current *session      // the connection in use; an earlier one is ignored
	up      bool          // connected and synchronised
	reason  error         // why not
	first   chan struct{} // closed when it was for the first time
	hooks   loop.InFlight
	dialer  func(ctx context.Context, network, address string) (net.Conn, error)
	doubts  doubts // used by Run
}

// New returns a plugin that is not connected.
func New(o Options) *Plugin {
	o.Backoff = cmp.Or(o.Backoff, time.Second)
	o.RegistrationTimeout = cmp.Or(o.RegistrationTimeout, 2*api.DefaultPluginRegistrationTimeout)
	o.SynchronizationTimeout = cmp.Or(o.SynchronizationTimeout, time.Minute)
	o.HookTimeout = cmp.Or(o.HookTimeout, 30*time.Second)
	o.Alive = defaults.Func(o.Alive, func(time.Duration) {})
	return &Plugin{
		Options: o, first: make(chan struct{}), reason: errors.New("not connected yet"),
		dialer: (&net.Dialer{Timeout: o.RegistrationTimeout}).DialContext,
	}
}

// Run keeps the plugin connected until ctx ends. When it returns no hook runs any more,
// unless one has not ended within stopLimit.
func (p *Plugin) Run(ctx context.Context) error {
	defer func() {
		if !p.hooks.Wait(stopLimit) {
			p.Log.Error("hook has not finished", "after", stopLimit)
		}
	}()
	for wait := p.Backoff; ; wait = min(2*wait, 60*p.Backoff) {
		begun := p.Now()
		err := p.connect(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if p.Now().Sub(begun) > time.Minute { // it was a long connection
			wait = p.Backoff
		}
		p.Log.Warn("the runtime is not connected: pods with claims wait", "socket", p.Socket, "retryAfter", wait, "error", err)
		p.Alive(wait)
		if !loop.Wait(ctx, wait, nil) {
			return nil
		}
	}
}

const (
	// grace is the time for hooks to answer when the plugin is to stop: a runtime that
	// loses a plugin during a hook continues without it.
	grace = 3 * time.Second
	// stopLimit is the time for hooks to end.
	stopLimit = 10 * time.Second
)

// connect serves one connection, until it ends or the plugin is to stop.
func (p *Plugin) connect(stopping context.Context) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(stopping))
	defer cancel()
	defer context.AfterFunc(stopping, func() {
		p.hooks.Wait(grace)
		cancel()
	})()
	s, err := p.dial(ctx)
	if err == nil {
		p.enter(s)
		err = s.serve(ctx)
	}
	err = fmt.Errorf("NRI: %w", err)
	p.enter(nil)
	p.set(nil, false, err)
	return err
}

// enter makes a session the current one, which determines whether the runtime is connected.
func (p *Plugin) enter(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current = s
}

// set records whether the runtime is connected. A session that is not the current one is
// ignored.
func (p *Plugin) set(from *session, up bool, reason error) {
	p.mu.Lock()
	if p.current != from {
		p.mu.Unlock()
		return
	}
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

// Ready returns nil while the runtime is connected, has listed its sandboxes, and nothing says
// that it has given up waiting for the answer.
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
