// Package objectfile reads Kubernetes objects of one kind from files, strictly: an unknown
// field is an error, as it is for the API server only if the client asks for it.
package objectfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/plumbline/plumbline/topology"
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
		if err := misfits(raw, reflect.TypeFor[T]()); err != nil {
			return nil, others, fmt.Errorf("%s %q: %w", kind.Kind, name, err)
		}
		if meta.Name != "" && len(validation.IsDNS1123Subdomain(meta.Name)) > 0 { // as the API server says of custom resources
			return nil, others, fmt.Errorf("%s %q: metadata.name: has other characters than a-z, 0-9, '-' and '.', begins or ends with one of the last two, or is longer than %d", kind.Kind, name, validation.DNS1123SubdomainMaxLength)
		}
		o := new(T)
		if err := json.Unmarshal(raw, o); err != nil {
			return nil, others, fmt.Errorf("%s %q: %s", kind.Kind, name, strings.TrimPrefix(err.Error(), "json: "))
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

// misfits is the first of what does not fit the type.
func misfits(raw []byte, of reflect.Type) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return err
	}
	if wrong := topology.Misfits(v, of); len(wrong) > 0 {
		return errors.New(wrong[0])
	}
	return nil
}
