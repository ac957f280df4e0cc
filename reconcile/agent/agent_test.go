package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/liveness"
)

// TestHealthz: the liveness probe fails when the server for the kubelet has failed, since it
// is not restarted, but not for parts that are retried.
func TestHealthz(t *testing.T) {
	log, publisher := slog.New(slog.NewTextHandler(io.Discard, nil)), publish.New(publish.Options{})
	g := started{alive: liveness.New(time.Now)}
	h := NewServer(http.NotFoundHandler(), g.alive.Check, func() error { return nil }).Handler
	probe := func() (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/healthz", nil))
		return w.Code, w.Body.String()
	}
	handle(log, g, publisher, fmt.Errorf("slices: %w", kubeletplugin.ErrRecoverable), "publish")
	if code, body := probe(); code != 200 {
		t.Errorf("after an error that is tried again: %d %s", code, body)
	}
	handle(log, g, publisher, errors.New("accept: no such socket"), "DRA gRPC server failed")
	if code, body := probe(); code != 500 || !strings.Contains(body, "kubelet server has ended: DRA gRPC server failed: accept: no such socket") {
		t.Errorf("after the server has failed: %d %s", code, body)
	}
}

// TestTakenAddress: an address that another program uses is served once it is free, and
// stopping does not wait for that.
func TestTakenAddress(t *testing.T) {
	other, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := other.Addr().String()
	if _, err := listenShared(t.Context(), address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("got %v, want that the address is in use", err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, err := listenFree(stopped, address, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: got %v", err)
	}
	freed := make(chan net.Listener)
	go func() {
		l, _ := listenFree(t.Context(), address, time.Millisecond)
		freed <- l
	}()
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	l := <-freed
	if l == nil || l.Addr().String() != address {
		t.Fatalf("listens on %v, want %s", l, address)
	}
	l.Close()
}

// TestOtherVersionsAreWithheld: devices that a record of another version mentions are not offered.
func TestOtherVersionsAreWithheld(t *testing.T) {
	dir := t.TempDir()
	line, err := frame.Encode(map[string]any{"record": map[string]any{"bootID": "boot", "function": "0000:03:00.2"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "blue%2Fai.journal"), []byte("9"+string(line[1:])), 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	e := reconcile.New(reconcile.Options{Store: j, BootID: "boot"})
	e.List() // as the loop does first
	if dirty := unreleased(&hostengine.Base{Journal: j, Store: j}, e, time.Now); !strings.Contains(dirty["0000:03:00.2"], "another version") {
		t.Errorf("dirty: %q", dirty)
	}
}
