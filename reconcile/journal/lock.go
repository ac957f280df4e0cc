package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/topology/fault"
)

const (
	// lockWait bounds how long a write without a context waits.
	lockWait = 10 * time.Second
	// The lock is tried again after a wait that doubles from one to
	// the other: flock has no timeout.
	pollFirst = time.Millisecond
	pollLast  = 50 * time.Millisecond
)

// gate holds off the goroutines of this process from one sandbox.
type gate struct {
	users int           // goroutines that hold or want the gate, under Journal.mu
	token chan struct{} // holds one token while the lock is held
	op    sync.Mutex    // held while the files are written
	held  bool          // the lock is held; under op
	// log describes the log when it was last read or written under
	// the present lock, without its record; nil when it has not been. Under op.
	log *state
}

// Lock holds off every other process, and every other caller of Lock in this
// one, from one sandbox until unlock is called. It fails with reconcile.ErrInUse
// when ctx ends first, or at once with reconcile.WithoutWait. Locks are not
// inherited by a crash.
func (j *Journal) Lock(ctx context.Context, id reconcile.SandboxID) (unlock func(), err error) {
	name, err := fileName(id)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	unlock, err = j.lock(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("lock sandbox %q: %w", id, err)
	}
	return unlock, nil
}

func (j *Journal) lock(ctx context.Context, name string) (func(), error) {
	if err := ended(ctx); err != nil {
		return nil, err
	}
	g := j.enter(name)
	if err := g.take(ctx); err != nil {
		j.leave(name, g)
		return nil, err
	}
	f, err := j.lockFile(ctx, name)
	if err != nil {
		<-g.token
		j.leave(name, g)
		return nil, err
	}
	g.op.Lock()
	g.held, g.log = true, nil
	g.op.Unlock()
	return sync.OnceFunc(func() {
		g.op.Lock()
		g.held, g.log = false, nil
		j.unlockFile(f, name)
		g.op.Unlock()
		<-g.token
		j.leave(name, g)
	}), nil
}

// take waits for the token.
func (g *gate) take(ctx context.Context) error {
	select {
	case g.token <- struct{}{}:
		return nil
	default:
	}
	if !reconcile.Waits(ctx) {
		return inUse(nil)
	}
	select {
	case g.token <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}

// exclusive makes the caller the only writer of a sandbox's files: under the
// lock that this process holds already, else under one of its own.
func (j *Journal) exclusive(name string) (g *gate, release func(), err error) {
	g = j.enter(name)
	g.op.Lock()
	if g.held {
		return g, func() {
			g.op.Unlock()
			j.leave(name, g)
		}, nil
	}
	g.op.Unlock()
	defer j.leave(name, g)
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	unlock, err := j.lock(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	g.op.Lock()
	return g, func() {
		g.op.Unlock()
		unlock()
	}, nil
}

// underLock calls f as the only user of a sandbox's files if this process has
// the sandbox's lock, and reports whether it has.
func (j *Journal) underLock(name string, f func(*gate)) bool {
	g := j.enter(name)
	defer j.leave(name, g)
	g.op.Lock()
	defer g.op.Unlock()
	if g.held {
		f(g)
	}
	return g.held
}

func (j *Journal) enter(name string) *gate {
	j.mu.Lock()
	defer j.mu.Unlock()
	g := j.gates[name]
	if g == nil {
		g = &gate{token: make(chan struct{}, 1)}
		j.gates[name] = g
	}
	g.users++
	return g
}

func (j *Journal) leave(name string, g *gate) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if g.users--; g.users == 0 {
		delete(j.gates, name)
	}
}

// lockFile holds off other processes.
func (j *Journal) lockFile(ctx context.Context, name string) (*os.File, error) {
	for wait := pollFirst; ; wait = min(2*wait, pollLast) {
		f, err := j.tryLockFile(name)
		if err == nil || !errors.Is(err, reconcile.ErrInUse) || !reconcile.Waits(ctx) {
			return f, err
		}
		if !loop.Wait(ctx, wait, nil) {
			return nil, ended(ctx)
		}
	}
}

func (j *Journal) tryLockFile(name string) (*os.File, error) {
	path := j.path(name, lockSuffix)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		for {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, inUse(nil)
			}
			return nil, fmt.Errorf("flock: %w", err)
		}
		// Whoever held the lock before may have unlinked the file.
		mine, err := f.Stat()
		if err == nil {
			var named os.FileInfo
			if named, err = os.Lstat(path); err == nil && os.SameFile(mine, named) {
				return f, nil
			}
		}
		f.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// unlockFile releases the lock. The file of a sandbox without a log is removed,
// as the last thing under the lock.
func (j *Journal) unlockFile(f *os.File, name string) {
	if _, err := os.Lstat(j.path(name, logSuffix)); errors.Is(err, fs.ErrNotExist) {
		_ = os.Remove(f.Name()) // an empty file left over is harmless
	}
	f.Close()
}

func ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return inUse(context.Cause(ctx))
}

// inUse is the error of a lock that another holds. why is why the wait for it has ended, nil if there
// was none.
func inUse(why error) error {
	err := reconcile.ErrInUse
	if why != nil {
		err = fmt.Errorf("%w: %w", err, why)
	}
	return fault.New(fault.NotReady, err)
}
