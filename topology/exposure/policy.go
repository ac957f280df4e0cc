package exposure

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/labelselector"
	"github.com/plumbline/plumbline/topology/suggest"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Bounds. A device has at most 32 attributes and capacities, of which up to 19 are
// ours; some are kept for later versions.
const (
	maxAdditional    = 8  // attributes that all policies of a cluster add together
	maxAttributes    = 8  // of one policy
	maxNetworks      = 8  // of one policy
	maxListed        = 16 // names of any other list
	maxText          = resourceapi.DeviceAttributeMaxValueLength
	maxNodeSelectors = 16
	maxCapacities    = 4 // of a shared device, with that of shares
)

// networkAttribute is the attribute of ours that a policy may set.
const networkAttribute = inventory.Driver + "/" + string(inventory.AttrPhysicalNetwork)

// Policy is a policy that was read and checked.
type Policy struct {
	Name         string
	Generation   int64
	Priority     int32
	NodeSelector map[string]string
	Action       v1alpha1.ExposureAction
	Networks     []inventory.PhysicalNetwork
	Attributes   map[string]string // additional ones, without that of the network
	Neighbour    *neighbour        // nil if it has no rules
	Beside       []string          // drivers that may publish the same devices
	// BesideFunctions offers PFs as a whole beside their functions.
	BesideFunctions bool
	// Sharing is how the devices are shared, nil for not at all.
	Sharing *inventory.Sharing
	// Err describes an invalid policy, as *topology.Listed; such a policy decides nothing.
	Err error
	// Full reports that Err concerns what does not fit beside other policies.
	Full bool

	selector inventory.Selector
	unread   error // the selector cannot be compiled
}

// problems are those of a policy.
func problems(policy string) *topology.Listed {
	return &topology.Listed{Title: fmt.Sprintf("%s %q", v1alpha1.PolicyKind, policy)}
}

// New reads and checks a policy. It applies the bounds of the CRD once more: an object may
// come from a file, which no API server has validated.
func New(o *v1alpha1.DeviceExposurePolicy) *Policy {
	p := &Policy{
		Name: o.Name, Generation: o.Generation,
		Priority: o.Spec.Priority, NodeSelector: o.Spec.NodeSelector, Action: cmp.Or(o.Spec.Action, v1alpha1.Expose),
	}
	e := problems(o.Name)
	if o.Name == "" {
		e.Add("metadata.name: is missing")
	} else if problems := validation.IsDNS1123Subdomain(o.Name); len(problems) > 0 {
		e.Add("metadata.name: %q: %s", o.Name, problems[0])
	}
	if p.Action != v1alpha1.Expose && p.Action != v1alpha1.Withhold {
		e.Add("spec.action: %q is neither %q nor %q", o.Spec.Action, v1alpha1.Expose, v1alpha1.Withhold)
	}
	checkLabels(e, p.NodeSelector)
	p.compile(e, o.Spec.Selector)
	p.networks(e, o.Spec.PhysicalNetworks)
	p.neighbour(e, o.Spec.Neighbour)
	if x := o.Spec.Exposure; x != nil {
		if p.Action == v1alpha1.Withhold {
			e.Add("spec.exposure: is only for action %q: remove it, or change the action", v1alpha1.Expose)
		}
		p.exposure(e, x)
	}
	if n := len(strings.Join(names(p.Networks), ",")); n > maxText {
		e.Add("spec.physicalNetworks: the names have %d bytes together, with commas, and the attribute %s takes %d: use shorter names", n,
			inventory.AttrPhysicalNets, maxText)
	}
	if len(e.Problems) > 0 {
		p.Err = e
	}
	return p
}

// Pools returns the physical networks that have an AddressPool.
func (p *Policy) Pools() []inventory.PhysicalNetwork {
	return slices.DeleteFunc(slices.Clone(p.Networks), func(n inventory.PhysicalNetwork) bool { return n.AddressPool == "" })
}

// Uncompiled is New without the selector, which takes most of the time: for Limit.
func Uncompiled(o *v1alpha1.DeviceExposurePolicy) *Policy {
	without := o.DeepCopy()
	without.Spec.Selector = nil
	return New(without)
}

// Unreadable stands for a policy that cannot be decoded.
func Unreadable(name string, generation int64, priority int32, err error) *Policy {
	e := problems(name)
	e.Add("cannot be read: %v", err)
	return &Policy{
		Name: name, Generation: generation, Priority: priority, Err: e,
		unread: errors.New("the policy cannot be read"),
	}
}

func checkLabels(e *topology.Listed, selector map[string]string) {
	if len(selector) > maxNodeSelectors {
		e.Add("spec.nodeSelector: has %d labels, at most %d are accepted", len(selector), maxNodeSelectors)
		return
	}
	for _, p := range labelselector.Labels("spec.nodeSelector", selector) {
		e.Add("%s: %s", p.Field, p.Message)
	}
}

func (p *Policy) compile(e *topology.Listed, s *v1alpha1.Selector) {
	if s == nil {
		return
	}
	p.selector, p.unread = inventory.Compile(s.CEL)
	if p.unread != nil {
		e.Add("spec.%v", p.unread)
		return
	}
	if unknown := p.selector.Unknown(); len(unknown) > 0 {
		p.unread = fmt.Errorf("selector.cel: no device has an attribute %q", unknown[0])
		e.Add("spec.%v, and reading a missing attribute is an error%s", p.unread, suggest.Hint(unknown[0], inventory.AttributeNames()))
	}
}

// networkName matches the names that the CRD accepts.
var networkName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)

func (p *Policy) networks(e *topology.Listed, networks []v1alpha1.PhysicalNetwork) {
	if len(networks) > maxNetworks {
		e.Add("spec.physicalNetworks: has %d entries, at most %d are accepted", len(networks), maxNetworks)
		return
	}
	for i, n := range networks {
		at := fmt.Sprintf("spec.physicalNetworks[%d]", i)
		switch {
		case !networkName.MatchString(n.Name) || len(n.Name) > 63:
			e.Add(
				"%s.name: %q is not a name of up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends", at, n.Name)
		case slices.Contains(names(p.Networks), n.Name):
			e.Add("%s.name: %q is named twice", at, n.Name)
		}
		if n.VLAN < 0 || n.VLAN > 4094 {
			e.Add("%s.vlan: %d is not from 0 to 4094", at, n.VLAN)
		}
		if n.AddressPool != "" {
			if problem := poolProblem(n.AddressPool); problem != "" {
				e.Add("%s.addressPool: %s", at, problem)
			}
		}
		p.Networks = append(p.Networks, inventory.PhysicalNetwork{Name: n.Name, VLAN: int(n.VLAN), AddressPool: n.AddressPool})
	}
}

func (p *Policy) exposure(e *topology.Listed, x *v1alpha1.Exposure) {
	p.attributes(e, x.AdditionalAttributes)
	if len(x.BesideDrivers) > maxListed || len(x.SupportedCNIPlugins) > 2*maxListed || len(x.Capacity) > maxListed {
		e.Add("spec.exposure: besideDrivers and capacity can have %d entries, and supportedCNIPlugins %d: remove some",
			maxListed, 2*maxListed)
		return
	}
	for i, driver := range x.BesideDrivers {
		if driver == inventory.Driver {
			e.Add("spec.exposure.besideDrivers[%d]: %q is plumbline's own driver", i, driver)
		}
	}
	p.Beside, p.BesideFunctions = x.BesideDrivers, x.BesideFunctions
	if x.AllowMultipleAllocations {
		p.sharing(e, x)
		return
	}
	for field, set := range map[string]bool{
		"capacity": len(x.Capacity) > 0, "deviceNameSuffix": x.DeviceNameSuffix != "",
		"supportedCNIPlugins": len(x.SupportedCNIPlugins) > 0,
	} {
		if set {
			e.Add("spec.exposure.%s: is for shared devices: set allowMultipleAllocations: true, or remove it", field)
		}
	}
	slices.Sort(e.Problems) // they come from a map
}

// attributes checks the additional attributes, and extracts the network from them.
func (p *Policy) attributes(e *topology.Listed, attributes map[string]string) {
	if len(attributes) > maxAttributes {
		e.Add("spec.exposure.additionalAttributes: has %d entries, at most %d are accepted", len(attributes), maxAttributes)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		value := attributes[name]
		at := fmt.Sprintf("spec.exposure.additionalAttributes[%q]", name)
		if len(value) > maxText {
			e.Add("%s: the value has %d bytes, an attribute takes %d", at, len(value), maxText)
		}
		if !utf8.ValidString(value) {
			e.Add("%s: the value is not UTF-8", at)
		}
		if name == networkAttribute {
			p.shortNetwork(e, at, value)
			continue
		}
		domain, id, qualified := strings.Cut(name, "/")
		switch {
		case !qualified || domain == inventory.Driver:
			e.Add("%s: the domain %q is reserved for plumbline, and a policy can set only %s in it: "+
				"use a domain of your own, as in example.com/%s", at, inventory.Driver, networkAttribute, cmp.Or(id, name))
		case domain == "kubernetes.io" || domain == "k8s.io" || strings.HasSuffix(domain, ".kubernetes.io") ||
			strings.HasSuffix(domain, ".k8s.io"):
			e.Add("%s: the domain %q is reserved for Kubernetes: use a domain of your own, as in example.com/%s", at, domain, id)
		case len(validation.IsDNS1123Subdomain(domain)) > 0 || len(domain) > resourceapi.DeviceMaxDomainLength:
			e.Add("%s: %q is not a domain of at most %d bytes", at, domain, resourceapi.DeviceMaxDomainLength)
		case len(validation.IsCIdentifier(id)) > 0 || len(id) > resourceapi.DeviceMaxIDLength:
			e.Add("%s: %q is not a name of letters, digits and '_' of at most %d bytes", at, id, resourceapi.DeviceMaxIDLength)
		default:
			if p.Attributes == nil {
				p.Attributes = map[string]string{}
			}
			p.Attributes[name] = value
		}
	}
}

// shortNetwork reads the short form of one physical network.
func (p *Policy) shortNetwork(e *topology.Listed, at, name string) {
	switch {
	case len(p.Networks) > 0 && !slices.Contains(names(p.Networks), name):
		e.Add("%s: spec.physicalNetworks does not list %q: add it there, or remove this key", at, name)
	case len(p.Networks) > 0:
	case !networkName.MatchString(name):
		e.Add("%s: %q is not a name of letters, digits, '-', '_' and '.', with a letter or digit at both ends", at, name)
	default:
		p.Networks = []inventory.PhysicalNetwork{{Name: name}}
	}
}

func names(networks []inventory.PhysicalNetwork) []string {
	return excerpt.Texts(networks, func(n inventory.PhysicalNetwork) string { return n.Name })
}

// On reports whether the policy applies to a node with these labels.
func (p *Policy) On(node map[string]string) bool {
	return labels.SelectorFromSet(p.NodeSelector).Matches(labels.Set(node))
}

// same reports whether two policies set the same for a device.
func (p *Policy) same(q *Policy) bool {
	return p.Action == q.Action && slices.Equal(p.Networks, q.Networks) && maps.Equal(p.Attributes, q.Attributes) &&
		slices.Equal(p.Beside, q.Beside) && p.BesideFunctions == q.BesideFunctions && equality.Semantic.DeepEqual(p.Sharing, q.Sharing) &&
		reflect.DeepEqual(p.Neighbour, q.Neighbour)
}
