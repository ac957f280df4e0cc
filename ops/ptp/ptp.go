package ptp

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

type config struct {
	ops.AddressConfig
	ops.MasqueradeConfig
	ops.PortMappingConfig
	Name             string  `json:"name,omitempty"`
	HostIfName       string  `json:"hostIfName,omitempty"`
	MTU              *uint32 `json:"mtu,omitempty"`
	MAC              *string `json:"mac,omitempty"`
	IsDefaultGateway bool    `json:"isDefaultGateway,omitempty"`
	DNS              any     `json:"dns,omitempty"`
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "ptp",
	Summary: "Connect the sandbox with the host by a veth pair, and route.",
	Description: `Creates a veth pair. The end on the host has the gateway of each address, as /32 or /128, and a route to the address; the
pod reaches the network of the address over the gateway. The gateway is that of the address or its pool (required there), else the first
address of the network.

The step waits until the host forwards: set ` + "`net.ipv4.ip_forward`" + `, and for IPv6 addresses
` + "`net.ipv6.conf.all.forwarding`" + `, to 1. With the second the host ignores router advertisements. Unless
` + "`rp_filter`" + ` is 1, and always with IPv6, the host accepts any source address from the pair. ipMasq needs nftables in the
kernel, and a firewall of the host that accepts the pod's packets.`,
	Example: `- name: net1
  type: ptp
  config:
    ipam: {type: pool, pool: pods}
    isDefaultGateway: true
    ipMasq: true
`,
	Params: slices.Concat([]contract.Param{
		ops.NameParam(ops.RootName),
		{
			Name: "hostIfName", Type: contract.String, Format: contract.InterfaceName,
			Description: "end on the host; default: derived from sandbox and step",
		},
		ops.MTUParam("that of the host's default route, else 1500"),
		ops.MACParam("default: one that the link keeps"),
		{Name: "isDefaultGateway", Type: contract.Boolean, Description: "default route over the gateway of each family"},
		{Name: "dns", Type: contract.Any, Description: "accepted, not used: a pod's DNS is Kubernetes'", Ignored: ops.NoDNS},
	}, ops.MasqueradeParams(), ops.PortMappingParams(), ops.AddressParams()),
	Output: ops.Appends(),
}, plan)

func plan(p *ops.Planner, c config) error {
	if !p.Root() {
		return fault.New(fault.Invalid, errors.New("connects the sandbox with the host and builds on no other step: remove dependOn"))
	}
	if c.MAC != nil {
		if err := ops.MAC("mac", *c.MAC); err != nil {
			return err
		}
	}
	name, err := p.DefaultName(c.Name)
	if err != nil {
		return err
	}
	mtu, err := p.UplinkMTU(c.MTU)
	if err != nil {
		return err
	}
	host, err := p.VethToHost(netstate.Link{Name: name, MTU: &mtu, MAC: c.MAC, Up: new(true)}, c.HostIfName)
	if err != nil {
		return err
	}
	if err := p.Want(netstate.Link{Name: host, MTU: &mtu, Up: new(true)}); err != nil {
		return err
	}
	if err := route(p, name, host, &c); err != nil {
		return err
	}
	if err := p.Masquerade(name, c.MasqueradeConfig, c.AddressConfig); err != nil {
		return err
	}
	if err := p.MapPorts(name, host, c.PortMappingConfig, c.AddressConfig); err != nil {
		return err
	}
	p.Produce(host)
	p.Produce(name)
	return p.Address(name, c.AddressConfig)
}

// route gives the host the gateways and the routes to the addresses, and the config the routes
// of the sandbox.
func route(p *ops.Planner, name, host string, c *config) error {
	all, err := p.Gateways(name, "ipam", c.AddressConfig)
	if err != nil {
		return err
	}
	c.Routed = true
	var first, then []ops.Route
	gateways := map[bool]string{} // by "is IPv4"
	for _, a := range all {
		ip, gw := a.Address.Addr(), a.Gateway.String()
		if err := p.HostForwards(ip.Is4()); err != nil {
			return err
		}
		if gateways[ip.Is4()] == "" {
			gateways[ip.Is4()] = gw
			if c.IsDefaultGateway {
				then = append(then, ops.Route{Destination: ops.DefaultRoute(ip), Gateway: gw})
			}
		}
		addr := netstate.Addr{Link: host, Address: hostPrefix(a.Gateway)}
		if !ip.Is4() {
			addr.NoDAD = new(true) // each pair has it, and detection would see only this one
		}
		if err := p.Want(addr); err != nil {
			return err
		}
		if err := p.Want(ops.RouteToPod(host, ip)); err != nil {
			return err
		}
		first = add(first, ops.Route{Destination: hostPrefix(a.Gateway)})
		if network := a.Address.Masked(); !network.IsSingleIP() {
			then = add(then, ops.Route{Destination: network.String(), Gateway: gw})
		}
	}
	c.Routes = slices.Concat(first, then, over(gateways, c.Routes))
	if c.IPAM != nil {
		own := *c.IPAM // the config is shared by later plans
		own.Routes = over(gateways, own.Routes)
		c.IPAM = &own
	}
	return nil
}

func hostPrefix(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// add appends a route unless there is one to its destination.
func add(routes []ops.Route, r ops.Route) []ops.Route {
	if slices.ContainsFunc(routes, func(have ops.Route) bool { return have.Destination == r.Destination }) {
		return routes
	}
	return append(routes, r)
}

// over returns the routes, those without a gateway and scope over the gateway of their family.
func over(gateways map[bool]string, routes []ops.Route) []ops.Route {
	out := slices.Clone(routes)
	for i := range out {
		v4 := !strings.Contains(out[i].Destination, ":") && (out[i].Destination != "default" || gateways[true] != "")
		if out[i].Gateway == "" && out[i].Scope == nil {
			out[i].Gateway = gateways[v4]
		}
	}
	return out
}
