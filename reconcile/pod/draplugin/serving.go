package draplugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"time"

	"google.golang.org/grpc"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/plumbline/plumbline/reconcile/loop"
)

// stopGrace is how long requests of the kubelet in progress may take to end when the plugin
// is stopped: an interrupted one delays its pod by a minute.
const stopGrace = 5 * time.Second

// flushGrace is how long the server may take to write the last answer: when stopped, it
// closes its connections at once.
const flushGrace = 250 * time.Millisecond

// drain waits until no request is in progress, for a bounded time.
func (p *Plugin) drain() {
	if !p.calls.Wait(0) && p.calls.Wait(stopGrace) {
		loop.Wait(context.Background(), flushGrace, nil)
	}
}

// intercept counts the kubelet's requests. A request to prepare claims is repeated while
// the API server does not answer: the helper reads the claims before it calls the plugin.
func (p *Plugin) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	context.AfterFunc(ctx, p.calls.Begin()) // which ends with the answer
	within, cancel := context.WithTimeout(ctx, p.Patience)
	defer cancel()
	switch path.Base(info.FullMethod) {
	case "NodePrepareResources":
	case "NodeUnprepareResources":
		if !p.awaitRuntime(within) {
			return nil, errNoRuntime
		}
		return handler(ctx, req)
	case "NotifyRegistrationStatus":
		resp, err := handler(ctx, req)
		if err == nil {
			p.Log.Info("registered with the kubelet", "took", p.Now().Sub(p.began).Round(time.Millisecond))
		}
		return resp, err
	default:
		return handler(ctx, req)
	}
	if !p.awaitRuntime(within) {
		return nil, errNoRuntime
	}
	return retry(within, func() (any, error) {
		resp, err := handler(within, req)
		if unanswered(err) {
			err = passing(err)
		}
		return resp, err
	}, func(err error) { p.Log.Info("waiting to prepare", "reason", err) })
}

// awaitRuntime waits until the runtime has listed its sandboxes; false if ctx ended before.
func (p *Plugin) awaitRuntime(ctx context.Context) bool {
	return p.Runtime == nil || loop.Wait(ctx, loop.Forever, p.Runtime)
}

// errNoRuntime is the answer to a request that has waited for the runtime.
var errNoRuntime = errors.New("the container runtime has not listed its sandboxes to the agent yet: " +
	"see the agent's log for the state of its connection to the NRI socket")

// unanswered reports whether the API server could not be reached, or could not answer.
func unanswered(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown: // no answer, or one of a proxy
		_, ok := errors.AsType[net.Error](err)
		return ok || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF)
	case metav1.StatusReasonServerTimeout, metav1.StatusReasonTimeout, metav1.StatusReasonTooManyRequests,
		metav1.StatusReasonInternalError, metav1.StatusReasonServiceUnavailable:
		return true
	default:
		return false
	}
}

// BoundReads makes a client give up a read that the API server has not begun to answer
// within a time, so that it is repeated over another connection: client-go detects a dead
// connection only after 45 s, when the kubelet has given up.
func BoundReads(c *rest.Config, most time.Duration) {
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return boundReads{next, most} })
}

type boundReads struct {
	next http.RoundTripper
	most time.Duration
}

// errNoAnswer is the cause of a read that was given up.
var errNoAnswer = errors.New("the API server does not answer")

func (b boundReads) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet || r.URL.Query().Has("watch") {
		return b.next.RoundTrip(r)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	timer := time.AfterFunc(b.most, func() { cancel(errNoAnswer) })
	resp, err := b.next.RoundTrip(r.WithContext(ctx))
	timer.Stop()
	if err != nil {
		defer cancel(nil)
		return nil, b.timeoutError(ctx, err)
	}
	resp.Body = &body{resp.Body, b, ctx, cancel, timer}
	return resp, nil
}

// timeoutError returns err, or that it was given up.
func (b boundReads) timeoutError(ctx context.Context, err error) error {
	if !errors.Is(context.Cause(ctx), errNoAnswer) {
		return err
	}
	return &timeoutError{fmt.Errorf("%w for %s", errNoAnswer, b.most)}
}

// timeoutError reports itself as a timeout.
type timeoutError struct{ error }

func (*timeoutError) Timeout() bool   { return true }
func (*timeoutError) Temporary() bool { return true }
func (s *timeoutError) Unwrap() error { return s.error }

// body is an answer of which each part has a time limit.
type body struct {
	io.ReadCloser
	boundReads
	ctx    context.Context //nolint:containedctx // of the request whose answer it is
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

func (b *body) Read(p []byte) (int, error) {
	b.timer.Reset(b.most)
	defer b.timer.Stop()
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.timeoutError(b.ctx, err)
	}
	return n, err
}

func (b *body) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}
