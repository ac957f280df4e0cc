package contract

import (
	"fmt"
	"slices"

	"github.com/plumbline/plumbline/topology/ref"
)

// Ignored returns the keys of a config that are accepted and have no effect, each with the reason.
func (c Contract) Ignored(config map[string]any) []FieldError { return ignored("", c.Params, config) }

func ignored(path string, params []Param, config map[string]any) (out []FieldError) {
	for _, p := range params {
		for _, key := range append([]string{p.Name}, p.Aliases...) {
			v, given := config[key]
			if b, isBool := v.(bool); !given || isBool && !b {
				continue
			}
			at := ref.Join(path, key)
			if p.Ignored != "" {
				out = append(out, FieldError{Field: at, Message: "has no effect: " + p.Ignored})
				continue
			}
			out = append(out, ignoredWithin(at, p, v)...)
		}
	}
	return out
}

func ignoredWithin(at string, p Param, v any) (out []FieldError) {
	switch v := v.(type) {
	case map[string]any:
		if p.Type == Object {
			out = ignored(at, p.Properties, v)
		}
	case []any:
		if p.Items == nil {
			return nil
		}
		for i, e := range v {
			out = append(out, ignoredWithin(fmt.Sprintf("%s[%d]", at, i), *p.Items, e)...)
		}
	}
	return slices.Clip(out)
}
