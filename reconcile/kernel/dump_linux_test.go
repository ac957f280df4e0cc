package kernel

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
)

// Dump observes the whole sandbox, also what is otherwise read on demand: its rules,
// unreachable routes, neighbors, forwarding entries and sysctls, the ethtool settings of its links, its devices and what
// physical functions hold for them; and the given objects of the host. It takes many
// messages: "rolled back to a state equal to the start, field by field".
func (s *Sandbox) Dump(ctx context.Context, queried ...netstate.Object) (*netstate.Snapshot, error) {
	o := s.observer(netstate.NewSnapshot())
	if s.inside != nil {
		if err := o.observe(ctx); err != nil {
			return nil, err
		}
		sysctls, err := s.listSysctls()
		if err != nil {
			return nil, err
		}
		queried = append(queried, sysctls...)
		if err := o.allRules(ctx); err != nil {
			return nil, err
		}
		if err := o.allUnreachable(ctx); err != nil {
			return nil, err
		}
		if err := o.allNeighbors(ctx); err != nil {
			return nil, err
		}
		if err := o.allFilters(ctx); err != nil {
			return nil, err
		}
	}
	for _, l := range netstate.All[netstate.Link](o.snap) {
		if l.DeviceID != "" {
			queried = append(queried, netstate.Device{ID: l.DeviceID}, netstate.VF{ID: l.DeviceID})
		}
		if err := o.allEthtool(ctx, l.Name); err != nil {
			return nil, err
		}
		if l.VXLAN == nil {
			continue
		}
		have, err := o.forwarding(ctx, l.Name)
		if err != nil {
			return nil, err
		}
		for _, f := range have {
			o.snap.Put(netstate.FDB{Link: l.Name, Remote: f.remote.String(), Via: o.names[f.via]})
		}
	}
	return o.snap, o.query(ctx, queried)
}

// listSysctls lists the sysctls of IP that can be read, with those of each link.
func (s *Sandbox) listSysctls() ([]netstate.Object, error) {
	root := filepath.Join(s.host.proc, "sys")
	var out []netstate.Object
	err := s.inside.enter(func() error {
		for _, top := range []string{"net/ipv4", "net/ipv6"} {
			err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
				if errors.Is(err, os.ErrNotExist) {
					return nil
				}
				if err != nil || d.IsDir() {
					return err
				}
				if info, err := d.Info(); err == nil && info.Mode()&0o444 != 0 {
					out = append(out, netstate.Sysctl{Path: strings.TrimPrefix(path, root+"/")})
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

func (o *observer) allRules(ctx context.Context) error {
	for family := range ruleFamilies {
		all, err := o.inside.rules(ctx, family, func(netstate.Rule) bool { return true })
		if err != nil {
			return err
		}
		for _, r := range all {
			o.snap.Put(r)
		}
	}
	return nil
}

// allUnreachable leaves out those that the kernel makes, which have the metric of none.
func (o *observer) allUnreachable(ctx context.Context) error {
	for _, f := range []uint8{unix.AF_INET, unix.AF_INET6} {
		all, err := o.inside.unreachable(ctx, f, 0, func(u netstate.Unreachable) bool { return u.Metric != 0 && u.Metric != ^uint32(0) })
		if err != nil {
			return err
		}
		for _, u := range all {
			o.snap.Put(u)
		}
	}
	return nil
}

func (o *observer) allNeighbors(ctx context.Context) error {
	q := query{
		typ: unix.RTM_GETNEIGH, reply: unix.RTM_NEWNEIGH, parts: []nl.NetlinkRequestData{make(body, unix.SizeofNdMsg)},
		what: "neighbors", most: 1 << 16,
	}
	all, err := dump(ctx, o.inside, q, func(b []byte, keep func(netstate.Neighbor)) error {
		if n, index, ok := decodeNeighbor(b); ok {
			n.Link = o.names[index]
			keep(n)
		}
		return nil
	})
	for _, n := range all {
		o.snap.Put(n)
	}
	return err
}

// allFilters lists clsacts, and the filters on what their links send.
func (o *observer) allFilters(ctx context.Context) error {
	have, err := o.inside.clsacts(ctx)
	if err != nil {
		return err
	}
	for _, index := range have {
		o.snap.Put(netstate.Clsact{Link: o.names[index]})
		q := query{
			typ: unix.RTM_GETTFILTER, reply: unix.RTM_NEWTFILTER, parts: []nl.NetlinkRequestData{tcMsg(index, 0, egressHook, 0)},
			what: "filters", most: 1 << 16,
		}
		all, err := dump(ctx, o.inside, q, func(b []byte, keep func(netstate.Filter)) error {
			if f, _, ok := decodeFilter(b); ok {
				keep(f)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, f := range all {
			f.Link = o.names[index]
			o.snap.Put(f)
		}
	}
	return nil
}

func (o *observer) allEthtool(ctx context.Context, link string) error {
	for _, class := range []string{
		netstate.EthtoolFeature, netstate.EthtoolRing, netstate.EthtoolChannel, netstate.EthtoolCoalesce, netstate.EthtoolPrivateFlag,
	} {
		all, err := o.readEthtool(ctx, ethtoolGroup{link, class})
		if err != nil {
			return err
		}
		for _, e := range all {
			o.snap.Put(e)
		}
	}
	return nil
}
