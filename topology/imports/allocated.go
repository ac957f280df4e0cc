package imports

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// span is a range of addresses that pods have of another allocator, or may have.
type span struct{ first, last netip.Addr }

// allocated are the spans of one object, and how a note counts them.
type allocated struct {
	from  *source
	spans []span
	what  string
	each  string // in place of what for several such objects, of a format with their names
	named bool   // by the pods themselves, so that no pool may allocate them later either
}

// ipPool reads an IPPool: of whereabouts, or of nv-ipam, which has the same kind.
func (c *converter) ipPool(s *source) {
	s.others()
	if s.group == "whereabouts.cni.cncf.io" {
		c.ofWhereabouts(s)
		return
	}
	c.ofNVIPAM(s)
}

// ofWhereabouts reads which addresses pods have of a range.
func (c *converter) ofWhereabouts(s *source) {
	spec := s.record.sub("spec")
	text := spec.text("range")
	p, err := netip.ParsePrefix(text)
	if err != nil {
		spec.problem("range", "%q is not a prefix", text)
		return
	}
	a := allocated{from: s}
	list := spec.sub("allocations")
	for _, index := range list.keys() {
		one := list.sub(index)
		one.ignore("id", "ifname") // of the container that has it
		pod := one.text("podref")
		n, err := strconv.ParseUint(index, 10, 62)
		at, err2 := addresspool.Subnet(p.Masked(), p.Addr().BitLen()-p.Bits(), n)
		if cmp.Or(err, err2) != nil {
			list.problem(index, "is not the number of an address in %s", p)
			continue
		}
		if pod == "" {
			one.problem("podref", "is missing")
		}
		a.spans = append(a.spans, span{at.Addr(), at.Addr()})
	}
	a.what = fmt.Sprintf("the addresses that pods have of whereabouts in %s (%d)", p.Masked(), len(a.spans))
	c.excluded = append(c.excluded, a)
}

// reservation reads an OverlappingRangeIPReservation of whereabouts: its name is the address.
func (c *converter) reservation(s *source) {
	s.others()
	spec := s.record.sub("spec")
	spec.ignore("containerid", "ifname", "podref")
	text := s.name
	addr, err := netip.ParseAddr(text)
	if err != nil { // colons are dashes in names, which may have the network before the address
		addr, err = netip.ParseAddr(strings.ReplaceAll(text, "-", ":"))
	}
	if err != nil {
		_, after, _ := strings.Cut(text, "-")
		addr, err = netip.ParseAddr(after)
	}
	if err != nil {
		s.problem("metadata.name", "%q does not name an address", s.name)
		return
	}
	c.excluded = append(c.excluded, allocated{
		from: s, spans: []span{{addr, addr}},
		what: fmt.Sprintf("the address %s, which a pod has of whereabouts",
			addr), each: "%d addresses that pods have of whereabouts (reservations %s)",
	})
}

// ofNVIPAM makes a pool of an IPPool of nv-ipam.
func (c *converter) ofNVIPAM(s *source) {
	spec := s.record.sub("spec")
	out := v1alpha1.AddressPoolSpec{Subnets: []v1alpha1.AddressSubnet{{Prefix: spec.text("subnet"), Gateway: spec.text("gateway")}}}
	if n, ok := spec.number("perNodeBlockSize"); ok {
		size := int32(1)
		for int64(size) < n && size < addresspool.MaxBlockSize {
			size *= 2
		}
		out.BlockSize = &size
		if int64(size) != n {
			spec.note("perNodeBlockSize",
				"%d becomes blockSize %d, a power of two: a node leases further blocks when one is used up", n, size)
		}
	}
	for _, r := range spec.subs("exclusions") {
		out.Exclude = append(out.Exclude, r.text("startIP")+"-"+r.text("endIP"))
	}
	spec.none("blocks have no order by which a node's first addresses could be excluded", "perNodeExclusions")
	spec.none("any node may lease of the pool: steps decide where it is used", "nodeSelector")
	c.poolRoutes(spec, &out)
	p := &pool{key: "IPPool " + s.name, name: label(s.name), spec: out, froms: []*source{s}}
	c.pools = append(c.pools, p)
	if !c.Moved {
		status := s.status()
		a := allocated{from: s}
		for _, r := range status.subs("allocations") {
			node := r.text("nodeName")
			first, err := netip.ParseAddr(r.text("startIP"))
			last, err2 := netip.ParseAddr(r.text("endIP"))
			if cmp.Or(err, err2) != nil || last.Less(first) {
				r.problem("startIP", "is not the first address of a range that ends with endIP: the block of node %q", node)
				continue
			}
			a.spans = append(a.spans, span{first, last})
		}
		a.what = fmt.Sprintf("the blocks that nodes have of nv-ipam, in which pods have addresses (%d)", len(a.spans))
		c.excluded = append(c.excluded, a)
	}
}

// poolRoutes converts the routes of a pool of nv-ipam, which lead over its gateway.
func (c *converter) poolRoutes(spec *record, out *v1alpha1.AddressPoolSpec) {
	for _, r := range spec.subs("routes") {
		out.Routes = append(out.Routes, v1alpha1.AddressRoute{Destination: r.text("dst")})
	}
	if spec.flag("defaultGateway") {
		zero := "0.0.0.0/0"
		if strings.Contains(out.Subnets[0].Prefix, ":") {
			zero = "::/0"
		}
		out.Routes = append(out.Routes, v1alpha1.AddressRoute{Destination: zero})
	}
}

// cidrPool refuses a CIDRPool of nv-ipam.
func (c *converter) cidrPool(s *source) {
	s.record.left, s.record.open = nil, nil
	s.problem("", "gives each node a network and a gateway of its own, and an AddressPool is one network: write an AddressPool for each "+
		"node or rack, and topologies that name them; or one with hostBlock, whose addresses have the prefix length of the whole")
}

// exclude adds what is allocated to the exclusions of the pools that have such addresses.
func (c *converter) exclude() {
	for _, p := range c.pools {
		var spans []span
		var noted []*allocated
		for i := range c.excluded {
			a := &c.excluded[i]
			if c.Moved && !a.named {
				continue
			}
			var of []span
			for _, s := range a.spans {
				if slices.ContainsFunc(p.spec.Subnets, func(n v1alpha1.AddressSubnet) bool {
					prefix, err := netip.ParsePrefix(n.Prefix)
					return err == nil && prefix.Contains(s.first)
				}) {
					of = append(of, s)
				}
			}
			if spans = append(spans, of...); len(of) > 0 && !a.named {
				noted = append(noted, a)
			}
		}
		p.noteExcluded(noted)
		room := addresspool.MaxExcludes - len(p.spec.Exclude)
		merged := merge(spans, room)
		if len(merged) > 0 && len(merge(spans, len(spans))) > len(merged) {
			p.froms[0].note("", "the AddressPool %q can have at most %d exclusions, so whole ranges are excluded, "+
				"with free addresses between those of pods", p.name, addresspool.MaxExcludes)
		}
		for _, s := range merged {
			p.spec.Exclude = append(p.spec.Exclude, s.String())
		}
	}
}

// noteExcluded adds a note on what a pool excludes, and one for all objects of which there may be as many as pods.
func (p *pool) noteExcluded(of []*allocated) {
	names := map[string][]string{}
	for _, a := range of {
		names[a.each] = append(names[a.each], strconv.Quote(a.from.namespace+"/"+a.from.name))
	}
	for _, a := range of {
		what := a.what
		switch all := names[a.each]; {
		case a.each == "" || len(all) == 1:
		case len(all) == 0:
			continue
		default:
			what = fmt.Sprintf(a.each, len(all), excerpt.First(all, maxNamed))
			names[a.each] = nil
		}
		a.from.note("", "the AddressPool %q excludes %s: remove them there when these pods have ended, or convert with --moved. "+
			"Later allocations are not known: divide the range until then", p.name, what)
	}
}

// maxNamed bounds the names in a note.
const maxNamed = 5

func (s span) String() string {
	if s.first == s.last {
		return s.first.String()
	}
	return s.first.String() + "-" + s.last.String()
}

// merge joins spans that touch, then those with the smallest gaps, until there are at most so many.
func merge(spans []span, most int) (out []span) {
	slices.SortFunc(spans, func(a, b span) int { return a.first.Compare(b.first) })
	for _, s := range spans {
		if n := len(out) - 1; n >= 0 && out[n].last.BitLen() == s.first.BitLen() && !out[n].last.Next().Less(s.first) {
			if out[n].last.Less(s.last) {
				out[n].last = s.last
			}
			continue
		}
		out = append(out, s)
	}
	for len(out) > max(most, 1) {
		best := -1
		for i := 1; i < len(out); i++ {
			same := out[i].first.BitLen() == out[i-1].first.BitLen()
			if same && (best < 0 || gap(out[i-1], out[i]) < gap(out[best-1], out[best])) {
				best = i
			}
		}
		if best < 0 {
			return out
		}
		out[best-1].last = out[best].last
		out = slices.Delete(out, best, best+1)
	}
	return out
}

// gap is how many addresses are between two spans, as far as 32 bits count.
func gap(a, b span) uint64 {
	x, y := a.last.As16(), b.first.As16()
	var n uint64
	for i := range x {
		n = n<<8 + uint64(y[i]) - uint64(x[i])
	}
	return n
}
