package ops

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// yieldMetric is the metric of a route without a metric of its own beside a route of others to
// the same destination: a higher number than theirs, so that they keep the traffic.
const yieldMetric = 4096

// wayTo is where routes lead that compete for the same packets.
type wayTo struct {
	destination string
	table       uint32
}

// metric sets the metric of a route: that of the topology, which must not be that of a route of
// others, else one that is chosen when the route is planned for the first time. Then the routes
// that others have already keep the traffic. Later ones change nothing: a route whose metric
// followed them would be handed to whoever adds a route, or a router that advertises.
func (s *routes) metric(d deferredRoute, r *netstate.Route) error {
	given := d.route.Metric
	if given != nil {
		r.Metric = *given
	}
	if r.IPv6() && r.Metric == 0 {
		r.Metric = ipv6DefaultMetric
	}
	others := s.foreignRoutes(wayTo{r.Dst, r.Table})
	if given != nil {
		return s.refuseShared(d, *r, others)
	}
	chosen, err := s.p.Choose(r.Key(), "metric", func() (string, error) {
		yielding := *r
		yielding.Metric = yieldMetric
		// An earlier version has recorded the route, and no choice.
		if !s.p.Owned(r.Key()) && (len(others) > 0 || s.p.Owned(yielding.Key())) {
			return strconv.Itoa(yieldMetric), nil
		}
		return strconv.FormatUint(uint64(r.Metric), 10), nil
	})
	if err != nil {
		return err
	}
	metric, err := strconv.ParseUint(chosen, 10, 32)
	if err != nil {
		return err
	}
	r.Metric = uint32(metric)
	if r.Metric == yieldMetric && len(others) > 0 {
		of := fmt.Sprintf("%q via %s", others[0].Link, nextHop(others[0]))
		if others[0].Link == podUplink { // of an imagined node
			of = "the pod's own interface"
		}
		s.p.Note("its route to %s via %s gets metric %d: the route of %s stays preferred; set a metric to change that", r.Dst, nextHop(*r),
			yieldMetric, of)
	}
	return nil
}

// refuseShared refuses a route with the metric of a route of others, unless it is applied: the
// kernel would use only theirs, or in IPv6 both in turn.
func (s *routes) refuseShared(d deferredRoute, r netstate.Route, others []netstate.Route) error {
	i := slices.IndexFunc(others, func(o netstate.Route) bool { return o.Metric == r.Metric && o.Key() != r.Key() })
	if i < 0 || s.p.req.imagined != nil || s.p.Kept() || s.p.Owned(r.Key()) {
		return nil
	}
	effect := "the kernel would use only that one"
	if r.IPv6() {
		effect = "the kernel would spread the traffic over both"
	}
	instead := "another metric, lower to take over the traffic and higher to leave it there"
	switch {
	case r.Metric == 0 && r.IsDefault():
		instead = "a higher metric to leave the traffic there, or routes to 0.0.0.0/1 and 128.0.0.0/1 to take it over"
	case r.Metric == 0:
		instead = "a higher metric, which leaves the traffic there; no metric is lower than 0"
	}
	return fault.New(fault.Conflict,
		Invalid(d.field+".metric", "%d is that of the route to %s via %s on %q, which is not of this topology: %s; write %s",
			r.Metric, r.Dst, nextHop(others[i]), others[i].Link, effect, instead))
}

// foreignRoutes returns the routes to a destination that this topology has not made: of the
// pod's own network, of routers, of the pod's programs and of its other topologies.
func (s *routes) foreignRoutes(to wayTo) []netstate.Route {
	if s.foreign == nil {
		s.foreign = map[wayTo][]netstate.Route{}
		networks := s.ownNetworks()
		for _, have := range netstate.All[netstate.Route](s.p.req.Have) {
			pre, err := netip.ParsePrefix(have.Dst)
			if err != nil || netstate.OnHost(have.Link) || s.p.Owned(have.Key()) ||
				netstate.KernelMade(have) && networks[networkOn{have.Link, pre}] {
				continue
			}
			at := wayTo{have.Dst, have.Table}
			if have.Table == netstate.TableMain && tableOf(s.p.req.Have, have.Link) == netstate.TableMain {
				at.table = tableOf(s.p.view, have.Link) // the route follows its link into a VRF
			}
			s.foreign[at] = append(s.foreign[at], have)
		}
	}
	return s.foreign[to]
}

// networkOn is the network of an address on a link, to which the kernel makes a route.
type networkOn struct {
	link   string
	prefix netip.Prefix
}

// ownNetworks are those of the addresses that steps want, once all of them are planned.
func (s *routes) ownNetworks() map[networkOn]bool {
	if s.networks != nil {
		return s.networks
	}
	s.networks = map[networkOn]bool{}
	for _, w := range s.p.wants {
		a, ok := w.obj.(netstate.Addr)
		if !ok || a.NoPrefixRoute != nil && *a.NoPrefixRoute {
			continue
		}
		if pre, err := netip.ParsePrefix(a.Address); err == nil {
			s.networks[networkOn{a.Link, pre.Masked()}] = true
		}
	}
	return s.networks
}
