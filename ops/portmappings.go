package ops

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

// PortMappingConfig is the config of steps that give pods ports of the host; embed it in a
// config type.
type PortMappingConfig struct {
	PortMappings []PortMapping `json:"portMappings,omitempty"`
}

// PortMapping is a port of the host that leads to one of the pod, spelled as the capability
// portMappings of CNI.
type PortMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol,omitempty"`
	HostIP        string `json:"hostIP,omitempty"`
}

// maxPortMappings bounds what one step may have: they are observed and changed at once while a pod starts.
const maxPortMappings = 256

// PortMappingParams describes PortMappingConfig.
func PortMappingParams() []contract.Param {
	port := func(name, description string) contract.Param {
		return contract.Param{
			Name: name, Type: contract.Integer, Required: true,
			Minimum: contract.Int(1), Maximum: contract.Int(65535), Description: description,
		}
	}
	return []contract.Param{{
		Name: "portMappings", Type: contract.List,
		Description: "ports of the host that lead to the pod; in a pod's own network its hostPorts", Items: &contract.Param{
			Type: contract.Object, Properties: []contract.Param{
				port("hostPort", "port of the host"),
				port("containerPort", "port of the pod"),
				{Name: "protocol", Type: contract.String, Enum: netstate.PortProtocols, Description: "default: tcp"},
				{
					Name: "hostIP", Type: contract.String, Format: contract.IP,
					Description: "address of the host, also of 127.0.0.0/8; default: all but those",
				},
			},
		},
	}}
}

// MapPorts wants what portMappings means for the first address of each family that a link will have. A step
// that connects the sandbox with its host calls it without ports, too. Via is the link of the host over which that reaches
// the sandbox.
func (p *Planner) MapPorts(link, via string, c PortMappingConfig, addresses AddressConfig) error {
	p.plan.ViaHost = true
	if len(c.PortMappings) == 0 {
		return nil
	}
	if n := len(c.PortMappings); n > maxPortMappings {
		return Invalid("portMappings", "has %d ports, and can have %d", n, maxPortMappings)
	}
	all, err := p.knownAddresses(link, addresses)
	if err != nil {
		return err
	}
	pods := map[bool]netip.Prefix{} // by "is IPv4"
	for _, a := range all {
		pre, err := a.Prefix()
		if err != nil {
			return err
		}
		if _, has := pods[pre.Addr().Is4()]; !has && !pre.Addr().IsLinkLocalUnicast() {
			pods[pre.Addr().Is4()] = pre
		}
	}
	if len(pods) == 0 {
		return Invalid("portMappings", "needs an address to map ports to: add addresses or ipam")
	}
	ports, err := c.hostPorts(pods)
	if err != nil {
		return err
	}
	// All are observed at once: plans that each need one more do not come to an end.
	missing := false
	for _, m := range ports {
		switch _, _, err := Lookup(p, netstate.PortMapping{Host: m.host.String()}); {
		case errors.Is(err, errMissing):
			missing = true
		case err != nil:
			return err
		}
	}
	if missing {
		return errMissing
	}
	if err := p.refuseOverlap(ports, pods); err != nil {
		return err
	}
	for _, m := range ports {
		if err := p.mapPort(m, pods[m.host.Addr().Is4()], via); err != nil {
			return err
		}
	}
	return nil
}

// hostPort is a port of the host that a config has.
type hostPort struct {
	field string
	host  netstate.HostPort
	pod   int // port
}

// hostPorts returns the ports of the config, each of a family that the pod has.
func (c PortMappingConfig) hostPorts(pods map[bool]netip.Prefix) ([]hostPort, error) {
	var out []hostPort
	seen := map[netstate.HostPort]int{}
	for i, m := range c.PortMappings {
		field := fmt.Sprintf("portMappings[%d]", i)
		on, err := m.addresses(field, pods)
		if err != nil {
			return nil, err
		}
		protocol := cmp.Or(m.Protocol, "tcp")
		for _, a := range on {
			port := uint16(m.HostPort) //nolint:gosec // the contract bounds it
			host := netstate.HostPort{AddrPort: netip.AddrPortFrom(a, port), Protocol: protocol}
			switch other := seen[host]; other {
			case 0:
			case m.ContainerPort: // 0.0.0.0 and :: in a pod of one family
				continue
			default:
				return nil, Invalid(field+".hostPort", "%s leads to two ports of the pod: remove one", host)
			}
			seen[host] = m.ContainerPort
			out = append(out, hostPort{field, host, m.ContainerPort})
		}
	}
	return out, nil
}

// addresses returns those of the host on which the port is, each of a family that the pod has.
func (m PortMapping) addresses(field string, pods map[bool]netip.Prefix) ([]netip.Addr, error) {
	var a netip.Addr
	if m.HostIP != "" {
		var err error
		if a, err = netip.ParseAddr(m.HostIP); err != nil {
			return nil, Invalid(field+".hostIP", "%q is not an IP address", m.HostIP)
		}
		a = a.Unmap()
	}
	_, has := pods[a.Is4()]
	if m.HostIP == "" || a.IsUnspecified() && !has { // a socket that is bound to :: receives IPv4, too (ipv6(7))
		var out []netip.Addr
		for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			if _, has := pods[a.Is4()]; has {
				out = append(out, a)
			}
		}
		return out, nil
	}
	switch {
	case !has:
		return nil, Invalid(field+".hostIP", "the pod has no address of the family of %q", m.HostIP)
	case a.IsLoopback() && !a.Is4():
		return nil, Invalid(field+".hostIP", "packets from %q cannot leave the host, since Linux has route_localnet for IPv4 only: "+
			"name 127.0.0.1 or another address of the host, or remove hostIP", m.HostIP)
	case a.Zone() != "":
		return nil, Invalid(field+".hostIP", "%q has a zone: name an address that is the host's alone", m.HostIP)
	}
	return []netip.Addr{a}, nil
}

// refuseOverlap refuses a port of one address of the host that another pod has of all of them, and the
// reverse, as Kubernetes' scheduler does (NodePorts).
func (p *Planner) refuseOverlap(ports []hostPort, pods map[bool]netip.Prefix) error {
	if p.Kept() {
		return nil
	}
	for _, have := range netstate.All[netstate.PortMapping](p.view) {
		other, err := netstate.ParseHostPort(have.Host)
		if err != nil || have.To == nil {
			continue
		}
		to, err := netip.ParseAddrPort(*have.To)
		if err != nil || to.Addr() == pods[other.Addr().Is4()].Addr() {
			continue // a pod may have both
		}
		for _, port := range ports {
			if other == port.host || !other.Overlaps(port.host) {
				continue
			}
			if p.Foreign(have.Key()) {
				return Conflict(
					"%s.hostPort: port %s of the host overlaps with %s, which leads to %s, which another pod of this node has: "+
						"choose another port, or another node", port.field, port.host, other, to)
			}
			if p.Wanted(have.Key()) {
				return Invalid(port.field+".hostPort", "port %s of the host overlaps with %s, which step %q maps to %s: remove one of them",
					port.host, other, p.claims[have.Key()]["to"].step, to)
			}
		}
	}
	return nil
}

func (p *Planner) mapPort(port hostPort, pod netip.Prefix, via string) error {
	m := netstate.PortMapping{
		Host: port.host.String(), To: new(netip.AddrPortFrom(pod.Addr(), uint16(port.pod)).String()), //nolint:gosec // as above
		Network: new(pod.Masked().String()),
	}
	if port.host.Addr().IsLoopback() {
		m.Via = new(netstate.BaseName(via))
	}
	have, there, err := Lookup(p, netstate.PortMapping{Host: m.Host})
	if err != nil {
		return err
	}
	if there && p.Foreign(have.Key()) && *have.To != *m.To {
		return Conflict(
			"%s.hostPort: port %s of the host leads to %s, which another pod of this node has: choose another port, or another node",
			port.field, port.host, *have.To)
	}
	if err := p.HostForwards(port.host.Addr().Is4()); err != nil {
		return err
	}
	return p.Want(m)
}
