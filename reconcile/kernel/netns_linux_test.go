package kernel

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestThreadReturns: a thread that Host or Within has sent into another namespace returns, also if the Host is closed meanwhile, or if
// Within was called in the other namespace. The main thread cannot end: if it did not return, it would keep the pod's namespace, and
// /proc/self/ns/net would lead there.
func TestThreadReturns(t *testing.T) {
	InMachine(t)
	host, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var away, nested int // the threads
	err = host.own.away(func() error {
		away = unix.Gettid()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		err := Within(fmt.Sprintf("/proc/self/task/%d/ns/net", away), func() error {
			nested = unix.Gettid()
			return nil
		})
		if err != nil {
			return err
		}
		return host.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	for what, thread := range map[string]int{"whose host was closed": away, "that Within used in the other namespace": nested} {
		if at, err := os.Readlink(fmt.Sprintf("/proc/self/task/%d/ns/net", thread)); err != nil || at != home {
			t.Errorf("the thread %s is in %q, not in %s: %v", what, at, home, err)
		}
	}
}
