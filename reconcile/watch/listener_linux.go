package watch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"
)

// The multicast groups of rtnetlink, as bits. NETCONF carries the few sysctls whose
// changes the kernel reports: forwarding, rp_filter, proxy_arp and similar ones.
// Neighbours are left out: they change all the time without a cause of ours.
const (
	linkGroup     = 1 << (unix.RTNLGRP_LINK - 1)
	nsidGroup     = 1 << (unix.RTNLGRP_NSID - 1)
	sandboxGroups = linkGroup |
		1<<(unix.RTNLGRP_TC-1) |
		1<<(unix.RTNLGRP_IPV4_IFADDR-1) |
		1<<(unix.RTNLGRP_IPV6_IFADDR-1) |
		1<<(unix.RTNLGRP_IPV4_ROUTE-1) |
		1<<(unix.RTNLGRP_IPV6_ROUTE-1) |
		1<<(unix.RTNLGRP_IPV4_RULE-1) |
		1<<(unix.RTNLGRP_IPV6_RULE-1) |
		1<<(unix.RTNLGRP_IPV4_NETCONF-1) |
		1<<(unix.RTNLGRP_IPV6_NETCONF-1)
)

// datagramBytes is enough for any notification: the kernel builds them in pages
// (NLMSG_GOODSIZE). Of a larger one the beginning is enough.
const datagramBytes = 16 << 10

// listener is a netlink socket and the goroutine that reads it.
type listener struct {
	conn   *socket.Conn
	closed atomic.Bool
	done   chan struct{} // closed when the goroutine has ended
}

// handlers are called by a listener's goroutine, and must not wait for close.
type handlers struct {
	// received is called for each datagram. nsid is the number of the namespace it
	// comes from, nsidUnknown if that is the listener's own or has none.
	received func(nsid int32, s summary)
	// overflow is called when the kernel had to drop notifications.
	overflow func()
	// failed is called with the error that ended the listener.
	failed func(error)
}

// listen opens a socket in a namespace, nil being the process's own, and reads it until
// close. With all, it receives from every namespace that has a number there.
func listen(in *os.File, groups uint32, all bool, bufferBytes int, h handlers) (*listener, error) {
	var config socket.Config
	if in != nil {
		config.NetNS = int(in.Fd())
	}
	conn, err := socket.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE, "notifications", &config)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	var raw syscall.RawConn
	err = func() (err error) {
		if raw, err = conn.SyscallConn(); err != nil {
			return fmt.Errorf("netlink socket: %w", err)
		}
		if all {
			if err := conn.SetsockoptInt(unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1); err != nil {
				return fmt.Errorf("listen to all namespaces: %w", err)
			}
		}
		// Above net.core.rmem_max where that is permitted; a smaller one works as well.
		_ = conn.SetReadBuffer(bufferBytes)
		if err := conn.Bind(&unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
			return fmt.Errorf("join netlink groups: %w", err)
		}
		return nil
	}()
	if err != nil {
		conn.Close()
		return nil, err
	}
	l := &listener{conn: conn, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		// Closing interrupts the wait with an error of package os.
		if err := read(raw, h); err != nil && !l.closed.Load() {
			h.failed(err)
		}
	}()
	return l, nil
}

// Close closes the socket and waits for the goroutine. The kernel releases the socket's
// namespace after a grace period. There may be no listener.
func (l *listener) Close() error {
	if l != nil {
		l.closed.Store(true)
		l.conn.Close()
		<-l.done
	}
	return nil
}

// read passes on what a socket receives until it fails or is closed.
func read(raw syscall.RawConn, h handlers) error {
	buf, oob := make([]byte, datagramBytes), make([]byte, unix.CmsgSpace(4))
	lost := false
	for {
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			// Return now and then, so that close is noticed during a flood.
			for range 256 {
				n, oobn, _, _, err := unix.Recvmsg(int(fd), buf, oob, unix.MSG_DONTWAIT)
				switch {
				case err == nil:
					h.received(parseOrigin(oob[:oobn]), parseNotifications(buf[:n]))
				case errors.Is(err, unix.EINTR):
				case errors.Is(err, unix.ENOBUFS):
					lost = true
					h.overflow()
				case errors.Is(err, unix.EAGAIN):
					// From an overflow until the queue has been empty the kernel drops
					// what comes, and reports it only once (netlink_overrun,
					// netlink_rcv_wake): later notifications were lost as well.
					if lost {
						lost = false
						h.overflow()
					}
					return false
				default:
					failed = err
					return true
				}
			}
			return true
		})
		if err = errors.Join(failed, err); err != nil {
			return fmt.Errorf("read netlink notifications: %w", err)
		}
	}
}

// parseOrigin reads the number of the namespace that a datagram comes from.
func parseOrigin(oob []byte) int32 {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nsidUnknown
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_NETLINK && m.Header.Type == unix.NETLINK_LISTEN_ALL_NSID && len(m.Data) >= 4 {
			return int32(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return nsidUnknown
}
