// Package namespace makes the network namespaces of pods in tests.
package namespace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile/kernel"
)

// Add creates a network namespace of that name, like `ip netns add`, and returns
// its path.
func Add(name string) (string, error) {
	return filepath.Join("/run/netns", name), kernel.Within("/proc/thread-self/ns/net", func() error {
		ns, err := netns.NewNamed(name) // leaves this thread in the new one
		if err != nil {
			return fmt.Errorf("create network namespace %q: %w", name, err)
		}
		return ns.Close()
	})
}

// Delete deletes a named network namespace, like `ip netns delete`. One that does
// not exist is no error.
func Delete(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete network namespace %q: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete network namespace: %w", err)
	}
	return nil
}
