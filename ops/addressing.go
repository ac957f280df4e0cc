package ops

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// AddressConfig is the part of a step's config with the addresses, routes, rules and
// neighbors of its link. Every interface-making step and tuning embed it.
type AddressConfig struct {
	Addresses []Address `json:"addresses,omitempty"`
	Routes    []Route   `json:"routes,omitempty"`
	IPAM      *IPAM     `json:"ipam,omitempty"`
	DAD       string    `json:"dad,omitempty"`
	AcceptRA  *bool     `json:"acceptRA,omitempty"`

	Rules         []Rule     `json:"rules,omitempty"`
	Neighbors     []Neighbor `json:"neighbors,omitempty"`
	SourceRouting bool       `json:"sourceRouting,omitempty"`

	// Routed addresses have no route of the kernel's to their network: the step says by
	// which routes it is reached.
	Routed bool `json:"-"`
}

// Address is one address, with the gateway of routes that name none.
type Address struct {
	Address string `json:"address"`
	Gateway string `json:"gateway,omitempty"`
}

// Prefix is the address as a prefix.
func (a Address) Prefix() (netip.Prefix, error) {
	pre, err := netip.ParsePrefix(a.Address)
	if err != nil {
		return pre, Invalid("addresses", "%q is not an address with a prefix", a.Address)
	}
	return pre, nil
}

// Route is one route out of the step's link.
type Route struct {
	Destination string  `json:"destination"`
	Gateway     string  `json:"gateway,omitempty"`
	Metric      *uint32 `json:"metric,omitempty"`
	Table       *uint32 `json:"table,omitempty"`
	Scope       *string `json:"scope,omitempty"`
	Source      *string `json:"src,omitempty"`
	MTU         *uint32 `json:"mtu,omitempty"`
	AdvMSS      *uint32 `json:"advmss,omitempty"`
	OnLink      *bool   `json:"onlink,omitempty"`
}

// IPAM is the CNI spelling of static addresses and routes.
type IPAM struct {
	Type      string    `json:"type"`
	Addresses []Address `json:"addresses,omitempty"`
	Routes    []Route   `json:"routes,omitempty"`
	DNS       any       `json:"dns,omitempty"`
	// AcceptDefaultRoute is for types slaac and dhcp.
	AcceptDefaultRoute bool `json:"acceptDefaultRoute,omitempty"`
	DHCP
	topology.IPAM
}

// The types of ipam.
const (
	ipamStatic = "static"
	ipamPool   = topology.IPAMPool
	ipamLocal  = topology.IPAMHostLocal
	ipamMulti  = topology.IPAMMultiNIC
	ipamSLAAC  = "slaac"
	ipamDHCP   = "dhcp"
)

// The values of dad.
const (
	dadOff        = "off"
	dadOptimistic = "optimistic"
	dadWait       = "wait"
)

// AddressParams describes the keys of AddressConfig.
func AddressParams() []contract.Param {
	addresses := contract.Param{
		Name: "addresses", Type: contract.List,
		Description: "IPv4 and IPv6 addresses",
		Items: &contract.Param{Type: contract.Object, Shorthand: "address", Properties: []contract.Param{
			{Name: "address", Type: contract.String, Format: contract.CIDR, Required: true, Description: "address with prefix length"},
			{Name: "gateway", Type: contract.String, Format: contract.IP, Description: "gateway of routes of its family without one"},
		}},
	}
	routes := routesParam()
	return append([]contract.Param{
		addresses, routes,
		{
			Name: "ipam", Type: contract.Object, Description: "where addresses and routes come from, as in CNI",
			Properties: slices.Concat(poolParams(), dhcpParams(), []contract.Param{
				addresses, routes,
				{Name: "dns", Type: contract.Any, Description: "accepted, not used: a pod's DNS is Kubernetes'", Ignored: NoDNS},
			}),
		},
		{
			Name: "dad", Type: contract.String, Enum: []string{dadOff, dadOptimistic, dadWait}, OnOff: true,
			Description: "IPv6 duplicate address detection. wait: containers start once it has found no duplicate; optimistic: " +
				"addresses are used during it; off: none. Default: containers start, and cannot bind to an address until it ends",
		},
		{
			Name: "acceptRA", Type: contract.Boolean,
			Description: "take addresses, routes and a default route from IPv6 router advertisements, " +
				"which any host of the network can send. Default on interfaces of plumbline: false, but for what ipam of type slaac needs",
		},
	}, policyParams()...)
}

func routesParam() contract.Param {
	return contract.Param{
		Name: "routes", Type: contract.List,
		Description: "routes over the interface, in the table of its VRF",
		Items: &contract.Param{Type: contract.Object, Properties: []contract.Param{
			{
				Name: "destination", Aliases: []string{"dst"}, Type: contract.String, Format: contract.Prefix, Required: true,
				Description: "destination; `default` is of the family of the gateway, else IPv6 if all addresses are",
			},
			{
				Name: "gateway", Aliases: []string{"gw"}, Type: contract.String, Format: contract.IP,
				Description: "next hop; default: none, on the link",
			},
			{
				Name: "metric", Aliases: []string{"priority"}, Type: contract.Integer, Minimum: contract.Int(0),
				Maximum: contract.Int(1<<32 - 1), Description: "metric; without one, an existing route keeps the traffic",
			},
			{
				Name: "table", Type: contract.Integer, Minimum: contract.Int(1), Maximum: contract.Int(1<<32 - 1),
				Description: "routing table; default: the VRF's or main",
			},
			{
				Name: "scope", Type: contract.String, Enum: []string{"global", "link", "host"}, Refused: refusedScopes,
				Description: "route scope",
			},
			{Name: "src", Type: contract.String, Format: contract.IP, Description: "preferred source address"},
			// more than that the kernel changes to it (ip_metrics_convert in net/ipv4/metrics.c)
			{
				Name: "mtu", Type: contract.Integer, Minimum: contract.Int(68), Maximum: contract.Int(65535 - 15),
				Description: "path MTU in bytes",
			},
			{
				Name: "advmss", Type: contract.Integer, Minimum: contract.Int(1), Maximum: contract.Int(65535 - 40),
				Description: "advertised TCP MSS in bytes",
			},
			{Name: "onlink", Type: contract.Boolean, Description: "gateway is reached directly, outside the link's subnets"},
		}},
	}
}

// poolParams describes where ipam takes addresses from.
func poolParams() []contract.Param {
	ranges := []contract.Param{
		{Name: "subnet", Type: contract.String, Format: contract.Prefix, Description: "host-local: network of the addresses"},
		{Name: "rangeStart", Type: contract.String, Format: contract.IP, Description: "first allocated address; default: the subnet's"},
		{Name: "rangeEnd", Type: contract.String, Format: contract.IP, Description: "last allocated address; default: the subnet's"},
		{
			Name: "gateway", Type: contract.String, Format: contract.IP,
			Description: "gateway of routes without one, not allocated; default: the subnet's first address",
		},
	}
	return slices.Concat([]contract.Param{
		{
			Name: "type", Type: contract.String, Required: true,
			Enum: []string{ipamStatic, ipamPool, ipamLocal, ipamMulti, ipamSLAAC, ipamDHCP}, Refused: refusedIPAM,
			Description: "static: `addresses` of ipam; pool: of an AddressPool, for each pod; host-local: " +
				"of ranges, unique on the node only; multi-nic-ipam: as pool; slaac: router advertisements; dhcp: a DHCP server",
		},
		{Name: "pool", Type: contract.String, Description: "AddressPool, for pool (default: " +
			"that of the device's physical network) and multi-nic-ipam (default: named as the topology)"},
		{
			Name: "interface", Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(31),
			Description: "part of a pool with interfaceBlock",
		},
	}, ranges, []contract.Param{
		{
			Name: "ranges", Type: contract.List, Description: "host-local: sets of ranges, one per family",
			Items: &contract.Param{Type: contract.List, Items: &contract.Param{Type: contract.Object, Properties: ranges}},
		},
		{
			Name: "exclude", Type: contract.List,
			Description: "host-local: addresses, prefixes and FIRST-LAST ranges that are not allocated",
			Items:       &contract.Param{Type: contract.String},
		},
		{
			Name: "hostBlock", Type: contract.Integer, Minimum: contract.Int(1),
			Maximum: contract.Int(addresspool.MaxHostBits), Description: "multi-nic-ipam: hostBlock of the AddressPool",
		},
		{
			Name: "interfaceBlock", Type: contract.Integer, Minimum: contract.Int(0),
			Maximum:     contract.Int(addresspool.MaxInterfaceBits),
			Description: "multi-nic-ipam: interfaceBlock of the AddressPool; default: 0",
		},
		{
			Name: "excludeCIDRs", Type: contract.List, Description: "multi-nic-ipam: the AddressPool must exclude these",
			Items: &contract.Param{Type: contract.String, Format: contract.Prefix},
		},
		{
			Name: "vlanMode", Type: contract.String, Enum: []string{"l2", "l3", "l3s"}, FoldCase: true,
			Description: "multi-nic-ipam in an ipvlan step: its mode",
		},
	})
}

// dhcpParams describes what ipam takes from a router or a DHCP server.
func dhcpParams() []contract.Param {
	return []contract.Param{
		{
			Name: "acceptDefaultRoute", Type: contract.Boolean,
			Description: "slaac, dhcp: the router may become the pod's default route; default: false",
		},
		{
			Name: "priority", Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(1<<32 - 1),
			Description: "dhcp: metric of the default route",
		},
		{
			Name: "provide", Type: contract.List,
			Description: "dhcp: options to send; only {option: host-name, value: NAME}",
			Items: &contract.Param{Type: contract.Object, Properties: []contract.Param{
				{Name: "option", Type: contract.String, Required: true, Description: "host-name"},
				{Name: "value", Type: contract.String, Description: "value of the option"},
				{Name: "fromArg", Type: contract.String, Description: "refused: set value"},
			}},
		},
		{
			Name: "request", Type: contract.List,
			Description: "dhcp: what to use of the server beside the address; default: nothing",
			Items: &contract.Param{Type: contract.Object, Properties: []contract.Param{
				{
					Name: "option", Type: contract.String, Required: true, Enum: []string{optionRoutes, "121", optionMTU, "26"},
					Description: "name or number",
				},
				{Name: "skipDefault", Type: contract.Any, Description: "refused: nothing is requested by default"},
			}},
		},
		{Name: "daemonSocketPath", Type: contract.Any, Description: "refused: no daemon is needed"},
	}
}

// refusedScopes are the numbers of scopes (RT_SCOPE_*, rtnetlink(7)), as CNI writes them.
var refusedScopes = map[string]string{"0": "write global", "253": "write link", "254": "write host"}

// refusedIPAM are the types of ipam that other programs have, and what to write instead.
var refusedIPAM = map[string]string{
	"dhcp6":  "use type slaac, whose IPv6 addresses are of router advertisements, or pool",
	"dhcpv6": "use type slaac, whose IPv6 addresses are of router advertisements, or pool",
	"whereabouts": "its range, range_start, range_end, exclude and gateway are fields of an AddressPool; " +
		"create one, and write {type: pool, pool: NAME}",
}

// Address wants the addresses, routes, rules and neighbors of a config on a link.
func (p *Planner) Address(link string, cfg AddressConfig) error {
	// The config is shared by later plans, also of other sandboxes: its lists must not be
	// appended to.
	cfg.Routes = slices.Clone(cfg.Routes)
	written, writtenRoutes := len(cfg.Addresses), len(cfg.Routes) // outside of ipam
	if cfg.IPAM != nil {
		cfg.Addresses = slices.Concat(cfg.Addresses, cfg.IPAM.Addresses)
		cfg.Routes = append(cfg.Routes, cfg.IPAM.Routes...)
	}
	if err := p.fromPool(link, cfg.IPAM); err != nil {
		return err
	}
	own := len(cfg.Addresses)
	p.current.addressed = true
	given, err := p.req.Given[p.stepName()].addressesBeside(link, cfg.Addresses, p.wants)
	if err != nil {
		return err
	}
	cfg.Addresses = slices.Concat(cfg.Addresses, given)
	families := cfg.Addresses
	if cfg.IPAM != nil && cfg.IPAM.Type == ipamDHCP {
		families = nil
	}
	for i := range cfg.Routes {
		cfg.Routes[i].Destination = destination(cfg.Routes[i], families)
	}
	ownRoutes := len(cfg.Routes)
	cfg.Routes = append(cfg.Routes, p.req.Given[p.stepName()].routesBeside(cfg.Routes)...)
	leasedFrom := len(cfg.Addresses)
	if cfg.IPAM != nil && cfg.IPAM.Type == ipamDHCP {
		if err := p.leases.want(link, &cfg); err != nil {
			return err
		}
	}
	for i, a := range cfg.Addresses {
		switch {
		case i >= leasedFrom:
			err = p.address(link, "the leased address", a, cfg)
		case i >= own:
			if err = p.address(link, "", a, cfg); err != nil {
				err = errGiven(err)
			}
		default:
			err = p.writtenAddress(link, fieldOf("addresses", i, written), a, cfg)
		}
		if err != nil {
			return err
		}
	}
	refused, gateways := gatewaysOf(cfg.Addresses)
	byFirst := map[bool]bool{} // families with routes that name no gateway
	for i := range cfg.Routes {
		r := &cfg.Routes[i]
		v6 := strings.Contains(r.Destination, ":")
		if r.Gateway == "" && r.Scope == nil && !isAlone(r.Destination, gateways[v6]) {
			r.Gateway = gateways[v6]
			byFirst[v6] = byFirst[v6] || r.Gateway != ""
		}
		field := fieldOf("routes", i, writtenRoutes)
		if i >= ownRoutes {
			field = fmt.Sprintf("given route to %s", r.Destination)
		}
		if err := p.routes.ofAddress(link, field, *r, refused); err != nil {
			return err
		}
	}
	p.noteUnusedGateways(cfg, cfg.Addresses[:own], gateways, byFirst, written)
	if err := p.acceptRA(link, cfg); err != nil {
		return err
	}
	if cfg.IPAM != nil && cfg.IPAM.Type == ipamSLAAC {
		if err := p.autoconfigure(link, cfg); err != nil {
			return err
		}
	}
	return p.policy(link, cfg)
}

// gatewaysOf returns the gateways that are no routers because of the link's addresses, each with the reason, and the
// first gateway of each family, by "is IPv6". IPv4 would take the link's own address, for a route on the link.
func gatewaysOf(addresses []Address) (refused map[netip.Addr]string, gateways map[bool]string) {
	refused, gateways = map[netip.Addr]string{}, map[bool]string{}
	for _, a := range addresses {
		if pre, err := a.Prefix(); err == nil {
			if all, has := addresspool.Broadcast(pre); has {
				refused[all] = fmt.Sprintf("the broadcast address of %q", pre.Masked())
			}
			refused[pre.Addr()] = "an address of the interface itself"
		}
		v6 := strings.Contains(a.Address, ":")
		if a.Gateway != "" && gateways[v6] == "" {
			gateways[v6] = a.Gateway
		}
	}
	return refused, gateways
}

// writtenAddress wants an address of the config, with its gateway.
func (p *Planner) writtenAddress(link, field string, a Address, cfg AddressConfig) error {
	if err := p.address(link, field, a, cfg); err != nil {
		return err
	}
	if err := checkGateway(field+".gateway", a); err != nil {
		return err
	}
	pre, err := a.Prefix()
	if err == nil && pre.Addr().Is4() && pre.Bits() < 31 && a.Gateway == pre.Masked().Addr().String() {
		p.Note("%s.gateway: %s is the network address of %s, not an address of a host: write the address of the router", field, a.Gateway,
			pre.Masked())
	}
	if what := notOfHost(a); what != "" {
		p.Note("%s: %s is the %s address of its prefix, not an address of a host: write the address of the interface", field,
			a.Address, what)
	}
	return nil
}

// isSource reports whether the kernel can use an address as a source. It takes the unspecified one for none.
func isSource(text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && !a.IsUnspecified() && !a.IsMulticast()
}

// noteUnusedGateways adds a note on each gateway that no route uses, because routes without a gateway
// use the first one. The maps are by "is IPv6".
func (p *Planner) noteUnusedGateways(cfg AddressConfig, own []Address, first map[bool]string, byFirst map[bool]bool, written int) {
	for i, a := range own {
		v6 := strings.Contains(a.Address, ":")
		if a.Gateway == "" || a.Gateway == first[v6] || !byFirst[v6] || cfg.SourceRouting ||
			slices.ContainsFunc(cfg.Routes, func(r Route) bool { return r.Gateway == a.Gateway }) {
			continue
		}
		p.Note("%s.gateway: %s is not used: routes without a gateway use %s, the first of the family; "+
			"write the gateway into a route, or set sourceRouting: true", fieldOf("addresses", i, written), a.Gateway, first[v6])
	}
}

// fieldOf is where a config has an entry of a list: the first of them outside of ipam.
func fieldOf(list string, i, outside int) string {
	if i >= outside {
		list, i = "ipam."+list, i-outside
	}
	return fmt.Sprintf("%s[%d]", list, i)
}

// checkGateway refuses a gateway that no route of the address's family can have.
func checkGateway(field string, a Address) error {
	gw, err := netip.ParseAddr(a.Gateway)
	pre, wrong := a.Prefix()
	refused, _ := gatewaysOf([]Address{a})
	switch why := cmp.Or(refused[gw], notARouter(gw)); {
	case err != nil || wrong != nil: // none, or refused elsewhere
		return nil
	case gw.Is4() != pre.Addr().Is4():
		return Invalid(field, "%q and address %q are of different families", a.Gateway, a.Address)
	case why != "":
		return Invalid(field, "%q is %s: write the address of a router, or remove gateway", a.Gateway, why)
	}
	return nil
}

// notARouter is what an address is that no router has, "" for others (fib_check_nh in net/ipv4/fib_semantics.c,
// ip6_route_check_nh in net/ipv6/route.c).
func notARouter(gw netip.Addr) string {
	switch {
	case gw.IsUnspecified():
		return "the unspecified address"
	case gw.IsMulticast():
		return "a multicast address"
	case gw.IsLoopback():
		return "an address of the loopback device"
	case gw == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "the broadcast address"
	}
	return ""
}

// notOfHost is what an address is that no host of its prefix has. IPv4 has the first one for the network and the last for
// broadcasts, IPv6 the first for its routers (RFC 4291 section 2.6.1). Networks of two have neither (RFC 3021, RFC 6164).
func notOfHost(a Address) string {
	pre, err := a.Prefix()
	if err != nil || pre.Bits() >= pre.Addr().BitLen()-1 {
		return ""
	}
	all, has := addresspool.Broadcast(pre)
	switch {
	case pre.Masked() == pre:
		return "network"
	case has && pre.Addr() == all:
		return "broadcast"
	}
	return ""
}

// isAlone reports whether a prefix is one address alone: a route to the gateway is on the link.
func isAlone(prefix, address string) bool {
	pre, err := netip.ParsePrefix(prefix)
	return err == nil && pre.IsSingleIP() && pre.Addr().String() == address
}

// AddressesOf returns the addresses that a link will have: those of the config, and those that
// are given to the step, with their gateways.
func (p *Planner) AddressesOf(link string, cfg AddressConfig) ([]Address, error) {
	all := slices.Clone(cfg.Addresses)
	if cfg.IPAM != nil {
		if cfg.IPAM.Type == ipamDHCP {
			return nil, unknownAddress(ipamDHCP)
		}
		all = append(all, cfg.IPAM.Addresses...)
	}
	if err := p.fromPool(link, cfg.IPAM); err != nil {
		return nil, err
	}
	p.current.addressed = true
	given, err := p.req.Given[p.stepName()].addressesBeside(link, all, p.wants)
	return append(all, given...), err
}

// knownAddresses is AddressesOf for a step that needs one.
func (p *Planner) knownAddresses(link string, cfg AddressConfig) ([]Address, error) {
	all, err := p.AddressesOf(link, cfg)
	if err == nil && len(all) == 0 && cfg.IPAM != nil && cfg.IPAM.Type == ipamSLAAC {
		return nil, unknownAddress(ipamSLAAC)
	}
	return all, err
}

func unknownAddress(ipam string) error {
	return Invalid("ipam.type", "%q has an address that is not known in advance, as this step needs it: use type %q", ipam, ipamPool)
}

// localKey is the first key of ipam that only type host-local has.
func (c *IPAM) localKey(r topology.IPRange) string {
	switch {
	case r.Subnet != "":
		return "subnet"
	case r.RangeStart != "":
		return "rangeStart"
	case r.RangeEnd != "":
		return "rangeEnd"
	case r.Gateway != "":
		return "gateway"
	case len(c.Ranges) > 0:
		return "ranges"
	}
	return "exclude"
}

// checkKeys refuses keys of another type of ipam.
func (c *IPAM) checkKeys() error {
	ranges := c.IPRange
	if c.Type == ipamMulti {
		ranges.Subnet = ""
	}
	local := ranges != (topology.IPRange{}) || len(c.Ranges) > 0 || len(c.Exclude) > 0
	divided := c.HostBlock != nil || c.InterfaceBlock != nil || len(c.ExcludeCIDRs) > 0
	switch {
	case c.Type != ipamPool && c.Type != ipamMulti && (c.Pool != "" || c.Interface != 0):
		return Invalid("ipam.pool", "is for types %q and %q: remove it, or change the type", ipamPool, ipamMulti)
	case c.Type != ipamMulti && divided:
		return Invalid("ipam.hostBlock",
			"is for type %q, as are interfaceBlock and excludeCIDRs: remove them, or change the type", ipamMulti)
	case c.Type == ipamMulti && local:
		return Invalid("ipam."+c.localKey(ranges),
			"is for type %q: type %q has subnet and excludeCIDRs, and the gateway of its AddressPool", ipamLocal, ipamMulti)
	case c.Type != ipamLocal && local:
		return Invalid("ipam."+c.localKey(ranges), "is for type %q: remove it, or change the type", ipamLocal)
	case c.Type != ipamSLAAC && c.Type != ipamDHCP && c.AcceptDefaultRoute:
		return Invalid("ipam.acceptDefaultRoute", "is for types %q and %q: remove it, or change the type", ipamSLAAC, ipamDHCP)
	case c.Type != ipamStatic && len(c.Addresses) > 0:
		return Invalid("ipam.addresses",
			"are for type %q: addresses beside those that are allocated go into addresses of the step", ipamStatic)
	}
	return nil
}

// source names where addresses are allocated: a pool, or the node's own ranges. It is empty for types that allocate none.
func (c *IPAM) source() (string, error) {
	switch {
	case c.Type == ipamStatic, c.Type == ipamSLAAC, c.Type == ipamDHCP:
		return "", nil
	case c.Type == ipamLocal:
		if _, err := addresspool.Local(c.IPAM); err != nil {
			return "", inIPAM(err)
		}
		return addresspool.Title(topology.LocalPool), nil
	case strings.Trim(c.Pool, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "":
		return "", Invalid("ipam.pool", "%q is not an AddressPool name: use a-z, 0-9, \"-\" and \".\" only", c.Pool)
	}
	if c.Type == ipamMulti {
		if err := addresspool.CheckDivision(c.IPAM); err != nil {
			return "", inIPAM(err)
		}
	}
	return addresspool.Title(c.Pool), nil
}

// fromPool refuses ipam with keys of another type, and addresses of a pool that are not
// given. On an imagined node it gives some.
func (p *Planner) fromPool(link string, c *IPAM) error {
	if c == nil {
		return nil
	}
	if err := c.checkDHCP(); err != nil {
		return err
	}
	if err := c.checkKeys(); err != nil {
		return err
	}
	source, err := c.source()
	switch {
	case err != nil:
		return err
	case topology.EmptyPool(p.current.step) && !p.Kept():
		return Invalid("ipam.pool",
			"is empty: name an AddressPool, or leave the key out for that of the physical network of the step's device")
	case source == "", len(p.req.Given[p.stepName()].Addresses) > 0:
		return nil
	case p.req.imagined == nil:
		return fault.New(fault.NotReady, fmt.Errorf(
			"ipam: no address of %s is given: the agent of a node gives them; on a command line give one with --address %s=ADDRESS", source,
			p.stepName()))
	}
	im := p.req.imagined
	im.pooled[link] = true
	if c.Type != ipamPool || c.Pool == "" { // it has a subnet for each interface or device
		source = link
	}
	given := p.req.Given[p.stepName()]
	given.Addresses = im.addresses(source, p.req.position(p.stepName()))
	for _, a := range given.Addresses {
		given.Gateways = append(given.Gateways, a.Addr().Next())
	}
	p.req.Given[p.stepName()] = given
	return nil
}

// FromSubnets has a step of OVN without addresses take those of the pool of its network's subnets (topology.FromSubnets). It does not
// where ovn-kubernetes has made the port, whose addresses are its own, and in a sandbox of when subnets gave none.
func (p *Planner) FromSubnets(cfg *AddressConfig) {
	if of, ok := topology.FromSubnets(p.current.step); ok && p.GivenPort() == nil && !p.Kept() {
		cfg.IPAM = &IPAM{Type: ipamPool, IPAM: topology.IPAM{Pool: of.Pool}}
	}
}

// inIPAM is an error about fields of ipam as one about the step's config.
func inIPAM(err error) error {
	var wrong []error
	for _, f := range addresspool.FieldErrors(err) {
		f.Field = "ipam." + f.Field
		wrong = append(wrong, fault.New(fault.Invalid, f))
	}
	return errors.Join(wrong...)
}

func (p *Planner) address(link, field string, a Address, cfg AddressConfig) error {
	addr := netstate.Addr{Link: link, Address: a.Address}
	addr.Expires = p.leases.expires[addr.Key()]
	if cfg.Routed {
		addr.NoPrefixRoute = new(true)
	}
	l, _ := p.view.Link(link)
	if err := p.ipv6.add(field, addr, l); err != nil {
		return err
	}
	if err := p.leaveToNode(link, a); err != nil {
		return err
	}
	if strings.Contains(a.Address, ":") {
		// a pool may have no IPv6
		if l.MTU != nil && *l.MTU < netstate.MinIPv6MTU && !p.req.imagined.givesAddresses(link) {
			return Invalid(field, "%q is IPv6, which needs an mtu of at least 1280 on %q, not %d", a.Address, link, *l.MTU)
		}
		sysctls := [][2]string{{"disable_ipv6", "0"}, {"keep_addr_on_down", "1"}}
		if cfg.DAD == dadOptimistic { // without the first the kernel drops the flag of the address
			sysctls = append(sysctls, [2]string{"optimistic_dad", "1"}, [2]string{"use_optimistic", "1"})
		}
		for _, s := range sysctls {
			if err := p.Want(netstate.Sysctl{Path: "net/ipv6/conf/" + link + "/" + s[0], Value: &s[1]}); err != nil {
				return err
			}
		}
	}
	if a.Gateway != "" {
		p.current.gateway[addr.Key()] = a.Gateway
	}
	return p.detected(addr, cfg.DAD)
}

// detected wants an address, and what dad says of it if it is IPv6.
func (p *Planner) detected(addr netstate.Addr, dad string) error {
	if !strings.Contains(addr.Address, ":") {
		return p.Want(addr)
	}
	if dad != "" {
		addr.NoDAD, addr.Optimistic = new(dad == dadOff), dad == dadOptimistic
	}
	if err := p.Want(addr); err != nil {
		return err
	}
	have, _ := netstate.Lookup(p.req.Have, addr)
	switch {
	case have.DADFailed && dad == dadWait:
		p.current.await(fmt.Sprintf("address %q on %q, which another host of the network has (duplicate address detection failed)",
			addr.Address,
			addr.Link), Conflict("another host of the network has address %q of %q: duplicate address detection has failed. "+
			"Give one of them another address, or, if both are to have it, set dad: off", addr.Address, addr.Link))
	case have.DADFailed:
		p.Note("duplicate address detection has failed for %q of %q: "+
			"another host of the network has the address, and the kernel does not use it", addr.Address, addr.Link)
	case dad == dadWait && !p.req.Kept:
		p.settling = append(p.settling, addr)
		if have.Tentative {
			p.current.await(fmt.Sprintf("the end of duplicate address detection of %q on %q", addr.Address, addr.Link),
				&settling{fmt.Errorf(
					"duplicate address detection of %q on %q has not ended: it needs a link with carrier. Set dad: "+
						"optimistic or off if the container is to start without", addr.Address, addr.Link)})
		}
	}
	return nil
}

// await lets a part of the step wait, for the reason why, beside what else is planned.
func (s *stepState) await(needs string, why error) {
	s.later, s.withheld = needs, why
}

// settling is the reason why a step waits for what happens without a change, such as
// duplicate address detection.
type settling struct{ error }

func (s *settling) Unwrap() error { return s.error }

// unsettled reports whether an object is not ready for use yet.
func unsettled(have *netstate.Snapshot, o netstate.Object) bool {
	got, _ := have.Get(o.Key())
	switch got := got.(type) {
	case netstate.Addr:
		return got.Tentative || got.DADFailed
	case netstate.OVSPort:
		return !got.Installed
	case netstate.DHCPLease:
		return got.Address == ""
	}
	return false
}

// ipv6Addrs are those wanted, by link and address without its prefix length.
type ipv6Addrs map[string]netstate.Addr

// add refuses addresses that the kernel refuses (ipv6_add_addr in
// net/ipv6/addrconf.c) or silently ignores (0.0.0.0: inet_insert_ifa in
// net/ipv4/devinet.c).
func (v ipv6Addrs) add(field string, addr netstate.Addr, l netstate.Link) error {
	pre, err := netip.ParsePrefix(addr.Address)
	if err != nil {
		return Invalid(field, "%q is not an address with a prefix", addr.Address)
	}
	ip := pre.Addr()
	switch {
	case ip.IsUnspecified():
		return Invalid(field, "%q is the unspecified address and cannot be assigned to an interface", addr.Address)
	case ip.Is6() && ip.IsMulticast():
		return Invalid(field, "%q is a multicast address and cannot be assigned to an interface", addr.Address)
	case ip.Is6() && ip.IsLoopback() && !l.KindTraits().L3Master:
		return Invalid(field, "%q belongs to the loopback device alone", addr.Address)
	case !ip.Is6():
		return nil
	}
	key := addr.Link + " " + ip.String()
	if other, twice := v[key]; twice && other.Address != addr.Address {
		return Invalid(field, "%q is wanted on %q as %q already: the kernel takes an IPv6 address with one prefix length only",
			addr.Address, addr.Link, other.Address)
	}
	v[key] = addr
	return nil
}

// MAC checks that a MAC can be a link's: unicast and not zero.
func MAC(field, mac string) error {
	var first, rest int
	if _, err := fmt.Sscanf(mac, "%02x:", &first); err != nil {
		return Invalid(field, "%q is not a MAC address", mac)
	}
	for _, r := range mac[2:] {
		if r != ':' && r != '0' {
			rest++
		}
	}
	if first&1 != 0 {
		return Invalid(field, "%q is a multicast address; the lowest bit of the first byte must be 0", mac)
	}
	if first == 0 && rest == 0 {
		return Invalid(field, "%q is the zero address", mac)
	}
	return nil
}

// InTheWay is a conflict with a link that exists and is not ours. The record of another
// sandbox may name its owner.
type InTheWay struct {
	Link string // with its place
	err  error
}

func (e *InTheWay) Error() string { return e.err.Error() }
func (e *InTheWay) Unwrap() error { return e.err }

// ConflictWith is an error of kind fault.Conflict about a link that is in the way.
func ConflictWith(link, format string, args ...any) error {
	return fault.New(fault.Conflict, &InTheWay{link, fmt.Errorf(format, args...)})
}

// Conflict is an error of kind fault.Conflict.
func Conflict(format string, args ...any) error {
	return fault.New(fault.Conflict, fmt.Errorf(format, args...))
}
