//go:build cluster

package main

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster/population"
	"github.com/plumbline/plumbline/topology/controller"
)

// TestScale holds on a small cluster what makes a large one bearable. It times
// nothing: it counts bytes, requests and passes, of one size and of twice that.
func TestScale(t *testing.T) {
	half, full := population.Full.Part(100), population.Full.Part(50)
	b, err := start(t.Context(), t.Output(), population.Size{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	fill := func(size population.Size) {
		t.Helper()
		if err := b.fill(t.Context(), size); err != nil {
			t.Fatal(err)
		}
	}
	empty := b.claimsHeap(t)
	const foreign = 5000
	fill(population.Size{Claims: foreign})
	theirs := b.claimsHeap(t)
	bound(t, "bytes for each claim of another driver", (theirs-empty)/foreign, 60)

	program, err := b.build(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	fill(half)
	// The first controller describes the step types as well.
	b.started(t, program).end(t)
	p := b.started(t, program)
	less := p.did(t)
	p.end(t)
	fill(full)
	ours := b.claimsHeap(t)
	bound(t, "bytes for each claim of ours", (ours-theirs)/float64(full.Ours), 1000)
	p = b.started(t, program)
	defer p.end(t)
	more := p.did(t)
	bound(t, "writes where there is nothing to do", more.writes, 0)
	bound(t, "passes over each topology", more.passes/float64(full.Topologies), 2)
	bound(t, "requests for twice the objects, beside those for one", more.requests-less.requests, 5)
	bound(t, "bytes allocated for twice the objects, times those for one", more.allocated/less.allocated, 2.5)

	before := p.did(t)
	r := &results{name: "counted", answers: map[string][]time.Duration{}}
	b.asks = 50
	if err := b.admission(t.Context(), p.controllerProcess, r); err != nil {
		t.Fatal(err)
	}
	bound(t, "requests for answers of the webhook", p.did(t).requests-before.requests, 0)

	// Enough that counts are collected several times.
	const pods = 100
	if err := b.podStarts(t.Context(), p.controllerProcess, r, pods); err != nil {
		t.Fatal(err)
	}
	bound(t, "statuses while pods start", r.podWrites*pods, r.podsTook.Seconds()/statusInterval.Seconds()+1)
	bound(t, "requests while pods start, beside statuses", (r.podRequests-r.podWrites)*pods, 2)

	if err := b.deletion(t.Context(), p.controllerProcess, r); err != nil {
		t.Fatal(err)
	}
	bound(t, "requests for a deletion", r.deletionRequests, 10)
}

// bound fails when something is more than it may be.
func bound(t *testing.T, what string, have, most float64) {
	t.Helper()
	t.Logf("%s: %.2f, at most %.2f", what, have, most)
	if have > most {
		t.Errorf("%s: %.2f, want %.2f at most", what, have, most)
	}
}

// claimsHeap returns how many bytes it takes to follow the claims of the cluster. They are streamed or read in pages: never listed in one answer.
func (b *bench) claimsHeap(t *testing.T) float64 {
	t.Helper()
	config := b.Config()
	var whole sync.Map // URLs of requests for all claims at once
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if q := r.URL.Query(); q.Get("watch") != "true" && q.Get("limit") == "" {
				whole.Store(r.URL.String(), true)
			}
			return next.RoundTrip(r)
		})
	})
	claims, err := controller.NewClaims(config)
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC() // what has a finalizer is freed by the second one
	before := heap()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- claims.Start(ctx) }()
	within, stop := context.WithTimeout(ctx, patience)
	defer stop()
	if err := claims.WaitForSync(within); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	held := (heap() - before) * (1 << 20)
	runtime.KeepAlive(claims)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	whole.Range(func(url, _ any) bool {
		t.Errorf("all claims are listed at once: %s", url)
		return true
	})
	return held
}

// process is a controller that has checked all topologies.
type process struct{ *controllerProcess }

// statusInterval is short, for the test to be.
const statusInterval = 500 * time.Millisecond

func (b *bench) started(t *testing.T, program string) process {
	t.Helper()
	c, err := startController(t.Context(), b.Cluster, program, "--status-interval", statusInterval.String())
	if err != nil {
		t.Fatal(err)
	}
	within, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := c.settled(within, b.size.Topologies); err != nil {
		_ = c.stop()
		t.Fatal(err)
	}
	return process{c}
}

func (p process) end(t *testing.T) {
	t.Helper()
	if err := p.stop(); err != nil {
		t.Errorf("the controller ends: %v", err)
	}
}

// deeds count the work of a controller so far.
type deeds struct{ passes, requests, writes, allocated float64 }

func (p process) did(t *testing.T) (d deeds) {
	t.Helper()
	var err error
	read := func(name string, labels ...string) float64 {
		v, failed := p.read(t.Context(), name, labels...)
		if failed != nil {
			err = fmt.Errorf("%s: %w", name, failed)
		}
		return v
	}
	d.passes = read("controller_runtime_reconcile_total", ofTopologies)
	d.allocated = read("go_memstats_alloc_bytes_total")
	if err == nil {
		d.requests, d.writes, err = p.requests(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestAddresses holds on a few nodes what a pool costs the API server: what a node leases is a
// write for several addresses, a node without addresses sends nothing, without the API server a
// node has what it has leased, and no address is allocated twice.
func TestAddresses(t *testing.T) {
	b, err := start(t.Context(), t.Output(), population.Size{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	r, err := b.addresses(t.Context(), addressSize{nodes: 20, pods: 20, atOnce: 20, followers: 5, away: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	bound(t, "requests of an agent without addresses: a list and a watch of pools and of leases", r.startRequests, 4)
	// Two blocks of 16, one ahead of need, and how many of each are used.
	bound(t, "writes for each address", r.writes, 6.0/20)
	bound(t, "addresses that could not be allocated without the API server", float64(r.awayFailed), 0)
	bound(t, "requests of the controller for each lease that ends", r.lostRequests, 4)
}

// TestRules holds on a few nodes what an edit of one rule costs: the filters of that rule, and no request but reports.
func TestRules(t *testing.T) {
	b, err := start(t.Context(), t.Output(), population.Size{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	r, err := b.rules(t.Context(), ruleSize{nodes: 3, pods: 5, edits: 3})
	if err != nil {
		t.Fatal(err)
	}
	bound(t, "filters of a pod that are written for the rule", r.written, 1)
	bound(t, "requests of each agent for an edit: a report, at most every 30 s", r.requests, 1)
}
