package topology

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/labelselector"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// PodInterface is the container runtimes' name for the interface by which a pod reaches the
// cluster.
const PodInterface = "eth0"

// ForPod returns the topology as the own network of a pod on one node. Its first root step
// creates the interface of the given name, and its addresses are of the node's pod CIDRs,
// unless its config says where they are from. On a bridge it reaches itself through a Service,
// unless its config says otherwise. Such a topology may change that interface.
func (t *Topology) ForPod(set contract.Set, podCIDRs []netip.Prefix, ifName string) *Topology {
	out, s := t.withOwnRoot()
	out.AllowPodUplink = true
	if s == nil {
		return out
	}
	c, _ := set.Contract(s.Type)
	config := s.Config
	if _, takes := param(c, ifNameKey); takes && !sets(c, config, ifNameKey) {
		config[ifNameKey] = ifName
	}
	if t.OnBridge(set) && !sets(c, config, hairpinKey) && !sets(c, config, promiscKey) {
		config[hairpinKey] = true
	}
	if t.UsesPodCIDRs(set) && len(podCIDRs) > 0 {
		var ranges []any
		for _, p := range podCIDRs {
			ranges = append(ranges, []any{map[string]any{"subnet": p.Masked().String()}})
		}
		config["ipam"] = map[string]any{"type": IPAMHostLocal, "ranges": ranges}
	}
	return out
}

// Keys of steps that make ports of a bridge of the host. They exclude each other.
const (
	hairpinKey = "hairpinMode"
	promiscKey = "promiscMode"
)

// OnBridge reports whether the first root step connects pods with a bridge of the host.
func (t *Topology) OnBridge(set contract.Set) bool {
	_, c := t.firstRoot(set)
	_, takes := param(c, hairpinKey)
	return takes
}

// firstRoot returns the first root step, with its contract; empty ones if there is none.
func (t *Topology) firstRoot(set contract.Set) (Step, contract.Contract) {
	i := slices.IndexFunc(t.Steps, func(s Step) bool { return s.Root() })
	if i < 0 {
		return Step{}, contract.Contract{}
	}
	c, _ := set.Contract(t.Steps[i].Type)
	return t.Steps[i], c
}

// withOwnRoot returns a copy of the topology, and its first root step, whose config can be changed;
// nil if it has none.
func (t *Topology) withOwnRoot() (*Topology, *Step) {
	out := *t
	out.Steps = slices.Clone(t.Steps)
	i := slices.IndexFunc(t.Steps, func(s Step) bool { return s.Root() })
	if i < 0 {
		return &out, nil
	}
	s := &out.Steps[i]
	if s.Config = maps.Clone(s.Config); s.Config == nil {
		s.Config = map[string]any{}
	}
	return &out, s
}

// Keys of steps that masquerade.
const (
	masqueradeKey = "ipMasq"
	exceptKey     = "ipMasqExcept"
)

// WithoutMasquerading returns the topology whose steps with ipMasq except some more networks.
func (t *Topology) WithoutMasquerading(set contract.Set, networks []netip.Prefix) *Topology {
	if len(networks) == 0 {
		return t
	}
	out := *t
	out.Steps = slices.Clone(t.Steps)
	for i := range out.Steps {
		s := &out.Steps[i]
		c, _ := set.Contract(s.Type)
		p, takes := param(c, exceptKey)
		if on, _ := s.Config[masqueradeKey].(bool); !on || !takes {
			continue
		}
		key, has := spelling(p, s.Config)
		if !has {
			key = exceptKey
		}
		config := maps.Clone(s.Config)
		named, _ := config[key].([]any)
		all := slices.Clone(named)
		for _, n := range networks {
			all = append(all, n.String())
		}
		config[key] = all
		s.Config = config
	}
	return &out
}

// WithPortMappings returns the topology whose first root step has these ports of the host, too:
// portMappings as its config has it.
func (t *Topology) WithPortMappings(mappings []any) *Topology {
	if len(mappings) == 0 {
		return t
	}
	out, s := t.withOwnRoot()
	if s == nil {
		return t
	}
	own, _ := s.Config[portMappingsKey].([]any)
	s.Config[portMappingsKey] = slices.Concat(own, mappings)
	return out
}

// portMappingsKey is the key by which a step type takes ports of the host, as CNI calls it.
const portMappingsKey = "portMappings"

// UsesPodCIDRs reports whether the addresses of pods are of the node's pod CIDRs: the config
// of the first root step does not say otherwise.
func (t *Topology) UsesPodCIDRs(set contract.Set) bool {
	s, c := t.firstRoot(set)
	_, takes := param(c, "ipam")
	return takes && !sets(c, s.Config, "ipam") && !sets(c, s.Config, "addresses")
}

// NamesPodInterface reports whether the config of the first root step names its interface,
// and under which key.
func (t *Topology) NamesPodInterface(set contract.Set) (key string, sets bool) {
	s, c := t.firstRoot(set)
	p, _ := param(c, ifNameKey)
	return spelling(p, s.Config)
}

// ConnectsWithHost reports whether a step type creates an interface with addresses by which a
// pod and its host reach each other, as the kubelet needs it for probes: these types can make
// the host the pod's gateway. The caller chooses the name of the interface.
func ConnectsWithHost(c contract.Contract) bool {
	_, named := param(c, ifNameKey)
	_, addressed := param(c, "ipam")
	_, gateway := param(c, "isDefaultGateway")
	return named && addressed && gateway
}

// checkRole is the CRD's rule for roles.
func checkRole(inv *Invalid, o *v1alpha1.NetworkTopology) {
	if r := string(o.Spec.Role); r != "" && o.Spec.Role != v1alpha1.Primary {
		inv.Addf("", "spec.role", "%q is not %q, the role of the pod network: remove it for a topology that claims request",
			excerpt.Of(r, maxKey), v1alpha1.Primary)
	}
	s := o.Spec.NodeSelector
	if s == nil {
		return
	}
	if o.Spec.Role == "" {
		inv.Addf("", "spec.nodeSelector", "needs a role: a claim selects nodes by its devices; remove it, or add role: primary")
	}
	if n := len(s.MatchLabels) + len(s.MatchExpressions); n > maxRequirements {
		inv.Addf("", "spec.nodeSelector", "has %d requirements, at most %d are accepted", n, maxRequirements)
		return
	}
	for _, p := range labelselector.Check(s) {
		inv.Addf("", "spec.nodeSelector."+p.Field, "%s", p.Message)
	}
}

// ifNameKey is the key by which a step type takes the name of its interface in the pod.
const ifNameKey = "ifName"

// param returns the parameter that has the name, or that has it as an alias: most step types
// spell the name of their interface "name".
func param(c contract.Contract, name string) (contract.Param, bool) {
	i := slices.IndexFunc(c.Params, func(p contract.Param) bool { return p.Name == name || slices.Contains(p.Aliases, name) })
	if i < 0 {
		return contract.Param{}, false
	}
	return c.Params[i], true
}

// sets reports whether a config has a key, in any of its spellings.
func sets(c contract.Contract, config map[string]any, name string) bool {
	p, _ := param(c, name)
	_, spelled := spelling(p, config)
	_, has := config[name]
	return has || spelled
}

// spelling returns the name under which a config has a parameter.
func spelling(p contract.Param, config map[string]any) (key string, has bool) {
	for _, key := range append([]string{p.Name}, p.Aliases...) {
		if _, has := config[key]; has {
			return key, true
		}
	}
	return "", false
}
