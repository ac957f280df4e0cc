package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/reconcile"
)

// socket talks rtnetlink with one network namespace.
type socket struct {
	ns     *os.File
	id     reconcile.NetnsID
	handle *nl.SocketHandle
	// strict says that the kernel checks dump requests and honours the filters
	// in them (NETLINK_GET_STRICT_CHK, since 4.20). Filters are applied here
	// again, so without it dumps are only longer.
	strict bool

	mu      sync.Mutex
	ethtool ethtoolSockets
}

// replyTimeout bounds the wait for an answer. The kernel handles rtnetlink while
// the request is being sent, so an answer that is not there at once never comes.
var replyTimeout = unix.Timeval{Sec: 10}

// openSocket takes over ns.
func openSocket(ns *os.File) (*socket, error) {
	s := &socket{ns: ns}
	err := enter(ns, func() error {
		rt, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("netlink socket: %w", err)
		}
		s.handle = &nl.SocketHandle{Socket: rt}
		return nil
	})
	if err != nil {
		ns.Close()
		return nil, err
	}
	rt := s.handle.Socket
	_ = rt.SetSendTimeout(&replyTimeout) // these two only store it
	_ = rt.SetReceiveTimeout(&replyTimeout)
	_ = rt.SetExtAck(true) // since 4.12; without it errors lack the kernel's reason
	s.strict = unix.SetsockoptInt(rt.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1) == nil
	if s.id, err = identify(ns, rt.GetFd()); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *socket) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.handle.Socket.Close(), s.ethtool.close(), s.ns.Close())
}

// counters count what one sandbox asked of the kernel.
type counters struct{ dumps, gets, writes atomic.Uint64 }

// conn is a socket as one sandbox uses it.
type conn struct {
	*socket
	count *counters
	// host says that names here are the host's.
	host bool
}

// name gives a name its place.
func (c *conn) name(base string) string {
	if c.host {
		return hostName(base)
	}
	return base
}

// body is the fixed part of a message.
type body []byte

func (b body) Len() int          { return len(b) }
func (b body) Serialize() []byte { return b }

func (c *conn) send(ctx context.Context, req *nl.NetlinkRequest, reply uint16) ([][]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: c.handle}
	return req.Execute(unix.NETLINK_ROUTE, reply)
}

// write sends a request that changes something and waits for its ack.
func (c *conn) write(ctx context.Context, typ, flags int, parts ...nl.NetlinkRequestData) error {
	c.count.writes.Add(1)
	req := nl.NewNetlinkRequest(typ, flags|unix.NLM_F_ACK)
	req.Data = parts
	_, err := c.send(ctx, req, 0)
	return err
}

// get asks for one thing.
func (c *conn) get(ctx context.Context, typ int, reply uint16, parts ...nl.NetlinkRequestData) ([]byte, error) {
	c.count.gets.Add(1)
	req := nl.NewNetlinkRequest(typ, 0)
	req.Data = parts
	out, err := c.send(ctx, req, reply)
	if err != nil {
		return nil, err
	}
	if len(out) != 1 {
		return nil, fmt.Errorf("kernel sent %d replies instead of one", len(out))
	}
	return out[0], nil
}

// dumpAttempts bounds how often an interrupted dump is repeated. Something that
// changes that often is better looked at later.
const dumpAttempts = 16

// dump asks for everything of a kind. A dump that something changed under is
// marked by the kernel (NLM_F_DUMP_INTR) and asked for again.
func (c *conn) dump(ctx context.Context, typ int, reply uint16, parts ...nl.NetlinkRequestData) ([][]byte, error) {
	for range dumpAttempts {
		c.count.dumps.Add(1)
		req := nl.NewNetlinkRequest(typ, unix.NLM_F_DUMP)
		req.Data = parts
		out, err := c.send(ctx, req, reply)
		if !errors.Is(err, nl.ErrDumpInterrupted) {
			return out, err
		}
	}
	return nil, fault.New(fault.NotReady, errors.New("the namespace keeps changing while it is read"))
}
