package ops

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// DHCP are the keys of ipam that the CNI plugin dhcp has, beside its type.
type DHCP struct {
	Provide          []DHCPOption  `json:"provide,omitempty"`
	Request          []DHCPRequest `json:"request,omitempty"`
	DaemonSocketPath any           `json:"daemonSocketPath,omitempty"`
	Priority         *uint32       `json:"priority,omitempty"`
}

// DHCPRequest is an option that is used if the server gives it.
type DHCPRequest struct {
	Option      string `json:"option"`
	SkipDefault any    `json:"skipDefault,omitempty"`
}

// The options that may be requested, by the names of dhclient.conf.
const (
	optionRoutes = "classless-static-routes"
	optionMTU    = "interface-mtu"
)

// requestCodes are the codes of these options.
var requestCodes = map[string]string{optionRoutes: "121", "121": "121", optionMTU: "26", "26": "26"}

// requested are the codes of the options that are requested, as in netstate.DHCPLease.
func (c *IPAM) requested() string {
	var codes []string
	for _, r := range c.Request {
		codes = append(codes, requestCodes[r.Option])
	}
	slices.Sort(codes)
	return strings.Join(slices.Compact(codes), ",")
}

// DHCPOption is an option that is sent to the server.
type DHCPOption struct {
	Option  string `json:"option"`
	Value   string `json:"value,omitempty"`
	FromArg string `json:"fromArg,omitempty"`
}

// maxHostname is the length of a host name as Linux has it (HOST_NAME_MAX).
const maxHostname = 64

// checkDHCP refuses keys of another type, and those that are not supported.
func (c *IPAM) checkDHCP() error {
	keys := []struct {
		name string
		set  bool
	}{
		{"provide", c.Provide != nil},
		{"request", c.Request != nil},
		{"daemonSocketPath", c.DaemonSocketPath != nil},
		{"priority", c.Priority != nil},
	}
	for _, k := range keys {
		if k.set && c.Type != ipamDHCP {
			return Invalid("ipam."+k.name, "is for type %q: remove it, or change the type", ipamDHCP)
		}
	}
	switch {
	case c.DaemonSocketPath != nil:
		return Invalid("ipam.daemonSocketPath", "is a key of the CNI plugin, whose daemon plumbline does not need: remove it")
	case slices.ContainsFunc(c.Request, func(r DHCPRequest) bool { return r.SkipDefault != nil }):
		return Invalid("ipam.request", "skipDefault is not supported: nothing is requested by default, remove it")
	case c.Priority != nil && !c.AcceptDefaultRoute:
		return Invalid("ipam.priority",
			"is the metric of the default route, which needs acceptDefaultRoute: true: add that, or remove priority")
	}
	for i, o := range c.Provide {
		field := fmt.Sprintf("ipam.provide[%d]", i)
		switch {
		case o.FromArg != "":
			return Invalid(field+".fromArg", "%q is an argument of CNI, which is not run: set value", o.FromArg)
		case o.Option == "dhcp-client-identifier" || o.Option == "61":
			return Invalid(field+".option", "%q would be the same for all pods: it is made of the claim and the step, remove it", o.Option)
		case o.Option != "host-name" && o.Option != "12":
			return Invalid(field+".option", "%q is not supported, only \"host-name\": remove it", o.Option)
		case !hostname(o.Value):
			return Invalid(field+".value", "%q is not a host name: give 1 to %d letters, digits, \"-\" and \".\"", o.Value, maxHostname)
		}
	}
	return nil
}

func hostname(s string) bool {
	return s != "" && len(s) <= maxHostname && !slices.ContainsFunc([]byte(s), func(b byte) bool {
		return (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') && (b < '0' || b > '9') && b != '-' && b != '.'
	})
}

// leases are those that DHCP servers have given the links of the sandbox.
type leases struct {
	p       *Planner
	offers  []offer
	expires map[netstate.Key]int64 // the ends of leases, by the keys of their addresses
}

// want wants a lease of a DHCP server for a link, and adds its address and default route to the config.
// Without a lease the step waits, and a running sandbox reports that it has none.
func (s *leases) want(link string, cfg *AddressConfig) error {
	l, _ := s.p.view.Link(link)
	switch {
	case netstate.OnHost(link):
		return Invalid("ipam.type", "%q is for interfaces of the pod: %q is one of the host", ipamDHCP, netstate.BaseName(link))
	case cfg.SourceRouting:
		return Invalid("sourceRouting",
			"needs addresses that are known in advance, and ipam of type %q has that of a server: remove it, or use type %q",
			ipamDHCP, ipamPool)
	case l.IPVLAN != nil && l.IPVLAN.Mode != nil && *l.IPVLAN.Mode != "l2":
		return Invalid("ipam.type",
			"%q needs broadcasts, which an ipvlan of mode %s does not have: use mode l2, or type %q", ipamDHCP, *l.IPVLAN.Mode, ipamPool)
	}
	want := netstate.DHCPLease{
		Link: link, ClientID: new(s.clientID(link)),
		Hostname: new(""), Requested: new(cfg.IPAM.requested()), Active: new(true),
	}
	for _, o := range cfg.IPAM.Provide {
		want.Hostname = &o.Value
	}
	if err := s.p.view.Withheld(want); err != nil {
		return &withheld{err} // what the step has of the lease stays
	}
	if err := s.p.Want(want); err != nil {
		return err
	}
	s.p.current.leased = append(s.p.current.leased, link)
	have, _ := netstate.Lookup(s.p.req.Have, want)
	asksElse := func(d netstate.FieldDiff) bool { return d.Mode == netstate.Immutable && d.Before != nil }
	if slices.ContainsFunc(netstate.Diff(want, have), asksElse) {
		have = netstate.DHCPLease{} // the next lease may say something else
	}
	if im := s.p.req.imagined; im != nil {
		im.pooled[link] = true
		leased := im.addresses(link, s.p.req.position(s.p.stepName()))[0]
		have.Address, have.Router = leased.String(), leased.Addr().Next().String()
	}
	s.p.settling = append(s.p.settling, want)
	if have.Address == "" {
		s.await(cfg, fmt.Sprintf("a DHCP lease for %q", link), s.none(link, have.Failure))
		return nil
	}
	if other := s.otherwiseWanted(link, have.Address, cfg); other != "" {
		s.await(cfg, fmt.Sprintf("a DHCP lease for %q with an unused address", link), Conflict(
			"the DHCP server %s has given %q address %q, which %s: have the server give another one", have.Server, link,
			have.Address, other))
		return nil
	}
	s.expires[netstate.Addr{Link: link, Address: have.Address}.Key()] = have.Expires
	s.offers = append(s.offers, offer{s.p.current, have})
	for _, r := range have.Routes { // RFC 3442: the router of the lease does not count beside routes
		have.Router = ""
		if r.Destination == anyIPv4 {
			have.Router = r.Gateway
			break
		}
	}
	switch {
	case !cfg.IPAM.AcceptDefaultRoute:
		have.Router = ""
	case have.Router == "":
		s.p.Note("DHCP server %s offers no router in the network of %q, so %q gets no default route", have.Server, have.Address, link)
		s.p.current.routerless = fault.New(fault.NotReady,
			fmt.Errorf("DHCP server %s offers no router in the network of %q", have.Server, have.Address))
	default:
		cfg.Routes = append(cfg.Routes, Route{Destination: anyIPv4, Gateway: have.Router, Metric: cfg.IPAM.Priority})
	}
	cfg.Addresses = append(cfg.Addresses, Address{Address: have.Address, Gateway: have.Router})
	return nil
}

// await has the step wait for a lease, whose gateway routes of the config may need.
func (s *leases) await(cfg *AddressConfig, what string, why error) {
	s.p.current.await(what, why)
	if cfg.IPAM.AcceptDefaultRoute {
		cfg.Routes = slices.DeleteFunc(cfg.Routes,
			func(r Route) bool { return r.Gateway == "" && r.Scope == nil && !strings.Contains(r.Destination, ":") })
	}
}

// anyIPv4 is the destination of a default route.
const anyIPv4 = "0.0.0.0/0"

// offer is a lease whose MTU and routes are applied beside what steps want.
type offer struct {
	step  *stepState
	lease netstate.DHCPLease
}

// settleMTUs gives links the MTU that a DHCP server says, where no step wants one and that of the link is larger: a server
// must not make a plan fail, nor ask for more than the links below have, or than a bond gives a port.
func (s *leases) settleMTUs() {
	for _, o := range s.offers {
		room := s.p.mtus.standing(o.lease.Link, 0)
		if bond, isPort := s.p.claims.bondOf(s.p.view, o.lease.Link); isPort {
			room = min(room, cmp.Or(s.p.mtus.claimed(bond), room))
		}
		if _, claimed := s.p.mtus.claimOf(o.lease.Link); !claimed && o.lease.MTU > 0 && o.lease.MTU < room {
			s.p.mtus.setClaim(o.lease.Link, claim{step: o.step.step.Name, value: o.lease.MTU, derived: true})
		}
	}
}

// settleRoutes wants the routes that DHCP servers give, but for those to destinations that a step has a route to.
func (s *leases) settleRoutes() error {
	for _, o := range s.offers {
		s.p.current = o.step
		for _, offered := range o.lease.Routes {
			d := deferredRoute{step: o.step, link: o.lease.Link, route: Route{Destination: offered.Destination, Gateway: offered.Gateway}}
			table := s.p.routes.routeTable(d)
			taken := slices.ContainsFunc(s.p.wants, func(w want) bool {
				r, ok := w.obj.(netstate.Route)
				return ok && r.Dst == offered.Destination && r.Table == table
			})
			if offered.Destination == anyIPv4 { // see leased
				continue
			}
			if !taken {
				r, err := s.p.routes.route(d)
				if err == nil {
					err = s.p.Want(r)
				}
				if err == nil {
					continue
				}
				if ended(s.p.ctx) != nil {
					return err
				}
			}
			s.p.Note("the route to %s that the DHCP server %s gives is not used: the topology or the pod has another one",
				offered.Destination, o.lease.Server)
		}
	}
	return nil
}

// routerless is why a reference to a gateway of a step cannot be resolved, nil if that is not because
// of a DHCP server.
func (s stepStates) routerless(step string) error {
	return s.amongDependencies(step, func(st *stepState) error { return st.routerless })
}

// otherwiseWanted says who else has a leased address: a step, or a program of the pod.
func (s *leases) otherwiseWanted(link, address string, cfg *AddressConfig) string {
	leased, err := netip.ParsePrefix(address)
	if err != nil {
		return "is none"
	}
	same := func(a netstate.Addr) bool {
		pre, err := netip.ParsePrefix(a.Address)
		return err == nil && pre.Addr() == leased.Addr() && !netstate.OnHost(a.Link)
	}
	if slices.ContainsFunc(cfg.Addresses, func(a Address) bool { return same(netstate.Addr{Address: a.Address}) }) {
		return "the step has itself"
	}
	for _, w := range s.p.wants {
		if a, ok := w.obj.(netstate.Addr); ok && same(a) {
			return fmt.Sprintf("step %q has on %q", w.step, a.Link)
		}
	}
	for _, a := range netstate.All[netstate.Addr](s.p.req.Have) {
		if same(a) && a.Link != link && s.p.Foreign(a.Key()) {
			return fmt.Sprintf("%q has in the pod", a.Link)
		}
	}
	return ""
}

// none is why something waits for a DHCP server. A running sandbox is not made to wait.
func (s *leases) none(link, tried string) error {
	tried = cmp.Or(tried, "it needs carrier, and a DHCP server on its network")
	err := fmt.Errorf("no DHCP server has given %q an address: %s", link, tried)
	if s.p.req.Kept {
		return fault.New(fault.NotReady, err)
	}
	return &settling{err}
}

// clientID is the client identifier of a link: a DUID-UUID of whoever has the network, and an
// IAID of the step and its link (RFC 4361 section 6.1, RFC 6355). It is the same in each sandbox
// of a claim.
func (s *leases) clientID(link string) string {
	who := cmp.Or(s.p.req.Client, s.p.req.Netns+"/"+s.p.req.Topology.Name)
	user := sha256.Sum256([]byte("dhcp\x00" + who))
	part := sha256.Sum256([]byte(s.p.stepName() + "\x00" + link))
	return "ff" + hex.EncodeToString(part[:4]) + "0004" + hex.EncodeToString(user[:16])
}
