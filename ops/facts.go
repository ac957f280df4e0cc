package ops

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
)

// factNames are the fields of links and virtual functions that a drawing shows, with their names there.
var factNames = map[string]string{
	"vlan": "VLAN", "vlan.id": "id", "vxlan.id": "id", "ipoib.pkey": "pkey", "vrf.table": "table", "mtu": "mtu",
}

// Facts returns for each step of an imagined node's plan what a drawing shows of it: interfaces with ID and MTU,
// addresses. An invented address of a pool is replaced by the name of the pool.
func (p *Plan) Facts(t *topology.Topology, invented Givens) map[string][]string {
	out := map[string][]string{}
	for _, c := range p.Changes {
		line, again := "", "" // again is a line that this one replaces
		switch o := c.After.(type) {
		case netstate.Device:
			if o.At != nil {
				line = *o.At
			}
		case netstate.Link:
			onHost := netstate.BaseName(o.Name) != o.Name && o.LinkKind != "bridge" // such as the other end of a pair
			if fields := facts(c); (fields != "" || c.Action() == netstate.Create) && !onHost {
				line, again = o.Name+fields, o.Name
			}
		case netstate.VF:
			line = strings.TrimSpace(facts(c))
		case netstate.Addr:
			if netstate.BaseName(o.Link) == o.Link { // otherwise a gateway on the host
				line = ofStep(t, c.Step, o.Address, invented)
			}
		}
		switch i := slices.Index(out[c.Step], again); {
		case i >= 0:
			out[c.Step][i] = line
		case line != "" && !slices.Contains(out[c.Step], line):
			out[c.Step] = append(out[c.Step], line)
		}
	}
	return out
}

// ofStep is an address of a step, or where a pod gets one in place of an invented one.
func ofStep(t *topology.Topology, step, address string, invented Givens) string {
	s, _ := t.Step(step)
	ipam, _ := s.Config["ipam"].(map[string]any)
	pool, _, ok := topology.FromPool(s)
	prefix, err := netip.ParsePrefix(address)
	switch {
	case ipam["type"] == ipamDHCP && poolAddress.FindString(address) == address:
		return "address by DHCP"
	case !ok || err != nil || !slices.Contains(invented[step].Addresses, prefix):
		return address
	case pool == topology.LocalPool:
		return "address of the node's range"
	default:
		return strings.TrimSpace("address of pool " + pool)
	}
}

// facts are the fields of factNames that a change sets.
func facts(c netstate.Change) (line string) {
	for _, f := range c.Fields() {
		if name := factNames[f.Path]; name != "" && fmt.Sprint(f.After) != "0" {
			line += fmt.Sprintf(" %s %v", name, f.After)
		}
	}
	return line
}
