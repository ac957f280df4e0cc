package dhcp

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// TestReadAgain: a read that has ended with its context does not end the next one, of which another filter lets a packet pass.
func TestReadAgain(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skip(err)
	}
	conn, err := packet.Listen(lo, packet.Datagram, unix.ETH_P_IP, &packet.Config{Filter: dropAll})
	if errors.Is(err, unix.EPERM) {
		t.Skip("it needs the capability NET_RAW")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ended, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	var b [64]byte
	if _, _, err := read(ended, conn, b[:]); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	if err := conn.SetBPF([]bpf.RawInstruction{{Op: 0x06, K: 1 << 16}}); err != nil {
		t.Fatal(err)
	}
	to, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if _, err := to.WriteTo([]byte("hello"), to.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	if n, _, err := read(t.Context(), conn, b[:]); n == 0 || err != nil {
		t.Fatalf("read %d bytes: %v", n, err)
	}
}
