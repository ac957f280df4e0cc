package imports

import (
	"strconv"
	"strings"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

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
	typ := plugin.text("type")
	if typ == "" {
		typ = "ipvlan"
	}
	masters := spec.texts("masterNets")
	args := plugin.sub("args")
	config := map[string]any{}
	st := n.add(typ, args.at, config)
	switch typ {
	case "ipvlan", "macvlan":
	default:
		plugin.problem("type", "%q cannot be converted, only ipvlan and macvlan, which leave the interfaces on the host: %s", typ, insteadOf[typ])
		args.left = nil
	}
	if len(masters) == 0 {
		spec.problem("masterNets", "is empty, which means all interfaces that a host happens to have: name the networks")
	}
	config["masterNets"] = texts(masters)
	for _, network := range masters {
		c.shared(network, typ)
	}
	for _, k := range []string{"mode", "mtu"} {
		if v := args.text(k); v != "" {
			config[k] = number(v)
		}
	}
	c.multiNICIPAM(n, st, spec)
}

// insteadOf says what there is for the main plugins that multi-nic-cni has and that move a device, or are of one cloud.
var insteadOf = map[string]string{
	"":            "write a topology with a step of that type for each network",
	"aws-ipvlan":  "its addresses are those that AWS gives an interface",
	"host-device": "write a topology with a step of type host-device for each device, with selectors",
	"mellanox":    "write a topology with a step of type host-device for each device, with selectors",
	"sriov":       "write a topology with a step of type sriov for each function, with selectors",
}

// multiNICIPAM converts the addresses of a MultiNicNetwork, which are JSON in a string.
func (c *converter) multiNICIPAM(n *network, s *step, spec *record) {
	subnet := spec.text("subnet")
	ours := spec.flag("multiNICIPAM")
	if !spec.has("ipam") {
		spec.problem("ipam", "is missing")
		return
	}
	ipam, ok := spec.parseObject("ipam")
	if !ok {
		return
	}
	typ := ipam.text("type")
	switch {
	case typ == "whereabouts" && !ours:
		if len(subnet) > 0 {
			spec.note("subnet", "%q is left out: the addresses are those of the range in ipam", subnet)
		}
		ipam.left["type"] = typ
		spec.problem("ipam", "gives each interface an address of one whereabouts range, and an AddressPool has a part for each interface: set multiNICIPAM, and ipam of type %s with hostBlock and interfaceBlock", topology.IPAMMultiNIC)
		ipam.left = nil
		return
	case typ != topology.IPAMMultiNIC:
		spec.problem("ipam", "type %q cannot be converted, only %s: write a topology with the ipam that the plugin has", typ, topology.IPAMMultiNIC)
		ipam.left = nil
		return
	case !ours:
		spec.problem("multiNICIPAM", "is not true, and ipam is of type %s, which needs it", typ)
	}
	host, _ := ipam.number("hostBlock")
	iface, _ := ipam.number("interfaceBlock")
	if host == 0 {
		ipam.problem("hostBlock", "is 0, so that all hosts have the same addresses, as of interfaces that nobody manages: write an AddressPool for each network, and a topology with a step for each")
	}
	if subnet == "" {
		subnet = "172.30.0.0/16" // as multi-nic-cni has it
	}
	p := &pool{key: "MultiNicNetwork " + n.name, name: label(n.name)}
	p.spec = v1alpha1.AddressPoolSpec{Subnets: []v1alpha1.AddressSubnet{{Prefix: subnet}}, HostBlock: new(int32(host)), InterfaceBlock: new(int32(iface)), Exclude: ipam.texts("excludeCIDRs")}
	c.usePool(n, s, p)
	wanted := map[string]any{"type": topology.IPAMMultiNIC, "hostBlock": host, "interfaceBlock": iface}
	if len(p.spec.Exclude) > 0 {
		wanted["excludeCIDRs"] = texts(p.spec.Exclude)
	}
	if mode := ipam.text("vlanMode"); mode != "" && s.typ == "ipvlan" {
		wanted["vlanMode"] = mode
	} else if mode != "" && !strings.EqualFold(mode, "l2") {
		ipam.problem("vlanMode", "%q is a mode of ipvlan, and the plugin is %s", mode, s.typ)
	}
	s.config["ipam"] = wanted
	c.routes(s, ipam)
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
