// Package objectfile reads Kubernetes objects of one kind from files, strictly: an unknown
// field is an error, as it is for the API server only if the client asks for it.
package objectfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"github.com/plumbline/plumbline/topology"
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
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		err := dec.Decode(o)
		// encoding/json takes Egress for egress, which the API server drops; of an unknown field it
		// does not say where it is.
		if err == nil || strings.HasPrefix(err.Error(), unknownField) {
			strict, fatal := kjson.UnmarshalStrict(raw, new(T), kjson.DisallowUnknownFields)
			if fatal != nil || len(strict) > 0 {
				err = errors.Join(fatal, errors.Join(strict[:min(1, len(strict))]...))
			}
		}
		if err != nil {
			return nil, others, fmt.Errorf("%s %q: %w", kind.Kind, name, plainError(err, reflect.TypeFor[T]()))
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

// unknownField begins the error of encoding/json about a field that a type does not have.
const unknownField = "json: unknown field "

// plainError is the error of the JSON decoder without Go's terms.
func plainError(err error, of reflect.Type) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		value := wrong.Value
		switch {
		case value == "array":
			value = "a list"
		case value == "object":
			value = "an object"
		case !strings.HasPrefix(value, "number "):
			value = "a " + value
		}
		return fmt.Errorf("%s: %s, where %s is expected", wrong.Field, value, expected(wrong.Type))
	}
	text := strings.TrimPrefix(err.Error(), "json: ")
	if name, ok := strings.CutPrefix(text, "unknown field "); ok {
		name = strings.Trim(name, `"`)
		text += suggest.Hint(name[strings.LastIndexByte(name, '.')+1:], fields(of, of.PkgPath(), nil))
	}
	return errors.New(text)
}

// expected names what the decoder would have accepted; the field may be a list or a map of it.
func expected(t reflect.Type) string {
	words := map[reflect.Kind]string{
		reflect.Struct: "an object", reflect.Map: "an object", reflect.Slice: "a list", reflect.String: "a string",
		reflect.Bool: "true or false", reflect.Int32: "an integer of 32 bits", reflect.Int64: "an integer of 64 bits",
	}
	return cmp.Or(words[t.Kind()], "another type")
}

// fields adds the names of all fields of a package's types that an object can have: the
// decoder does not report where an unknown one is.
func fields(t reflect.Type, pkg string, names []string) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != pkg {
		return names
	}
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
		names = fields(f.Type, pkg, names)
	}
	return names
}
