package kernel

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// Ports of the host that lead to pods are one more table of nftables (docs/adr/0055): for each
// family a map from ports of any address of the host, one from ports of one address, and a set of
// pairs of network and pod whose packets are masqueraded. The cost of a packet does not grow
// with the number of pods.
//
// A port of the loopback needs the sysctl route_localnet of the link that leads to its pod. One more set has the pairs
// of such a link and a pod: the sysctl is 0 again with the last one. It is 1 only while the chain "loopback" drops what
// comes to the loopback from elsewhere, since the kernel no longer does.

const (
	portTable   = "plumbline-ports"
	localnetSet = "localnet4"
)

// portFamily holds the names and numbers that differ between IPv4 and IPv6.
type portFamily struct {
	natFamily
	any, at, hairpins string // names of maps and of a set
	third             uint32 // the register after natFamily's second
	loopback          []byte
	lastLoopback      []byte
}

var (
	ports4 = portFamily{nat4, "any4", "at4", "hairpins4", 10, []byte{127, 0, 0, 0}, []byte{127, 255, 255, 255}}
	ports6 = portFamily{nat6, "any6", "at6", "hairpins6", 13, netip.IPv6Loopback().AsSlice(), netip.IPv6Loopback().AsSlice()}
)

func (f portFamily) sets(t *nftables.Table) (anyMap, at, hairpins *nftables.Set) {
	to := nftables.MustConcatSetType(f.address, nftables.TypeInetService)
	return &nftables.Set{
			Table: t, Name: f.any, IsMap: true, Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService), DataType: to,
		},
		&nftables.Set{
			Table: t, Name: f.at, IsMap: true, Concatenation: true,
			KeyType: nftables.MustConcatSetType(f.address, nftables.TypeInetProto, nftables.TypeInetService), DataType: to,
		},
		&nftables.Set{
			Table: t, Name: f.hairpins, KeyType: nftables.MustConcatSetType(f.address, f.address), Interval: true,
			Concatenation: true,
		}
}

// port loads protocol and destination port, looks them up and sends the packet on.
func (f portFamily) port(set string, first, second uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: first},
		payload(expr.PayloadBaseTransportHeader, 2, 2, second),
		&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: set},
		&expr.NAT{
			Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: 1, RegAddrMax: 1, RegProtoMin: f.second,
			RegProtoMax: f.second, Specified: true,
		},
	}
}

// mapping are the rules for packets to the host: first those for one address, then those for
// any. Packets through the host to others, whoever has the address, are left alone. So is the
// loopback, whose packets must not leave the host.
func (f portFamily) mapping() [][]expr.Any {
	local := func(more ...expr.Any) []expr.Any {
		return f.only(append([]expr.Any{
			&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
			f.load(f.daddr, 1),
		}, more...)...)
	}
	return [][]expr.Any{
		local(f.port(f.at, f.second, f.third)...),
		local(append([]expr.Any{&expr.Range{Op: expr.CmpOpNeq, Register: 1, FromData: f.loopback, ToData: f.lastLoopback}},
			f.port(f.any, 1, 9)...)...),
	}
}

// notFromElsewhere drops packets to or from the loopback that arrive on a link whose address that is not: it is that of
// lo, or of a VRF (Documentation/networking/vrf.rst). Rules before it and the kernel would send them on to a pod with a
// port of the loopback, and with route_localnet to programs that listen there only.
func notFromElsewhere() (rules [][]expr.Any) {
	for _, source := range []bool{false, true} {
		at := nat4.daddr
		if source {
			at = nat4.saddr
		}
		rules = append(rules, ports4.only(
			nat4.load(at, 1),
			&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: ports4.loopback, ToData: ports4.lastLoopback},
			&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagSADDR: source, FlagDADDR: !source, FlagIIF: true},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
			&expr.Verdict{Kind: expr.VerdictDrop},
		))
	}
	return rules
}

// fromLoopback masquerades what the host sends to a port of the loopback: the pod could not answer that.
func fromLoopback() []expr.Any {
	return ports4.only(slices.Concat(dnat(), []expr.Any{
		nat4.load(nat4.saddr, 1),
		&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: ports4.loopback, ToData: ports4.lastLoopback},
		&expr.Meta{Key: expr.MetaKeyOIFTYPE, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint16(unix.ARPHRD_LOOPBACK)},
		&expr.Masq{},
	})...)
}

// destinationTranslated is IPS_DST_NAT of a connection's status.
const destinationTranslated = 1 << 5

// dnat selects packets whose destination something has changed.
func dnat() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(destinationTranslated),
			Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func (f portFamily) hairpin() []expr.Any {
	return f.only(slices.Concat(dnat(), []expr.Any{
		f.load(f.saddr, 1), f.load(f.daddr, f.second),
		&expr.Lookup{SourceRegister: 1, SetName: f.hairpins}, &expr.Masq{},
	})...)
}

// localnet is the set of pairs of a link and a pod.
func localnet(t *nftables.Table) *nftables.Set {
	return &nftables.Set{
		Table: t, Name: localnetSet, Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr),
	}
}

// portTableOf describes the table.
func portTableOf() ownTable {
	t := ownTable{Table: &nftables.Table{Name: portTable, Family: nftables.TableFamilyINet}}
	for _, f := range []portFamily{ports4, ports6} {
		anyMap, at, hairpins := f.sets(t.Table)
		t.sets = append(t.sets, anyMap, at, hairpins)
	}
	t.sets = append(t.sets, localnet(t.Table))
	mappings := slices.Concat(ports4.mapping(), ports6.mapping())
	t.chain("loopback", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, notFromElsewhere()...)
	t.chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, mappings...)
	t.chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest, mappings...)
	t.chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource,
		ports4.hairpin(), ports6.hairpin(), fromLoopback())
	return t
}

// portState is the table as it is.
type portState struct {
	tableState
	to       map[netstate.HostPort]netip.AddrPort
	networks map[netip.Addr][]string // by pod
	// of counts the ports of a pod, and at lists those of one address of the host, by the port of all addresses.
	of map[netip.Addr]int
	at map[netstate.HostPort][]netstate.HostPort
	// inward counts the ports of a pod that are of the loopback, and via has the link that leads to such a pod.
	inward map[netip.Addr]int
	via    map[netip.Addr]string
}

// put notes that a port leads to a pod.
func (s *portState) put(host netstate.HostPort, to netip.AddrPort) {
	s.drop(host)
	s.to[host] = to
	s.of[to.Addr()]++
	if host.Addr().IsLoopback() {
		s.inward[to.Addr()]++
	}
	if all := host.OfAll(); all != host {
		s.at[all] = append(s.at[all], host)
	}
}

// drop notes that a port leads nowhere.
func (s *portState) drop(host netstate.HostPort) {
	to, there := s.to[host]
	if !there {
		return
	}
	delete(s.to, host)
	if s.of[to.Addr()]--; s.of[to.Addr()] == 0 {
		delete(s.of, to.Addr())
	}
	if host.Addr().IsLoopback() {
		if s.inward[to.Addr()]--; s.inward[to.Addr()] == 0 {
			delete(s.inward, to.Addr())
		}
	}
	if all := host.OfAll(); all != host {
		s.at[all] = slices.DeleteFunc(s.at[all], func(h netstate.HostPort) bool { return h == host })
		if len(s.at[all]) == 0 {
			delete(s.at, all)
		}
	}
}

// wrotePorts notes what a change of the table of a generation has made of it. The caller has the lock.
func (h *Host) wrotePorts(state *portState, generation uint32) {
	h.ports = tableCache[portState]{}
	if now, known := h.nftGeneration(); known && now == generation+1 && state.foreign == "" {
		h.ports = tableCache[portState]{state, now}
	}
}

func readPorts(c *nftables.Conn) (*portState, error) {
	out := &portState{
		to: map[netstate.HostPort]netip.AddrPort{}, networks: map[netip.Addr][]string{}, of: map[netip.Addr]int{},
		at: map[netstate.HostPort][]netstate.HostPort{}, inward: map[netip.Addr]int{}, via: map[netip.Addr]string{},
	}
	var err error
	if out.tableState, err = portTableOf().read(c); err != nil {
		return out, err
	}
	for _, f := range []portFamily{ports4, ports6} {
		names := []string{f.any, f.at, f.hairpins}
		if f.natFamily == nat4 {
			names = append(names, localnetSet)
		}
		for _, name := range names {
			set := out.sets[name]
			if set == nil {
				continue
			}
			all, err := c.GetSetElements(set)
			if err != nil {
				return out, err
			}
			for _, e := range all {
				out.element(f, name, e)
			}
		}
	}
	return out, nil
}

// element reads one of a map or of the set. An element of another form is left out, and left alone.
func (s *portState) element(f portFamily, name string, e nftables.SetElement) {
	size := int(f.length)
	if name == f.hairpins {
		if len(e.Key) == 2*size && len(e.KeyEnd) == 2*size {
			pod, _ := netip.AddrFromSlice(e.Key[size:])
			s.networks[pod] = append(s.networks[pod], rangeText(e.Key[:size], e.KeyEnd[:size]))
		}
		return
	}
	if name == localnetSet {
		if len(e.Key) == unix.IFNAMSIZ+size {
			pod, _ := netip.AddrFromSlice(e.Key[unix.IFNAMSIZ:])
			s.via[pod] = unix.ByteSliceToString(e.Key[:unix.IFNAMSIZ])
		}
		return
	}
	key, on := e.Key, f.anyAddress()
	if name == f.at && len(key) == size+8 {
		on, _ = netip.AddrFromSlice(key[:size])
		key = key[size:]
	}
	if len(key) != 8 || len(e.Val) < size+2 {
		return
	}
	to, _ := netip.AddrFromSlice(e.Val[:size])
	for protocol, number := range portProtocols {
		if key[0] == number {
			s.put(netstate.HostPort{AddrPort: netip.AddrPortFrom(on, binary.BigEndian.Uint16(key[4:])), Protocol: protocol},
				netip.AddrPortFrom(to, binary.BigEndian.Uint16(e.Val[size:])))
		}
	}
}

func (f portFamily) anyAddress() netip.Addr {
	if f.proto == unix.NFPROTO_IPV4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

var portProtocols = map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}

// overlapping returns the ports of the table that overlap with one of these, without these, in order.
func (s *portState) overlapping(hosts ...netstate.HostPort) (out []netstate.HostPort) {
	for _, h := range hosts {
		if ofAll := h.OfAll(); ofAll == h {
			out = append(out, s.at[h]...)
		} else if _, there := s.to[ofAll]; there {
			out = append(out, ofAll)
		}
	}
	slices.SortFunc(out, func(a, b netstate.HostPort) int {
		return cmp.Or(a.Compare(b.AddrPort), cmp.Compare(a.Protocol, b.Protocol))
	})
	return slices.Compact(out)
}

// queryPortMappings reads the table once for all of them.
func (o *observer) queryPortMappings(_ context.Context, queried []netstate.PortMapping) error {
	err := o.queryTable(func(c *nftables.Conn) error {
		state, _, _, err := o.host.ports.read(o.host, c, readPorts)
		if err == nil {
			state.answer(o.snap, queried, o.host.routesLocalnet)
		}
		return err
	})
	if err != nil {
		return explainPorts(fmt.Errorf("read table %q of nftables: %w", portTable, err))
	}
	return nil
}

// answer records the mappings that were queried. If the table's rules differ from ours, they may forward nothing, so
// no queried mapping counts as present. A query for all mappings precedes a deletion, and returns them from such
// a table, too. A link is open if packets of the loopback can leave over it.
func (s *portState) answer(snap *netstate.Snapshot, queried []netstate.PortMapping, open func(link string) bool) {
	var hosts []netstate.HostPort
	for _, m := range queried {
		if m.Host == "" {
			snap.PutAbsent(m.Key())
			for host := range s.to {
				snap.Put(s.mapping(host, open))
			}
			continue
		}
		host, err := netstate.ParseHostPort(m.Host)
		if err == nil {
			hosts = append(hosts, host)
		}
		if _, there := s.to[host]; err != nil || !there || !s.intact {
			snap.PutAbsent(m.Key())
			continue
		}
		snap.Put(s.mapping(host, open))
	}
	if s.intact {
		for _, host := range s.overlapping(hosts...) {
			snap.Put(s.mapping(host, open))
		}
	}
}

// mapping returns the mapping of a port that exists.
func (s *portState) mapping(host netstate.HostPort, open func(link string) bool) netstate.PortMapping {
	to, network := s.to[host], ""
	if all := s.networks[to.Addr()]; len(all) > 0 {
		network = slices.Sorted(slices.Values(all))[0]
	}
	m := netstate.PortMapping{Host: host.String(), To: new(to.String()), Network: &network}
	if host.Addr().IsLoopback() {
		link := s.via[to.Addr()]
		if link != "" && !open(link) {
			link = ""
		}
		m.Via = &link
	}
	return m
}

// portMapping is a netstate.PortMapping that was read.
type portMapping struct {
	host    netstate.HostPort
	to      netip.AddrPort
	network string
	via     string // of a port of the loopback
}

// wanted reads what a change leads to. An update has only the fields that it changes; the
// others are as they are.
func (s *portState) wanted(host netstate.HostPort, m netstate.PortMapping, action netstate.Action) (out portMapping, err error) {
	out.host = host
	if old, there := s.to[host]; there && action == netstate.Update {
		if m.To == nil {
			m.To = new(old.String())
		}
		if all := s.networks[old.Addr()]; m.Network == nil && len(all) > 0 {
			m.Network = &all[0]
		}
		if via := s.via[old.Addr()]; m.Via == nil && via != "" {
			m.Via = &via
		}
	}
	if m.To == nil || m.Network == nil {
		return out, invalid("host port %q leads nowhere", host)
	}
	if out.to, err = netip.ParseAddrPort(*m.To); err != nil || out.to.Addr().Is4() != host.Addr().Is4() {
		return out, invalid("%q is not a port of an address of the family of %q", *m.To, host)
	}
	network, err := netip.ParsePrefix(*m.Network)
	if err != nil || network.Addr().Is4() != host.Addr().Is4() {
		return out, invalid("%q is not a prefix of the family of %q", *m.Network, host)
	}
	out.network = network.Masked().String()
	if host.Addr().IsLoopback() {
		if m.Via == nil || *m.Via == "" || len(*m.Via) >= unix.IFNAMSIZ || !host.Addr().Is4() {
			return out, invalid("host port %q of the loopback needs IPv4, and the link that leads to the pod", host)
		}
		out.via = *m.Via
	}
	return out, nil
}

// maxHostPorts bounds the ports of all pods of a node, those of each family. What others do with nftables makes the agent
// read them all, which takes a tenth of a second for so many.
const maxHostPorts = 16 << 10

// free refuses a mapping whose port another pod has, or one that overlaps with it.
func (s *portState) free(want portMapping) error {
	if to, taken := s.to[want.host]; taken && to != want.to {
		return fault.New(fault.Conflict, fmt.Errorf("host port %s leads to %s already", want.host, to))
	} else if taken {
		return nil
	}
	for _, other := range s.overlapping(want.host) {
		if to := s.to[other]; to.Addr() != want.to.Addr() { // one pod may have both
			return fault.New(fault.Conflict, fmt.Errorf("host port %s overlaps with %s, which leads to %s already", want.host, other, to))
		}
	}
	if len(s.to) >= maxHostPorts {
		return fault.New(fault.Conflict, fmt.Errorf(
			"host port %s: the pods of this node have %d ports of the host, counted for each family, and can have %d: choose another node",
			want.host, len(s.to), maxHostPorts))
	}
	return nil
}

func (s *Sandbox) applyPortMapping(ctx context.Context, c netstate.Change) error {
	_, err := s.applyPortMappings(ctx, []netstate.Change{c})
	return err
}

// applyPortMappings makes changes in one transaction: the kernel has all of them or nothing. An error is
// that of one change.
func (s *Sandbox) applyPortMappings(ctx context.Context, changes []netstate.Change) (failing netstate.Change, err error) {
	failing = changes[0]
	var done *portChanges
	err = s.writeTable(ctx, func(conn *nftables.Conn) error {
		have, generation, known, err := s.host.ports.read(s.host, conn, readPorts)
		if err != nil {
			return err
		}
		done = &portChanges{
			portState: have, was: map[netstate.HostPort]netip.AddrPort{}, networked: map[netip.Addr][]string{},
			led: map[netip.Addr]string{},
		}
		// From here on the state differs from the table until that was written.
		s.host.ports = tableCache[portState]{}
		for _, c := range changes {
			if err := done.add(c); err != nil {
				failing = c
				if done.revert(); known {
					s.host.ports = tableCache[portState]{have, generation}
				}
				return err
			}
		}
		open, shut := done.links()
		if err := s.host.mayRouteLocalnet(open, shut); err != nil {
			return err
		}
		wrote, err := done.write(conn)
		if err == nil {
			err = s.host.routeLocalnet(open, true)
		}
		switch {
		case err != nil || !known:
		case wrote:
			s.host.wrotePorts(have, generation)
		default:
			s.host.ports = tableCache[portState]{have, generation}
		}
		return err
	})
	if err == nil {
		for _, c := range changes {
			s.host.forgetUDP(c, done.was)
		}
	}
	return failing, explainPorts(err)
}

// forgetUDP forgets the connections of a port that has changed: packets of a connection that is known are sent where its
// first one was. There is nothing to do about a kernel that cannot select them.
func (h *Host) forgetUDP(c netstate.Change, was map[netstate.HostPort]netip.AddrPort) {
	host, err := netstate.ParseHostPort(c.Key().ID)
	if err != nil || host.Protocol != "udp" {
		return
	}
	if to := was[host]; to.IsValid() {
		_ = h.forgetConnections(host, to)
	}
	if c.Action() != netstate.Delete {
		_ = h.forgetConnections(host, netip.AddrPort{})
	}
}

// portChanges are changes of a state.
type portChanges struct {
	*portState
	was       map[netstate.HostPort]netip.AddrPort // ports that have changed, and where they led; zero for nowhere
	networked map[netip.Addr][]string              // pods whose networks have changed, and what these were
	led       map[netip.Addr]string                // the same of links to pods with ports of the loopback
	creates   bool
	deleted   bool // a port that was there
}

// add makes one change.
func (p *portChanges) add(c netstate.Change) error {
	before, wanted := typed[netstate.PortMapping](c)
	host, err := netstate.ParseHostPort(c.Key().ID)
	if err != nil {
		return invalid("%s", err)
	}
	to, taken := p.to[host]
	if c.Action() == netstate.Delete {
		if !taken || before.To != nil && *before.To != to.String() {
			return nil // another pod's by now
		}
		p.note(host)
		p.deleted = true
		p.drop(host)
		return nil
	}
	want, err := p.wanted(host, wanted, c.Action())
	if err != nil {
		return err
	}
	if c.Action() == netstate.Create && p.intact {
		if err := p.free(want); err != nil {
			return err
		}
	}
	p.note(host)
	p.creates = true
	p.put(host, want.to)
	p.network(want.to.Addr(), []string{want.network})
	if want.via != "" {
		p.lead(want.to.Addr(), want.via)
	}
	return nil
}

// revert undoes the changes of the state.
func (p *portChanges) revert() {
	for host, was := range p.was {
		if p.drop(host); was.IsValid() {
			p.put(host, was)
		}
	}
	for pod, was := range p.networked {
		p.network(pod, was)
	}
	for pod, was := range p.led {
		p.lead(pod, was)
	}
}

// note keeps where a port led before the first change.
func (p *portChanges) note(host netstate.HostPort) {
	if _, noted := p.was[host]; !noted {
		p.was[host] = p.to[host]
	}
}

// network sets the networks of a pod.
func (p *portChanges) network(pod netip.Addr, to []string) {
	if _, noted := p.networked[pod]; !noted {
		p.networked[pod] = p.networks[pod]
	}
	if p.networks[pod] = to; to == nil {
		delete(p.networks, pod)
	}
}

// lead sets the link that leads to a pod with ports of the loopback.
func (p *portChanges) lead(pod netip.Addr, link string) {
	if _, noted := p.led[pod]; !noted {
		p.led[pod] = p.via[pod]
	}
	if p.via[pod] = link; link == "" {
		delete(p.via, pod)
	}
}

// links returns the links over which packets of the loopback are to leave after the changes, those of pods that have
// changed, and those over which they are to leave no more.
func (p *portChanges) links() (open, shut []string) {
	for pod := range p.via {
		if p.inward[pod] == 0 {
			p.lead(pod, "")
		}
	}
	used := map[string]bool{}
	for _, link := range p.via {
		used[link] = true
	}
	for pod, was := range p.led {
		if link := p.via[pod]; link != "" {
			open = append(open, link)
		}
		if was != "" && !used[was] {
			shut = append(shut, was)
		}
	}
	slices.Sort(open)
	slices.Sort(shut)
	return slices.Compact(open), slices.Compact(shut)
}

// write writes the changes. Wrote is false if the table is that already.
func (p *portChanges) write(c *nftables.Conn) (wrote bool, err error) {
	if !p.creates && !p.deleted && (p.intact || p.foreign != "") {
		return false, nil
	}
	for pod := range p.networks {
		if p.of[pod] == 0 {
			p.network(pod, nil)
		}
	}
	gonePorts, newPorts := changed(p.was, p.to, func(a, b netip.AddrPort) bool { return a == b })
	goneNetworks, newNetworks := changed(p.networked, p.networks, slices.Equal[[]string])
	goneLinks, newLinks := changed(p.led, p.via, func(a, b string) bool { return a == b })
	t := portTableOf()
	change := tableChange{
		deleting: !p.creates, there: p.deleted, empty: len(p.to) == 0,
		all:   func() []setElements { return portElements(t.Table, p.to, p.networks, p.via) },
		gone:  portElements(t.Table, gonePorts, goneNetworks, goneLinks),
		added: portElements(t.Table, newPorts, newNetworks, newLinks),
	}
	have := p.tableState
	if have.intact && len(gonePorts)+len(goneNetworks)+len(goneLinks) == 0 || change.none(have) {
		return false, nil
	}
	p.tableState = tableState{there: len(p.to) > 0, intact: len(p.to) > 0, foreign: have.foreign}
	return true, t.write(c, have, change)
}

// changed returns the entries of a map that differ from those of another one, and those of the other.
func changed[K comparable, V any](was, is map[K]V, same func(a, b V) bool) (gone, added map[K]V) {
	gone, added = map[K]V{}, map[K]V{}
	for k, v := range was {
		if !same(v, is[k]) {
			gone[k], added[k] = v, is[k]
		}
	}
	return gone, added
}

// portElements are the elements that mappings, networks of pods and links to pods have in each map and set.
func portElements(t *nftables.Table, to map[netstate.HostPort]netip.AddrPort, networks map[netip.Addr][]string,
	via map[netip.Addr]string,
) []setElements {
	var out []setElements
	for _, family := range []portFamily{ports4, ports6} {
		var all, at, hairpins []nftables.SetElement
		for host, pod := range to {
			if natOf(host.Addr()) != family.natFamily || !pod.IsValid() { // it leads nowhere
				continue
			}
			key := append([]byte{portProtocols[host.Protocol], 0, 0, 0}, paddedPort(host.Port())...)
			val := append(pod.Addr().AsSlice(), paddedPort(pod.Port())...)
			if host.Addr().IsUnspecified() {
				all = append(all, nftables.SetElement{Key: key, Val: val})
			} else {
				at = append(at, nftables.SetElement{Key: append(host.Addr().AsSlice(), key...), Val: val})
			}
		}
		for pod, texts := range networks {
			for _, text := range texts {
				if first, last, ok := bounds(text); ok && natOf(pod) == family.natFamily {
					hairpins = append(hairpins, nftables.SetElement{
						Key:    slices.Concat(first.AsSlice(), pod.AsSlice()),
						KeyEnd: slices.Concat(last.AsSlice(), pod.AsSlice()),
					})
				}
			}
		}
		anySet, atSet, hairpinSet := family.sets(t)
		out = append(out, setElements{anySet, all}, setElements{atSet, at}, setElements{hairpinSet, hairpins})
	}
	var links []nftables.SetElement
	for pod, link := range via {
		if link != "" {
			links = append(links, nftables.SetElement{Key: []byte(nameKey(link) + string(pod.AsSlice()))})
		}
	}
	return append(out, setElements{localnet(t), links})
}

// paddedPort is a port as a part of a key: in network order, and of four bytes.
func paddedPort(port uint16) []byte { return []byte{byte(port >> 8), byte(port), 0, 0} }

func explainPorts(err error) error {
	if isAny(err, unsupportedTable...) {
		return because(fault.Unsupported, err, "the kernel cannot map ports by nftables: "+
			"it needs the modules nf_tables, nft_chain_nat, nft_nat, nft_masq, nft_fib_inet and nft_ct")
	}
	return explainNAT(err)
}

func localnetPath(link string) string { return "net/ipv4/conf/" + link + "/route_localnet" }

// routesLocalnet reports whether packets of the loopback can leave over a link.
func (h *Host) routesLocalnet(link string) bool {
	file, err := h.sysctlFile(localnetPath(link))
	if err != nil {
		return false
	}
	var value []byte
	err = h.socket.enter(func() (err error) { value, err = readFile(file); return err })
	return err == nil && strings.TrimSpace(string(value)) == "1"
}

// mayRouteLocalnet prepares a change of the table: packets of the loopback no longer leave over the links that are shut,
// and a sysctl that cannot be written fails before the table has changed.
func (h *Host) mayRouteLocalnet(open, shut []string) error {
	for _, link := range open {
		if h.routesLocalnet(link) {
			continue
		}
		if err := h.routeLocalnet([]string{link}, false); err != nil {
			return err
		}
	}
	for _, link := range shut {
		if err := h.routeLocalnet([]string{link}, false); err != nil && !errors.Is(err, fs.ErrNotExist) { // it goes with its link
			return err
		}
	}
	return nil
}

// routeLocalnet sets whether packets of the loopback leave over links (Documentation/networking/ip-sysctl.rst,
// route_localnet).
func (h *Host) routeLocalnet(links []string, on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	for _, link := range links {
		o := netstate.Sysctl{Path: netstate.HostName(localnetPath(link)), Value: &value}
		file, err := h.sysctlFile(localnetPath(link))
		if err == nil {
			err = h.socket.enter(func() error { return writeFile(file, value) })
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return because(fault.NotReady, err, "%s, for ports of the loopback: the host has no link %q", o.Key(), link)
		case err != nil:
			return fmt.Errorf("%s, for ports of the loopback: %w", o.Key(), explainSysctl(o, err))
		}
	}
	return nil
}
