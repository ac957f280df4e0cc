package draplugin

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// TestDeadSocketsLater: a socket of an agent that died soon after its start is too young
// to be removed by the next one at once, and is removed when it is old enough.
func TestDeadSocketsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "dra-00000000-0000-4000-8000-000000000001.sock")
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
		if err := os.Chtimes(path, time.Now(), time.Now()); err != nil {
			t.Fatal(err)
		}
		p := New(Options{Log: slog.New(slog.DiscardHandler), Now: time.Now})
		stop := p.removeDead(t.Context(), Serving{PluginDir: dir, RegistrarDir: dir})
		defer stop()
		if _, err := os.Stat(path); err != nil {
			t.Error("removed, though its agent may be about to listen:", err)
		}
		time.Sleep(deadAfter)
		synctest.Wait()
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Error("it is left:", err)
		}
	})
}
