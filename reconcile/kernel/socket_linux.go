package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel/ethtoolnl"
	"github.com/plumbline/plumbline/reconcile/netns"
)

// socket is a netlink socket in one network namespace.
type socket struct {
	protocol int // default NETLINK_ROUTE, which is 0
	ns       *os.File
	own      ownNetns
	home     bool // ns is own
	id       reconcile.NetnsID
	// strict: the kernel checks dump requests and honours the filters in them
	// (NETLINK_GET_STRICT_CHK, since 4.20). Filters are applied here again, so without
	// it dumps are only longer.
	strict  bool
	buffers *sync.Pool // of *[]byte, receiveBytes long

	// turn is held for one exchange: a request and all its answers.
	turn sync.Mutex
	fd   int // -1 once closed
	port uint32
	seq  uint32

	mu      sync.Mutex
	ethtool *ethtoolnl.Client // nil until it is needed
}

// replyTimeout bounds the wait for an answer. The kernel handles rtnetlink while the
// request is being sent, so an answer that is not there at once will never arrive.
var replyTimeout = unix.Timeval{Sec: 10}

// receiveBytes is the usual buffer for one datagram. The parts of a dump have 32 KiB at
// most (af_netlink.c, netlink_recvmsg); a link with 256 virtual functions is one
// message of about 50.
const receiveBytes = 64 << 10

// datagramBytes bounds one datagram. A link's message may be larger than receiveBytes:
// the owner of a namespace can give a link alternative names of 64 KiB in all
// (rtnetlink.c, rtnl_alt_ifname), and no attribute is larger.
const datagramBytes = 1 << 20

func newBuffers() *sync.Pool {
	return &sync.Pool{New: func() any { return new(make([]byte, receiveBytes)) }}
}

// openSocket takes over ns.
func openSocket(ns *os.File, own ownNetns, buffers *sync.Pool) (*socket, error) {
	s := &socket{ns: ns, own: own, home: own.is(ns), buffers: buffers, fd: -1}
	err := s.dial()
	if err == nil {
		s.id, err = netns.IdentifyBy(ns, s.fd)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// dial opens the socket.
func (s *socket) dial() error {
	err := s.enter(func() (err error) {
		// It blocks: the kernel has answered a request when it has been sent.
		s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, s.protocol)
		return err
	})
	if err == nil {
		err = s.bind()
	}
	if err != nil {
		return fmt.Errorf("netlink socket: %w", err)
	}
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1) // since 4.12; without it errors lack the kernel's reason
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1) // since 4.3; without it an error contains the whole request
	s.strict = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1) == nil
	return nil
}

// abandon ends a dump that is not read to its end: the kernel continues it for
// as long as the socket is open, and refuses another one meanwhile.
func (s *socket) abandon() {
	unix.Close(s.fd)
	s.fd = -1
	_ = s.dial() // without a socket the next request fails
}

// enter calls f on a thread in the namespace, which any thread is if that is the one of this process.
func (s *socket) enter(f func() error) error {
	if s.home {
		return f()
	}
	return s.own.enter(s.ns, f)
}

func (s *socket) bind() error {
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	name, err := unix.Getsockname(s.fd)
	if err != nil {
		return err
	}
	own, ok := name.(*unix.SockaddrNetlink)
	if !ok {
		return fmt.Errorf("its address is a %T", name)
	}
	s.port = own.Pid
	// A connected socket accepts messages of its peer only (af_netlink.c,
	// netlink_getsockbyportid). Without it CAP_NET_ADMIN in the namespace is enough to
	// send us forged answers, or so many that the kernel's are dropped.
	if err := unix.Connect(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("connect to the kernel: %w", err)
	}
	return errors.Join(
		unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &replyTimeout),
		unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &replyTimeout))
}

func (s *socket) close() error {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.fd >= 0 {
		err = unix.Close(s.fd)
		s.fd = -1
	}
	if s.ethtool != nil {
		err = errors.Join(err, s.ethtool.Close())
		s.ethtool = nil
	}
	return errors.Join(err, s.ns.Close())
}

// counters count one sandbox's requests to the kernel.
type counters struct {
	dumps, gets, writes atomic.Uint64
	disturb             func(Message) error // see Options; usually nil
}

// send sends a message by f, between the two calls of disturb.
func (c *counters) send(write bool, f func() error) error {
	if c.disturb == nil {
		return f()
	}
	if err := c.disturb(Message{Write: write}); err != nil {
		return err
	}
	err := f()
	if lost := c.disturb(Message{Write: write, Answered: true}); lost != nil && err == nil {
		return unanswered(lost)
	}
	return err
}

// conn is a socket as one sandbox uses it.
type conn struct {
	*socket
	count *counters
	// host: names here are the host's.
	host   bool
	bounds Bounds // of what is read from a sandbox
	proc   string // where procfs is mounted; only of the host
}

// name adds the namespace to a name.
func (c *conn) name(base string) string {
	if c.host {
		return netstate.HostName(base)
	}
	return base
}

// body is the fixed part of a message.
type body []byte

func (b body) Len() int          { return len(b) }
func (b body) Serialize() []byte { return b }

// send sends a request, and passes the answers of type reply, or all answers if that is
// 0, to take.
func (c *conn) send(ctx context.Context, typ, flags int, parts []nl.NetlinkRequestData, reply uint16, take func([]byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.count.send(flags&unix.NLM_F_ACK != 0, func() error {
		return c.exchange(ctx, uint16(typ), uint16(flags), parts, reply, take)
	})
}

// collect is send for requests that have few answers.
func (c *conn) collect(ctx context.Context, typ, flags int, parts []nl.NetlinkRequestData, reply uint16) (out [][]byte, err error) {
	err = c.send(ctx, typ, flags, parts, reply, func(b []byte) error {
		out = append(out, append([]byte(nil), b...))
		return nil
	})
	return out, err
}

// write sends a request that changes something and waits for its ack.
func (c *conn) write(ctx context.Context, typ, flags int, parts ...nl.NetlinkRequestData) error {
	c.count.writes.Add(1)
	_, err := c.collect(ctx, typ, flags|unix.NLM_F_ACK, parts, 0)
	return err
}

// create creates a link and returns its index, which the kernel returns with NLM_F_ECHO
// since 6.2; 0 where it does not.
func (c *conn) create(ctx context.Context, typ int, parts ...nl.NetlinkRequestData) (int, error) {
	c.count.writes.Add(1)
	out, err := c.collect(ctx, typ, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ECHO|unix.NLM_F_ACK, parts, uint16(typ))
	if err != nil || len(out) != 1 || len(out[0]) < unix.SizeofIfInfomsg {
		return 0, err
	}
	return int(u32(out[0][4:])), nil
}

// get queries one object.
func (c *conn) get(ctx context.Context, typ int, reply uint16, parts ...nl.NetlinkRequestData) ([]byte, error) {
	c.count.gets.Add(1)
	out, err := c.collect(ctx, typ, 0, parts, reply)
	if err != nil {
		return nil, err
	}
	if len(out) != 1 {
		return nil, fmt.Errorf("kernel sent %d replies instead of one", len(out))
	}
	return out[0], nil
}
