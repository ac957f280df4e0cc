package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/ports"
)

// linux/rtnetlink.h, gen_stats.h.
const (
	tcaDumpFlags      = 15
	tcaDumpFlagsTerse = 1

	statsBasic = 1 // struct gnet_stats_basic
	statsQueue = 3 // struct gnet_stats_queue
	statsPkt64 = 8

	// prefFilters bounds the filters of one preference that are read. A rule has at most as many, with those of
	// fragments, and the owner of the namespace can add others.
	prefFilters = 2048
)

// RuleReadings reads what the kernel has counted for rules on the interfaces of a sandbox, with one
// dump for each preference. The namespace at the path must still be the one of the record. A rule whose
// interface or filters no longer exist has counted nothing.
func (h *Host) RuleReadings(ctx context.Context, path string, id reconcile.NetnsID, of []ports.Rule) ([]ports.Reading, error) {
	s, err := h.sandboxOf(path, id)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	out := make([]ports.Reading, len(of))
	for i := range of {
		if out[i], err = s.inside.rule(ctx, &of[i]); err != nil {
			return nil, fmt.Errorf("rule %s on %q: %w", of[i].Name, of[i].Port.Name, err)
		}
	}
	return out, nil
}

// rule reads the counters of the filters of a rule. A dump of one preference does not grow with the filters that
// a pod has elsewhere, and a terse one (since Linux 5.9) has no matches.
func (c *conn) rule(ctx context.Context, r *ports.Rule) (ports.Reading, error) {
	out := ports.Reading{Filters: map[ports.FilterKey]ports.FilterCount{}}
	terse := make([]byte, 8) // struct nla_bitfield32
	binary.NativeEndian.PutUint32(terse, tcaDumpFlagsTerse)
	binary.NativeEndian.PutUint32(terse[4:], tcaDumpFlagsTerse)
	for _, pref := range r.Prefs {
		q := query{typ: unix.RTM_GETTFILTER, reply: unix.RTM_NEWTFILTER, what: "filters", most: prefFilters, read: 2 * prefFilters, parts: []nl.NetlinkRequestData{
			tcMsg(r.Port.Index, 0, egressHook, uint32(pref)<<16), attr(tcaChain, nl.Uint32Attr(0)), attr(tcaDumpFlags, terse),
		}}
		counted, err := dump(ctx, c, q, func(b []byte, keep func(filterCounters)) error {
			if f, ok := decodeFilterCounters(b); ok && f.Pref == pref {
				keep(f)
			}
			return nil
		})
		if err != nil && !isAny(err, noFilter...) && !errors.Is(err, reconcile.ErrPartial) {
			return out, err
		}
		for _, f := range counted {
			out.Filters[f.FilterKey] = f.FilterCount
			out.Dropped = max(out.Dropped, f.dropped) // of the one policer that they share
		}
	}
	return out, nil
}

type filterCounters struct {
	ports.FilterKey
	ports.FilterCount
	dropped uint64
}

// decodeFilterCounters reads the counters of a filter: what it has marked is what its first action has
// counted, and what was dropped what its policer has.
func decodeFilterCounters(b []byte) (f filterCounters, ok bool) {
	if len(b) < sizeofTcMsg || u32(b[12:]) != egressHook || u32(b[8:]) == 0 {
		return f, false
	}
	f.Pref, f.Handle = uint16(u32(b[16:])>>16), u32(b[8:])
	for typ, options := range attributes(b[sizeofTcMsg:]) {
		if typ != tcaOptions {
			continue
		}
		for typ, actions := range attributes(options) {
			if typ != nl.TCA_FLOWER_ACT {
				continue
			}
			first := true
			for _, v := range attributes(actions) {
				kind, marked, dropped := decodeActionCounters(v)
				if first && kind != "police" { // a filter of fragments marks nothing
					f.FilterCount = marked
				}
				first = false
				if kind == "police" {
					f.dropped = dropped
				}
			}
		}
	}
	return f, true
}

// decodeActionCounters reads the counters of an action (gnet_stats_copy_basic and
// gnet_stats_copy_queue, net/core/gen_stats.c).
func decodeActionCounters(b []byte) (kind string, passed ports.FilterCount, dropped uint64) {
	for typ, v := range attributes(b) {
		switch typ {
		case nl.TCA_ACT_KIND:
			kind = text(v)
		case nl.TCA_ACT_STATS:
			for typ, v := range attributes(v) {
				switch {
				case typ == statsBasic && len(v) >= 12:
					passed.Bytes = binary.NativeEndian.Uint64(v)
					passed.Packets = max(passed.Packets, uint64(u32(v[8:])))
				case typ == statsPkt64 && len(v) >= 8: // there if 32 bits are too few
					passed.Packets = binary.NativeEndian.Uint64(v)
				case typ == statsQueue && len(v) >= 12:
					dropped = uint64(u32(v[8:]))
				}
			}
		}
	}
	return kind, passed, dropped
}
