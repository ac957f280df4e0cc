package validity

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/labelselector"
	"github.com/plumbline/plumbline/topology/suggest"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// claimTemplate checks spec.claimTemplate by the rules of the API for the objects that are
// generated from it.
func claimTemplate(t *topology.Topology, set contract.Set, roots []*topology.Step, invalid *topology.Invalid) (notes []string) {
	c := t.ClaimTemplate
	if c == nil {
		return nil
	}
	wrong := func(field, format string, args ...any) {
		invalid.Addf("", "spec.claimTemplate."+field, format, args...)
	}
	if c.Name != "" {
		for _, why := range validation.IsDNS1123Subdomain(c.Name) {
			wrong("name", "%q: %s", c.Name, why)
		}
	}
	for i, n := range c.Namespaces {
		for _, why := range validation.IsDNS1123Label(n) {
			wrong(fmt.Sprintf("namespaces[%d]", i), "%q: %s", n, why)
		}
		if slices.Contains(c.Namespaces[:i], n) {
			wrong(fmt.Sprintf("namespaces[%d]", i), "%q is listed twice", n)
		}
	}
	for _, p := range labelselector.Check(c.NamespaceSelector) {
		wrong("namespaceSelector."+p.Field, "%s", p.Message)
	}
	switch c.BondPorts {
	case "", v1alpha1.DistinctPF, v1alpha1.AnyPF:
	default:
		wrong("bondPorts", "%q is neither DistinctPF nor Any", c.BondPorts)
	}
	notes = append(notes, oneAtATime(t)...)
	names := excerpt.Texts(roots, func(s *topology.Step) string { return s.Name })
	for i := range c.Constraints {
		field := fmt.Sprintf("constraints[%d]", i)
		notes = append(notes, constraint(&c.Constraints[i], names,
			func(f, format string, args ...any) { wrong(field+f, format, args...) })...)
	}
	if n := len(claim.Spec(t, set).Devices.Constraints); n > resourceapi.DeviceConstraintsMaxSize {
		wrong("constraints",
			"%d with those between the ports of bonds, and a ResourceClaim has %d at most: set bondPorts to Any, or remove some", n,
			resourceapi.DeviceConstraintsMaxSize)
	}
	if len(c.Namespaces) == 0 && c.NamespaceSelector == nil && len(c.Constraints) == 0 { // constraints are for plumbline claim, too
		notes = append(notes,
			"spec.claimTemplate: neither namespaces nor namespaceSelector is set, so that no ResourceClaimTemplate is created")
	}
	return notes
}

// oneAtATime are notes on the addresses and MAC addresses of a topology that several pods have by claims of one template, which one
// pod can have at a time. Those of a dummy link are on no network.
func oneAtATime(t *topology.Topology) (notes []string) {
	for i := range t.Steps {
		s := &t.Steps[i]
		if a := topology.Exclusive(s); len(a) > 0 {
			notes = append(notes, fmt.Sprintf(
				"step %q: config.addresses: each pod with a claim of the template would have %s, and one pod of the cluster can have it "+
					"at a time, so that a second pod waits: name an AddressPool in ipam, or set allowDuplicate on the step", s.Name, a[0]))
		}
		mac, literal := s.Config["mac"].(string)
		if !literal || strings.Contains(mac, "{{") || s.AllowDuplicate || s.Type == "dummy" || slices.ContainsFunc(t.ClaimParameters,
			func(c v1alpha1.ClaimParameter) bool { return c.Step == s.Name && c.Key == v1alpha1.ParameterMAC }) {
			continue
		}
		notes = append(notes, fmt.Sprintf(
			"step %q: config.mac: each pod with a claim of the template would have %s, and two of them on one network lose packets: "+
				"leave mac out, so that each pod has its own, let claims set it with claimParameters, or set allowDuplicate on the step",
			s.Name, mac))
	}
	return notes
}

// constraint checks one constraint between the devices of steps.
func constraint(c *v1alpha1.ClaimConstraint, roots []string, wrong func(field, format string, args ...any)) (notes []string) {
	for i, s := range c.Steps {
		switch {
		case !slices.Contains(roots, s):
			wrong(".steps", "%q is not a root step that takes a device%s", s, suggest.Hint(s, roots))
		case slices.Contains(c.Steps[:i], s):
			wrong(".steps", "%q is listed twice", s)
		}
	}
	if (c.MatchAttribute == "") == (c.DistinctAttribute == "") {
		wrong("", "needs either matchAttribute or distinctAttribute")
		return nil
	}
	field, attribute := ".matchAttribute", c.MatchAttribute
	if attribute == "" {
		field, attribute = ".distinctAttribute", c.DistinctAttribute
	}
	domain, name, qualified := strings.Cut(attribute, "/")
	var why []string
	if qualified {
		why = slices.Concat(validation.IsDNS1123Subdomain(domain), validation.IsCIdentifier(name))
		if len(name) > resourceapi.DeviceMaxIDLength {
			why = append(why, fmt.Sprintf("the name has more than %d bytes", resourceapi.DeviceMaxIDLength))
		}
	} else {
		why = []string{"must have a domain, such as in resource.kubernetes.io/pcieRoot"}
	}
	if len(why) > 0 {
		wrong(field, "%q: %s", attribute, strings.Join(why, "; "))
		return nil
	}
	if known := inventory.AttributeNames(); domain == claim.Driver && !slices.Contains(known, name) {
		notes = append(notes,
			fmt.Sprintf("spec.claimTemplate.constraints: no device has an attribute %q, so that no device meets the constraint%s",
				attribute, suggest.Hint(name, known)))
	}
	return notes
}
