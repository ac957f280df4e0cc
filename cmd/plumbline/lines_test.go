package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	yamlv3 "go.yaml.in/yaml/v3"
	"golang.org/x/tools/txtar"
)

// TestLinesOfUnknownKeys holds that an error about a key has the line of that key: into each mapping of each example a key is
// written that no field has, on a line of its own.
func TestLinesOfUnknownKeys(t *testing.T) {
	count := 0
	for _, file := range samples(t) {
		content := contentOf(t, file)
		for i := range documentsIn(t, content) {
			text, keys := withUnknownKeys(t, content, i)
			count += keys
			found := problemsOf(t, filepath.Base(file), text)
			for n := range keys {
				key := fmt.Sprintf("zzz%dz", n)
				line := 1 + strings.Count(text[:strings.Index(text, key)], "\n")
				of := slices.DeleteFunc(slices.Clone(found), func(p problem) bool { return !strings.Contains(p.Message, key) })
				if len(of) == 0 || slices.ContainsFunc(of, func(p problem) bool { return p.Line != line || p.File != filepath.Base(file) }) {
					t.Errorf("%s, document %d: %s is on line %d: %+v of %+v", file, i, key, line, of, found)
				}
			}
		}
	}
	if count < 300 {
		t.Errorf("only %d keys", count)
	}
}

// TestLinesOfWrongValues holds the same of each value of one file of each kind, replaced by one that no field has.
func TestLinesOfWrongValues(t *testing.T) {
	count := 0
	for _, file := range []string{
		"../../docs/flagship.yaml", examples + "/qos-paid-and-free/qos.yaml", examples + "/function-with-vlan/claim.yaml",
		examples + "/macvlan-on-the-office-network/cluster.yaml", examples + "/rdma-rails/cluster.yaml",
	} {
		content := contentOf(t, file)
		for _, v := range valuesIn(t, content) {
			if v.key == "kind" { // else it is a document of no kind beside others, which is a note
				continue
			}
			count++
			text := content[:v.start] + "[[zzz]]" + content[v.end:]
			found := problemsOf(t, filepath.Base(file), text)
			if !slices.ContainsFunc(found, func(p problem) bool { return p.Line == v.line }) {
				t.Errorf("%s: %s on line %d is wrong, and said is %+v", file, v.key, v.line, found)
			}
		}
	}
	if count < 80 {
		t.Errorf("only %d values", count)
	}
}

// TestLinesOfCases holds that each problem of an invalid topology has a line with the last key of its field, where every key has a
// line of its own.
func TestLinesOfCases(t *testing.T) {
	files, err := filepath.Glob("../../topology/validity/testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	field := regexp.MustCompile(`^NetworkTopology "[^"]*"(?:, step "[^"]*")?: (?:unknown field ")?([a-zA-Z](?:\["[^"]*"\]|[^ :"])*)[":]`)
	count := 0
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range archive.Files {
			data := string(f.Data)
			switch filepath.Ext(f.Name) {
			case ".steps":
				data = "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n" + data
			case ".txt":
				continue
			}
			text, ok := spread(data)
			if !ok {
				continue
			}
			lines := strings.Split(text, "\n")
			for _, p := range problemsOf(t, "t.yaml", text) {
				if p.File != "t.yaml" || p.Line < 1 || p.Line > len(lines) {
					t.Errorf("%s %s: no line: %+v", file, f.Name, p)
					continue
				}
				m := field.FindStringSubmatch(p.Message)
				if m == nil {
					continue
				}
				count++
				keys := strings.Split(m[1], ".")
				last, _, item := strings.Cut(keys[len(keys)-1], "[")
				if _, quoted, ok := strings.Cut(m[1], "[\""); ok {
					last, item = strings.TrimSuffix(quoted, "\"]"), false
				}
				have := strings.TrimLeft(lines[p.Line-1], " -")
				switch {
				case item && strings.HasPrefix(strings.TrimLeft(lines[p.Line-1], " "), "- "):
				case strings.HasPrefix(have, last+":"), !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(strings.TrimLeft(l, " -"), last+":") }):
				case strings.Contains(p.Message, "missing"), strings.Contains(p.Message, "requires"), strings.Contains(p.Message, "is empty"):
				default:
					t.Errorf("%s %s: %q has line %d, %q, of:\n%s", file, f.Name, p.Message, p.Line, have, text)
				}
			}
		}
	}
	if count < 100 {
		t.Errorf("only %d problems", count)
	}
}

// TestLinesOfForms holds the line in each form that a file may have.
func TestLinesOfForms(t *testing.T) {
	const head = "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\n" // 3 lines
	const pool = "apiVersion: networking.dra.io/v1alpha1\nkind: AddressPool\nmetadata: {name: p}\nspec: {subnets: [{prefix: 192.0.2.0/24}]}\n"
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"missing parameter", head + "spec:\n  steps:\n  - {name: a, type: sriov}\n  - name: v\n    type: vlan\n    dependOn: [a]\n    config:\n      mtu: 1400\n", []string{"10: step \"v\": CNIPluginSchema"}},
		{"missing config", head + "spec:\n  steps:\n  - {name: a, type: sriov}\n  - name: v\n    type: vlan\n    dependOn: [a]\n", []string{"7: step \"v\": CNIPluginSchema"}},
		{"of the object", head + "spec: {}\n", []string{"4: spec.steps"}},
		{"later document", pool + "---\n" + head + "spec:\n  steps:\n  - name: a\n    type: slov\n", []string{"12: step \"a\": type: unknown"}},
		{"list", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: networking.dra.io/v1alpha1\n  kind: NetworkTopology\n  metadata: {name: a}\n  spec:\n    steps:\n    - name: a\n      type: slov\n- apiVersion: networking.dra.io/v1alpha1\n  kind: NetworkTopology\n  metadata: {name: b}\n  spec:\n    steps:\n    - name: b\n      type: slov\n", []string{"10: step \"a\": type: unknown", "17: step \"b\": type: unknown"}},
		{"json", "{\n \"apiVersion\": \"networking.dra.io/v1alpha1\",\n \"kind\": \"NetworkTopology\",\n \"metadata\": {\"name\": \"t\"},\n \"spec\": {\"steps\": [{\n  \"name\": \"a\",\n  \"type\": \"slov\"\n }]}\n}\n", []string{"7: step \"a\": type: unknown"}},
		{"alias", head + "spec:\n  steps:\n  - name: a\n    type: dummy\n    config: &c\n      mtu: many\n  - {name: b, type: dummy, config: *c}\n", []string{"9: step \"a\": config.mtu", "9: step \"b\": config.mtu"}},
		{"merge", "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n  - &s\n    name: a\n    type: dummy\n    driftPolicy: x\n  - <<: *s\n    name: b\n", []string{"9: step \"a\": driftPolicy", "9: step \"b\": driftPolicy"}},
		{"for each", head + "spec:\n  steps:\n  - name: a\n    forEach: ['0', '1']\n    type: dummy\n    config:\n      mtu: many\n", []string{"10: step \"a\": config.mtu"}},
		{"one of for each", head + "spec:\n  steps:\n  - {name: b, type: dummy, config: {name: rail1}}\n  - name: a\n    forEach: ['0', '1']\n    type: dummy\n    config:\n      name: 'rail{{ each.value }}'\n", []string{"7: step \"a1\": makes"}},
		{"second of two names", head + "spec:\n  steps:\n  - name: a\n    type: sriov\n  - type: sriov\n    name: a\n", []string{"9: step \"a\": name"}},
		{"key with dots", "apiVersion: networking.dra.io/v1alpha1\nkind: DeviceExposurePolicy\nmetadata: {name: p}\nspec:\n  nodeSelector:\n    example: a\n    example.com/rail: 5\n", []string{"7: spec.nodeSelector.example.com/rail"}},
		{"quoted key", "apiVersion: networking.dra.io/v1alpha1\nkind: DeviceExposurePolicy\nmetadata: {name: p}\nspec:\n  exposure:\n    additionalAttributes:\n      a.b/c: x\n      vendor: x\n", []string{"8: spec.exposure.additionalAttributes[\"vendor\"]"}},
		{"kind", "apiVersion: networking.dra.io/v1alpha1\n# a comment\nkind: AdressPool\nmetadata: {name: p}\n", []string{"3: unknown kind"}},
		{"no kind", "# a comment\nmetadata: {name: p}\n", []string{"2: kind is missing"}},
		{"empty documents", "# a\n---\n---\n# b\n---\n" + pool + "...\n# c\n---\n---\nkind: NetworkTopology\napiVersion: v1\nmetadata: {name: b}\n", []string{"15: NetworkTopology \"b\" has apiVersion"}},
		{"in a list of a member", head + "spec:\n  steps:\n  - {name: d, type: dummy}\n  - name: v\n    type: vrf\n    dependOn: [d]\n    config:\n      vrfname: red\n      table: 100\n      interfaces: [eth0]\n", []string{"13: step \"v\": interfaces: \"eth0\""}},
		{"twice", pool + "---\n" + pool, []string{"6: AddressPool \"p\" is in the file twice"}},
		{"key twice", head + "spec:\n  steps: []\n  steps: []\n", []string{"6: key \"steps\" is given twice"}},
		{"syntax", head + "spec:\n  steps: [a\n  - b\n", []string{""}},
		{"deep", pool + "---\n" + head + "spec: {a: " + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "}\n", []string{"9: nested deeper"}},
		{"request", "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: c}\nspec:\n  spec:\n    devices:\n      requests:\n      - name: r\n        exactly:\n          deviceClassName: a\n          allocationMode: all\n", []string{"11: request \"r\": allocationMode"}},
	} {
		var got []string
		found := problemsOf(t, "f.yaml", tt.text)
		for i, p := range found {
			text := regexp.MustCompile(`^(NetworkTopology|DeviceExposurePolicy|ResourceClaimTemplate) "[a-z]+"[,:]\s+`).ReplaceAllString(p.Message, "")
			have := fmt.Sprintf("%d: %s", p.Line, text)
			if got = append(got, have); tt.want != nil && (i >= len(tt.want) || !strings.HasPrefix(have, tt.want[i])) || p.Line == 0 || p.File != "f.yaml" {
				t.Errorf("%s: have %s:%s, want %q", tt.name, p.File, have, tt.want)
			}
		}
		if len(found) == 0 || tt.want != nil && len(found) != len(tt.want) {
			t.Errorf("%s: have %q, want %q", tt.name, got, tt.want)
		}
	}
}

// problem is one of the output of validate.
type problem struct {
	File, Message string
	Line          int
}

func problemsOf(t *testing.T, name, text string) []problem {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, code := runs(t, "validate", "-f", path, "-o", "json")
	var d struct{ Errors []problem }
	if err := json.Unmarshal([]byte(out), &d); err != nil || code == 0 && len(d.Errors) > 0 {
		t.Fatalf("%v, %d: %s\n%s", err, code, out, text)
	}
	for i := range d.Errors {
		d.Errors[i].File = strings.TrimPrefix(d.Errors[i].File, filepath.Dir(path)+"/")
	}
	return d.Errors
}

// samples are the objects of the examples.
func samples(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(examples + "/*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no examples", err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return filepath.Base(f) == "pod.yaml" })
	return files
}

func documentsIn(t *testing.T, text string) (out []*yamlv3.Node) {
	t.Helper()
	dec := yamlv3.NewDecoder(strings.NewReader(text))
	for {
		n := &yamlv3.Node{}
		if dec.Decode(n) != nil {
			return out
		}
		out = append(out, n)
	}
}

// offset is where a node is in a text.
func offset(text string, n *yamlv3.Node) int {
	at := 0
	for range n.Line - 1 {
		at += strings.IndexByte(text[at:], '\n') + 1
	}
	for range n.Column - 1 { // characters
		_, size := utf8.DecodeRuneInString(text[at:])
		at += size
	}
	return at
}

// withUnknownKeys writes zzz0z, zzz1z … into the mappings of a document.
func withUnknownKeys(t *testing.T, text string, document int) (string, int) {
	t.Helper()
	type edit struct {
		at             int
		before, behind string
	}
	var edits []edit
	var walk func(n *yamlv3.Node)
	walk = func(n *yamlv3.Node) {
		if n.Kind == yamlv3.MappingNode && len(n.Content) > 0 {
			last := n.Content[len(n.Content)-2]
			at := offset(text, last)
			begin := strings.LastIndexByte(text[:at], '\n') + 1
			switch {
			case n.Style&yamlv3.FlowStyle != 0:
				indent := "\n" + strings.Repeat(" ", 40)
				edits = append(edits, edit{offset(text, n) + 1, indent, "," + indent})
			case strings.TrimSpace(text[begin:at]) == "":
				edits = append(edits, edit{begin, text[begin:at], "\n"})
			}
		}
		for i, c := range n.Content {
			if n.Kind == yamlv3.MappingNode && (i%2 == 0 || n.Content[i-1].Value == "parameters") { // the latter may be anything
				continue
			}
			walk(c)
		}
	}
	walk(documentsIn(t, text)[document])
	slices.SortFunc(edits, func(a, b edit) int { return b.at - a.at })
	for i, e := range edits {
		text = text[:e.at] + e.before + fmt.Sprintf("zzz%dz: {a: 1}", i) + e.behind + text[e.at:]
	}
	return text, len(edits)
}

// value is a value of a key on one line.
type value struct {
	key              string
	line, start, end int
}

func valuesIn(t *testing.T, text string) (out []value) {
	t.Helper()
	var walk func(n *yamlv3.Node)
	walk = func(n *yamlv3.Node) {
		for i, c := range n.Content {
			if n.Kind != yamlv3.MappingNode || i%2 == 0 || c.Kind != yamlv3.ScalarNode {
				walk(c)
				continue
			}
			k, start := n.Content[i-1], offset(text, c)
			quote := map[yamlv3.Style]string{yamlv3.DoubleQuotedStyle: `"`, yamlv3.SingleQuotedStyle: "'"}[c.Style]
			raw := quote + c.Value + quote
			if k.Line == c.Line && strings.HasPrefix(text[start:], raw) {
				out = append(out, value{k.Value, k.Line, start, start + len(raw)})
			}
		}
	}
	for _, d := range documentsIn(t, text) {
		walk(d)
	}
	return out
}

// spread writes each key of a text on a line of its own.
func spread(text string) (string, bool) {
	dec := yamlv3.NewDecoder(strings.NewReader(text))
	var out bytes.Buffer
	enc := yamlv3.NewEncoder(&out)
	for {
		n := &yamlv3.Node{}
		err := dec.Decode(n)
		if err != nil {
			return out.String(), err.Error() == "EOF" && enc.Close() == nil
		}
		var block func(n *yamlv3.Node)
		block = func(n *yamlv3.Node) {
			n.Style &^= yamlv3.FlowStyle
			for _, c := range n.Content {
				block(c)
			}
		}
		block(n)
		if enc.Encode(n) != nil {
			return "", false
		}
	}
}
