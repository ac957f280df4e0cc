package topology

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/ref"
	"github.com/plumbline/plumbline/topology/suggest"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// reader compares a value with the Go type it is decoded into. It names every field
// that the type lacks and every value of a wrong kind.
type reader struct {
	inv   *Invalid
	steps []any // as written, once they are reached
	outer []level
}

// level is a struct that contains the one that is read.
type level struct {
	path   string
	fields map[string]reflect.Type
}

// Misfits returns what of an object, as YAML or JSON has it, does not fit a Go type: fields that
// the type does not have, and values of another kind.
func Misfits(v any, t reflect.Type) []Problem {
	r := reader{inv: newInvalid("")}
	r.read("", v, t)
	if r.inv.More {
		return append(r.inv.Problems, Problem{Message: fmt.Sprintf("stopped after %d problems: there may be more", len(r.inv.Problems))})
	}
	return r.inv.Problems
}

// numberOrText is the type of spec.rollout.maxUnavailable.
var numberOrText = reflect.TypeOf(v1alpha1.Rollout{}.MaxUnavailable).Elem()

// read returns the value as it was probably meant, so that the rest of it can be checked: a
// misspelt field under its right name, a bare value in its list. What cannot be understood
// is left out.
func (r *reader) read(path string, v any, t reflect.Type) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if path == "spec.steps" {
		r.steps, _ = v.([]any)
	}
	switch {
	case v == nil || r.inv.Full():
		return v
	case t == numberOrText:
		return r.numberOrText(path, v)
	case reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()):
		return r.own(path, v, t)
	}
	switch t.Kind() {
	case reflect.Struct:
		return r.object(path, v, t)
	case reflect.Map:
		return r.free(path, v, t)
	case reflect.Slice:
		return r.list(path, v, t)
	case reflect.String:
		return r.text(path, v)
	case reflect.Int32, reflect.Int64:
		return r.integer(path, v, t)
	case reflect.Bool:
		return r.boolean(path, v)
	default:
		return v
	}
}

func (r *reader) object(path string, v any, t reflect.Type) any {
	fields := jsonFields(t)
	in, ok := v.(map[string]any)
	if _, text := v.(string); text && len(fields) == 1 { // a selector written as its expression
		for only, ft := range fields {
			r.refuse(path, "want an object, got %s: write {%s: %s}", kindOf(v), only, "…")
			return map[string]any{only: r.read(ref.Join(path, only), v, ft)}
		}
	}
	names := slices.Sorted(maps.Keys(fields))
	if !ok {
		r.refuse(path, "want an object, got %s: known in it are %s", kindOf(v), strings.Join(names, ", "))
		return nil
	}
	out := map[string]any{}
	r.outer = append(r.outer, level{path, fields})
	defer func() { r.outer = r.outer[:len(r.outer)-1] }()
	for _, k := range slices.Sorted(maps.Keys(in)) {
		if ft, known := fields[k]; known {
			out[k] = r.read(ref.Join(path, k), in[k], ft)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(in)) {
		if _, known := fields[k]; known {
			continue
		}
		meant, elsewhere := suggest.Name(k, names), r.elsewhere(k, t)
		word := len(meant) < len(k) && strings.Contains(strings.ToLower(k), strings.ToLower(meant)) // deviceClassName and name
		if meant == "" || elsewhere != "" && word {
			r.unknown(path, k, ": known here are "+strings.Join(names, ", ")+cmp.Or(elsewhere, inConfig(t)))
			continue
		}
		r.unknown(path, k, fmt.Sprintf(", did you mean %q?", meant))
		if _, given := out[meant]; !given {
			out[meant] = r.read(ref.Join(path, meant), in[k], fields[meant])
		}
	}
	return out
}

// inConfig says where a key belongs that is none of a step's fields.
func inConfig(t reflect.Type) string {
	if t != reflect.TypeFor[v1alpha1.Step]() {
		return ""
	}
	return "; write keys of its type in config"
}

// own reads a value of a type that decodes itself, whose error names no field.
func (r *reader) own(path string, v any, t reflect.Type) any {
	raw, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(raw, reflect.New(t).Interface())
	}
	switch {
	case err == nil:
		return v
	case t == reflect.TypeFor[resource.Quantity]():
		r.refuse(path, "want a quantity such as 25G, got %s", kindOf(v))
	default:
		r.refuse(path, "got %s: %v", kindOf(v), err)
	}
	return nil
}

// elsewhere says that a field is known in a struct that contains this one, or in one that it
// contains.
func (r *reader) elsewhere(key string, t reflect.Type) string {
	for _, l := range slices.Backward(r.outer) {
		if _, known := l.fields[key]; known && l.path != "" {
			return fmt.Sprintf("; %q is known in %s", key, l.path)
		}
	}
	if inner := below(t, key, 4); inner != "" {
		return fmt.Sprintf("; %q is known in %s", key, ref.Join(r.outer[len(r.outer)-1].path, inner))
	}
	return ""
}

// below returns where in a struct a field is known, the nearest first; "" for nowhere.
func below(t reflect.Type, key string, levels int) string {
	fields := jsonFields(t)
	inner := map[string]reflect.Type{}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		ft, path := fields[name], name
		for ft.Kind() == reflect.Pointer || ft.Kind() == reflect.Slice {
			if ft.Kind() == reflect.Slice {
				path += "[]"
			}
			ft = ft.Elem()
		}
		if ft.Kind() != reflect.Struct || name == "metadata" || name == "status" ||
			reflect.PointerTo(ft).Implements(reflect.TypeFor[json.Unmarshaler]()) {
			continue
		}
		if _, known := jsonFields(ft)[key]; known {
			return path
		}
		inner[path] = ft
	}
	if levels == 0 {
		return ""
	}
	for _, path := range slices.Sorted(maps.Keys(inner)) {
		if deeper := below(inner[path], key, levels-1); deeper != "" {
			return path + "." + deeper
		}
	}
	return ""
}

func (r *reader) free(path string, v any, t reflect.Type) any {
	in, ok := v.(map[string]any)
	if !ok {
		r.refuse(path, "want an object, got %s", kindOf(v))
		return nil
	}
	out := map[string]any{}
	for _, k := range slices.Sorted(maps.Keys(in)) {
		at := ref.Join(path, excerpt.Of(k, maxKey))
		switch in[k].(type) {
		case map[string]any, []any:
			if t.Elem().Kind() == reflect.String { // matchLabels, where labels are wanted
				r.refuse(at, "want a string, got %s: write %s: {NAME: TEXT}", kindOf(in[k]), path)
				continue
			}
		}
		out[k] = r.read(at, in[k], t.Elem())
	}
	return out
}

func (r *reader) list(path string, v any, t reflect.Type) any {
	in, ok := v.([]any)
	if !ok && t.Elem().Kind() == reflect.String {
		text := r.scalar(v)
		switch {
		case text != "" && strings.HasSuffix(path, ".forEach"): // perhaps a range of values
			r.refuse(path, "want a list, got %s: list the values, as in [\"0\", \"1\"]", kindOf(v))
			return []any{"0"}
		case text != "":
			r.refuse(path, "want a list, got %s: write [%s]", kindOf(v), text)
			return []any{text}
		}
	}
	if _, one := v.(map[string]any); !ok && one {
		r.refuse(path, "want a list, got %s: put a dash before it", kindOf(v))
		return []any{r.read(path+"[0]", v, t.Elem())}
	}
	if !ok {
		r.refuse(path, "want a list, got %s", kindOf(v))
		return nil
	}
	out := make([]any, 0, len(in))
	for i, e := range in {
		if got := r.read(path+"["+strconv.Itoa(i)+"]", e, t.Elem()); got != nil || e == nil {
			out = append(out, got)
		}
	}
	return out
}

// scalar returns a scalar as text, "" for anything else.
func (r *reader) scalar(v any) string {
	switch v.(type) {
	case string, bool, int, int64, uint64, float64, json.Number:
		return fmt.Sprint(v)
	}
	return ""
}

func (r *reader) text(path string, v any) any {
	if _, ok := v.(string); ok {
		return v
	}
	text := r.scalar(v)
	switch text {
	case "":
		r.refuse(path, "want a string, got %s", kindOf(v))
		return nil
	case "true", "false":
		r.refuse(path, "want a string, got %s: put it in quotes (YAML reads y, yes and on as true, n, no and off as false)", kindOf(v))
	default:
		r.refuse(path, "want a string, got %s: put it in quotes", kindOf(v))
	}
	return text
}

func (r *reader) integer(path string, v any, t reflect.Type) any {
	var text string
	switch n := v.(type) {
	case int, int64, uint64:
		text = fmt.Sprint(n)
	case json.Number:
		text = n.String()
	case float64:
		if n == float64(int64(n)) {
			text = strconv.FormatInt(int64(n), 10)
		}
	}
	n, err := strconv.ParseInt(text, 10, t.Bits())
	switch {
	case err == nil:
		return n
	case errors.Is(err, strconv.ErrRange):
		r.refuse(path, "%s is out of range", text)
		return nil
	}
	text, _ = v.(string)
	r.refuse(path, "want an integer, got %s%s", kindOf(v), contract.NumberHint(text))
	return nil
}

func (r *reader) boolean(path string, v any) any {
	if _, ok := v.(bool); ok {
		return v
	}
	r.refuse(path, "want a boolean, got %s: write true or false, without quotes", kindOf(v))
	return nil
}

func (r *reader) numberOrText(path string, v any) any {
	switch n := v.(type) {
	case string:
		return v
	case int, int64, uint64:
		if text := fmt.Sprint(n); len(text) <= 10 {
			return v
		}
	}
	r.refuse(path, "want a number of nodes, or a percentage as in \"25%%\", got %s", kindOf(v))
	return nil
}

func (r *reader) unknown(path, key, hint string) {
	step, path := r.place(path)
	at := ref.Join(path, excerpt.Of(key, maxKey))
	r.inv.Add(Problem{Step: step, Field: at, Message: fmt.Sprintf("unknown field %q%s", at, hint), Complete: true})
}

func (r *reader) refuse(path, format string, args ...any) {
	step, path := r.place(path)
	r.inv.Addf(step, path, format, args...)
}

var inStep = regexp.MustCompile(`^spec\.steps\[(\d+)\](?:\.|$)`)

// place splits a path into the name of the step it lies in and the rest. If the step has no
// name, the path is unchanged.
func (r *reader) place(path string) (step, rest string) {
	m := inStep.FindStringSubmatch(path)
	if m == nil {
		return "", path
	}
	i, err := strconv.Atoi(m[1])
	if err != nil || i >= len(r.steps) {
		return "", path
	}
	object, _ := r.steps[i].(map[string]any)
	name, _ := object["name"].(string)
	if name == "" {
		return "", path
	}
	return name, path[len(m[0]):]
}
