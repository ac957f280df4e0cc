package dhcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile/netns"
	"github.com/plumbline/plumbline/topology/fault"
)

const (
	serverPort, clientPort = 67, 68
	ipHeader, udpHeader    = 20, 8
	queueBytes             = 1 << 16 // of answers that wait in the kernel; it drops more
)

var (
	everyone  = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})
)

// wire sends and receives messages of one transaction on a link. While it is open it keeps the
// namespace alive.
type wire struct {
	conn *packet.Conn
	arp  *packet.Conn // see probe
	mac  net.HardwareAddr
	buf  [ipHeader + 40 + udpHeader + maxMessage]byte // 40: options of IP
}

// dial opens the link of a lease, in the namespace that the lease is of.
func (h *Host) dial(r *record) (*wire, error) {
	ns, id, err := netns.OpenIdentified(r.Netns)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if !netns.Same(id, r.NetnsID) {
		return nil, fault.New(fault.Gone, fmt.Errorf("network namespace %q is another one now", r.Netns))
	}
	w := &wire{}
	err = h.Within(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), func() error {
		index, err := indexOf(r.Link)
		if err != nil {
			return fmt.Errorf("link %q: %w", r.Link, err)
		}
		link := &net.Interface{Index: index, Name: r.Link}
		if w.conn, err = packet.Listen(link, packet.Datagram, unix.ETH_P_IP, &packet.Config{Filter: dropAll}); err == nil {
			w.arp, err = packet.Listen(link, packet.Datagram, unix.ETH_P_ARP, &packet.Config{Filter: dropAll})
		}
		if errors.Is(err, unix.EPERM) {
			return fault.New(fault.Unsupported,
				fmt.Errorf("the capability NET_RAW is missing: on a cluster, set agent.dhcp: true in the chart's values: %w", err))
		}
		return err
	})
	if err != nil {
		w.close()
		return nil, err
	}
	if err = w.limit(); err == nil {
		w.mac, err = ethernet(w.conn.LocalAddr(), r.Link)
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// indexOf returns the index of a link in the namespace of the thread. net.InterfaceByName reads all links,
// of which a pod may create any number.
func indexOf(link string) (int, error) {
	request, err := unix.NewIfreq(link)
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request); err != nil {
		return 0, err
	}
	return int(request.Uint32()), nil
}

// ethernet returns the hardware address of the link to which a socket is bound.
func ethernet(bound net.Addr, link string) (net.HardwareAddr, error) {
	a, ok := bound.(*packet.Addr)
	if !ok || len(a.HardwareAddr) != 6 || bytes.Equal(a.HardwareAddr, make([]byte, 6)) {
		return nil, fmt.Errorf("link %q has no Ethernet address", link)
	}
	return a.HardwareAddr, nil
}

// limit bounds the receive queues in the kernel.
func (w *wire) limit() error {
	for _, conn := range []*packet.Conn{w.conn, w.arp} {
		raw, err := conn.SyscallConn()
		if err != nil {
			return err
		}
		var set error
		err = raw.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, queueBytes)
		})
		if err = errors.Join(err, set); err != nil {
			return err
		}
	}
	return nil
}

// close closes the sockets, in which nothing waits.
func (w *wire) close() {
	for _, conn := range []*packet.Conn{w.conn, w.arp} {
		if conn != nil {
			_ = conn.Close()
		}
	}
}

// follow lets the kernel pass the answers of one transaction only: other packets of the pod
// and floods cost nothing here.
func (w *wire) follow(xid dhcpv4.TransactionID) error {
	f, err := filter(xid)
	if err != nil {
		return err
	}
	return w.conn.SetBPF(f)
}

func filter(xid dhcpv4.TransactionID) ([]bpf.RawInstruction, error) {
	const toEnd = 11 // instructions after the first comparison, to the one that drops
	return bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 9, Size: 1}, // protocol
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_UDP, SkipFalse: toEnd - 1},
		bpf.LoadAbsolute{Off: 6, Size: 2}, // fragments
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x3fff, SkipTrue: toEnd - 3},
		bpf.LoadMemShift{Off: 0}, // length of the header
		bpf.LoadIndirect{Off: 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: clientPort, SkipFalse: toEnd - 6},
		bpf.LoadIndirect{Off: udpHeader, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(dhcpv4.OpcodeBootReply), SkipFalse: toEnd - 8},
		bpf.LoadIndirect{Off: udpHeader + 4, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(xid[:]), SkipFalse: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	})
}

// send sends a message. A zero address is 0.0.0.0.
func (w *wire) send(m *dhcpv4.DHCPv4, from, to netip.Addr, at net.HardwareAddr) error {
	_, err := w.conn.WriteTo(datagram(m.ToBytes(), from, to), &packet.Addr{HardwareAddr: at})
	return err
}

// datagram puts the headers of IP and UDP before a message.
func datagram(payload []byte, from, to netip.Addr) []byte {
	b := make([]byte, ipHeader+udpHeader, ipHeader+udpHeader+len(payload))
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP // version and length, TTL, protocol
	binary.BigEndian.PutUint16(b[2:], uint16(cap(b)))
	if from.IsValid() {
		copy(b[12:], from.AsSlice())
	}
	copy(b[16:], to.AsSlice())
	binary.BigEndian.PutUint16(b[10:], checksum(b[:ipHeader], 0))
	u := b[ipHeader:]
	binary.BigEndian.PutUint16(u, clientPort)
	binary.BigEndian.PutUint16(u[2:], serverPort)
	binary.BigEndian.PutUint16(u[4:], uint16(udpHeader+len(payload)))
	b = append(b, payload...)
	u = b[ipHeader:]
	pseudo := uint32(unix.IPPROTO_UDP) + uint32(len(u))
	for i := 12; i < ipHeader; i += 2 {
		pseudo += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum := cmp.Or(checksum(u, pseudo), 0xffff)
	binary.BigEndian.PutUint16(u[6:], sum)
	return b
}

func checksum(b []byte, sum uint32) uint16 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// receive returns the next message and the hardware address that it is from, until ctx ends. The
// message is nil if it is malformed.
func (w *wire) receive(ctx context.Context) (*dhcpv4.DHCPv4, string, error) {
	n, from, err := read(ctx, w.conn, w.buf[:])
	if err != nil {
		return nil, "", err
	}
	via := ""
	if sender, ok := from.(*packet.Addr); ok {
		via = sender.HardwareAddr.String()
	}
	m, err := decode(w.buf[:n])
	if err != nil {
		return nil, via, nil //nolint:nilerr // whatever was sent
	}
	return m, via, nil
}

// read reads a packet, until ctx ends.
func read(ctx context.Context, conn *packet.Conn, b []byte) (int, net.Addr, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for ctx.Err() == nil {
		n, from, err := conn.ReadFrom(b)
		switch {
		case err == nil:
			return n, from, nil
		case ctx.Err() != nil:
		case errors.Is(err, os.ErrDeadlineExceeded): // it was that of an earlier call
			if err := conn.SetReadDeadline(time.Time{}); err != nil {
				return 0, nil, err
			}
		default:
			return 0, nil, err
		}
	}
	return 0, nil, context.Cause(ctx)
}

var errMalformed = errors.New("it is malformed")

// decode reads the message of an IP packet. Its checksums are not verified: those of packets
// from the same machine may not be computed.
func decode(b []byte) (*dhcpv4.DHCPv4, error) {
	if len(b) < ipHeader || b[0]>>4 != 4 {
		return nil, errMalformed
	}
	header, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	if header < ipHeader || total > len(b) || total < header+udpHeader {
		return nil, errMalformed // also one that was cut off
	}
	u := b[header:total]
	length := int(binary.BigEndian.Uint16(u[4:]))
	if length < udpHeader || length > len(u) {
		return nil, errMalformed
	}
	return dhcpv4.FromBytes(u[udpHeader:length])
}
