package kernel

import (
	"context"
	"errors"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// Observe dumps the sandbox's links, addresses and routes (and the VLANs of its bridges
// if it has any), and reads the given objects.
func (s *Sandbox) Observe(ctx context.Context, queried []netstate.Object) (*netstate.Snapshot, error) {
	s.withCache(func(g *observationCache) {
		addresses := g.vfAddresses // does not change as long as the function exists
		*g = newCache()
		g.vfAddresses = addresses
	})
	o := s.observer(netstate.NewSnapshot())
	var partial error
	if s.inside != nil {
		if partial = o.observe(ctx); partial != nil && !errors.Is(partial, reconcile.ErrPartial) {
			return nil, partial
		}
	}
	if err := o.query(ctx, queried); err != nil {
		return nil, err
	}
	return o.snap, partial
}

// Extend reads further objects into a snapshot. The sandbox's links, addresses
// and routes are whole in every snapshot and are not read again.
func (s *Sandbox) Extend(ctx context.Context, snap *netstate.Snapshot, queried []netstate.Object) error {
	o := s.observer(snap)
	for _, l := range netstate.All[netstate.Link](snap) {
		if !netstate.OnHost(l.Name) {
			o.names[l.Index] = l.Name
		}
	}
	return o.query(ctx, queried)
}

// observer is one observation.
type observer struct {
	*Sandbox
	snap *netstate.Snapshot
	// names holds the sandbox's links by index, hostNames those of the host that were
	// needed.
	names, hostNames map[int]string
	// functions holds the physical functions that were queried for their virtual ones.
	functions map[string]*place
	defaults  devconfDefaults
	// nodes are the character devices of the host that are no device's, and rdmaThere is whether there may be RDMA devices;
	// nil: not read.
	nodes     map[string][]string
	rdmaThere bool
}

func (s *Sandbox) observer(snap *netstate.Snapshot) *observer {
	return &observer{
		Sandbox: s, snap: snap, names: map[int]string{}, hostNames: map[int]string{}, functions: map[string]*place{},
		defaults: devconfDefaults{},
	}
}

func (o *observer) observe(ctx context.Context) error {
	links, partial := o.inside.links(ctx)
	if partial != nil && !errors.Is(partial, reconcile.ErrPartial) {
		return partial
	}
	o.mu.Lock()
	clear(o.indexes)
	o.cache.names = map[string]bool{}
	for _, w := range links {
		o.names[w.link.Index] = w.link.Name
		o.indexes[w.link.Name] = w.link.Index
		o.cache.names[w.link.Name] = true
		for _, n := range w.link.AltNames {
			o.cache.names[n] = true
		}
	}
	o.cache.links, o.cache.partial = links, partial != nil
	o.mu.Unlock()
	if partial != nil {
		o.snap.PutPartial()
		return partial
	}
	bridged := false
	for _, w := range links {
		l, err := o.resolve(ctx, o.inside, w)
		if err != nil {
			return err
		}
		bridged = bridged || l.KindTraits().PortVLANs
		o.snap.Put(l)
	}
	if err := o.addresses(ctx); err != nil {
		return err
	}
	if err := o.routes(ctx); err != nil {
		return err
	}
	if !bridged {
		return nil
	}
	return o.bridgeVLANs(ctx)
}

// resolve turns the numbers in a link into names with their place.
func (o *observer) resolve(ctx context.Context, c *conn, w ifLink) (netstate.Link, error) {
	l := w.link
	l.Name = c.name(l.Name)
	if w.hardware() {
		l.DeviceID = o.host.sysfs.deviceID(w.bus, w.parent)
	}
	l.Master = new("")
	if w.master != 0 {
		name, err := o.nameOf(ctx, c, w.master)
		if err != nil {
			return l, err
		}
		l.Master = &name
	}
	if w.primary != 0 && l.Bond != nil {
		name, err := o.nameOf(ctx, c, w.primary)
		if err != nil {
			return l, err
		}
		l.Bond.Primary = &name
	}
	kind := l.KindTraits()
	if kind.Tunnel && w.lower == 0 {
		l.Parent = new("")
	}
	if w.lower == 0 || l.LinkKind != "veth" && !kind.Stacked && !kind.Tunnel {
		return l, nil
	}
	lower, err := o.lowerName(ctx, c, w)
	if err != nil || lower == "" {
		return l, err
	}
	if l.LinkKind == "veth" {
		l.Veth = &netstate.Veth{Peer: &lower}
	} else {
		l.Parent = &lower
	}
	return l, nil
}

// lowerName names the link below w, or a veth's other end; "" when it is in a
// namespace that is none of ours.
func (o *observer) lowerName(ctx context.Context, c *conn, w ifLink) (string, error) {
	if w.lowerNS < 0 {
		return o.nameOf(ctx, c, w.lower)
	}
	other := o.other(c)
	if other == nil {
		return "", nil
	}
	id, err := o.nsid(ctx, c, other)
	if err != nil || id != w.lowerNS {
		return "", err
	}
	return o.nameOf(ctx, other, w.lower)
}

// nameOf returns the name of a link by index; "" if it no longer exists.
func (o *observer) nameOf(ctx context.Context, c *conn, index int) (string, error) {
	names := o.names
	if c.host {
		names = o.hostNames
	}
	if n, ok := names[index]; ok {
		return n, nil
	}
	w, err := c.linkByIndex(ctx, index)
	if errors.Is(err, unix.ENODEV) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	names[index] = c.name(w.link.Name)
	return names[index], nil
}

// nsid returns how the namespace c numbers the namespace other, -1 when it does not.
// The kernel assigns a number when it first needs one.
func (s *Sandbox) nsid(ctx context.Context, c, other *conn) (int32, error) {
	s.mu.Lock()
	id, ok := s.nsids[c]
	s.mu.Unlock()
	if ok {
		return id, nil
	}
	b, err := c.get(ctx, unix.RTM_GETNSID, unix.RTM_NEWNSID, body(make([]byte, 4)),
		attr(unix.NETNSA_FD, nl.Uint32Attr(uint32(other.ns.Fd()))))
	if err != nil {
		return -1, err
	}
	id = -1
	if v := attribute(b[min(4, len(b)):], unix.NETNSA_NSID); len(v) == 4 {
		id = int32(u32(v))
	}
	if id >= 0 {
		s.mu.Lock()
		s.nsids[c] = id
		s.mu.Unlock()
	}
	return id, nil
}

// readLink reads the current state of one link.
func (s *Sandbox) readLink(ctx context.Context, name string) (netstate.Link, error) {
	c, base, err := s.at(name)
	if err != nil {
		return netstate.Link{}, err
	}
	w, err := c.linkByName(ctx, base)
	if err != nil {
		return netstate.Link{}, err
	}
	l, err := s.observer(nil).resolve(ctx, c, w)
	l.Name = name // queried by an alternative name, it is listed under that
	return l, err
}

// query reads objects on demand. One that does not exist is recorded as absent.
func (o *observer) query(ctx context.Context, queried []netstate.Object) error {
	byKind := map[netstate.Kind][]netstate.Object{}
	for _, obj := range queried {
		k := obj.Key().Kind
		byKind[k] = append(byKind[k], obj)
	}
	for _, c := range codecs {
		if len(byKind[c.kind]) == 0 {
			continue
		}
		if err := c.query(o, ctx, byKind[c.kind]); err != nil {
			return err
		}
	}
	return nil
}

// queryGroups reads objects of the sandbox that the kernel lists in groups, those of each group with one call of list.
// If there are more than the bound, it uses what was read: a pod that fills its own lists must not keep a
// device from the host. Creating an object that exists is refused.
func queryGroups[T netstate.Object, G comparable](o *observer, queried []T, groupOf func(T) G,
	list func(of G, wanted func(T) bool) ([]T, error),
) error {
	wanted, groups := map[netstate.Key]bool{}, map[G]bool{}
	for _, q := range queried {
		o.snap.PutAbsent(q.Key())
		wanted[q.Key()], groups[groupOf(q)] = true, true
	}
	if o.inside == nil {
		return nil
	}
	for g := range groups {
		have, err := list(g, func(v T) bool { return wanted[v.Key()] })
		if err != nil && !errors.Is(err, reconcile.ErrPartial) {
			return reading(queried[0], err)
		}
		for _, v := range have {
			o.snap.Put(v)
		}
	}
	return nil
}

// queryLink reads a link of the host. A bridge there is read with its ports, which are
// queried by master so that the kernel does not send the other links.
func (o *observer) queryLink(ctx context.Context, queried netstate.Link) error {
	if !netstate.OnHost(queried.Name) {
		return nil // whole already, and absent when not in it
	}
	w, err := o.outside.linkByName(ctx, netstate.BaseName(queried.Name))
	if errors.Is(err, unix.ENODEV) {
		o.snap.PutAbsent(queried.Key())
		o.withCache(func(g *observationCache) { g.free[queried.Name] = true })
		return nil
	}
	if err != nil {
		return err
	}
	l, err := o.resolve(ctx, o.outside, w)
	if err != nil {
		return err
	}
	if l.Name != queried.Name { // it was found by an alternative name, and other links refer to it by its own
		o.snap.Put(l)
	}
	l.Name = queried.Name
	o.remember(l.Name, l.Index)
	if l.KindTraits().Shared {
		if l.Ports, err = o.outside.ports(ctx, l.Index); err != nil {
			return err
		}
	}
	o.snap.Put(l)
	return nil
}

// ports lists the links whose master has that index.
func (c *conn) ports(ctx context.Context, master int) ([]string, error) {
	links, err := c.links(ctx, attr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(master))))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, w := range links {
		if w.master == master {
			out = append(out, w.link.Name)
		}
	}
	slices.Sort(out)
	return out, nil
}
