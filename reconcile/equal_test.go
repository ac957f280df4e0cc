package reconcile

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestEqual holds that two sandboxes are equal if and only if their records are, and so their rules: for each field of all that a sandbox is made of,
// set to something else, and set to nothing.
func TestEqual(t *testing.T) {
	example := func() Sandbox {
		sb := Sandbox{
			Topology: &topology.Topology{Steps: []topology.Step{{Config: map[string]any{
				"id": int64(7), "rate": 1.5, "on": true, "none": nil, "list": []any{int64(1), "a"}, "map": map[string]any{"a": "b"},
			}}}, Ignored: []string{"Pod"}, ClaimTemplate: &v1alpha1.ClaimTemplate{}},
			Given: ops.Givens{"a": {}},
			Rules: ops.Rules{Filters: []netstate.Filter{{}}, LogicalRules: []netstate.LogicalRule{{}}},
		}
		fill(reflect.ValueOf(&sb).Elem())
		return sb
	}
	record := func(sb Sandbox) string {
		b, err := json.Marshal(sb)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	compared, differ := 0, 0
	each(reflect.ValueOf(new(example())).Elem(), func(path []any) {
		for _, zero := range []bool{true, false} {
			a, b := example(), example()
			change(at(reflect.ValueOf(&b).Elem(), path), zero)
			compared++
			want := record(a) == record(b)
			if !want {
				differ++
			}
			if a.Equal(b) != want || b.Equal(a) != want {
				t.Errorf("%v, zero %t: equal %t, and the records are the same: %t", path, zero, a.Equal(b), want)
			}
			if slices.Contains(path, any("Rules")) && a.Rules.Equal(b.Rules) != want {
				t.Errorf("%v, zero %t: the rules are equal %t, and the records are the same: %t", path, zero, !want, want)
			}
		}
	})
	if compared < 150 || differ < 100 {
		t.Errorf("%d comparisons, in %d of which the records differ", compared, differ)
	}
	a, b := example(), example()
	b.AppliedBefore = !b.AppliedBefore
	a.Given, b.Given = nil, ops.Givens{}
	a.Topology.Steps[0].DependOn, b.Topology.Steps[0].DependOn = nil, []string{}
	a.Topology.Steps[0].Config["id"], b.Topology.Steps[0].Config["id"] = int64(7), 7.0
	if record(a) != record(b) || !a.Equal(b) {
		t.Errorf("what a record does not keep counts: %s, %s", record(a), record(b))
	}
}

// fill gives all fields a value.
func fill(v reflect.Value) {
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("192.0.2.1")))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.MustParsePrefix("192.0.2.0/24")))
		return
	case map[string]ops.Rules: // each of which has such a map
		step := ops.Rules{Filters: []netstate.Filter{{}}, LogicalRules: []netstate.LogicalRule{{}}}
		fill(reflect.ValueOf(step.Filters))
		fill(reflect.ValueOf(step.LogicalRules))
		v.Set(reflect.ValueOf(map[string]ops.Rules{"key": step}))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem())
	case reflect.Struct:
		for field := range v.Type().Fields() {
			if field.IsExported() {
				fill(v.FieldByIndex(field.Index))
			}
		}
	case reflect.Slice:
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Map:
		if v.Len() == 0 {
			v.Set(reflect.MakeMap(v.Type()))
			value := reflect.New(v.Type().Elem()).Elem()
			fill(value)
			v.SetMapIndex(reflect.ValueOf("key").Convert(v.Type().Key()), value)
		}
	case reflect.Interface:
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.Set(reflect.ValueOf(3).Convert(v.Type()))
	}
}

// each calls f with the way to each value within one. An address is one value.
func each(v reflect.Value, f func(path []any), path ...any) {
	f(path)
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			each(v.Elem(), f, append(slices.Clip(path), "*")...)
		}
	case reflect.Struct:
		for field := range v.Type().Fields() {
			if field.IsExported() {
				each(v.FieldByIndex(field.Index), f, append(slices.Clip(path), field.Name)...)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			each(v.Index(i), f, append(slices.Clip(path), i)...)
		}
	default:
	}
}

// at follows a way.
func at(v reflect.Value, path []any) reflect.Value {
	for _, p := range path {
		switch p := p.(type) {
		case int:
			v = v.Index(p)
		case string:
			if p == "*" {
				v = v.Elem()
			} else {
				v = v.FieldByName(p)
			}
		}
	}
	return v
}

// change sets a value to something else. What cannot be set, as it is within an interface, stays.
func change(v reflect.Value, zero bool) {
	if !v.CanSet() {
		return
	}
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("192.0.2.2")))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.MustParsePrefix("192.0.2.0/25")))
		return
	}
	switch {
	case zero:
		v.SetZero()
	case v.Kind() == reflect.String:
		v.SetString("other")
	case v.CanInt() || v.CanUint() || v.CanFloat():
		v.Set(reflect.ValueOf(5).Convert(v.Type()))
	case v.Kind() == reflect.Slice:
		v.Set(reflect.AppendSlice(v, v))
	case v.Kind() == reflect.Map:
		v.SetMapIndex(reflect.ValueOf("more").Convert(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	}
}
