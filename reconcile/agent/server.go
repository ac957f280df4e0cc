package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos/filters"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/metrics"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/claimstatus"
	"github.com/plumbline/plumbline/reconcile/pod/draplugin"
	"github.com/plumbline/plumbline/reconcile/pod/hostroutes"
	"github.com/plumbline/plumbline/reconcile/pod/nriplugin"
	"github.com/plumbline/plumbline/reconcile/ports"
)

// server serves metrics and probes.
type server struct {
	*http.Server
	log       *slog.Logger
	address   string // of metrics and probes
	listeners []net.Listener
	taken     error // why it does not listen on address yet
}

func newServer(
	c Config, g started, counts *metrics.Metrics, hooks *nriplugin.Metrics, interfaces *ports.Metrics, rdma *ports.RDMAMetrics,
	fabric *ports.FabricMetrics, rules *ports.RuleMetrics, leases *addresses.Allocator, routes *hostroutes.Keeper,
	claims *nodeClaims, base *hostengine.Base, drift *driftLoop, status *claimstatus.Reporter, registration *draplugin.Registration,
	runtime *nriplugin.Plugin, qos *filters.Follower,
) *server {
	counters := metrics.Handler(counts, hooks, interfaces, rdma, fabric, rules, addresses.Metrics{Counts: leases.Counts}, routes, qos,
		metrics.Bandwidths(func() []metrics.Bandwidth { return bandwidths(claims, base) }), metrics.Health{
			Loop:       drift.Work,
			Registered: func() bool { return registration.Ready() == nil },
			Reports:    status.Waiting,
		})
	ready := func() error { return cmp.Or(runtime.Ready(), registration.Ready()) }
	return &server{
		Server: NewServer(counters, g.alive.Check, ready), log: c.Log, address: c.MetricsAddress,
	}
}

// listen listens on the addresses of the configuration.
func (s *server) listen(ctx context.Context, c Config) error {
	if c.ProbeSocket != "" {
		own, err := listenProbe(ctx, c.ProbeSocket)
		if err != nil {
			return fmt.Errorf("--probe-socket: %w", err)
		}
		s.listeners = append(s.listeners, own)
	}
	listener, err := listenShared(ctx, c.MetricsAddress)
	switch {
	case err == nil:
		s.listeners = append(s.listeners, listener)
	case !errors.Is(err, syscall.EADDRINUSE) || c.ProbeSocket == "": // without any use
		return fmt.Errorf("--metrics-address: %w", err)
	default:
		s.taken = err
	}
	return nil
}

// Run serves until ctx ends.
func (s *server) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	ServeHTTP(ctx, group, s.Server, s.listeners...)
	if s.taken != nil {
		group.Go(func() error { return s.serveLater(ctx) })
	}
	return group.Wait()
}

// retryListen is the interval at which an address in use is retried.
const retryListen = 10 * time.Second

// serveLater serves the metrics once their address is free. A program on the host that uses
// the port must not stop the agent: attaching pods matters more than metrics.
func (s *server) serveLater(ctx context.Context) error {
	s.log.Error("metrics are not served: the address is in use and is tried again", "every", retryListen, "error", s.taken)
	listener, err := listenFree(ctx, s.address, retryListen)
	if err != nil {
		return nil //nolint:nilerr // the agent is stopped
	}
	s.log.Info("serving metrics", "listen", listener.Addr().String())
	if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		s.log.Error("metrics are not served", "error", err)
	}
	return nil
}

// listenFree listens as listenShared does, as soon as it can. It fails only when ctx
// ends.
func listenFree(ctx context.Context, address string, every time.Duration) (net.Listener, error) {
	for {
		if listener, err := listenShared(ctx, address); err == nil {
			return listener, nil
		}
		if !loop.Wait(ctx, every, nil) {
			return nil, context.Cause(ctx)
		}
	}
}

// bandwidths says what claims have reserved of functions, and what their PFs enforce.
func bandwidths(of *nodeClaims, base *hostengine.Base) []metrics.Bandwidth {
	const mbit = 1e6
	var out []metrics.Bandwidth
	var functions []netstate.Object
	for _, e := range of.list() {
		for _, t := range e.Topologies {
			for _, d := range t.Devices {
				if d.Offered == nil || d.Bandwidth == 0 {
					continue
				}
				functions = append(functions, netstate.VF{ID: d.Host.ID})
				out = append(out, metrics.Bandwidth{
					Namespace: e.Namespace, Pod: e.Pod.Name, Claim: e.Name, Topology: t.Object.Name, Step: d.Step,
					Reserved: float64(d.Bandwidth), Enforced: -1,
				})
			}
		}
	}
	if len(out) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second) // a scrape is soon given up
	defer cancel()
	host, seen := base.Host.WithoutSandbox(), netstate.NewSnapshot()
	defer host.Close()
	if err := host.Extend(ctx, seen, functions); err != nil {
		of.log.Debug("cannot read rate limits of virtual functions", "error", err)
	}
	for i, f := range functions {
		if o, known := seen.Get(f.Key()); known {
			if vf, ok := o.(netstate.VF); ok && vf.MaxTxRateMbps != nil {
				out[i].Enforced = float64(*vf.MaxTxRateMbps) * mbit
			}
		}
	}
	return out
}

// NewServer returns a server of counters, and of whether a program is alive and ready.
func NewServer(counters http.Handler, alive, ready func() error) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", counters)
	probe := func(failed int, check func() error) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if err := check(); err != nil {
				http.Error(w, err.Error(), failed)
				return
			}
			fmt.Fprintln(w, "ok")
		}
	}
	mux.HandleFunc("GET /healthz", probe(http.StatusInternalServerError, alive))
	mux.HandleFunc("GET /readyz", probe(http.StatusServiceUnavailable, ready))
	return &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
}

// listenShared listens on an address that another agent on the same host may use too,
// during a rolling update.
func listenShared(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var err error
		return errors.Join(conn.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), err)
	}}
	return config.Listen(ctx, "tcp", address)
}

// ServeHTTP serves on all listeners until ctx ends, as part of a group.
func ServeHTTP(ctx context.Context, group *errgroup.Group, server *http.Server, listeners ...net.Listener) {
	for _, l := range listeners {
		group.Go(func() error {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve: %w", err)
			}
			return nil
		})
	}
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
}

// listenProbe listens on a socket for probe. It replaces the socket of an agent that was
// killed.
func listenProbe(ctx context.Context, socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return new(net.ListenConfig).Listen(ctx, "unix", socket)
}
