package kernel

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile/netns"
)

// ownNetns is the network namespace that the threads of this process live in.
type ownNetns struct {
	ns   *os.File
	file unix.Stat_t
}

// openOwnNetns opens that namespace once and never closes it. A thread returns by this descriptor, also after the Host that sent it away
// is closed. To open it later would be wrong: the caller's thread may be in another namespace then.
var openOwnNetns = sync.OnceValues(func() (h ownNetns, err error) {
	if h.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return ownNetns{}, fmt.Errorf("own network namespace: %w", err)
	}
	if err := unix.Fstat(int(h.ns.Fd()), &h.file); err != nil {
		h.ns.Close()
		return ownNetns{}, fmt.Errorf("own network namespace: %w", err)
	}
	return h, nil
})

// is reports whether ns is this namespace. A namespace has one inode as long as it is open (nsfs).
func (h ownNetns) is(ns *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(ns.Fd()), &st) == nil && st.Dev == h.file.Dev && st.Ino == h.file.Ino
}

// away calls f on a thread that is back in this namespace afterwards, or ends: whatever f
// does, no code of others ever runs on it in the wrong place. (To let the thread
// end in any case would not do: the main thread cannot, and would stay in the
// other namespace, keeping it alive.)
func (h ownNetns) away(f func() error) error {
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
func (h ownNetns) enter(ns *os.File, f func() error) error {
	return h.away(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return f()
	})
}

// Within calls f on a thread inside the namespace at path. Sockets that f opens
// stay there.
func Within(path string, f func() error) error {
	ns, err := netns.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	h, err := openOwnNetns()
	if err != nil {
		return err
	}
	return h.enter(ns, f)
}
