package contract

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/ref"
	"github.com/plumbline/plumbline/topology/suggest"
)

// Options are the options of decoding a config.
type Options struct {
	// Unresolved allows references: their field's static type must fit the
	// parameter, and the value stays as written. Without it a reference is an
	// error.
	Unresolved bool
}

// Decode checks a step's config and returns it in canonical form: canonical
// key names, values in the form the kernel reads back, integers as int64,
// defaults filled in. The input is not changed. With any error the map is nil;
// of many errors the first 64 or so are returned.
func (c Contract) Decode(config map[string]any, opt Options) (map[string]any, []FieldError) {
	d := decoder{typ: c.Type, top: c.Params, additional: c.Additional, opt: opt, unresolved: map[string]bool{}}
	out := d.object("", c.Params, config, false)
	if len(d.errs) == 0 && c.Check != nil {
		seen := maps.Clone(out)
		maps.DeleteFunc(seen, func(k string, _ any) bool { return d.unresolved[k] })
		d.errs = append(d.errs, c.Check(seen, d.unresolved)...)
	}
	if len(d.errs) > 0 {
		return nil, d.errs
	}
	return out, nil
}

// Errors are all errors in one config.
type Errors []FieldError

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// decoder collects errors while it walks a config.
type decoder struct {
	typ        string
	top        []Param // those of the config itself
	additional bool    // it may have others
	opt        Options
	errs       []FieldError
	unresolved map[string]bool // paths, and the top-level keys above them
}

// maxKeys is how many keys of an object an error lists.
const maxKeys = 10

// maxErrors bounds the errors of one config; a decoder stops there.
const maxErrors = 64

func (d *decoder) full() bool { return len(d.errs) >= maxErrors }

func (d *decoder) fail(path, format string, args ...any) {
	if !d.full() {
		d.errs = append(d.errs, FieldError{Field: path, Message: fmt.Sprintf(format, args...)})
	}
}

// object decodes a map by its parameters. A projected map, an entry of another step's
// result, may have keys that the parameters lack.
func (d *decoder) object(path string, params []Param, in map[string]any, projected bool) map[string]any {
	if d.full() {
		return nil
	}
	var meant map[string]bool
	out := map[string]any{}
	switch {
	case projected:
	case path == "" && d.additional:
		d.keep(params, in, out)
	default:
		meant = d.unknownKeys(path, params, in)
	}
	for _, p := range params {
		key, v, given := d.spelling(path, p, in)
		switch {
		case given:
			if got, ok := d.value(ref.Join(path, key), p, v); ok {
				out[p.Name] = got
			}
			if path == "" && d.hasUnresolved(key) {
				d.unresolved[p.Name] = true
			}
		case p.Required && meant[p.Name]:
			// reported with the misspelt key
		case p.Required && !d.full():
			d.errs = append(d.errs, FieldError{
				Field:    ref.Join(path, p.Name),
				Message:  fmt.Sprintf("CNIPluginSchema %q requires parameter %q.", d.typ, ref.Join(path, p.Name)),
				Complete: true,
			})
		case p.Default != nil:
			if got, ok := d.value(ref.Join(path, p.Name), p, p.Default); ok {
				out[p.Name] = got
			}
		}
	}
	return out
}

// keep adds the keys of a config that are no parameter's. A field of the step is none of them.
func (d *decoder) keep(params []Param, in, out map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(in)) {
		if accepts(params, key) {
			continue
		}
		if place := d.elsewhere("", key); place != "" {
			d.fail(key, "%s", place)
		} else if got, ok := d.value(key, Param{Name: key, Type: Any}, in[key]); ok {
			out[key] = got
		}
		if d.hasUnresolved(key) {
			d.unresolved[key] = true
		}
	}
}

// hasUnresolved reports whether a path at or below a top-level key is unresolved.
func (d *decoder) hasUnresolved(key string) bool {
	for path := range d.unresolved {
		if rest, ok := strings.CutPrefix(path, key); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// unknownKeys refuses the keys that are no parameter's and returns the
// parameters that were probably meant.
func (d *decoder) unknownKeys(path string, params []Param, in map[string]any) map[string]bool {
	meant := map[string]bool{}
	var names []string // every spelling, and its parameter
	canonical := map[string]string{}
	for _, p := range params {
		for _, n := range append([]string{p.Name}, p.Aliases...) {
			names = append(names, n)
			canonical[n] = p.Name
		}
	}
	for _, key := range slices.Sorted(maps.Keys(in)) {
		if _, known := canonical[key]; known || d.full() {
			continue
		}
		var unknown string
		msg := fmt.Sprintf("CNIPluginSchema %q does not accept parameter %q.", d.typ, ref.Join(path, key))
		if near := suggest.Name(key, names); near != "" {
			meant[canonical[near]] = true
			msg += fmt.Sprintf("\nDid you mean %q?", canonical[near])
		} else if place := d.elsewhere(path, key); place != "" {
			msg += "\n" + place
		} else {
			if len(params) > 0 {
				msg += "\nIt accepts " + strings.Join(namesOf(params), ", ") + "."
			}
			if path == "" {
				unknown = key
			}
		}
		d.errs = append(d.errs, FieldError{Field: ref.Join(path, key), Message: msg, Complete: true, Unknown: unknown})
	}
	return meant
}

// StepFields are the fields of a step beside its config.
var StepFields = []string{"allowDuplicate", "dependOn", "driftPolicy", "extendedResourceName", "forEach", "selector"}

// elsewhere says where a key belongs that is unknown here.
func (d *decoder) elsewhere(path, key string) string {
	outer, _, _ := strings.Cut(path, ".")
	outer, _, _ = strings.Cut(outer, "[")
	switch {
	case slices.Contains(StepFields, key):
		return fmt.Sprintf("%q is a field of the step: write it beside config.", key)
	case path != "" && accepts(d.top, key):
		return fmt.Sprintf("%q is a parameter beside %q: write it there.", key, outer)
	case path == "" && key != "type":
		var in []string
		for _, p := range d.top {
			if p.has(key) {
				in = append(in, p.Name)
			} else if p.Items != nil && p.Items.has(key) {
				in = append(in, p.Name+"[]")
			}
		}
		if len(in) > 0 {
			return fmt.Sprintf("%q is a parameter of %s.", key, strings.Join(in, ", "))
		}
	}
	return ""
}

// Accepts reports whether a config may have a key: a parameter of the type, in any spelling.
func (c Contract) Accepts(key string) bool { return accepts(c.Params, key) }

// has reports whether an object has a key.
func (p Param) has(key string) bool { return accepts(p.Properties, key) }

func accepts(params []Param, key string) bool {
	return slices.ContainsFunc(params, func(p Param) bool { return p.Name == key || slices.Contains(p.Aliases, key) })
}

func namesOf(params []Param) []string {
	return excerpt.Texts(params, func(p Param) string { return p.Name })
}

// spelling finds a parameter under any of its names.
func (d *decoder) spelling(path string, p Param, in map[string]any) (key string, v any, given bool) {
	for _, n := range append([]string{p.Name}, p.Aliases...) {
		got, ok := in[n]
		if !ok {
			continue
		}
		if given {
			d.fail(ref.Join(path, n), "is another spelling of %q, which is also given: keep one of them", key)
			continue
		}
		key, v, given = n, got, true
	}
	return key, v, given
}

// value decodes one value; ok is false when it was refused.
func (d *decoder) value(path string, p Param, v any) (out any, ok bool) {
	if d.full() {
		return nil, false
	}
	if s, isString := v.(string); isString && ref.Has(s) {
		if plain, done, ok := d.template(path, p, s); done {
			return s, ok
		} else if d.opt.Unresolved {
			// Quoted text only: checked as its expansion, kept as written, as it will be
			// expanded later.
			_, ok := d.literal(path, p, plain)
			return s, ok
		}
	}
	return d.literal(path, p, v)
}

// template handles a string that may hold references. done is false when it
// holds none; plain is then its text.
func (d *decoder) template(path string, p Param, s string) (plain string, done, ok bool) {
	t, err := ref.Parse(s)
	if err != nil {
		if !d.opt.Unresolved {
			return s, false, true // already expanded: text like any other
		}
		d.fail(path, "%v", err)
		return "", true, false
	}
	refs := t.Refs()
	if len(refs) == 0 {
		text, _ := t.Expand(nil)
		plain, _ = text.(string)
		return plain, false, true
	}
	if !d.opt.Unresolved {
		d.fail(path, "reference %s is not resolved", refs[0])
		return "", true, false
	}
	_, whole := t.Whole()
	for _, r := range refs {
		f, err := r.Lookup()
		if err == nil {
			err = misfit(p, f, whole)
		}
		if err != nil {
			d.fail(path, "%v", err)
			return "", true, false
		}
	}
	d.unresolved[path] = true
	return "", true, true
}

func (d *decoder) literal(path string, p Param, v any) (any, bool) {
	if v == nil {
		d.fail(path, "has no value: give one or remove the key")
		return nil, false
	}
	switch p.Type {
	case String:
		return d.str(path, p, v)
	case Integer:
		return d.integer(path, p, v)
	case Boolean:
		return d.boolean(path, v)
	case Object:
		return d.nested(path, p, v)
	case Map:
		return d.free(path, p, v)
	case List:
		return d.list(path, p, v)
	case Any:
		return v, true
	default:
		d.fail(path, "contract of type %q gives it the unknown type %q", d.typ, p.Type)
		return nil, false
	}
}

func (d *decoder) str(path string, p Param, v any) (any, bool) {
	if o, ok := v.(ref.Object); ok && (p.Format == InterfaceName || p.Format == LinkName) {
		v = o["name"]
	}
	if b, ok := v.(bool); ok && p.OnOff {
		word := map[bool]string{true: "on", false: "off"}[b]
		if words := p.words(); !slices.Contains(words, word) {
			d.fail(path, "want one of %s, got the boolean %t (YAML reads yes and on as true)", strings.Join(words, ", "), b)
			return nil, false
		}
		v = word
	}
	if p.Scalar || p.NumericString {
		v = scalarText(v, p.Scalar)
	}
	s, ok := v.(string)
	if words := p.words(); !ok && len(words) > 0 { // in quotes it would not be one of them, either
		switch v.(type) {
		case int, int64, uint64, float64, json.Number:
			s, ok = fmt.Sprint(v), true
		}
	}
	if !ok {
		hint := quoteHint(v)
		if list, _ := v.([]any); len(list) == 1 {
			if text, isText := list[0].(string); isText {
				hint = fmt.Sprintf(": write %s, without a list", quote(text))
			}
		}
		d.fail(path, "want a string, got %s%s", describe(v), hint)
		return nil, false
	}
	if len(p.Enum) > 0 || p.OnOff {
		return d.enum(path, p, s)
	}
	if p.Format != "" {
		canonical, err := p.Format.Canonical(s)
		if err != nil {
			d.fail(path, "%v", err)
			return nil, false
		}
		s = canonical
	}
	return s, true
}

func (d *decoder) enum(path string, p Param, s string) (any, bool) {
	words := p.words()
	for _, w := range words {
		if s == w || p.FoldCase && strings.EqualFold(s, w) {
			return w, true
		}
	}
	if instead, known := p.Refused[s]; known {
		d.fail(path, "%s is not supported: %s", quote(s), instead)
		return nil, false
	}
	d.fail(path, "%s is not one of %s%s", quote(s), strings.Join(words, ", "), suggest.Hint(s, words))
	return nil, false
}

// words are the values of an enumeration.
func (p Param) words() []string {
	if len(p.Enum) == 0 && p.OnOff {
		return []string{"on", "off"}
	}
	return p.Enum
}

func (d *decoder) integer(path string, p Param, v any) (any, bool) {
	n, err := integer(p, v)
	if err != nil {
		d.fail(path, "%v", err)
		return nil, false
	}
	if p.Minimum != nil && n < *p.Minimum {
		d.fail(path, "%d is below the minimum %d", n, *p.Minimum)
		return nil, false
	}
	if p.Maximum != nil && n > *p.Maximum {
		d.fail(path, "%d is above the maximum %d", n, *p.Maximum)
		return nil, false
	}
	return n, true
}

func (d *decoder) boolean(path string, v any) (any, bool) {
	b, ok := v.(bool)
	if !ok {
		hint := ""
		if s, isString := v.(string); isString && slices.Contains([]string{"true", "false", "on", "off", "yes", "no"}, strings.ToLower(s)) {
			hint = ": write true or false, without quotes"
		}
		d.fail(path, "want a boolean, got %s%s", describe(v), hint)
	}
	return b, ok
}

func (d *decoder) nested(path string, p Param, v any) (any, bool) {
	before := len(d.errs)
	switch v := v.(type) {
	case map[string]any:
		if d.otherVariant(path, p, v) {
			return nil, false
		}
		out := d.object(path, p.Properties, v, false)
		return out, len(d.errs) == before
	case ref.Object:
		out := d.object(path, p.Properties, v, true)
		return out, len(d.errs) == before
	}
	short, ok := p.shorthand()
	if !ok {
		hint := ""
		if names := namesOf(p.Properties); len(names) <= maxKeys {
			hint = ": its keys are " + strings.Join(names, ", ")
		}
		for _, q := range p.Properties {
			if word, isText := v.(string); isText && q.Required && slices.Contains(q.Enum, word) {
				hint = fmt.Sprintf(": write {%s: %s}", q.Name, word)
			}
		}
		d.fail(path, "want an object, got %s%s", describe(v), hint)
		return nil, false
	}
	if got, isList := v.([]any); isList && short.Type != List {
		d.fail(path, "want an object or its %s, got %s", short.Name, describe(got))
		return nil, false
	}
	out := d.object(path, p.Properties, map[string]any{short.Name: v}, false)
	return out, len(d.errs) == before
}

// otherVariant refuses an object that names another variant than the supported one, such as
// ipam of type host-local. Its other keys belong to that variant and are not reported.
func (d *decoder) otherVariant(path string, p Param, v map[string]any) bool {
	for _, q := range p.Properties {
		named, ok := v[q.Name].(string)
		if !q.Required || len(q.Enum) == 0 || len(q.Enum) > 1 && q.Name != "type" ||
			!ok || ref.Has(named) || slices.Contains(q.Enum, named) {
			continue
		}
		if instead, known := q.Refused[named]; known {
			d.fail(ref.Join(path, q.Name), "%s is not supported: %s", quote(named), instead)
			return true
		}
		if n := len(q.Enum) - 1; n > 0 { // each takes other keys
			d.fail(ref.Join(path, q.Name), "%s is not supported, only %s and %s%s", quote(named),
				strings.Join(q.Enum[:n], ", "), q.Enum[n], suggest.Hint(named, q.Enum))
			return true
		}
		var takes []string
		for _, other := range p.Properties {
			if other.Name != q.Name {
				takes = append(takes, other.Name)
			}
		}
		d.fail(ref.Join(path, q.Name), "%s is not supported, only %s, which takes %s", quote(named), q.Enum[0], strings.Join(takes, ", "))
		return true
	}
	return false
}

// shorthand returns the property that a bare value sets.
func (p Param) shorthand() (Param, bool) {
	i := slices.IndexFunc(p.Properties, func(q Param) bool { return q.Name == p.Shorthand })
	if p.Shorthand == "" || i < 0 {
		return Param{}, false
	}
	return p.Properties[i], true
}

func (d *decoder) free(path string, p Param, v any) (any, bool) {
	in, ok := v.(map[string]any)
	if !ok {
		d.fail(path, "want a map, got %s", describe(v))
		return nil, false
	}
	before := len(d.errs)
	out, spelled := map[string]any{}, map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(in)) {
		at := ref.Join(path, key)
		if ref.Has(key) {
			d.fail(path, "key %s holds a reference: only values can", quote(key))
			continue
		}
		name := key
		if p.Format != "" {
			canonical, err := p.Format.Canonical(key)
			if err != nil {
				d.fail(path, "key %v", err)
				continue
			}
			name = canonical
		}
		if other, twice := spelled[name]; twice {
			d.fail(at, "is another spelling of %q, which is also given: keep one of them", other)
			continue
		}
		spelled[name] = key
		if p.Items == nil {
			out[name] = in[key]
		} else if got, ok := d.value(at, *p.Items, in[key]); ok {
			out[name] = got
		}
	}
	d.count(path, p, len(in))
	return out, len(d.errs) == before
}

func (d *decoder) list(path string, p Param, v any) (any, bool) {
	in, ok := v.([]any)
	if !ok {
		hint := ""
		switch v := v.(type) {
		case string:
			if len(v) <= 80 && !strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
				hint = fmt.Sprintf(": write [%s]", v)
			}
		case map[string]any:
			if p.Items != nil && (p.Items.Type == Object || p.Items.Type == List) {
				hint = ": put it into a list, [{…}]"
			}
		}
		d.fail(path, "want a list, got %s%s", describe(v), hint)
		return nil, false
	}
	before := len(d.errs)
	out := make([]any, 0, len(in))
	for i, e := range in {
		if p.Items == nil {
			out = append(out, e)
		} else if got, ok := d.value(path+"["+strconv.Itoa(i)+"]", *p.Items, e); ok {
			out = append(out, got)
		}
	}
	d.count(path, p, len(in))
	return out, len(d.errs) == before
}

func (d *decoder) count(path string, p Param, n int) {
	switch {
	case n < p.MinItems:
		d.fail(path, "has %s, at least %d are needed", entries(n), p.MinItems)
	case p.MaxItems > 0 && n > p.MaxItems:
		d.fail(path, "has %s, at most %d are accepted", entries(n), p.MaxItems)
	}
}

func entries(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}
