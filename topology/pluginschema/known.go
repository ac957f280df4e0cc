package pluginschema

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
)

// Known returns the contracts of all step types: the built-in ones, and those that schemas
// describe. A schema of a built-in type changes nothing. A schema that cannot be read is
// left out and named in problems; of two for one type the first by name counts. The set is
// a topology.Vetter when the built-in one is: steps of built-in types are planned, and
// those of described types are not, as their plans are unknown.
func Known(builtIn contract.Set, schemas []v1alpha1.CNIPluginSchema) (set contract.Set, problems []error) {
	var all []contract.Contract
	for _, typ := range builtIn.Types() {
		c, _ := builtIn.Contract(typ)
		all = append(all, c)
	}
	from := map[string]string{} // type to the schema it is described by
	sorted := slices.SortedFunc(slices.Values(schemas), func(a, b v1alpha1.CNIPluginSchema) int { return cmp.Compare(a.Name, b.Name) })
	for i := range sorted {
		s := &sorted[i]
		typ := s.Spec.CNIType
		if _, ours := builtIn.Contract(typ); ours {
			continue
		}
		if other, twice := from[typ]; twice {
			problems = append(problems, fmt.Errorf("CNIPluginSchema %q: CNIPluginSchema %q describes type %q already", s.Name, other, typ))
			continue
		}
		c, err := Contract(s)
		if err != nil {
			problems = append(problems, fmt.Errorf("CNIPluginSchema %q: %w", s.Name, err))
			continue
		}
		from[typ] = s.Name
		all = append(all, c)
	}
	set, err := contract.NewSet(all...)
	if err != nil { // two of one type, which was handled above
		return builtIn, append(problems, err)
	}
	if vetter, ok := builtIn.(topology.Vetter); ok {
		set = vetted{set, vetter}
	}
	return set, problems
}

// vetted are the contracts of all types; built-in steps are planned.
type vetted struct {
	contract.Set
	topology.Vetter
}
