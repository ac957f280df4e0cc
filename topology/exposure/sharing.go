package exposure

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// defaultSuffix ends the name of a device that is shared where the policy names no other.
const defaultSuffix = "-shared"

// maxValues is how many amounts the API accepts.
const maxValues = 10

// sharing reads how devices are shared.
func (p *Policy) sharing(e *topology.Listed, x *v1alpha1.Exposure) {
	s := &inventory.Sharing{Suffix: cmp.Or(x.DeviceNameSuffix, defaultSuffix), Whole: x.DeviceNameSuffix != ""}
	if !strings.HasPrefix(s.Suffix, "-") {
		e.Add("spec.exposure.deviceNameSuffix: %q does not begin with '-': write \"-%s\"", s.Suffix, s.Suffix)
	}
	for i, plugin := range x.SupportedCNIPlugins {
		if plugin.Exclusive {
			e.Add("spec.exposure.supportedCNIPlugins[%d].exclusive: a shared device cannot be exclusive: remove it", i)
		}
		s.By = append(s.By, plugin.Name)
	}
	slices.Sort(s.By)
	if n := len(strings.Join(s.By, ",")); n > maxText {
		e.Add("spec.exposure.supportedCNIPlugins: the names have %d bytes together, with commas, and the attribute %s takes %d", n,
			inventory.AttrSharedBy, maxText)
	}
	functions := slices.DeleteFunc(slices.Clone(s.By), func(t string) bool { return t != "sriov" && t != "vfio-pci" })
	s.Functions = len(functions) > 0
	if s.Functions && len(functions) < len(s.By) {
		e.Add("spec.exposure.supportedCNIPlugins: %q share functions of a PF, the others the PF itself: write a policy for each", functions)
	}
	if _, counted := x.Capacity[inventory.CapacityFunctions]; s.Functions && counted {
		e.Add("spec.exposure.capacity.%s: is the number of functions, which the node counts: remove it", inventory.CapacityFunctions)
	}
	beside := maxCapacities - 1
	if _, own := x.Capacity[inventory.CapacityShares]; own {
		beside = maxCapacities
	}
	if len(x.Capacity) > beside {
		e.Add("spec.exposure.capacity: has %d entries, at most %d are accepted", len(x.Capacity), beside)
	}
	for _, name := range slices.Sorted(maps.Keys(x.Capacity)) {
		checkAmount(e, name, x.Capacity[name])
		if s.Capacity == nil {
			s.Capacity = map[string]resourceapi.DeviceCapacity{}
		}
		s.Capacity[name] = capacityOf(x.Capacity[name])
	}
	checkConsumption(e, x)
	p.Sharing = s
}

// checkAmount checks one capacity by the rules of the API server, which would refuse the
// slices of a node as a whole.
func checkAmount(e *topology.Listed, name string, c v1alpha1.DeviceCapacity) {
	at := "spec.exposure.capacity." + name
	domain, id, qualified := strings.Cut(name, "/")
	if !qualified {
		domain, id = inventory.Driver, name
	}
	switch {
	case len(validation.IsCIdentifier(id)) > 0 || len(id) > resourceapi.DeviceMaxIDLength:
		e.Add("%s: %q is not a name of letters, digits and '_' of at most %d bytes", at, id, resourceapi.DeviceMaxIDLength)
	case len(validation.IsDNS1123Subdomain(domain)) > 0 || len(domain) > resourceapi.DeviceMaxDomainLength:
		e.Add("%s: %q is not a domain of at most %d bytes", at, domain, resourceapi.DeviceMaxDomainLength)
	}
	before := len(e.Problems)
	checkInteger(e, at+".value", &c.Value)
	if r := c.RequestPolicy; r != nil {
		checkInteger(e, at+".requestPolicy.default", r.Default)
		if v := r.ValidRange; v != nil {
			checkInteger(e, at+".requestPolicy.validRange.min", &v.Min)
			checkInteger(e, at+".requestPolicy.validRange.max", v.Max)
			checkInteger(e, at+".requestPolicy.validRange.step", v.Step)
		}
		for i := range r.ValidValues {
			checkInteger(e, fmt.Sprintf("%s.requestPolicy.validValues[%d]", at, i), &r.ValidValues[i])
		}
	}
	if len(e.Problems) > before {
		return
	}
	if c.RequestPolicy == nil || c.RequestPolicy.Default == nil {
		e.Add("%s.requestPolicy.default: is missing: without it the first claim that names no amount takes all", at)
		return
	}
	r, def := c.RequestPolicy, *c.RequestPolicy.Default
	at += ".requestPolicy"
	if id == inventory.CapacityBandwidth && least(r) == 0 {
		e.Add("%s: a claim could get a bandwidth of 0, which means no limit: set 1 or more", at)
		return
	}
	switch {
	case def.Cmp(c.Value) > 0:
		e.Add("%s.default: %s exceeds the value %s", at, def.String(), c.Value.String())
	case r.ValidRange != nil && len(r.ValidValues) > 0:
		e.Add("%s: validRange and validValues exclude each other: remove one", at)
	case r.ValidRange != nil:
		checkRange(e, at, c.Value, def, r.ValidRange)
	case len(r.ValidValues) > 0:
		checkValues(e, at, c.Value, def, r.ValidValues)
	}
}

// checkInteger refuses amounts that the scheduler cannot add: it would give up on the pod.
func checkInteger(e *topology.Listed, at string, q *resource.Quantity) {
	if q == nil {
		return
	}
	if n, ok := q.AsInt64(); !ok || n < 0 {
		e.Add("%s: %s is not a whole number from 0 to 2^63-1", at, q.String())
	}
}

func checkRange(e *topology.Listed, at string, value, def resource.Quantity, r *v1alpha1.CapacityRange) {
	limit := value
	if r.Max != nil {
		limit = *r.Max
	}
	switch {
	case limit.Cmp(value) > 0:
		e.Add("%s.validRange.max: %s exceeds the value %s", at, limit.String(), value.String())
	case r.Min.Cmp(limit) > 0:
		e.Add("%s.validRange.min: %s is more than %s", at, r.Min.String(), limit.String())
	case def.Cmp(r.Min) < 0 || def.Cmp(limit) > 0:
		e.Add("%s.default: %s is outside %s to %s", at, def.String(), r.Min.String(), limit.String())
	case r.Step == nil:
	case r.Step.Sign() <= 0:
		e.Add("%s.validRange.step: %s must be greater than 0", at, r.Step.String())
	case !onStep(def, r) || r.Max != nil && !onStep(*r.Max, r):
		e.Add("%s.validRange.step: the default and max must be min plus a multiple of %s", at, r.Step.String())
	case secondLowest(r).Cmp(value) > 0:
		e.Add("%s.validRange.step: min plus one step of %s exceeds the value %s", at, r.Step.String(), value.String())
	}
}

// least is the lowest amount that a claim can have. All of them are whole numbers.
func least(r *v1alpha1.CapacityRequestPolicy) int64 {
	switch {
	case r.ValidRange != nil:
		return r.ValidRange.Min.Value()
	case len(r.ValidValues) > 0: // they ascend
		return r.ValidValues[0].Value()
	}
	return r.Default.Value()
}

// secondLowest returns the lowest amount but one.
func secondLowest(r *v1alpha1.CapacityRange) *resource.Quantity {
	sum := r.Min.DeepCopy()
	sum.Add(*r.Step)
	return &sum
}

func onStep(q resource.Quantity, r *v1alpha1.CapacityRange) bool {
	return (q.Value()-r.Min.Value())%r.Step.Value() == 0
}

func checkValues(e *topology.Listed, at string, value, def resource.Quantity, values []resource.Quantity) {
	known := false
	for i, v := range values {
		known = known || v.Cmp(def) == 0
		switch {
		case v.Cmp(value) > 0:
			e.Add("%s.validValues[%d]: %s exceeds the value %s", at, i, v.String(), value.String())
		case i > 0 && v.Cmp(values[i-1]) <= 0:
			e.Add("%s.validValues[%d]: %s is not greater than the entry before it: sort them in ascending order", at, i, v.String())
		}
	}
	if len(values) > maxValues {
		e.Add("%s.validValues: has %d entries, at most %d are accepted", at, len(values), maxValues)
	}
	if !known {
		e.Add("%s.default: %s is not one of validValues", at, def.String())
	}
}

// capacityOf returns a capacity as slices have it. Without a range or values the scheduler
// counts whatever a claim asks for: 0 costs nothing, and an amount below 0 lets others
// have more than there is.
func capacityOf(c v1alpha1.DeviceCapacity) resourceapi.DeviceCapacity {
	out := resourceapi.DeviceCapacity{Value: c.Value}
	if r := c.RequestPolicy; r != nil {
		out.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: r.Default, ValidValues: r.ValidValues}
		if v := r.ValidRange; v != nil {
			out.RequestPolicy.ValidRange = &resourceapi.CapacityRequestPolicyRange{Min: &v.Min, Max: v.Max, Step: v.Step}
		} else if len(r.ValidValues) == 0 && r.Default != nil {
			out.RequestPolicy.ValidRange = &resourceapi.CapacityRequestPolicyRange{Min: resource.NewQuantity(min(r.Default.Value(), 1),
				resource.DecimalSI)}
		}
	}
	return *out.DeepCopy()
}

// checkConsumption checks what plugins are said to consume.
func checkConsumption(e *topology.Listed, x *v1alpha1.Exposure) {
	for i, plugin := range x.SupportedCNIPlugins {
		for _, name := range slices.Sorted(maps.Keys(plugin.ConsumePerAllocation)) {
			amount := plugin.ConsumePerAllocation[name]
			c, known := x.Capacity[name]
			at := fmt.Sprintf("spec.exposure.supportedCNIPlugins[%d].consumePerAllocation.%s", i, name)
			switch {
			case !known:
				e.Add("%s: spec.exposure.capacity does not list %q: add it there, or remove this key", at, name)
			case c.RequestPolicy != nil && c.RequestPolicy.Default != nil && c.RequestPolicy.Default.Cmp(amount) != 0:
				e.Add("%s: %s differs from requestPolicy.default %s: a claim that names no amount gets the default, whatever step uses it",
					at, amount.String(), c.RequestPolicy.Default.String())
			}
		}
	}
}

// MayShare reports whether some node may have a device that the policy shares with steps of a type, by the name of its
// interface on the host; "" is any. A selector that says more of the device is not held against it.
func (p *Policy) MayShare(ctx context.Context, typ, ifName string) bool {
	if p.Err != nil || p.Sharing == nil || len(p.Sharing.By) > 0 && !slices.Contains(p.Sharing.By, typ) {
		return false
	}
	if ifName == "" {
		return true
	}
	for _, kind := range []inventory.Kind{inventory.KindPF, inventory.KindVF, inventory.KindNIC, inventory.KindVirtual} {
		matches, err := p.selector.Match(ctx, inventory.Device{ID: ifName, IfName: ifName, Kind: kind})
		if matches || err != nil {
			return true
		}
	}
	return !p.selector.Reads(inventory.AttrIfName)
}
