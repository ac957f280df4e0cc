package contract

import (
	"fmt"
	"maps"
	"slices"
)

// NewSet returns a set of the given contracts; two of one type are refused.
func NewSet(contracts ...Contract) (Set, error) {
	s := set{}
	for _, c := range contracts {
		if _, twice := s[c.Type]; twice {
			return nil, fmt.Errorf("step type %q has two contracts", c.Type)
		}
		s[c.Type] = c
	}
	return s, nil
}

type set map[string]Contract

func (s set) Contract(typ string) (Contract, bool) {
	c, ok := s[typ]
	return c, ok
}

func (s set) Types() []string { return slices.Sorted(maps.Keys(s)) }

// TypeName returns the type of a parameter as in a CNIPluginSchema:
// "[]object", "map[string]bool".
func (p Param) TypeName() string {
	elem := "any"
	if p.Items != nil {
		elem = p.Items.TypeName()
	}
	if elem == string(Boolean) {
		elem = "bool"
	}
	switch p.Type {
	case List:
		return "[]" + elem
	case Map:
		return "map[string]" + elem
	default:
		return string(p.Type)
	}
}

// RootOnly reports whether steps of the type can only be root steps: they take a device and
// pass on nothing of a dependency.
func (c Contract) RootOnly() bool {
	return c.Input.Device && !c.Input.Required && c.Input.MinInterfaces == 0 && len(c.Input.DerivedFrom) == 0 &&
		!c.Output.Interfaces.Passthrough && !c.Output.Interfaces.Modifies
}
