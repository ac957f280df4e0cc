package netstate

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Mode says what it takes to change a field of an object that exists.
type Mode string

// The modes, from cheap to dear. They are written in the plan tags of the
// object types.
const (
	Live      Mode = "live"    // in place, at any time
	Ports     Mode = "ports"   // in place, once the ports are in
	Down      Mode = "down"    // the link must be down
	NoPorts   Mode = "noports" // the link must be down and have no ports
	Immutable Mode = "replace" // not at all: the object is replaced
)

// Field is one managed field of an object.
type Field struct {
	Path string // e.g. "mtu", "bond.mode"
	Mode Mode
	// Value is the plain value; nil in a diff says absent or unknown.
	Value any
}

// FieldDiff is one field that differs.
type FieldDiff struct {
	Path   string `json:"field"`
	Mode   Mode   `json:"-"`
	Before any    `json:"before"`
	After  any    `json:"after"`
}

// fieldPlan is where one tagged field sits in its type.
type fieldPlan struct {
	path  string
	mode  Mode
	index []int // through nested pointers
	// identity fields tell a link from another of its name and kind.
	identity bool
}

var (
	plans  sync.Map // reflect.Type -> []fieldPlan
	nested sync.Map // reflect.Type -> []int, the fields tagged nested
)

func nestedOf(t reflect.Type) []int {
	if n, ok := nested.Load(t); ok {
		return n.([]int)
	}
	n := []int{}
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("plan") == "nested" {
			n = append(n, i)
		}
	}
	nested.Store(t, n)
	return n
}

func planOf(t reflect.Type) []fieldPlan {
	if p, ok := plans.Load(t); ok {
		return p.([]fieldPlan)
	}
	p := buildPlan(t, "", nil)
	plans.Store(t, p)
	return p
}

func buildPlan(t reflect.Type, prefix string, at []int) []fieldPlan {
	var out []fieldPlan
	for i := range t.NumField() {
		f := t.Field(i)
		tag, opts, _ := strings.Cut(f.Tag.Get("plan"), ",")
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		identity := false
		for opt := range strings.SplitSeq(opts, ",") {
			if n, ok := strings.CutPrefix(opt, "name="); ok {
				name = n
			}
			identity = identity || opt == "identity"
		}
		index := append(slices.Clone(at), i)
		switch tag {
		case "", "-", "key":
		case "nested":
			out = append(out, buildPlan(f.Type.Elem(), prefix+name+".", index)...)
		default:
			out = append(out, fieldPlan{prefix + name, Mode(tag), index, identity})
		}
	}
	return out
}

// at returns the field at the plan's place, not valid when what holds it is not
// there.
func (p fieldPlan) at(v reflect.Value) reflect.Value {
	for _, i := range p.index {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return reflect.Value{}
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v
}

// isSet reports whether a field says something.
func isSet(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Invalid:
		return false
	case reflect.Pointer, reflect.Slice:
		return !v.IsNil()
	default:
		return !v.IsZero()
	}
}

// valueOf takes the value out of a field, nil when it is not set.
func valueOf(v reflect.Value) any {
	switch {
	case !isSet(v):
		return nil
	case v.Kind() == reflect.Pointer:
		return v.Elem().Interface()
	default:
		return v.Interface()
	}
}

// read returns the plain value at the plan's place, nil when it is not set.
func (p fieldPlan) read(v reflect.Value) any { return valueOf(p.at(v)) }

// copyTo copies the field from src to dst (addressable), making nested structs
// as needed. src's nested pointers must lead to the field.
func (p fieldPlan) copyTo(dst, src reflect.Value) {
	for n, i := range p.index {
		if n > 0 {
			if dst.IsNil() {
				dst.Set(reflect.New(dst.Type().Elem()))
			}
			dst, src = dst.Elem(), src.Elem()
		}
		dst, src = dst.Field(i), src.Field(i)
	}
	dst.Set(src)
}

// clear unsets the field in dst (addressable).
func (p fieldPlan) clear(dst reflect.Value) {
	for n, i := range p.index {
		if n > 0 {
			if dst.IsNil() {
				return
			}
			dst = dst.Elem()
		}
		dst = dst.Field(i)
	}
	dst.SetZero()
}

// Fields returns the managed fields that are set, in declaration order.
func Fields(o Object) []Field {
	v := reflect.ValueOf(o)
	var out []Field
	for _, p := range planOf(v.Type()) {
		if val := p.read(v); val != nil {
			out = append(out, Field{p.path, p.mode, val})
		}
	}
	return out
}

// Diff returns the fields set in want that have does not hold, in declaration
// order. have may be nil: then all of want's fields differ.
func Diff(want, have Object) []FieldDiff {
	wv := reflect.ValueOf(want)
	var hv reflect.Value
	if have != nil {
		hv = reflect.ValueOf(have)
	}
	var out []FieldDiff
	for _, p := range planOf(wv.Type()) {
		at := p.at(wv)
		if !isSet(at) {
			continue
		}
		var h any
		if have != nil {
			there := p.at(hv)
			if sameField(at, there) {
				continue
			}
			h = valueOf(there)
		}
		if w := valueOf(at); !sameValue(w, h) {
			out = append(out, FieldDiff{p.path, p.mode, h, w})
		}
	}
	return out
}

// sameField reports whether two fields of one type surely hold the same. It does
// not take the values out of them, so that comparing is cheap.
func sameField(a, b reflect.Value) bool {
	if !b.IsValid() || a.Kind() != reflect.Pointer {
		return a.IsValid() && b.IsValid() && a.Kind() == reflect.String && a.String() == b.String()
	}
	if b.IsNil() {
		return false
	}
	return a.Pointer() == b.Pointer() || a.Elem().Comparable() && a.Elem().Equal(b.Elem())
}

func sameValue(a, b any) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	if want, ok := a.(Settings); ok {
		have, ok := b.(Settings)
		return ok && len(want.Differing(have)) == 0
	}
	if as, ok := a.([]string); ok {
		bs, ok := b.([]string)
		return ok && slices.Equal(slices.Sorted(slices.Values(as)), slices.Sorted(slices.Values(bs)))
	}
	return a == b
}

// clone returns an addressable copy of o that shares nothing a setter touches.
func clone(o Object) reflect.Value {
	src := reflect.ValueOf(o)
	dst := reflect.New(src.Type()).Elem()
	dst.Set(src)
	return unshare(dst)
}

// unshare makes v's nested structs copies of its own.
func unshare(v reflect.Value) reflect.Value {
	for _, i := range nestedOf(v.Type()) {
		if f := v.Field(i); !f.IsNil() {
			n := reflect.New(f.Type().Elem())
			n.Elem().Set(f.Elem())
			f.Set(n)
		}
	}
	return v
}

// edit returns what f makes of an addressable copy of o.
func edit[T Object](o T, f func(dst reflect.Value)) T {
	v := reflect.ValueOf(&o).Elem()
	if v.Kind() == reflect.Interface {
		dst := clone(o)
		f(dst)
		return dst.Interface().(T)
	}
	f(unshare(v))
	return o
}

// Merge returns base with every field that is set in over replaced by over's.
// Both must be of one type; the key and what is only observed stay base's.
func Merge[T Object](base, over T) T {
	src := reflect.ValueOf(over)
	return edit(base, func(dst reflect.Value) {
		for _, p := range planOf(src.Type()) {
			if isSet(p.at(src)) {
				p.copyTo(dst, src)
			}
		}
	})
}

// Restrict returns the key of o and those of its fields whose path keep
// accepts.
func Restrict[T Object](o T, keep func(path string) bool) T {
	return edit(o, func(dst reflect.Value) {
		for _, p := range planOf(dst.Type()) {
			if isSet(p.at(dst)) && !keep(p.path) {
				p.clear(dst)
			}
		}
		pruneNested(dst)
	})
}

// pruneNested drops nested structs without a managed field that is set, so that equal content
// prints and compares equal: what is used at creation only does not make a change of options.
func pruneNested(v reflect.Value) {
	for _, i := range nestedOf(v.Type()) {
		if !v.Field(i).IsNil() && !managesAny(v.Field(i).Elem()) {
			v.Field(i).SetZero()
		}
	}
}

func managesAny(v reflect.Value) bool {
	return slices.ContainsFunc(managedOf(v.Type()), func(i int) bool { return !v.Field(i).IsZero() })
}

// managed caches managedOf: to read a tag takes longer than to compare a field.
var managed sync.Map // reflect.Type -> []int

// managedOf are the fields of a nested struct that are managed.
func managedOf(t reflect.Type) []int {
	if m, ok := managed.Load(t); ok {
		return m.([]int)
	}
	m := []int{}
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("plan") != "-" {
			m = append(m, i)
		}
	}
	managed.Store(t, m)
	return m
}

// Value returns the value of one field, nil when it is not set.
func Value(o Object, path string) any {
	v := reflect.ValueOf(o)
	for _, p := range planOf(v.Type()) {
		if p.path == path {
			return p.read(v)
		}
	}
	return nil
}

// printable returns text as it is, or quoted when a terminal, a log or an event
// would act on a part of it: names are set by whoever owns the namespace.
func printable(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	return strconv.Quote(s)
}

// FormatValue writes a field value as plans and messages show it.
func FormatValue(v any) string {
	switch v := v.(type) {
	case nil:
		return "(unknown)"
	case bool:
		if v {
			return "on"
		}
		return "off"
	case string:
		if v == "" {
			return "(none)"
		}
		return printable(v)
	case []string:
		return printable(strings.Join(v, ","))
	case Settings:
		return "as recorded" // how many there are depends on the kernel and the driver
	default:
		return fmt.Sprint(v)
	}
}
