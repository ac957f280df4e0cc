// Package kernel may speak to the kernel, by a handle.
package kernel

import (
	"os/exec" // want depguard

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/bench" // want depguard
)

// Known is here to be imported.
const Known = "kernel"

var _, _ = exec.Command, bench.Known

// Enter changes the thread's namespace.
func Enter(fd int) error {
	if _, err := netlink.LinkList(); err != nil { // want forbidigo
		return err
	}
	return unix.Setns(fd, 0)
}
