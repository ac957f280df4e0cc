package imports

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/suggest"
)

// plugin is a CNI plugin that has a counterpart.
type plugin struct {
	// makes converts one that makes an interface, with its addresses.
	makes func(c *converter, n *network, p, ipam *record)
	// changes converts one for the interface that those before it have made.
	changes func(c *converter, n *network, p *record)
}

// plugins are the CNI plugins that have a counterpart. The others are named as step types, and the validation says what there is
// instead.
var plugins = map[string]plugin{
	"bond":                {makes: (*converter).bond},
	"bridge":              {makes: (*converter).bridge},
	"host-device":         {makes: (*converter).hostDevice},
	"ib-sriov":            {makes: (*converter).ibSRIOV},
	"ipoib":               {makes: (*converter).onMaster},
	"ipvlan":              {makes: (*converter).onMaster},
	"macvlan":             {makes: (*converter).onMaster},
	"ovn-k8s-cni-overlay": {makes: (*converter).ovn},
	"ptp":                 {makes: (*converter).ptp},
	"rdma":                {changes: (*converter).rdma},
	"sbr":                 {changes: (*converter).sbr},
	"sriov":               {makes: (*converter).sriov},
	"tuning":              {changes: (*converter).onInterface},
	"vlan":                {makes: (*converter).vlan},
	"vrf":                 {changes: (*converter).onInterface},
}

// ofList are the keys of a CNI configuration that are for the program which runs the plugins.
var ofList = []string{"cniVersion", "cniVersions", "disableCheck", "disableGC", "loadOnlyInlinedPlugins"}

// conf converts a CNI configuration: one plugin, or a list of them.
func (c *converter) conf(n *network, conf *record) {
	conf.ignore(ofList...)
	if !conf.has("plugins") {
		c.plugin(n, conf)
		return
	}
	conf.ignore("name")
	list := conf.subs("plugins")
	if len(list) == 0 {
		conf.problem("plugins", "is empty")
	}
	for _, p := range list {
		c.plugin(n, p)
	}
}

func (c *converter) plugin(n *network, p *record) {
	p.ignore(ofList...)
	typ, _ := p.left["type"].(string)
	if bare, of := strings.CutPrefix(typ, "cnv-"); of && slices.Contains(pluginNames(), bare) { // a plugin as KubeVirt's operators call it
		typ, p.left["type"] = bare, bare
	}
	convert, ok := plugins[typ]
	if ok {
		c.common(p)
	}
	switch known, _ := c.Set.Contract(typ); {
	case convert.changes != nil:
		convert.changes(c, n, p)
		return
	case ok && len(n.steps) == 0:
		convert.makes(c, n, p, p.sub("ipam"))
		return
	case ok:
		p.problem("type", "%q makes an interface, and a plugin before it has made one: give each a network of its own", typ)
	case typ == "":
		p.problem("type", "is missing: it names the CNI plugin")
	case known.Type != "":
		p.problem("type", "%q is a step type, and no CNI plugin: write a topology", typ)
	default:
		p.problem("type", "no step type does what the CNI plugin %q does%s%s", typ, instead[typ], suggest.Hint(typ, pluginNames()))
	}
	p.left = nil // one problem is enough
}

// instead says what there is for plugins without a counterpart.
var instead = map[string]string{
	"bandwidth": ": write a NetworkQoS that selects the topology, and remove the plugin; sriov has max_tx_rate",
	"firewall":  ": NetworkPolicies are of the cluster's own network; remove the plugin",
	"portmap":   ": write portMappings in the config of a step of type bridge or ptp, and remove the plugin",
	"loopback":  ": the interface lo of a pod is up; remove the plugin",
	"multi-nic": ": convert the MultiNicNetwork that it was made from",
}

func pluginNames() []string { return slices.Sorted(maps.Keys(plugins)) }

// common takes what each plugin may have.
func (c *converter) common(p *record) {
	capabilities := p.sub("capabilities")
	for _, k := range capabilities.keys() {
		why := map[string]string{
			"ips": "a pod names its address in its claim, if the topology permits it: " +
				"convert the pods that do, with --pods, or write claimParameters",
			"mac": "a pod names its MAC address in its claim, if the topology permits it: " +
				"convert the pods that do, with --pods, or write claimParameters",
			"rdma":           "containers have the device nodes of an RDMA device in any case",
			"deviceID":       "",
			"CNIDeviceInfo":  "",
			"portMappings":   "hostPorts of containers are for the pod's own network: write portMappings in the config of the step",
			"bandwidth":      "the annotations of pods have no effect: write a NetworkQoS that selects the topology",
			"infinibandGUID": "a pod cannot choose its GUID",
		}
		if on := capabilities.flag(k); !on {
			continue
		}
		switch text, known := why[k]; {
		case !known:
			capabilities.problem(k, "has no counterpart here: remove it if pods do not use it")
		case text != "":
			capabilities.note(k, "is left out: %s", text)
		}
	}
	args := p.sub("args")
	cni := args.sub("cni")
	for _, r := range []*record{args, cni} {
		for _, k := range r.keys() {
			r.problem(k, "has no counterpart here: write what it says into the config")
			r.ignore(k)
		}
	}
	p.none("a pod's DNS is Kubernetes'", "dns")
	p.none("the steps before have the result", "prevResult")
}

// config takes all that is left of a plugin's configuration and that the step type knows by the same name.
func (c *converter) config(p *record, typ string) map[string]any {
	out := map[string]any{}
	known, _ := c.Set.Contract(typ)
	for _, k := range p.keys() {
		if !slices.ContainsFunc(known.Params, func(q contract.Param) bool { return q.Name == k || slices.Contains(q.Aliases, k) }) {
			continue
		}
		v, has := p.take(k)
		if text, isText := v.(string); !has || isText && text == "" { // as if it were missing, to the plugins
			continue
		}
		if k == "mtu" && empty(v) {
			continue
		}
		out[k] = v
	}
	var names []string
	for _, q := range known.Params {
		names = append(append(names, q.Name), q.Aliases...)
	}
	for _, k := range p.keys() {
		if hint := suggest.Hint(k, names); hint != "" {
			p.ignore(k)
			p.problem(k, "has no counterpart here%s", hint)
		}
	}
	return out
}

// step adds a step with what is left of a plugin's configuration.
func (c *converter) step(n *network, p *record, typ string) *step {
	p.ignore("type")
	if typ != "ovn-k8s-cni-overlay" {
		p.ignore("name")
	}
	s := n.add(typ, p.at, nil)
	s.config = c.config(p, typ)
	return s
}

// onMaster is for links on an interface below.
func (c *converter) onMaster(n *network, p, ipam *record) {
	typ := p.left["type"].(string)
	s := c.step(n, p, typ)
	master, _ := s.config["master"].(string)
	if inside, _ := s.config["linkInContainer"].(bool); inside {
		n.inside = []string{master}
		delete(s.config, "linkInContainer")
	} else {
		c.share(p, typ, master)
	}
	c.ipam(n, s, ipam, false)
}

// share notes that a step uses a device of the host.
func (c *converter) share(p *record, typ, master string) {
	if master == "" {
		return
	}
	c.shared(master, typ)
	if typ == "bridge" {
		p.note("bridge",
			"the bridge %q has to exist on the nodes: a claim requests a share of it, and a bridge that does not exist cannot be shared",
			master)
	}
}

// shared notes that steps of a type use what is called so on the host: an interface, or a network.
func (c *converter) shared(master, typ string) {
	if c.shares[master] == nil {
		c.shares[master] = map[string]bool{}
	}
	c.shares[master][typ] = true
}

func (c *converter) bridge(n *network, p, ipam *record) {
	s := c.step(n, p, "bridge")
	if s.config["bridge"] == nil {
		s.config["bridge"] = "cni0"
	}
	name, _ := s.config["bridge"].(string)
	c.share(p, "bridge", name)
	_, trunk := s.config["vlanTrunk"]
	if _, written := s.config["preserveDefaultVlan"]; !written && (trunk || s.config["vlan"] != nil) {
		p.note("preserveDefaultVlan",
			"is false, as in the plugin since version 1.8: before, the port was also in the default VLAN of the bridge: "+
				"set it to true if pods use that, such as for the untagged traffic of a trunk")
	}
	c.ipam(n, s, ipam, true)
	for _, key := range []string{"isGateway", "isDefaultGateway"} {
		if is, _ := s.config[key].(bool); is && s.pool != nil {
			s.pool.nameGateways(p, key)
		}
	}
}

// nameGateways gives each subnet without a gateway its first address, as the plugin bridge does if it is the gateway.
func (o *pool) nameGateways(p *record, key string) {
	for i := range o.spec.Subnets {
		subnet := &o.spec.Subnets[i]
		if prefix, err := netip.ParsePrefix(subnet.Prefix); err == nil && subnet.Gateway == "" {
			subnet.Gateway = prefix.Masked().Addr().Next().String()
			p.note(key, "%q becomes the gateway of the AddressPool, since the plugin gives the first address to the bridge", subnet.Gateway)
		}
	}
}

func (c *converter) ptp(n *network, p, ipam *record) {
	c.ipam(n, c.step(n, p, "ptp"), ipam, true)
}

// named is an expression for a device by the name of its interface.
func named(attribute string, names ...string) string {
	attr := fmt.Sprintf("device.attributes[%q].%s", inventory.Driver, attribute)
	if len(names) == 1 {
		return fmt.Sprintf("%s == %q", attr, names[0])
	}
	return fmt.Sprintf("%s in [%s]", attr, quoted(names, ", "))
}

// onLink is an expression for a device by the type of its link.
func onLink(typ string) string {
	return fmt.Sprintf(`device.attributes[%q].?linkType.orValue("") == %q`, inventory.Driver, typ)
}

func (c *converter) hostDevice(n *network, p, ipam *record) {
	s := c.step(n, p, "host-device")
	if device, ok := s.config["device"].(string); ok {
		s.selector = named("ifName", device)
		delete(s.config, "device")
	}
	for _, key := range []string{"pciBusID", "deviceID"} {
		if pci, ok := s.config[key].(string); ok {
			s.selector = fmt.Sprintf(`device.attributes["resource.kubernetes.io"].?pciBusID.orValue("") == %q`, pci)
			delete(s.config, key)
		}
	}
	for _, key := range []string{"hwaddr", "kernelpath"} {
		if s.config[key] != nil {
			p.problem(key, "devices have no attribute for it, by which a claim could choose: name the interface in %q", "device")
		}
	}
	c.devices(n, s, p)
	c.ipam(n, s, ipam, false)
}

func (c *converter) sriov(n *network, p, ipam *record) {
	s := c.step(n, p, "sriov")
	if pci, ok := s.config["deviceID"].(string); ok {
		s.selector = fmt.Sprintf(`device.attributes["resource.kubernetes.io"].?pciBusID.orValue("") == %q`, pci)
		delete(s.config, "deviceID")
	}
	c.devices(n, s, p)
	c.ipamOfFunction(n, s, p, ipam)
}

func (c *converter) ipamOfFunction(n *network, s *step, p, ipam *record) {
	if s.typ == "vfio-pci" && len(ipam.left) > 0 {
		p.note("ipam", "is left out: a function of %s has no interface that could have addresses", s.typ)
		ipam.left = nil
		return
	}
	c.ipam(n, s, ipam, false)
}

func (c *converter) ibSRIOV(n *network, p, ipam *record) {
	p.none(
		"the subnet's manager puts the function into partitions, by its port GUID; a step of type ipoib makes an interface of one", "pkey")
	p.none("the subnet's manager decides about partitions, by the port GUID", "ibKubernetesEnabled")
	p.none("on nodes in exclusive mode the RDMA device of a function of InfiniBand stays on the host", "rdmaIsolation")
	if guid, has := p.take("guid"); has && !empty(guid) {
		p.left["nodeGUID"], p.left["portGUID"] = guid, guid // as the plugin sets it
		p.note("guid", "becomes nodeGUID and portGUID. If the driver of the function has read others, the agent binds it again, "+
			"as the plugin does: set agent.driverBinding of the chart")
	}
	s := c.step(n, p, "sriov")
	s.selector = onLink("infiniband")
	c.devices(n, s, p)
	c.ipamOfFunction(n, s, p, ipam)
}

// onInterface is for plugins that change the interface which those before have made.
func (c *converter) onInterface(n *network, p *record) {
	typ := p.left["type"].(string)
	if len(n.steps) == 0 {
		p.problem("type", "%q changes an interface, and no plugin before it makes one", typ)
		p.left = nil
		return
	}
	c.step(n, p, typ)
}

// rdma is for the plugin that moves the RDMA device of a function, where the node does not share these devices.
func (c *converter) rdma(n *network, p *record) {
	p.ignore("type", "name")
	s := n.addressed()
	if s == nil || s.typ != "sriov" && s.typ != "host-device" {
		p.problem("type", "%q is for the RDMA device of a function, and the plugin before it does not move one", "rdma")
		return
	}
	s.config["rdma"] = true
	s.from("rdma", p.path("type"))
	p.note("type", "becomes rdma: true of the step, which refuses a function without an RDMA device. "+
		"On nodes in exclusive mode, which the plugin needs, the step moves the RDMA device, but not of InfiniBand; "+
		"nodes in shared mode work, too")
}

func (c *converter) sbr(n *network, p *record) {
	p.ignore("type", "name")
	s := n.addressed()
	if s == nil {
		p.problem("type", "%q is for the addresses of an interface, and no plugin before it makes one", "sbr")
		return
	}
	s.config["sourceRouting"] = true
	s.from("sourceRouting", p.path("type"))
	p.none("plumbline chooses the tables, and hides no other one", "table")
	p.none("the network's route stays in the main table in any case", "addSourceHints")
	if gateways, has := p.take("gateways"); has && !empty(gateways) {
		p.problem("gateways", "the table has the gateway of the address: write it there, in ipam")
	}
}

func (c *converter) vlan(n *network, p, ipam *record) {
	s := c.step(n, p, "vlan")
	master, _ := s.config["master"].(string)
	if inside, _ := s.config["linkInContainer"].(bool); !inside {
		p.problem("master", "a VLAN on %q of the host can be in one pod of a node: make the VLAN on the nodes, "+
			"and write a topology with a step of type macvlan on it; or one of type sriov with vlan", master)
	}
	n.inside = []string{master}
	delete(s.config, "linkInContainer")
	c.ipam(n, s, ipam, false)
}

func (c *converter) bond(n *network, p, ipam *record) {
	var links []string
	for _, l := range p.subs("links") {
		links = append(links, l.text("name"))
	}
	inside := p.flag("linksInContainer")
	if inside {
		n.inside = links
	} else {
		for i, l := range links {
			n.steps = append(n.steps, &step{
				name: fmt.Sprintf("port%d", i+1), typ: "host-device", selector: named("ifName", l),
				config: map[string]any{"name": l}, at: p.at,
			})
		}
	}
	p.ignore("ifname", "name") // the plugin uses neither: the interface is called as the pod wants it
	s := c.step(n, p, "bond")
	s.config["name"] = "net1"
	s.dependOn = nil
	for _, o := range n.steps[:len(n.steps)-1] {
		s.dependOn = append(s.dependOn, o.name)
	}
	c.ipam(n, s, ipam, false)
}

func (c *converter) ovn(n *network, p, ipam *record) {
	if !p.has("topology") {
		p.problem("topology", "is missing: the definition stands for the cluster's own network, which pods have without a claim: remove it")
		p.left = nil
		return
	}
	p.none(persistent, "allowPersistentIPs")
	c.ipam(n, c.step(n, p, "ovn-k8s-cni-overlay"), ipam, false)
}
