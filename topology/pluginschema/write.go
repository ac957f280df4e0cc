package pluginschema

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
)

// LabelBuiltIn marks the objects that the controller writes from contracts.
const LabelBuiltIn = "networking.dra.io/built-in"

// FromContract returns the object that describes a step type. An error is a
// mistake in the contract: a default that is no JSON value.
func FromContract(c contract.Contract) (*v1alpha1.CNIPluginSchema, error) {
	o := &v1alpha1.CNIPluginSchema{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: c.Type, Labels: map[string]string{LabelBuiltIn: "true"}},
	}
	s := &o.Spec
	s.CNIType, s.Description = c.Type, c.Summary
	for _, p := range c.Params {
		w, err := writeParameter(p)
		if err != nil {
			return nil, fmt.Errorf("step type %q: %w", c.Type, err)
		}
		if w.Required {
			w.Required = false // the list it is in says so
			s.ConfigParameters.Required = append(s.ConfigParameters.Required, w)
		} else {
			s.ConfigParameters.Optional = append(s.ConfigParameters.Optional, w)
		}
	}
	s.ConfigParameters.Additional = c.Additional
	s.Output.Explain = c.Explain
	for _, typ := range slices.Sorted(maps.Keys(c.ExplainTo)) {
		s.Output.ExplainTo = append(s.Output.ExplainTo, v1alpha1.Explanation{CNIType: typ, Explain: c.ExplainTo[typ]})
	}
	s.Input.Device = new(c.Input.Device)
	s.Input.PrevResult.Required = c.Input.Required
	if c.Input.IPs {
		s.Input.PrevResult.IPs = &v1alpha1.Needed{Required: true}
	}
	if c.Input.Routes {
		s.Input.PrevResult.Routes = &v1alpha1.Needed{Required: true}
	}
	if c.Input.MinInterfaces > 0 || c.Input.MaxInterfaces > 0 {
		s.Input.PrevResult.Interfaces = &v1alpha1.Interfaces{MinItems: int32(c.Input.MinInterfaces), MaxItems: int32(c.Input.MaxInterfaces)}
	}
	s.Output.Interfaces = writeFlow(c.Output.Interfaces)
	s.Output.IPs = writeFlow(c.Output.IPs)
	s.Output.Routes = writeFlow(c.Output.Routes)
	if len(c.Output.Devices) > 0 {
		s.Output.Devices = &v1alpha1.Devices{Appends: new(v1alpha1.AsConfigured)}
	}
	for _, p := range c.Output.Devices {
		w, err := writeParameter(p)
		if err != nil {
			return nil, fmt.Errorf("step type %q: %w", c.Type, err)
		}
		s.Output.Devices.Properties = append(s.Output.Devices.Properties, w)
	}
	return o, nil
}

func writeFlow(f contract.Flow) *v1alpha1.Flow {
	return &v1alpha1.Flow{
		Appends:     new(v1alpha1.Appends(f.Appends)),
		Passthrough: f.Passthrough, Modifies: f.Modifies, Conditional: f.Conditional,
	}
}

func writeParameter(p contract.Param) (v1alpha1.Parameter, error) {
	w, err := writeProperty(p)
	return v1alpha1.Parameter{Name: p.Name, Property: w}, err
}

func writeProperty(p contract.Param) (v1alpha1.Property, error) {
	w := v1alpha1.Property{
		Type: p.TypeName(), Description: p.Description, Aliases: p.Aliases, Format: string(p.Format), Enum: enumOf(p),
		Minimum: p.Minimum, Maximum: p.Maximum, MinItems: int32(p.MinItems), MaxItems: int32(p.MaxItems), Required: p.Required,
	}
	if p.Default != nil {
		raw, err := json.Marshal(p.Default)
		if err != nil {
			return w, fmt.Errorf("parameter %q: default: %w", p.Name, err)
		}
		w.Default = &runtime.RawExtension{Raw: raw}
	}
	var err error
	if w.Properties, err = writeProperties(p.Properties); err != nil {
		return w, err
	}
	if p.Items != nil {
		w.Items, err = writeItems(*p.Items)
	}
	return w, err
}

func writeProperties(params []contract.Param) (v1alpha1.Properties, error) {
	if len(params) == 0 {
		return nil, nil
	}
	out := make(map[string]v1alpha1.Property, len(params))
	for _, p := range params {
		w, err := writeProperty(p)
		if err != nil {
			return nil, err
		}
		out[p.Name] = w
	}
	return out, nil
}

// writeItems returns what the list's type does not express about its entries.
func writeItems(p contract.Param) (*v1alpha1.Items, error) {
	w := &v1alpha1.Items{
		Format: string(p.Format), Enum: enumOf(p), Minimum: p.Minimum, Maximum: p.Maximum,
		MinItems: int32(p.MinItems), MaxItems: int32(p.MaxItems),
	}
	var err error
	if w.Properties, err = writeProperties(p.Properties); err != nil {
		return nil, err
	}
	if p.Items != nil {
		if w.Items, err = writeItems(*p.Items); err != nil {
			return nil, err
		}
	}
	if w.Format == "" && w.Enum == nil && w.Minimum == nil && w.Maximum == nil &&
		w.MinItems == 0 && w.MaxItems == 0 && w.Items == nil && w.Properties == nil {
		return nil, nil
	}
	return w, nil
}

func enumOf(p contract.Param) []string {
	if p.OnOff && len(p.Enum) == 0 {
		return []string{"on", "off"}
	}
	return p.Enum
}
