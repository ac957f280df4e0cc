package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
)

// Announce sends what tells the neighbors of links by which MAC these have their addresses: for
// IPv4 the two forms of gratuitous ARP, since hosts differ in which they heed (RFC 5227 section 3), for
// IPv6 an unsolicited advertisement that overrides (RFC 4861 section 7.2.6). A packet is sent once,
// and waits for nothing: one on a link without carrier is lost.
func (s *Sandbox) Announce(links []netstate.Link, addresses []netstate.Addr) error {
	of := map[string]netstate.Link{}
	for _, l := range links {
		of[l.Name] = l
	}
	at := map[*conn][]netstate.Addr{}
	for _, a := range addresses {
		c, _, err := s.at(a.Link)
		if err != nil {
			return err
		}
		at[c] = append(at[c], a)
	}
	var errs []error
	for c, addresses := range at {
		errs = append(errs, c.announce(of, addresses))
	}
	return errors.Join(errs...)
}

func (c *conn) announce(links map[string]netstate.Link, addresses []netstate.Addr) error {
	var fd int
	open := func() (err error) {
		// Protocol 0 receives nothing.
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	}
	if err := c.enter(open); err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	// The kernel waits for a grace period of RCU before such a socket is closed (packet_release), which
	// took a tenth of an attachment.
	defer func() { go unix.Close(fd) }()
	var errs []error
	for _, a := range addresses {
		for _, p := range announcements(links[a.Link], a) {
			to := unix.SockaddrLinklayer{Protocol: htons(p.protocol), Ifindex: links[a.Link].Index, Halen: 6}
			copy(to.Addr[:], p.to)
			if err := unix.Sendto(fd, p.packet, 0, &to); err != nil && !errors.Is(err, unix.ENETDOWN) {
				errs = append(errs, fmt.Errorf("%s: %w", a.Key(), err))
				break
			}
		}
	}
	return errors.Join(errs...)
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// announcement is a packet without the header of its link.
type announcement struct {
	protocol uint16 // ETH_P_*
	to       net.HardwareAddr
	packet   []byte
}

func announcements(l netstate.Link, a netstate.Addr) []announcement {
	prefix, err := netip.ParsePrefix(a.Address)
	if err != nil || l.MAC == nil {
		return nil
	}
	mac, err := net.ParseMAC(*l.MAC)
	if err != nil || len(mac) != 6 {
		return nil
	}
	if ip := prefix.Addr(); !ip.Is4() {
		return []announcement{{unix.ETH_P_IPV6, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, neighborAdvertisement(mac, ip)}}
	}
	everyone := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	return []announcement{
		{unix.ETH_P_ARP, everyone, gratuitousARP(1, mac, prefix.Addr())},
		{unix.ETH_P_ARP, everyone, gratuitousARP(2, mac, prefix.Addr())},
	}
}

// gratuitousARP is a request (1) or a reply (2) in which sender and target have the address (RFC 826).
func gratuitousARP(operation uint16, mac net.HardwareAddr, ip netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 0} // Ethernet, IPv4, and the lengths of their addresses
	binary.BigEndian.PutUint16(b[6:], operation)
	b = append(append(b, mac...), ip.AsSlice()...)
	if operation == 1 {
		mac = make(net.HardwareAddr, 6)
	}
	return append(append(b, mac...), ip.AsSlice()...)
}

// neighborAdvertisement is sent to all nodes of the link, from the address itself.
func neighborAdvertisement(mac net.HardwareAddr, ip netip.Addr) []byte {
	const length = 32
	all := netip.MustParseAddr("ff02::1")
	body := append([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, ip.AsSlice()...) // override
	body = append(append(body, 2, 1), mac...)                            // target link-layer address
	pseudo := append(append(ip.AsSlice(), all.AsSlice()...), 0, 0, 0, length, 0, 0, 0, unix.IPPROTO_ICMPV6)
	binary.BigEndian.PutUint16(body[2:], checksum(append(pseudo, body...)))
	header := append([]byte{0x60, 0, 0, 0, 0, length, unix.IPPROTO_ICMPV6, 255}, ip.AsSlice()...)
	return append(append(header, all.AsSlice()...), body...)
}

// checksum is the Internet checksum (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
