package attachment

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// identify identifies the namespace at a path without opening it. Package kernel checks
// more, and refuses the host's namespace.
func identify(path string) (reconcile.NetnsID, error) {
	var fs unix.Statfs_t
	err := unix.Statfs(path, &fs)
	if err == nil && fs.Type != unix.NSFS_MAGIC {
		err = unix.ENOENT // what remains when the namespace was unmounted
	}
	var st unix.Stat_t
	if err == nil {
		err = unix.Stat(path, &st)
	}
	if err != nil {
		kind := fault.Internal
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			kind = fault.Gone
		}
		return reconcile.NetnsID{}, fault.New(kind, fmt.Errorf("network namespace %q: %w", path, err))
	}
	return reconcile.NetnsID{Device: st.Dev, Inode: st.Ino}, nil
}
