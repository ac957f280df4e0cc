package nriplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/topology/claim"
)

// session is one connection to the runtime, from the dial to its end. A stub does
// not serve a second one.
type session struct {
	plugin *Plugin
	conn   *conn

	configured   signal      // by the runtime's Configure
	synchronized signal      // by the answer to its Synchronize
	learned      signal      // by the end of the work for it, which may be later
	hooked       signal      // by the first hook: the runtime has accepted the answer
	late         atomic.Bool // the answer was late; set before synchronized
}

// doubts counts connections that were given up for a reason, one after the other.
type doubts struct{ unsynchronized, late, silent int }

const (
	// mostLate bounds how often a late answer is a reason to connect again: where each is
	// late, the runtime may accept it nevertheless, and calls hooks only while it is connected.
	mostLate = 3
	// mostPatience and mostSilence bound how often a time limit is doubled.
	mostPatience, mostSilence = 3, 6
)

var (
	_ stub.ConfigureInterface       = (*session)(nil)
	_ stub.SynchronizeInterface     = (*session)(nil)
	_ stub.RunPodInterface          = (*session)(nil)
	_ stub.CreateContainerInterface = (*session)(nil)
	_ stub.StopPodInterface         = (*session)(nil)
	_ stub.RemovePodInterface       = (*session)(nil)
)

// signal is an event of which only the first occurrence matters.
type signal struct {
	once sync.Once
	c    chan struct{}
}

func newSignal() signal { return signal{c: make(chan struct{})} }

func (s *signal) fire() { s.once.Do(func() { close(s.c) }) }

// conn is a connection that signals its end, on either side.
type conn struct {
	net.Conn
	ended signal
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.ended.fire()
	}
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.ended.fire()
	return c.Conn.Close()
}

func (p *Plugin) dial(ctx context.Context) (*session, error) {
	p.Alive(p.RegistrationTimeout)
	c, err := p.dialer(ctx, "unix", p.Socket)
	if err != nil {
		return nil, err
	}
	return &session{
		plugin: p, conn: &conn{Conn: c, ended: newSignal()},
		configured: newSignal(), synchronized: newSignal(), learned: newSignal(), hooked: newSignal(),
	}, nil
}

// stopTimeout bounds the time a stub may take to end after its connection is closed.
const stopTimeout = time.Second

// serve runs a stub on the connection. The stub has a goroutine of its own: it may hang,
// and is then abandoned.
func (s *session) serve(ctx context.Context) error {
	st, err := s.stub()
	if err != nil {
		return errors.Join(err, s.conn.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- st.Run(ctx) }()
	err = s.follow(ctx, ended)
	cancel()
	_ = s.conn.Close() // it may be closed
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case ending := <-ended:
		s.plugin.Log.Debug("NRI stub ended", "error", ending)
	case <-timer.C:
		s.plugin.Log.Warn("NRI stub of a lost connection did not end", "after", stopTimeout)
	}
	return err
}

// follow returns when the connection ends, or a time limit is exceeded, or the runtime calls no
// hooks.
func (s *session) follow(ctx context.Context, ended chan error) error {
	p := s.plugin
	for _, next := range []struct {
		what  string
		until chan struct{}
		limit time.Duration
	}{
		{"was not configured", s.configured.c, p.RegistrationTimeout},
		{"was not synchronized", s.synchronized.c, p.SynchronizationTimeout << min(p.doubts.unsynchronized, mostPatience)},
	} {
		p.Alive(next.limit)
		if in, err := s.await(ctx, ended, next.until, next.limit); err != nil {
			return err
		} else if !in {
			p.doubts.unsynchronized++
			return fmt.Errorf("the runtime is connected, but the plugin %s within %s", next.what, next.limit)
		}
	}
	p.doubts.unsynchronized = 0
	if err := s.afterLate(ctx, ended); err != nil {
		return err
	}
	p.set(s, true, nil)
	p.Alive(0)
	if err := s.listen(ctx, ended); err != nil {
		return err
	}
	_, err := s.await(ctx, ended, nil, 0)
	return err
}

// afterLate returns an error if the answer to Synchronize was late. A runtime that has given up
// before may keep the connection and call no hook: containerd 1.7 does (nri v0.6.1,
// pkg/adaptation, acceptPluginConnections). The work for the answer is waited for: the next
// Synchronize finds it done.
func (s *session) afterLate(ctx context.Context, ended chan error) error {
	p := s.plugin
	if !s.late.Load() {
		p.doubts.late = 0
		return nil
	}
	if p.doubts.late == mostLate {
		p.Log.Warn("the answer to Synchronize was late again: the runtime may call no hooks. Raise its plugin_request_timeout",
			"times", mostLate+1)
		return nil
	}
	p.set(s, false, errLate)
	p.Alive(p.SynchronizationTimeout)
	if _, err := s.await(ctx, ended, s.learned.c, p.SynchronizationTimeout); err != nil {
		return err
	}
	select {
	case <-s.hooked.c:
		p.doubts.late = 0
		return nil
	default:
	}
	p.doubts.late++
	return errLate
}

var errLate = errors.New("the answer to Synchronize was late: the runtime may have given up, and call no hooks")

// listen returns nil when the runtime has called a hook, and an error when it has called none
// while the same claim waited at two looks.
func (s *session) listen(ctx context.Context, ended chan error) error {
	p := s.plugin
	limit := p.HookTimeout << min(p.doubts.silent, mostSilence)
	var before []types.UID
	for {
		in, err := s.await(ctx, ended, s.hooked.c, limit)
		if err != nil {
			return err
		}
		if in {
			p.doubts = doubts{}
			return nil
		}
		now := p.Keeper.Waiting()
		if i := slices.IndexFunc(now, func(uid types.UID) bool { return slices.Contains(before, uid) }); i >= 0 {
			p.doubts.silent++
			return fmt.Errorf("the runtime is connected, but has called no hook, and the prepared claim %q has waited %s for one",
				now[i], limit)
		}
		before = now
	}
}

// await returns whether an event came before the limit; zero is none. An error is the end of
// the connection.
func (s *session) await(ctx context.Context, ended chan error, until <-chan struct{}, limit time.Duration) (bool, error) {
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-until:
		return true, nil
	case <-late:
		return false, nil
	case err := <-ended:
		ended <- err
		if err == nil || errors.Is(err, ttrpc.ErrServerClosed) {
			err = errClosed
		}
		return false, err
	case <-s.conn.ended.c:
		return false, errClosed
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

var errClosed = errors.New("the runtime has closed the connection")

func (s *session) stub() (stub.Stub, error) {
	return stub.New(s,
		stub.WithPluginName(claim.Driver), stub.WithPluginIdx(s.plugin.Index),
		stub.WithDialer(func(string) (net.Conn, error) { return s.conn, nil }),
		stub.WithLogger(logger{s.plugin.Log}),
		// Without a handler the stub ends the process.
		stub.WithOnClose(func() { s.plugin.set(s, false, errors.New("the connection was lost")) }),
		// Runtimes that know it (none is released yet) fail the pod, not us.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true, KeepConnected: true}),
		stub.WithTTRPCOptions([]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(s.register)}, nil),
	)
}

// register is the stub's call of RegisterPlugin. It does not return before the runtime has
// called Configure: the stub would wait for that forever, holding the lock that closing it
// needs (nri v0.12.5, pkg/stub, Start).
func (s *session) register(
	ctx context.Context, req *ttrpc.Request, rsp *ttrpc.Response, info *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker,
) error {
	err := invoke(ctx, req, rsp)
	if err != nil || !strings.HasSuffix(info.FullMethod, "/RegisterPlugin") || rsp.GetStatus().GetCode() != int32(codes.OK) {
		return err
	}
	select {
	case <-s.configured.c:
		return nil
	case <-s.conn.ended.c:
		return errClosed
	case <-ctx.Done():
		return fmt.Errorf("the runtime has not called Configure: %w", ctx.Err())
	}
}
