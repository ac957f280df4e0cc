package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/netns"
	"github.com/plumbline/plumbline/reconcile/ports"
)

// Constants of include/uapi/rdma/rdma_netlink.h that package nl lacks, and the state of a port
// that can be used (enum ib_port_state).
const (
	rdmaPortGet    = 5  // RDMA_NLDEV_CMD_PORT_GET
	rdmaNetdev     = 50 // RDMA_NLDEV_ATTR_NDEV_INDEX
	rdmaPortActive = 4  // IB_PORT_ACTIVE
)

const (
	// rdmaDevices bounds how many RDMA devices are read to find those on links of the host. The owner
	// of a namespace can make more of them, of type rxe, on links of its own.
	rdmaDevices = 1024
	// rdmaListTimeout bounds the time for that.
	rdmaListTimeout = 2 * time.Second
	// rdmaKnown bounds what is remembered.
	rdmaKnown = 4096
	// The driver of a card may ask its firmware for the state of a port, in the call that sends the
	// message: no deadline ends that. mlx5 waits a minute for its firmware (MLX5_TO_CMD_MS in the
	// driver's lib/tout.c). rdmaPatience is how long a read waits, rdmaAsking how many namespaces are
	// asked about at the same time, rdmaTimeout after which time no more is asked about one of them. One that has
	// not been answered after rdmaSilence is reported.
	rdmaPatience = 200 * time.Millisecond
	rdmaAsking   = 32
	rdmaTimeout  = time.Minute
	rdmaSilence  = 10 * time.Second
)

// rdmaLinks remembers which RDMA port belongs to a link of a namespace, and its state. To find one
// takes a message for each RDMA device of the host; to read it takes one.
type rdmaLinks struct {
	mu     sync.Mutex
	asking map[reconcile.NetnsID]bool
	late   map[reconcile.NetnsID]bool // whose last answer came too late
	silent map[reconcile.NetnsID]bool // asked about for longer than rdmaSilence
	of     map[rdmaLink]knownRDMAPort
}

func newRDMALinks() *rdmaLinks {
	return &rdmaLinks{
		asking: map[reconcile.NetnsID]bool{}, late: map[reconcile.NetnsID]bool{}, silent: map[reconcile.NetnsID]bool{},
		of: map[rdmaLink]knownRDMAPort{},
	}
}

// rdmaLink is the link of a device. Another device may get the index of a link that is gone.
type rdmaLink struct {
	netns  reconcile.NetnsID
	index  int
	device string // its ID
}

// rdmaPort is a port of an RDMA device.
type rdmaPort struct{ device, port uint32 }

// knownRDMAPort is a port with the name of its RDMA device and its last known state.
type knownRDMAPort struct {
	rdmaPort
	name   string
	active bool
}

// foundRDMAPort is a port with the index of the link it is on.
type foundRDMAPort struct {
	knownRDMAPort
	link int
}

// RDMAPorts adds the RDMA ports that belong to devices to their states: those of an RDMA device of
// the same hardware. One in software is not read: it ends when its link is moved to a pod, so
// it would be one that the pod has made. There is no error: without an answer in time, the state is
// the last one that is known, and nil before there is one.
func (h *Host) RDMAPorts(ctx context.Context, path string, id reconcile.NetnsID, of []ports.Port, states []ports.State) {
	names := map[rdmaLink][]string{} // of the RDMA devices that may be on a link
	for i, p := range of {
		if states[i].Found && p.Device != "" {
			if n := h.sysfs.rdmaDevices(netstate.Device{ID: p.Device, Parent: p.Parent}); len(n) > 0 {
				names[rdmaLink{id, p.Index, p.Device}] = n
			}
		}
	}
	// Only then is there a socket: to open one without the module would load it.
	if len(names) == 0 || id == (reconcile.NetnsID{}) {
		return
	}
	h.rdma.ask(ctx, id, func(ctx context.Context) { h.askRDMA(ctx, path, id, names) })
	for i, p := range of {
		link := rdmaLink{id, p.Index, p.Device}
		// sysfs answers at once: what was known of an RDMA device that is gone counts no more.
		if known, ok := h.rdma.get(link); ok && slices.Contains(names[link], known.name) {
			states[i].RDMA = &ports.RDMAPort{Active: known.active}
		}
	}
}

// ask calls f, and waits for it for a short time, or not at all if the last call for the namespace took longer. It does
// not call f while an earlier call for the namespace, or too many calls for others, have not returned.
func (r *rdmaLinks) ask(ctx context.Context, id reconcile.NetnsID, f func(context.Context)) {
	r.mu.Lock()
	late := r.late[id]
	if r.asking[id] || len(r.asking) >= rdmaAsking {
		r.mu.Unlock()
		return
	}
	r.asking[id] = true
	r.mu.Unlock()
	done, tooLate := make(chan struct{}), make(chan struct{})
	patience := time.AfterFunc(rdmaPatience, func() { close(tooLate) })
	silence := time.AfterFunc(rdmaSilence, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.asking[id] {
			r.silent[id] = true
		}
	})
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), rdmaTimeout) // the next read uses a late answer
	go func() {
		defer close(done)
		defer cancel()
		f(limited)
		r.mu.Lock()
		defer r.mu.Unlock()
		silence.Stop()
		delete(r.asking, id)
		delete(r.silent, id)
		delete(r.late, id)
		if !patience.Stop() {
			if len(r.late) >= rdmaKnown {
				clear(r.late)
			}
			r.late[id] = true
		}
	}()
	if late {
		return
	}
	select {
	case <-done:
	case <-tooLate:
	case <-ctx.Done():
	}
}

// askRDMA reads the ports of links, which may be of the RDMA devices with these names.
func (h *Host) askRDMA(ctx context.Context, path string, id reconcile.NetnsID, names map[rdmaLink][]string) {
	ns, err := netns.Open(path)
	if err != nil {
		return
	}
	c, err := h.dialRDMA(ns)
	if err != nil {
		return
	}
	defer c.close()
	if !netns.Same(c.id, id) {
		return
	}
	sought := map[string]bool{}
	for link, devices := range names {
		if known, ok := h.rdma.get(link); ok && slices.Contains(devices, known.name) {
			on, active, err := c.rdmaPort(ctx, known.rdmaPort)
			switch {
			case err == nil && on == link.index:
				known.active = active
				h.rdma.put(link, known)
				continue
			case err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENODEV):
				continue // that is the driver's, not that there is no such port
			}
		}
		h.rdma.forget(link)
		for _, name := range devices {
			sought[name] = true
		}
	}
	if len(sought) == 0 {
		return
	}
	found, _ := c.rdmaPorts(ctx, sought)
	for _, p := range found {
		for link, devices := range names {
			if link.index == p.link && slices.Contains(devices, p.name) {
				h.rdma.put(link, p.knownRDMAPort)
			}
		}
	}
}

// dialRDMA opens a socket in a namespace. It takes over ns.
func (h *Host) dialRDMA(ns *os.File) (*conn, error) {
	s := &socket{ns: ns, own: h.own, buffers: h.buffers, fd: -1, protocol: unix.NETLINK_RDMA}
	err := s.dial()
	if err == nil {
		s.id, err = netns.IdentifyBy(ns, s.fd)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return &conn{socket: s, count: &counters{disturb: h.disturb}}, nil
}

// RDMANetdevs returns which link of the host each of the named RDMA devices is on, by its name.
// The kernel reports the link of a port only to the link's namespace, so a device that a pod
// has made is not among them, whatever its link is called. With an error they may not be all.
func (h *Host) RDMANetdevs(ctx context.Context, names []string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, rdmaListTimeout)
	defer cancel()
	fd, err := unix.FcntlInt(h.socket.ns.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("network namespace of the host: %w", err)
	}
	c, err := h.dialRDMA(os.NewFile(uintptr(fd), h.socket.ns.Name()))
	if err != nil {
		return nil, err
	}
	defer c.close()
	sought := map[string]bool{}
	for _, name := range names {
		sought[name] = true
	}
	all, listed := c.rdmaPorts(ctx, sought)
	if listed != nil {
		listed = fmt.Errorf("list RDMA devices: %w", listed)
	}
	out := map[string]string{}
	links := h.WithoutSandbox()
	for _, p := range all {
		w, err := links.outside.linkByIndex(ctx, p.link)
		if errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return out, errors.Join(listed, fmt.Errorf("link of RDMA device %q: %w", p.name, err))
		}
		out[p.name] = netstate.BaseName(w.link.Name)
	}
	return out, listed
}

// LostNodes returns the given device nodes that no longer belong to the device, or to the software RDMA device named rdma.
func (h *Host) LostNodes(device, rdma string, nodes []string) []string {
	return h.sysfs.lostNodes(device, rdma, nodes)
}

// SilentRDMA returns the number of network namespaces with an RDMA driver that has not answered for ten seconds. Their ports keep
// the last known state.
func (h *Host) SilentRDMA() int { return h.rdma.silence() }

func (r *rdmaLinks) silence() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.silent)
}

func (r *rdmaLinks) get(link rdmaLink) (knownRDMAPort, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.of[link]
	return p, ok
}

func (r *rdmaLinks) put(link rdmaLink, p knownRDMAPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.of) >= rdmaKnown {
		clear(r.of)
	}
	r.of[link] = p
}

func (r *rdmaLinks) forget(link rdmaLink) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, link)
}

func rdmaType(command int) int { return nl.RDMA_NL_NLDEV<<nl.RDMA_NL_GET_CLIENT_SHIFT | command }

// rdmaPorts lists the ports of RDMA devices with these names that are on links in the namespace. The
// kernel reports the link of a port only to the link's namespace (nldev.c, fill_port_info). Only that
// calls the driver, so only these devices are asked. With an error, the ports are not all.
func (c *conn) rdmaPorts(ctx context.Context, names map[string]bool) ([]foundRDMAPort, error) {
	type device struct {
		index uint32
		name  string
	}
	var devices []device
	err := c.eachRDMADevice(ctx, func(index uint32, name string, _ []byte) {
		if names[name] && len(devices) < rdmaDevices {
			devices = append(devices, device{index, name})
		}
	})
	if err != nil {
		return nil, err
	}
	var out []foundRDMAPort
	typ := rdmaType(rdmaPortGet)
	for _, d := range devices {
		all, err := c.collect(ctx, typ, unix.NLM_F_DUMP,
			[]nl.NetlinkRequestData{attr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, nl.Uint32Attr(d.index))}, uint16(typ))
		if ctx.Err() != nil {
			return out, err
		}
		for _, b := range all { // none of a device that was removed meanwhile
			if at, link, active := decodeRDMAPort(b); link != 0 {
				out = append(out, foundRDMAPort{knownRDMAPort{at, d.name, active}, link})
			}
		}
	}
	return out, nil
}

// eachRDMADevice passes on the RDMA devices that can be seen in a namespace, with their messages.
func (c *conn) eachRDMADevice(ctx context.Context, take func(index uint32, name string, message []byte)) error {
	typ := rdmaType(nl.RDMA_NLDEV_CMD_GET)
	return c.send(ctx, typ, unix.NLM_F_DUMP, nil, uint16(typ), func(b []byte) error {
		if index := attribute(b, nl.RDMA_NLDEV_ATTR_DEV_INDEX); index != nil {
			take(u32(index), text(attribute(b, nl.RDMA_NLDEV_ATTR_DEV_NAME)), b)
		}
		return nil
	})
}

// rdmaPort reads one port.
func (c *conn) rdmaPort(ctx context.Context, at rdmaPort) (link int, active bool, err error) {
	// The answer has the type of another command (nldev.c, nldev_port_get_doit).
	b, err := c.get(ctx, rdmaType(rdmaPortGet), 0,
		attr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, nl.Uint32Attr(at.device)), attr(nl.RDMA_NLDEV_ATTR_PORT_INDEX, nl.Uint32Attr(at.port)))
	if err != nil {
		return 0, false, err
	}
	_, link, active = decodeRDMAPort(b)
	return link, active, nil
}

func decodeRDMAPort(b []byte) (at rdmaPort, link int, active bool) {
	at = rdmaPort{u32(attribute(b, nl.RDMA_NLDEV_ATTR_DEV_INDEX)), u32(attribute(b, nl.RDMA_NLDEV_ATTR_PORT_INDEX))}
	return at, int(u32(attribute(b, rdmaNetdev))), u8(attribute(b, nl.RDMA_NLDEV_ATTR_PORT_STATE)) == rdmaPortActive
}
