package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/ref"
	"github.com/plumbline/plumbline/topology/suggest"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Manifest is a YAML or JSON file that was parsed. An error about it has its place, if the file has a name.
type Manifest struct {
	Name      string
	Documents []Document // without empty ones; the items of a List are documents
}

// Document is an object of a file, as plain JSON values. It knows the line of each of its fields.
type Document struct {
	number int // from 1
	value  map[string]any
	node   *yamlv3.Node
	line   int
	file   string
}

// Parse reads a YAML or JSON file within bounds: it comes from a user.
func Parse(name string, data []byte) (*Manifest, error) {
	docs, err := parse(data, "an object with apiVersion and kind", ofOurs)
	f := &Manifest{Name: name}
	for i := 0; err == nil && i < len(docs); i++ {
		var items []Document
		docs[i].file = name
		items, err = docs[i].items()
		f.Documents = append(f.Documents, items...)
	}
	if err == nil {
		return f, nil
	}
	at, ok := errors.AsType[*lineError](err)
	if ok && name != "" { // the place says line and document
		last := 1 + bytes.Count(bytes.TrimRight(data, "\r\n"), []byte("\n")) // the parser counts on at the end
		return nil, &fault.Placed{Place: fault.Place{File: name, Line: min(at.line, last)}, Err: errors.New(at.short)}
	}
	return nil, f.wrong(err)
}

// wrong is an error about the file as a whole.
func (f *Manifest) wrong(err error) error {
	return &fault.Placed{Place: fault.Place{File: f.Name}, Err: err}
}

// Only returns the file with one of its documents.
func (f *Manifest) Only(d Document) *Manifest { return &Manifest{f.Name, []Document{d}} }

// Objects returns the documents of a kind.
func (f *Manifest) Objects(kind string) []Document {
	return slices.DeleteFunc(slices.Clone(f.Documents), func(d Document) bool { return d.text("kind") != kind })
}

// Others describes the documents that are of none of these kinds. A kind that differs from
// one of them in case alone is an error, and one of our API groups that is like one of them.
func (f *Manifest) Others(kinds ...string) (out []string, err error) {
	for _, d := range f.Documents {
		kind := d.text("kind")
		unknown := func(meant string) error {
			return d.At("kind", fmt.Errorf("unknown kind %q, did you mean %q?", excerpt.Of(kind, maxKey), meant))
		}
		for _, k := range kinds {
			if kind != k && strings.EqualFold(kind, k) {
				return nil, unknown(k)
			}
		}
		_, answered := unsupportedKinds[kind]
		group, _, _ := strings.Cut(d.text("apiVersion"), "/")
		if !answered && slices.Contains(ourGroups, group) && !slices.Contains(kinds, kind) {
			if meant := suggest.Name(kind, kinds); meant != "" {
				return nil, unknown(meant)
			}
		}
		if !slices.Contains(kinds, kind) {
			out = append(out, d.title())
		}
	}
	return out, nil
}

// Name is that of the object.
func (d Document) Name() string { return d.text("metadata", "name") }

// Misfits returns what of the document does not fit a Go type.
func (d Document) Misfits(t reflect.Type) []Problem { return Misfits(d.value, t) }

// JSON is the document as JSON.
func (d Document) JSON() ([]byte, error) {
	raw, err := json.Marshal(d.value)
	if err != nil {
		return nil, d.At("", fmt.Errorf("document %d: %w", d.number, err))
	}
	return raw, nil
}

// Place is where a field is written, such as spec.steps[2].config.mtu, or the closest one around it if it is missing. What
// follows the path behind a colon is not looked at: a message may begin with the path.
func (d Document) Place(path string) fault.Place {
	_, line, _ := field(d.node, d.line, path)
	return fault.Place{File: d.file, Line: line}
}

// At is an error about a field.
func (d Document) At(path string, err error) error {
	return &fault.Placed{Place: d.Place(path), Err: err}
}

// Listed is everything that is wrong with an object.
type Listed struct {
	Title    string   // such as AddressPool "a"
	Problems []string // each with the path of its field
	Err      error    // the same without the object, if there is one
}

// Error prints one line per problem.
func (e *Listed) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = e.Title + ": " + p
	}
	return strings.Join(lines, "\n")
}

func (e *Listed) Unwrap() error { return e.Err }

// Add adds a problem, cut to a bounded length.
func (e *Listed) Add(format string, args ...any) {
	e.Problems = append(e.Problems, excerpt.Of(fmt.Sprintf(format, args...), maxMessage))
}

// Located returns an error about the document with the place of each of its problems.
func (d Document) Located(err error) error {
	list, ok := errors.AsType[*Listed](err)
	switch {
	case err == nil:
		return nil
	case !ok:
		return d.At("", err)
	}
	var all []error
	for _, p := range list.Problems {
		all = append(all, d.At(p, errors.New(list.Title+": "+p)))
	}
	return errors.Join(all...)
}

// Locate notes the places of the problems of a topology.
func (f *Manifest) Locate(inv *Invalid, t *Topology) {
	for _, d := range f.Objects(v1alpha1.Kind) {
		if excerpt.Of(d.Name(), maxKey) == inv.Topology {
			d.Locate(inv, t)
			return
		}
	}
}

// Locate notes the places of the problems of the topology, as far as it was read.
func (d Document) Locate(inv *Invalid, t *Topology) {
	spec, _ := d.value["spec"].(map[string]any)
	steps, _ := spec["steps"].([]any)
	named := map[string][]int{}
	for i := range steps {
		object, _ := steps[i].(map[string]any)
		name, _ := object["name"].(string)
		named[name] = append(named[name], i)
	}
	for i, p := range inv.Problems {
		step := p.Step
		if t != nil && named[step] == nil {
			step = t.Expanded[step].Step
		}
		of := named[step]
		switch {
		case p.Step == "":
			inv.Problems[i].Place = d.Place(p.Field)
			continue
		case len(of) == 0:
			inv.Problems[i].Place = d.Place("spec.steps")
			continue
		case p.Field == "name": // it is the last one's that is there already
			of = of[len(of)-1:]
		}
		at := fmt.Sprintf("spec.steps[%d]", of[0])
		path := ref.Join(at, p.Field)
		if said := at + ".config." + p.Message; p.Field == "" { // the planner's may begin with the key of the config
			if _, _, rest := field(d.node, d.line, said); strings.HasPrefix(rest, ":") {
				path = said
			}
		}
		inv.Problems[i].Place = d.Place(path)
	}
}

// field returns the node and line of a path, or of the longest beginning of it that is there, and what is left of it.
func field(n *yamlv3.Node, line int, path string) (*yamlv3.Node, int, string) {
	for n != nil && path != "" {
		value, at, rest := child(n, strings.TrimPrefix(path, "."), map[*yamlv3.Node]bool{})
		if value == nil {
			break
		}
		n, line, path = value, at, rest
	}
	return n, line, path
}

// child returns the value, and the line of its key, that a path begins with; of several keys, which may have dots, the longest.
// seen has the mappings that were merged: a few of them can stand for very many.
func child(n *yamlv3.Node, path string, seen map[*yamlv3.Node]bool) (value *yamlv3.Node, line int, rest string) {
	if n.Kind == yamlv3.AliasNode {
		n = n.Alias
	}
	if seen[n] {
		return nil, 0, ""
	}
	seen[n] = true
	if n.Kind == yamlv3.SequenceNode {
		index, rest, _ := strings.Cut(strings.TrimPrefix(path, "["), "]")
		if i, err := strconv.Atoi(index); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], n.Content[i].Line, rest
		}
		return nil, 0, ""
	}
	if n.Kind != yamlv3.MappingNode {
		return nil, 0, ""
	}
	longest := 0
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i].Value
		for _, form := range []string{key, "[" + strconv.Quote(key) + "]", "[" + key + "]"} {
			left, ok := strings.CutPrefix(path, form)
			if ok && len(form) > longest && (left == "" || strings.ContainsRune(".[:", rune(left[0]))) {
				longest, value, line, rest = len(form), n.Content[i+1], n.Content[i].Line, left
			}
		}
	}
	for i := 0; value == nil && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Tag != "!!merge" {
			continue
		}
		merged := []*yamlv3.Node{n.Content[i+1]}
		if merged[0].Kind == yamlv3.SequenceNode {
			merged = merged[0].Content
		}
		for j := 0; value == nil && j < len(merged); j++ {
			value, line, rest = child(merged[j], path, seen)
		}
	}
	return value, line, rest
}

// lineError is an error in the text of a file, which can be read without its line, too.
type lineError struct {
	line  int
	err   error
	short string
}

func (e *lineError) Error() string { return e.err.Error() }
func (e *lineError) Unwrap() error { return e.err }

// onLine is an error with its line in front.
func onLine(line int, format string, args ...any) error {
	short := fmt.Errorf(format, args...)
	return &lineError{line, fmt.Errorf("line %d: %w", line, short), short.Error()}
}

// in is an error about what begins on a line, which the text does not name.
func in(line int, err error) error { return &lineError{line, err, err.Error()} }
