package exposure

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/suggest"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Decode reads the policies of a YAML or JSON file, and counts the documents of other
// kinds. Unknown fields are refused.
func Decode(data []byte) (policies []*v1alpha1.DeviceExposurePolicy, others int, err error) {
	found, others, err := topology.Objects(data, v1alpha1.PolicyKind)
	if err != nil {
		return nil, others, err
	}
	seen := map[string]bool{}
	for _, raw := range found {
		o := &v1alpha1.DeviceExposurePolicy{}
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		if err := dec.Decode(o); err != nil {
			return nil, others, fmt.Errorf("%s %q: %w", v1alpha1.PolicyKind, nameOf(raw), plainError(err))
		}
		if seen[o.Name] { // kubectl would apply only the last one
			return nil, others, fmt.Errorf("%s %q is in the file twice: give each a name of its own", v1alpha1.PolicyKind, o.Name)
		}
		if want := v1alpha1.GroupVersion.String(); o.APIVersion != want {
			return nil, others, fmt.Errorf("%s %q has apiVersion %q, want %q", v1alpha1.PolicyKind, o.Name, o.APIVersion, want)
		}
		seen[o.Name] = true
		policies = append(policies, o)
	}
	return policies, others, nil
}

func nameOf(raw []byte) string {
	var o struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	_ = json.Unmarshal(raw, &o) // the caller has a better error already
	return o.Metadata.Name
}

// plainError is the error of the JSON decoder without Go's terms.
func plainError(err error) error {
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
		text += suggest.Hint(strings.Trim(name, `"`), fields(reflect.TypeFor[v1alpha1.DeviceExposurePolicy](), nil))
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

// fields adds the names of all fields of ours that a policy can have: the decoder does not
// report where an unknown one is.
func fields(t reflect.Type, names []string) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[v1alpha1.DeviceExposurePolicy]().PkgPath() {
		return names
	}
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
		names = fields(f.Type, names)
	}
	return names
}
