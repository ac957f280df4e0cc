package nriplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"

	"github.com/plumbline/plumbline/topology/claim"
)

// session is one connection to the runtime, from the dial to its end. A stub does
// not serve a second one.
type session struct {
	plugin *Plugin
	conn   *conn

	configured   signal // by the runtime's Configure
	synchronized signal // by the end of its Synchronize
}

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
	c, err := (&net.Dialer{Timeout: p.RegistrationTimeout}).DialContext(ctx, "unix", p.Socket)
	if err != nil {
		return nil, err
	}
	return &session{
		plugin: p, conn: &conn{Conn: c, ended: newSignal()}, configured: newSignal(), synchronized: newSignal(),
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

// follow returns when the connection ends, or a time limit is exceeded.
func (s *session) follow(ctx context.Context, ended chan error) error {
	for _, next := range []struct {
		what  string
		until chan struct{}
		limit time.Duration
	}{
		{"was not configured", s.configured.c, s.plugin.RegistrationTimeout},
		{"was not synchronized", s.synchronized.c, s.plugin.SynchronizationTimeout},
		{"", nil, 0},
	} {
		s.plugin.Alive(next.limit)
		var late <-chan time.Time
		if next.limit > 0 {
			timer := time.NewTimer(next.limit)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-next.until:
		case <-late:
			return fmt.Errorf("the runtime is connected, but the plugin %s within %s", next.what, next.limit)
		case err := <-ended:
			ended <- err
			if err == nil || errors.Is(err, ttrpc.ErrServerClosed) {
				err = errClosed
			}
			return err
		case <-s.conn.ended.c:
			return errClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errClosed
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
func (s *session) register(ctx context.Context, req *ttrpc.Request, rsp *ttrpc.Response, info *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker) error {
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
