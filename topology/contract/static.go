package contract

import (
	"errors"
	"fmt"

	"github.com/plumbline/plumbline/topology/ref"
)

// misfit returns why a field cannot fill a parameter, nil when it can. A
// reference that is not the whole value becomes text.
func misfit(p Param, f ref.Field, whole bool) error {
	if !whole {
		if !f.Type.Scalar() {
			return fmt.Errorf("%q is of type %s and cannot stand inside a string: write it as the whole value", f.Path, f.Type)
		}
		if short, ok := p.shorthand(); ok && p.Type == Object {
			p = short
		}
		f = ref.Field{Path: "text with " + f.Path, Type: ref.String}
	}
	if fits(p, f) {
		return nil
	}
	switch {
	case len(p.words()) > 0:
		return errors.New("a reference cannot be used here: the value is a word of a fixed list")
	case p.Type == List && f.Type == ref.Objects:
		return fmt.Errorf("%q is a list of interfaces, whose entries do not fit here", f.Path)
	}
	want, got := p.TypeName(), string(f.Type)
	if p.Format != "" && p.Type == String {
		want += " (" + string(p.Format) + ")"
	}
	if f.Format != "" {
		got += " (" + f.Format + ")"
	}
	return fmt.Errorf("%q is of type %s, type %s is wanted here", f.Path, got, want)
}

func fits(p Param, f ref.Field) bool {
	switch p.Type {
	case Any:
		return true
	case String:
		ok := f.Type == ref.String || f.Type == ref.Integer && (p.Scalar || p.NumericString)
		return ok && len(p.words()) == 0 && p.Format.compatible(f.Format)
	case Integer:
		return f.Type == ref.Integer || f.Type == ref.String && f.Format == "" && p.NumericString
	case Object:
		short, ok := p.shorthand()
		return ok && fits(short, f)
	case List:
		switch {
		case p.Items == nil:
			return f.Type == ref.Strings || f.Type == ref.Objects
		case f.Type == ref.Strings:
			return fits(*p.Items, ref.Field{Path: f.Path, Type: ref.String})
		case f.Type == ref.Objects:
			return projects(*p.Items)
		}
		return false
	default: // no field is a boolean or a map
		return false
	}
}

// projects reports whether an interface of a result can fill an item: as an
// object that takes at least one of its keys and requires no other, or by name.
func projects(item Param) bool {
	if item.Type != Object {
		return item.Type == Any || item.Type == String && item.Format == InterfaceName
	}
	took := false
	for _, prop := range item.Properties {
		f, err := ref.Ref{Step: "s", Field: "interfaces", Index: new(int), Sub: prop.Name}.Lookup()
		fit := err == nil && fits(prop, f)
		if prop.Required && !fit {
			return false
		}
		took = took || fit
	}
	return took
}
