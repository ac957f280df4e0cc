package journal

import (
	ns "github.com/vishvananda/netns" // want depguard
	"golang.org/x/sys/unix"
)

// Enter must not change the thread's namespace.
func Enter(fd int) error {
	if err := ns.Set(fd); err != nil { // want forbidigo
		return err
	}
	return unix.Setns(fd, 0) // want forbidigo
}
