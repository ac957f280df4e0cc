package topology

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	yamlv2 "go.yaml.in/yaml/v2"
	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/ref"
	"github.com/plumbline/plumbline/topology/suggest"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Bounds of what is read. Files come from users and objects from the network.
const (
	MaxBytes     = 1 << 20
	maxDocuments = 256
	maxDepth     = 64
	maxNodes     = 100_000  // after YAML aliases are expanded
	maxText      = 4 << 20  // bytes, likewise
	maxSteps     = 256      // as in the CRD
	maxDependOn  = 256      // as in the CRD
	maxSelectors = 64 << 10 // bytes of all selectors: compiling 10 KiB takes up to half a second
	maxNested    = 16       // levels of a config
	// Of spec.claimTemplate: as in the CRD, and what a selector of labels may require.
	maxNamespaces   = 256
	maxConstraints  = 32
	maxRequirements = 64
	maxKey          = 253 // bytes of a key in a config, and of a name
	maxResource     = 308 // bytes of an extended resource name, as in the CRD
)

// Decode reads the one NetworkTopology of a YAML or JSON file, see Manifest.Topology.
func Decode(data []byte) (*Topology, error) {
	f, err := Parse("", data)
	if err != nil {
		return nil, err
	}
	return f.Topology()
}

// Topology reads the one NetworkTopology of a file. Documents of other kinds are listed in
// Ignored. Unknown and repeated fields are refused; Validate checks the meaning of the steps.
// With an *Invalid, the topology is returned as it was probably meant, if possible, so that
// its other errors can be reported, too.
func (f *Manifest) Topology() (*Topology, error) {
	var found []*Topology
	var ignored []string
	for _, d := range f.Documents {
		t, err := decodeDocument(d)
		inv, invalid := errors.AsType[*Invalid](err)
		switch {
		case invalid:
			d.Locate(inv, t)
			return t, err
		case err != nil && len(f.Documents) > 1 && f.Name == "":
			return nil, fmt.Errorf("document %d: %w", d.number, err)
		case err != nil:
			return t, err
		case t != nil:
			found = append(found, t)
		default:
			ignored = append(ignored, d.title())
		}
	}
	switch {
	case len(found) > 1:
		names := excerpt.Texts(found, func(t *Topology) string { return strconv.Quote(t.Name) })
		err := fmt.Errorf("%d NetworkTopologies (%s), exactly one is wanted", len(found), strings.Join(names, ", "))
		return nil, f.Objects(v1alpha1.Kind)[1].At("", err)
	case len(found) == 0 && len(ignored) > 0:
		return nil, f.wrong(&None{ignored})
	case len(found) == 0:
		return nil, f.wrong(errors.New("no NetworkTopology: the input is empty"))
	}
	found[0].Ignored = ignored
	return found[0], nil
}

// None is the error of a file that has objects, none of which is a NetworkTopology.
type None struct{ Others []string }

func (n *None) Error() string { return "no NetworkTopology, only " + strings.Join(n.Others, ", ") }

// FromObject converts an API object. It applies the limits of the CRD once more: an object
// may come from a file, which no API server has validated. The error is an *Invalid; the
// topology is returned with it unless it is too large to check.
func FromObject(o *v1alpha1.NetworkTopology) (*Topology, error) {
	inv := newInvalid(o.Name)
	t := &Topology{
		Name:         o.Name,
		Generation:   o.Generation,
		DriftPolicy:  o.Spec.DriftPolicy,
		UpdatePolicy: o.Spec.UpdatePolicy,

		AllowPodUplink: o.Spec.AllowPodUplink,
		ClaimTemplate:  o.Spec.ClaimTemplate,
		Export:         o.Spec.Export,
		Role:           o.Spec.Role,

		ClaimParameters: o.Spec.ClaimParameters,
	}
	t.DriftPolicy = cmp.Or(t.DriftPolicy, Repair)
	t.UpdatePolicy = cmp.Or(t.UpdatePolicy, Immutable)
	if n := len(o.Spec.Steps); n > maxSteps {
		inv.Addf("", "spec.steps", "has %d entries, at most %d are accepted", n, maxSteps)
		return nil, inv
	}
	checkRollout(inv, o.Spec.Rollout)
	checkOnFailure(inv, o.Spec.OnFailure)
	checkRole(inv, o)
	if !checkClaimTemplate(inv, o.Spec.ClaimTemplate) || !checkExport(inv, o.Spec.Export) ||
		!checkClaimParameters(inv, o.Spec.ClaimParameters) {
		return nil, inv
	}
	b := &budget{depth: maxNested, key: maxKey}
	selectors, large, roots := 0, false, 0
	several := map[string][]Step{} // what a step stands for
	for i, s := range o.Spec.Steps {
		before := len(inv.Problems)
		checkSizes(inv, i, &s)
		large = large || len(inv.Problems) > before
		step := stepOf(inv, i, &s, t.DriftPolicy, b)
		wrong := func(field, format string, args ...any) { addTo(inv, i, s.Name, field, format, args...) }
		foldMultiNIC(t.Name, &step, wrong)
		steps := []Step{step}
		switch {
		case s.ForEach == nil:
			steps = expand(step, roots, wrong)
		case checkForEach(&s, wrong):
			steps = repeat(o.Spec.Steps, step, s.ForEach, b, wrong)
		default:
			steps[0] = standIn(step, s.ForEach, wrong)
		}
		checkSelector(&steps[0], wrong)
		if step.Root() {
			roots += len(steps)
		}
		if len(steps) > 1 || steps[0].Name != step.Name {
			several[step.Name] = steps
			t.expanded(step.Name, steps, s.ForEach != nil)
		}
		for j := range steps {
			selectors += len(steps[j].Selector)
		}
		if t.Steps = append(t.Steps, steps...); len(t.Steps) > maxSteps {
			inv.Addf("", "spec.steps", "stand for more than %d steps, and at most %d are accepted", maxSteps, maxSteps)
			return nil, inv
		}
	}
	t.dependOnEach(several)
	if selectors > maxSelectors {
		large = true
		inv.Addf("", "spec.steps", "the selectors have %d bytes together, at most %d are accepted", selectors, maxSelectors)
	}
	switch {
	case large:
		return nil, inv
	case len(inv.Problems) > 0:
		return t, inv
	}
	return t, nil
}

// expanded notes which step was written of those that it stands for.
func (t *Topology) expanded(written string, steps []Step, forEach bool) {
	if t.Expanded == nil {
		t.Expanded = map[string]Expansion{}
	}
	for i := range steps {
		t.Expanded[steps[i].Name] = Expansion{written, i, forEach}
	}
}

// stepOf converts a step, whose config is decoded within a budget.
func stepOf(inv *Invalid, i int, s *v1alpha1.Step, policy v1alpha1.DriftPolicy, b *budget) Step {
	step := Step{
		Name: s.Name, Type: s.Type, DependOn: s.DependOn, ExtendedResourceName: s.ExtendedResourceName,
		AllowDuplicate: s.AllowDuplicate, DriftPolicy: s.DriftPolicy,
	}
	if s.Selector != nil {
		step.Selector = s.Selector.CEL
		if step.Selector == "" {
			addTo(inv, i, s.Name, "selector.cel", "is empty: write an expression, or remove the selector")
		}
	}
	step.DriftPolicy = cmp.Or(step.DriftPolicy, policy)
	if s.Config != nil && len(s.Config.Raw) > 0 {
		config, err := decodeConfig(s.Config.Raw, b)
		if err != nil {
			addTo(inv, i, s.Name, "config", "%v", err)
		}
		step.Config = config
	}
	return step
}

// addTo adds a problem of a step; a step without a name is named by its position.
func addTo(inv *Invalid, i int, name, field, format string, args ...any) {
	if name == "" {
		field = ref.Join(fmt.Sprintf("spec.steps[%d]", i), field)
	}
	inv.Addf(name, field, format, args...)
}

var percentage = regexp.MustCompile(`^([1-9][0-9]?|100)%$`)

// checkRollout is the CRD's rule for maxUnavailable.
func checkRollout(inv *Invalid, r *v1alpha1.Rollout) {
	if r == nil || r.MaxUnavailable == nil {
		return
	}
	text := r.MaxUnavailable.StrVal
	if text == "" && r.MaxUnavailable.IntVal > 0 || percentage.MatchString(text) {
		return
	}
	inv.Addf("", "spec.rollout.maxUnavailable",
		"%s is neither a number of nodes above 0 nor a percentage from 1%% to 100%%", excerpt.Of(r.MaxUnavailable.String(), maxKey))
}

// checkOnFailure is the CRD's rule for onFailure.
func checkOnFailure(inv *Invalid, p *v1alpha1.FailurePolicy) {
	if p == nil {
		return
	}
	if p.Degraded == v1alpha1.Evict {
		inv.Addf("", "spec.onFailure.degraded", "a pod that is degraded works and is not evicted: only lost may be Evict")
	} else {
		inv.oneOf("", "spec.onFailure.degraded", string(p.Degraded), string(v1alpha1.Report))
	}
	inv.oneOf("", "spec.onFailure.lost", string(p.Lost), string(v1alpha1.Report), string(v1alpha1.Evict))
	if p.After != "" && v1alpha1.Seconds(p.After) == 0 {
		inv.Addf("", "spec.onFailure.after", "%q is not a time such as 60s, 5m or 1h", excerpt.Of(p.After, maxKey))
	}
}

// checkClaimTemplate checks the bounds of spec.claimTemplate, and reports whether they
// hold.
func checkClaimTemplate(inv *Invalid, c *v1alpha1.ClaimTemplate) bool {
	if c == nil {
		return true
	}
	before := len(inv.Problems)
	most := func(field string, have, most int) {
		if have > most {
			inv.Addf("", "spec.claimTemplate."+field, "has %d entries, at most %d are accepted", have, most)
		}
	}
	most("namespaces", len(c.Namespaces), maxNamespaces)
	most("constraints", len(c.Constraints), maxConstraints)
	for i := range c.Constraints[:min(len(c.Constraints), maxConstraints)] {
		most(fmt.Sprintf("constraints[%d].steps", i), len(c.Constraints[i].Steps), maxConstraints)
	}
	if s := c.NamespaceSelector; s != nil {
		most("namespaceSelector", len(s.MatchLabels)+len(s.MatchExpressions), maxRequirements)
	}
	return len(inv.Problems) == before
}

// checkSizes checks the bounds of a step's fields. A name that is only a little too long is
// left to Validate, whose message explains more.
func checkSizes(inv *Invalid, i int, s *v1alpha1.Step) {
	long := func(field, value string) {
		if len(value) > maxKey {
			addTo(inv, i, "", field, "has %d bytes, at most %d are accepted", len(value), maxKey)
		}
	}
	long("name", s.Name)
	long("type", s.Type)
	if n := len(s.ExtendedResourceName); n > maxResource {
		addTo(inv, i, "", "extendedResourceName", "has %d bytes, at most %d are accepted", n, maxResource)
	}
	if n := len(s.DependOn); n > maxDependOn {
		addTo(inv, i, "", "dependOn", "has %d entries, at most %d are accepted", n, maxDependOn)
		return
	}
	for j, d := range s.DependOn {
		long(fmt.Sprintf("dependOn[%d]", j), d)
	}
}

// decodeConfig reads a JSON object, whole numbers as int64.
func decodeConfig(raw []byte, b *budget) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if v == nil {
		return nil, nil
	}
	config, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("want an object, got %s", kindOf(v))
	}
	if _, err := b.jsonValue(config, 0); err != nil {
		return nil, err
	}
	return Exact(config).(map[string]any), nil
}

// Exact turns the json.Numbers within a value into int64, else float64. What fits
// neither stays as it was written, for the contract to refuse.
func Exact(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = Exact(v[k])
		}
	case []any:
		for i := range v {
			v[i] = Exact(v[i])
		}
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return n
		} else if errors.Is(err, strconv.ErrRange) {
			return v
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
	}
	return v
}

func (d Document) text(keys ...string) string {
	var v any = d.value
	for _, k := range keys {
		m, _ := v.(map[string]any)
		v = m[k]
	}
	s, _ := v.(string)
	return s
}

func (d Document) title() string {
	title := fmt.Sprintf("%s %q", excerpt.Of(d.text("kind"), maxKey), excerpt.Of(d.text("metadata", "name"), maxKey))
	if why, ok := unsupportedKinds[d.text("kind")]; ok {
		title += " (" + why + ")"
	}
	return title
}

// ourGroups are the API groups whose kinds are read here.
var ourGroups = []string{v1alpha1.GroupVersion.Group, "cni.networking.k8s.io", "k8s.ovn.org"}

// unsupportedKinds are kinds that users of other drivers may expect here.
var unsupportedKinds = map[string]string{
	"CNIPlugin":                   "not supported: step types are built in",
	"NetworkAttachmentDefinition": "plumbline import converts it",
	"NetworkQoS":                  "its apiVersion is k8s.ovn.org/v1alpha1, and its topology has to be given, too",
}

// items returns the documents of a List, as kubectl get -o yaml prints them; any
// other document is its only item.
func (d Document) items() ([]Document, error) {
	list, ok := d.value["items"].([]any)
	if !ok || !strings.HasSuffix(d.text("kind"), "List") {
		return []Document{d}, nil
	}
	var out []Document
	for i, item := range list {
		n, line, _ := field(d.node, d.line, fmt.Sprintf("items[%d]", i))
		m, ok := item.(map[string]any)
		if !ok {
			return nil,
				in(line, fmt.Errorf("document %d: items[%d]: want an object with apiVersion and kind, got %s", d.number, i, kindOf(item)))
		}
		out = append(out, Document{d.number, m, n, line, d.file})
	}
	return out, nil
}

// Values returns the documents as plain JSON values.
func (f *Manifest) Values() (out []map[string]any) {
	for _, d := range f.Documents {
		out = append(out, d.value)
	}
	return out
}

// DecodeFields reads the one document of a YAML or JSON file that is no Kubernetes object, into a
// pointer to a struct. It has the bounds of Decode. An error has a line for each field that is unknown,
// or of another kind.
func DecodeFields(data []byte, into any) error {
	docs, err := parse(data, "an object", func(*yamlv3.Node) bool { return true })
	switch {
	case err != nil:
		return err
	case len(docs) > 1:
		return fmt.Errorf("%d documents, exactly one is wanted: put each in a file of its own", len(docs))
	case len(docs) == 0:
		return errors.New("the file is empty")
	}
	var wrong []error
	for _, p := range Misfits(docs[0].value, reflect.TypeOf(into)) {
		wrong = append(wrong, errors.New(p.String()))
	}
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	raw, err := json.Marshal(docs[0].value)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// parse splits and parses the input, whose documents are of the wanted kind; empty ones are
// left out. ours selects those whose numbers are ours, see checkNode.
func parse(data []byte, wanted string, ours func(*yamlv3.Node) bool) ([]Document, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("the input has more than %d bytes", MaxBytes)
	}
	if err := checkText(data); err != nil {
		return nil, err
	}
	roots, err := precheck(data, ours)
	if err != nil {
		return nil, explainSyntax(data, err)
	}
	dec := yamlv2.NewDecoder(bytes.NewReader(data))
	b := &budget{}
	var out []Document
	for n := 1; ; n++ {
		var v any
		err := dec.Decode(&v)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, explainSyntax(data, fmt.Errorf("document %d: %w", n, syntaxError(err)))
		}
		if v == nil {
			continue
		}
		root := &yamlv3.Node{Line: 1}
		if n <= len(roots) {
			root = roots[n-1]
		}
		plain, err := b.jsonValue(v, 0)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, in(root.Line, err))
		}
		m, ok := plain.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("document %d: %w", n, in(root.Line, fmt.Errorf("want %s, got %s", wanted, kindOf(plain))))
		}
		out = append(out, Document{number: n, value: m, node: root, line: root.Line})
	}
}

// precheck checks the documents as written, before any alias is expanded, and refuses a key
// that is given twice in one mapping. Values are read by YAML 1.1 rules (package v2), as
// kubectl reads them, but its strict mode treats a key that overrides one merged in by "<<"
// as a duplicate. It returns the root of each document.
func precheck(data []byte, ours func(*yamlv3.Node) bool) (roots []*yamlv3.Node, err error) {
	dec := yamlv3.NewDecoder(bytes.NewReader(data))
	nodes := 0
	for n := 1; ; n++ {
		if n > maxDocuments {
			return nil, fmt.Errorf("more than %d documents", maxDocuments)
		}
		var doc yamlv3.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return roots, nil
		}
		if err != nil {
			err = syntaxError(err)
		} else {
			err = checkNode(&doc, 0, &nodes, ours(&doc))
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		root := &doc
		if len(doc.Content) > 0 {
			root = doc.Content[0]
		}
		roots = append(roots, root)
	}
}

// ofOurs reports whether a document is, or may hold, a topology or a policy. In others a
// number may mean anything, such as the mode of a file.
func ofOurs(doc *yamlv3.Node) bool {
	if len(doc.Content) != 1 || doc.Content[0].Kind != yamlv3.MappingNode {
		return false
	}
	root := doc.Content[0].Content
	for i := 0; i+1 < len(root); i += 2 {
		if root[i].Value == "kind" {
			kind := strings.TrimSuffix(root[i+1].Value, "List")
			return kind == "" || kind == v1alpha1.Kind || kind == v1alpha1.PolicyKind
		}
	}
	return false
}

var leadingZero = regexp.MustCompile(`^[-+]?0[0-9]+$`)

func checkNode(n *yamlv3.Node, depth int, nodes *int, ours bool) error {
	*nodes++
	switch {
	case depth > maxDepth:
		return in(n.Line, errTooDeep)
	case *nodes > 2*maxNodes: // keys count here, too
		return in(n.Line, errTooMany)
	}
	if ours && n.Kind == yamlv3.ScalarNode && n.Style == 0 && leadingZero.MatchString(n.Value) {
		return onLine(n.Line,
			"%s begins with 0, which YAML takes for an octal number: write it without the 0, or in quotes if it is text", n.Value)
	}
	seen := map[string]bool{}
	for i, c := range n.Content {
		key := n.Kind == yamlv3.MappingNode && i%2 == 0
		switch {
		case key && c.Kind == yamlv3.MappingNode && c.Style&yamlv3.FlowStyle != 0 && n.Style&yamlv3.FlowStyle != 0:
			return onLine(c.Line, "%s", unquoted)
		case key && (c.Kind == yamlv3.MappingNode || c.Kind == yamlv3.SequenceNode):
			return onLine(c.Line, "a key must be a string")
		case key && c.Kind == yamlv3.ScalarNode && seen[c.Value]:
			return onLine(c.Line, "key %q is given twice", c.Value)
		case key && c.Kind == yamlv3.ScalarNode:
			seen[c.Value] = true
		}
		if err := checkNode(c, depth+1, nodes, ours); err != nil { // aliases are not followed
			return err
		}
	}
	return nil
}

var (
	errTooDeep = fmt.Errorf("nested deeper than %d levels", maxDepth)
	errTooMany = fmt.Errorf("more than %d values", maxNodes)
	errTooLong = fmt.Errorf("more than %d bytes of text", maxText)
)

// budget bounds what a document may grow to once its aliases are expanded: a
// text of a few lines can stand for gigabytes.
type budget struct {
	nodes, text int // spent
	depth       int // levels; 0 is maxDepth
	key         int // bytes of a key; 0 is any number
}

// jsonValue converts the YAML parser's values to those of a JSON parser.
func (b *budget) jsonValue(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errTooDeep
	}
	if b.depth > 0 && depth > b.depth {
		return nil, fmt.Errorf("nested deeper than %d levels", b.depth)
	}
	if b.nodes++; b.nodes > maxNodes {
		return nil, errTooMany
	}
	switch v := v.(type) {
	case map[any]any:
		return b.object(v, depth)
	case map[string]any:
		for k, e := range v {
			if b.key > 0 && len(k) > b.key {
				return nil, fmt.Errorf("a key has %d bytes, at most %d are accepted", len(k), b.key)
			}
			if b.text += len(k); b.text > maxText {
				return nil, errTooLong
			}
			if _, err := b.jsonValue(e, depth+1); err != nil {
				return nil, err
			}
		}
		return v, nil
	case []any:
		out := make([]any, len(v))
		for i := range v {
			e, err := b.jsonValue(v[i], depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = e
		}
		return out, nil
	case string:
		if b.text += len(v); b.text > maxText {
			return nil, errTooLong
		}
		return v, nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%v is not a number JSON can hold", v)
		}
		return v, nil
	default:
		return v, nil
	}
}

func (b *budget) object(in map[any]any, depth int) (any, error) {
	out := make(map[string]any, len(in))
	for k, e := range in {
		var key string
		switch k := k.(type) {
		case string:
			key = k
		case int, int64, uint64, bool, float64:
			key = fmt.Sprint(k) // as kubectl writes them
		default:
			return nil, fmt.Errorf("a key must be a string, not %s", kindOf(k))
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("key %q is given twice", key)
		}
		if b.text += len(key); b.text > maxText {
			return nil, errTooLong
		}
		v, err := b.jsonValue(e, depth+1)
		if err != nil {
			return nil, err
		}
		out[key] = v
	}
	return out, nil
}

// decodeDocument decodes a NetworkTopology; a document of another kind is nil.
func decodeDocument(d Document) (*Topology, error) {
	version, kind := d.text("apiVersion"), d.text("kind")
	want := v1alpha1.GroupVersion.String()
	switch {
	case kind == "":
		return nil, d.At("kind", fmt.Errorf("kind is missing: want %q", v1alpha1.Kind))
	case version == "":
		return nil, d.At("apiVersion", fmt.Errorf("apiVersion of %s is missing: want %q", d.title(), want))
	case kind == v1alpha1.Kind && version != want:
		return nil, d.At("apiVersion", fmt.Errorf("%s has apiVersion %q, want %q", d.title(), version, want))
	case kind != v1alpha1.Kind && suggest.Name(kind, []string{v1alpha1.Kind}) != "":
		return nil, d.At("kind", fmt.Errorf("unknown kind %q, did you mean %q?", kind, v1alpha1.Kind))
	case kind != v1alpha1.Kind:
		return nil, nil
	}
	r := reader{inv: newInvalid(d.text("metadata", "name"))}
	meant := r.read("", d.value, reflect.TypeFor[v1alpha1.NetworkTopology]())
	raw, err := json.Marshal(meant)
	if err != nil {
		return nil, d.At("", fmt.Errorf("%s: %w", d.title(), err))
	}
	var o v1alpha1.NetworkTopology
	if err := json.Unmarshal(raw, &o); err != nil {
		if len(r.inv.Problems) > 0 {
			return nil, r.inv
		}
		return nil, d.At("", fmt.Errorf("%s: %w", d.title(), err))
	}
	t, err := FromObject(&o)
	if more, ok := errors.AsType[*Invalid](err); ok {
		r.inv.More = r.inv.More || more.More
		for _, p := range more.Problems {
			r.inv.Add(p)
		}
	}
	if len(r.inv.Problems) > 0 {
		return t, r.inv
	}
	return t, err
}

// jsonFields returns the fields of a struct by JSON name, inlined ones included.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" && f.Anonymous:
			maps.Copy(out, jsonFields(f.Type))
		case name != "" && name != "-":
			out[name] = f.Type
		}
	}
	return out
}

func kindOf(v any) string { return contract.Describe(v, maxKey) }
