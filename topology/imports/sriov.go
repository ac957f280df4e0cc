package imports

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/inventory"
)

// nodePolicy is a SriovNetworkNodePolicy, or what is used of it.
type nodePolicy struct {
	from     *source
	resource string // without its prefix
	selector string
	driver   string // of a userspace driver
	vhost    bool   // /dev/vhost-net and /dev/net/tun are for the pods, too
	used     bool   // a network has the resource
}

// nodePolicy reads a SriovNetworkNodePolicy: which functions its resource has.
func (c *converter) nodePolicy(s *source) {
	s.others()
	spec := s.record.sub("spec")
	p := &nodePolicy{from: s, resource: spec.text("resourceName")}
	spec.none("the SR-IOV operator continues to make the functions, and to set their MTU", "numVfs", "mtu", "externallyManaged",
		"eSwitchMode", "priority", "bridge")
	if selector := spec.pairs("nodeSelector"); len(selector) > 0 {
		spec.note("nodeSelector", "is left out, so matching functions of any node are used: "+
			"restrict the pods to nodes, or withhold the functions of others by a DeviceExposurePolicy")
	}
	spec.none("the scheduler knows the NUMA node of a device, and does not align pods by it unless a claim has a constraint",
		"excludeTopology")
	p.vhost = spec.flag("needVhostNet")
	spec.none("no vDPA device is made", "vdpaType")
	var exprs []string
	nic := spec.sub("nicSelector")
	if vendor := nic.text("vendor"); vendor != "" {
		exprs = append(exprs, named("vendor", vendor))
	}
	if device := nic.text("deviceID"); device != "" {
		nic.note("deviceID",
			"%q is left out: it is the ID of the physical function, and virtual functions have a different one: select by the attribute %q",
			device, "device")
	}
	if roots := nic.texts("rootDevices"); len(roots) > 0 {
		nic.note("rootDevices",
			"%s: is left out: functions have no attribute with the PCI address of their physical function: select by pfName",
			strings.Join(roots, ", "))
	}
	nic.none("devices have no attribute for it", "netFilter")
	exprs = append(exprs, functionsOf(nic))
	if spec.flag("isRdma") {
		exprs = append(exprs, fmt.Sprintf("device.attributes[%q].rdma", inventory.Driver))
	}
	switch link := strings.ToLower(spec.text("linkType")); link {
	case "":
	case "eth":
		exprs = append(exprs, onLink("ethernet"))
	case "ib":
		exprs = append(exprs, onLink("infiniband"))
	default:
		spec.problem("linkType", "%q is neither eth nor ib", link)
	}
	switch driver := spec.text("deviceType"); driver {
	case "", "netdevice":
	case "vfio-pci":
		p.driver = driver
	default:
		spec.problem("deviceType", "%q is neither netdevice nor vfio-pci", driver)
	}
	p.selector = selectedBy(exprs...)
	c.policies = append(c.policies, p)
}

// functionsOf is the selector of pfNames, of which an entry may have the numbers of functions: ens1f0#0-3.
func functionsOf(nic *record) string {
	var names, terms []string
	for i, name := range nic.texts("pfNames") {
		name, part, ranged := strings.Cut(name, "#")
		if !ranged {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
			continue
		}
		from, to, _ := strings.Cut(part, "-")
		first, err := strconv.ParseUint(from, 10, 16)
		last, other := strconv.ParseUint(to, 10, 16)
		if err != nil || other != nil || last < first {
			nic.problem(fmt.Sprintf("pfNames[%d]", i), "%q is not a range of virtual function numbers: write it as in %s#0-3", part, name)
			continue
		}
		// A physical function has no number.
		number := fmt.Sprintf("device.attributes[%q].?%s.orValue(-1)", inventory.Driver, inventory.AttrVFIndex)
		terms = append(terms, fmt.Sprintf("%s && %s >= %d && %s <= %d", named("pfName", name), number, first, number, last))
	}
	if len(names) > 0 {
		terms = append(terms, named("pfName", names...))
	}
	return joined("||", "&&", terms)
}

// devices gives a root step the selector of the resource by which its network gets devices.
func (c *converter) devices(n *network, s *step, p *record) {
	if n.resource == "" {
		return
	}
	_, bare, _ := strings.Cut(n.resource, "/")
	var exprs []string
	found, open, vhost, drivers := false, "", false, map[string]bool{}
	for _, o := range c.policies {
		if o.resource != bare || o.from.failed() {
			continue
		}
		found, vhost, o.used = true, vhost || o.vhost, true
		drivers[o.driver] = true
		if o.selector == "" {
			open = o.from.id()
		}
		if !slices.Contains(exprs, o.selector) {
			exprs = append(exprs, o.selector)
		}
	}
	switch {
	case !found && s.selector == "":
		n.from.note(n.resourceAt, "no SriovNetworkNodePolicy in the input defines resource %q, "+
			"so the step takes any device of its kind: add a selector", n.resource)
		return
	case !found:
		return
	case len(drivers) > 1:
		p.problem("type",
			"functions of the resource %q have different drivers by its SriovNetworkNodePolicies: write two topologies", n.resource)
	case drivers["vfio-pci"]:
		s.typ = "vfio-pci"
	case s.typ == "host-device":
		s.typ = "sriov" // moving a virtual function is the same, and is undone on its physical function
	}
	if vhost {
		if s.config == nil {
			s.config = map[string]any{}
		}
		s.config["deviceNodes"] = []any{"vhost-net", "tun"}
	}
	if open != "" { // what one of them does not restrict, the others do not, either
		exprs = nil
		for _, o := range c.policies {
			if o.resource == bare && !o.from.failed() && o.selector != "" {
				o.from.note("spec",
					"its selector %s is left out: SriovNetworkNodePolicy %q has the same resource without a selector that devices have, "+
						"so the step takes any function of its kind: add a selector", o.selector, open)
			}
		}
	}
	if len(exprs) > 0 && !slices.ContainsFunc(exprs, func(e string) bool { return !strings.Contains(e, s.selector) }) {
		s.selector = "" // the policies say it, too
	}
	for i, e := range exprs {
		if len(exprs) > 1 {
			exprs[i] = "(" + e + ")"
		}
	}
	s.selector = selectedBy(s.selector, strings.Join(exprs, " || "))
}

// noteUnused notes the SriovNetworkNodePolicies that no network refers to.
func (c *converter) noteUnused() {
	for _, p := range c.policies {
		if !p.used && !p.from.failed() {
			p.from.note("", "is not converted: no network in the input uses resource %q: add that network to the input", p.resource)
		}
	}
}

// sriovNetwork converts a SriovNetwork, of which the operator makes a NetworkAttachmentDefinition.
func (c *converter) sriovNetwork(s *source) {
	spec := s.record.sub("spec")
	n := c.withResource(s, spec, c.ResourcePrefix)
	conf := spec.below(spec.at, map[string]any{"type": "sriov"})
	for theirs, ours := range map[string]string{
		"vlan": "vlan", "vlanQoS": "vlanQoS", "vlanProto": "vlanProto", "spoofChk": "spoofchk", "trust": "trust", "linkState": "linkState",
		"minTxRate": "minTxRate", "maxTxRate": "maxTxRate", "logLevel": "logLevel", "logFile": "logFile",
	} {
		if v, has := spec.take(theirs); has {
			conf.left[ours] = v
		}
	}
	if vlan, given := conf.left["vlan"]; !given || empty(vlan) {
		conf.left["vlan"] = int64(0) // as the operator writes it
	}
	for _, k := range []string{"vlanQoS", "logLevel", "logFile"} { // the operator leaves out 0; nothing is written to a file
		if v, given := conf.left[k]; given && (empty(v) || v == "info") {
			delete(conf.left, k)
		}
	}
	c.chained(n, spec, conf)
}

func (c *converter) sriovIBNetwork(s *source) {
	spec := s.record.sub("spec")
	n := c.withResource(s, spec, c.ResourcePrefix)
	conf := spec.below(spec.at, map[string]any{"type": "ib-sriov"})
	if v, has := spec.take("linkState"); has {
		conf.left["linkState"] = v
	}
	c.chained(n, spec, conf)
}

// withResource begins a network of an operator whose devices are a resource with the prefix.
func (c *converter) withResource(s *source, spec *record, prefix string) *network {
	n := c.definedBy(s, spec)
	resource := spec.text("resourceName")
	switch _, bare, hasPrefix := strings.Cut(resource, "/"); {
	case resource == "":
		spec.problem("resourceName", "is missing")
		return n
	case hasPrefix:
		spec.problem("resourceName", "%q has the prefix, which the operator adds: write %q", resource, bare)
		return n
	}
	n.resource, n.resourceAt = prefix+"/"+resource, spec.path("resourceName")
	return n
}

// definedBy begins a network of which an operator makes a NetworkAttachmentDefinition of the same name.
func (c *converter) definedBy(s *source, spec *record) *network {
	n := c.network(s)
	n.namespace = cmp.Or(spec.text("networkNamespace"), s.namespace, metav1.NamespaceDefault)
	n.namespaces = []string{n.namespace}
	c.made[n.definition()] = true
	return n
}

// chained converts the plugin of the operator, and those that its object chains.
func (c *converter) chained(n *network, spec, conf *record) {
	if v, ok := spec.parse("capabilities", "", ""); ok {
		conf.left["capabilities"] = v
	}
	if v, ok := spec.parse("ipam", "", ""); ok {
		conf.left["ipam"] = v
	}
	c.plugin(n, conf)
	v, ok := spec.parse("metaPlugins", "[", "]")
	list, _ := v.([]any)
	if !ok {
		return
	}
	more := spec.below(spec.at, map[string]any{"metaPlugins": list})
	for _, p := range more.subs("metaPlugins") {
		c.plugin(n, p)
	}
}
