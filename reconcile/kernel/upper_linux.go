package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// A pod can make links on a device (macvlan, ipvlan, VLAN) and move them into a namespace
// that a descriptor keeps alive for longer than the pod. They outlive the return of the
// device, and the kernel does not show them outside that namespace: sysfs lists only upper
// and lower links of the same namespace. But it refuses what cannot stand beside them. So
// links are created here that are refused in any case, for a reason that the kernel checks
// after the one in question; no such link is ever registered, and udev sees none
// (docs/adr/0022).

// The settings that show links on a device. They cannot be set: if there is one, another
// owner still uses the device.
const (
	upperReceiver = "upper.receiver"
	upperUnknown  = "upper.unknown"
	upperAllmulti = "upper.allmulti"
)

// vlanUppers are the settings that list VLANs, by protocol.
var vlanUppers = map[string]uint16{"upper.802.1q": unix.ETH_P_8021Q, "upper.802.1ad": unix.ETH_P_8021AD}

const (
	// vlanIDs is how many VLANs of one protocol there can be (vlan_validate).
	vlanIDs = 4095
	// vlansNamed bounds how many are searched for: one is enough.
	vlansNamed = 8
	// refusedMTU is larger than that of any Ethernet device, and the largest that a
	// VLAN may request. vlan_newlink compares it with the device's after it has searched
	// for a VLAN of the same ID.
	refusedMTU = 65535
)

// uppersOf returns the links on a device of the host that are not in the host's
// namespace. Once nothing does nothing can any more: to make a link on a device of the
// host takes CAP_NET_ADMIN there.
func (s *Sandbox) uppersOf(ctx context.Context, w ifLink) (map[string]string, error) {
	if !s.mayHaveUppers(w) {
		return nil, nil
	}
	s.mu.Lock()
	last, known := s.uppers[w.link.Index]
	s.mu.Unlock()
	if known && len(last) == 0 {
		return nil, nil
	}
	s.outside.count.gets.Add(1)
	var found map[string]string
	err := s.outside.count.send(false, func() (err error) {
		found, err = s.probeUppers(ctx, w, last)
		return err
	})
	var errno unix.Errno
	switch {
	case errors.Is(err, unix.ENODEV), err != nil && !errors.As(err, &errno), errors.Is(err, errUnanswered):
		return nil, err
	case err != nil:
		return map[string]string{upperUnknown: err.Error()}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uppers[w.link.Index] = found
	return found, nil
}

// mayHaveUppers reports whether the probes mean something for a link. On a macvlan
// they would be about the link below it, and on what is not Ethernet nothing stacks.
func (s *Sandbox) mayHaveUppers(w ifLink) bool {
	return len(w.raw) >= 4 && u16(w.raw[2:]) == unix.ARPHRD_ETHER &&
		(w.hardware() || slices.Contains([]string{"dummy", "ifb", "veth"}, w.link.LinkKind))
}

// probeUppers searches for links on a device, at first for those that were there the
// last time.
func (s *Sandbox) probeUppers(ctx context.Context, w ifLink, last map[string]string) (map[string]string, error) {
	found := map[string]string{}
	if users := allmultiUsers(w.raw); users > 0 {
		found[upperAllmulti] = strconv.FormatUint(uint64(users), 10)
	}
	if s.nothingStacked(s.outside, w.link.Index) {
		return s.withoutOwn(ctx, w, found, nil)
	}
	receiver, err := s.receiver(ctx, s.outside, w.link.Index)
	if err != nil {
		return nil, err
	}
	if receiver != "" {
		found[upperReceiver] = receiver
	}
	if !s.knowsVLANs() || w.link.MTU == nil || *w.link.MTU >= refusedMTU {
		return s.withoutOwn(ctx, w, found, nil)
	}
	look := func(ids func(name string) []uint16) error {
		for name, protocol := range vlanUppers {
			vlans, err := s.outside.vlansOn(ctx, w.link.Index, protocol, ids(name))
			if err != nil {
				return err
			}
			if len(vlans) > 0 {
				found[name] = vlanList(vlans)
			}
		}
		return nil
	}
	if len(last) > 0 {
		err := look(func(name string) []uint16 { return vlansIn(last[name]) })
		if left, err := s.withoutOwn(ctx, w, found, err); err != nil || len(left) > 0 {
			return left, err
		}
	}
	return s.withoutOwn(ctx, w, found, look(func(string) []uint16 { return everyVLAN }))
}

var everyVLAN = func() []uint16 {
	out := make([]uint16, vlanIDs)
	for i := range out {
		out[i] = uint16(i)
	}
	return out
}()

func vlanList(ids []uint16) string {
	var out []string
	for _, id := range ids {
		out = append(out, strconv.Itoa(int(id)))
	}
	return strings.Join(out, " ")
}

func vlansIn(list string) []uint16 {
	var out []uint16
	for s := range strings.FieldsSeq(list) {
		if id, err := strconv.ParseUint(s, 10, 16); err == nil {
			out = append(out, uint16(id))
		}
	}
	return out
}

// withoutOwn drops what the host itself has on the device, which its administrator
// made. A receiver that the host has hides another one beside it.
func (s *Sandbox) withoutOwn(ctx context.Context, w ifLink, found map[string]string, failed error) (map[string]string, error) {
	if failed != nil || len(found) == 0 {
		return found, failed
	}
	links, err := s.outside.links(ctx)
	if err != nil {
		return nil, err
	}
	for _, own := range links {
		if own.lower != w.link.Index || own.lowerNS >= 0 {
			continue
		}
		delete(found, upperAllmulti) // it may be the user
		switch v := own.link.VLAN; {
		case v == nil:
			delete(found, upperReceiver)
		case v.ID != nil && v.Protocol != nil:
			name := "upper." + *v.Protocol
			found[name] = vlanList(slices.DeleteFunc(vlansIn(found[name]), func(id uint16) bool { return id == *v.ID }))
			if found[name] == "" {
				delete(found, name)
			}
		}
	}
	if w.master != 0 {
		delete(found, upperReceiver)
		delete(found, upperAllmulti)
	}
	return found, nil
}

// allmultiUsers returns how many users of all multicast a link message counts beside
// the flag that somebody has set. All of a pod's go when the device moves, but for two:
// links on it, and a count that cannot be reset, which an ipvlan leaves that is deleted
// with its flag IFF_ALLMULTI (ipvlan_change_rx_flags is its only place; neither
// ipvlan_stop nor ipvlan_uninit has it). Promiscuity shows nothing of that kind: of a
// device without a unicast filter the kernel corrects it when it comes up, not before
// (__dev_set_rx_mode).
func allmultiUsers(message []byte) uint32 {
	users := u32(attribute(message[unix.SizeofIfInfomsg:], unix.IFLA_ALLMULTI))
	if users > 0 && u32(message[8:])&unix.IFF_ALLMULTI != 0 {
		users--
	}
	return users
}

// refuseReceiver is an error when something that is neither the host's nor the
// sandbox's receives the traffic of a device that has just come to the sandbox. A pod
// in the user namespace of the host can make such a link on a device of the host,
// through a number that its own namespace has for the host's (IFLA_LINK_NETNSID); it
// has no number for this sandbox. VLANs are not searched for: one of the attacker's
// keeps this pod from its own of the same ID, and receives nothing else.
func (t *deviceMove) refuseReceiver(ctx context.Context) error {
	if !t.mayHaveUppers(t.from.w) {
		return nil
	}
	w, err := t.to.linkByName(ctx, t.base)
	if err != nil {
		return err
	}
	t.remember(t.to.name(t.base), w.link.Index)
	var found string
	t.to.count.gets.Add(1)
	err = t.to.count.send(false, func() (err error) {
		if !t.nothingStacked(t.to, w.link.Index) {
			found, err = t.receiver(ctx, t.to, w.link.Index)
		}
		return err
	})
	var errno unix.Errno
	switch {
	case errors.As(err, &errno) && !errors.Is(err, errUnanswered):
		return nil // this kernel does not report it
	case err != nil || found == "" || w.master != 0:
		return err
	}
	inside, err := t.nsid(ctx, t.outside, t.to)
	if err != nil {
		return err
	}
	for _, own := range []struct {
		c  *conn
		ns int32
	}{{t.to, -1}, {t.outside, inside}} {
		links, err := own.c.links(ctx)
		if err != nil && !errors.Is(err, reconcile.ErrPartial) {
			return err
		}
		if slices.ContainsFunc(links, func(u ifLink) bool {
			return u.lower == w.link.Index && u.lowerNS == own.ns && u.link.VLAN == nil && u.link.LinkKind != "veth"
		}) {
			return nil
		}
	}
	return refusedFor(t.from.w, map[string]string{upperReceiver: found})
}

// receiver describes what receives the traffic of a device instead of it, "" for nothing.
// There is one receiver at most (netdev_rx_handler_register), so a macvlan in passthru
// mode is refused beside any, with EBUSY, and beside other macvlans with EINVAL. Else
// it is refused because its name is taken.
func (s *Sandbox) receiver(ctx context.Context, c *conn, index int) (string, error) {
	away, err := s.host.scratchSpace()
	if err != nil {
		return "", err
	}
	// Not NLM_F_EXCL: the name is to be found taken when the link is registered, not
	// before (rtnl_newlink then searches the namespace of this socket).
	err = c.exchange(ctx, unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_ACK, []nl.NetlinkRequestData{
		ifInfo(unix.AF_UNSPEC, 0, 0, 0),
		attr(unix.IFLA_IFNAME, nl.ZeroTerminated(away.taken)),
		attr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(away.socket.ns.Fd()))),
		attr(unix.IFLA_LINK, nl.Uint32Attr(uint32(index))),
		passthruInfo(),
	}, 0, func([]byte) error { return nil })
	switch {
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EOPNOTSUPP): // or this kernel has no macvlan
		return "", nil
	case errors.Is(err, unix.EINVAL):
		return "macvlan", nil
	case errors.Is(err, unix.EBUSY):
		return "ipvlan or the like", nil
	case err == nil:
		return "", errors.New("a link was created beside another one of the same name")
	}
	return "", err
}

// scratch is a namespace of our own with nothing in it. A link that is to be created
// there cannot be, as its name is taken.
type scratch struct {
	socket *socket
	taken  string
}

func (s scratch) close() error {
	if s.socket == nil {
		return nil
	}
	return s.socket.close()
}

// scratchSpace creates the scratch namespace, once. It ends with this process.
func (h *Host) scratchSpace() (scratch, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.away.socket != nil {
		return h.away, nil
	}
	var ns *os.File
	err := h.own.away(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return scratch{}, err
	}
	s, err := openSocket(ns, h.own, h.buffers)
	if err != nil {
		return scratch{}, err
	}
	taken := "pl" + randomName()
	const loopback = 1 // its index in every namespace
	c := &conn{socket: s, count: &counters{}}
	err = c.write(context.Background(), unix.RTM_NEWLINK, 0, ifInfo(unix.AF_UNSPEC, loopback, 0, 0),
		attr(unix.IFLA_IFNAME, nl.ZeroTerminated(taken)))
	if err != nil {
		return scratch{}, errors.Join(fmt.Errorf("prepare a network namespace: %w", err), s.close())
	}
	h.away = scratch{s, taken}
	return h.away, nil
}

// knowsVLANs reports whether the kernel has VLANs at all. To probe for them would
// load the module, which adds a filter to every device (vlan_device_event).
func (s *Sandbox) knowsVLANs() bool {
	return s.outside.enter(func() error {
		_, err := os.Stat("/proc/thread-self/net/vlan")
		return err
	}) == nil
}

// vlansOn returns the first of the VLANs of a protocol that there are on a link of
// the host.
func (c *conn) vlansOn(ctx context.Context, index int, protocol uint16, ids []uint16) ([]uint16, error) {
	var found []uint16
	request := vlanThatIsRefused(index, protocol)
	for batch := range slices.Chunk(ids, refusalsAtOnce) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var failed error
		setID := func(i int, message []byte) { binary.NativeEndian.PutUint16(message[len(message)-4:], batch[i]) }
		err := c.refusals(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, request, len(batch), setID, func(i int, err error) {
			switch {
			case errors.Is(err, unix.EEXIST):
				found = append(found, batch[i])
			case !errors.Is(err, unix.EINVAL):
				failed = err
			}
		})
		if errors.Is(failed, unix.EOPNOTSUPP) {
			return nil, nil // there can be no VLAN on this device
		}
		if err := errors.Join(err, failed); err != nil {
			return nil, err
		}
		if len(found) >= vlansNamed {
			break
		}
	}
	return found[:min(len(found), vlansNamed)], nil
}

// vlanThatIsRefused is the request for a VLAN, with its ID as the last word.
func vlanThatIsRefused(index int, protocol uint16) []nl.NetlinkRequestData {
	return []nl.NetlinkRequestData{
		ifInfo(unix.AF_UNSPEC, 0, 0, 0),
		attr(unix.IFLA_LINK, nl.Uint32Attr(uint32(index))),
		attr(unix.IFLA_MTU, nl.Uint32Attr(refusedMTU)),
		kindInfo("vlan", func(data *nl.RtAttr) {
			data.AddRtAttr(nl.IFLA_VLAN_PROTOCOL, nl.BEUint16Attr(protocol))
			data.AddRtAttr(nl.IFLA_VLAN_ID, nl.Uint16Attr(0))
		}),
	}
}

// kindInfo is IFLA_LINKINFO of a link of a kind, with what options, unless it is nil, adds to its data.
func kindInfo(kind string, options func(data *nl.RtAttr)) *nl.RtAttr {
	info := attr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(kind))
	if options != nil {
		options(info.AddRtAttr(nl.IFLA_INFO_DATA|unix.NLA_F_NESTED, nil))
	}
	return info
}

// passthruInfo is that of a macvlan that wants to be the only receiver.
func passthruInfo() *nl.RtAttr {
	return kindInfo("macvlan", func(data *nl.RtAttr) { data.AddRtAttr(nl.IFLA_MACVLAN_MODE, nl.Uint32Attr(nl.MACVLAN_MODE_PASSTHRU)) })
}

// refuseUppers returns an error if there is a link on a device that has returned to the
// host. It describes how to remove it.
func (s *Sandbox) refuseUppers(ctx context.Context, w ifLink) error {
	found, err := s.uppersOf(ctx, w)
	if err != nil || len(found) == 0 {
		return err
	}
	return refusedFor(w, found)
}

func refusedFor(w ifLink, found map[string]string) error {
	var what []string
	for _, name := range slices.Sorted(maps.Keys(found)) {
		what = append(what, describeUpper(name, found[name]))
	}
	way := "recreate the link"
	if w.bus != "" {
		way = fmt.Sprintf("rebind its driver: echo %s to unbind, then to bind, in /sys/bus/%s/drivers/DRIVER", w.parent, w.bus)
	}
	if _, counted := found[upperAllmulti]; counted && len(found) == 1 {
		return fault.New(fault.Unsupported, fmt.Errorf("%s: to be rid of it, %s", what[0], way))
	}
	return fault.New(fault.NotReady, fmt.Errorf(
		"%s: it goes when the last process and descriptor of its network namespace has gone (lsns -t net); to be rid of it at once, %s",
		strings.Join(what, "; "), way))
}

func describeUpper(name, value string) string {
	const where = "is on the device, in a network namespace that a pod has made"
	switch name {
	case upperReceiver:
		return fmt.Sprintf("%s: a link (%s) %s", name, value, where)
	case upperAllmulti:
		return fmt.Sprintf(
			"%s: the device receives all multicast for a user that does not exist any more, as an ipvlan of the pod leaves behind", name)
	case upperUnknown:
		return fmt.Sprintf("%s: what is on the device cannot be read: %s", name, value)
	}
	return fmt.Sprintf("%s: VLAN %s %s", name, value, where)
}

// settingsAfter are settingsOf a device that has returned, with the links on it.
func (s *Sandbox) settingsAfter(ctx context.Context, w ifLink) (netstate.Settings, error) {
	w, err := s.outside.withMessage(ctx, w)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	beyond, known := s.restored[w.link.Index]
	delete(s.restored, w.link.Index)
	s.mu.Unlock()
	if !known {
		if beyond, err = s.outside.settingsBeyondLink(ctx, w); err != nil {
			return nil, err
		}
	}
	uppers, err := s.uppersOf(ctx, w)
	if err != nil {
		return nil, err
	}
	return settingsList(linkSettings(w.raw), beyond, uppers), nil
}
