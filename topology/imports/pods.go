package imports

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/networkstatus"
)

// The annotations of Multus.
const (
	networksAnnotation = "k8s.v1.cni.cncf.io/networks"
	statusAnnotation   = networkstatus.Annotation
)

// workloads are the kinds whose pods are converted, with the path of the pod in them.
var workloads = map[string][]string{
	"CronJob":     {"spec", "jobTemplate", "spec", "template"},
	"DaemonSet":   {"spec", "template"},
	"Deployment":  {"spec", "template"},
	"Job":         {"spec", "template"},
	"Pod":         nil,
	"ReplicaSet":  {"spec", "template"},
	"StatefulSet": {"spec", "template"},
}

// Patch changes a pod, or the workload that makes it, to have its networks by claims.
type Patch struct {
	Object    string // such as Deployment "shop/web"
	Unchanged bool   // its containers request the devices already: only the annotation goes
	Merge     map[string]any
}

// podAttachment is a network that a pod has.
type podAttachment struct {
	at, ref, ifName string
	net             *network
	// own are the addresses and the MAC address that the pod names.
	own topology.Parameters
}

// pod is a pod, or the template of one.
type pod struct {
	from     *source
	path     []string
	spec     map[string]any
	networks []*podAttachment
}

// workload reads the networks of a pod.
func (c *converter) workload(s *source) {
	p := &pod{from: s, path: workloads[s.kind]}
	object := s.object
	for _, k := range p.path {
		object = asObject(object[k])
	}
	p.spec = asObject(object["spec"])
	annotations := asObject(asObject(object["metadata"])["annotations"])
	at := strings.Join(append(slices.Clone(p.path), "metadata.annotations"), ".")
	r := &record{of: s, at: at, left: maps.Clone(annotations)}
	s.record.left, s.record.open = nil, nil
	c.addressesOf(s, r)
	if by := ownerOf(s.object); by != (owner{}) {
		c.owned[by] = append(c.owned[by], s)
		return
	}
	if text, _ := annotations[networksAnnotation].(string); strings.TrimSpace(text) == "" {
		return
	}
	if p.networks = p.selections(r); !s.failed() {
		c.pods = append(c.pods, p)
	}
}

// noteOwned says of the pods that an object has made that it is converted instead, once for all of them.
func (c *converter) noteOwned() {
	for by, made := range c.owned {
		more := ""
		if len(made) > 1 {
			more = fmt.Sprintf("; so are %d others of the input", len(made)-1)
		}
		slices.SortFunc(made, byID)
		made[0].note("",
			"is not converted: it is made by the %s %q%s: convert that", excerpt.Of(by.kind, maxName), excerpt.Of(by.name, maxName), more)
	}
}

// selections reads the annotation in one of its two notations.
func (p *pod) selections(r *record) (out []*podAttachment) {
	text := r.text(networksAnnotation)
	r = r.below(r.path(networksAnnotation), nil)
	if strings.ContainsAny(text, `[{"`) {
		r.left["list"] = text
		v, ok := r.parse("list", "", "")
		list, isList := v.([]any)
		if ok && !isList {
			r.problem("", "is not a list")
		}
		r.left = map[string]any{"": list}
		for i, one := range r.subs("") {
			one.at = fmt.Sprintf("%s[%d]", r.at, i)
			out = append(out, p.element(one, i))
		}
		r.report()
	} else {
		for i, item := range strings.Split(text, ",") {
			item = strings.TrimSpace(item)
			name, ifName, _ := strings.Cut(item, "@")
			out = append(out, p.attachment(fmt.Sprintf("%s[%d]", r.at, i), "", name, ifName, i))
		}
	}
	seen := map[string]bool{}
	for _, a := range out {
		if seen[a.ifName] {
			p.from.problem(a.at, "two networks have the interface %q", a.ifName)
		}
		seen[a.ifName] = true
	}
	return out
}

func (p *pod) attachment(at, namespace, name, ifName string, i int) *podAttachment {
	if ns, bare, both := strings.Cut(name, "/"); both {
		namespace, name = ns, bare
	}
	namespace = cmp.Or(namespace, p.from.namespace)
	if ifName == "" {
		ifName = fmt.Sprintf("net%d", i+1)
	}
	return &podAttachment{at: at, ref: namespace + "/" + name, ifName: ifName}
}

// element reads one entry of the JSON notation.
func (p *pod) element(r *record, i int) *podAttachment {
	name, namespace, ifName := r.text("name"), r.text("namespace"), r.text("interface")
	if old := r.text("interfaceRequest"); ifName == "" {
		ifName = old
	}
	own := topology.Parameters{Addresses: r.texts("ips"), MAC: strings.ToLower(r.text("mac"))}
	for _, text := range own.Addresses {
		if _, err := netip.ParsePrefix(text); err != nil {
			r.problem("ips", "%q is not an address with a prefix length, which the topology needs: write it as 192.0.2.7/24", text)
		}
	}
	if v, has := r.take("default-route"); has && !empty(v) {
		r.problem("default-route", "%v: write the route into the topology, as routes: [{dst: 0.0.0.0/0, gw: …}]", v)
	}
	r.none("write a NetworkQoS that selects the topology", "bandwidth")
	r.none("write portMappings in the config of the step", "portMappings")
	r.none("a pod cannot choose its GUID", "infiniband-guid")
	r.none("ovn-kubernetes keeps addresses by it for virtual machines", "ipam-claim-reference")
	r.none("no CNI plugin reads it", "cni-args")
	a := p.attachment(r.at, namespace, name, ifName, i)
	a.own = own
	return a
}

// addressesOf reads which addresses a pod has of its networks, so that no pool allocates them.
func (c *converter) addressesOf(s *source, r *record) {
	text, _ := statusOf(r.left)
	v, err := decode(text)
	list, _ := v.([]any)
	if err != nil || s.kind != "Pod" {
		return
	}
	a := allocated{from: s, what: "the addresses that the pod has", each: "the addresses of %d pods (%s)"}
	for _, e := range list {
		status := asObject(e)
		if status["default"] == true {
			continue
		}
		ips, _ := status["ips"].([]any)
		for _, ip := range ips {
			if addr, err := netip.ParseAddr(fmt.Sprint(ip)); err == nil {
				a.spans = append(a.spans, span{addr, addr})
			}
		}
	}
	if len(a.spans) > 0 {
		c.excluded = append(c.excluded, a)
	}
}

// statusOf returns what another has written of the addresses of a pod: those that the controller has written are leased from the pools.
func statusOf(annotations map[string]any) (text string, written bool) {
	text, written = annotations[statusAnnotation].(string)
	if written && annotations[networkstatus.Mark] == networkstatus.Digest(text) {
		return "", false
	}
	return text, written
}

// hasStatus reports whether an object is a pod of which another has written addresses.
func hasStatus(object map[string]any) bool {
	_, written := statusOf(asObject(asObject(object["metadata"])["annotations"]))
	return written && object["kind"] == "Pod"
}

// resolvePods finds the networks of the pods, and makes those that a pod needs under another name of its interface, or
// that build on others of the pod.
func (c *converter) resolvePods() {
	byRef := map[string]*network{}
	for _, n := range c.networks {
		byRef[n.definition()] = n
		if n.namespace == "" { // as multi-nic-cni makes a definition in each namespace
			byRef["/"+n.name] = n
		}
	}
	alone := map[*network]bool{} // used other than by a network that builds on it
	parts := map[*network]bool{}
	variants := map[string]*network{}
	for _, p := range c.pods {
		for _, a := range p.networks {
			_, name, _ := strings.Cut(a.ref, "/")
			if a.net = cmp.Or(byRef[a.ref], byRef["/"+name]); a.net == nil || a.net.from.failed() {
				p.from.problem(a.at, "NetworkAttachmentDefinition %q is not in the input, or was not converted", a.ref)
			}
		}
		if p.from.failed() {
			continue
		}
		built := map[*podAttachment]bool{}
		for _, a := range p.networks {
			if len(a.net.inside) > 0 {
				a.net = c.composed(p, a, variants, parts, built)
			}
		}
		for _, a := range p.networks {
			if !built[a] && a.net != nil && len(a.net.inside) == 0 {
				alone[a.net] = true
			}
		}
		p.networks = slices.DeleteFunc(p.networks, func(a *podAttachment) bool { return built[a] })
	}
	c.networks = slices.DeleteFunc(c.networks, func(n *network) bool {
		if parts[n] && !alone[n] {
			n.from.note("", "becomes a part of the topologies that build on it, since no pod uses it alone")
			return true
		}
		return len(n.inside) > 0 && parts[n]
	})
	c.nameInterfaces(variants)
}

// composed returns the topology of a network and those of the pod that it builds on.
func (c *converter) composed(p *pod, a *podAttachment, variants map[string]*network, parts map[*network]bool,
	built map[*podAttachment]bool,
) *network {
	keys := []string{a.ref + "@" + a.ifName}
	var below []*podAttachment
	for _, link := range a.net.inside {
		i := slices.IndexFunc(p.networks, func(o *podAttachment) bool { return o.ifName == link && o != a })
		if i < 0 {
			p.from.problem(a.at, "builds on the interface %q, which no other network of the pod makes", link)
			return a.net
		}
		if len(p.networks[i].net.inside) > 0 {
			p.from.problem(a.at, "builds on %q, which builds on another interface itself: write the topology by hand", link)
			return a.net
		}
		below = append(below, p.networks[i])
		keys = append(keys, p.networks[i].ref+"@"+link)
	}
	key := strings.Join(keys, " ")
	for _, o := range below {
		built[o], parts[o.net] = true, true
	}
	parts[a.net] = true
	if variants[key] != nil {
		return variants[key]
	}
	n := &network{from: a.net.from, namespace: a.net.namespace, name: a.net.name, namespaces: slices.Clone(a.net.namespaces)}
	var last []string
	for _, o := range below {
		steps := o.net.renamed(o.ifName)
		nameInterface(steps, o.ifName)
		n.steps = append(n.steps, steps...)
		last = append(last, steps[len(steps)-1].name)
	}
	own := a.net.renamed(a.ifName)
	nameInterface(own, a.ifName)
	own[0].dependOn = last
	if own[0].typ != "bond" {
		own[0].config["master"] = a.net.inside[0]
	}
	n.steps = append(n.steps, own...)
	for _, o := range c.networks {
		if o.name == n.name && o.namespace == n.namespace && len(o.inside) == 0 {
			n.name = label(n.name + "-" + below[0].net.name)
		}
	}
	variants[key] = n
	c.networks = append(c.networks, n)
	return n
}

// renamed copies the steps of a network, which are called after the interface.
func (n *network) renamed(ifName string) (out []*step) {
	names := map[string]string{}
	for _, s := range n.steps {
		c := *s
		c.config = maps.Clone(s.config)
		if ipam := asObject(s.config["ipam"]); len(ipam) > 0 {
			c.config["ipam"] = maps.Clone(ipam)
		}
		c.name = label(ifName + "-" + strings.TrimPrefix(s.name, "net1"))
		names[s.name] = c.name
		c.dependOn = nil
		for _, d := range s.dependOn {
			c.dependOn = append(c.dependOn, names[d])
		}
		out = append(out, &c)
	}
	return out
}

// nameInterface sets the name of the interface that steps make.
func nameInterface(steps []*step, ifName string) {
	switch s := carrier(steps); {
	case s == nil:
	case s.typ == "bridge" || s.typ == "ovn-k8s-cni-overlay":
		s.config["ifName"] = ifName
	default:
		s.config["name"] = ifName
	}
}

// nameInterfaces gives each network the name that its interface has in pods: a copy for each further name.
func (c *converter) nameInterfaces(composed map[string]*network) {
	used := map[*network][]string{}
	for _, p := range c.pods {
		for _, a := range p.networks {
			if a.net != nil && !slices.Contains(used[a.net], a.ifName) {
				used[a.net] = append(used[a.net], a.ifName)
			}
		}
	}
	for _, n := range slices.Clone(c.networks) {
		names := used[n]
		if len(names) == 0 || slices.Contains(slices.Collect(maps.Values(composed)), n) {
			continue
		}
		slices.Sort(names)
		plain := names[0]
		if plain != "net1" {
			nameInterface(n.steps, plain)
		}
		for _, other := range names[1:] {
			v := *n
			v.name = n.name + "-" + other
			v.definitionName = cmp.Or(n.definitionName, n.name)
			v.steps = n.copied()
			nameInterface(v.steps, other)
			c.networks = append(c.networks, &v)
			for _, p := range c.pods {
				for _, a := range p.networks {
					if a.net == n && a.ifName == other {
						a.net = &v
					}
				}
			}
		}
	}
}

// copied are the steps of a network once more.
func (n *network) copied() []*step {
	out := n.renamed("net1")
	for i := range out {
		out[i].name, out[i].dependOn = n.steps[i].name, n.steps[i].dependOn
	}
	return out
}

// allowPods adds the namespaces of the pods to those in which a network has a template.
func (c *converter) allowPods() {
	for _, p := range c.pods {
		for _, a := range p.networks {
			if a.net != nil && !slices.Contains(a.net.namespaces, p.from.namespace) {
				a.net.namespaces = append(a.net.namespaces, p.from.namespace)
			}
		}
	}
}

// patches returns the patches of the pods.
func (c *converter) patches(roots map[*network][]*topology.Step,
	topologies map[*network]*topology.Topology,
) (out []Patch, templates []map[string]any) {
	slices.SortStableFunc(c.pods, func(a, b *pod) int { return byID(a.from, b.from) })
	for _, p := range c.pods {
		if p.from.failed() {
			continue
		}
		limits := p.limits()
		var claims, names []any
		unchanged := true
		for _, a := range p.networks {
			steps, converted := roots[a.net]
			if !converted {
				p.from.problem(a.at, "NetworkAttachmentDefinition %q was not converted", a.ref)
				continue
			}
			if len(steps) == 0 {
				p.from.problem(a.at, "no claim can request the NetworkTopology %q, as none of its steps takes a device", a.net.topology)
				continue
			}
			for _, s := range steps {
				unchanged = unchanged && s.ExtendedResourceName != ""
				limits[s.ExtendedResourceName]--
			}
			template := a.net.topology
			if a.names() {
				o, err := c.ownTemplate(p, a, topologies[a.net])
				if err != nil {
					p.from.problem(a.at, "%v", err)
					continue
				}
				template, unchanged = nameOf(o), false
				templates = append(templates, o)
			}
			claims = append(claims, map[string]any{"name": a.net.topology, "resourceClaimTemplateName": template})
			names = append(names, map[string]any{"name": a.net.topology})
		}
		if p.from.failed() {
			continue
		}
		for _, a := range p.networks {
			for _, s := range roots[a.net] {
				unchanged = unchanged && limits[s.ExtendedResourceName] == 0
			}
		}
		template := map[string]any{"metadata": map[string]any{"annotations": map[string]any{networksAnnotation: p.keptNetworks()}}}
		if !unchanged {
			spec := map[string]any{"resourceClaims": claims}
			for _, list := range []string{"containers", "initContainers"} {
				if containers := p.withClaims(list, names, c.resources); len(containers) > 0 {
					spec[list] = containers
				}
			}
			template["spec"] = spec
		}
		for _, k := range slices.Backward(p.path) {
			template = map[string]any{k: template}
		}
		out = append(out, Patch{Object: p.from.title(), Unchanged: unchanged, Merge: template})
	}
	return out, templates
}

// keptNetworks returns the annotation with the networks of ovn-kubernetes, which makes their ports by it; nil: none.
func (p *pod) keptNetworks() any {
	var kept []string
	for _, a := range p.networks {
		if s := carrier(a.net.steps); s != nil && s.typ == "ovn-k8s-cni-overlay" {
			kept = append(kept, a.ref)
			p.from.note(a.at, "stays in the annotation: ovn-kubernetes makes the port of the pod by it. Multus must not attach the pod: "+
				"the claim is refused then")
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return strings.Join(kept, ", ")
}

// limits are how many of each extended resource the containers of a pod request.
func (p *pod) limits() map[string]int {
	out := map[string]int{}
	containers, _ := p.spec["containers"].([]any)
	for _, e := range containers {
		for k, v := range asObject(asObject(asObject(e)["resources"])["limits"]) {
			n := 0
			if _, err := fmt.Sscanf(fmt.Sprint(v), "%d", &n); err == nil && strings.Contains(k, "/") {
				out[k] += n
			}
		}
	}
	return out
}

// withClaims are the containers of a pod with claims instead of the resources of device plugins.
func (p *pod) withClaims(list string, claims []any, plugins map[string]bool) (out []any) {
	containers, _ := p.spec[list].([]any)
	for _, e := range containers {
		container := asObject(e)
		resources := map[string]any{"claims": claims}
		for _, kind := range []string{"limits", "requests"} {
			gone := map[string]any{}
			for k := range asObject(asObject(container["resources"])[kind]) {
				if plugins[k] {
					gone[k] = nil
				}
			}
			if len(gone) > 0 {
				resources[kind] = gone
			}
		}
		out = append(out, map[string]any{"name": container["name"], "resources": resources})
	}
	return out
}
