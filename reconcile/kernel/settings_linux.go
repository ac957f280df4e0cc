package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// The owner of the namespace that a device is in can change settings that stay with the
// device when it moves (docs/adr/0021). They are read here before a device first leaves
// the host, and compared and restored when it has returned. What the kernel itself
// drops when a device moves is not included: addresses, neighbours, multicast groups,
// queueing disciplines, XDP sockets, netfilter hooks.

// linkNumbers are the settings in a link message that are one number each, by attribute, with its size in bytes.
var linkNumbers = map[uint16]struct {
	name  string
	bytes int
}{
	unix.IFLA_TXQLEN:            {"link.txqlen", 4},
	unix.IFLA_GROUP:             {"link.group", 4},
	unix.IFLA_GSO_MAX_SIZE:      {"link.gso-max-size", 4},
	unix.IFLA_GSO_MAX_SEGS:      {"link.gso-max-segs", 4},
	unix.IFLA_GRO_MAX_SIZE:      {"link.gro-max-size", 4},
	unix.IFLA_GSO_IPV4_MAX_SIZE: {"link.gso-ipv4-max-size", 4},
	unix.IFLA_GRO_IPV4_MAX_SIZE: {"link.gro-ipv4-max-size", 4},
	unix.IFLA_LINKMODE:          {"link.mode", 1},
	unix.IFLA_PROTO_DOWN:        {"link.proto-down", 1},
}

// linkFlags are the flags that can be set (dev_change_flags).
const linkFlags = unix.IFF_PROMISC | unix.IFF_ALLMULTI | unix.IFF_MULTICAST | unix.IFF_NOARP |
	unix.IFF_DEBUG | unix.IFF_NOTRAILERS | unix.IFF_DYNAMIC | unix.IFF_PORTSEL | unix.IFF_AUTOMEDIA

// xdpModes are the ways to attach an XDP program: the attribute of IFLA_XDP that names
// it, and its flag.
var xdpModes = map[string]struct {
	attribute uint16
	flag      uint32
}{
	"xdp.native":  {unix.IFLA_XDP_DRV_PROG_ID, unix.XDP_FLAGS_DRV_MODE},
	"xdp.generic": {unix.IFLA_XDP_SKB_PROG_ID, unix.XDP_FLAGS_SKB_MODE},
	"xdp.offload": {unix.IFLA_XDP_HW_PROG_ID, unix.XDP_FLAGS_HW_MODE},
}

// linkSettings reads the settings in the payload of a link message.
func linkSettings(b []byte) map[string]string {
	out := make(map[string]string, 64)
	if len(b) < unix.SizeofIfInfomsg {
		return out
	}
	out["link.flags"] = fmt.Sprintf("%#x", u32(b[8:])&linkFlags)
	for typ, v := range attributes(b[unix.SizeofIfInfomsg:]) {
		if s, ok := linkNumbers[typ]; ok {
			n := u32(v)
			if s.bytes == 1 {
				n = uint32(u8(v))
			}
			out[s.name] = strconv.FormatUint(uint64(n), 10)
			continue
		}
		switch typ {
		case unix.IFLA_BROADCAST:
			out["link.broadcast"] = mac(v)
		case unix.IFLA_XDP:
			for name, m := range xdpModes {
				if program := attribute(v, m.attribute); program != nil {
					out[name] = strconv.FormatUint(uint64(u32(program)), 10)
				}
			}
		case unix.IFLA_AF_SPEC:
			addSysctlsOf(out, v)
		}
	}
	return out
}

// settingClasses are the classes of ethtool settings that netlink reads.
var settingClasses = []string{
	netstate.EthtoolFeature, netstate.EthtoolRing, netstate.EthtoolChannel, netstate.EthtoolCoalesce, netstate.EthtoolPrivateFlag,
}

// settingsOf reads all settings of a link of the host. Settings that its driver does not have,
// or does not report, are not among them.
func (c *conn) settingsOf(ctx context.Context, w ifLink, defaults devconfDefaults) (netstate.Settings, error) {
	w, err := c.withMessage(ctx, w)
	if err != nil {
		return nil, err
	}
	beyond, err := c.settingsBeyondLink(ctx, w)
	if err != nil {
		return nil, err
	}
	own := linkSettings(w.raw)
	err = c.enter(func() error { c.withoutDefaults(own, defaults); return nil })
	return settingsList(own, beyond), err
}

// withMessage is a link with its own message, which is read if it was only listed.
func (c *conn) withMessage(ctx context.Context, w ifLink) (ifLink, error) {
	if w.raw != nil {
		return w, nil
	}
	return c.linkByIndex(ctx, w.link.Index)
}

func settingsList(from ...map[string]string) netstate.Settings {
	out := make(netstate.Settings, 0, 128)
	for _, settings := range from {
		for name, value := range settings {
			out = append(out, name+"="+value)
		}
	}
	slices.Sort(out)
	return out
}

// settingsBeyondLink reads the settings that are not in a link message.
func (c *conn) settingsBeyondLink(ctx context.Context, w ifLink) (map[string]string, error) {
	all := make(map[string]string, 128)
	for _, class := range settingClasses {
		have, err := c.ethtoolSettings(ctx, class, w.link.Index)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, s := range have {
			if err == nil && !s.Fixed {
				all[class+"."+s.Name] = ethtoolText(class, s.Value)
			}
		}
	}
	err := c.enter(func() error {
		e, err := openEthtoolIoctl(w.link.Name)
		if err != nil {
			return err
		}
		defer e.close()
		e.list(all)
		if e.hasFEC() { // else no second client is needed
			if v := readFEC(w.link.Index); v != "" {
				all[fecSetting] = v
			}
		}
		for name, point := range tcxPoints {
			attached, err := tcxPrograms(w.link.Index, point)
			if err == nil && len(attached) > 0 {
				all[name] = programList(attached)
			}
		}
		return nil
	})
	return all, err
}

// settingRounds bounds how often settings that still differ are set: one setting may
// have to wait for another.
const settingRounds = 3

// restoreSettings sets the settings of a link of the host, and returns which it could
// not restore, else the link and what is beyond its message, as read in the end. The link
// should be down: a program of the pod must not see a packet of the host.
func (c *conn) restoreSettings(ctx context.Context, index int, want netstate.Settings) (w ifLink, beyond map[string]string, err error) {
	var failed map[string]error
	for round := 0; ; round++ {
		if w, err = c.linkByIndex(ctx, index); err != nil {
			return w, nil, err
		}
		if beyond, err = c.settingsBeyondLink(ctx, w); err != nil {
			return w, nil, err
		}
		have := settingsList(linkSettings(w.raw), beyond)
		differing := want.Differing(have)
		if len(differing) == 0 {
			return w, beyond, nil
		}
		if round == settingRounds {
			return w, nil, notRestored(differing, failed)
		}
		failed = c.setSettings(ctx, w, differing, want.All(), have.All())
	}
}

// notRestored lists what still differs, with the known reasons.
func notRestored(names []string, failed map[string]error) error {
	var errs []error
	for _, name := range names {
		err := failed[name]
		if err == nil {
			err = errors.New("it stays as the pod has left it")
		}
		errs = append(errs, fmt.Errorf("%s: %w", name, err))
	}
	return fault.New(fault.Unsupported, fmt.Errorf("settings that the pod changed could not be restored: %w", errors.Join(errs...)))
}

// setSettings sets what differs and returns errors by name. First it detaches programs,
// then it sets features in the order of their names.
func (c *conn) setSettings(ctx context.Context, w ifLink, names []string, want, have map[string]string) map[string]error {
	failed := map[string]error{}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	for _, name := range names {
		if err := c.setSetting(ctx, w, name, want, have); err != nil {
			failed[name] = err
		}
	}
	return failed
}

func rank(name string) int {
	if netstate.Attached(name) {
		return 0
	}
	return 1
}

func (c *conn) setSetting(ctx context.Context, w ifLink, name string, want, have map[string]string) error {
	class, rest, _ := strings.Cut(name, ".")
	value, recorded := want[name]
	switch {
	case netstate.Attached(name):
		return c.detach(ctx, w, name, recorded, have[name])
	case have[name] == "":
		return errors.New("the driver no longer reports it")
	case class == "link":
		return c.setLinkSetting(ctx, w, name, value)
	case slices.Contains(settingClasses, class):
		return c.writeEthtool(ctx, w.link.Index, netstate.Ethtool{Class: class, Name: rest, Value: &value})
	}
	c.count.writes.Add(1)
	return c.count.send(true, func() error {
		if netstate.IsSysctl(name) {
			return c.enter(func() error { return os.WriteFile(c.devconfFile(name, w.link.Name), []byte(value), 0) })
		}
		if name == fecSetting {
			return c.enter(func() error { return writeFEC(w.link.Index, value) })
		}
		return c.withIoctl(w.link.Name, func(e *ethtoolIoctl) error {
			_, err := e.set(name, value)
			return err
		})
	})
}

func (c *conn) withIoctl(link string, f func(*ethtoolIoctl) error) error {
	return c.enter(func() error {
		e, err := openEthtoolIoctl(link)
		if err != nil {
			return err
		}
		defer e.close()
		return f(e)
	})
}

func (c *conn) setLinkSetting(ctx context.Context, w ifLink, name, value string) error {
	var flags, change uint32
	var parts []nl.NetlinkRequestData
	if name == "link.broadcast" {
		hw, err := net.ParseMAC(value)
		if err != nil {
			return err
		}
		parts = append(parts, attr(unix.IFLA_BROADCAST, hw))
	} else {
		n, err := strconv.ParseUint(value, 0, 32)
		if err != nil {
			return err
		}
		if name == "link.flags" {
			flags, change = uint32(n), linkFlags
		}
		for typ, s := range linkNumbers {
			switch {
			case s.name != name:
			case s.bytes == 1:
				parts = append(parts, attr(int(typ), []byte{uint8(n)}))
			default:
				parts = append(parts, attr(int(typ), nl.Uint32Attr(uint32(n))))
			}
		}
	}
	return c.write(ctx, unix.RTM_NEWLINK, 0, append([]nl.NetlinkRequestData{ifInfo(unix.AF_UNSPEC, w.link.Index, flags, change)},
		parts...)...)
}

// detach detaches programs that were not attached before. Those that were attached and
// no longer are cannot be restored.
func (c *conn) detach(ctx context.Context, w ifLink, name string, recorded bool, have string) error {
	if have != "" {
		if err := c.detachAll(ctx, w, name, have); err != nil {
			return err
		}
	}
	if recorded {
		return errors.New("it was attached on the host, and is not any more: attach it again")
	}
	return nil
}

func (c *conn) detachAll(ctx context.Context, w ifLink, name, have string) error {
	class, rest, _ := strings.Cut(name, ".")
	if class == "xdp" {
		return c.detachXDP(ctx, w, name, have)
	}
	c.count.writes.Add(1)
	return c.count.send(true, func() error {
		if class == "rule" {
			location, err := strconv.ParseUint(rest, 10, 32)
			if err != nil {
				return err
			}
			return c.withIoctl(w.link.Name, func(e *ethtoolIoctl) error { return e.deleteRule(uint32(location)) })
		}
		return c.enter(func() error {
			attached, err := tcxPrograms(w.link.Index, tcxPoints[name])
			for _, a := range attached {
				err = errors.Join(err, detachTCX(w.link.Index, tcxPoints[name], a))
			}
			return err
		})
	})
}

// detachXDP detaches a program. One that a BPF link holds can be detached only through
// that link: the kernel refuses a netlink request then (net/core/dev.c,
// dev_xdp_attach).
func (c *conn) detachXDP(ctx context.Context, w ifLink, name, program string) error {
	list := attr(unix.IFLA_XDP|unix.NLA_F_NESTED, nil)
	list.AddRtAttr(unix.IFLA_XDP_FD, binary.NativeEndian.AppendUint32(nil, ^uint32(0)))
	list.AddRtAttr(unix.IFLA_XDP_FLAGS, nl.Uint32Attr(xdpModes[name].flag))
	err := c.write(ctx, unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, w.link.Index, 0, 0), list)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	id, err := strconv.ParseUint(program, 10, 32)
	if err != nil {
		return err
	}
	c.count.writes.Add(1)
	return c.count.send(true, func() error { return detachXDPLinks(w.link.Index, ebpf.ProgramID(id)) })
}
