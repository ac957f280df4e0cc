package primary

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/pod/cnisocket"
)

const (
	// maxConnections bounds the calls that are read and wait; more have to wait for their
	// connection to be accepted, also those that end a pod or query the status. After a boot a
	// runtime ends and starts all pods of its node at once, and a large node has 500.
	maxConnections = 1024
	// recheck is how often an agent looks whether the socket is its own.
	recheck = 2 * time.Second
	// drain is how long calls in progress may take when the agent ends.
	drain = 20 * time.Second
)

// Run answers the plugin and releases what has ended, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	if err := s.closeFolder(); err != nil {
		return fmt.Errorf("socket for the CNI plugin: %w", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		loop.Loop{Every: s.Sweep, Pass: func(ctx context.Context) (time.Duration, error) {
			s.sweep(ctx)
			return 0, nil
		}}.Run(ctx)
	})
	defer wg.Wait()
	calls := semaphore.NewWeighted(maxConnections)
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
		defer cancel()
		_ = calls.Acquire(within, maxConnections)
	}()
	var own *listener
	defer func() {
		if own != nil {
			own.leave()
		}
	}()
	loop.Loop{
		Every: recheck,
		Pass: func(ctx context.Context) (_ time.Duration, err error) {
			if own == nil || own.replaced() && !answered(s.Socket) {
				// An agent that was started later has the socket; this one listens again when that one ends.
				if own != nil {
					own.leave()
				}
				if own, err = listen(s.Socket); err == nil {
					go s.accept(ctx, own, calls)
				}
			}
			s.leads.Store(own != nil && !own.replaced())
			s.Alive(10 * recheck)
			return 0, err
		},
		Warn: func(err error) { s.Log.Error("the container runtime cannot reach the agent", "error", err) },
	}.Run(ctx)
	return nil
}

// Leads reports whether this agent, and no later one, has the socket.
func (s *Server) Leads() bool { return s.leads.Load() }

// closeFolder creates the folder of the socket, for root only: whoever reaches the socket
// decides which namespaces are given a network. A folder of others, such as /run, stays as
// it is.
func (s *Server) closeFolder() error {
	dir, name := filepath.Split(s.Socket)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != name && !strings.HasPrefix(e.Name(), name+".") {
			return fmt.Errorf("%q also contains %q: choose a socket in an empty directory, which only root will be able to open",
				dir, e.Name())
		}
	}
	return os.Chmod(dir, 0o700) //nolint:gosec // a folder
}

func (s *Server) accept(ctx context.Context, from *listener, calls *semaphore.Weighted) {
	for {
		if calls.Acquire(ctx, 1) != nil {
			return
		}
		conn, err := from.AcceptUnix()
		if err != nil {
			calls.Release(1)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.Log.Warn("cannot accept a connection of the CNI plugin", "error", err)
			if !loop.Wait(ctx, 100*time.Millisecond, nil) { // such as too many open files
				return
			}
			continue
		}
		go func() {
			defer calls.Release(1)
			defer conn.Close()
			s.converse(ctx, conn)
		}()
	}
}

// converse answers one call. It is cancelled when the plugin goes away or the agent ends.
func (s *Server) converse(ctx context.Context, conn *net.UnixConn) {
	if err := fromRoot(conn); err != nil {
		s.Log.Warn("refused a connection to the socket for the CNI plugin", "error", err)
		return
	}
	r, left, err := cnisocket.Receive(conn)
	if errors.Is(err, io.EOF) {
		return // another agent, which asks whether somebody listens
	}
	if err != nil {
		s.Log.Warn("cannot read a request of the CNI plugin", "error", err)
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-left:
			cancel(errors.New("the container runtime does not wait any longer"))
		case <-ended:
		}
	}()
	if err := cnisocket.Send(conn, s.Do(ctx, r)); err != nil {
		s.Log.Debug("nobody waits for the answer", "command", r.Command, "container", r.Container, "error", err)
	}
}

// fromRoot refuses peers that are not root on the host, should they reach the socket.
func fromRoot(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	if peer.Uid != 0 {
		return fmt.Errorf("process %d has the user ID %d, not 0", peer.Pid, peer.Uid)
	}
	return nil
}

// listener is a socket that another agent may replace.
type listener struct {
	*net.UnixListener
	path  string
	inode uint64
}

// listen creates a socket beside the path and moves it there: clients find either the one
// before or this one.
func listen(path string) (*listener, error) {
	beside := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: beside, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(beside, 0o600)
	inode := inodeOf(beside)
	if err == nil {
		err = os.Rename(beside, path)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(beside))
	}
	return &listener{l, path, inode}, nil
}

func inodeOf(path string) uint64 {
	info, err := os.Lstat(path)
	if err != nil {
		return 0
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return st.Ino
}

// replaced reports whether something else is at the path.
func (l *listener) replaced() bool { return inodeOf(l.path) != l.inode }

// leave closes the listener. Its socket stays if it was replaced, and else too: a plugin
// reports the same for a socket that nobody listens to as for none.
func (l *listener) leave() { l.Close() }

// answered reports whether somebody listens at a path.
func answered(path string) bool {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
