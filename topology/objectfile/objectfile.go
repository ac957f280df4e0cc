// Package objectfile reads Kubernetes objects of one kind from files, strictly: an unknown
// field is an error, as it is for the API server only if the client asks for it.
package objectfile

import (
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

// Decode reads the objects of a kind of a file: as many, in the same order, as its documents of that kind. T is the API
// type, a pointer of which is a metav1.Object. An error has a line for each problem, at most topology.MaxProblems, which
// names its object and the place in the file.
func Decode[T any, P interface {
	*T
	metav1.Object
}](f *topology.Manifest, kind schema.GroupVersionKind) (objects []*T, err error) {
	seen := map[string]bool{}
	var problems []error
	more := false
	for _, d := range f.Objects(kind.Kind) {
		if more = len(problems) >= topology.MaxProblems; more {
			break
		}
		raw, err := d.JSON()
		if err != nil {
			return nil, err
		}
		wrong := func(field, format string, args ...any) {
			problems = append(problems, d.At(field, fmt.Errorf(format, args...)))
		}
		var meta metav1.PartialObjectMetadata
		_ = json.Unmarshal(raw, &meta) // what is wrong is found below
		name := meta.Name
		if meta.Namespace != "" {
			name = meta.Namespace + "/" + name
		}
		title := fmt.Sprintf("%s %q", kind.Kind, excerpt.Of(name, maxName))
		before := len(problems)
		for _, p := range d.Misfits(reflect.TypeFor[T]()) {
			wrong(p.Field, "%s: %s", title, p)
		}
		if meta.Name != "" && len(validation.IsDNS1123Subdomain(meta.Name)) > 0 { // as the API server says of custom resources
			wrong("metadata.name", "%s: metadata.name: has other characters than a-z, 0-9, '-' and '.', "+
				"begins or ends with one of the last two, or is longer than %d", title, validation.DNS1123SubdomainMaxLength)
		}
		if seen[name] { // kubectl would apply only the last one
			wrong("", "%s is in the file twice: give each a name of its own", title)
		}
		if want := kind.GroupVersion().String(); meta.APIVersion != want {
			wrong("apiVersion", "%s has apiVersion %q, want %q", title, meta.APIVersion, want)
		}
		seen[name] = true
		o := new(T)
		if err := json.Unmarshal(raw, o); err != nil && len(problems) == before {
			wrong("", "%s: %s", title, strings.TrimPrefix(err.Error(), "json: ")) // as text: unknown fields have no type
		}
		objects = append(objects, o)
	}
	if n := topology.MaxProblems; more || len(problems) > n {
		problems = append(problems[:n], fmt.Errorf("stopped after %d problems: there may be more", n))
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return objects, nil
}

// maxName bounds what an error quotes of a name, in bytes.
const maxName = 2 * validation.DNS1123SubdomainMaxLength
