package kernel

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestThreadReturns: a thread that is in another namespace when its host is closed is back afterwards, and so is one that was sent
// away by a thread that was away. The main thread, which cannot end, would stay there: it would keep the namespace, and
// /proc/self/ns/net would be that one.
func TestThreadReturns(t *testing.T) {
	if os.Getenv("PLUMBLINE_LANE") == "" {
		t.Skip("makes a network namespace: runs in the machine of integration/vm")
	}
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
	for what, thread := range map[string]int{"when the host was closed": away, "from there": nested} {
		if at, err := os.Readlink(fmt.Sprintf("/proc/self/task/%d/ns/net", thread)); err != nil || at != home {
			t.Errorf("the thread that was away %s is in %q, not in %s: %v", what, at, home, err)
		}
	}
}
