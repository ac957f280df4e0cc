package topology

import (
	"fmt"
	"strings"
	"testing"
	"time"

	yamlv3 "go.yaml.in/yaml/v3"
)

// TestPlace holds that the line of a path is found, or that of the closest field around it.
func TestPlace(t *testing.T) {
	f, err := Parse("f.yaml", []byte(`# the first line
spec:
  steps:
  - name: a
    config: &config
      mtu: 1
      "a.b/c": 2
      a: {b: 3}
  - &step
    name: b
    config: *config
  - <<: *step
    name: c
  - <<: [{type: x}, *step]
`))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"": 2, "spec": 2, "spec.steps": 3, "spec.steps[0]": 4, "spec.steps[0].name": 4, "spec.steps[0].config.mtu": 6,
		"spec.steps[0].config.a.b/c": 7, `spec.steps[0].config["a.b/c"]`: 7, "spec.steps[0].config[a.b/c]": 7, "spec.steps[0].config.a.b": 8,
		"spec.steps[0].config.a: b": 8, "spec.steps[0].conf": 4, "spec.steps[0].config.mtus": 5, "spec.steps[1].config": 11,
		"spec.steps[1].config.mtu": 6, "spec.steps[2].config.mtu": 6, "spec.steps[2].config": 11, "spec.steps[2].name": 13,
		"spec.steps[3].type": 14, "spec.steps[3].name": 10, "spec.steps[4].name": 3, "spec.steps[-1]": 3, "spec.steps[99999999999999999999]": 3,
		"spec.steps[": 3, "spec.steps[0": 4, "spec.steps.name": 3, "spec..steps": 2, "none": 2, ".": 2, "spec.steps[0].name.x[0]": 4,
		"spec.steps: spec.steps[0].config.mtu": 3,
	} {
		if have := f.Documents[0].Place(path); have.Line != want || have.File != "f.yaml" {
			t.Errorf("%q: %+v, want line %d", path, have, want)
		}
	}
	if have := (Document{}).Place("spec.steps[0]"); have.File != "" || have.Line != 0 {
		t.Errorf("of no file: %+v", have)
	}
}

// TestPlaceIsBounded holds that mappings which are merged again and again are looked at once. The test does not end otherwise.
func TestPlaceIsBounded(t *testing.T) {
	text := "a0: &a0 {k: 1}\n"
	for i := 1; i <= 60; i++ {
		text += fmt.Sprintf("a%d: &a%d {<<: [*a%d, *a%d]}\n", i, i, i-1, i-1)
	}
	var doc yamlv3.Node
	if err := yamlv3.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for _, path := range []string{"a60.k", "a60.none"} {
		if _, line, _ := field(doc.Content[0], 1, path); path == "a60.k" && line != 1 || path != "a60.k" && line != 61 {
			t.Errorf("%s: line %d", path, line)
		}
	}
	if _, err := Parse("f.yaml", []byte("kind: a\n"+strings.Replace(text, "a0: ", "apiVersion: b\na0: ", 1))); err == nil {
		t.Error("a file of 2^60 values is accepted")
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Error(took)
	}
}

// TestParseErrors holds that an error of a file has its name and the line, and that of a file without a name what it always had.
func TestParseErrors(t *testing.T) {
	for _, tt := range []struct{ text, named, bare string }{
		{"a: b\n---\n- c\n", "f:3: want an object with apiVersion and kind, got a list", "document 2: want an object with apiVersion and kind, got a list"},
		{"a: b\nc: 1\nc: 2\n", `f:3: key "c" is given twice`, `document 1: line 3: key "c" is given twice`},
		{"kind: List\nitems:\n- kind: a\n- b\n", `f:4: document 1: items[1]: want an object with apiVersion and kind, got the string "b"`, `document 1: items[1]: want an object with apiVersion and kind, got the string "b"`},
		{"a: b\nc: \x01\n", "f:2: the control character U+0001 cannot be part of YAML: remove it", "line 2: the control character U+0001 cannot be part of YAML: remove it"},
		{"a:\n\tb: c\n", "f:2: is indented with a tab: YAML takes spaces only", "line 2 is indented with a tab: YAML takes spaces only"},
		{"a: b\nc: {{ d.e }}: f\n", "f:2: " + unquoted, "document 1: yaml: line 2: mapping values are not allowed in this context; line 2: " + unquoted},
		{"a: [b\nc: d\n", "f:2: yaml: did not find expected ',' or ']'", "document 1: yaml: line 1: did not find expected ',' or ']'"},
		{"{a: 1", "f:1: yaml: did not find expected ',' or '}'", "document 1: yaml: line 1: did not find expected ',' or '}'"},
		{strings.Repeat("---\na: b\n", 300), "f: more than 256 documents", "more than 256 documents"},
		{strings.Repeat("#", MaxBytes+1), "f: the input has more than 1048576 bytes", "the input has more than 1048576 bytes"},
	} {
		for name, want := range map[string]string{"f": tt.named, "": tt.bare} {
			if _, err := Parse(name, []byte(tt.text)); err == nil || err.Error() != want {
				t.Errorf("%.30q, name %q: %v, want %s", tt.text, name, err, want)
			}
		}
	}
}
