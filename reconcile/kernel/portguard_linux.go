package kernel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// The frames that ports of bridges may send are in one more table of nftables (docs/adr/0075), of the family bridge: its chain
// sees a frame before the bridge learns the source address. A port is elements of sets, so what a frame costs does not
// grow with the number of pods.

const guardTable = "plumbline-guard"

// The sets of the table. A key begins with the name of the port, or of the bridge.
const (
	guardPorts    = "ports"      // of a bridge
	guardChecked  = "checked"    // ports with a limited source address
	guardMACs     = "macs"       // source addresses of ports
	guardSilent   = "no-routers" // ports that send no router advertisements
	guardOwners4  = "owners4"    // ports, and addresses that they may say they have
	guardOwners6  = "owners6"
	guardClaimed4 = "claimed4" // bridges, and addresses that only their owners may say they have
	guardClaimed6 = "claimed6"
	// No rule uses these. They say which port the addresses of a bridge are claimed for.
	guardGateways4 = "gateways4"
	guardGateways6 = "gateways6"
)

// Registers of 16 bytes, as the kernel reports them: a name, and what follows it in a key.
const (
	guardName = 1
	guardRest = 2
)

// guardFamily holds the names of the sets for addresses of one family.
type guardFamily struct{ owners, claimed, gateways string }

func guardOf(a netip.Addr) guardFamily {
	if a.Is4() {
		return guardFamily{guardOwners4, guardClaimed4, guardGateways4}
	}
	return guardFamily{guardOwners6, guardClaimed6, guardGateways6}
}

// ICMPv6 of RFC 4861, and its offsets.
const (
	icmpRouterSolicit   = 133
	icmpRouterAdvert    = 134
	icmpNeighborSolicit = 135
	icmpNeighborAdvert  = 136
	icmpV6Redirect      = 137
	icmpRedirect        = 5 // RFC 792

	arpSender = 14 // the sender's IPv4 address in ARP over Ethernet (RFC 826)
	ndSource  = 8  // the source address in an IPv6 header
	ndTarget  = 8  // the target in a solicitation or advertisement of a neighbor
)

func cmpIs(data ...byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

func etherType(proto uint16) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1}, cmpIs(binary.BigEndian.AppendUint16(nil, proto)...)}
}

func transport(proto uint16, l4 byte) []expr.Any {
	return append(etherType(proto), &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, cmpIs(l4))
}

// fromPort is for frames of the ports in a set.
func fromPort(set string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: guardName}, &expr.Lookup{SourceRegister: guardName, SetName: set}}
}

// notOwned matches an address at an offset that another port of the bridge owns, and this port does not.
func notOwned(of guardFamily, base expr.PayloadBase, offset, length uint32) []expr.Any {
	return slices.Concat(fromPort(guardChecked), []expr.Any{
		payload(base, offset, length, guardRest),
		&expr.Lookup{SourceRegister: guardName, SetName: of.owners, Invert: true},
		&expr.Meta{Key: expr.MetaKeyBRIIIFNAME, Register: guardName},
		&expr.Lookup{SourceRegister: guardName, SetName: of.claimed},
	})
}

// drop drops what all expressions match.
func drop(matching ...[]expr.Any) []expr.Any {
	return append(slices.Concat(matching...), &expr.Verdict{Kind: expr.VerdictDrop})
}

// guardTableOf describes the table. A second tag moves or hides what is in the frame, while a receiver takes off any number of
// tags of VLAN 0 (check_vlan_id in net/core/dev.c).
func guardTableOf() ownTable {
	t := ownTable{Table: &nftables.Table{Name: guardTable, Family: nftables.TableFamilyBridge}}
	name := func(with nftables.SetDatatype) nftables.SetDatatype {
		return nftables.MustConcatSetType(nftables.TypeIFName, with)
	}
	set := func(name string, key nftables.SetDatatype, concatenated bool) {
		t.sets = append(t.sets, &nftables.Set{Table: t.Table, Name: name, KeyType: key, Concatenation: concatenated})
	}
	set(guardPorts, name(nftables.TypeIFName), true)
	set(guardChecked, nftables.TypeIFName, false)
	set(guardMACs, name(nftables.TypeEtherAddr), true)
	set(guardSilent, nftables.TypeIFName, false)
	for _, s := range []string{guardOwners4, guardClaimed4, guardGateways4} {
		set(s, name(nftables.TypeIPAddr), true)
	}
	for _, s := range []string{guardOwners6, guardClaimed6, guardGateways6} {
		set(s, name(nftables.TypeIP6Addr), true)
	}

	v4, v6 := guardOf(netip.IPv4Unspecified()), guardOf(netip.IPv6Unspecified())
	typeOf := payload(expr.PayloadBaseTransportHeader, 0, 1, 1)
	icmp := func(typ byte) []expr.Any { return []expr.Any{typeOf, cmpIs(typ)} }
	nd := [][]expr.Any{
		drop(icmp(icmpRouterAdvert), fromPort(guardSilent)),
		drop(icmp(icmpV6Redirect), fromPort(guardSilent)),
		drop([]expr.Any{
			typeOf, &expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{icmpRouterSolicit}, ToData: []byte{icmpV6Redirect}},
		}, notOwned(v6, expr.PayloadBaseNetworkHeader, ndSource, 16)),
		drop(icmp(icmpNeighborAdvert), notOwned(v6, expr.PayloadBaseTransportHeader, ndTarget, 16)),
		// Duplicate address detection: who asks says that it wants the address.
		drop(icmp(icmpNeighborSolicit), []expr.Any{payload(expr.PayloadBaseNetworkHeader, ndSource, 16, 1), cmpIs(make([]byte, 16)...)},
			notOwned(v6, expr.PayloadBaseTransportHeader, ndTarget, 16)),
	}
	// The header of a frame as it came: the kernel has taken the first tag off, and newer ones look past a second one (skb->protocol).
	typeAt := func(offset uint32, proto uint16) []expr.Any {
		return []expr.Any{payload(expr.PayloadBaseLLHeader, offset, 2, 1), cmpIs(binary.BigEndian.AppendUint16(nil, proto)...)}
	}
	tagged := func(proto uint16) []expr.Any {
		return append(typeAt(12, proto), &expr.Verdict{Kind: expr.VerdictJump, Chain: "tagged"})
	}
	twice := func(proto uint16) []expr.Any {
		return drop(typeAt(16, proto), []expr.Any{
			&expr.Meta{Key: expr.MetaKeyBRIIIFNAME, Register: guardName}, &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: guardRest},
			&expr.Lookup{SourceRegister: guardName, SetName: guardPorts},
		})
	}
	pre := [][]expr.Any{
		tagged(unix.ETH_P_8021Q), tagged(unix.ETH_P_8021AD),
		drop(fromPort(guardChecked), []expr.Any{
			payload(expr.PayloadBaseLLHeader, 6, 6, guardRest),
			&expr.Lookup{SourceRegister: guardName, SetName: guardMACs, Invert: true},
		}),
		drop(etherType(unix.ETH_P_ARP), notOwned(v4, expr.PayloadBaseNetworkHeader, arpSender, 4)),
		drop(transport(unix.ETH_P_IP, unix.IPPROTO_ICMP), icmp(icmpRedirect), fromPort(guardSilent)),
		append(transport(unix.ETH_P_IPV6, unix.IPPROTO_ICMPV6), &expr.Verdict{Kind: expr.VerdictJump, Chain: "neighbors"}),
	}
	priority := nftables.ChainPriority(-300) // NF_BR_PRI_NAT_DST_BRIDGED: before what other programs decide
	t.chain("neighbors", "", nil, nil, nd...)
	t.chain("tagged", "", nil, nil, twice(unix.ETH_P_8021Q), twice(unix.ETH_P_8021AD))
	t.chain("prerouting", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, &priority, pre...)
	return t
}

// guardElement is an element of a set.
type guardElement struct{ set, key string }

// guardState is the table as it is. It is not changed once it was read.
type guardState struct {
	tableState
	elements map[guardElement]bool
	guards   map[string]netstate.PortGuard // by port
}

func readGuards(c *nftables.Conn) (*guardState, error) {
	table, err := guardTableOf().read(c)
	if err != nil {
		return nil, err
	}
	elements := map[guardElement]bool{}
	for name, set := range table.sets {
		all, err := c.GetSetElements(set)
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			elements[guardElement{name, string(e.Key)}] = true
		}
	}
	return newGuardState(table, elements), nil
}

// newGuardState finds the guards in elements. An address counts only if it is claimed on the bridge, too, and a MAC only with
// its link-local address.
func newGuardState(table tableState, elements map[guardElement]bool) *guardState {
	out := &guardState{tableState: table, elements: elements, guards: map[string]netstate.PortGuard{}}
	for e := range elements {
		if len(e.key) != 2*unix.IFNAMSIZ || e.set != guardPorts {
			continue
		}
		bridge, port := nameOf(e.key), nameOf(e.key[unix.IFNAMSIZ:])
		if old, there := out.guards[port]; there && *old.Bridge < bridge {
			continue
		}
		out.guards[port] = netstate.PortGuard{
			Port: port, Bridge: &bridge, MACs: []string{}, Addresses: []string{}, Gateways: []string{},
			RAGuard: new(elements[guardElement{guardSilent, nameKey(port)}]),
		}
	}
	for e := range elements {
		if len(e.key) <= unix.IFNAMSIZ {
			continue
		}
		g, there := out.guards[nameOf(e.key)]
		rest := []byte(e.key[unix.IFNAMSIZ:])
		a, _ := netip.AddrFromSlice(rest)
		switch of := guardOf(a); {
		case !there:
		case e.set == guardMACs && elements[guardElement{guardChecked, nameKey(g.Port)}]:
			mac := net.HardwareAddr(rest[:6]).String()
			if local, ok := netstate.LinkLocal(mac); ok && out.claims(g, local, guardOwners6) {
				g.MACs = append(g.MACs, mac)
			}
		case e.set == of.owners && out.claims(g, a, of.owners) && !out.derived(g, a):
			g.Addresses = append(g.Addresses, a.String())
		case e.set == of.gateways && out.claims(g, a, of.gateways):
			g.Gateways = append(g.Gateways, a.String())
		}
		if there {
			out.guards[g.Port] = g
		}
	}
	for port, g := range out.guards {
		for _, list := range [][]string{g.MACs, g.Addresses, g.Gateways} {
			slices.Sort(list)
		}
		if len(g.MACs) == 0 && elements[guardElement{guardChecked, nameKey(port)}] {
			g.MACs = []string{"none"} // which is not the same as any
		}
		out.guards[port] = g
	}
	return out
}

// claims reports whether a set has an address for a port, and the port's bridge has it as claimed.
func (s *guardState) claims(g netstate.PortGuard, a netip.Addr, set string) bool {
	key := string(a.AsSlice())
	return s.elements[guardElement{set, nameKey(g.Port) + key}] && s.elements[guardElement{guardOf(a).claimed, nameKey(*g.Bridge) + key}]
}

// derived reports whether an address is made of a MAC of the port.
func (s *guardState) derived(g netstate.PortGuard, a netip.Addr) bool {
	b := a.As16()
	mac := string([]byte{b[8] ^ 2, b[9], b[10], b[13], b[14], b[15]})
	local, _ := netstate.LinkLocal(net.HardwareAddr(mac).String())
	return a == local && s.elements[guardElement{guardMACs, nameKey(g.Port) + padded(mac)}]
}

func nameKey(name string) string {
	return name + strings.Repeat("\x00", max(0, unix.IFNAMSIZ-len(name)))
}

func nameOf(key string) string {
	return text([]byte(key[:unix.IFNAMSIZ]))
}

// padded is a part of a key: of whole registers of four bytes.
func padded(part string) string { return part + strings.Repeat("\x00", (4-len(part)%4)%4) }

// guardElements are the elements of a guard; a guard whose fields are not all set has those of the others.
func guardElements(g netstate.PortGuard) (map[guardElement]bool, error) {
	out := map[guardElement]bool{}
	if g.Port == "" || len(g.Port) >= unix.IFNAMSIZ || g.Bridge == nil || len(*g.Bridge) >= unix.IFNAMSIZ {
		return nil, invalid("the guard of port %q has no bridge", g.Port)
	}
	port, bridge := nameKey(g.Port), nameKey(*g.Bridge)
	out[guardElement{guardPorts, bridge + port}] = true
	if g.RAGuard != nil && *g.RAGuard {
		out[guardElement{guardSilent, port}] = true
	}
	claim := func(a netip.Addr, set string) {
		key := string(a.AsSlice())
		out[guardElement{set, port + key}], out[guardElement{guardOf(a).claimed, bridge + key}] = true, true
	}
	for _, text := range g.MACs {
		local, ok := netstate.LinkLocal(text)
		if !ok {
			return nil, invalid("%q is not a MAC address", text)
		}
		mac, _ := net.ParseMAC(text)
		out[guardElement{guardChecked, port}], out[guardElement{guardMACs, port + padded(string(mac))}] = true, true
		claim(local, guardOwners6)
	}
	for list, texts := range [][]string{g.Addresses, g.Gateways} {
		for _, text := range texts {
			a, err := netip.ParseAddr(text)
			if err != nil || a.Zone() != "" {
				return nil, invalid("%q is not an address", text)
			}
			claim(a, []string{guardOf(a).owners, guardOf(a).gateways}[list])
		}
	}
	return out, nil
}

// queryPortGuards reads the table once for all of them. In a table that is not as we write it nothing is guarded
// for sure, so that nothing counts as there.
func (o *observer) queryPortGuards(_ context.Context, queried []netstate.PortGuard) error {
	err := o.queryTable(func(c *nftables.Conn) error {
		state, _, _, err := o.host.guards.read(o.host, c, readGuards)
		if err != nil {
			return err
		}
		for _, g := range queried {
			if g.Port == "" { // a query for all, for what is to be deleted
				for _, have := range state.guards {
					o.snap.Put(have)
				}
			}
			if have, there := state.guards[g.Port]; there && state.intact {
				o.snap.Put(have)
			} else {
				o.snap.PutAbsent(g.Key())
			}
		}
		return nil
	})
	if err != nil {
		return explainGuards(fmt.Errorf("read table \"bridge %s\" of nftables: %w", guardTable, err))
	}
	return nil
}

// applyPortGuard makes one change in one transaction: the kernel has all of it or nothing.
func (s *Sandbox) applyPortGuard(ctx context.Context, c netstate.Change) error {
	return explainGuards(s.writeTable(ctx, func(conn *nftables.Conn) error {
		have, generation, known, err := s.host.guards.read(s.host, conn, readGuards)
		if err != nil {
			return err
		}
		s.host.guards = tableCache[guardState]{}
		next, wrote, err := have.write(conn, c)
		switch now, still := s.host.nftGeneration(); {
		case err != nil || !known || !still || next.foreign != "":
		case !wrote && now == generation, wrote && now == generation+1:
			s.host.guards = tableCache[guardState]{next, now}
		}
		return err
	}))
}

// write makes the table what it is to be after a change. Wrote is false if it is that already.
func (s *guardState) write(c *nftables.Conn, change netstate.Change) (next *guardState, wrote bool, err error) {
	port, deleting := change.Key().ID, change.Action() == netstate.Delete
	guards := maps.Clone(s.guards)
	old, there := guards[port]
	if delete(guards, port); !deleting {
		_, want := typed[netstate.PortGuard](change)
		if change.Action() == netstate.Update && there { // which has only the fields that it changes
			want = netstate.Merge(old, want)
		}
		guards[port] = want
	}
	want := map[guardElement]bool{}
	for _, g := range guards {
		some, err := guardElements(g)
		if err != nil && g.Port == port {
			return s, false, err
		}
		maps.Copy(want, some)
	}
	was := s.ofPort(port)
	after, gone, added := maps.Clone(s.elements), map[guardElement]bool{}, map[guardElement]bool{}
	for e := range s.elements {
		if !want[e] && (was[e] || e.set == guardClaimed4 || e.set == guardClaimed6) {
			gone[e] = true
			delete(after, e)
		}
	}
	for e := range want {
		if !s.elements[e] {
			added[e], after[e] = true, true
		}
	}
	t := guardTableOf()
	w := tableChange{
		deleting: deleting, there: there || len(gone) > 0, empty: len(guards) == 0,
		all: func() []setElements { return t.elements(want) }, gone: t.elements(gone), added: t.elements(added),
	}
	if w.none(s.tableState) || s.intact && !w.empty && len(gone)+len(added) == 0 {
		return s, false, nil
	}
	rewritten := s.foreign == "" && !s.intact
	if err := t.write(c, s.tableState, w); err != nil {
		return s, true, err
	}
	if rewritten {
		after = want
	}
	sets := map[string]*nftables.Set{}
	for _, set := range t.sets {
		sets[set.Name] = set
	}
	table := tableState{there: true, intact: true, sets: sets, foreign: s.foreign}
	if w.empty && s.foreign == "" {
		table, after = tableState{}, map[guardElement]bool{}
	}
	return newGuardState(table, after), true, nil
}

// ofPort returns the elements of a port: those whose key begins with its name, and that of guardPorts, where the bridge's name comes first.
func (s *guardState) ofPort(port string) map[guardElement]bool {
	out := map[guardElement]bool{}
	for e := range s.elements {
		name := e.key
		switch e.set {
		case guardClaimed4, guardClaimed6:
			continue
		case guardPorts:
			name = name[min(len(name), unix.IFNAMSIZ):]
		}
		if strings.HasPrefix(name, nameKey(port)) {
			out[e] = true
		}
	}
	return out
}

// elements returns the elements of each set, in order.
func (t ownTable) elements(of map[guardElement]bool) []setElements {
	var out []setElements
	for _, set := range t.sets {
		s := setElements{set: set}
		for e := range of {
			if e.set == set.Name {
				s.elements = append(s.elements, nftables.SetElement{Key: []byte(e.key)})
			}
		}
		slices.SortFunc(s.elements, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
		out = append(out, s)
	}
	return out
}

func explainGuards(err error) error {
	if errors.Is(err, unix.ENOENT) || isAny(err, unsupportedTable...) {
		if first, ok := errors.AsType[unix.Errno](err); ok { // of many, one for each message
			err = first
		}
		return because(fault.Unsupported, err,
			"the kernel has no nftables for bridges, which guard the ports: load the modules nf_tables and nft_meta_bridge, "+
				"or create the bridge on the node and set macspoofchk: false and raGuard: false in the step")
	}
	return explainNAT(err)
}
