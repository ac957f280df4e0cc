package lldp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
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

// Options configures a Listener.
type Options struct {
	Now func() time.Time
	// Changed is called when another neighbour is known; it must not block.
	Changed func()
	// Functions lists the addresses that the virtual functions of a port have, wherever their interfaces are: a card may
	// give a PF what one of them has sent. nil lists none.
	Functions func(port string) ([]string, error)
}

// Listener listens on ports of the host. It needs CAP_NET_RAW.
type Listener struct {
	Options

	mu    sync.Mutex
	table Table
	open  map[string]*socket // by interface
	// own are the addresses of each port and of its virtual functions: a card may give a
	// PF what one of them has sent, its own frames too.
	own map[string][]string
}

// socket listens on one port: with one queue in the kernel to the known neighbour, and with one to all others, so that whoever
// sends many frames takes nothing of the neighbour's queue.
type socket struct {
	index        int // of the interface: another one may take the name
	conn, others *packet.Conn
	filtered     string // what the filters select by
	stop         context.CancelFunc
	ended        bool
}

// NewListener returns a Listener that follows no port yet.
func NewListener(o Options) *Listener {
	if o.Functions == nil {
		o.Functions = func(string) ([]string, error) { return nil, nil }
	}
	return &Listener{Options: o, open: map[string]*socket{}}
}

// Seed is Table.Seed.
func (l *Listener) Seed(port string, n inventory.Neighbour) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.table.Seed(port, n, l.Now())
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
		if (d.Kind == inventory.KindPF || d.Kind == inventory.KindNIC) && d.LinkType == inventory.Ethernet && d.DevType == "" &&
			d.IfName != "" && d.Up && len(carrier) < maxPorts {
			carrier[d.IfName] = d.Carrier
		}
	}
	l.table.Follow(carrier, l.Now())
	var errs []error
	for name, s := range l.open {
		if _, ok := carrier[name]; !ok || s.ended {
			l.close(name)
		}
	}
	for name := range carrier {
		functions, err := l.Functions(name)
		if err == nil {
			l.own[name] = append(l.own[name], functions...)
			err = l.listen(name)
		}
		if err != nil {
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
	now := l.Now()
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
	_ = errors.Join(s.conn.Close(), s.others.Close()) // they send nothing, so no data is lost
	delete(l.open, name)
}

func (l *Listener) listen(name string) error {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	if s := l.open[name]; s != nil {
		if s.index == ifi.Index {
			return l.filter(name, s)
		}
		l.close(name)
	}
	conn, err := open(ifi)
	if err != nil {
		return err
	}
	others, err := open(ifi)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &socket{index: ifi.Index, conn: conn, others: others, stop: stop}
	l.open[name] = s
	if err := l.filter(name, s); err != nil {
		l.close(name)
		return err
	}
	go l.read(ctx, name, s, conn)
	go l.read(ctx, name, s, others)
	return nil
}

// open opens a socket that receives nothing until it has another filter.
func open(ifi *net.Interface) (*packet.Conn, error) {
	none := []bpf.RawInstruction{{Op: 0x06}} // ret 0
	conn, err := packet.Listen(ifi, packet.Datagram, etherType, &packet.Config{Filter: none})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(limit(conn), conn.JoinGroup(nearest)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// filter sets the filters of the sockets of a port, if they are not so. The caller has the lock.
func (l *Listener) filter(name string, s *socket) error {
	own, speaker := l.own[name], l.table.Speaker(name, l.Now())
	by := speaker + " " + strings.Join(own, " ")
	if by == s.filtered {
		return nil
	}
	for conn, program := range map[*packet.Conn][]bpf.Instruction{
		s.conn: program(own, speaker, all, 0), s.others: program(own, speaker, 0, all),
	} {
		raw, err := bpf.Assemble(program)
		if err != nil {
			return err
		}
		if err := conn.SetBPF(raw); err != nil {
			return err
		}
	}
	s.filtered = by
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
func (l *Listener) read(ctx context.Context, name string, s *socket, conn *packet.Conn) {
	defer func() {
		l.mu.Lock()
		s.ended = true
		l.mu.Unlock()
	}()
	pace := rate.NewLimiter(rate.Every(framesEach), framesBurst)
	b := make([]byte, maxFrame)
	for pace.Wait(ctx) == nil {
		n, from, err := conn.ReadFrom(b)
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
		if l.hear(name, s, sender.HardwareAddr.String(), f) {
			l.Changed()
		}
	}
}

// hear takes a frame, and reports whether another neighbour is known.
func (l *Listener) hear(name string, s *socket, sender string, f Frame) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[name] != s || slices.Contains(l.own[name], sender) {
		return false
	}
	if sender != l.table.Speaker(name, l.Now()) { // a pod may have changed the address of its function since
		functions, err := l.Functions(name)
		if err != nil || slices.Contains(functions, sender) {
			return false
		}
	}
	changed := l.table.Heard(name, f, l.Now())
	return l.filter(name, s) == nil && changed
}
