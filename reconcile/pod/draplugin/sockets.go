package draplugin

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/topology/claim"
)

// The names of the sockets, as kubeletplugin.RollingUpdate derives them from a UUID.
var (
	ownSocket       = regexp.MustCompile(`^dra-[0-9a-f-]{36}\.sock$`)
	ownRegistration = regexp.MustCompile(`^` + regexp.QuoteMeta(claim.Driver) + `-([0-9a-f-]{36}|[A-Za-z0-9_-]{11})-reg\.sock$`)
)

// deadAfter is how old a socket must be to count as dead: it seems dead between its
// creation and the moment its process listens.
const deadAfter = 10 * time.Second

// removeDead removes the sockets of agents that were killed, and could not do so
// themselves: now, and again, until stop is called, when younger ones are old enough, as of
// an agent that died soon after its start. A kubelet keeps dialing each of them, also after
// its own restart.
func (p *Plugin) removeDead(ctx context.Context, s Serving) (stop func()) {
	remove := func() {
		if err := removeDead(ctx, p.Log, s, p.Now()); err != nil {
			p.Log.Warn("cannot remove sockets of earlier agents", "error", err)
		}
	}
	remove()
	again := time.AfterFunc(deadAfter, remove)
	return func() { again.Stop() }
}

func removeDead(ctx context.Context, log *slog.Logger, s Serving, now time.Time) error {
	var errs []error
	for _, in := range []struct {
		dir string
		own *regexp.Regexp
	}{{s.RegistrarDir, ownRegistration}, {s.PluginDir, ownSocket}} {
		files, err := os.ReadDir(in.dir)
		errs = append(errs, err)
		for _, f := range files {
			path := filepath.Join(in.dir, f.Name())
			if !in.own.MatchString(f.Name()) || !dead(ctx, path, f, now) {
				continue
			}
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
				continue
			}
			log.Info("removed the socket of an agent that no longer runs", "path", path)
		}
	}
	return errors.Join(errs...)
}

// dead reports whether nobody listens on a socket.
func dead(ctx context.Context, path string, f fs.DirEntry, now time.Time) bool {
	info, err := f.Info()
	if err != nil || info.Mode()&fs.ModeSocket == 0 || now.Sub(info.ModTime()) < deadAfter {
		return false
	}
	return errors.Is(dial(ctx, path), syscall.ECONNREFUSED)
}

// dial returns nil if somebody listens on a socket.
func dial(ctx context.Context, path string) error {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return err
}

// othersEvery is the interval at which an agent checks whether another one still serves the node.
const othersEvery = time.Second

// awaitNeed waits until the runtime is connected, or until no other agent serves the node; false
// if ctx ended before.
func (p *Plugin) awaitNeed(ctx context.Context, s Serving) bool {
	for ctx.Err() == nil && p.Runtime != nil && othersServe(ctx, s.RegistrarDir) {
		loop.Wait(ctx, othersEvery, p.Runtime)
		select {
		case <-p.Runtime:
			return true
		default:
		}
	}
	return ctx.Err() == nil
}

// othersServe reports whether another agent answers the kubelet.
func othersServe(ctx context.Context, registrarDir string) bool {
	files, _ := os.ReadDir(registrarDir)
	return slices.ContainsFunc(files, func(f fs.DirEntry) bool {
		return ownRegistration.MatchString(f.Name()) && dial(ctx, filepath.Join(registrarDir, f.Name())) == nil
	})
}
