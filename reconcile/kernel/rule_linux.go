package kernel

import (
	"context"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
)

const sizeofRuleHeader = 12 // struct fib_rule_hdr in linux/fib_rules.h

var ruleFamilies = words{unix.AF_INET: netstate.IPv4, unix.AF_INET6: netstate.IPv6}

// decodeRule reads the payload of an RTM_NEWRULE message; false for a rule that
// netstate cannot represent, such as one with ports, users or another action than a
// lookup.
func decodeRule(b []byte) (netstate.Rule, bool) {
	if len(b) < sizeofRuleHeader || b[3] != 0 || b[7] != unix.FR_ACT_TO_TBL || u32(b[8:])&unix.FIB_RULE_INVERT != 0 {
		return netstate.Rule{}, false
	}
	family := ruleFamilies.word(uint32(b[0]))
	if family == nil {
		return netstate.Rule{}, false
	}
	r := netstate.Rule{Family: *family, Table: uint32(b[4])}
	for typ, v := range attributes(b[sizeofRuleHeader:]) {
		switch typ {
		case unix.FRA_DST:
			r.To = prefixOf(b[0], v, b[1])
		case unix.FRA_SRC:
			r.From = prefixOf(b[0], v, b[2])
		case unix.FRA_IIFNAME:
			r.IIF = text(v)
		case unix.FRA_OIFNAME:
			r.OIF = text(v)
		case unix.FRA_PRIORITY:
			r.Priority = u32(v)
		case unix.FRA_FWMARK:
			r.Mark = u32(v)
		case unix.FRA_FWMASK:
			r.Mask = u32(v)
		case unix.FRA_TABLE:
			r.Table = u32(v)
		case unix.FRA_PROTOCOL:
			r.Protocol = int(u8(v))
		case unix.FRA_SUPPRESS_PREFIXLEN:
			if n := u32(v); n != ^uint32(0) { // -1 is none
				r.SuppressPrefixLength = &n
			}
		case unix.FRA_PAD:
		default:
			return netstate.Rule{}, false
		}
	}
	return r, true
}

// encodeRule writes a rule.
func encodeRule(r netstate.Rule) ([]nl.NetlinkRequestData, error) {
	family, ok := ruleFamilies.number(r.Family)
	if !ok {
		return nil, oneOf("family", r.Family, ruleFamilies)
	}
	header := make(body, sizeofRuleHeader)
	header[0], header[7] = uint8(family), unix.FR_ACT_TO_TBL
	parts := []nl.NetlinkRequestData{header}
	add := func(typ int, v []byte) { parts = append(parts, attr(typ, v)) }
	for _, f := range []struct {
		prefix    string
		typ, bits int
	}{{r.To, unix.FRA_DST, 1}, {r.From, unix.FRA_SRC, 2}} {
		if f.prefix == "" {
			continue
		}
		p, err := netip.ParsePrefix(f.prefix)
		if err != nil {
			return nil, invalid("%q is not a prefix", f.prefix)
		}
		header[f.bits] = uint8(p.Bits())
		add(f.typ, p.Addr().AsSlice())
	}
	add(unix.FRA_PRIORITY, nl.Uint32Attr(r.Priority))
	add(unix.FRA_TABLE, nl.Uint32Attr(r.Table)) // the header has room for 255
	if r.IIF != "" {
		add(unix.FRA_IIFNAME, nl.ZeroTerminated(r.IIF))
	}
	if r.OIF != "" {
		add(unix.FRA_OIFNAME, nl.ZeroTerminated(r.OIF))
	}
	if r.Mask != 0 {
		add(unix.FRA_FWMARK, nl.Uint32Attr(r.Mark))
		add(unix.FRA_FWMASK, nl.Uint32Attr(r.Mask))
	}
	if r.SuppressPrefixLength != nil {
		add(unix.FRA_SUPPRESS_PREFIXLEN, nl.Uint32Attr(*r.SuppressPrefixLength))
	}
	add(unix.FRA_PROTOCOL, []byte{netstate.RouteProtocol})
	return parts, nil
}

// queryRules reads rules of the sandbox, each family in one dump: the kernel has no
// query for one rule.
func (o *observer) queryRules(ctx context.Context, queried []netstate.Rule) error {
	family := func(r netstate.Rule) uint32 {
		n, _ := ruleFamilies.number(r.Family)
		return n
	}
	return queryGroups(o, queried, family, func(of uint32, wanted func(netstate.Rule) bool) ([]netstate.Rule, error) {
		return o.inside.rules(ctx, of, wanted)
	})
}

// rules lists the rules of a family that are wanted, with reconcile.ErrPartial where
// not all were read.
func (c *conn) rules(ctx context.Context, family uint32, wanted func(netstate.Rule) bool) ([]netstate.Rule, error) {
	header := make(body, sizeofRuleHeader)
	header[0] = uint8(family)
	q := query{
		typ: unix.RTM_GETRULE, reply: unix.RTM_NEWRULE, parts: []nl.NetlinkRequestData{header},
		what: ruleFamilies[family] + " rules", most: c.bounds.Routes, read: c.bounds.Routes,
	}
	out, err := dump(ctx, c, q, func(b []byte, keep func(netstate.Rule)) error {
		if r, ok := decodeRule(b); ok && wanted(r) {
			keep(r)
		}
		return nil
	})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // a kernel without that family, or without rules for it
	}
	return out, err
}

func (s *Sandbox) applyRule(ctx context.Context, c netstate.Change) error {
	before, after := typed[netstate.Rule](c)
	switch c.Action() {
	case netstate.Create:
		return s.sendRule(ctx, unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, after)
	case netstate.Delete:
		// An attribute that a delete request does not have matches any value (rule_find
		// in net/core/fib_rules.c). A rule of the pod with our protocol number that differs
		// from ours only in such an attribute, and comes before it, is deleted first: that is
		// the pod's loss, in its own namespace. The next observation finds ours still there.
		return unlessGone(s.sendRule(ctx, unix.RTM_DELRULE, 0, before), unix.ENOENT)
	default:
		return invalid("a rule cannot change: another one has to be created")
	}
}

func (s *Sandbox) sendRule(ctx context.Context, typ, flags int, r netstate.Rule) error {
	if s.inside == nil {
		return errGone
	}
	parts, err := encodeRule(r)
	if err != nil {
		return err
	}
	return s.inside.write(ctx, typ, flags, parts...)
}
