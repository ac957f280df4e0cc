package watch

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/mdlayher/netlink"
	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// openNetns opens the network namespace at path and says which one it is. A
// path that is missing or bears no namespace any more is fault.Gone. The file
// holds the namespace alive until it is closed.
func openNetns(path string) (*os.File, reconcile.NetnsID, error) {
	f, id, err := func() (*os.File, reconcile.NetnsID, error) {
		// O_NONBLOCK: whatever the path is, opening it must not wait.
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESRCH) {
			err = fault.New(fault.Gone, err)
		}
		if err != nil {
			return nil, reconcile.NetnsID{}, err
		}
		id, err := identify(f)
		if err != nil {
			f.Close()
		}
		return f, id, err
	}()
	if err != nil {
		return nil, id, fmt.Errorf("network namespace %q: %w", path, err)
	}
	return f, id, nil
}

func identify(f *os.File) (reconcile.NetnsID, error) {
	var id reconcile.NetnsID
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return id, err
	}
	if fs.Type != unix.NSFS_MAGIC {
		// What remains of a mount point after the unmount.
		return id, fault.New(fault.Gone, errors.New("nothing is mounted there"))
	}
	if kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE); err == nil && kind != unix.CLONE_NEWNET {
		return id, fault.New(fault.Invalid, errors.New("a namespace of another kind"))
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return id, err
	}
	id.Device, id.Inode = st.Dev, st.Ino
	// An inode number is given to the next namespace, a cookie never is. A UNIX
	// socket lets go of the namespace when it is closed; a netlink socket does
	// so only after a grace period.
	s, err := socket.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0, "cookie", &socket.Config{NetNS: int(f.Fd())})
	if err != nil {
		return id, err
	}
	defer s.Close()
	raw, err := s.SyscallConn()
	if err != nil {
		return id, err
	}
	err = raw.Control(func(fd uintptr) {
		if cookie, err := unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err == nil {
			id.Cookie = cookie // Linux 5.14 and later
		}
	})
	return id, err
}

// newNetns makes a network namespace that lives as long as the file, or a
// socket in it.
func newNetns() (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread()
		const own = "/proc/thread-self/ns/net"
		back, err := os.Open(own)
		if err != nil {
			runtime.UnlockOSThread()
			made <- result{nil, err}
			return
		}
		defer back.Close()
		//nolint:forbidigo // the namespace to listen from is no sandbox: it holds a socket and nothing else
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			made <- result{nil, fmt.Errorf("new network namespace: %w", err)}
			return
		}
		f, err := os.Open(own)
		//nolint:forbidigo // the way back from the line above
		if unix.Setns(int(back.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // otherwise the thread ends with the goroutine
		}
		made <- result{f, err}
	}()
	r := <-made
	return r.f, r.err
}

// numberer gives namespaces numbers in the one it was opened in. The kernel
// takes a number back when the namespace dies, and has no way to do so before.
type numberer struct{ conn *netlink.Conn }

func newNumberer(in *os.File) (*numberer, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: int(in.Fd())})
	if err != nil {
		return nil, err
	}
	return &numberer{conn}, nil
}

// number returns the number of a namespace, which is given one if it has none.
func (n *numberer) number(ns *os.File) (int32, error) {
	byFD := func(e *netlink.AttributeEncoder) { e.Uint32(unix.NETNSA_FD, uint32(ns.Fd())) }
	_, err := n.request(unix.RTM_NEWNSID, netlink.Acknowledge, func(e *netlink.AttributeEncoder) {
		e.Int32(unix.NETNSA_NSID, nsidUnknown) // any
		byFD(e)
	})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, fmt.Errorf("give the network namespace a number: %w", err)
	}
	replies, err := n.request(unix.RTM_GETNSID, 0, byFD)
	if err != nil {
		return 0, fmt.Errorf("read the network namespace's number: %w", err)
	}
	for _, r := range replies {
		if id, ok := parseNSID(r.Data); ok {
			return id, nil
		}
	}
	return 0, errors.New("the network namespace was given no number")
}

func (n *numberer) request(kind netlink.HeaderType, flags netlink.HeaderFlags, attrs func(*netlink.AttributeEncoder)) ([]netlink.Message, error) {
	e := netlink.NewAttributeEncoder()
	attrs(e)
	data, err := e.Encode()
	if err != nil {
		return nil, err
	}
	return n.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | flags},
		Data:   append(make([]byte, rtgenBytes), data...),
	})
}

func (n *numberer) close() { n.conn.Close() }
