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

const (
	tcaDumpFlagsTerse = 1 // linux/rtnetlink.h

	// prefFilters bounds the filters of one preference that are read. All of an interface may share one, and the owner of
	// the namespace can add others.
	prefFilters = 20480
)

// hook is a preference of a chain on an interface.
type hook struct {
	link  int
	chain uint32
	pref  uint16
}

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
	rules := map[hook]map[uint32]int{} // by handle
	var order []hook
	for i := range of {
		out[i].Filters = make(map[ports.FilterKey]ports.FilterCount, len(of[i].Filters))
		for _, f := range of[i].Filters {
			at := hook{of[i].Port.Index, f.Chain, f.Pref}
			if rules[at] == nil {
				rules[at] = map[uint32]int{}
				order = append(order, at)
			}
			rules[at][f.Handle] = i
		}
	}
	for _, at := range order {
		counted, err := s.inside.counters(ctx, at, rules[at])
		if err != nil {
			return nil, fmt.Errorf("filters of preference %d on link %d: %w", at.pref, at.link, err)
		}
		for _, f := range counted {
			r := &out[rules[at][f.Handle]]
			r.Filters[f.FilterKey] = f.FilterCount
			r.Dropped = max(r.Dropped, f.dropped) // of the one policer that they share
		}
	}
	return out, nil
}

// counters reads the counters of filters by their handles. A dump of one preference does not grow with the filters that
// a pod has elsewhere, and a terse one (since Linux 5.9) has no matches.
func (c *conn) counters(ctx context.Context, at hook, wanted map[uint32]int) ([]filterCounters, error) {
	terse := make([]byte, 8) // struct nla_bitfield32
	binary.NativeEndian.PutUint32(terse, tcaDumpFlagsTerse)
	binary.NativeEndian.PutUint32(terse[4:], tcaDumpFlagsTerse)
	q := query{
		typ: unix.RTM_GETTFILTER, reply: unix.RTM_NEWTFILTER, what: "filters", most: prefFilters, read: 2 * prefFilters,
		parts: []nl.NetlinkRequestData{
			tcMsg(at.link, 0, egressHook, uint32(at.pref)<<16), attr(nl.TCA_CHAIN, nl.Uint32Attr(at.chain)), attr(nl.TCA_DUMP_FLAGS, terse),
		},
	}
	counted, err := dump(ctx, c, q, func(b []byte, keep func(filterCounters)) error {
		f, ok := decodeFilterCounters(b)
		if _, ours := wanted[f.Handle]; ok && ours && f.Pref == at.pref {
			f.Chain = at.chain
			keep(f)
		}
		return nil
	})
	if err != nil && !isAny(err, noFilter...) && !errors.Is(err, reconcile.ErrPartial) {
		return nil, err
	}
	return counted, nil
}

type filterCounters struct {
	ports.FilterKey
	ports.FilterCount
	dropped uint64
}

// decodeFilterCounters reads the counters of a filter: marked packets are counted by its first action,
// dropped ones by its policer.
func decodeFilterCounters(b []byte) (f filterCounters, ok bool) {
	if len(b) < nl.SizeofTcMsg || u32(b[12:]) != egressHook || u32(b[8:]) == 0 {
		return f, false
	}
	f.Pref, f.Handle = uint16(u32(b[16:])>>16), u32(b[8:])
	first := true
	for _, v := range attributes(attribute(b[nl.SizeofTcMsg:], nl.TCA_OPTIONS, nl.TCA_FLOWER_ACT)) {
		kind, marked, dropped := decodeActionCounters(v)
		if first && kind != "police" { // a filter of fragments marks nothing
			f.FilterCount = marked
		}
		first = false
		if kind == "police" {
			f.dropped = dropped
		}
	}
	return f, true
}

// decodeActionCounters reads the counters of an action (gnet_stats_copy_basic and
// gnet_stats_copy_queue, net/core/gen_stats.c).
func decodeActionCounters(b []byte) (kind string, passed ports.FilterCount, dropped uint64) {
	for typ, v := range attributes(attribute(b, nl.TCA_ACT_STATS)) {
		switch {
		case typ == nl.TCA_STATS_BASIC && len(v) >= 12:
			passed.Bytes = u64(v)
			passed.Packets = max(passed.Packets, uint64(u32(v[8:])))
		case typ == nl.TCA_STATS_PKT64 && len(v) >= 8: // there if 32 bits are too few
			passed.Packets = u64(v)
		case typ == nl.TCA_STATS_QUEUE && len(v) >= 12:
			dropped = uint64(u32(v[8:]))
		}
	}
	return text(attribute(b, nl.TCA_ACT_KIND)), passed, dropped
}
