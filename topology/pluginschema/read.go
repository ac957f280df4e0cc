package pluginschema

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
	"github.com/plumbline/plumbline/topology/ref"
)

// Bounds of what is read: parameters nest, and below the first level the API
// server checks nothing.
const (
	maxDepth     = 8
	maxParams    = 1024
	maxName      = 63  // bytes, of a parameter
	maxWords     = 128 // of an enumeration
	maxAliases   = 8
	maxErrors    = 64
	maxMessage   = 1000 // bytes
	maxExplain   = 512  // bytes, of a sentence
	maxExplained = 32
)

// Contract reads a schema. The error has all its problems, up to 64.
func Contract(s *v1alpha1.CNIPluginSchema) (contract.Contract, error) {
	if s.Spec.CNIType == "" {
		return contract.Contract{}, errors.New("spec.cniType: is missing: it names the CNI plugin, which is the type of the steps")
	}
	r := &reader{}
	c := contract.Contract{
		Type:    s.Spec.CNIType,
		Summary: orElse(s.Spec.Description, fmt.Sprintf("Described by CNIPluginSchema %q.", s.Name)),
	}
	for _, p := range s.Spec.ConfigParameters.Required {
		p.Required = true
		c.Params = append(c.Params, r.param("configParameters.required", p))
	}
	for _, p := range s.Spec.ConfigParameters.Optional {
		c.Params = append(c.Params, r.param("configParameters.optional", p))
	}
	c.Additional = s.Spec.ConfigParameters.Additional
	r.explain(&c, &s.Spec.Output)
	prev, out := s.Spec.Input.PrevResult, s.Spec.Output
	c.Input.Required = prev.Required
	if prev.Interfaces != nil {
		c.Input.MinInterfaces, c.Input.MaxInterfaces = int(prev.Interfaces.MinItems), int(prev.Interfaces.MaxItems)
	}
	c.Input.IPs = prev.IPs != nil && prev.IPs.Required
	c.Input.Routes = prev.Routes != nil && prev.Routes.Required
	c.Output.Interfaces = r.flow("output.interfaces", out.Interfaces)
	c.Output.IPs, c.Output.Routes = r.flow("output.ips", out.IPs), r.flow("output.routes", out.Routes)
	if d := out.Devices; d != nil {
		r.appends("output.devices", d.Appends)
		c.Output.Devices = r.devices(d.Properties)
	}
	if d := s.Spec.Input.Device; d != nil {
		c.Input.Device = *d
	} else {
		c.Input.Device = !prev.Required && c.Input.MinInterfaces == 0 && !c.Output.Interfaces.Passthrough && !c.Output.Interfaces.Modifies
	}
	if err := errors.Join(r.errs...); err != nil {
		return contract.Contract{}, err
	}
	// Decoding by the contract relies on what Vet checks.
	if err := c.Vet(); err != nil {
		return contract.Contract{}, err
	}
	return c, nil
}

// explain reads the sentences for steps that get no interface of one of this type. They are shown on terminals.
func (r *reader) explain(c *contract.Contract, out *v1alpha1.Output) {
	sentence := func(at, text string) string {
		if len(text) > maxExplain || strings.ContainsFunc(text, unicode.IsControl) {
			r.fail(at, "want a sentence of at most %d bytes without control characters", maxExplain)
			return ""
		}
		return strings.TrimSpace(text)
	}
	c.Explain = sentence("output.explain", out.Explain)
	for i := range out.ExplainTo[:min(len(out.ExplainTo), maxExplained)] {
		if c.ExplainTo == nil {
			c.ExplainTo = map[string]string{}
		}
		c.ExplainTo[out.ExplainTo[i].CNIType] = sentence(fmt.Sprintf("output.explainTo[%d].explain", i), out.ExplainTo[i].Explain)
	}
}

func (r *reader) flow(at string, f *v1alpha1.Flow) contract.Flow {
	if f == nil {
		return contract.Flow{}
	}
	r.appends(at, f.Appends)
	out := contract.Flow{Passthrough: f.Passthrough, Modifies: f.Modifies, Conditional: f.Conditional}
	if f.Appends != nil {
		out.Appends = int(*f.Appends)
	}
	return out
}

func (r *reader) appends(at string, a *v1alpha1.Appends) {
	if a != nil && *a == v1alpha1.Unreadable {
		r.fail(at+".appends", "want a number of entries from 0 to 65535, or a boolean")
	}
}

// reader collects problems while it reads a schema.
type reader struct {
	errs   []error
	params int
}

func (r *reader) fail(at, format string, args ...any) {
	if r.full() {
		return
	}
	r.errs = append(r.errs, errors.New(excerpt.Of(at+": "+fmt.Sprintf(format, args...), maxMessage)))
}

func (r *reader) full() bool { return len(r.errs) >= maxErrors || r.params > maxParams }

func (r *reader) param(at string, p v1alpha1.Parameter) contract.Param {
	if len(p.Name) > maxName {
		r.fail(at, "a name has %d bytes, at most %d are accepted", len(p.Name), maxName)
		return contract.Param{}
	}
	out := r.property(fmt.Sprintf("%s[%s]", at, p.Name), p.Property, 0)
	out.Name = p.Name
	return out
}

// devices reads the fields that references can name; others cannot be used.
func (r *reader) devices(ps []v1alpha1.Parameter) []contract.Param {
	var out []contract.Param
	for _, p := range ps {
		if slices.ContainsFunc(ref.Fields(), func(f ref.Field) bool { return f.Source == ref.Devices && f.Path == p.Name }) {
			out = append(out, r.param("output.devices.properties", p))
		}
	}
	return out
}

func (r *reader) property(at string, p v1alpha1.Property, depth int) contract.Param {
	if p.Wrong != "" {
		r.fail(at, "cannot be read: %s", p.Wrong)
		return contract.Param{}
	}
	if n := len(p.Aliases); n > maxAliases {
		r.fail(at, "has %d aliases, at most %d are accepted", n, maxAliases)
		return contract.Param{}
	}
	items := cmp.Or(p.Items, &v1alpha1.Items{})
	props := p.Properties
	if props == nil && !strings.HasSuffix(p.Type, "]"+string(contract.Object)) {
		props = items.Properties
	}
	out := r.typed(at, p.Type, props, items, depth)
	out.Description = orElse(p.Description, "not described")
	out.Aliases, out.Required = p.Aliases, p.Required
	out.MinItems, out.MaxItems = int(p.MinItems), int(p.MaxItems)
	r.narrow(at, &out, p.Format, p.Enum, p.Minimum, p.Maximum)
	if p.Default != nil {
		dec := json.NewDecoder(bytes.NewReader(p.Default.Raw))
		dec.UseNumber()
		if err := dec.Decode(&out.Default); err != nil {
			r.fail(at, "default: %v", err)
		}
		if n, ok := out.Default.(json.Number); ok {
			if i, err := n.Int64(); err == nil {
				out.Default = i
			}
		}
		if out.Default == false && out.Type == contract.String {
			out.Default = nil // an unquoted off: no default that could be filled in
		}
	}
	return out
}

// narrow sets the constraints of a value of simple type.
func (r *reader) narrow(at string, p *contract.Param, format string, enum []string, minimum, maximum *int64) {
	if n := len(enum); n > maxWords {
		r.fail(at, "has %d words, at most %d are accepted", n, maxWords)
		return
	}
	p.Format, p.Minimum, p.Maximum = contract.Format(format), minimum, maximum
	p.Enum = enum
	// YAML reads an unquoted on as true.
	p.OnOff = slices.Contains(enum, "on") || slices.Contains(enum, "off")
}

// typed reads a type: what it is a list of, or a map of, and of what properties.
func (r *reader) typed(at, typ string, props map[string]v1alpha1.Property, items *v1alpha1.Items, depth int) contract.Param {
	r.params++
	if depth > maxDepth {
		if depth == maxDepth+1 {
			r.fail(at, "nested deeper than %d levels", maxDepth)
		}
		return contract.Param{Type: contract.Any}
	}
	if r.params > maxParams {
		if r.params == maxParams+1 {
			r.errs = append(r.errs, fmt.Errorf("more than %d parameters", maxParams))
		}
		return contract.Param{Type: contract.Any}
	}
	for prefix, kind := range map[string]contract.Type{"[]": contract.List, "map[string]": contract.Map} {
		rest, ok := strings.CutPrefix(typ, prefix)
		if !ok {
			continue
		}
		inner := cmp.Or(items.Items, &v1alpha1.Items{})
		if items.Wrong != "" {
			r.fail(at+"[]", "cannot be read: %s", items.Wrong)
			return contract.Param{Type: kind}
		}
		entry := r.typed(at+"[]", rest, items.Properties, inner, depth+1)
		r.narrow(at+"[]", &entry, items.Format, items.Enum, items.Minimum, items.Maximum)
		entry.MinItems, entry.MaxItems = int(items.MinItems), int(items.MaxItems)
		return contract.Param{Type: kind, Items: &entry}
	}
	switch typ {
	case "bool", string(contract.Boolean):
		return contract.Param{Type: contract.Boolean}
	case string(contract.String), string(contract.Integer), string(contract.Any):
		return contract.Param{Type: contract.Type(typ)}
	case string(contract.Object):
		return r.object(at, props, depth)
	default:
		r.fail(at, "type %q is unknown: want string, integer, boolean, object, any, []TYPE or map[string]TYPE", typ)
		return contract.Param{Type: contract.Any}
	}
}

// object reads an object; without properties it may have any.
func (r *reader) object(at string, props map[string]v1alpha1.Property, depth int) contract.Param {
	if len(props) == 0 {
		return contract.Param{Type: contract.Map, Items: &contract.Param{Type: contract.Any}}
	}
	out := contract.Param{Type: contract.Object}
	for _, name := range slices.Sorted(maps.Keys(props)) {
		if r.full() {
			return out
		}
		if len(name) > maxName {
			r.fail(at, "a name has %d bytes, at most %d are accepted", len(name), maxName)
			continue
		}
		p := r.property(at+"."+name, props[name], depth+1)
		p.Name = name
		out.Properties = append(out.Properties, p)
	}
	return out
}

func orElse(s, other string) string {
	if strings.TrimSpace(s) == "" {
		return other
	}
	return s
}
