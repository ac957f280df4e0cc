package imports

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/excerpt"
)

// Remark is a note or error about an object of the input.
type Remark struct {
	Object  string // such as NetworkAttachmentDefinition "shop/storage"
	Path    string // of the key, "" for the object as a whole
	Message string
	Index   int // of the object in the input
}

func (r Remark) String() string {
	if r.Path == "" {
		return r.Object + ": " + r.Message
	}
	return r.Object + ": " + r.Path + ": " + r.Message
}

// source is an object of the input.
type source struct {
	kind, namespace, name string
	group                 string
	object                map[string]any
	labels                map[string]string
	state                 map[string]any // its status
	record                *record
	notes, problems       []Remark
	index                 int // in the input
}

// maxName bounds what a message quotes.
const maxName = 253

func (s *source) id() string {
	if s.namespace == "" {
		return s.name
	}
	return s.namespace + "/" + s.name
}

func (s *source) title() string { return fmt.Sprintf("%s %q", s.kind, excerpt.Of(s.id(), 2*maxName)) }

func (s *source) note(path, format string, args ...any) {
	r := Remark{s.title(), path, fmt.Sprintf(format, args...), s.index}
	if !slices.Contains(s.notes, r) {
		s.notes = append(s.notes, r)
	}
}

func (s *source) problem(path, format string, args ...any) {
	r := Remark{s.title(), path, fmt.Sprintf(format, args...), s.index}
	if !slices.Contains(s.problems, r) {
		s.problems = append(s.problems, r)
	}
}

// record is a JSON object within a source. A key is taken once: what nobody takes has no counterpart.
type record struct {
	of   *source
	at   string // path of the object, "" for the source as a whole
	left map[string]any
	open []*record // objects below that were taken
}

func (r *record) path(key string) string {
	if r.at == "" || key == "" {
		return r.at + key
	}
	return r.at + "." + key
}

func (r *record) note(key, format string, args ...any) { r.of.note(r.path(key), format, args...) }

func (r *record) problem(key, format string, args ...any) { r.of.problem(r.path(key), format, args...) }

// misfit refuses a value that is not of a type, in the words for the fields of our own objects.
func misfit[T any](r *record, key string, v any) {
	for _, wrong := range topology.Misfits(v, reflect.TypeFor[T]()) {
		r.problem(key, "%s", wrong)
	}
}

// take returns the value of a key, if it is there and not null.
func (r *record) take(key string) (any, bool) {
	v, has := r.left[key]
	delete(r.left, key)
	return v, has && v != nil
}

// has reports whether a key is there that was not taken.
func (r *record) has(key string) bool { return r.left[key] != nil }

// taken takes a value of a type; the zero value if it is missing.
func taken[T any](r *record, key string) T {
	v, has := r.take(key)
	out, fits := v.(T)
	if has && !fits {
		misfit[T](r, key, v)
	}
	return out
}

// text takes a string; "" if it is missing.
func (r *record) text(key string) string { return taken[string](r, key) }

// flag takes a boolean.
func (r *record) flag(key string) bool { return taken[bool](r, key) }

// number takes an integer; not ok if it is missing.
func (r *record) number(key string) (n int64, ok bool) {
	v, has := r.take(key)
	switch v := v.(type) {
	case int64:
		return v, true
	case int:
		return int64(v), true
	case float64:
		if v == float64(int64(v)) {
			return int64(v), true
		}
	}
	if has {
		misfit[int64](r, key, v)
	}
	return 0, false
}

// list takes a list; an empty one if it is missing.
func (r *record) list(key string) []any {
	v, has := r.take(key)
	list, isList := v.([]any)
	if has && !isList {
		r.problem(key, "is not a list")
	}
	return list
}

// texts takes a list of strings.
func (r *record) texts(key string) (out []string) {
	for i, e := range r.list(key) {
		s, isText := e.(string)
		if !isText {
			misfit[string](r, fmt.Sprintf("%s[%d]", key, i), e)
			continue
		}
		out = append(out, s)
	}
	return out
}

// sub takes an object; an empty one if it is missing.
func (r *record) sub(key string) *record {
	return r.below(r.path(key), taken[map[string]any](r, key))
}

// subs takes a list of objects.
func (r *record) subs(key string) (out []*record) {
	for i, e := range r.list(key) {
		at := fmt.Sprintf("%s[%d]", key, i)
		object, isObject := e.(map[string]any)
		if !isObject {
			misfit[map[string]any](r, at, e)
			continue
		}
		out = append(out, r.below(r.path(at), object))
	}
	return out
}

// below is a record at a path for an object that was taken.
func (r *record) below(at string, object map[string]any) *record {
	sub := &record{of: r.of, at: at, left: map[string]any{}}
	maps.Copy(sub.left, object)
	r.open = append(r.open, sub)
	return sub
}

// pairs takes an object of strings.
func (r *record) pairs(key string) map[string]string {
	sub := r.sub(key)
	out := map[string]string{}
	for _, k := range sub.keys() {
		out[k] = sub.text(k)
	}
	return out
}

// keys are the keys that were not taken.
func (r *record) keys() []string { return slices.Sorted(maps.Keys(r.left)) }

// ignore takes keys that mean nothing to the networks of pods: what they are is said in docs/import.md.
func (r *record) ignore(keys ...string) {
	for _, k := range keys {
		delete(r.left, k)
	}
}

// none takes keys without a counterpart, and notes those that are there and not empty.
func (r *record) none(why string, keys ...string) {
	for _, k := range keys {
		if v, has := r.take(k); has && !empty(v) {
			r.note(k, "is left out: %s", why)
		}
	}
}

// empty reports whether a value is the one that stands for none.
func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return reflect.ValueOf(v).IsZero()
}

// report says of each key that nobody has taken that it has no counterpart.
func (r *record) report() {
	for _, k := range r.keys() {
		if r.left[k] == nil { // as if it were missing
			continue
		}
		r.problem(k, "has no counterpart here: remove it if the network works without it, or write the topology by hand")
	}
	for _, sub := range r.open {
		sub.report()
	}
}

// byID orders sources as messages name them.
func byID(a, b *source) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name), cmp.Compare(a.kind, b.kind))
}
