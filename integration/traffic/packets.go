package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

// Packets are raw: a transport header, then these bytes and a number.
const (
	magic = "plum"
	at    = 20 // as long as the longest header
	least = at + len(magic) + 4
)

// Sender sends out of a namespace.
type Sender struct {
	// Extended gives packets of IPv6 a header of hop-by-hop options and one of destination options. It is set before the first packet.
	Extended bool

	netns   string
	sockets map[kind]int
	sent    *uint32
}

type kind struct {
	protocol qos.Protocol
	six      bool
	ecn      int
}

// NewSender opens nothing yet. Senders that share a counter do not repeat a number.
func NewSender(netns string, counter *uint32) *Sender {
	return &Sender{netns: netns, sockets: map[kind]int{}, sent: counter}
}

// Close closes its sockets.
func (s *Sender) Close() {
	for _, fd := range s.sockets {
		_ = unix.Close(fd)
	}
	clear(s.sockets)
}

func (s *Sender) socket(k kind) (int, error) {
	if fd, ok := s.sockets[k]; ok {
		return fd, nil
	}
	fd := -1
	err := kernel.Within(s.netns, func() (err error) {
		family, level, option := unix.AF_INET, unix.IPPROTO_IP, unix.IP_TOS
		if k.six {
			family, level, option = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_TCLASS
		}
		if fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(k.protocol)); err != nil {
			return err
		}
		s.sockets[k] = fd
		if k.six && s.Extended {
			if err := Extend(fd); err != nil {
				return err
			}
		}
		return unix.SetsockoptInt(fd, level, option, k.ecn)
	})
	if err != nil {
		return -1, fmt.Errorf("raw socket: %w", err)
	}
	return fd, nil
}

// Extend gives what an IPv6 socket sends a header of hop-by-hop options and one of destination options (RFC 3542, 7 and 9).
func Extend(fd int) error {
	for _, option := range []int{unix.IPV6_HOPOPTS, unix.IPV6_DSTOPTS} {
		const padding = "\x00\x00\x01\x04\x00\x00\x00\x00" // the next header, the length, PadN of six bytes
		if err := unix.SetsockoptString(fd, unix.IPPROTO_IPV6, option, padding); err != nil {
			return fmt.Errorf("extension headers: %w", err)
		}
	}
	return nil
}

// Send sends a packet with so many bytes after its IP header, at least, and returns its number. Of
// a packet that the sender's interface drops, only IPv6 says so, and it is no error.
func (s *Sender) Send(p qos.Packet, ecn, size int) (uint32, error) {
	fd, err := s.socket(kind{p.Protocol, p.Destination.Is6(), ecn})
	if err != nil {
		return 0, err
	}
	*s.sent++
	b := make([]byte, max(size, least))
	binary.BigEndian.PutUint16(b, 4000)
	binary.BigEndian.PutUint16(b[2:], p.Port)
	switch p.Protocol {
	case qos.UDP:
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	case qos.TCP:
		b[12] = 5 << 4 // the length of the header
	default: // nothing reads the rest of other headers
	}
	copy(b[at:], magic)
	binary.BigEndian.PutUint32(b[at+len(magic):], *s.sent)
	var to unix.Sockaddr
	if p.Destination.Is6() {
		to = &unix.SockaddrInet6{Addr: p.Destination.As16()}
	} else {
		to = &unix.SockaddrInet4{Addr: p.Destination.As4()}
	}
	if err := unix.Sendto(fd, b, 0, to); err != nil && !errors.Is(err, unix.ENOBUFS) {
		return 0, fmt.Errorf("send to %s: %w", p.Destination, err)
	}
	return *s.sent, nil
}

// Receiver receives what arrives at any interface of a namespace.
type Receiver struct{ fd int }

// NewReceiver receives from now on.
func NewReceiver(netns string) (*Receiver, error) {
	r := &Receiver{-1}
	err := kernel.Within(netns, func() (err error) {
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		if r.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		// As much as a test sends before it receives.
		return unix.SetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	})
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	return r, nil
}

// Close closes the socket.
func (r *Receiver) Close() error { return unix.Close(r.fd) }

// Received is an IP packet that arrived.
type Received struct {
	Number   uint32 // 0: not of a Sender
	Protocol qos.Protocol
	Port     uint16 // of the destination
	Class    uint8  // its traffic class: DSCP and ECN
	Length   int    // with its IP header
	Fragment bool   // of a datagram
	Later    bool   // a fragment that is not the first: it has no port
}

// Next returns the next packet, os.ErrDeadlineExceeded if none comes for so long.
func (r *Receiver) Next(wait time.Duration) (Received, error) {
	b := make([]byte, 64<<10)
	for end := time.Now().Add(wait); ; {
		left := time.Until(end)
		if left <= 0 {
			return Received{}, os.ErrDeadlineExceeded
		}
		limit := unix.NsecToTimeval(max(left, time.Millisecond).Nanoseconds()) // 0 is forever
		if err := unix.SetsockoptTimeval(r.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
			return Received{}, err
		}
		n, from, err := unix.Recvfrom(r.fd, b, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return Received{}, err
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if p, ok, err := parse(b[:n]); err != nil || ok {
			return p, err
		}
	}
}

// parse reads an IP packet, and reports whether it is one.
func parse(b []byte) (p Received, ok bool, err error) {
	switch {
	case len(b) >= 24 && b[0] == 0x45:
		p = Received{Protocol: qos.Protocol(b[9]), Class: b[1], Length: len(b)}
		if checksum(b[:20]) != 0 {
			return p, true, fmt.Errorf("the checksum of an IP header is wrong: % x", b[:20])
		}
		field := binary.BigEndian.Uint16(b[6:])
		p.Fragment, p.Later = field&0x3fff != 0, field&0x1fff != 0
		b = b[20:]
	case len(b) >= 44 && b[0]>>4 == 6:
		p = Received{Protocol: qos.Protocol(b[6]), Class: b[0]<<4 | b[1]>>4, Length: len(b)}
		b = p.extensions(b[40:])
	default:
		return p, false, nil
	}
	if p.Later || len(b) < 4 {
		return p, true, nil
	}
	p.Port = binary.BigEndian.Uint16(b[2:])
	if len(b) >= least && string(b[at:at+len(magic)]) == magic {
		p.Number = binary.BigEndian.Uint32(b[at+len(magic):])
	}
	return p, true, nil
}

// extensions reads the extension headers of IPv6 (RFC 8200, 4), and returns what follows them.
func (p *Received) extensions(b []byte) []byte {
	for len(b) >= 8 {
		length := 8
		switch p.Protocol {
		case unix.IPPROTO_FRAGMENT:
			p.Fragment, p.Later = true, binary.BigEndian.Uint16(b[2:])&^7 != 0
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_DSTOPTS, unix.IPPROTO_ROUTING:
			length += 8 * int(b[1])
		default:
			return b
		}
		p.Protocol, b = qos.Protocol(b[0]), b[min(length, len(b)):]
		if p.Later {
			return b
		}
	}
	return b
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// Packet is a packet for a destination.
func Packet(to string, protocol qos.Protocol, port uint16) qos.Packet {
	return qos.Packet{Destination: netip.MustParseAddr(to), Protocol: protocol, Port: port}
}
