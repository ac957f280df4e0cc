package primary

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
		for end := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within a minute: %s", what)
			}
		}
	}
	first, endFirst := start()
	defer endFirst()
	until("the first leads", first.Leads)
	second, endSecond := start()
	until("the second leads alone", func() bool { return second.Leads() && !first.Leads() })
	endSecond()
	until("the first leads again", first.Leads)
}
