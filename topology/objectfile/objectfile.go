// Package objectfile reads Kubernetes objects of one kind from files, strictly: an unknown
// field is an error, as it is for the API server only if the client asks for it.
package objectfile

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/suggest"
)

// Decode reads the objects of a kind of a YAML or JSON file, and counts the documents of
// other kinds. T is the API type, a pointer of which is a metav1.Object.
func Decode[T any, P interface {
	*T
	metav1.Object
}](data []byte, kind schema.GroupVersionKind) (objects []*T, others int, err error) {
	found, others, err := topology.Objects(data, kind.Kind)
	if err != nil {
		return nil, others, err
	}
	seen := map[string]bool{}
	for _, raw := range found {
		var meta metav1.PartialObjectMetadata
		_ = json.Unmarshal(raw, &meta) // what is wrong is found below
		name := meta.Name
		if meta.Namespace != "" {
			name = meta.Namespace + "/" + name
		}
		o := new(T)
		if err := decode(raw, o); err != nil {
			return nil, others, fmt.Errorf("%s %q: %w", kind.Kind, name, err)
		}
		if seen[name] { // kubectl would apply only the last one
			return nil, others, fmt.Errorf("%s %q is in the file twice: give each a name of its own", kind.Kind, name)
		}
		if want := kind.GroupVersion().String(); meta.APIVersion != want {
			return nil, others, fmt.Errorf("%s %q has apiVersion %q, want %q", kind.Kind, name, meta.APIVersion, want)
		}
		seen[name] = true
		objects = append(objects, o)
	}
	return objects, others, nil
}

// decode reads one object. The decoders say neither where in a map a value is nor what an object may
// have, so what they refuse is searched for.
func decode(raw []byte, into any) error {
	// encoding/json takes Egress for egress, which the API server drops.
	strict, fatal := kjson.UnmarshalStrict(raw, into, kjson.DisallowUnknownFields)
	err := errors.Join(fatal, errors.Join(strict[:min(1, len(strict))]...))
	if err == nil {
		return nil
	}
	var written any
	if json.Unmarshal(raw, &written) == nil {
		if found := misfit("", written, reflect.TypeOf(into)); found != nil {
			return found
		}
	}
	return plainError(err)
}

// misfit returns an error for the first field, in alphabetical order, that a type lacks or whose value
// is of another kind.
func misfit(path string, v any, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if v == nil || t.Kind() == reflect.Interface || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	switch in := v.(type) {
	case map[string]any:
		return misfitObject(path, in, t)
	case []any:
		if t.Kind() != reflect.Slice {
			return unexpected(path, v, t)
		}
		for i, e := range in {
			if err := misfit(fmt.Sprintf("%s[%d]", path, i), e, t.Elem()); err != nil {
				return err
			}
		}
	default:
		if !accepts(t, v) {
			return unexpected(path, v, t)
		}
	}
	return nil
}

func misfitObject(path string, in map[string]any, t reflect.Type) error {
	known := map[string]reflect.Type{}
	switch t.Kind() {
	case reflect.Map:
		for key := range in {
			known[key] = t.Elem()
		}
	case reflect.Struct:
		fields(t, known)
	default:
		return unexpected(path, in, t)
	}
	for _, key := range slices.Sorted(maps.Keys(in)) {
		at, of := child(path, excerpt.Of(key, maxKey)), known[key]
		if of == nil {
			return unknown(at, key, slices.Sorted(maps.Keys(known)))
		}
		err := misfit(at, in[key], of)
		if _, scalar := kindOf(in[key]); err != nil && !scalar && t.Kind() == reflect.Map && of.Kind() == reflect.String {
			return fmt.Errorf("%w: write %s: {NAME: TEXT}", err, path) // matchLabels, where labels are expected
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// accepts reports whether a type may have a scalar. Whether an integer is one, and small enough, says the
// decoder.
func accepts(t reflect.Type, v any) bool {
	switch t.Kind() {
	case reflect.String:
		_, ok := v.(string)
		return ok
	case reflect.Bool:
		_, ok := v.(bool)
		return ok
	case reflect.Slice: // bytes are written as a string
		_, ok := v.(string)
		return ok && t.Elem().Kind() == reflect.Uint8
	case reflect.Struct, reflect.Map:
		return false
	default:
		_, ok := v.(float64)
		return ok
	}
}

// maxKey is more than the longest key of a label.
const maxKey = 320

func child(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// unknown is the error about a field that an object does not have.
func unknown(at, key string, known []string) error {
	return fmt.Errorf("unknown field %q%s", at, cmp.Or(suggest.Hint(key, known), ": known here are "+strings.Join(known, ", ")))
}

// unexpected is the error about a value of another kind.
func unexpected(path string, v any, t reflect.Type) error {
	kind, scalar := kindOf(v)
	fix := ""
	switch {
	case scalar && t.Kind() == reflect.String: // a number, or what YAML reads as a boolean
		fix = ": put it in quotes"
	case scalar && t.Kind() == reflect.Struct:
		known := map[string]reflect.Type{}
		fields(t, known)
		for only := range known {
			if len(known) == 1 { // a selector written as its expression
				fix = fmt.Sprintf(": write {%s: …}", only)
			}
		}
	}
	return fmt.Errorf("%s: %s, where %s is expected%s", path, kind, expected(t), fix)
}

// kindOf names the kind of a value as encoding/json does.
func kindOf(v any) (kind string, scalar bool) {
	switch v.(type) {
	case map[string]any:
		return "an object", false
	case []any:
		return "a list", false
	case string:
		return "a string", true
	case bool:
		return "a bool", true
	default:
		return "a number", true
	}
}

// plainError is the error of the JSON decoder without Go's terms.
func plainError(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s: %s, where %s is expected", wrong.Field, wrong.Value, expected(wrong.Type))
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// expected names what the decoder would have accepted.
func expected(t reflect.Type) string {
	words := map[reflect.Kind]string{
		reflect.Struct: "an object", reflect.Map: "an object", reflect.Slice: "a list", reflect.String: "a string",
		reflect.Bool: "true or false", reflect.Int32: "an integer of 32 bits", reflect.Int64: "an integer of 64 bits",
	}
	return cmp.Or(words[t.Kind()], "another type")
}

// fields adds the fields that an object of a type can have.
func fields(t reflect.Type, to map[string]reflect.Type) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" && f.Anonymous:
			fields(f.Type, to)
		case name != "" && name != "-":
			to[name] = f.Type
		}
	}
}
