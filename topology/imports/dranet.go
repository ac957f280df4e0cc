package imports

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// dranetDriver is the name of DRANET's driver.
const dranetDriver = "dra.net"

// deviceClass reads the selectors of a DeviceClass.
func (c *converter) deviceClass(s *source) {
	s.others()
	spec := s.record.sub("spec")
	spec.none("a topology has the config of its devices, and a class of its own", "config", "extendedResourceName")
	c.classes[s.name] = expressions(spec)
}

// expressions takes the CEL selectors of a class or a request.
func expressions(r *record) (out []expression) {
	for _, one := range r.subs("selectors") {
		cel := one.sub("cel")
		out = append(out, expression{cel.path("expression"), cel.text("expression")})
	}
	return out
}

// expression is a CEL selector and its place.
type expression struct{ at, cel string }

// claimOf converts a ResourceClaim with config for DRANET, or a template of one.
func (c *converter) claimOf(s *source) {
	spec := s.record.sub("spec")
	if s.kind == "ResourceClaimTemplate" {
		spec.none("labels and annotations of claims are those of the topology's own template", "metadata")
		spec = spec.sub("spec")
	}
	devices := spec.sub("devices")
	var configs []*record
	for _, cfg := range devices.subs("config") {
		opaque := cfg.sub("opaque")
		if driver := opaque.text("driver"); driver != dranetDriver {
			opaque.note("driver", "is left out: the config is for %q", driver)
			opaque.left = nil
			cfg.ignore("requests")
			continue
		}
		configs = append(configs, cfg)
		cfg.open = []*record{opaque}
	}
	n := c.network(s)
	n.namespaces = []string{s.namespace}
	taken := map[string]string{} // the step of each request that is for a network device
	for _, r := range devices.subs("requests") {
		c.request(n, r, configs, taken)
	}
	for _, cfg := range configs {
		cfg.ignore("requests")
		if opaque := cfg.open[0]; opaque.has("parameters") {
			opaque.note("parameters", "are left out: they belong to no request for a network device")
			opaque.ignore("parameters")
		}
	}
	c.claimConstraints(n, devices, taken)
	if len(n.steps) == 0 && !s.failed() {
		s.note("", "is not converted: no request is for a device of %s", dranetDriver)
		c.networks = slices.DeleteFunc(c.networks, func(o *network) bool { return o == n })
	}
}

// request converts the request of one device.
func (c *converter) request(n *network, r *record, configs []*record, taken map[string]string) {
	name := r.text("name")
	exactly := r.sub("exactly")
	if r.has("deviceClassName") { // of v1beta1, in which a request has the keys of exactly itself
		exactly = r.below(r.at, r.left)
		r.left = nil
	}
	if r.has("firstAvailable") {
		r.problem("firstAvailable", "alternatives cannot be converted: write a topology for each")
		r.ignore("firstAvailable")
		return
	}
	class := exactly.text("deviceClassName")
	selectors := append(slices.Clone(c.classes[class]), expressions(exactly)...)
	ours := class == dranetDriver || slices.ContainsFunc(selectors, func(e expression) bool { return dranetName.MatchString(e.cel) })
	for _, cfg := range configs {
		ours = ours || slices.Contains(strings.Split(listed(cfg), ","), name)
	}
	if !ours {
		r.note("",
			"is left out: class %q is not one of network devices: request the device beside the topology, in a claim of your own", class)
		exactly.left, exactly.open = nil, nil
		return
	}
	if _, known := c.classes[class]; !known && class != dranetDriver {
		exactly.note("deviceClassName",
			"DeviceClass %q is not in the input, so its selectors are left out: add it to the input", class)
	}
	if mode := exactly.text("allocationMode"); mode != "" && mode != "ExactCount" {
		exactly.problem("allocationMode", "%q cannot be converted: a step has one device", mode)
	}
	if count, ok := exactly.number("count"); ok && count != 1 {
		exactly.problem("count", "%d devices cannot be converted: write a step for each", count)
	}
	var exprs []string
	for _, e := range selectors {
		exprs = append(exprs, c.translated(n.from, e))
	}
	s := n.add("host-device", "", map[string]any{})
	s.dependOn = nil
	s.name = label(name)
	s.selector = selectedBy(exprs...)
	if strings.Contains(s.selector, `.type == "vf"`) {
		s.typ = "sriov"
	}
	taken[name] = s.name
	for _, cfg := range configs {
		if names := listed(cfg); names == "" || slices.Contains(strings.Split(names, ","), name) {
			opaque := cfg.open[0]
			parameters := opaque.below(opaque.path("parameters"), asObject(opaque.left["parameters"]))
			defer opaque.ignore("parameters")
			s.at = parameters.path("interface")
			c.dranet(n, s, parameters)
		}
	}
}

// listed are the requests that a config is for, with commas; "" for all.
func listed(cfg *record) string {
	list, _ := cfg.left["requests"].([]any)
	var out []string
	for _, e := range list {
		out = append(out, fmt.Sprint(e))
	}
	return strings.Join(out, ",")
}

func asObject(v any) map[string]any {
	out, _ := v.(map[string]any)
	return out
}

// attributeOf is an attribute of DRANET, with the macro or the negation before it, what is taken of an optional one, and
// what it is compared with, if that is a boolean.
var attributeOf = regexp.MustCompile(`(has\(\s*|!\s*)?device\.attributes\[(?:"dra\.net"|'dra\.net')\]\.(\??)(\w+)` +
	`(\.orValue\(\s*(?:true|false)\s*\)|\.value\(\))?(\s*[=!]=\s*(?:true|false)\b)?`)

// isDRANET is true of all devices that a class of ours chooses from.
var isDRANET = regexp.MustCompile(`device\.driver\s*==\s*(?:"dra\.net"|'dra\.net')(\s*&&\s*)?`)

// dranetName matches DRANET's driver in an expression that does not name its attributes one by one.
var dranetName = regexp.MustCompile(`"dra\.net"|'dra\.net'`)

var (
	// comparedLink is a comparison of linkType with one value or a list of them.
	comparedLink = regexp.MustCompile(`\.\??linkType(?:\.orValue\([^()]*\))?\s*(?:[=!]=\s*(?:"ether"|'ether')|in\s*\[[^\]]*\])|` +
		`(?:"ether"|'ether')\s*[=!]=\s*device\.attributes\["` +
		regexp.QuoteMeta(inventory.Driver) + `"\]\.\??linkType\b`)
	ether = regexp.MustCompile(`"ether"|'ether'`)
)

// translated is an expression over the attributes of DRANET as one over ours.
func (c *converter) translated(from *source, e expression) string {
	ours := map[string]string{
		"ifName": "ifName", "rdma": "rdma", "numaNode": "numaNode", "pciVendor": "vendor", "pciDevice": "device",
	}
	own := fmt.Sprintf("device.attributes[%q].", inventory.Driver)
	links := false
	out := attributeOf.ReplaceAllStringFunc(e.cel, func(text string) string {
		m := attributeOf.FindStringSubmatch(text)
		before, optional, name, taken, compared := m[1], m[2], m[3], m[4], m[5]
		has := strings.HasPrefix(before, "has")
		no := (before != "") != (compared != "" &&
			strings.HasPrefix(strings.TrimSpace(compared), "=") == strings.HasSuffix(compared, "false"))
		links = links || name == "encapsulation"
		switch {
		case ours[name] != "":
			return before + own + optional + ours[name] + taken + compared
		case name == "isSriovVf" && has:
			return before + own + "type"
		case name == "isSriovVf" && no: // all devices have a type, so that nothing is left of a default
			return own + `type != "vf"`
		case name == "isSriovVf":
			return own + `type == "vf"`
		case name == "encapsulation" && (has || optional != ""):
			return before + own + optional + "linkType" + taken + compared
		case name == "encapsulation":
			return before + own + `?linkType.orValue("")` + taken + compared
		case name == "pciAddress":
			return fmt.Sprintf("%sdevice.attributes[%q].%spciBusID%s", before, "resource.kubernetes.io", optional, taken+compared)
		}
		from.problem(e.at, "devices have no attribute that corresponds to %q of %s: select by another one", name, dranetDriver)
		return text
	})
	out = comparedLink.ReplaceAllStringFunc(out, func(text string) string { return ether.ReplaceAllString(text, `"ethernet"`) })
	out = isDRANET.ReplaceAllString(out, "")
	switch {
	case from.failed():
	case dranetName.MatchString(out):
		from.problem(e.at, "cannot be converted: write each attribute as device.attributes[%q].NAME", dranetDriver)
	case links && ether.MatchString(out):
		from.problem(e.at, "cannot be converted: compare encapsulation with \"ether\" by ==, != or in: the value is \"ethernet\" here")
	}
	out = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(out), "&&"))
	if out == "" || from.failed() {
		return out
	}
	if err := validity.Compiled(out).Err; err != nil {
		from.problem(e.at, "cannot be converted: write it with has, !, orValue, == and != alone, as it would be %s: %v", out, err)
	}
	return out
}

// dranet converts the config of one device.
func (c *converter) dranet(n *network, s *step, r *record) {
	if profile := r.text("profile"); profile != "" {
		r.problem("profile", "%q has no counterpart here: an AddressPool gives addresses", profile)
	}
	iface := r.sub("interface")
	for theirs, ours := range map[string]string{"name": "name", "mtu": "mtu", "hardwareAddr": "mac"} {
		if v, has := iface.take(theirs); has && !empty(v) {
			s.config[ours] = v
		}
	}
	if list := iface.texts("addresses"); len(list) > 0 {
		s.config["addresses"] = texts(list)
	}
	if iface.flag("dhcp") {
		s.config["ipam"] = map[string]any{"type": "dhcp"}
	}
	switch typ := iface.text("type"); typ {
	case "":
	case "IPVLAN":
		if s.typ = "ipvlan"; s.config["mac"] != nil {
			iface.problem("hardwareAddr", "a link of type IPVLAN has the MAC address of its device: remove it")
			delete(s.config, "mac")
		}
	default:
		iface.problem("type", "%q cannot be converted: a device is moved, or carries links of ipvlan", typ)
	}
	if v, ok := iface.number("acceptRA"); ok && v > 0 {
		s.config["acceptRA"] = true
	}
	iface.none("no programs of the host are on a device that a pod has", "disableEbpfPrograms")
	for _, k := range []string{"gsoMaxSize", "groMaxSize", "gsoIPv4MaxSize", "groIPv4MaxSize"} {
		if v, has := iface.take(k); has && !empty(v) {
			iface.problem(k, "has no counterpart here: no step sets the sizes of segments")
		}
	}
	sysctls := map[string]any{}
	if v, has := iface.take("forwarding"); has && v == true {
		sysctls["net.ipv4.conf.IFNAME.forwarding"], sysctls["net.ipv6.conf.IFNAME.forwarding"] = "1", "1"
	}
	for theirs, ours := range map[string]string{"arpIgnore": "arp_ignore", "arpAnnounce": "arp_announce"} {
		if v, ok := iface.number(theirs); ok {
			sysctls["net.ipv4.conf.IFNAME."+ours] = fmt.Sprint(v)
		}
	}
	vrf := iface.sub("vrf")
	c.dranetRoutes(s, r)
	ethtool := r.sub("ethtool")
	settings := map[string]any{}
	for _, k := range []string{"features", "privateFlags"} {
		if v, has := ethtool.take(k); has {
			settings[k] = v
		}
	}
	if len(sysctls)+len(settings) > 0 {
		tuning := n.on(s, "tuning", r.at)
		if len(sysctls) > 0 {
			tuning.config["sysctl"] = sysctls
		}
		if len(settings) > 0 {
			tuning.config["ethtool"] = settings
		}
	}
	if len(vrf.keys()) > 0 {
		v := n.on(s, "vrf", vrf.at)
		if v.config["vrfname"] = vrf.text("name"); v.config["vrfname"] == "" {
			v.config["vrfname"] = "vrf-" + s.name
		}
		if table, ok := vrf.number("table"); ok {
			v.config["table"] = table
		}
	}
}

// on adds a step that changes the interface of another one.
func (n *network) on(s *step, typ, at string) *step {
	out := n.add(typ, at, map[string]any{})
	out.dependOn = []string{s.name}
	return out
}

// dranetRoutes converts routes, rules and neighbors.
func (c *converter) dranetRoutes(s *step, r *record) {
	lists := []struct {
		key, ours string
		names     map[string]string
	}{
		{"routes", "routes", map[string]string{
			"destination": "destination", "gateway": "gateway", "source": "src", "table": "table",
			"scope": "scope",
		}},
		{"rules", "rules", map[string]string{"source": "from", "destination": "to", "table": "table", "priority": "priority"}},
		{"neighbors", "neighbors", map[string]string{"destination": "address", "hardwareAddr": "mac"}},
	}
	for _, l := range lists {
		var out []any
		for _, e := range r.subs(l.key) {
			one := map[string]any{}
			for theirs, ours := range l.names {
				if theirs == "scope" {
					if number, ok := e.number(theirs); ok && scopes[number] == "" {
						e.problem(theirs, "%d is not the scope of a route that a pod can have", number)
					} else if ok {
						one[ours] = scopes[number]
					}
					continue
				}
				if v, has := e.take(theirs); has && !empty(v) {
					one[ours] = v
				}
			}
			out = append(out, one)
		}
		if len(out) > 0 {
			s.config[l.ours] = out
		}
	}
}

// claimConstraints converts the constraints between the devices that have become steps.
func (c *converter) claimConstraints(n *network, devices *record, taken map[string]string) {
	for _, r := range devices.subs("constraints") {
		var steps []string
		others := false
		names := r.texts("requests")
		for _, name := range names {
			if taken[name] == "" {
				others = true
			}
			steps = append(steps, taken[name])
		}
		one := v1alpha1.ClaimConstraint{
			Steps: steps, MatchAttribute: r.text("matchAttribute"),
			DistinctAttribute: r.text("distinctAttribute"),
		}
		switch {
		case others:
			n.from.note(r.at, "is left out: it also concerns devices outside of the topology: write it into a claim of your own")
		case strings.HasPrefix(one.MatchAttribute+one.DistinctAttribute, dranetDriver+"/"):
			n.from.problem(r.at, "devices have no attribute %q", one.MatchAttribute+one.DistinctAttribute)
		default:
			n.constraints = append(n.constraints, one)
		}
	}
}
