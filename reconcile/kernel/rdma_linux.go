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
	"golang.org/x/time/rate"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/netns"
	"github.com/plumbline/plumbline/reconcile/ports"
)

// What package nl does not have of include/uapi/rdma/rdma_netlink.h, and the state of a port
// that can be used (enum ib_port_state).
const (
	rdmaPortGet    = 5  // RDMA_NLDEV_CMD_PORT_GET
	rdmaNetdev     = 50 // RDMA_NLDEV_ATTR_NDEV_INDEX
	rdmaPortActive = 4  // IB_PORT_ACTIVE
)

const (
	// rdmaDevices bounds how many RDMA devices are read to find those of a sandbox. The owner
	// of a namespace can make more of them, of type rxe, on links of its own.
	rdmaDevices = 1024
	// rdmaKnown bounds what is remembered.
	rdmaKnown = 4096
	// rdmaListsPerSecond and rdmaListsBurst limit how often the devices are read because
	// devices were added or removed. The owner of a namespace can do that all the time, with
	// devices on links of its own, and each sandbox with a link without a port would read all
	// of them.
	rdmaListsPerSecond = 2
	rdmaListsBurst     = 20
)

// rdmaLinks remembers which RDMA port belongs to a link of a namespace. To find one takes a
// message for each RDMA device of the host; to confirm it takes one.
type rdmaLinks struct {
	now   func() time.Time
	lists *rate.Limiter

	mu    sync.Mutex
	names []string // of the devices it is about
	round uint64   // counts how often they have changed
	of    map[rdmaLink]foundRDMA
}

// foundRDMA is the result of a search, and the round in which it was made.
type foundRDMA struct {
	rdmaPort
	round uint64
}

func newRDMALinks(now func() time.Time) *rdmaLinks {
	return &rdmaLinks{now: now, lists: rate.NewLimiter(rdmaListsPerSecond, rdmaListsBurst), of: map[rdmaLink]foundRDMA{}}
}

type rdmaLink struct {
	netns reconcile.NetnsID
	index int
}

// rdmaPort is the port of an RDMA device; the zero value is none.
type rdmaPort struct{ device, port uint32 }

// namedRDMAPort is a port with the name of its device.
type namedRDMAPort struct {
	rdmaPort
	name string
}

// readRDMA adds the state of the RDMA ports that belong to devices. It returns no error: without
// an answer the state is unknown, and that of the link is reported.
func (h *Host) readRDMA(ctx context.Context, path string, id reconcile.NetnsID, of []ports.Port, states []ports.State) {
	// Only then is there a socket: to open one without the module would load it.
	names := h.sysfs.rdmaDevices()
	candidate := func(i int) bool { return states[i].Found && of[i].Device != "" }
	if len(names) == 0 || !slices.ContainsFunc(indexes(states), candidate) {
		return
	}
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
	var found map[int]namedRDMAPort // by link
	for i := range states {
		if !candidate(i) {
			continue
		}
		link := rdmaLink{id, of[i].Index}
		at, known := h.rdma.get(names, link)
		if !known {
			if found == nil {
				if found, err = c.rdmaPorts(ctx); err != nil {
					return
				}
			}
			at = found[link.index].rdmaPort
			h.rdma.put(link, at)
		}
		if at == (rdmaPort{}) {
			continue
		}
		index, active, err := c.rdmaPort(ctx, at)
		if err != nil || index != link.index {
			h.rdma.forget(link)
			continue
		}
		states[i].RDMA = &ports.RDMAPort{Active: active}
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

// RDMANetdevs returns which link of the host each RDMA device is on, by the device's name.
// The kernel reports the link of a port only to the link's namespace, so a device that a pod
// has made is not among them, whatever its link is called.
func (h *Host) RDMANetdevs(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	if len(h.sysfs.rdmaDevices()) == 0 {
		return out, nil
	}
	fd, err := unix.FcntlInt(h.socket.ns.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("network namespace of the host: %w", err)
	}
	c, err := h.dialRDMA(os.NewFile(uintptr(fd), h.socket.ns.Name()))
	if err != nil {
		return nil, err
	}
	defer c.close()
	all, err := c.rdmaPorts(ctx)
	if err != nil {
		return nil, fmt.Errorf("list RDMA devices: %w", err)
	}
	links := h.WithoutSandbox()
	for index, at := range all {
		w, err := links.outside.linkByIndex(ctx, index)
		if errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("link of RDMA device %q: %w", at.name, err)
		}
		out[at.name] = netstate.BaseName(w.link.Name)
	}
	return out, nil
}

func indexes(states []ports.State) []int {
	out := make([]int, len(states))
	for i := range states {
		out[i] = i
	}
	return out
}

// get returns what is known of a link. A port is confirmed whenever it is read, so it remains
// known when RDMA devices were added or removed. That a link has none has to be found out
// again then, at a limited rate.
func (r *rdmaLinks) get(names []string, link rdmaLink) (rdmaPort, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(names, r.names) {
		r.names = names
		r.round++
	}
	if len(r.of) >= rdmaKnown {
		r.of = map[rdmaLink]foundRDMA{}
	}
	p, ok := r.of[link]
	if ok && p.rdmaPort == (rdmaPort{}) && p.round != r.round {
		ok = !r.lists.AllowN(r.now(), 1)
	}
	return p.rdmaPort, ok
}

func (r *rdmaLinks) put(link rdmaLink, p rdmaPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of[link] = foundRDMA{p, r.round}
}

func (r *rdmaLinks) forget(link rdmaLink) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, link)
}

func rdmaType(command int) int { return nl.RDMA_NL_NLDEV<<nl.RDMA_NL_GET_CLIENT_SHIFT | command }

// rdmaPorts lists the RDMA ports of links in the namespace, by link. The kernel reports the link
// of a port only to the link's namespace (nldev.c, fill_port_info).
func (c *conn) rdmaPorts(ctx context.Context) (map[int]namedRDMAPort, error) {
	typ := rdmaType(nl.RDMA_NLDEV_CMD_GET)
	devices, err := c.collect(ctx, typ, unix.NLM_F_DUMP, nil, uint16(typ))
	if err != nil {
		return nil, err
	}
	out := map[int]namedRDMAPort{}
	typ = rdmaType(rdmaPortGet)
	for _, d := range devices[:min(len(devices), rdmaDevices)] {
		device, name := decodeRDMADevice(d)
		if device == nil {
			continue
		}
		all, err := c.collect(ctx, typ, unix.NLM_F_DUMP, []nl.NetlinkRequestData{attr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, nl.Uint32Attr(*device))}, uint16(typ))
		if ctx.Err() != nil {
			return nil, err
		}
		for _, b := range all { // none of a device that was removed meanwhile
			at, link, _ := decodeRDMAPort(b)
			if _, taken := out[link]; link != 0 && !taken {
				out[link] = namedRDMAPort{at, name}
			}
		}
	}
	return out, nil
}

func decodeRDMADevice(b []byte) (index *uint32, name string) {
	for typ, v := range attributes(b) {
		switch typ {
		case nl.RDMA_NLDEV_ATTR_DEV_INDEX:
			index = new(u32(v))
		case nl.RDMA_NLDEV_ATTR_DEV_NAME:
			name = text(v)
		}
	}
	return index, name
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
	for typ, v := range attributes(b) {
		switch typ {
		case nl.RDMA_NLDEV_ATTR_DEV_INDEX:
			at.device = u32(v)
		case nl.RDMA_NLDEV_ATTR_PORT_INDEX:
			at.port = u32(v)
		case nl.RDMA_NLDEV_ATTR_PORT_STATE:
			active = u8(v) == rdmaPortActive
		case rdmaNetdev:
			link = int(u32(v))
		}
	}
	return at, link, active
}
