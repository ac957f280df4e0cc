package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	named "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile/netns"
)

// AddNamed creates a network namespace of that name, like `ip netns add`, and returns
// its path.
func AddNamed(name string) (string, error) {
	h, err := openOwnNetns()
	if err != nil {
		return "", err
	}
	defer h.ns.Close()
	var path string
	err = h.away(func() error {
		ns, err := named.NewNamed(name) // leaves this thread in the new one
		if err != nil {
			return fmt.Errorf("create network namespace %q: %w", name, err)
		}
		path = filepath.Join("/run/netns", name)
		return ns.Close()
	})
	return path, err
}

// DeleteNamed deletes a named network namespace, like `ip netns delete`. One that does
// not exist is no error.
func DeleteNamed(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete network namespace %q: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete network namespace: %w", err)
	}
	return nil
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
	defer h.ns.Close()
	return h.enter(ns, f)
}
