package claim

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// pfName is the attribute that is equal for virtual functions of the same physical
// function.
const pfName resourceapi.FullyQualifiedName = Driver + "/pfName"

// IfName is the attribute that distinguishes devices of one node.
const IfName resourceapi.FullyQualifiedName = Driver + "/ifName"

// TemplateName returns the name of the ResourceClaimTemplate of a topology.
func TemplateName(t *topology.Topology) string {
	if t.ClaimTemplate == nil {
		return t.Name
	}
	return cmp.Or(t.ClaimTemplate.Name, t.Name)
}

// Spec returns the claim of a pod that uses a topology: a request for each of Roots,
// and the constraints between them.
func Spec(t *topology.Topology, set contract.Set) resourceapi.ResourceClaimSpec {
	var out resourceapi.ResourceClaimSpec
	for _, s := range Requested(t, set) {
		out.Devices.Requests = append(out.Devices.Requests, resourceapi.DeviceRequest{
			Name: s.Name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: ClassName(t.Name, s.Name)},
		})
	}
	if t.ClaimTemplate == nil || t.ClaimTemplate.BondPorts != v1alpha1.AnyPF {
		for _, p := range Joined(t, set) {
			if p.distinct != "" {
				out.Devices.Constraints = append(out.Devices.Constraints,
					resourceapi.DeviceConstraint{Requests: p.Roots, DistinctAttribute: new(p.distinct)})
			}
		}
	}
	if t.ClaimTemplate == nil {
		return out
	}
	for _, c := range t.ClaimTemplate.Constraints {
		d := resourceapi.DeviceConstraint{Requests: c.Steps}
		if c.MatchAttribute != "" {
			d.MatchAttribute = new(resourceapi.FullyQualifiedName(c.MatchAttribute))
		} else {
			d.DistinctAttribute = new(resourceapi.FullyQualifiedName(c.DistinctAttribute))
		}
		out.Devices.Constraints = append(out.Devices.Constraints, d)
	}
	return out
}

// PCIeRoot is the attribute that is equal for devices below one PCIe root, of whatever driver.
const PCIeRoot resourceapi.FullyQualifiedName = "resource.kubernetes.io/pcieRoot"

// maxRequest is the length of a request's name, which is a DNS label.
const maxRequest = 63

// Pair adds to each request of a claim one for a device of another class, such as a GPU, that is below the same PCIe root. It is
// called as the request, with "-pair" at the end. Constraints on all requests stay those on the requests there were: an attribute that a
// device lacks is equal to none, and the pod would stay Pending. A claim that no API server accepts is an error.
func Pair(spec *resourceapi.ResourceClaimSpec, class string) error {
	var own []string
	for _, r := range spec.Devices.Requests {
		own = append(own, r.Name)
	}
	for i := range spec.Devices.Constraints {
		if c := &spec.Devices.Constraints[i]; len(c.Requests) == 0 {
			c.Requests = slices.Clone(own)
		}
	}
	for _, r := range slices.Clone(spec.Devices.Requests) {
		pair := r.Name + "-pair"
		if slices.Contains(own, pair) {
			return fmt.Errorf("request %q: the one of its pair would have the name %q of another request: rename a step", r.Name, pair)
		}
		if len(pair) > maxRequest {
			return fmt.Errorf("request %q: that of its pair would be called %q, above %d characters: rename it", r.Name, pair, maxRequest)
		}
		spec.Devices.Requests = append(spec.Devices.Requests, resourceapi.DeviceRequest{
			Name: pair, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class},
		})
		spec.Devices.Constraints = append(spec.Devices.Constraints, resourceapi.DeviceConstraint{
			Requests: []string{r.Name, pair}, MatchAttribute: new(PCIeRoot),
		})
	}
	const most = "with pairs the claim has %d %s, and a claim has at most %d: divide the topology, for two claims of the pod"
	if n := len(spec.Devices.Requests); n > resourceapi.DeviceRequestsMaxSize {
		return fmt.Errorf(most, n, "requests", resourceapi.DeviceRequestsMaxSize)
	}
	if n := len(spec.Devices.Constraints); n > resourceapi.DeviceConstraintsMaxSize {
		return fmt.Errorf(most, n, "constraints", resourceapi.DeviceConstraintsMaxSize)
	}
	return nil
}

// Template returns the ResourceClaimTemplate of a topology.
func Template(t *topology.Topology, set contract.Set, namespace string) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{Name: TemplateName(t), Namespace: namespace},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: Spec(t, set)},
	}
}

// Written is a ResourceClaim without its status, which users do not write.
type Written struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec resourceapi.ResourceClaimSpec `json:"spec"`
}

// ResourceClaim is Template for a single claim.
func ResourceClaim(t *topology.Topology, set contract.Set, namespace string) *Written {
	template := Template(t, set, namespace)
	template.Kind = "ResourceClaim"
	return &Written{template.TypeMeta, template.ObjectMeta, template.Spec.Spec}
}

// Ports are the root steps whose devices a step joins, such as a bond.
type Ports struct {
	Step  string
	Roots []string // at least two, in order of declaration
	// distinct is the attribute that differs for devices which fail independently, "" if no
	// attribute does for all of them.
	distinct resourceapi.FullyQualifiedName
}

// Joined returns the steps that join the interfaces of several devices: those of a type
// that needs at least two.
func Joined(t *topology.Topology, set contract.Set) []Ports {
	taking := names(Roots(t, set))
	var out []Ports
	for i := range t.Steps {
		s := &t.Steps[i]
		if c, known := set.Contract(s.Type); !known || c.Input.MinInterfaces < 2 {
			continue
		}
		p := Ports{Step: s.Name}
		kinds := map[resourceapi.FullyQualifiedName]bool{}
		for _, a := range t.Ancestors(s.Name) {
			if !slices.Contains(taking, a.Name) {
				continue
			}
			p.Roots = append(p.Roots, a.Name)
			switch c, _ := set.Contract(a.Type); {
			case slices.Equal(c.Input.DeviceTypes, []string{"vf"}):
				kinds[pfName] = true
			case c.Input.Shares: // otherwise the scheduler allocates two shares of the first device that matches
				kinds[IfName] = true
			default:
				kinds[""] = true
			}
		}
		if len(kinds) == 1 {
			for attribute := range kinds {
				p.distinct = attribute
			}
		}
		if len(p.Roots) > 1 {
			out = append(out, p)
		}
	}
	return out
}

// OnePF returns notes about devices that fail together although a step joins them for
// redundancy, one for each step. pf is the physical function of the device of each root
// step, "" or none for a device that is not a virtual function.
func OnePF(t *topology.Topology, set contract.Set, pf map[string]string) []string {
	var out []string
	for _, p := range Joined(t, set) {
		of := map[string][]string{}
		for _, root := range p.Roots {
			if pf[root] != "" {
				of[pf[root]] = append(of[pf[root]], root)
			}
		}
		for _, root := range p.Roots {
			same := of[pf[root]]
			if len(same) < 2 || same[0] != root {
				continue
			}
			out = append(out,
				fmt.Sprintf("step %q: the devices of %q are virtual functions of one physical function, %s, and fail together: "+
					"have them chosen by a claim as `plumbline claim` prints it, or by selectors", p.Step, same, pf[root]))
		}
	}
	return out
}
