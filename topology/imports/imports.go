package imports

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Definition is the annotation of a topology with the NetworkAttachmentDefinition that it was made from, as
// NAMESPACE/NAME.
const Definition = v1alpha1.AnnotationDefinition

// Options of a conversion.
type Options struct {
	// Set has the contracts of all step types.
	Set contract.Set
	// Namespace is that of objects which name none.
	Namespace string
	// ResourcePrefix is before the resource names of the SR-IOV operator, such as openshift.io.
	ResourcePrefix string
	// Moved says that no pod has an address of a pool of the input any more. Otherwise such addresses are excluded.
	Moved bool
	// Pods has the pods of the input, and the workloads that make pods, converted, too.
	Pods bool
}

// Result of a conversion. An object with a problem is not among Objects.
type Result struct {
	Objects         []map[string]any // in the order in which they can be applied
	Notes, Problems []Remark
	Patches         []Patch
}

// converter holds what is known of the input.
type converter struct {
	Options
	sources   []*source
	networks  []*network
	pools     []*pool
	shares    map[string]map[string]bool // the step types that use an interface of the host, by its name or its network
	policies  []*nodePolicy
	excluded  []allocated
	pods      []*pod
	owned     map[owner][]*source     // workloads that an object has made
	resources map[string]bool         // extended resources of device plugins
	classes   map[string][]expression // selectors of DeviceClasses
	hosts     []string                // networks that hosts have, by HostInterfaces
	divisions map[string][]string     // masterNets by CIDRs of multi-nic-cni, by the name of the network
	made      map[string]bool         // NAMESPACE/NAME of NetworkAttachmentDefinitions that another object of the input stands for
}

// kind converts objects of a kind.
type kind struct {
	groups  string // those that the kind is in, with commas
	global  bool   // its objects have no namespace
	convert func(*converter, *source)
}

// facts are kinds that others refer to, and which are read before these.
var facts = map[string]kind{
	"DeviceClass":                   {"resource.k8s.io", true, (*converter).deviceClass},
	"CIDR":                          {"multinic.fms.io", true, (*converter).division},
	"HostInterface":                 {"multinic.fms.io", true, (*converter).hostNetworks},
	"CIDRPool":                      {"nv-ipam.nvidia.com", false, (*converter).cidrPool},
	"IPPool":                        {"whereabouts.cni.cncf.io,nv-ipam.nvidia.com", false, (*converter).ipPool},
	"OverlappingRangeIPReservation": {"whereabouts.cni.cncf.io", false, (*converter).reservation},
	"SriovNetworkNodePolicy":        {"sriovnetwork.openshift.io", false, (*converter).nodePolicy},
}

// kinds are the kinds of networks.
var kinds = map[string]kind{
	"ClusterUserDefinedNetwork": {"k8s.ovn.org", true, (*converter).clusterUserDefined},
	"ResourceClaim":             {"resource.k8s.io", false, (*converter).claimOf},
	"ResourceClaimTemplate":     {"resource.k8s.io", false, (*converter).claimOf},
	"UserDefinedNetwork":        {"k8s.ovn.org", false, (*converter).userDefined},
	"HostDeviceNetwork":         {"mellanox.com", true, nvidia("host-device")},
	"IPoIBNetwork":              {"mellanox.com", true, nvidia("ipoib")},
	"MacvlanNetwork":            {"mellanox.com", true, nvidia("macvlan")},
	"MultiNicNetwork":           {"multinic.fms.io", true, (*converter).multiNIC},
	"SriovIBNetwork":            {"sriovnetwork.openshift.io", false, (*converter).sriovIBNetwork},
	"SriovNetwork":              {"sriovnetwork.openshift.io", false, (*converter).sriovNetwork},
}

// definitions are converted last: the other kinds may stand for some of them.
var definitions = map[string]kind{
	"NetworkAttachmentDefinition": {"k8s.cni.cncf.io", false, (*converter).definition},
}

// passes are all kinds, in the order in which they are converted. No two have a kind of the same name.
var passes = []map[string]kind{facts, kinds, definitions}

// Kinds returns the kinds that can be converted, sorted.
func Kinds() []string {
	var all []string
	for _, of := range passes {
		all = slices.AppendSeq(all, maps.Keys(of))
	}
	slices.Sort(all)
	return all
}

// kindOf returns the kind of this name.
func kindOf(name string) (kind, bool) {
	for _, of := range passes {
		if k, ok := of[name]; ok {
			return k, true
		}
	}
	return kind{}, false
}

// Convert converts objects, as they are in JSON. The error is that of a context that has ended.
func Convert(ctx context.Context, objects []map[string]any, o Options) (Result, error) {
	c := &converter{
		Options: o, shares: map[string]map[string]bool{}, made: map[string]bool{}, divisions: map[string][]string{},
		classes: map[string][]expression{}, owned: map[owner][]*source{}, resources: map[string]bool{},
	}
	for _, object := range objects {
		c.read(object)
	}
	c.noteOwned()
	slices.SortStableFunc(c.sources, byID)
	for _, pass := range passes {
		for _, s := range c.sources {
			if k, ok := pass[s.kind]; ok && !s.failed() {
				k.convert(c, s)
			}
		}
	}
	c.noteUnused()
	for _, s := range c.sources {
		s.record.report()
	}
	for _, n := range c.networks {
		if n.resource != "" && len(n.steps) > 0 {
			n.steps[0].plugin = n.resource
		}
	}
	c.resolvePods()
	c.permitOwn()
	nameNetworks(c.networks)
	c.allowPods()
	c.namePools()
	c.exclude()
	c.nameResources()
	return c.result(ctx)
}

// read makes a source of an object, if it is of a kind that is converted.
func (c *converter) read(object map[string]any) {
	object, _ = topology.Exact(object).(map[string]any)
	name, _ := object["kind"].(string)
	s := &source{object: object, kind: excerpt.Of(name, maxName), index: len(c.sources)}
	r := &record{of: s, left: maps.Clone(object)}
	version := r.text("apiVersion")
	meta := r.sub("metadata")
	s.name, s.namespace = meta.text("name"), meta.text("namespace")
	s.record = r
	c.sources = append(c.sources, s)
	r.ignore("kind")
	s.group, _, _ = strings.Cut(version, "/")
	status, _ := r.take("status")
	s.state, _ = status.(map[string]any)
	k, known := kindOf(name)
	switch {
	case k.global:
		s.namespace = ""
	case known:
		s.namespace = cmp.Or(s.namespace, c.Namespace)
	}
	_, isWorkload := workloads[name]
	switch {
	case isWorkload && c.Pods && s.name != "":
		s.namespace = cmp.Or(s.namespace, c.Namespace)
		c.workload(s)
		return
	case !known:
		s.note("", "is not converted: objects of kind %s are", strings.Join(Kinds(), ", "))
	case !slices.Contains(strings.Split(k.groups, ","), s.group):
		s.problem("apiVersion", "%q is not of the group %q", version, k.groups)
	case s.name == "":
		if len(s.problems) == 0 { // it may be there, and no string
			s.problem("metadata.name", "is missing")
		}
	default:
		s.labels = meta.pairs("labels")
		meta.ignore("annotations", "creationTimestamp", "finalizers", "generateName", "generation", "managedFields", "ownerReferences",
			"resourceVersion", "selfLink", "uid")
		meta.left["annotations"] = annotationsOf(object)
		return
	}
	s.kind = cmp.Or(s.kind, "object")
	meta.left, r.left = nil, nil
}

// annotationsOf are those of an object that may mean something.
func annotationsOf(object map[string]any) map[string]any {
	out := maps.Clone(asObject(asObject(object["metadata"])["annotations"]))
	for _, k := range []string{
		"kubectl.kubernetes.io/last-applied-configuration", "sriovnetwork.openshift.io/owner-ref",
		"operator.sriovnetwork.openshift.io/last-network-namespace",
	} {
		delete(out, k)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// metadata returns the unread part of an object's metadata.
func (s *source) metadata() *record { return s.record.open[0] }

// annotation takes an annotation.
func (s *source) annotation(key string) string {
	all := asObject(s.metadata().left["annotations"])
	v, _ := all[key].(string)
	delete(all, key)
	return v
}

// status is the state of the object, in which only what is taken counts.
func (s *source) status() *record { return (&record{of: s}).below("status", s.state) }

// others notes the annotations that were not taken.
func (s *source) others() {
	all, _ := s.metadata().take("annotations")
	for _, k := range slices.Sorted(maps.Keys(asObject(all))) {
		s.note("metadata.annotations."+k, "is left out")
	}
}

// network begins a network.
func (c *converter) network(s *source) *network {
	s.others()
	n := &network{from: s, name: s.name}
	c.networks = append(c.networks, n)
	return n
}

// definition converts a NetworkAttachmentDefinition.
func (c *converter) definition(s *source) {
	if c.made[s.id()] {
		s.note("", "is left out: another object of the input replaces it")
		s.record.left, s.record.open = nil, nil
		return
	}
	resource := s.annotation("k8s.v1.cni.cncf.io/resourceName")
	n := c.network(s)
	n.namespace, n.namespaces = s.namespace, []string{s.namespace}
	n.resource, n.resourceAt = resource, "metadata.annotations"
	spec := s.record.sub("spec")
	if v, has := spec.left["config"]; !has || v == "" {
		spec.problem("config", "is missing: the configuration is in a file on the nodes: write it here")
		return
	}
	conf, ok := spec.parseObject("config")
	if !ok {
		return
	}
	c.conf(n, conf)
}

// namePools names the pools after the first network that has them.
func (c *converter) namePools() {
	for _, n := range c.networks {
		for _, s := range n.steps {
			if s.pool == nil {
				continue
			}
			s.pool.name = cmp.Or(s.pool.name, n.topology)
			s.config["ipam"].(map[string]any)["pool"] = s.pool.name
			if other := s.pool.froms[0]; other != n.from {
				n.from.note("", "uses AddressPool %q, like %s: their ranges are the same", s.pool.name, other.title())
			}
		}
	}
}

// nameResources gives steps the extended resource names by which pods request their devices: a name leads to one topology.
func (c *converter) nameResources() {
	of := map[string][]*network{}
	for _, n := range c.networks {
		for _, s := range n.steps {
			if s.plugin == "" {
				continue
			}
			c.resources[s.plugin] = true
			if !slices.Contains(of[s.plugin], n) {
				of[s.plugin] = append(of[s.plugin], n)
			}
		}
	}
	for _, resource := range slices.Sorted(maps.Keys(of)) {
		nets := of[resource]
		names := excerpt.Texts(nets, func(n *network) string { return n.topology })
		for _, n := range nets {
			if len(nets) > 1 {
				n.from.note(n.resourceAt,
					"the extended resource name %q is left out: a resource name leads to one topology only, and %s have it. "+
						"Give their pods a claim, and remove the resource from their limits", resource, strings.Join(names, ", "))
				continue
			}
			for _, s := range n.steps {
				if s.plugin == resource {
					s.resource = resource
				}
			}
		}
	}
}

// byName orders output.
func byName(a, b map[string]any) int {
	return cmp.Compare(nameOf(a), nameOf(b))
}

func nameOf(object map[string]any) string {
	return (&unstructured.Unstructured{Object: object}).GetName()
}

func objectOf(gvk metav1.TypeMeta, name string, spec map[string]any) map[string]any {
	return map[string]any{"apiVersion": gvk.APIVersion, "kind": gvk.Kind, "metadata": map[string]any{"name": name}, "spec": spec}
}

func (s *source) failed() bool { return len(s.problems) > 0 }
