package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// Devices that have no PCI address are known by this prefix and the name they
// had on the host, or are the one the host's default route goes over.
const (
	virtualPrefix = "if:"
	defaultRoute  = "default-route"
)

// place is where a device was found.
type place struct {
	c *conn
	w ifLink
}

func (p place) name() string { return p.c.name(p.w.link.Name) }

// identity returns which device a link is, "" when it is none that travels.
func (s *Sandbox) identity(w ifLink) string {
	if w.marker != "" {
		return w.marker
	}
	return s.host.sysfs.deviceID(w.bus, w.parent)
}

// noteDevices finds the devices among the sandbox's links and remembers where
// they were seen.
func (s *Sandbox) noteDevices(links []ifLink) map[string]ifLink {
	found, seen := map[string]ifLink{}, map[string]string{}
	for _, w := range links {
		if id := s.identity(w); id != "" {
			found[id], seen[id] = w, w.link.Name
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = seen
	return found
}

// locate finds a device wherever it is by now: in the sandbox where it was seen
// last, on the host by its PCI address or name. A thorough search also looks at
// every link of the sandbox, for one that was renamed since. It returns nil for
// a device that is nowhere.
func (s *Sandbox) locate(ctx context.Context, id string, thorough bool) (*place, error) {
	s.mu.Lock()
	seen, ok := s.seen[id]
	s.mu.Unlock()
	if ok && s.inside != nil {
		p, err := s.lookAt(ctx, s.inside, id, seen)
		if p != nil || err != nil {
			return p, err
		}
		thorough = true
	}
	p, err := s.locateOutside(ctx, id)
	if p != nil || err != nil {
		return p, err
	}
	if thorough && s.inside != nil {
		p, err := s.search(ctx, s.inside, id)
		if p != nil || err != nil {
			return p, err
		}
	}
	if strings.HasPrefix(id, virtualPrefix) {
		// Its namespace may have died, which sent it home under the name it had
		// there; only its mark tells. This is the one dump of the host's links,
		// for a device that is nowhere else.
		return s.search(ctx, s.outside, id)
	}
	return nil, nil
}

// unmarked finds a device that has lost its mark, which a privileged pod can
// take away: by the name it is said to have in the sandbox, if what bears that
// name is no other device.
func (s *Sandbox) unmarked(ctx context.Context, d netstate.Device) (*place, error) {
	if !strings.HasPrefix(d.ID, virtualPrefix) || d.At == nil || netstate.OnHost(*d.At) || s.inside == nil {
		return nil, nil
	}
	return s.lookAt(ctx, s.inside, "", *d.At)
}

func (s *Sandbox) locateOutside(ctx context.Context, id string) (*place, error) {
	if name, ok := strings.CutPrefix(id, virtualPrefix); ok {
		w, err := s.outside.linkByName(ctx, name)
		switch {
		case errors.Is(err, unix.ENODEV):
			return nil, nil
		case err != nil:
			return nil, err
		case w.marker != "" && w.marker != id:
			return nil, nil // another device that came home under this name
		}
		return &place{s.outside, w}, nil
	}
	for _, name := range s.host.sysfs.netdevs(id) {
		if p, err := s.lookAt(ctx, s.outside, id, name); p != nil || err != nil {
			return p, err
		}
	}
	return nil, nil
}

// lookAt returns the link of that name if it is the device.
func (s *Sandbox) lookAt(ctx context.Context, c *conn, id, base string) (*place, error) {
	w, err := c.linkByName(ctx, base)
	switch {
	case errors.Is(err, unix.ENODEV):
		return nil, nil
	case err != nil:
		return nil, err
	case s.identity(w) != id:
		return nil, nil
	}
	return &place{c, w}, nil
}

func (s *Sandbox) search(ctx context.Context, c *conn, id string) (*place, error) {
	links, err := c.links(ctx)
	if err != nil && !errors.Is(err, reconcile.ErrPartial) {
		return nil, err
	}
	for _, w := range links {
		if s.identity(w) == id {
			return &place{c, w}, nil
		}
	}
	return nil, nil
}

// find is locate for an observation: what the sandbox's links have just told is
// not asked again.
func (o *observer) find(ctx context.Context, ask netstate.Device) (*place, error) {
	if w, ok := o.devices[ask.ID]; ok {
		return &place{o.inside, w}, nil
	}
	p, err := o.locate(ctx, ask.ID, false)
	if p != nil || err != nil {
		return p, err
	}
	return o.unmarked(ctx, ask)
}

// askDevice reads a device wherever it is.
func (o *observer) askDevice(ctx context.Context, ask netstate.Device) error {
	id := ask.ID
	if id == defaultRoute {
		return o.askDefaultRoute(ctx)
	}
	p, err := o.find(ctx, ask)
	if err != nil {
		return err
	}
	d := netstate.Device{ID: id, Driver: o.host.sysfs.driver(id)}
	switch {
	case p != nil:
		if err := o.describe(ctx, &d, *p); err != nil {
			return err
		}
		o.glimpse(func(g *glance) { g.devices[id] = *p })
	case !o.host.sysfs.exists(id):
		o.snap.PutAbsent(d.Key())
		return nil
	}
	o.snap.Put(d)
	return nil
}

// describe fills in what the device looks like where it is, and on the host what
// it is needed for.
func (o *observer) describe(ctx context.Context, d *netstate.Device, p place) error {
	l := p.w.link
	d.At, d.Index = new(p.name()), l.Index
	d.MAC, d.MTU, d.Up = l.MAC, l.MTU, l.Up
	d.AltNames = slices.Sorted(slices.Values(l.AltNames))
	if d.AltNames == nil {
		d.AltNames = []string{} // none, as opposed to unknown
	}
	o.remember(*d.At, l.Index)
	if !p.c.host {
		return nil
	}
	var err error
	d.Use, err = o.use(ctx, p)
	return err
}

// use says what the host needs a link for, "" for nothing.
func (o *observer) use(ctx context.Context, p place) (string, error) {
	if p.w.master != 0 {
		kind := p.w.port
		if kind != "" {
			kind += " "
		}
		name, err := o.nameOf(ctx, p.c, p.w.master)
		return strings.TrimSpace(kind + "port of " + netstate.BaseName(name)), err
	}
	for _, dst := range probes {
		index, err := p.c.defaultOver(ctx, dst, p.w.link.Index)
		if err != nil {
			return "", err
		}
		if index == p.w.link.Index {
			return "default route", nil
		}
	}
	return "", nil
}

// probes are addresses that nothing but a default route leads to: of the
// networks for benchmarks and for documentation (RFC 2544, RFC 3849).
var probes = [][]byte{
	net.IPv4(198, 18, 0, 1).To4(),
	net.ParseIP("2001:db8::1"),
}

// defaultOver asks which default route leads to dst, over the link of that index
// when it is not 0, and returns the link it goes over; 0 when there is none. It
// asks for the entry of the table itself (RTM_F_FIB_MATCH): one question where a
// dump would be thousands of routes.
func (c *conn) defaultOver(ctx context.Context, dst []byte, over int) (int, error) {
	header := make(body, unix.SizeofRtMsg)
	header[0], header[1] = unix.AF_INET, uint8(8*len(dst))
	if len(dst) == net.IPv6len {
		header[0] = unix.AF_INET6
	}
	copy(header[8:], nl.Uint32Attr(unix.RTM_F_FIB_MATCH))
	parts := []nl.NetlinkRequestData{header, attr(unix.RTA_DST, dst)}
	if over != 0 {
		parts = append(parts, attr(unix.RTA_OIF, nl.Uint32Attr(uint32(over))))
	}
	b, err := c.get(ctx, unix.RTM_GETROUTE, unix.RTM_NEWROUTE, parts...)
	for _, none := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENODEV, unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.EACCES, unix.EINVAL} {
		if errors.Is(err, none) {
			return 0, nil
		}
	}
	if err != nil {
		return 0, err
	}
	for _, r := range decodeRoutes(b) {
		if r.IsDefault() && (over == 0 || r.index == over) {
			return r.index, nil
		}
	}
	return 0, nil
}

// askDefaultRoute reads the device the host's default route goes over.
func (o *observer) askDefaultRoute(ctx context.Context) error {
	d := netstate.Device{ID: defaultRoute}
	for _, dst := range probes {
		index, err := o.outside.defaultOver(ctx, dst, 0)
		if err != nil {
			return err
		}
		if index == 0 {
			continue
		}
		w, err := o.outside.linkByIndex(ctx, index)
		if err != nil {
			return err
		}
		if err := o.describe(ctx, &d, place{o.outside, w}); err != nil {
			return err
		}
		o.snap.Put(d)
		return nil
	}
	o.snap.PutAbsent(d.Key())
	return nil
}

// applyDevice moves or renames a device, or puts back what it looked like.
func (s *Sandbox) applyDevice(ctx context.Context, c netstate.Change) error {
	before, after := typed[netstate.Device](c)
	if c.After == nil {
		return invalid("a device is not deleted, it goes home")
	}
	var seen *place
	s.glimpse(func(g *glance) {
		if p, ok := g.devices[after.ID]; ok {
			seen = &p
		}
		delete(g.devices, after.ID) // it will look different
	})
	if seen != nil {
		err := s.takeDevice(ctx, before, after, seen)
		if !errors.Is(err, unix.ENODEV) {
			return err
		}
	}
	p, err := s.locate(ctx, after.ID, true)
	if err == nil && p == nil {
		p, err = s.unmarked(ctx, before)
	}
	if err != nil {
		return err
	}
	if p == nil {
		return s.vanished(after.ID)
	}
	return s.takeDevice(ctx, before, after, p)
}

// takeDevice moves the device from where it is.
func (s *Sandbox) takeDevice(ctx context.Context, before, after netstate.Device, p *place) (err error) {
	dst, base := p.c, p.w.link.Name
	if after.At != nil {
		if dst, base, err = s.at(*after.At); err != nil {
			return err
		}
	}
	s.forget(p.name(), dst.name(base))
	if before.At != nil {
		s.forget(*before.At)
	}
	t := &travel{Sandbox: s, id: after.ID, from: *p, to: dst, base: base, want: after}
	if err := t.run(ctx); err != nil {
		return err
	}
	s.noteDevice(after.ID, dst, base)
	return nil
}

func (s *Sandbox) noteDevice(id string, at *conn, base string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen, id)
	if !at.host {
		if s.seen == nil {
			s.seen = map[string]string{}
		}
		s.seen[id] = base
	}
}

func (s *Sandbox) vanished(id string) error {
	driver := s.host.sysfs.driver(id)
	switch {
	case strings.HasPrefix(id, virtualPrefix), !s.host.sysfs.exists(id):
		return fault.New(fault.Gone, fmt.Errorf("the device does not exist any more"))
	case driver == "":
		return fault.New(fault.Gone, fmt.Errorf("it has no network interface: no driver is bound to it"))
	}
	return fault.New(fault.Gone, fmt.Errorf("it has no network interface here: driver %q gave it none, or it is in another namespace", driver))
}

// travel is one journey of a device.
type travel struct {
	*Sandbox
	id   string
	from place
	to   *conn
	base string // name there
	want netstate.Device
}

// run makes the journey, or leaves the device where it was.
//
// One message moves and renames, but not as one act (net/core/rtnetlink.c,
// do_setlink): the device is moved under its old name first, and when the new
// one is taken there the call fails with the device on the other side. So the
// name is looked up before, and after a failure the device is looked for and put
// back.
func (t *travel) run(ctx context.Context) error {
	if err := t.nameIsFree(ctx); err != nil {
		return err
	}
	if slices.Contains(t.from.w.link.AltNames, t.base) {
		// Its other name is its own obstacle: a rename to it is "file exists".
		if err := t.from.c.altNames(ctx, unix.RTM_DELLINKPROP, t.from.w.link.Index, []string{t.base}); err != nil {
			return err
		}
	}
	err := t.send(ctx)
	if errors.Is(err, unix.EADDRNOTAVAIL) && t.to == t.from.c && t.base == t.from.w.link.Name {
		err = t.adoptMAC(ctx, netstate.Link{Name: t.from.name(), MAC: t.want.MAC, MTU: t.want.MTU, Up: t.want.Up}, err)
	}
	if err != nil {
		err = t.explain(err)
		if undo := t.putBack(ctx); undo != nil {
			return notPutBack(err, undo)
		}
		if errors.Is(err, unix.EADDRNOTAVAIL) && t.want.MAC != nil && t.to.host && !t.from.c.host {
			return t.withoutMAC(ctx, err)
		}
		return err
	}
	return t.restoreAltNames(ctx)
}

// withoutMAC brings a virtual function home although it may not have its own
// address back yet: being home matters more.
func (t *travel) withoutMAC(ctx context.Context, refused error) error {
	now, err := t.find(ctx)
	if now == nil || err != nil {
		return errors.Join(refused, err)
	}
	own := t.want.MAC
	t.from, t.want.MAC = *now, nil
	if err := t.run(ctx); err != nil {
		return errors.Join(refused, err)
	}
	if t.adoptMAC(ctx, netstate.Link{Name: t.to.name(t.base), MAC: own}, refused) == nil {
		return nil
	}
	return because(fault.NotReady, refused, "the device is home as %q, but not with its own MAC", t.base)
}

func (t *travel) nameIsFree(ctx context.Context) error {
	seen, free := false, false
	t.glimpse(func(g *glance) {
		if t.to.host {
			seen, free = g.free[t.to.name(t.base)], true
			delete(g.free, t.to.name(t.base))
			return
		}
		seen, free = g.names != nil, !g.names[t.base]
		if g.names != nil {
			g.names[t.base] = true
		}
	})
	if seen && free {
		return nil
	}
	w, err := t.to.linkByName(ctx, t.base)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return err
	}
	if t.to == t.from.c && w.link.Index == t.from.w.link.Index {
		return nil // it is the device, under this name or another of its names
	}
	return fault.New(fault.Conflict, fmt.Errorf("the name %s is taken by a %s link; the device stays %s",
		where(t.to.name(t.base)), w.link.LinkKind, where(t.from.name())))
}

// send moves, renames and sets what differs, in one message.
func (t *travel) send(ctx context.Context) error {
	have := t.from.w.link
	moves := t.to != t.from.c
	var parts []nl.NetlinkRequestData
	if moves {
		parts = append(parts, attr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(t.to.ns.Fd()))))
	}
	if moves || have.Name != t.base {
		parts = append(parts, attr(unix.IFLA_IFNAME, nl.ZeroTerminated(t.base)))
	}
	if differs(t.want.MAC, have.MAC) {
		hw, err := net.ParseMAC(*t.want.MAC)
		if err != nil {
			return invalid("mac: %q is not a MAC address", *t.want.MAC)
		}
		parts = append(parts, attr(unix.IFLA_ADDRESS, hw))
	}
	if differs(t.want.MTU, have.MTU) {
		parts = append(parts, attr(unix.IFLA_MTU, nl.Uint32Attr(*t.want.MTU)))
	}
	if moves && strings.HasPrefix(t.id, virtualPrefix) {
		parts = append(parts, attr(unix.IFLA_IFALIAS, []byte(t.alias())))
	}
	// It arrives down, so only coming up is worth a word then.
	var flags, change uint32
	if up := t.want.Up; up != nil && (moves && *up || !moves && differs(up, have.Up)) {
		flags, change = ifFlags(netstate.Link{Up: up})
	}
	if len(parts) == 0 && change == 0 {
		return nil
	}
	err := t.from.c.write(ctx, unix.RTM_NEWLINK, 0, append([]nl.NetlinkRequestData{ifInfo(unix.AF_UNSPEC, have.Index, flags, change)}, parts...)...)
	if errors.Is(err, unix.EBUSY) && !moves && have.Name != t.base && *have.Up {
		return t.renameDown(ctx)
	}
	return err
}

// renameDown renames a link that is up, which the kernel allows since 6.2.
func (t *travel) renameDown(ctx context.Context) error {
	i := t.from.w.link.Index
	if err := t.from.c.write(ctx, unix.RTM_NEWLINK, 0, ifInfo(unix.AF_UNSPEC, i, 0, unix.IFF_UP)); err != nil {
		return err
	}
	t.from.w.link.Up = new(false)
	if t.want.Up == nil {
		t.want.Up = new(true)
	}
	return t.send(ctx)
}

// alias marks a device that leaves and unmarks one that is home.
func (t *travel) alias() string {
	if t.to.host {
		return *t.from.w.link.Alias
	}
	return joinAlias(t.id, *t.from.w.link.Alias)
}

func differs[T comparable](want, have *T) bool {
	return want != nil && (have == nil || *want != *have)
}

// restoreAltNames makes the other names those that are wanted. Moving keeps
// them, but the one equal to the target name had to go, and udev gives names of
// its own.
func (t *travel) restoreAltNames(ctx context.Context) error {
	if t.want.AltNames == nil || t.keepsAltNames() {
		return nil
	}
	w, err := t.to.linkByName(ctx, t.base)
	if err != nil {
		return err
	}
	var missing, extra []string
	for _, n := range t.want.AltNames {
		if n != t.base && !slices.Contains(w.link.AltNames, n) {
			missing = append(missing, n)
		}
	}
	for _, n := range w.link.AltNames {
		if !slices.Contains(t.want.AltNames, n) {
			extra = append(extra, n)
		}
	}
	err = errors.Join(
		t.to.altNames(ctx, unix.RTM_DELLINKPROP, w.link.Index, extra),
		t.to.altNames(ctx, unix.RTM_NEWLINKPROP, w.link.Index, missing))
	if err != nil {
		return because(kindOf(err), err, "the device is %s, but not under its other names %v", where(t.to.name(t.base)), t.want.AltNames)
	}
	return nil
}

// keepsAltNames reports whether the names that travel along are those wanted.
func (t *travel) keepsAltNames() bool {
	own := func(names []string) []string {
		return slices.DeleteFunc(slices.Sorted(slices.Values(names)), func(n string) bool { return n == t.base })
	}
	return slices.Equal(own(t.want.AltNames), own(t.from.w.link.AltNames))
}

// altNames adds or deletes other names.
func (c *conn) altNames(ctx context.Context, typ, index int, names []string) error {
	if len(names) == 0 {
		return nil
	}
	list := attr(unix.IFLA_PROP_LIST|unix.NLA_F_NESTED, nil)
	for _, n := range names {
		list.AddRtAttr(unix.IFLA_ALT_IFNAME, nl.ZeroTerminated(n))
	}
	flags := 0
	if typ == unix.RTM_NEWLINKPROP {
		flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL | unix.NLM_F_APPEND
	}
	return c.write(ctx, typ, flags, ifInfo(unix.AF_UNSPEC, index, 0, 0), list)
}

// putBack finds the device after a failed journey and makes it what it was.
func (t *travel) putBack(ctx context.Context) error {
	was := t.from.w.link
	now, err := t.find(ctx)
	if err != nil {
		return err
	}
	if now == nil {
		return t.vanished(t.id)
	}
	back := &travel{
		Sandbox: t.Sandbox, id: t.id, from: *now, to: t.from.c, base: was.Name,
		want: netstate.Device{ID: t.id, MAC: was.MAC, MTU: was.MTU, Up: was.Up, AltNames: append([]string{}, was.AltNames...)},
	}
	if err := back.send(ctx); err != nil {
		return err
	}
	return back.restoreAltNames(ctx)
}

// find looks for the device on both sides, where a failed journey can have left
// it: under either name.
func (t *travel) find(ctx context.Context) (*place, error) {
	for _, c := range []*conn{t.from.c, t.to} {
		for _, name := range []string{t.from.w.link.Name, t.base} {
			w, err := c.linkByName(ctx, name)
			if errors.Is(err, unix.ENODEV) {
				continue
			}
			if err != nil {
				return nil, err
			}
			id := t.identity(w)
			if id == t.id || id == "" && strings.HasPrefix(t.id, virtualPrefix) && sameDevice(w, t.from.w) {
				return &place{c, w}, nil
			}
		}
	}
	return nil, nil
}

// sameDevice recognises a device that has not been marked yet.
func sameDevice(a, b ifLink) bool {
	return a.link.Index == b.link.Index && a.link.LinkKind == b.link.LinkKind && !differs(a.link.MAC, b.link.MAC)
}

func (t *travel) explain(err error) error {
	switch {
	case errors.Is(err, unix.EEXIST):
		return because(fault.Conflict, err, "one of the names of %s is taken where it should go as %s", where(t.from.name()), where(t.to.name(t.base)))
	case errors.Is(err, unix.EADDRNOTAVAIL) && t.want.MAC != nil:
		return refusedMAC(*t.want.MAC, err)
	case errors.Is(err, unix.ENODEV):
		return fault.New(fault.Gone, fmt.Errorf("the device vanished: %w", err))
	case errors.Is(err, unix.EINVAL) && t.to != t.from.c:
		return because(fault.Unsupported, err, "a %s link cannot change its namespace", t.from.w.link.LinkKind)
	}
	return err
}
