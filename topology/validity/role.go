package validity

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
)

// ExamplePodCIDRs are example pod CIDRs of a node, of both families (RFC 5737, RFC 3849). A node
// with one family accepts whatever one with both does.
var ExamplePodCIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}

// ofOnePod are keys of step types whose value one pod of a node can have, those of a bridge of the host apart.
var ofOnePod = []struct {
	key, problem string
	onBridge     bool
}{
	{key: "hostIfName", problem: "all pods would have it, and a node could start one only: leave it out"},
	{key: "mac", problem: "all pods would have it on one bridge, and reach no one: leave it out", onBridge: true},
	{key: "portMappings", problem: "all pods would have it, and a node could start one only: leave it out, and set hostPort in containers"},
}

// ofRole checks what a topology that is the pod network cannot have: what a claim
// decides, and what would change the network of all pods at once.
func ofRole(t *topology.Topology, set contract.Set, invalid *topology.Invalid) {
	add := invalid.Addf
	if t.UpdatePolicy == topology.InPlace {
		add("", "spec.updatePolicy", "must be Immutable with a role: running pods keep their own network, and new ones get the change")
	}
	if t.ClaimTemplate != nil {
		add("", "spec.claimTemplate", "is for topologies that claims request: remove it, or the role")
	}
	if t.Export != nil {
		add("", "spec.export", "is for containers that use a claim, and pods have this topology without one: remove it, or the role")
	}
	for i := range t.Steps {
		step := &t.Steps[i]
		if a := topology.Exclusive(step); len(a) > 0 {
			add(step.Name, "config.addresses",
				"all pods would have %q: leave addresses out to give each pod one of the node's pod CIDRs, name an AddressPool in ipam, "+
					"or set allowDuplicate on the step", a[0])
		}
		c, _ := set.Contract(step.Type)
		onBridge := slices.ContainsFunc(c.Params, func(p contract.Param) bool { return p.Name == "bridge" })
		for _, own := range ofOnePod {
			if _, sets := step.Config[own.key]; sets && (onBridge || !own.onBridge) {
				add(step.Name, "config."+own.key, "%s", own.problem)
			}
		}
	}
	first := true
	for _, s := range t.Roots() {
		c, known := set.Contract(s.Type)
		if !known {
			continue // reported already
		}
		if s.Selector != "" {
			add(s.Name, "selector",
				"is for topologies that claims request: pods without a claim have no device; name a link of the host in the config")
		}
		if s.ExtendedResourceName != "" {
			add(s.Name, "extendedResourceName", "is for topologies that claims request: remove it")
		}
		if c.Input.Device {
			add(s.Name, "type",
				"%q takes a device, which only a claim has: use a type that takes none, such as bridge or ptp, for the pod network",
				s.Type)
		}
		if !first {
			continue
		}
		first = false
		if name, sets := t.NamesPodInterface(set); sets {
			add(s.Name, "config."+name, "must be left out: the container runtime names the interface, usually %s", topology.PodInterface)
		}
		ipam, _ := s.Config["ipam"].(map[string]any)
		_, literal := s.Config["addresses"]
		if ipam["type"] == "slaac" && s.Config["dad"] != "wait" && !literal {
			add(s.Name, "config.dad",
				"must be wait with ipam of type slaac: the runtime refuses a pod whose %s has no address yet", topology.PodInterface)
		}
		if !c.Input.Device && !topology.ConnectsWithHost(c) {
			add(s.Name, "type",
				"%q does not connect pods with their host, and the first root step is the interface %s of pods: use type bridge or ptp",
				s.Type, topology.PodInterface)
		}
	}
	if first {
		add("", "spec.steps", "there is no root step, which is the interface %s of pods", topology.PodInterface)
	}
}

// noDefaultRoute is a note on a network whose pods reach no other one. Of an AddressPool, and
// of what a router advertises, the routes are not known here.
func noDefaultRoute(t *topology.Topology, set contract.Set) []string {
	roots := t.Roots()
	if len(roots) == 0 {
		return nil
	}
	s := roots[0]
	c, _ := set.Contract(s.Type)
	ipam, _ := s.Config["ipam"].(map[string]any)
	known := ipam == nil || ipam["type"] == "static" || ipam["type"] == topology.IPAMHostLocal
	if gateway, _ := s.Config["isDefaultGateway"].(bool); gateway || !known || !topology.ConnectsWithHost(c) || hasRoutes(s.Config) ||
		hasRoutes(ipam) {
		return nil
	}
	return []string{fmt.Sprintf(
		"step %q: pods have no default route, so that they reach neither Services nor pods of other nodes: add isDefaultGateway: true",
		s.Name)}
}

func hasRoutes(config map[string]any) bool {
	routes, _ := config["routes"].([]any)
	return len(routes) > 0
}
