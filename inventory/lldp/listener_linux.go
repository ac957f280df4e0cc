package lldp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/plumbline/plumbline/inventory"
)

// etherType is that of LLDP, and nearest the group address "nearest bridge": no bridge
// forwards it, so whoever sends it is at the other end of the wire.
const etherType = 0x88cc

var nearest = net.HardwareAddr{0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e}

const (
	maxPorts    = 128
	maxFrame    = 1600    // of a port with a larger MTU, too: what is cut off is refused
	queueBytes  = 1 << 14 // of frames that wait in the kernel; it drops more
	framesEach  = 200 * time.Millisecond
	framesBurst = 10
)

// Listener listens on ports of the host. It needs CAP_NET_RAW.
type Listener struct {
	now     func() time.Time
	changed func()

	mu    sync.Mutex
	table Table
	open  map[string]*socket // by interface
	// own are the addresses of each port and of its virtual functions: a card may give a
	// PF what one of them has sent, its own frames too.
	own map[string][]string
}

// socket listens on one port.
type socket struct {
	index int // of the interface: another one may take the name
	conn  *packet.Conn
	stop  context.CancelFunc
	ended bool
}

// NewListener returns a Listener that follows no port yet. changed is called when another
// neighbour is known; it must not block.
func NewListener(now func() time.Time, changed func()) *Listener {
	return &Listener{now: now, changed: changed, open: map[string]*socket{}}
}

// Seed is Table.Seed.
func (l *Listener) Seed(port string, n inventory.Neighbour) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.table.Seed(port, n, l.now())
}

// Follow listens on the Ethernet ports among the devices that are set up, and on no other.
// It sets none up, and makes none promiscuous.
func (l *Listener) Follow(devices []inventory.Device) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	carrier := map[string]bool{}
	l.own = map[string][]string{}
	for _, d := range devices {
		l.own[portOf(d)] = append(l.own[portOf(d)], d.MAC)
		if (d.Kind == inventory.KindPF || d.Kind == inventory.KindNIC) && d.LinkType == inventory.Ethernet && d.DevType == "" && d.IfName != "" && d.Up && len(carrier) < maxPorts {
			carrier[d.IfName] = d.Carrier
		}
	}
	l.table.Follow(carrier, l.now())
	var errs []error
	for name, s := range l.open {
		if _, ok := carrier[name]; !ok || s.ended {
			l.close(name)
		}
	}
	for name := range carrier {
		if err := l.listen(name); err != nil {
			errs = append(errs, fmt.Errorf("listen for LLDP on %q: %w", name, err))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return len(a.Error()) - len(b.Error()) })
	return errors.Join(errs[:min(len(errs), 1)]...) // they have one cause as a rule
}

// Mark sets the known neighbour of each device. A virtual function has that of its PF.
func (l *Listener) Mark(devices []inventory.Device) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for i, d := range devices {
		if port := portOf(d); port != "" {
			devices[i].Neighbour = l.table.Known(port, now)
		}
	}
}

// portOf is the interface that is at the device's wire.
func portOf(d inventory.Device) string {
	if d.PF != nil {
		return d.PF.IfName
	}
	return d.IfName
}

// Close stops listening.
func (l *Listener) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.open {
		l.close(name)
	}
}

func (l *Listener) close(name string) {
	s := l.open[name]
	s.stop()
	_ = s.conn.Close() // the socket sends nothing, so no data is lost
	delete(l.open, name)
}

func (l *Listener) listen(name string) error {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	if s := l.open[name]; s != nil {
		if s.index == ifi.Index {
			return nil
		}
		l.close(name)
	}
	conn, err := packet.Listen(ifi, packet.Datagram, etherType, nil)
	if err != nil {
		return err
	}
	if err := errors.Join(limit(conn), conn.JoinGroup(nearest)); err != nil {
		return errors.Join(err, conn.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &socket{index: ifi.Index, conn: conn, stop: stop}
	l.open[name] = s
	go l.read(ctx, name, s)
	return nil
}

// limit bounds the receive queue in the kernel.
func limit(conn *packet.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, queueBytes)
	})
	return errors.Join(err, set)
}

// read takes frames until the socket is closed or fails, as when the link is set down. Then
// Follow opens another one. More frames than a few a second are left to the kernel to drop.
func (l *Listener) read(ctx context.Context, name string, s *socket) {
	defer func() {
		l.mu.Lock()
		s.ended = true
		l.mu.Unlock()
	}()
	pace := rate.NewLimiter(rate.Every(framesEach), framesBurst)
	b := make([]byte, maxFrame)
	for pace.Wait(ctx) == nil {
		n, from, err := s.conn.ReadFrom(b)
		if err != nil {
			return
		}
		sender, ok := from.(*packet.Addr)
		if !ok {
			return
		}
		f, err := Decode(sender.HardwareAddr, b[:n])
		if err != nil {
			continue // whatever was sent
		}
		l.mu.Lock()
		changed := l.open[name] == s && !slices.Contains(l.own[name], sender.HardwareAddr.String()) && l.table.Heard(name, f, l.now())
		l.mu.Unlock()
		if changed {
			l.changed()
		}
	}
}
