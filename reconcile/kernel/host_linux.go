package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/netns"
	"github.com/plumbline/plumbline/topology/fault"
)

// Options say where the host is found. The zero value is this machine.
type Options struct {
	// Netns is the path of the namespace that counts as the host's; the one of
	// the process when empty.
	Netns string
	// Sysfs is where sysfs is mounted; /sys when empty. It shows the network
	// devices of the namespace it was mounted in, which must be the host's.
	Sysfs string
	// Proc is where procfs is mounted; /proc when empty.
	Proc string
	// Bounds are how much is read of a sandbox.
	Bounds Bounds
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Disturb, for tests, is called before each message is sent, and again when it was
	// answered. An error it returns replaces the kernel's. It may be called from several
	// goroutines.
	Disturb func(Message) error
	// Searching, unless it is nil, is called once, when the links on a device cannot be
	// queried with one call and are searched for instead, with the reason. It must not
	// block.
	Searching func(why error)
}

// Message is a request of a sandbox to the kernel, as Options.Disturb sees it:
// one to rtnetlink or ethtool, or the reading or writing of a sysctl.
type Message struct {
	Write bool // it changes something
	// Answered: the kernel has done it, and only its answer can be lost.
	Answered bool
}

// Host is the host's side of all sandboxes: its network namespace, its sysfs and
// its boot. It is safe for concurrent use.
type Host struct {
	socket  *socket
	own     ownNetns
	buffers *sync.Pool // for all sockets
	sysfs   sysfs
	proc    string
	bootID  string
	bounds  Bounds
	disturb func(Message) error // may be nil
	// searching is Options.Searching, once.
	searching func(why error)

	mu sync.Mutex
	// Where functions were found last. Each use checks whether that still holds.
	vfAddresses map[string]vfAddress // of virtual functions
	indexes     map[string]int       // of the links of physical functions
	lacp        lacpPorts
	rdma        *rdmaLinks
	rdmaReads   rdmaReads
	away        scratch    // zero until it is needed
	upper       upperProbe // zero until it is needed

	nat    sync.Mutex             // see withNAT
	ports  tableCache[portState]  // under nat
	guards tableCache[guardState] // under nat
}

// Open opens the host's side.
func Open(o Options) (*Host, error) {
	o.Sysfs = cmp.Or(o.Sysfs, "/sys")
	o.Proc = cmp.Or(o.Proc, "/proc")
	if o.Netns == "" {
		o.Netns = filepath.Join(o.Proc, "thread-self/ns/net")
	}
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the default of the value that callers give
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id") // not o.Proc, of which only sys/net need be there
	if err != nil {
		return nil, fmt.Errorf("open host: boot id: %w", err)
	}
	ns, err := netns.Open(o.Netns)
	if err != nil {
		return nil, fmt.Errorf("open host: %w", err)
	}
	h, err := openOwnNetns()
	if err != nil {
		ns.Close()
		return nil, fmt.Errorf("open host: %w", err)
	}
	buffers := newBuffers()
	s, err := openSocket(ns, h, buffers)
	if err != nil {
		return nil, fmt.Errorf("open host: %w", err)
	}
	var once sync.Once
	searching := func(why error) {
		if o.Searching != nil {
			once.Do(func() { o.Searching(why) })
		}
	}
	return &Host{
		searching:   searching,
		socket:      s,
		own:         h,
		buffers:     buffers,
		sysfs:       sysfs{o.Sysfs},
		proc:        o.Proc,
		bootID:      strings.TrimSpace(string(boot)),
		bounds:      o.Bounds.withDefaults(),
		disturb:     o.Disturb,
		vfAddresses: map[string]vfAddress{},
		indexes:     map[string]int{},
		lacp:        lacpPorts{now: o.Now, of: map[string]agreement{}},
		rdma:        newRDMALinks(),
	}, nil
}

// known returns what m caches of a function.
func known[T any](h *Host, m map[string]T, id string) (T, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := m[id]
	return v, ok
}

func note[T any](h *Host, m map[string]T, id string, v T) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m[id] = v
}

// BootID identifies this boot of the machine.
func (h *Host) BootID() string { return h.bootID }

// NetnsID identifies the host's network namespace.
func (h *Host) NetnsID() reconcile.NetnsID { return h.socket.id }

// Close releases the host's side. Sandboxes opened from it must be closed first.
func (h *Host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(h.socket.close(), h.away.close(), h.upper.close())
}

// Sandbox opens the view of the namespace at path. A path that is missing or no
// namespace any more is an error of kind Gone; the host's own namespace is
// refused with Conflict, for a stale /proc/PID path once deconfigured a host
// (containernetworking/plugins issue 714).
func (h *Host) Sandbox(path string) (*Sandbox, error) {
	ns, err := netns.Open(path)
	if err != nil {
		return nil, err
	}
	s, err := openSocket(ns, h.own, h.buffers)
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", path, err)
	}
	if netns.Same(s.id, h.socket.id) {
		s.close()
		return nil, fault.New(fault.Conflict, fmt.Errorf("%q is the host's own network namespace, not a sandbox", path))
	}
	return h.view(s), nil
}

// WithoutSandbox is the view that remains when the namespace is gone: the
// sandbox is empty in it, the host's objects are there.
func (h *Host) WithoutSandbox() *Sandbox { return h.view(nil) }

func (h *Host) view(s *socket) *Sandbox {
	out := &Sandbox{
		host: h, indexes: map[string]int{}, uppers: map[int]map[string]string{}, restored: map[int]map[string]string{},
		left: map[string]bool{}, nsids: map[*conn]int32{}, cache: newCache(),
	}
	out.count.disturb = h.disturb
	out.outside = &conn{h.socket, &out.count, true, h.bounds, h.proc}
	if s != nil {
		out.inside = &conn{socket: s, count: &out.count, bounds: h.bounds}
	}
	return out
}
