package ref_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/topology/ref"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		in   string
		refs string // canonical, joined by a space
		want string // the template in canonical form; "" for in itself
	}{
		{"", "", ""},
		{"plain", "", ""},
		{"{ single } braces }} and {", "", ""},
		{"{{ vf0.interfaceName }}", "{{ vf0.interfaceName }}", ""},
		{"{{vf0.mac}}", "{{ vf0.mac }}", "{{ vf0.mac }}"},
		{"{{\t\n vf0.mac\r}}", "{{ vf0.mac }}", "{{ vf0.mac }}"},
		{"{{ data-vlan.interfaceName }}", "{{ data-vlan.interfaceName }}", ""},
		{"{{ 0vf.ips[0].address }}", "{{ 0vf.ips[0].address }}", ""},
		{"{{ a.ips[ 12 ].gateway }}", "{{ a.ips[12].gateway }}", "{{ a.ips[12].gateway }}"},
		{"{{ a.deviceNodes[3] }}", "{{ a.deviceNodes[3] }}", ""},
		{"x{{ a.mac }}y{{ b.mac }}z", "{{ a.mac }} {{ b.mac }}", ""},
		{"{{ a.mac }}}", "{{ a.mac }}", ""},
		{`{{ "{{" }}`, "", ""},
		{`{{"{{"}} a {{ "b" }}`, "", `{{ "{{" }} a b`},
		{`{{ "{" }}{{ a.mac }}`, "{{ a.mac }}", ""},
		{"{{ a.colour }}", "{{ a.colour }}", ""}, // the grammar does not know the fields
	} {
		got, err := ref.Parse(tt.in)
		if err != nil {
			t.Errorf("%q: %v", tt.in, err)
			continue
		}
		var refs []string
		for _, r := range got.Refs() {
			refs = append(refs, r.String())
		}
		if s := strings.Join(refs, " "); s != tt.refs {
			t.Errorf("%q: references %q, want %q", tt.in, s, tt.refs)
		}
		want := tt.want
		if want == "" {
			want = tt.in
		}
		if got.String() != want {
			t.Errorf("%q: prints as %q, want %q", tt.in, got, want)
		}
	}
}

// TestParseLists holds which steps a reference to several means, and that a config has none.
func TestParseLists(t *testing.T) {
	for in, want := range map[string]string{
		"{{ rail*.mac }}":           "rail0 rail10",
		"{{ rail1*.ips[0].mtu }}":   "rail10",
		"{{ *.mac }}":               "rail0 rail10 Rail a-b",
		"{{ rail0.mac }}":           "rail0",
		"{{ rail.mac }}":            "",
		"={{ a-*.deviceNodes[1] }}": "a-b",
	} {
		got, err := ref.ParseLists(in)
		if err != nil || len(got.Refs()) != 1 || got.String() != in {
			t.Errorf("%q: %q, %v", in, got, err)
			continue
		}
		var means []string
		for _, step := range []string{"rail0", "rail10", "Rail", "a-b"} {
			if got.Refs()[0].Means(step) {
				means = append(means, step)
			}
		}
		if s := strings.Join(means, " "); s != want {
			t.Errorf("%q means %q, want %q", in, s, want)
		}
		if _, err := ref.Parse(in); strings.Contains(in, "*") && err == nil {
			t.Errorf("%q: accepted in a config", in)
		}
	}
	for _, in := range []string{"{{ rail**.mac }}", "{{ rail*0.mac }}", "{{ rail0.ma* }}", "{{ * }}", "{{ rail[*].mac }}"} {
		if got, err := ref.ParseLists(in); err == nil {
			t.Errorf("%q: accepted as %q", in, got)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"{{", `column 1 of "{{": "{{" has no matching "}}"`},
		{"ab{{ x.y", `column 3 of "ab{{ x.y": "{{" has no matching "}}"`},
		{"é{{ x.y }", `column 2 of "é{{ x.y }": "{{" has no matching "}}"`},
		{"{{ }}", `column 1 of "{{ }}": "{{ }}" is empty: write {{ step.field }}`},
		{"{{ vf0 }}", `column 1 of "{{ vf0 }}": "vf0" names no field: write {{ vf0.field }}, for example {{ vf0.interfaceName }}`},
		{"{{ vf0. }}", `column 8 of "{{ vf0. }}": a field name cannot hold ' '`},
		{"{{ vf0.}}", `column 8 of "{{ vf0.}}": a field name is missing`},
		{"{{ .mac }}", `column 4 of "{{ .mac }}": a step name cannot hold '.'`},
		{"{{ vf0 .mac }}", `column 8 of "{{ vf0 .mac }}": unexpected '.': a reference is {{ step.field }}, and a literal "{{" is written {{ "{{" }}`},
		{"{{ vf0.mac | upper }}", `column 12 of "{{ vf0.mac | upper }}": unexpected '|': a reference is {{ step.field }}, and a literal "{{" is written {{ "{{" }}`},
		{"{{ vf0[0].mac }}", `column 7 of "{{ vf0[0].mac }}": a step has no index: write {{ vf0.field[N] }}`},
		{"{{ a.ips[].address }}", `column 10 of "{{ a.ips[].address }}": an index is a number in brackets, as in [0]`},
		{"{{ a.ips[-1].address }}", `column 10 of "{{ a.ips[-1].address }}": an index is a number in brackets, as in [0]`},
		{"{{ a.ips[N].address }}", `column 10 of "{{ a.ips[N].address }}": an index is a number in brackets, as in [0]`},
		{"{{ a.ips[99999999999999999999].address }}", `column 10 of "{{ a.ips[99999999999999999999].address }}": index 99999999999999999999 is too large`},
		{"{{ a.ips[0", `column 1 of "{{ a.ips[0": "{{" has no matching "}}"`},
		{"{{ a.b.c.d }}", `column 9 of "{{ a.b.c.d }}": a reference goes no deeper than {{ step.field[N].field }}`},
		{"{{{ a.b }}}", `column 3 of "{{{ a.b }}}": a step name cannot hold '{'`},
		{`{{ "{{ }}`, `column 4 of "{{ \"{{ }}": the quoted text has no end: a second " is missing`},
		{`{{ "a" b }}`, `column 8 of "{{ \"a\" b }}": unexpected 'b': a reference is {{ step.field }}, and a literal "{{" is written {{ "{{" }}`},
	} {
		_, err := ref.Parse(tt.in)
		var syntax *ref.SyntaxError
		if !errors.As(err, &syntax) || err.Error() != tt.want {
			t.Errorf("%q:\n got %v\nwant %s", tt.in, err, tt.want)
		}
	}
}

func TestLookup(t *testing.T) {
	for _, f := range ref.Fields() {
		got, err := f.Of("s").Lookup()
		if err != nil || got != f {
			t.Errorf("%s: looked up as %v (%v)", f.Path, got, err)
		}
		parsed, err := ref.Parse(f.Of("s").String())
		if whole, ok := parsed.Whole(); err != nil || !ok || whole.String() != f.Of("s").String() {
			t.Errorf("%s: parses as %v (%v)", f.Path, whole, err)
		}
	}
	_, err := ref.Ref{Step: "s", Field: "interfaces", Sub: "name"}.Lookup()
	want := `unknown field "interfaces.name" in {{ s.interfaces.name }}, did you mean "interfaces[N].name"?`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// results is a resolve function over fixed values.
func results(r ref.Ref) (any, error) {
	values := map[string]any{
		"vf0.interfaceName": "net1", "vf0.interfaces[0].mtu": int64(9000), "vf0.deviceNodes": []any{"/dev/vfio/42"},
		"vf0.interfaces": []any{ref.Object{"name": "net1"}},
	}
	v, ok := values[r.Step+"."+r.Path()]
	if !ok {
		return nil, errNone
	}
	return v, nil
}

var errNone = errors.New("there is none")

func TestExpand(t *testing.T) {
	in := map[string]any{
		"name":  "{{ vf0.interfaceName }}",
		"mtu":   "{{ vf0.interfaces[0].mtu }}",
		"text":  "{{ vf0.interfaceName }}.{{ vf0.interfaces[0].mtu }} {",
		"nodes": "{{ vf0.deviceNodes }}",
		"brace": `{{ "{{" }} x`,
		"list":  []any{object{"name": "{{vf0.interfaceName}}"}, 7, nil, true},
		"names": []any{"{{vf0.interfaceName}}"},
		"plain": []any{"a"},
		"empty": map[string]any(nil),
	}
	before := fmt.Sprintf("%#v", in)
	got, err := ref.Expand(in, results)
	if err != nil {
		t.Fatal(err)
	}
	want := object{
		"name":  "net1",
		"mtu":   int64(9000),
		"text":  "net1.9000 {",
		"nodes": []any{"/dev/vfio/42"},
		"brace": "{{ x",
		"list":  []any{object{"name": "net1"}, 7, nil, true},
		"names": []any{"net1"},
		"plain": []any{"a"},
		"empty": map[string]any(nil),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if after := fmt.Sprintf("%#v", in); after != before {
		t.Errorf("the input changed to %s", after)
	}
}

type object = map[string]any

func TestExpandRefuses(t *testing.T) {
	for _, tt := range []struct {
		in   any
		want string
		none bool // the cause is resolve's
	}{
		{object{"a": []any{"x", "{{ vf1.mac }}"}}, "a[1]: {{ vf1.mac }}: there is none", true},
		{"{{ vf1.mac }}", "{{ vf1.mac }}: there is none", true},
		{"x{{ vf1.mac }}", "{{ vf1.mac }}: there is none", true},
		{object{"b": "{{", "a": "{{ }}"}, `a: column 1 of "{{ }}": "{{ }}" is empty: write {{ step.field }}`, false},
		{"x{{ vf0.deviceNodes }}", "{{ vf0.deviceNodes }}: cannot stand inside a string: it is a list; write it as the whole value", false},
		{object{"{{ vf0.interfaceName }}": 1}, `key "{{ vf0.interfaceName }}" holds a reference: only values can`, false},
	} {
		got, err := ref.Expand(tt.in, results)
		var at *ref.Error
		if !errors.As(err, &at) || err.Error() != tt.want || errors.Is(err, errNone) != tt.none {
			t.Errorf("%v: got %v, %v, want %s", tt.in, got, err, tt.want)
		}
	}
}

func TestWalk(t *testing.T) {
	uses, err := ref.Walk(object{
		"links": []any{object{"name": "{{ vf1.interfaceName }}"}, "{{ vf0.mac }}-{{ vf1.mac }}"},
		"dev":   "{{ vf0.interfaceName }}",
		"bad":   "{{ vf0",
		"worse": []any{"{{}}"},
		"n":     5,
	})
	var got []string
	for _, u := range uses {
		got = append(got, fmt.Sprintf("%s %s", u.Path, u.Ref))
	}
	want := []string{
		"dev {{ vf0.interfaceName }}",
		"links[0].name {{ vf1.interfaceName }}",
		"links[1] {{ vf0.mac }}",
		"links[1] {{ vf1.mac }}",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	wantErr := "bad: column 1 of \"{{ vf0\": \"{{\" has no matching \"}}\"\nworse[0]: column 1 of \"{{}}\": \"{{ }}\" is empty: write {{ step.field }}"
	if err == nil || err.Error() != wantErr {
		t.Errorf("got %v, want %s", err, wantErr)
	}
}

func ExampleExpand() {
	config := map[string]any{"master": "{{ bond0.interfaceName }}", "id": 100}
	got, err := ref.Expand(config, func(r ref.Ref) (any, error) { return r.Step, nil })
	fmt.Println(got, err)
	// Output: map[id:100 master:bond0] <nil>
}

// FuzzParse holds that a parsed template prints as something that parses to
// the same, and that errors point into the text.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "a", "{", "{{", "}}", "{{ a.b }}", "{{ a.b[0].c }}x{{ d.e }}", `{{ "{{" }}`, `{{ "{" }}{{ a.b }}`, "{{ data-vlan.ips[0].address }}", "é{{ }}", "{{{ a.b }}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		tmpl, err := ref.Parse(s)
		if err != nil {
			var syntax *ref.SyntaxError
			if !errors.As(err, &syntax) || syntax.Column < 1 || syntax.Column > len([]rune(s))+1 {
				t.Errorf("%q: %#v", s, err)
			}
			return
		}
		again, err := ref.Parse(tmpl.String())
		if err != nil || !reflect.DeepEqual(tmpl, again) {
			t.Errorf("%q prints as %q, which parses as %#v (%v), not %#v", s, tmpl, again, err, tmpl)
		}
		if !ref.Has(s) && tmpl.String() != s {
			t.Errorf("%q without references prints as %q", s, tmpl)
		}
	})
}

// FuzzExpand holds that a value without references expands to itself, that the
// input is never changed, and that Walk and Expand agree on what is malformed.
func FuzzExpand(f *testing.F) {
	f.Add("a", "{{ a.b }}", "{")
	f.Add("{{ a.b }}{{", "x", `{{ "{{" }}`)
	f.Fuzz(func(t *testing.T, a, b, c string) {
		in := object{"a": a, "list": []any{b, object{c: 1, "c": c}}, "n": 1.5}
		before := fmt.Sprintf("%#v", in)
		_, walkErr := ref.Walk(in)
		got, err := ref.Expand(in, func(r ref.Ref) (any, error) { return r.Step, nil })
		if (walkErr == nil) != (err == nil) {
			t.Errorf("Walk says %v, Expand says %v", walkErr, err)
		}
		if !ref.Has(a) && !ref.Has(b) && !ref.Has(c) && !reflect.DeepEqual(any(in), got) {
			t.Errorf("%v without references expands to %v", in, got)
		}
		if after := fmt.Sprintf("%#v", in); after != before {
			t.Errorf("the input changed from %s to %s", before, after)
		}
	})
}
