package watch

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// newNetns makes a network namespace that lives as long as the file, or a
// socket in it.
func newNetns() (f *os.File, err error) {
	var made sync.WaitGroup
	made.Go(func() { f, err = unshareNetns() })
	made.Wait()
	return f, err
}

// unshareNetns makes it on the thread of the calling goroutine, which ends with that unless it is back where it was.
func unshareNetns() (*os.File, error) {
	runtime.LockOSThread()
	const own = "/proc/thread-self/ns/net"
	back, err := os.Open(own)
	if err != nil {
		return nil, err
	}
	defer back.Close()
	//nolint:forbidigo // the namespace to listen from is no sandbox: it holds a socket and nothing else
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("new network namespace: %w", err)
	}
	f, err := os.Open(own)
	//nolint:forbidigo // the way back from the line above
	if unix.Setns(int(back.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return f, err
}

// numberer gives namespaces numbers in the one it was opened in. The kernel
// takes a number back when the namespace dies, and has no way to do so before.
type numberer struct{ *netlink.Conn }

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

func (n *numberer) request(kind netlink.HeaderType, flags netlink.HeaderFlags,
	attrs func(*netlink.AttributeEncoder),
) ([]netlink.Message, error) {
	e := netlink.NewAttributeEncoder()
	attrs(e)
	data, err := e.Encode()
	if err != nil {
		return nil, err
	}
	return n.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | flags},
		Data:   append(make([]byte, rtgenBytes), data...),
	})
}
