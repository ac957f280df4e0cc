package imports

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// ipam converts the addresses of a step. atNode says that the network ends at the node, so that each node may have the same
// addresses.
func (c *converter) ipam(n *network, s *step, ipam *record, atNode bool) {
	typ := ipam.text("type")
	ipam.none("a pod's DNS is Kubernetes'", "dns")
	if typ == "" && len(ipam.keys()) == 0 {
		return
	}
	c.routes(s, ipam)
	switch typ {
	case "host-local":
		ipam.none("the agent's own record has the addresses", "dataDir")
		ipam.none("a pod's DNS is Kubernetes'", "resolvConf")
		if atNode {
			if !c.Moved {
				ipam.note("", "the agent and the plugin host-local do not see each other's allocations: "+
					"until the last pod has moved, divide the range, by rangeEnd here and rangeStart in the step")
			}
			s.config["ipam"] = c.rest(ipam, typ, "subnet", "rangeStart", "rangeEnd", "gateway", "ranges")
			return
		}
		c.hostLocal(n, s, ipam)
	case "whereabouts":
		c.whereabouts(n, s, ipam)
	case "nv-ipam":
		c.nvIPAM(n, s, ipam)
	case "dhcp":
		ipam.none("no daemon is needed", "daemonSocketPath")
		c.dhcp(s, ipam)
	case "static":
		s.config["ipam"] = c.rest(ipam, typ, "addresses")
		if !ipam.has("addresses") && s.config["ipam"].(map[string]any)["addresses"] == nil {
			ipam.note("addresses",
				"is missing: the network gives pods no address. If pods name one themselves, convert them, too, with --pods")
			delete(s.config, "ipam")
		}
	default:
		ipam.problem("type", "no addresses of ipam %q can be converted: write an AddressPool, and ipam: {type: pool} in a topology", typ)
		ipam.left = nil
	}
	c.reachable(s, ipam)
}

// reachable refuses a route's gateway that no address of the pool is on the network of: no node could make the route.
func (c *converter) reachable(s *step, ipam *record) {
	routes, _ := s.config["routes"].([]any)
	if s.pool == nil || s.config["addresses"] != nil {
		return
	}
	for i, r := range routes {
		text, _ := r.(map[string]any)["gw"].(string)
		gateway, err := netip.ParseAddr(text)
		if err != nil || gateway.IsLinkLocalUnicast() {
			continue
		}
		if !slices.ContainsFunc(s.pool.spec.Subnets, func(n v1alpha1.AddressSubnet) bool {
			p, err := netip.ParsePrefix(n.Prefix)
			return err != nil || p.Contains(gateway)
		}) {
			ipam.problem(fmt.Sprintf("routes[%d].gw", i), "%q is in no subnet of the addresses: write a gateway that pods reach", text)
		}
	}
}

// rest is the ipam of a type that is accepted as it is.
func (c *converter) rest(ipam *record, typ string, keys ...string) map[string]any {
	out := map[string]any{"type": typ}
	for _, k := range keys {
		if v, has := ipam.take(k); has && v != "" {
			out[k] = v
		}
	}
	return out
}

// scopes are those of routes as rtnetlink(7) numbers them.
var scopes = map[int64]string{0: "global", 253: "link", 254: "host"}

// routes converts the routes beside the addresses.
func (c *converter) routes(s *step, ipam *record) {
	var out []any
	for _, r := range ipam.subs("routes") {
		route := map[string]any{}
		for _, k := range []string{"dst", "gw", "mtu", "advmss", "priority", "table"} {
			if v, has := r.take(k); has && v != "" {
				route[k] = v
			}
		}
		if number, ok := r.number("scope"); ok && scopes[number] == "" {
			r.problem("scope", "%d is not the scope of a route that a pod can have", number)
		} else if ok {
			route["scope"] = scopes[number]
		}
		out = append(out, route)
	}
	if len(out) > 0 {
		s.config["routes"] = out
		s.from("routes", ipam.path("routes"))
	}
}

func (c *converter) dhcp(s *step, ipam *record) {
	out := map[string]any{"type": "dhcp"}
	ipam.none("the default route of a server is not used beside that of the pod's own network; acceptDefaultRoute allows it", "priority")
	for _, r := range ipam.subs("request") {
		r.none("no option of a server is used beside the address, the times and the router", "option", "skipDefault")
	}
	var provide []any
	for _, r := range ipam.subs("provide") {
		option, value := r.text("option"), r.text("value")
		if arg := r.text("fromArg"); arg != "" {
			r.note("fromArg", "%q is left out: the server gets no option %q, as its value would come from an argument of CNI", arg, option)
			continue
		}
		provide = append(provide, map[string]any{"option": option, "value": value})
	}
	if len(provide) > 0 {
		out["provide"] = provide
	}
	s.config["ipam"] = out
}

// usePool gives a step addresses of a pool, which is made if there is none with the key.
func (c *converter) usePool(n *network, s *step, p *pool) {
	if i := slices.IndexFunc(c.pools, func(o *pool) bool { return o.key == p.key }); i >= 0 {
		p = c.pools[i]
	} else {
		c.pools = append(c.pools, p)
	}
	if !slices.Contains(p.froms, n.from) {
		p.froms = append(p.froms, n.from)
	}
	s.pool = p
	s.config["ipam"] = map[string]any{"type": topology.IPAMPool}
}

// hostLocal makes a pool of the ranges of host-local, since the network leads to other nodes.
func (c *converter) hostLocal(n *network, s *step, ipam *record) {
	var sets [][]v1alpha1.AddressSubnet
	if ipam.has("subnet") {
		sets = append(sets, []v1alpha1.AddressSubnet{localRange(ipam)})
	}
	v, _ := ipam.take("ranges")
	list, _ := v.([]any)
	for i, e := range list {
		set := ipam.below(ipam.path("ranges"), map[string]any{fmt.Sprint(i): e})
		var one []v1alpha1.AddressSubnet
		for _, r := range set.subs(fmt.Sprint(i)) {
			r.at = strings.Replace(r.at, fmt.Sprintf("ranges.%d[", i), fmt.Sprintf("ranges[%d][", i), 1)
			one = append(one, localRange(r))
		}
		sets = append(sets, one)
	}
	if len(sets) == 0 {
		ipam.problem("subnet", "is missing: host-local has subnet, or ranges")
		return
	}
	spec := v1alpha1.AddressPoolSpec{}
	of := map[bool]bool{}
	for i, set := range sets {
		family := map[bool]bool{}
		for _, r := range set {
			family[strings.Contains(r.Prefix, ":")] = true
		}
		for is6 := range family {
			if of[is6] {
				ipam.problem(fmt.Sprintf("ranges[%d]", i), "is of the family of another set: a step gets one address of each family")
			}
			of[is6] = true
		}
		spec.Subnets = append(spec.Subnets, set...)
	}
	if c.Moved {
		ipam.note("", "becomes an AddressPool: each address is then unique in the cluster")
	} else {
		ipam.note("", "becomes an AddressPool: each address is then unique in the cluster. With --pods, addresses of host-local are read "+
			"from network-status; exclude others in the pool. host-local does not see the pool's allocations: "+
			"until its last pod has moved, divide the range, by rangeEnd here and exclude in the pool")
	}
	c.usePool(n, s, &pool{key: "host-local " + n.from.id() + " " + ipam.at, spec: spec})
}

// localRange reads a range of host-local. A gateway that is missing is the first address, as with the plugin.
func localRange(r *record) v1alpha1.AddressSubnet {
	out := v1alpha1.AddressSubnet{
		Prefix: r.text("subnet"), First: r.text("rangeStart"), Last: r.text("rangeEnd"),
		Gateway: r.text("gateway"),
	}
	if p, err := netip.ParsePrefix(out.Prefix); err == nil && out.Gateway == "" {
		out.Gateway = p.Masked().Addr().Next().String()
	}
	return out
}

// ofWhereabouts are keys of whereabouts that say how its programs work.
var ofWhereabouts = []string{
	"configuration_path", "datastore", "kubernetes", "leader_lease_duration", "leader_renew_deadline", "leader_retry_period",
	"log_file", "log_level", "reconciler_cron_expression", "sleep_for_race", "etcd_host", "etcd_username", "etcd_password",
	"etcd_key_file", "etcd_cert_file", "etcd_ca_cert_file",
}

// whereabouts makes a pool of the ranges of whereabouts. Networks with the same ranges have one pool.
func (c *converter) whereabouts(n *network, s *step, ipam *record) {
	ipam.none("it configures the programs of whereabouts", ofWhereabouts...)
	ipam.none("nodes lease blocks of a pool in any case", "node_slice_size", "fast_ipam")
	if overlapping, given := ipam.left["enable_overlapping_ranges"].(bool); given && !overlapping {
		ipam.note("enable_overlapping_ranges",
			"is left out: an address is unique in its AddressPool, and pools with the same addresses have the condition Overlap")
	}
	ipam.ignore("enable_overlapping_ranges")
	var spec v1alpha1.AddressPoolSpec
	ranges := []*record{}
	if ipam.has("range") {
		ranges = append(ranges, ipam)
	}
	ranges = append(ranges, ipam.subs("ipRanges")...)
	of := map[bool]bool{}
	for _, r := range ranges {
		subnet, ok := rangeOf(r)
		if !ok {
			continue
		}
		is6 := strings.Contains(subnet.Prefix, ":")
		if of[is6] {
			r.problem("range",
				"a step gets one address of each family, and whereabouts gives one of each range: give the step one range of each family")
		}
		of[is6] = true
		spec.Subnets = append(spec.Subnets, subnet)
		spec.Exclude = append(spec.Exclude, excludes(r)...)
	}
	spec.Exclude = append(spec.Exclude, excludes(ipam)...)
	if gateway := ipam.text("gateway"); gateway != "" {
		setGateway(ipam, &spec, gateway)
	}
	network := ipam.text("network_name")
	if static, has := ipam.take("addresses"); has {
		s.config["addresses"] = static
	}
	if len(ranges) == 0 {
		ipam.problem("range", "is missing: the ranges may be in a configuration of whereabouts on the nodes: write an AddressPool")
	}
	if len(spec.Subnets) == 0 {
		return
	}
	key, err := json.Marshal([]any{network, spec})
	if err != nil {
		ipam.problem("", "%v", err)
	}
	p := &pool{key: "whereabouts " + string(key), spec: spec, name: label(network)}
	c.usePool(n, s, p)
}

// excludes takes what whereabouts does not give. To it, a prefix with bits set behind its length is the network around it.
func excludes(r *record) []string {
	out := r.texts("exclude")
	for i, text := range out {
		if p, err := netip.ParsePrefix(text); err == nil {
			out[i] = p.Masked().String()
		}
	}
	return out
}

// setGateway sets the gateway of the subnet whose addresses reach it.
func setGateway(ipam *record, spec *v1alpha1.AddressPoolSpec, gateway string) {
	addr, err := netip.ParseAddr(gateway)
	if err == nil {
		for i := range spec.Subnets {
			if p, err := netip.ParsePrefix(spec.Subnets[i].Prefix); err == nil && addresspool.Reaches(p, addr) {
				spec.Subnets[i].Gateway = gateway
				return
			}
		}
	}
	ipam.problem("gateway",
		"%q is in none of the ranges: write the whole network as range, with range_start and range_end, or remove the gateway", gateway)
}

// rangeOf reads a range of whereabouts: a prefix, or FIRST-LAST/LENGTH.
func rangeOf(r *record) (out v1alpha1.AddressSubnet, ok bool) {
	text := r.text("range")
	out.First, out.Last = r.text("range_start"), r.text("range_end")
	prefix := text
	if first, last, both := strings.Cut(text, "-"); both {
		out.First, prefix = first, last
		out.Last, _, _ = strings.Cut(last, "/")
	}
	p, err := netip.ParsePrefix(prefix)
	if err != nil {
		r.problem("range", "%q is neither a prefix nor FIRST-LAST/LENGTH", text)
		return out, false
	}
	out.Prefix = p.Masked().String()
	if out.First == p.Masked().Addr().String() { // the network's own, which is given to nobody
		out.First = ""
	}
	return out, true
}

func (c *converter) nvIPAM(n *network, s *step, ipam *record) {
	ipam.none("it configures the programs of nv-ipam", "daemonSocket", "daemonCallTimeoutSeconds", "confDir", "logFile", "logLevel",
		"forcePoolName")
	name := ipam.text("poolName")
	kind := "IPPool"
	switch typ := strings.ToLower(ipam.text("poolType")); typ {
	case "", "ippool":
	case "cidrpool":
		kind = "CIDRPool"
	default:
		ipam.problem("poolType", "%q is neither ippool nor cidrpool", typ)
	}
	switch i := slices.IndexFunc(c.pools, func(p *pool) bool { return p.key == kind+" "+name }); {
	case name == "" || strings.Contains(name, ","):
		ipam.problem("poolName", "%q is not the name of one pool: a step gets its addresses of one AddressPool", name)
	case i >= 0:
		c.usePool(n, s, c.pools[i])
	default:
		ipam.note("poolName", "%s %q is not in the input: add it, or write an AddressPool of this name", kind, name)
		s.config["ipam"] = map[string]any{"type": topology.IPAMPool, "pool": label(name)}
	}
}
