package kernel

import (
	"encoding/binary"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile/kernel"
)

// sender sends frames from a link.
type sender struct {
	t  *testing.T
	fd int
	to unix.SockaddrLinklayer
}

// newSender sends in a namespace, "" for the host's.
func newSender(t *testing.T, path, link string) *sender {
	s := &sender{t: t}
	within := func(f func() error) error { return f() }
	if path != "" {
		within = func(f func() error) error { return kernel.Within(path, f) }
	}
	err := within(func() error {
		ifi, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		s.to.Ifindex = ifi.Index
		s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s.fd) })
	return s
}

// frame sends three times the same: a protocol and what is in it.
func (s *sender) frame(from, to net.HardwareAddr, protocol uint16, body []byte) {
	s.t.Helper()
	f := append(append([]byte{}, to...), from...)
	f = append(binary.BigEndian.AppendUint16(f, protocol), body...)
	if len(f) < 60 {
		f = append(f, make([]byte, 60-len(f))...)
	}
	for range 3 {
		if err := unix.Sendto(s.fd, f, 0, &s.to); err != nil {
			s.t.Fatal(err)
		}
	}
}
