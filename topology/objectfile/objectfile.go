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
	"github.com/plumbline/plumbline/topology/excerpt"
)

// Decode reads the objects of a kind of a YAML or JSON file, and counts the documents of
// other kinds. T is the API type, a pointer of which is a metav1.Object. An error has a line for
// each problem, at most topology.MaxProblems, which names its object.
func Decode[T any, P interface {
	*T
	metav1.Object
}](data []byte, kind schema.GroupVersionKind) (objects []*T, others int, err error) {
	found, others, err := topology.Objects(data, kind.Kind)
	if err != nil {
		return nil, others, err
	}
	seen := map[string]bool{}
	var problems []error
	more := false
	for _, raw := range found {
		if more = len(problems) >= topology.MaxProblems; more {
			break
		}
		var meta metav1.PartialObjectMetadata
		_ = json.Unmarshal(raw, &meta) // what is wrong is found below
		name := meta.Name
		if meta.Namespace != "" {
			name = meta.Namespace + "/" + name
		}
		title := fmt.Sprintf("%s %q", kind.Kind, excerpt.Of(name, maxName))
		before := len(problems)
		for _, wrong := range misfits(raw, reflect.TypeFor[T]()) {
			problems = append(problems, fmt.Errorf("%s: %s", title, wrong))
		}
		if meta.Name != "" && len(validation.IsDNS1123Subdomain(meta.Name)) > 0 { // as the API server says of custom resources
			problems = append(problems, fmt.Errorf("%s: metadata.name: has other characters than a-z, 0-9, '-' and '.', begins or ends with one of the last two, or is longer than %d", title, validation.DNS1123SubdomainMaxLength))
		}
		if seen[name] { // kubectl would apply only the last one
			problems = append(problems, fmt.Errorf("%s is in the file twice: give each a name of its own", title))
		}
		if want := kind.GroupVersion().String(); meta.APIVersion != want {
			problems = append(problems, fmt.Errorf("%s has apiVersion %q, want %q", title, meta.APIVersion, want))
		}
		seen[name] = true
		o := new(T)
		if err := json.Unmarshal(raw, o); err != nil && len(problems) == before {
			problems = append(problems, fmt.Errorf("%s: %s", title, strings.TrimPrefix(err.Error(), "json: "))) // as text: unknown fields have no type
		}
		objects = append(objects, o)
	}
	if n := topology.MaxProblems; more || len(problems) > n {
		problems = append(problems[:n], fmt.Errorf("stopped after %d problems: there may be more", n))
	}
	if len(problems) > 0 {
		return nil, others, errors.Join(problems...)
	}
	return objects, others, nil
}

// maxName bounds what an error quotes of a name, in bytes.
const maxName = 2 * validation.DNS1123SubdomainMaxLength

// misfits are the fields that do not fit the type.
func misfits(raw []byte, of reflect.Type) []string {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return []string{err.Error()}
	}
	return topology.Misfits(v, of)
}
