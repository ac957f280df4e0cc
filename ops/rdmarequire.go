package ops

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// RDMARequirement is a condition of an RDMA device's port that holds before a container starts, and after.
type RDMARequirement struct {
	GID     *GIDRequirement `json:"gid,omitempty"`
	State   string          `json:"state,omitempty"`
	MinRate *string         `json:"minRate,omitempty"`
	MTU     uint32          `json:"mtu,omitempty,string"` // bytes of payload in a packet
}

// GIDRequirement chooses among the GIDs of the step's interface, or of one that is built on it. Another empty field allows any.
type GIDRequirement struct {
	Interface string `json:"interface,omitempty"`
	Type      string `json:"type,omitempty"`
	Family    string `json:"family,omitempty"`
	Scope     string `json:"scope,omitempty"`
}

// RDMARequireParam is the key require of a step that gives an RDMA device.
func RDMARequireParam() contract.Param {
	return contract.Param{
		Name: "require", Type: contract.Object,
		Description: "conditions of the RDMA device before a container starts; later differences are drift",
		Properties: []contract.Param{
			{
				Name: "gid", Type: contract.Object,
				Description: "it has such a GID for an address of the interface; result: `gidIndex`", Properties: []contract.Param{
					{
						Name: "interface", Type: contract.String, Format: contract.InterfaceName,
						Description: "interface of the pod that a step builds on that of this step, such as a bond or a VLAN on it; " +
							"default: that of this step",
					},
					{Name: "type", Type: contract.String, Enum: []string{"RoCEv2", "RoCEv1", "IB"}, Description: "type of the GID"},
					{Name: "family", Type: contract.String, Enum: []string{"IPv4", "IPv6"}, Description: "family of the address"},
					{
						Name: "scope", Type: contract.String, Enum: []string{"global", "linkLocal"},
						Description: "scope of the address; default: global on RoCE. linkLocal is not routed, " +
							"and also chooses a GID that the kernel adds without such an address",
					},
				},
			},
			{Name: "state", Type: contract.String, Enum: []string{"ACTIVE"}, Description: "state of the port"},
			{Name: "minRate", Type: contract.String, Description: "minimum rate of the port, such as 100Gbps"},
			{
				Name: "mtu", Type: contract.String, Scalar: true, Enum: []string{"256", "512", "1024", "2048", "4096"},
				Description: "minimum payload in bytes of the port's packets; the interface needs an MTU 96 above, on InfiniBand 4 below",
			},
		},
	}
}

// roceOverhead is the length of a RoCE v2 packet's headers in bytes, as the kernel counts it (iboe_get_mtu). ipoibHeader is what an
// interface of InfiniBand adds to an IP packet in datagram mode, within the payload of a packet of InfiniBand. In connected mode its
// MTU is up to 64 KiB on any fabric (Documentation/infiniband/ipoib.rst).
const (
	roceOverhead = 96
	ipoibHeader  = 4
)

// RequireRDMA checks the port of the RDMA device that the step gives, on a link, and adds the index of the GID to the step's
// result. A condition that does not hold is waited for, since the kernel adds GIDs after addresses (roce_gid_mgmt.c).
func (p *Planner) RequireRDMA(link string, r *RDMARequirement) error {
	if r == nil {
		return nil
	}
	minMbps, err := r.minMbps()
	if err != nil {
		return err
	}
	if r.GID != nil && r.GID.Type == "IB" && r.GID.Family == "IPv4" {
		return Invalid("require.gid.family", "is for RoCE only, since a GID of InfiniBand has no IPv4 address: remove it")
	}
	if p.req.imagined != nil {
		return r.imagine(p, link)
	}
	d := p.current.devices
	if p.current.later != "" && (p.current.withheld == nil || d == nil || d.RDMADevice == "") {
		return nil // the device is not there yet
	}
	if d == nil || d.RDMADevice == "" {
		return errNoRDMA
	}
	of, built, err := r.gidLink(p, link)
	if err != nil || !built {
		return err
	}
	query := netstate.RDMAPort{Device: d.RDMADevice, Link: of}
	query.Only = p.onlyGID(query, r.GID)
	port, there, err := Lookup(p, query)
	switch {
	case err != nil:
		return err
	case !there && p.view.Fresh(of):
		p.Later("the GIDs of " + d.RDMADevice)
		return nil
	case !there:
		return netstate.Absent(query)
	}
	var wrong []string
	if state := *port.State; r.State != "" && state != r.State {
		wrong = append(wrong, fmt.Sprintf("its port is %s, not %s", state, r.State))
	}
	if port.RateMbps < minMbps {
		wrong = append(wrong, fmt.Sprintf("its port has %s, less than %s", rate(port.RateMbps), *r.MinRate))
	}
	small, err := r.tooSmall(p, link)
	if err != nil {
		return err
	}
	if small != "" {
		wrong = append(wrong, small)
	}
	if r.GID != nil {
		problem := r.GID.choose(p, d, port, link)
		if problem != "" && port.Only != nil { // to say which GIDs there are
			query.Only = nil
			p.need(query)
			return errMissing
		}
		if problem != "" {
			wrong = append(wrong, problem)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	unmet := fmt.Errorf("require: RDMA device %q: %s", d.RDMADevice, strings.Join(wrong, "; "))
	var why error = &settling{unmet}
	if p.req.Kept {
		why = fault.New(fault.NotReady, unmet)
	}
	p.current.await("what it requires of "+d.RDMADevice, why)
	return nil
}

// imagine is RequireRDMA on an imagined node: it refuses an MTU that a step sets, since no node could have another.
func (r *RDMARequirement) imagine(p *Planner, link string) error {
	d := p.current.devices
	if d == nil || d.RDMADevice == "" {
		return errNoRDMA
	}
	if r.GID != nil {
		d.GIDIndex = new(0)
		of, _, err := r.gidLink(p, link)
		if err != nil {
			return err
		}
		// The kernel gives a link that is up a link-local address of IPv6.
		if r.GID.Type != "IB" && r.GID.Scope != "linkLocal" && of != "" && !netstate.OnHost(of) {
			p.req.imagined.gids = append(p.req.imagined.gids, imaginedGID{p.stepName(), of, r.GID.Family})
		}
	}
	if _, set := p.claims[netstate.Link{Name: link}.Key()]["mtu"]; !set {
		return nil
	}
	small, err := r.tooSmall(p, link)
	if err != nil || small == "" {
		return err
	}
	return Invalid("require.mtu", "%s", small)
}

// fieldOf is the name of a value that a step has chosen of an object: the step that takes a device and those that are derived from it
// choose each for itself.
func (p *Planner) fieldOf(field string) string {
	if p.current.of == "" {
		return field
	}
	return field + " of " + p.stepName()
}

// gidLink returns the link of which a GID is required. One that is built on the step's own may not be there yet.
func (r *RDMARequirement) gidLink(p *Planner, link string) (of string, built bool, err error) {
	if r.GID == nil || r.GID.Interface == "" || r.GID.Interface == netstate.BaseName(link) && !netstate.OnHost(link) {
		return link, true, nil
	}
	if link == "" || netstate.OnHost(link) {
		return "", false, Invalid("require.gid.interface",
			"is one that a step builds on that of this step, and this step has none in the pod: remove it, "+
				"or use type sriov or host-device")
	}
	of = p.OwnName(r.GID.Interface)
	p.gidLinks = append(p.gidLinks, gidLink{p.stepName(), of, link})
	if _, built = p.view.Link(of); !built {
		p.Later("interface " + of)
	}
	return of, built, nil
}

// gidLink is a link, built on that of a step, of which the step requires a GID.
type gidLink struct{ step, link, on string }

// check refuses a link that is not built on that of the step: the kernel adds its addresses to the GIDs of another RDMA device, or of none
// (is_eth_port_of_netdev_filter in drivers/infiniband/core/roce_gid_mgmt.c), and in some modes of a bond to those of its active port only
// (is_eth_active_slave_of_bonding_rcu).
func (g gidLink) check(s *stacking) error {
	const field = "require.gid.interface"
	p := s.p
	waits := slices.ContainsFunc(slices.Collect(maps.Values(p.steps)), func(st *stepState) bool { return st.pending != "" })
	built := s.stands(g.link, g.on, map[string]bool{})
	switch {
	case p.Kept(), !built && waits: // the step that makes it may be one that waits
		return nil
	case !built:
		return Invalid(field, "no step builds %q on the interface %q of this step: "+
			"name one that does, such as a bond that has it as a port, or remove the key", g.link, g.on)
	}
	lower, _ := p.view.Link(g.link)
	for range 8 { // VLANs on each other that the kernel permits (MAX_NEST_DEV)
		if lower.LinkKind == "vlan" && lower.Parent != nil {
			lower, _ = p.view.Link(*lower.Parent)
		}
	}
	ofActivePort := []string{"active-backup", "balance-tlb", "balance-alb"} // bond_uses_primary in include/net/bonding.h
	if lower.Bond != nil && lower.Bond.Mode != nil && slices.Contains(ofActivePort, *lower.Bond.Mode) {
		return Invalid(field, "%q is a bond in mode %s, whose GIDs the kernel gives to its active port only, and moves when that fails: "+
			"use mode 802.3ad or balance-xor, or remove the key", lower.Name, *lower.Bond.Mode)
	}
	return nil
}

// stands reports whether a link is another one, or built on it. Seen are links that need not be searched again.
func (s *stacking) stands(link, on string, seen map[string]bool) bool {
	if seen[link] {
		return false
	}
	seen[link] = true
	return link == on || slices.ContainsFunc(s.below(link), func(below string) bool { return s.stands(below, on, seen) })
}

// errNoRDMA refuses a requirement of a step without an RDMA device.
var errNoRDMA = Invalid("require", "needs an RDMA device, and the step gives the pod none: set rdma: true, or remove require")

// gidIndex is the field of a port whose value is chosen once.
const gidIndex = "gidIndex"

// onlyGID is the index of the GID that containers of a running sandbox were told, -1 if no GID is required, and nil if all are to be read.
func (p *Planner) onlyGID(port netstate.RDMAPort, required *GIDRequirement) *int {
	if required == nil {
		return new(-1)
	}
	told, err := strconv.Atoi(p.req.Chosen[port.Key().String()+" "+p.fieldOf(gidIndex)])
	if !p.req.Kept || err != nil {
		return nil
	}
	return &told
}

// tooSmall says that the MTU of a link is too small for packets of the payload, "" if it is not, or none is required.
func (r *RDMARequirement) tooSmall(p *Planner, link string) (string, error) {
	switch {
	case r.MTU == 0:
		return "", nil
	case link == "":
		return "", Invalid("require.mtu", "the device has no network interface whose MTU could be checked: remove the key")
	}
	l, err := p.Link(link)
	if err != nil {
		return "", err
	}
	least := r.MTU + roceOverhead
	if r.onInfiniBand(p, l) {
		least = r.MTU - ipoibHeader
	}
	switch o := l.IPoIB; {
	case l.MTU == nil:
	case o != nil && o.Mode != nil && *o.Mode == "connected":
		return fmt.Sprintf("the MTU %d of %q does not depend on that of the port in connected mode: use datagram mode, or "+
			"remove require.mtu", *l.MTU, netstate.BaseName(link)), nil
	case *l.MTU < least:
		return fmt.Sprintf("the MTU %d of %q is too small for packets with %d bytes of payload: set at least %d", *l.MTU,
			netstate.BaseName(link), r.MTU, least), nil
	}
	return "", nil
}

// onInfiniBand reports whether a link is one of InfiniBand. One that is imagined is if only InfiniBand has what the step asks for.
func (r *RDMARequirement) onInfiniBand(p *Planner, l netstate.Link) bool {
	asked := p.current.portGUID != "" || r.GID != nil && r.GID.Type == "IB"
	return l.LinkKind == netstate.InfiniBandKind || p.req.imagined != nil && asked
}

// choose sets the index of the GID that is required, or says why there is none. A program was told the index when its
// container was created, so another one is a fault, and the same one goes before a lower one.
func (g GIDRequirement) choose(p *Planner, d *topology.Devices, port netstate.RDMAPort, own string) string {
	fits := map[string]bool{}
	lowest := ""
	addrs := g.ownAddresses(p, port)
	for _, have := range port.GIDs {
		if n := strconv.Itoa(have.Index); g.fits(have, port.Link, addrs) {
			if fits[n] = true; lowest == "" {
				lowest = n
			}
		}
	}
	if lowest == "" {
		on := ""
		if port.Link != own && len(port.GIDs) == 0 {
			on = " of this RDMA device"
		}
		return fmt.Sprintf("no GID of %q%s is %s: %s", netstate.BaseName(port.Link), on, g, gidList(port.GIDs))
	}
	field := p.fieldOf(gidIndex)
	chosen, err := p.Choose(port.Key(), field, func() (string, error) { return lowest, nil })
	if err != nil {
		return err.Error()
	}
	switch {
	case fits[chosen]:
	case p.req.Kept:
		return fmt.Sprintf(
			"the GID that is %s has index %s, and containers were told %s: create the pod again, so that its programs use the other one",
			g, lowest, chosen)
	default:
		chosen = lowest
		p.plan.Chosen[port.Key().String()+" "+field] = lowest
	}
	index, err := strconv.Atoi(chosen)
	if err != nil {
		return err.Error()
	}
	d.GIDIndex = &index
	return ""
}

// ownAddresses returns the addresses of a port's link, and, if link-local ones are sought, the one of which the kernel has made a GID
// without it: that of the hardware address (make_default_gid in drivers/infiniband/core/cache.c).
func (g GIDRequirement) ownAddresses(p *Planner, port netstate.RDMAPort) (out []netip.Addr) {
	for _, a := range p.Addrs(port.Link) {
		if prefix, err := netip.ParsePrefix(a.Address); err == nil {
			out = append(out, prefix.Addr())
		}
	}
	l, ok := netstate.Lookup(p.view, netstate.Link{Name: port.Link})
	if g.Scope != "linkLocal" || !ok || l.MAC == nil {
		return out
	}
	mac, err := net.ParseMAC(*l.MAC)
	if err != nil || len(mac) != 6 {
		return out
	}
	made := netip.AddrFrom16([16]byte{
		0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5],
	})
	if slices.ContainsFunc(port.GIDs, func(have netstate.RDMAGID) bool { return have.GID == made.String() }) {
		out = append(out, made)
	}
	return out
}

// fits reports whether a GID of a link is one that is required. Links of several pods may have one name, and their GIDs are in one
// table if they share a function, so the address has to be one of this link; a link-local one too if that is known. The kernel adds
// a link-local GID without an address, which is chosen only where it is asked for, or on InfiniBand, which has no other. Addresses of
// links of the host are not read.
func (g GIDRequirement) fits(have netstate.RDMAGID, link string, own []netip.Addr) bool {
	ip, err := netip.ParseAddr(have.GID)
	if err != nil || g.Type != "" && have.Type != g.Type || g.Family != "" && ip.Is4() != (g.Family == "IPv4") {
		return false
	}
	if local := ip.IsLinkLocalUnicast(); g.Scope == "" && local && have.Type != "IB" || g.Scope != "" && local != (g.Scope == "linkLocal") {
		return false
	}
	switch {
	case link == "", have.Type == "IB", netstate.OnHost(link):
		return true
	case g.Scope == "linkLocal" && !slices.ContainsFunc(own, netip.Addr.IsLinkLocalUnicast):
		return true // its own cannot be told from others
	}
	return slices.Contains(own, ip)
}

func (g GIDRequirement) String() string {
	var words []string
	scope := g.Scope
	if scope == "" && g.Type != "IB" {
		scope = "global"
	}
	for _, w := range []string{g.Type, g.Family, scope} {
		if w != "" {
			words = append(words, w)
		}
	}
	return strings.Join(words, ", ")
}

// maxGIDsListed bounds the GIDs in a message.
const maxGIDsListed = 16

func gidList(all []netstate.RDMAGID) string {
	if len(all) == 0 {
		return "it has none. Has it an address, and is it up?"
	}
	var out []string
	for _, g := range all[:min(len(all), maxGIDsListed)] {
		out = append(out, fmt.Sprintf("%d %s %s", g.Index, g.Type, g.GID))
	}
	if more := len(all) - len(out); more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return "it has " + strings.Join(out, ", ")
}

var rateText = regexp.MustCompile(`^([1-9][0-9]{0,5})([MG])bps$`)

func (r *RDMARequirement) minMbps() (uint32, error) {
	if r.MinRate == nil {
		return 0, nil
	}
	m := rateText.FindStringSubmatch(*r.MinRate)
	if m == nil {
		return 0, Invalid("require.minRate",
			"%q is not a rate: write a whole number above 0 with Gbps or Mbps, such as 100Gbps or 2500Mbps", *r.MinRate)
	}
	n, err := strconv.ParseUint(m[1], 10, 32)
	if m[2] == "G" {
		n *= 1000
	}
	return uint32(n), errors.Join(err)
}

func rate(mbps uint32) string {
	return strconv.FormatFloat(float64(mbps)/1000, 'f', -1, 64) + "Gbps"
}
