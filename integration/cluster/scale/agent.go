package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	goruntime "runtime"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/plumbline/plumbline/integration/cluster/population"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/rollout"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// agentClaims is how many claims one node has.
const agentClaims = 500

// agent is the part of the agent that follows the topologies of its claims, and requests
// the API server all the time.
type agent struct {
	requests, bytes atomic.Int64
	followed        time.Time // when it had been sent all topologies
	stop            func()
}

// wrap counts requests and answers.
func (a *agent) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		a.requests.Add(1)
		answer, err := next.RoundTrip(r)
		if err == nil {
			answer.Body = &counted{answer.Body, &a.bytes}
		}
		return answer, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type counted struct {
	io.ReadCloser
	bytes *atomic.Int64
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// follow has a node with claims of as many topologies as there are, up to one each,
// follow them, and returns when each is followed and has been sent.
func (b *bench) follow(ctx context.Context) (*agent, error) {
	a := &agent{}
	config := b.Config()
	config.Wrap(a.wrap)
	config.QPS, config.Burst = 50, 100 // as the agent has it
	api, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	entries := make([]claims.Entry, agentClaims)
	for i := range entries {
		var t claims.Topology
		t.Object.Name = population.TopologyName(i % b.size.Topologies)
		entries[i].UID, entries[i].Topologies = types.UID(fmt.Sprint(i)), []claims.Topology{t}
	}
	follower := rollout.New(rollout.Options{
		Client: api, NodeName: population.NodeName(0), Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Claims: func() []claims.Entry { return entries },
		Update: func(context.Context, types.UID, *v1alpha1.NetworkTopology) error { return nil },
	})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		follower.Run(ctx)
	}()
	a.stop = func() { cancel(); <-done }
	watched, sent, since := int64(min(agentClaims, b.size.Topologies)), int64(0), time.Now()
	if err := b.wait(ctx, func(context.Context) error {
		if n := a.requests.Load(); n < watched {
			return fmt.Errorf("%d requests for %d topologies", n, watched)
		}
		if n := a.bytes.Load(); n != sent {
			sent, since = n, time.Now()
		}
		if time.Since(since) < time.Second {
			return errors.New("it is being sent something still")
		}
		a.followed = since
		return nil
	}); err != nil {
		a.stop()
		return nil, err
	}
	return a, nil
}

// heap returns the memory this process holds, in MiB.
func heap() float64 {
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}
