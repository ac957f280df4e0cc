package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// openNetns opens a network namespace by path. A path that is missing or is no
// namespace is Gone: what was mounted there was unmounted, and an empty file is
// what remains of it.
func openNetns(path string) (*os.File, error) {
	// O_NONBLOCK: whatever the path is, opening it must not wait.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		kind := fault.Internal
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			kind = fault.Gone
		}
		return nil, fault.New(kind, fmt.Errorf("network namespace: %w", err))
	}
	if err := isNetns(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func isNetns(f *os.File) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return fmt.Errorf("network namespace %q: %w", f.Name(), err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return fault.New(fault.Gone, fmt.Errorf("network namespace %q: nothing is mounted there", f.Name()))
	}
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err == nil && kind != unix.CLONE_NEWNET {
		return invalid("network namespace %q: it is a namespace of another kind", f.Name())
	}
	return nil
}

// home is the network namespace that the threads of this process live in.
type home struct{ ns *os.File }

func openHome() (home, error) {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return home{}, fmt.Errorf("own network namespace: %w", err)
	}
	return home{ns}, nil
}

// away calls f on a thread that is back home afterwards, or ends: whatever f
// does, no code of others ever runs on it in the wrong place. (To let the thread
// end in any case would not do: the main thread cannot, and would stay in the
// other namespace for good, holding it alive.)
func (h home) away(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := f()
		if unix.Setns(int(h.ns.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // otherwise the thread ends with the goroutine
		}
		done <- err
	}()
	return <-done
}

// enter calls f on a thread in the namespace.
func (h home) enter(ns *os.File, f func() error) error {
	return h.away(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return f()
	})
}

// identify returns the identity of the namespace a socket fd lives in. The
// inode number may come to bear another namespace, the cookie never does; a
// kernel before 5.14 has none.
func identify(ns *os.File, socket int) (reconcile.NetnsID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &st); err != nil {
		return reconcile.NetnsID{}, fmt.Errorf("network namespace: %w", err)
	}
	id := reconcile.NetnsID{Device: st.Dev, Inode: st.Ino}
	if cookie, err := unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err == nil {
		id.Cookie = cookie
	}
	return id, nil
}

// sameNetns compares what both sides know.
func sameNetns(a, b reconcile.NetnsID) bool {
	if a.Cookie != 0 && b.Cookie != 0 {
		return a.Cookie == b.Cookie
	}
	return a.Device == b.Device && a.Inode == b.Inode
}
