package pluginschema

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
)

// LabelBuiltIn marks the objects that the controller writes from contracts.
const LabelBuiltIn = "networking.dra.io/built-in"

// FromContract returns the object that describes a step type.
func FromContract(c contract.Contract) *v1alpha1.CNIPluginSchema {
	o := &v1alpha1.CNIPluginSchema{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: c.Type, Labels: map[string]string{LabelBuiltIn: "true"}},
	}
	s := &o.Spec
	s.CNIType, s.Description = c.Type, c.Summary
	for _, p := range c.Params {
		w := writeParameter(p)
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
		s.Output.Devices.Properties = append(s.Output.Devices.Properties, writeParameter(p))
	}
	return o
}

func writeFlow(f contract.Flow) *v1alpha1.Flow {
	return &v1alpha1.Flow{
		Appends:     new(v1alpha1.Appends(f.Appends)),
		Passthrough: f.Passthrough, Modifies: f.Modifies, Conditional: f.Conditional,
	}
}

func writeParameter(p contract.Param) v1alpha1.Parameter {
	return v1alpha1.Parameter{Name: p.Name, Property: writeProperty(p)}
}

func writeProperty(p contract.Param) v1alpha1.Property {
	w := v1alpha1.Property{
		Type: p.TypeName(), Description: p.Description, Aliases: p.Aliases, Format: string(p.Format), Enum: enumOf(p),
		Minimum: p.Minimum, Maximum: p.Maximum, MinItems: int32(p.MinItems), MaxItems: int32(p.MaxItems), Required: p.Required,
		Properties: writeProperties(p.Properties), Items: writeItems(p.Items),
	}
	if p.Default != nil {
		raw, _ := json.Marshal(p.Default) // a value that a config can have
		w.Default = &runtime.RawExtension{Raw: raw}
	}
	return w
}

func writeProperties(params []contract.Param) v1alpha1.Properties {
	if len(params) == 0 {
		return nil
	}
	out := make(v1alpha1.Properties, len(params))
	for _, p := range params {
		out[p.Name] = writeProperty(p)
	}
	return out
}

// writeItems returns what the list's type does not express about its entries.
func writeItems(p *contract.Param) *v1alpha1.Items {
	if p == nil {
		return nil
	}
	w := &v1alpha1.Items{
		Format: string(p.Format), Enum: enumOf(*p), Minimum: p.Minimum, Maximum: p.Maximum,
		MinItems: int32(p.MinItems), MaxItems: int32(p.MaxItems), Properties: writeProperties(p.Properties), Items: writeItems(p.Items),
	}
	if reflect.ValueOf(*w).IsZero() {
		return nil
	}
	return w
}

func enumOf(p contract.Param) []string {
	if p.OnOff && len(p.Enum) == 0 {
		return []string{"on", "off"}
	}
	return p.Enum
}
