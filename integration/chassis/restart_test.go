package chassis_test

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/chassis"
	"github.com/plumbline/plumbline/integration/traffic"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

// TestConnections: every segment of a TCP connection is marked, from the first on, and a
// connection to another port is not.
func TestConnections(t *testing.T) {
	b := newBench(t)
	b.enforce(object("a", 1, "{dscp: 34, classifier: {ports: [{protocol: TCP, port: 8080}]}}"))
	for _, address := range []string{b.server.IPv4, b.server.IPv6} {
		for port, want := range map[uint16]uint8{8080: 34, 8081: 0} {
			b.exchange(net.JoinHostPort(address, fmt.Sprint(port)))
			end := b.send(b.sender, traffic.Packet(address, qos.UDP, 9), 0, 64)
			segments := 0
			for {
				p, err := b.receiver.Next(20 * time.Second)
				b.ok(err)
				if p.Number == end {
					break
				}
				if p.Protocol == qos.TCP && p.Port == port {
					segments++
					if p.Class>>2 != want {
						t.Errorf("segment %d to %s, port %d: DSCP %d, want %d", segments, address, port, p.Class>>2, want)
					}
				}
			}
			if segments < 4 { // a connection, its data and its end
				t.Errorf("%d segments to %s, port %d", segments, address, port)
			}
		}
	}
}

// exchange sends data over a connection from the source to the server, which sends it back.
func (b *bench) exchange(address string) {
	b.Helper()
	var listener net.Listener
	var conn net.Conn
	b.ok(kernel.Within(b.server.Netns, func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	}))
	defer listener.Close()
	served := make(chan error, 1)
	go func() {
		in, err := listener.Accept()
		if err == nil {
			_, err = io.Copy(in, in)
			in.Close()
		}
		served <- err
	}()
	b.ok(kernel.Within(b.source.Netns, func() (err error) {
		conn, err = net.DialTimeout("tcp", address, 20*time.Second)
		return err
	}))
	defer conn.Close()
	b.ok(conn.SetDeadline(time.Now().Add(20 * time.Second)))
	data := make([]byte, 32<<10)
	_, err := conn.Write(data)
	b.ok(err)
	b.ok(conn.(*net.TCPConn).CloseWrite())
	back, err := io.ReadAll(conn)
	b.ok(err)
	b.ok(<-served)
	if len(back) != len(data) {
		b.Fatalf("%d bytes came back of %d", len(back), len(data))
	}
}

// TestRestarts: programs of OVN and Open vSwitch crash and start again, and packets are marked as
// before.
func TestRestarts(t *testing.T) {
	b := newBench(t)
	decide := b.enforce(object("a", 1, "{dscp: 46}", "{dscp: 10, classifier: {to: [{ipBlock: {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: '2001:db8:1::/48'}}]}}"))
	probe := traffic.Packet(b.server.IPv4, qos.UDP, 9)
	b.marks(b.sender, b.receiver, packets(), decide)
	for _, name := range []string{chassis.Controller, chassis.VSwitch, chassis.Northd, chassis.Database} {
		t.Run(name, func(t *testing.T) {
			b := b.in(t)
			stop := make(chan struct{})
			var sending sync.WaitGroup
			sending.Go(func() { // meanwhile
				for {
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
						if _, err := b.sender.Send(probe, 0, 64); err != nil {
							t.Error(err)
							return
						}
					}
				}
			})
			err := b.chassis.Restart(t.Context(), name)
			if err == nil {
				err = b.chassis.Sync(t.Context())
			}
			close(stop)
			sending.Wait()
			b.ok(err)
			first := *b.sent
			arrived, unmarked := 0, 0
			b.ok(chassis.Eventually(t.Context(), "packets pass", func() error {
				b.send(b.sender, probe, 0, 64)
				for {
					p, err := b.receiver.Next(time.Second)
					switch {
					case err != nil || p.Number > first:
						return err
					case p.Number > 0:
						arrived++
						if p.Class != 46<<2 {
							unmarked++
						}
					}
				}
			}))
			t.Logf("meanwhile %d packets arrived, %d of them unmarked", arrived, unmarked)
			b.marks(b.sender, b.receiver, packets(), decide)
		})
	}
}
