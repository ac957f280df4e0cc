package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// Masquerading is one table of nftables in the host's namespace (docs/adr/0046): for each
// family a set of sources and a set of pairs of source and destination that are excepted,
// and a chain with two rules that use them. So what a packet costs does not grow with the
// number of pods, and a pod is elements of sets.

const (
	natTable = "plumbline"
	natChain = "postrouting"
)

// natFamily holds the names and numbers that differ between IPv4 and IPv6.
type natFamily struct {
	proto            byte
	address          nftables.SetDatatype
	saddr, daddr     uint32 // offsets in the header
	length           uint32
	second           uint32 // the register after that of a source
	sources, excepts string // names of sets
}

// A register as the kernel reports it: 1 is of 16 bytes, and the first of 4; 9 is the second
// of 4, and 2 the second of 16.
var (
	nat4 = natFamily{unix.NFPROTO_IPV4, nftables.TypeIPAddr, 12, 16, 4, 9, "sources4", "excepts4"}
	nat6 = natFamily{unix.NFPROTO_IPV6, nftables.TypeIP6Addr, 8, 24, 16, 2, "sources6", "excepts6"}
)

func natOf(a netip.Addr) natFamily {
	if a.Is4() {
		return nat4
	}
	return nat6
}

func (f natFamily) sets(t *nftables.Table) (sources, excepts *nftables.Set) {
	pair := nftables.MustConcatSetType(f.address, f.address)
	return &nftables.Set{Table: t, Name: f.sources, KeyType: f.address},
		&nftables.Set{Table: t, Name: f.excepts, KeyType: pair, Interval: true, Concatenation: true}
}

// load is the expression that loads an address of the header.
func (f natFamily) load(offset, register uint32) expr.Any {
	return payload(expr.PayloadBaseNetworkHeader, offset, f.length, register)
}

// only is a rule for packets of the family.
func (f natFamily) only(more ...expr.Any) []expr.Any {
	return append([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f.proto}},
	}, more...)
}

// rules are those of the chain: a packet of a source to an excepted destination is left alone,
// and any other of it masqueraded.
func (f natFamily) rules() [][]expr.Any {
	return [][]expr.Any{
		f.only(f.load(f.saddr, 1), f.load(f.daddr, f.second), &expr.Lookup{SourceRegister: 1, SetName: f.excepts},
			&expr.Verdict{Kind: expr.VerdictReturn}),
		f.only(f.load(f.saddr, 1), &expr.Lookup{SourceRegister: 1, SetName: f.sources}, &expr.Masq{}),
	}
}

// natState is the table as it is: by source the excepted prefixes.
type natState struct {
	tableState
	sources map[netip.Addr][]string
}

// natBufferBytes is the size of a buffer that holds a transaction with all pods of a node.
const natBufferBytes = 4 << 20

// natTimeout bounds how long a pass has the lock. The package waits for an answer to each message
// of a transaction, and a kernel without memory sends one for all (nfnl_err_add in
// net/netfilter/nfnetlink.c).
var natTimeout = 30 * time.Second

// natConn connects to nftables of the host's namespace.
func (h *Host) natConn() (*nftables.Conn, error) {
	bound := func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(natBufferBytes), c.SetWriteBuffer(natBufferBytes), setNATDeadline(c))
	}
	return nftables.New(nftables.WithNetNSFd(int(h.socket.ns.Fd())), nftables.WithSockOptions(bound), nftables.AsLasting())
}

func setNATDeadline(c *netlink.Conn) error {
	return c.SetDeadline(time.Now().Add(natTimeout)) //nolint:forbidigo // of a socket, whose clock is not that of Options
}

// natTableOf describes the table.
func natTableOf() ownTable {
	t := ownTable{Table: &nftables.Table{Name: natTable, Family: nftables.TableFamilyINet}}
	for _, f := range []natFamily{nat4, nat6} {
		sources, excepts := f.sets(t.Table)
		t.sets = append(t.sets, sources, excepts)
	}
	t.chain(natChain, nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource,
		slices.Concat(nat4.rules(), nat6.rules())...)
	return t
}

// readNAT reads the table.
func readNAT(c *nftables.Conn) (natState, error) {
	out := natState{sources: map[netip.Addr][]string{}}
	var err error
	if out.tableState, err = natTableOf().read(c); err != nil {
		return out, err
	}
	for _, f := range []natFamily{nat4, nat6} {
		sources, excepts := out.sets[f.sources], out.sets[f.excepts]
		if sources == nil || excepts == nil {
			continue
		}
		if err := out.elements(c, f, sources, excepts); err != nil {
			return out, err
		}
	}
	return out, nil
}

func (n natState) elements(c *nftables.Conn, f natFamily, sources, excepts *nftables.Set) error {
	all, err := c.GetSetElements(sources)
	if err != nil {
		return err
	}
	for _, e := range all {
		if a, ok := netip.AddrFromSlice(e.Key); ok {
			n.sources[a] = []string{}
		}
	}
	if all, err = c.GetSetElements(excepts); err != nil {
		return err
	}
	for _, e := range all {
		size := int(f.length)
		if len(e.Key) != 2*size || len(e.KeyEnd) != 2*size {
			continue
		}
		source, _ := netip.AddrFromSlice(e.Key[:size])
		if _, ours := n.sources[source]; ours {
			n.sources[source] = append(n.sources[source], rangeText(e.Key[size:], e.KeyEnd[size:]))
		}
	}
	for source, prefixes := range n.sources {
		n.sources[source] = netstate.SortedPrefixes(prefixes)
	}
	return nil
}

// rangeText writes a range of addresses as the prefix it is, or as FIRST-LAST.
func rangeText(first, last []byte) string {
	from, _ := netip.AddrFromSlice(first)
	to, _ := netip.AddrFromSlice(last)
	if p, ok := netipx.IPRangeFrom(from, to).Prefix(); ok {
		return p.String()
	}
	return from.String() + "-" + to.String()
}

// queryMasquerades reads the table once for all of them. In a table that is not as we write
// it nothing is masqueraded for sure, so that nothing counts as there.
func (o *observer) queryMasquerades(_ context.Context, queried []netstate.Masquerade) error {
	var state natState
	err := o.queryTable(func(c *nftables.Conn) (err error) {
		state, err = readNAT(c)
		return err
	})
	if err != nil {
		return explainNAT(fmt.Errorf("read table %q of nftables: %w", natTable, err))
	}
	for _, m := range queried {
		source, err := netip.ParseAddr(m.Source)
		have, there := state.sources[source]
		if err != nil || !there || !state.intact {
			o.snap.PutAbsent(m.Key())
			continue
		}
		o.snap.Put(netstate.Masquerade{Source: m.Source, Except: have})
	}
	return nil
}

// withNAT calls f with a connection. Changes of several sandboxes are made one after the
// other: who deletes the table has to know that it is empty.
func (h *Host) withNAT(f func(*nftables.Conn) error) error {
	h.nat.Lock()
	defer h.nat.Unlock()
	c, err := h.natConn()
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.CloseLasting())
}

// queryTable is withNAT for a query.
func (o *observer) queryTable(f func(*nftables.Conn) error) error {
	o.count.dumps.Add(1)
	return o.count.send(false, func() error { return o.host.withNAT(f) })
}

// writeTable is withNAT for a change.
func (s *Sandbox) writeTable(ctx context.Context, f func(*nftables.Conn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.count.writes.Add(1)
	return s.count.send(true, func() error { return s.host.withNAT(f) })
}

// applyMasquerade makes one change in one transaction: the kernel has all of it or nothing.
func (s *Sandbox) applyMasquerade(ctx context.Context, c netstate.Change) error {
	before, after := typed[netstate.Masquerade](c)
	deleting := c.Action() == netstate.Delete
	m := after
	if deleting {
		m = before
	}
	source, err := netip.ParseAddr(m.Source)
	if err != nil {
		return invalid("%q is not an address", m.Source)
	}
	for _, prefix := range m.Except {
		if p, err := netip.ParsePrefix(prefix); err != nil || p.Addr().Is4() != source.Is4() {
			return invalid("%q is not a prefix of the family of %q", prefix, m.Source)
		}
	}
	return explainNAT(s.writeTable(ctx, func(c *nftables.Conn) error {
		have, err := readNAT(c)
		if err != nil {
			return err
		}
		return writeNAT(c, have, source, m.Except, deleting)
	}))
}

// writeNAT makes the table what it is to be with or without a source.
func writeNAT(c *nftables.Conn, have natState, source netip.Addr, except []string, deleting bool) error {
	t := natTableOf()
	old, there := have.sources[source]
	want, gone, added := maps.Clone(have.sources), map[netip.Addr][]string{}, map[netip.Addr][]string{}
	if there {
		gone[source] = old
	}
	if deleting {
		delete(want, source)
	} else {
		want[source], added[source] = except, except
	}
	return t.write(c, have.tableState, tableChange{
		deleting: deleting, there: there, empty: len(want) == 0,
		all: func() []setElements { return natElements(t.Table, want) }, gone: natElements(t.Table, gone),
		added: natElements(t.Table, added),
	})
}

// natElements are the elements that sources have in each of the sets.
func natElements(t *nftables.Table, of map[netip.Addr][]string) []setElements {
	var out []setElements
	for _, family := range []natFamily{nat4, nat6} {
		var sources, excepts []nftables.SetElement
		for source, except := range of {
			if natOf(source) != family {
				continue
			}
			sources = append(sources, nftables.SetElement{Key: source.AsSlice()})
			for _, text := range except {
				if first, last, ok := bounds(text); ok {
					excepts = append(excepts, nftables.SetElement{
						Key:    slices.Concat(source.AsSlice(), first.AsSlice()),
						KeyEnd: slices.Concat(source.AsSlice(), last.AsSlice()),
					})
				}
			}
		}
		sourceSet, exceptSet := family.sets(t)
		out = append(out, setElements{sourceSet, sources}, setElements{exceptSet, excepts})
	}
	return out
}

// bounds are the first and last address of what rangeText has written.
func bounds(text string) (first, last netip.Addr, ok bool) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Masked().Addr(), netipx.PrefixLastIP(p), true
	}
	r, err := netipx.ParseIPRange(text)
	return r.From(), r.To(), err == nil
}

// unsupportedTable are the errors of a kernel that lacks something of a table.
var unsupportedTable = []error{unix.EPROTONOSUPPORT, unix.EOPNOTSUPP, unix.EAFNOSUPPORT}

func explainNAT(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return unanswered(err)
	case isAny(err, unsupportedTable...):
		return because(fault.Unsupported, err,
			"the kernel cannot masquerade by nftables: it needs the modules nf_tables, nft_chain_nat and nft_masq")
	case isAny(err, unix.EBUSY, unix.EINTR, unix.EAGAIN):
		return because(fault.NotReady, err, "another program changes nftables at the same time")
	}
	return err
}
