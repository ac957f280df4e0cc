package claimstatus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
)

// network is a connection to an API server. While it is down no request gets through;
// otherwise each is recorded and answered with "not found", as for a claim that no
// longer exists.
type network struct {
	mu      sync.Mutex
	down    bool
	tried   int
	queried map[string]int // by path
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.Body != nil {
		r.Body.Close()
	}
	if n.tried++; n.down {
		return nil, errors.New("connection refused")
	}
	n.queried[r.URL.Path]++
	return &http.Response{
		StatusCode: http.StatusNotFound, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)),
	}, nil
}

func (n *network) set(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
}

func (n *network) tries() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.tried
}

// TestOutageOfTheServer: while the API server is unreachable memory is bounded and requests
// are rare, for any number of reports; afterwards every claim is brought up to date.
func TestOutageOfTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{down: true, queried: map[string]int{}}
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://server", Transport: n, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		r := New(Options{Client: client, NodeName: "node", Log: slog.New(slog.DiscardHandler), Limit: 100})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()

		const most, minutes = 120, 60 // more than the queue holds
		claim := func(i int) claims.Claim {
			return claims.Claim{
				Namespace: "ns", Name: fmt.Sprintf("claim-%d", i), UID: types.UID(fmt.Sprintf("c%d", i)),
				Pod: claims.Pod{Name: fmt.Sprintf("pod-%d", i), UID: types.UID(fmt.Sprintf("p%d", i))},
			}
		}
		for range minutes {
			for i := range most {
				r.Drifted(claim(i), "t", []reconcile.Drift{{Step: "a"}})
				r.Repaired(claim(i), "t", nil, 0)
			}
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		if waiting, dropped := r.Waiting(); waiting > 100 || dropped == 0 {
			t.Errorf("%d claims wait and %d reports were dropped, with room for 100 claims", waiting, dropped)
		}
		if len(r.contentionAt) > most || len(r.events.early) > 0 {
			t.Errorf("%d contended claims and %d Events are remembered", len(r.contentionAt), len(r.events.early))
		}
		// At most one attempt a minute for each claim and each report, and some of the
		// library for Events.
		if tries := n.tries(); tries > 3*most*minutes {
			t.Errorf("%d requests in an hour", tries)
		}

		n.set(false)
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if waiting, _ := r.Waiting(); waiting != 0 {
			t.Errorf("%d claims still wait", waiting)
		}
		reported := 0
		for i := range most {
			if n.queried[fmt.Sprintf("/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/claim-%d", i)] > 0 {
				reported++
			}
		}
		if reported < 100 {
			t.Errorf("%d claims are brought up to date, want the 100 that could wait", reported)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour) // for what the library still waits for
	})
}
