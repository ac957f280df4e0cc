package admission

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// server is the webhook.Server of controller-runtime with bounds of connections, of what they send ahead, and
// of their time: the original has none, and gives a client half a minute for a header.
type server struct {
	webhook.Server
	options webhook.Options
	started atomic.Bool
}

// NewServer returns a server for a manager. Of the options, Host, Port, CertDir and TLSOpts are used.
func NewServer(o webhook.Options) webhook.Server {
	return &server{Server: webhook.NewServer(o), options: o}
}

// Bounds of connections. An API server sends all requests on one, as streams of HTTP/2; what is not read yet
// of a stream, and of all streams of a connection, waits in memory.
const (
	maxHeader     = 64 << 10
	headerWithin  = 5 * time.Second
	idleWithin    = 90 * time.Second
	maxStreams    = 64
	streamBytes   = 64 << 10
	receivedBytes = 1 << 20
	stopWithin    = time.Minute
)

func newHTTPServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ConnContext: withConnection,
		MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerWithin, IdleTimeout: idleWithin,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerStream: streamBytes,
			MaxReceiveBufferPerConnection: receivedBytes,
		},
	}
}

// Start implements manager.Runnable.
func (s *server) Start(ctx context.Context) error {
	config := &tls.Config{NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
	for _, set := range s.options.TLSOpts {
		set(config)
	}
	if config.GetCertificate == nil {
		files, err := certwatcher.New(filepath.Join(s.options.CertDir, "tls.crt"), filepath.Join(s.options.CertDir, "tls.key"))
		if err != nil {
			return fmt.Errorf("webhook: %w", err)
		}
		config.GetCertificate = files.GetCertificate
		go func() {
			if err := files.Start(ctx); err != nil {
				log.FromContext(ctx).Error(err, "the webhook's certificate is not read again")
			}
		}()
	}
	var listening net.ListenConfig
	l, err := listening.Listen(ctx, "tcp", net.JoinHostPort(s.options.Host, strconv.Itoa(s.options.Port)))
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	serving := newHTTPServer(s.WebhookMux())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
		defer cancel()
		if err := serving.Shutdown(within); err != nil {
			log.FromContext(ctx).Error(err, "the webhook was stopped before all answers were sent")
		}
	}()
	s.started.Store(true)
	if err := serving.Serve(tls.NewListener(limited(l), config)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("webhook: %w", err)
	}
	<-stopped
	return nil
}

// StartedChecker returns a check that fails until the server can be connected to, with a certificate.
func (s *server) StartedChecker() healthz.Checker {
	return func(r *http.Request) error {
		if !s.started.Load() {
			return errors.New("the webhook's server has not been started yet")
		}
		//nolint:gosec // whether a certificate is served, not which one
		dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: headerWithin}, Config: &tls.Config{InsecureSkipVerify: true}}
		conn, err := dialer.DialContext(r.Context(), "tcp", net.JoinHostPort(s.options.Host, strconv.Itoa(s.options.Port)))
		if err != nil {
			return fmt.Errorf("the webhook's server cannot be reached: %w", err)
		}
		return conn.Close()
	}
}
