package kernel_test

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/qos"
)

// TestFragments: a datagram that is sent in fragments is limited by each rule that may be about its port, which its
// fragments do not have for the kernel, not even the first; and all fragments have one mark, that of the rule that decides
// without a port.
func TestFragments(t *testing.T) {
	const (
		whole, divided = 64, 3000
		strict         = "bandwidth: {rate: 1, burst: 24}" // two fragments of 1500 bytes
	)
	anything := "{dscp: 5}"
	port := func(dscp, port, bandwidth string) string {
		return "{dscp: " + dscp + ", " + bandwidth + " classifier: {ports: [{protocol: UDP, port: " + port + "}]}}"
	}
	for name, tt := range map[string]struct {
		objects string
		limited map[int]bool  // by size
		class   map[int]uint8 // DSCP, by size
	}{
		"a limit of a port":       {object("a", 1, anything, port("10", "9", strict+",")), map[int]bool{divided: true, whole: true}, map[int]uint8{whole: 10, divided: 5}},
		"a limit of another port": {object("a", 1, anything, port("10", "80", strict+",")), map[int]bool{divided: true}, map[int]uint8{whole: 5, divided: 5}},
		"a port without a limit":  {object("a", 1, "{dscp: 5, "+strict+"}", port("10", "9", "")), map[int]bool{divided: true}, map[int]uint8{whole: 10, divided: 5}},
		"the strictest":           {object("a", 1, anything, port("11", "80", strict+","), port("10", "9", "bandwidth: {rate: 1000000},")), map[int]bool{divided: true}, map[int]uint8{whole: 10, divided: 5}},
		"decided before":          {object("a", 1, port("10", "9", strict+","), anything), nil, map[int]uint8{whole: 5, divided: 5}},
		"another protocol":        {object("a", 1, anything, "{dscp: 10, "+strict+", classifier: {ports: [{protocol: TCP, port: 9}]}}"), nil, map[int]uint8{whole: 5, divided: 5}},
		"another destination":     {object("a", 1, anything, "{dscp: 10, "+strict+", classifier: {to: [{ipBlock: {cidr: 203.0.113.0/24}}], ports: [{protocol: UDP, port: 9}]}}"), nil, map[int]uint8{whole: 5, divided: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWired(t)
			filters, _ := w.enforce(tt.objects)
			for _, f := range filters {
				w.holds(f)
			}
			for _, to := range []string{"198.51.100.7", "2001:db8:1::7"} {
				for _, size := range []int{divided, whole} {
					p := qos.Packet{Destination: netip.MustParseAddr(to), Protocol: qos.UDP, Port: 9}
					fd := w.sender(p, 0)
					defer unix.Close(fd)
					began, sent := time.Now(), 0 // few enough for the buffer of the socket
					for range 10 {
						w.send(fd, p, size)
						sent += max(1, (size+1480-1)/1480)
					}
					// Protocol 253 has no rule of a port, and marks the end.
					end := w.one(qos.Packet{Destination: netip.MustParseAddr("192.0.2.77"), Protocol: 253}, 0)
					n, bytes, classes := w.arrived(t, end)
					switch most := 3000 + int(time.Since(began).Seconds()*125) + 1500; {
					case tt.limited[size] && bytes > most:
						t.Errorf("%d bytes to %s: %d bytes in %d packets arrive, want at most %d", size, to, bytes, n, most)
					case !tt.limited[size] && n != sent:
						t.Errorf("%d bytes to %s: %d packets of %d arrive", size, to, n, sent)
					}
					if want := map[uint8]bool{tt.class[size]: true}; n > 0 && !maps.Equal(classes, want) {
						t.Errorf("%d bytes to %s: marked %v, want %v", size, to, classes, want)
					}
				}
			}
		})
	}
}

// arrived counts the UDP packets and fragments that arrive up to the packet with a number, their bytes and their codepoints.
func (w *wired) arrived(t *testing.T, end uint32) (packets, bytes int, classes map[uint8]bool) {
	t.Helper()
	classes = map[uint8]bool{}
	b := make([]byte, 64<<10)
	for {
		n, from, err := unix.Recvfrom(w.capture, b, 0)
		if err != nil {
			t.Fatalf("packet %d does not arrive: %v", end, err)
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype == unix.PACKET_OUTGOING || n < 28 {
			continue
		}
		head, protocol, class := 20, b[9], b[1]>>2
		if b[0]>>4 == 6 {
			head, protocol, class = 40, b[6], (b[0]<<4|b[1]>>4)>>2
			if protocol == unix.IPPROTO_FRAGMENT {
				protocol = b[40]
			}
		}
		switch {
		case protocol == 253 && n >= head+28 && binary.BigEndian.Uint32(b[head+24:]) == end:
			return packets, bytes, classes
		case protocol == unix.IPPROTO_UDP:
			packets, bytes = packets+1, bytes+n
			classes[class] = true
		}
	}
}
