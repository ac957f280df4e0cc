package primary

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/cnisocket"
)

// TestSocketInSharedFolder: the folder of the socket is closed for others only if it is the
// socket's own, so that a wrong flag does not close /run.
func TestSocketInSharedFolder(t *testing.T) {
	for what, c := range map[string]struct {
		beside string
		shared bool
	}{
		"a folder that is new":         {},
		"of an earlier agent":          {beside: "agent.sock"},
		"what a killed agent has left": {beside: "agent.sock.7"},
		"of others, too":               {"systemd", true},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if c.beside != "" {
			l, err := net.Listen("unix", filepath.Join(dir, c.beside))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		}
		s := newServer(t)
		s.Socket = filepath.Join(dir, "agent.sock")
		ctx, cancel := context.WithCancel(t.Context())
		s.Alive = func(time.Duration) { cancel() }
		err := s.Run(ctx)
		if (err != nil) != c.shared || c.shared && !strings.Contains(err.Error(), `"systemd"`) {
			t.Errorf("%s: %v", what, err)
		}
		info, err := os.Stat(dir)
		if err != nil || (info.Mode().Perm() == 0o700) == c.shared {
			t.Errorf("%s: %v, mode %v", what, err, info.Mode())
		}
	}
}

// TestLeads: of two agents the later one has the socket, and the earlier one has it again when
// that ends.
func TestLeads(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "agent.sock")
	start := func() (s *server, end func()) {
		s = newServer(t)
		s.Socket = socket
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		return s, func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	until := func(what string, holds func() bool) {
		t.Helper()
		eventually.True(t, time.Minute, what, holds)
	}
	first, endFirst := start()
	defer endFirst()
	until("the first leads", first.Leads)
	second, endSecond := start()
	until("the second leads alone", func() bool { return second.Leads() && !first.Leads() })
	endSecond()
	until("the first leads again", first.Leads)
}

// stuck is an engine in which no pod starts until it is released.
type stuck struct {
	*book
	released chan struct{}
}

func (e stuck) Ensure(ctx context.Context, sb reconcile.Sandbox) (reconcile.Report, error) {
	select {
	case <-e.released:
	case <-ctx.Done():
		return reconcile.Report{}, context.Cause(ctx)
	}
	return e.book.Ensure(ctx, sb)
}

// TestManyStart: while the pods of a large node all wait for their network, as after a boot, a pod
// can end, and the runtime gets the status of the network: without an answer the node is NotReady.
func TestManyStart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the socket is for root only")
	}
	const pods = 500
	s := newServer(t)
	s.Socket = filepath.Join(t.TempDir(), "run", "agent.sock")
	e := stuck{s.book, make(chan struct{})}
	s.Engine = e
	network, err := s.Network()
	if err != nil {
		t.Fatal(err)
	}
	network.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/20")}
	s.Network = func() (Network, error) { return network, nil }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	call := func(command cnisocket.Command, container string, within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		reply, err := cnisocket.Call(ctx, s.Socket, cnisocket.Request{
			Command: command, Container: container, IfName: "eth0", Netns: filepath.Join(s.NetnsDir, container), Config: json.RawMessage(`{"name": "plumbline"}`),
		})
		if err == nil && reply.Error != nil {
			err = reply.Error
		}
		return err
	}
	eventually.True(t, time.Minute, "the socket is answered", func() bool { return answered(s.Socket) })
	var adds sync.WaitGroup
	failed := make(chan error, pods)
	for i := range pods {
		adds.Go(func() { failed <- call(cnisocket.Add, fmt.Sprint("pod-", i), time.Minute) })
	}
	eventually.True(t, time.Minute, "the last pod is being attached", func() bool {
		if len(failed) > 0 {
			t.Fatal(<-failed)
		}
		return s.locks.busy(reconcile.OwnerOfPrimary(fmt.Sprint("pod-", pods-1), "eth0"))
	})
	// The plugin waits five seconds for the status; the machine of a test may pause.
	for what, err := range map[string]error{
		"STATUS":             call(cnisocket.Status, "", 20*time.Second),
		"DEL of another pod": call(cnisocket.Del, "ended", 20*time.Second),
	} {
		if err != nil {
			t.Errorf("%s while %d pods start: %v", what, pods, err)
		}
	}
	close(e.released)
	adds.Wait()
	for range pods {
		if err := <-failed; err != nil {
			t.Errorf("ADD: %v", err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
