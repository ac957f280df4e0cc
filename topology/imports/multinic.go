package imports

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// hostNetworks reads the networks of a HostInterface, which says what a host has.
func (c *converter) hostNetworks(s *source) {
	s.others()
	spec := s.record.sub("spec")
	spec.ignore("hostName")
	for _, i := range spec.subs("interfaces") {
		i.ignore("hostIP", "interfaceName", "pciAddress", "product", "vendor")
		network := i.text("netAddress")
		if !slices.Contains(c.hosts, network) {
			c.hosts = append(c.hosts, network)
		}
	}
	slices.Sort(c.hosts)
}

// division reads a CIDR, in which multi-nic-cni has written which interface is which part of a network.
func (c *converter) division(s *source) {
	s.others()
	spec := s.record.sub("spec")
	spec.ignore("config") // is that of the MultiNicNetwork
	parts := map[int64]string{}
	for _, e := range spec.subs("cidr") {
		index, _ := e.number("interfaceIndex")
		e.ignore("hosts", "vlanCIDR")
		parts[index] = e.text("netAddress")
	}
	var networks []string
	for i := range int64(len(parts)) {
		networks = append(networks, parts[i])
	}
	if slices.Contains(networks, "") {
		spec.problem("cidr",
			"the numbers of the interfaces have a gap, and masterNets has none: write the AddressPool and the topology by hand")
		return
	}
	c.divisions[s.name] = networks
}

// multiNIC converts a MultiNicNetwork (api/v1/multinicnetwork_types.go of multi-nic-cni).
func (c *converter) multiNIC(s *source) {
	n := c.network(s)
	spec := s.record.sub("spec")
	n.namespaces = spec.texts("namespaces")
	policy := spec.sub("attachPolicy")
	if strategy := policy.text("strategy"); strategy != "" && strategy != "none" {
		policy.problem("strategy", "%q cannot be converted: requests and constraints of a claim choose the devices", strategy)
	}
	policy.none("requests and constraints of a claim choose the devices", "target")
	plugin := spec.sub("plugin")
	plugin.ignore("cniVersion")
	plugin.none("a pod's DNS is Kubernetes'", "dns")
	plugin.none("a pod cannot choose what a topology says", "capabilities")
	typ := cmp.Or(plugin.text("type"), "ipvlan")
	args := plugin.sub("args")
	if typ != "ipvlan" && typ != "macvlan" {
		plugin.problem("type", "%q cannot be converted, only ipvlan and macvlan, which leave the interfaces on the host: %s", typ,
			cmp.Or(insteadOf[typ], insteadOf[""]))
		spec.left, args.left = nil, nil
		return
	}
	config := map[string]any{}
	for _, k := range []string{"mode", "mtu"} {
		if v := args.text(k); v != "" {
			config[k] = number(v)
		}
	}
	ipam, ok := spec.parseObject("ipam")
	if !ok {
		spec.problem("ipam", "is missing, or not read")
		return
	}
	masters := spec.texts("masterNets")
	if len(masters) == 0 {
		if masters = c.divisions[s.name]; len(masters) == 0 {
			masters = c.hosts
		}
	}
	if kind, _ := ipam.left["type"].(string); len(masters) == 0 && kind != "multi-config" {
		spec.problem("masterNets", "is empty, which means all interfaces that a host happens to have: "+
			"name the networks, or give the objects CIDR and HostInterface of the cluster, too")
	}
	c.multiNICIPAM(n, step{typ: typ, at: args.at, config: config}, masters, spec, ipam)
}

// insteadOf says what there is for the main plugins that multi-nic-cni has and that move a device, or are of one cloud.
var insteadOf = map[string]string{
	"":            "write a topology with a step of that type for each network",
	"aws-ipvlan":  "its addresses are those that AWS gives an interface",
	"host-device": "write a topology with a step of type host-device for each device, with selectors",
	"mellanox":    "write a topology with a step of type host-device for each device, with selectors",
	"sriov":       "write a topology with a step of type sriov for each function, with selectors",
}

// multiNICIPAM converts the addresses of a MultiNicNetwork, and adds its steps.
func (c *converter) multiNICIPAM(n *network, like step, masters []string, spec, ipam *record) {
	subnet, ours, typ := spec.text("subnet"), spec.flag("multiNICIPAM"), ipam.text("type")
	if ours != (typ == topology.IPAMMultiNIC) {
		spec.problem("multiNICIPAM",
			"is %t, and ipam is of type %q: it is true for type %s, and for no other", ours, typ, topology.IPAMMultiNIC)
	}
	if !ours && subnet != "" {
		spec.note("subnet", "%q is left out: the addresses are those of ipam", subnet)
	}
	switch typ {
	case "multi-config":
		c.multiConfig(n, like, ipam)
		return
	case topology.IPAMMultiNIC:
	default:
		ipam.left["type"] = typ
		for i, network := range masters { // all of them have addresses of one pool
			s := c.oneOf(n, like, i, "masterNet", network)
			c.ipam(n, s, n.from.record.below(ipam.at, ipam.left), false)
		}
		ipam.left = nil
		return
	}
	s := n.add(like.typ, like.at, like.config)
	s.config["masterNets"] = texts(masters)
	for _, network := range masters {
		c.shared(network, like.typ)
	}
	host, _ := ipam.number("hostBlock")
	iface, _ := ipam.number("interfaceBlock")
	if host == 0 {
		ipam.problem("hostBlock", "is 0, so that all hosts have the same addresses, as of interfaces that nobody manages: "+
			"write an AddressPool for each network, and a topology with a step for each")
	}
	p := &pool{key: "MultiNicNetwork " + n.name, name: label(n.name)}
	p.spec = v1alpha1.AddressPoolSpec{
		Subnets:   []v1alpha1.AddressSubnet{{Prefix: cmp.Or(subnet, "172.30.0.0/16")}}, // as multi-nic-cni has it
		HostBlock: new(int32(host)), InterfaceBlock: new(int32(iface)), Exclude: ipam.texts("excludeCIDRs"),
	}
	c.usePool(n, s, p)
	wanted := map[string]any{"type": topology.IPAMMultiNIC, "hostBlock": host, "interfaceBlock": iface}
	if len(p.spec.Exclude) > 0 {
		wanted["excludeCIDRs"] = texts(p.spec.Exclude)
	}
	switch mode := ipam.text("vlanMode"); {
	case mode != "" && s.typ == "ipvlan":
		wanted["vlanMode"] = mode
	case mode != "":
		ipam.note("vlanMode", "%q is left out: it is a mode of ipvlan, and the plugin is %s", mode, s.typ)
	}
	s.config["ipam"] = wanted
	c.routes(s, ipam)
}

// oneOf adds one of the steps of a network, on what a key of its config names.
func (c *converter) oneOf(n *network, like step, i int, key, master string) *step {
	s := n.add(like.typ, like.at, maps.Clone(like.config))
	s.name, s.dependOn = fmt.Sprintf("net1-%d", i), nil
	s.config["name"], s.config[key] = s.name, master
	c.shared(master, like.typ)
	return s
}

// multiConfig converts addresses that differ from interface to interface, by the name of the interface.
func (c *converter) multiConfig(n *network, like step, ipam *record) {
	kind := ipam.text("ipam_type")
	args := ipam.sub("args")
	for i, master := range args.keys() {
		s := c.oneOf(n, like, i, "master", master)
		one := args.sub(master)
		one.left["type"] = kind
		c.ipam(n, s, one, false)
		if s.pool != nil && s.pool.name == "" {
			s.pool.name = label(n.name + "-" + master)
		}
	}
}

// texts is a list as JSON has it.
func texts(list []string) (out []any) {
	for _, s := range list {
		out = append(out, s)
	}
	return out
}

// number is the number that a text is, else the text: args of multi-nic-cni are strings.
func number(text string) any {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	return text
}
