package contract

import (
	"errors"
	"fmt"
	"slices"

	"github.com/plumbline/plumbline/topology/ref"
)

// Vet returns the errors of the contract itself: mistakes of the step type's author, which
// a test has to find. Everything else in this package relies on a contract without them.
func (c Contract) Vet() error {
	v := vetter{typ: c.Type}
	v.check(c.Type == "", "", "the type has no name")
	v.check(c.Summary == "", "", "the summary is missing")
	v.check(c.Input.MaxInterfaces > 0 && c.Input.MaxInterfaces < c.Input.MinInterfaces, "",
		"at most %d interfaces are fewer than the least %d", c.Input.MaxInterfaces, c.Input.MinInterfaces)
	v.check(c.Input.Required && c.Input.Device, "", "a type that cannot be a root step consumes no device")
	v.check(c.Input.Shares && c.Input.Device, "", "a device is moved or shared, not both")
	v.check(c.Input.Functions && !c.Input.Shares, "", "functions are taken instead of a shared device")
	v.check(c.Input.Uplink != nil && !c.Input.Functions, "", "functions of an uplink are taken by a type that takes functions")
	v.check(c.Input.Required && c.Input.Shares, "", "a type that cannot be a root step shares no device")
	v.check(c.Stacks != nil && !c.Input.Shares, "", "a type that shares no device puts no links on one")
	makes := c.Output.Interfaces.Appends != 0
	v.check(c.Output.LogicalPorts && c.Output.Relays, "", "an interface has a port of OVN or sends through another one, not both")
	v.check((c.Output.LogicalPorts || c.Output.Relays) && !makes, "",
		"a type that makes no interface says nothing about what is sent over it")
	v.check(len(c.Output.Attachment) > 0 && !c.Output.LogicalPorts, "", "a type without ports of OVN names no attachment")
	for _, key := range c.Output.Attachment {
		v.check(!slices.ContainsFunc(c.Params, func(p Param) bool { return p.Name == key }), key,
			"agrees with an attachment, and is not a key of the config")
	}
	v.object("", c.Params)
	for _, p := range c.Output.Devices {
		known := slices.ContainsFunc(ref.Fields(), func(f ref.Field) bool { return f.Source == ref.Devices && f.Path == p.Name })
		v.check(!known, p.Name, "is an output no reference can name")
	}
	return errors.Join(v.errs...)
}

type vetter struct {
	typ  string
	errs []error
}

func (v *vetter) check(bad bool, path, format string, args ...any) {
	if !bad || len(v.errs) >= maxErrors {
		return
	}
	msg := fmt.Sprintf(format, args...)
	if path != "" {
		msg = fmt.Sprintf("parameter %q: %s", path, msg)
	}
	v.errs = append(v.errs, fmt.Errorf("contract of type %q: %s", v.typ, msg))
}

func (v *vetter) object(path string, params []Param) {
	seen := map[string]bool{}
	for _, p := range params {
		at := ref.Join(path, p.Name)
		v.check(p.Name == "", at, "a parameter has no name")
		v.check(p.Description == "", at, "the description is missing")
		for _, n := range append([]string{p.Name}, p.Aliases...) {
			v.check(seen[n], at, "the spelling %q is taken", n)
			seen[n] = true
		}
		v.param(at, p)
	}
}

func (v *vetter) param(at string, p Param) {
	is := func(types ...Type) bool { return slices.Contains(types, p.Type) }
	v.check(!is(String, Integer, Boolean, Object, Map, List, Any), at, "the type %q is unknown", p.Type)
	v.check(formats[p.Format] == nil, at, "the format %q is unknown", p.Format)
	v.check(p.Format != "" && !is(String, Map), at, "only strings and the keys of maps have a format")
	v.check((len(p.Enum) > 0 || p.OnOff || p.FoldCase || p.Scalar) && !is(String), at, "only strings have words")
	v.check(p.FoldCase && len(p.words()) == 0, at, "there are no words to fold")
	v.check(p.NumericString && !is(String, Integer), at, "only strings and integers can be numeric strings")
	v.check((p.Minimum != nil || p.Maximum != nil) && !is(Integer), at, "only integers have bounds")
	v.check(p.Minimum != nil && p.Maximum != nil && *p.Minimum > *p.Maximum, at, "the minimum is above the maximum")
	v.check((p.MinItems > 0 || p.MaxItems > 0) && !is(List, Map), at, "only lists and maps have a number of entries")
	v.check(p.MaxItems > 0 && p.MaxItems < p.MinItems, at, "at most %d entries are fewer than the least %d", p.MaxItems, p.MinItems)
	v.check(is(List, Map) && p.Items == nil, at, "what the entries are is missing")
	v.check(!is(List, Map) && p.Items != nil, at, "only lists and maps have entries")
	v.check(!is(Object) && len(p.Properties) > 0, at, "only objects have properties")
	v.check(p.Required && p.Default != nil, at, "a required parameter needs no default")
	_, short := p.shorthand()
	v.check(p.Shorthand != "" && !short, at, "the shorthand %q is not a property", p.Shorthand)
	if p.Default != nil {
		d := decoder{typ: v.typ}
		d.value(at, p, p.Default)
		for _, e := range d.errs {
			v.check(true, at, "the default is refused: %s", e.Message)
		}
	}
	if p.Items != nil {
		v.param(at+"[]", *p.Items)
	}
	v.object(at, p.Properties)
}
