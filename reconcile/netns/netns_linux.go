package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// Open opens the network namespace at a path. It exists until the file is closed. A
// path that leads to none any more is fault.Gone, one to something else fault.Invalid.
func Open(path string) (*os.File, error) {
	// O_NONBLOCK: whatever the path is, opening it must not wait.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, failure(path, err)
	}
	if err := check(f); err != nil {
		f.Close()
		return nil, failure(path, err)
	}
	return f, nil
}

// OpenIdentified is Open, and returns which namespace it is.
func OpenIdentified(path string) (*os.File, reconcile.NetnsID, error) {
	f, err := Open(path)
	if err != nil {
		return nil, reconcile.NetnsID{}, err
	}
	id, err := Identify(f)
	if err != nil {
		f.Close()
		return nil, id, err
	}
	return f, id, nil
}

func check(f *os.File) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Type != unix.NSFS_MAGIC {
		return errUnmounted
	}
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err == nil && kind != unix.CLONE_NEWNET {
		return fault.New(fault.Invalid, errors.New("it is a namespace of another kind"))
	}
	return nil
}

// At returns which namespace a path leads to, without opening it: without the cookie,
// and without knowing that it is a network namespace. An error of kind fault.Gone means
// that it leads to none.
func At(path string) (reconcile.NetnsID, error) {
	var mount unix.Statfs_t
	if err := unix.Statfs(path, &mount); err != nil {
		return reconcile.NetnsID{}, failure(path, err)
	}
	if mount.Type != unix.NSFS_MAGIC {
		return reconcile.NetnsID{}, failure(path, errUnmounted)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return reconcile.NetnsID{}, failure(path, err)
	}
	return reconcile.NetnsID{Device: st.Dev, Inode: st.Ino}, nil
}

// errUnmounted: a file remains where a namespace was mounted.
var errUnmounted = fault.New(fault.Gone, errors.New("nothing is mounted there"))

// failure is an error about a path, of kind fault.Gone when nothing is there.
func failure(path string, err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err // which names the path once more
	}
	// ESRCH: the process of a path below /proc has ended.
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESRCH) {
		err = fault.New(fault.Gone, err)
	}
	return fmt.Errorf("network namespace %q: %w", path, err)
}

// Identify returns which namespace an open one is.
func Identify(ns *os.File) (reconcile.NetnsID, error) {
	// A UNIX socket releases the namespace when it is closed; a netlink socket does
	// so only after a grace period.
	s, err := socket.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0, "cookie", &socket.Config{NetNS: int(ns.Fd())})
	if err != nil {
		return reconcile.NetnsID{}, failure(ns.Name(), err)
	}
	defer s.Close()
	raw, err := s.SyscallConn()
	if err != nil {
		return reconcile.NetnsID{}, failure(ns.Name(), err)
	}
	var id reconcile.NetnsID
	var failed error
	err = raw.Control(func(fd uintptr) { id, failed = IdentifyBy(ns, int(fd)) })
	return id, errors.Join(failed, err)
}

// IdentifyBy is Identify for a caller with a socket in the namespace.
func IdentifyBy(ns *os.File, socket int) (reconcile.NetnsID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &st); err != nil {
		return reconcile.NetnsID{}, failure(ns.Name(), err)
	}
	id := reconcile.NetnsID{Device: st.Dev, Inode: st.Ino}
	// An inode number is given to the next namespace, a cookie never is.
	if cookie, err := unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err == nil {
		id.Cookie = cookie // Linux 5.14 and later
	}
	return id, nil
}

// Same reports whether two IDs are of one namespace, as far as both sides know: an ID
// may have no cookie.
func Same(a, b reconcile.NetnsID) bool {
	if a.Cookie != 0 && b.Cookie != 0 {
		return a.Cookie == b.Cookie
	}
	return a.Device == b.Device && a.Inode == b.Inode
}
