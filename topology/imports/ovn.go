package imports

import (
	"cmp"
	"slices"
	"strings"
)

// userDefined converts a UserDefinedNetwork, of which ovn-kubernetes makes a NetworkAttachmentDefinition of the same name.
func (c *converter) userDefined(s *source) {
	n := c.network(s)
	n.namespace, n.namespaces = s.namespace, []string{s.namespace}
	c.made[s.id()] = true
	c.networkOfOVN(n, s.record.sub("spec"))
}

// clusterUserDefined converts a ClusterUserDefinedNetwork, which is one NetworkAttachmentDefinition in each namespace.
func (c *converter) clusterUserDefined(s *source) {
	spec := s.record.sub("spec")
	namespaces, ok := selectedNamespaces(spec.sub("namespaceSelector"))
	if !ok {
		s.others()
		spec.problem("namespaceSelector",
			"does not select namespaces by their names alone, and a topology names one NetworkAttachmentDefinition: "+
				"write a topology for each namespace")
		spec.left = nil
		return
	}
	config := spec.sub("network")
	spec.open = slices.DeleteFunc(spec.open, func(r *record) bool { return r == config }) // each copy is reported
	for _, namespace := range namespaces {
		n := c.network(s)
		n.namespace, n.namespaces = namespace, []string{namespace}
		c.made[n.definition()] = true
		if len(namespaces) > 1 {
			n.name = namespace + "-" + s.name
			n.definitionName = s.name
		}
		c.networkOfOVN(n, spec.below(config.at, config.left))
	}
}

// selectedNamespaces returns the namespaces that a selector chooses by name.
func selectedNamespaces(selector *record) (out []string, ok bool) {
	const byName = "kubernetes.io/metadata.name"
	ok = true
	labels := selector.sub("matchLabels")
	for _, k := range labels.keys() {
		out = append(out, labels.text(k))
		ok = ok && k == byName
	}
	for _, e := range selector.subs("matchExpressions") {
		key, operator, values := e.text("key"), e.text("operator"), e.texts("values")
		ok = ok && key == byName && operator == "In" && len(out) == 0
		out = append(out, values...)
	}
	return out, ok && len(out) > 0
}

const persistent = "ovn-kubernetes keeps addresses for virtual machines; an AddressPool with reclaimAfter keeps them for pods of one name"

// networkOfOVN converts the configuration of a network.
func (c *converter) networkOfOVN(n *network, spec *record) {
	topology := spec.text("topology")
	key := strings.ToLower(topology)
	if key != "layer2" && key != "localnet" {
		spec.problem("topology",
			"%q is not supported: its routers are made by ovn-kubernetes, and pods have the network by ovn-kubernetes alone; "+
				"Layer2 and Localnet are converted", topology)
		spec.left = nil
		return
	}
	from := spec.sub(key)
	at := from.at
	if role := from.text("role"); role != "Secondary" {
		from.problem("role", "%q is not Secondary: the pod network is made by ovn-kubernetes", role)
		from.left = nil
		return
	}
	config := map[string]any{"topology": key, "netAttachDefName": n.definition()}
	if mtu, ok := from.number("mtu"); ok {
		config["mtu"] = mtu
	}
	for _, k := range []string{"subnets", "excludeSubnets"} {
		if list := from.texts(k); len(list) > 0 {
			config[k] = strings.Join(list, ",")
		}
	}
	if name := from.text("physicalNetworkName"); name != "" {
		config["physicalNetworkName"] = name
	}
	vlan := from.sub("vlan")
	if mode := vlan.text("mode"); mode != "" && mode != "Access" {
		vlan.problem("mode", "%q is not supported: a port is in one VLAN", mode)
	}
	if id, ok := vlan.sub("access").number("id"); ok {
		config["vlanID"] = id
	}
	ipam := from.sub("ipam")
	ipam.none(persistent, "lifecycle")
	from.none(persistent, "ipamLifecycle") // its earlier spelling
	switch mode := ipam.text("mode"); mode {
	case "", "Enabled", "Disabled":
	default:
		ipam.problem("mode", "%q is not supported: addresses are those of ovn-kubernetes, of an AddressPool, or none", mode)
	}
	from.none("it is for primary networks, or for addresses that ovn-kubernetes allocates",
		"joinSubnets", "defaultGatewayIPs", "reservedSubnets", "infrastructureSubnets")
	n.add("ovn-k8s-cni-overlay", cmp.Or(at, spec.at), config)
}
