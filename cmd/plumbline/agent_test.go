package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/reconcile/liveness"
	"github.com/plumbline/plumbline/reconcile/metrics"
	"github.com/plumbline/plumbline/reconcile/nriplugin"
)

// TestHealthz holds that the liveness probe fails when the server for the kubelet
// has failed, which does not start again, and not for what is tried again.
func TestHealthz(t *testing.T) {
	s := &serving{
		log: slog.New(slog.NewTextHandler(io.Discard, nil)), alive: liveness.New(time.Now), publisher: publish.New(publish.Options{}),
		counts: metrics.New(build(), time.Now), hooks: nriplugin.NewMetrics(),
	}
	probe := func() (int, string) {
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/healthz", nil))
		return w.Code, w.Body.String()
	}
	s.handle(fmt.Errorf("slices: %w", kubeletplugin.ErrRecoverable), "publish")
	if code, body := probe(); code != 200 {
		t.Errorf("after an error that is tried again: %d %s", code, body)
	}
	s.handle(errors.New("accept: no such socket"), "DRA gRPC server failed")
	if code, body := probe(); code != 500 || !strings.Contains(body, "server for the kubelet has ended: DRA gRPC server failed: accept: no such socket") {
		t.Errorf("after the server has failed: %d %s", code, body)
	}
}
