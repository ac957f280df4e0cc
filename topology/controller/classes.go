package controller

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// Classes returns the DeviceClass of every root step that is given a device, in order of
// declaration: o is the topology's object, t the same decoded.
func Classes(o *v1alpha1.NetworkTopology, t *topology.Topology, set contract.Set) []*resourceapi.DeviceClass {
	var out []*resourceapi.DeviceClass
	named := map[string]bool{} // extended resource names that a class has
	for _, s := range claim.Roots(t, set) {
		c, _ := set.Contract(s.Type)
		var resource *string
		if name := s.ExtendedResourceName; name != "" && !named[name] {
			named[name], resource = true, &name
		}
		out = append(out, &resourceapi.DeviceClass{
			TypeMeta: metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "DeviceClass"},
			ObjectMeta: metav1.ObjectMeta{
				Name:            claim.ClassName(o.Name, s.Name),
				Labels:          map[string]string{claim.LabelTopology: o.Name, claim.LabelStep: s.Name},
				OwnerReferences: []metav1.OwnerReference{ownerOf(o)},
			},
			Spec: resourceapi.DeviceClassSpec{
				Selectors:            selectors(s, withDerived(t, s, c, set)),
				Config:               configOf(o, s.Name),
				ExtendedResourceName: resource,
			},
		})
	}
	return out
}

// ownerOf is the owner reference of objects that are created for a topology. It does not
// block the owner's deletion: the finalizer does that, and blockOwnerDeletion needs a
// permission on the owner.
func ownerOf(o *v1alpha1.NetworkTopology) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind, Name: o.Name, UID: o.UID,
		Controller: new(true),
	}
}

// configOf returns the config that names the topology and step of a class.
func configOf(o *v1alpha1.NetworkTopology, step string) []resourceapi.DeviceClassConfiguration {
	parameters, _ := json.Marshal(claim.ConfigOf(o, step)) // of strings and numbers
	return []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: parameters}},
	}}}
}

// Unselective returns the DeviceClass that Classes would make with a name, without its
// selectors and so without compiling any; nil when it would make none.
func Unselective(o *v1alpha1.NetworkTopology, t *topology.Topology, set contract.Set, name string) *resourceapi.DeviceClass {
	for _, s := range claim.Roots(t, set) {
		if claim.ClassName(o.Name, s.Name) == name {
			return &resourceapi.DeviceClass{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{Config: configOf(o, s.Name)},
			}
		}
	}
	return nil
}

// withDerived returns the contract of a root step that needs an RDMA device if a step that is derived from it does.
func withDerived(t *topology.Topology, s *topology.Step, c contract.Contract, set contract.Set) contract.Contract {
	own := c.Input.RDMA
	if own != nil && slices.ContainsFunc(t.Steps, func(o topology.Step) bool {
		derived, _ := set.Contract(o.Type)
		return derived.Input.RDMA != nil && slices.Contains(t.DerivedFrom(&o, derived), s.Name)
	}) {
		c.Input.RDMA = func(config map[string]any) (needed, stays bool) {
			_, stays = own(config)
			return true, stays
		}
	}
	return c
}

// selectors returns the selectors of a root step's class: one for devices that the step's type can take, and the
// step's own. They are joined into one expression, as each costs the scheduler a conversion of every device and a
// place in its cache; they stay two if one would be too long or too expensive. The type's selector comes first and
// excludes devices of other drivers: where an expression fails, as on a missing attribute, the scheduler gives up on
// the pod.
func selectors(s *topology.Step, c contract.Contract) []resourceapi.DeviceSelector {
	one := func(expr string) resourceapi.DeviceSelector {
		return resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expr}}
	}
	fits := Fitting(s, c)
	if s.Selector == "" {
		return []resourceapi.DeviceSelector{one(fits)}
	}
	joined := fits + " && (\n" + s.Selector + "\n)" // lines of their own, as there are comments in CEL
	if validity.Compiled(joined).Err == nil {       // package validity refuses what does not compile
		return []resourceapi.DeviceSelector{one(joined)}
	}
	return []resourceapi.DeviceSelector{one(fits), one(s.Selector)}
}

// takesFunctions reports whether a root step may be given a whole virtual function where it could
// also use a shared device. Without a selector it needs neither.
func takesFunctions(s *topology.Step, c contract.Contract) bool {
	if !c.Input.Functions || s.Selector == "" {
		return false
	}
	config, _ := c.Decode(s.Config, contract.Options{Unresolved: true}) // problems are reported by validation
	return c.Input.Uplink == nil || !c.Input.Uplink(config) || validity.Compiled(s.Selector).Functions
}

// Fitting selects the devices of ours that a root step can take, whatever its selector is:
// a shared one if the step uses the device on the host, else one that is allocated as a
// whole. A step without a selector takes those of the kinds that its type takes.
func Fitting(s *topology.Step, c contract.Contract) string {
	attribute := func(name resourceapi.QualifiedName) string {
		return fmt.Sprintf("device.attributes[%q].%s", claim.Driver, name)
	}
	expr := fmt.Sprintf("device.driver == %q", claim.Driver)
	// Agents of earlier versions do not publish the attribute. CEL estimates the cost of a
	// string from orValue as unlimited.
	by := attribute(inventory.AttrSharedBy)
	named := fmt.Sprintf("%q in %s.split(\",\")", c.Type, by)
	functions := slices.Equal(c.Input.DeviceTypes, []string{"vf"}) // which may be shares of a PF
	needed, stays := false, false
	if c.Input.RDMA != nil {
		config, _ := c.Decode(s.Config, contract.Options{Unresolved: true}) // problems are reported by validation
		needed, stays = c.Input.RDMA(config)
	}
	of := attribute(inventory.AttrType)
	switch {
	case takesFunctions(s, c) && needed: // a shared device stays on the host with its RDMA device
		expr += fmt.Sprintf(" && (!has(%s) || %s == \"\") && has(%s) && %s == %q", by, by, of, of, inventory.KindVF)
	case takesFunctions(s, c):
		expr += fmt.Sprintf(" && (has(%s) && (%s == %q || %s) || (!has(%s) || %s == \"\") && has(%s) && %s == %q)", by, by, inventory.ByAny,
			named, by, by, of, of, inventory.KindVF)
	case c.Input.Shares:
		expr += fmt.Sprintf(" && has(%s) && (%s == %q || %s)", by, by, inventory.ByAny, named)
	case functions:
		expr += fmt.Sprintf(" && (!has(%s) || %s == \"\" || %s)", by, by, named)
	default:
		expr += fmt.Sprintf(" && (!has(%s) || %s == \"\")", by, by)
	}
	if below, _ := claim.Below(s, c); below != "" {
		expr += fmt.Sprintf(" && %s == %q", attribute(inventory.AttrIfName), below)
	}
	if network := claim.MasterNet(s, c); network != "" {
		of := attribute(inventory.AttrNetworks)
		expr += fmt.Sprintf(" && has(%s) && %q in %s.split(\",\")", of, network, of)
	}
	if chosen := s.Selector != "" || len(c.Input.DeviceTypes) == 0; chosen && c.Input.Device && !c.WithoutInterface() {
		expr += fmt.Sprintf(" && %s != %q", attribute(inventory.AttrType), inventory.TypeRDMA)
	}
	if needed {
		expr += " && " + attribute(inventory.AttrRDMA)
	}
	mode, link := attribute(inventory.AttrRDMANetns), attribute(inventory.AttrLinkType)
	shared := fmt.Sprintf("!has(%s) || %s != %q", mode, mode, inventory.RDMAExclusive)
	switch {
	case stays:
		expr += " && (" + shared + ")"
	case needed: // in exclusive mode the RDMA device of InfiniBand stays on the host, see ops.Planner.RDMA
		expr += fmt.Sprintf(" && (%s || !has(%s) || %s != %q)", shared, link, link, inventory.InfiniBand)
	}
	if s.Selector != "" {
		return expr
	}
	switch types := c.Input.DeviceTypes; len(types) {
	case 0:
	case 1:
		if functions {
			return expr + fmt.Sprintf(" && (%s == %q || has(%s) && %s)", attribute(inventory.AttrType), types[0], by, named)
		}
		expr += fmt.Sprintf(" && %s == %q", attribute(inventory.AttrType), types[0])
	default:
		expr += fmt.Sprintf(" && %s in [\"%s\"]", attribute(inventory.AttrType), strings.Join(types, `", "`))
	}
	return expr
}

// Owned reports whether a class belongs to exactly this topology: controlled by it or, if
// somebody has removed the owner reference, pinned to its UID.
func Owned(class *resourceapi.DeviceClass, o *v1alpha1.NetworkTopology) bool {
	if ref := metav1.GetControllerOf(class); ref != nil {
		return ref.UID == o.UID
	}
	return slices.ContainsFunc(refsOfClass(class), func(r claim.TopologyRef) bool { return o.UID != "" && r.UID == o.UID })
}

// Clash describes the owner of a class that has a name which a topology wants, for a
// condition and a webhook.
func Clash(class *resourceapi.DeviceClass) string {
	if ref := metav1.GetControllerOf(class); ref != nil {
		return fmt.Sprintf("DeviceClass %q belongs to %s %q: rename the topology or the step", class.Name, ref.Kind, ref.Name)
	}
	return fmt.Sprintf(
		"DeviceClass %q exists and does not belong to this topology: delete it, or rename the topology or the step", class.Name)
}

// NameClash describes the owner of a class that has the extended resource name of a step,
// for a condition and a webhook.
func NameClash(step string, class *resourceapi.DeviceClass) string {
	whose := ""
	if ref := metav1.GetControllerOf(class); ref != nil {
		whose = fmt.Sprintf(" of %s %q", ref.Kind, ref.Name)
	}
	return fmt.Sprintf("step %q: extendedResourceName %q is taken by DeviceClass %q%s, and the scheduler uses one class for a name: "+
		"choose another, or remove it",
		step, *class.Spec.ExtendedResourceName, class.Name, whose)
}

// yields reports whether our class leaves its extended resource name to another class that has it. Of two topologies
// that were written at the same time one has to give up the name; have is nil if our class does not have it yet.
func yields(have, other *resourceapi.DeviceClass) bool {
	if ref := metav1.GetControllerOf(other); have == nil || ref == nil || ref.Kind != v1alpha1.Kind {
		return true
	}
	if !have.CreationTimestamp.Equal(&other.CreationTimestamp) {
		return other.CreationTimestamp.Before(&have.CreationTimestamp)
	}
	return other.Name < have.Name
}
