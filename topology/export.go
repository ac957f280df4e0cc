package topology

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/ref"
	"github.com/plumbline/plumbline/topology/suggest"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Bounds of spec.export. The first four are as in the CRD. An environment counts against the memory that execve(2) copies, of
// which one string may have 128 KiB (MAX_ARG_STRLEN), and is part of a file that runtimes read for each container.
const (
	maxExports      = 64
	maxPresets      = 16
	maxExportValue  = 1024 // characters as written
	maxExportName   = 128  // bytes
	maxExported     = 4096 // bytes of one value
	MaxExportedSize = 32 << 10
)

// exportName is the form of names that POSIX lets utilities and applications use (XBD 8.1).
var exportName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// reservedExports are variables that a topology must not set: those by which gates know containers, and those that
// decide which code a program of the container runs (ld.so(8)).
var reservedExports = []struct{ prefix, why string }{
	{"PLUMBLINE_", "names with PLUMBLINE_ are those of plumbline"},
	{"LD_", "it decides which code the programs of a container run"},
	{"GLIBC_TUNABLES", "it decides which code the programs of a container run"},
	{"PATH", "it decides which code the programs of a container run"},
}

func reservedExport(name string) string {
	for _, r := range reservedExports {
		if name == r.prefix || strings.HasSuffix(r.prefix, "_") && strings.HasPrefix(name, r.prefix) {
			return r.why
		}
	}
	return ""
}

// checkExport checks the bounds of spec.export, and reports whether they hold.
func checkExport(inv *Invalid, e *v1alpha1.Export) bool {
	if e == nil {
		return true
	}
	before := len(inv.Problems)
	if n := len(e.Env); n > maxExports {
		inv.Addf("", "spec.export.env", "has %d variables, at most %d are accepted", n, maxExports)
	}
	if n := len(e.Files); n > maxFiles {
		inv.Addf("", "spec.export.files", "has %d files, at most %d are accepted", n, maxFiles)
	}
	if n := len(e.Presets); n > maxPresets {
		inv.Addf("", "spec.export.presets", "has %d entries, at most %d are accepted", n, maxPresets)
	}
	if len(inv.Problems) > before {
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(e.Env)) {
		at := exportField(name)
		if n := len(name); n > maxExportName {
			inv.Addf("", at, "the name has %d bytes, at most %d are accepted", n, maxExportName)
		}
		if n := len([]rune(e.Env[name])); n > maxExportValue {
			inv.Addf("", at, "has %d characters, at most %d are accepted", n, maxExportValue)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Files)) {
		if n := len([]rune(e.Files[name])); n > maxFileText {
			inv.Addf("", fileField(name), "has %d characters, at most %d are accepted", n, maxFileText)
		}
	}
	return len(inv.Problems) == before
}

func exportField(name string) string { return "spec.export.env." + excerpt.Of(name, maxExportName) }

// export checks what containers are told: each reference names a field that a step has.
func (v *validator) export() {
	e := v.t.Export
	if e == nil {
		return
	}
	add := func(field, format string, args ...any) { v.inv.Addf("", field, format, args...) }
	if len(e.Env) == 0 && len(e.Files) == 0 && len(e.Presets) == 0 {
		add("spec.export", "exports nothing: write env, files or presets, or remove it")
	}
	for _, name := range slices.Sorted(maps.Keys(e.Env)) {
		at := exportField(name)
		if !exportName.MatchString(name) {
			add(at, "%q is not a name of an environment variable: letters, digits and '_', no digit first", excerpt.Of(name, maxExportName))
		} else if why := reservedExport(name); why != "" {
			add(at, "%s cannot be exported: %s", name, why)
		}
		text := string(e.Env[name])
		if strings.ContainsFunc(text, unicode.IsControl) {
			add(at, "has a control character, such as the end of a line: remove it, or write a file")
			continue
		}
		for _, problem := range v.exportProblems(text) {
			add(at, "%s", problem)
		}
	}
	v.exportFiles(e.Files)
	seen := map[v1alpha1.ExportPreset]bool{}
	for i, name := range e.Presets {
		at := fmt.Sprintf("spec.export.presets[%d]", i)
		p, known := presetNamed(name)
		switch {
		case !known:
			add(at, "%q is not one of %s%s", excerpt.Of(string(name), maxKey), strings.Join(presetNames(), ", "),
				suggest.Hint(string(name), presetNames()))
		case seen[name]:
			add(at, "%q is given twice: remove one", name)
		default:
			if why := p.lacks(v.t, v.set); why != "" {
				add(at, "%q exports nothing: %s", name, why)
			}
		}
		seen[name] = true
	}
}

// exportProblems returns what is wrong with a value.
func (v *validator) exportProblems(text string) (out []string) {
	t, err := ref.ParseLists(text)
	if err != nil {
		return []string{err.Error()}
	}
	for _, r := range t.Refs() {
		if msg := v.exportProblem(r); msg != "" {
			out = append(out, msg)
		}
	}
	return out
}

func (v *validator) exportProblem(r ref.Ref) string {
	f, err := r.Lookup()
	switch {
	case err != nil:
		return err.Error()
	case f.Type == ref.Objects:
		return fmt.Sprintf("%s is a list of objects, and a variable is text: name a field, such as interfaceName", r)
	}
	meant, first := false, ""
	for i := range v.t.Steps {
		if !r.Means(v.t.Steps[i].Name) {
			continue
		}
		of := r
		of.Step = v.t.Steps[i].Name
		msg := v.fieldProblem(i, of, f)
		if msg == "" {
			return "" // others have no such field, and are left out
		}
		meant, first = true, cmp.Or(first, msg)
	}
	switch {
	case !meant && r.Each():
		return fmt.Sprintf("%s: no step has a name that begins with %q", r, strings.TrimSuffix(r.Step, "*"))
	case !meant && len(v.t.madeOf(r.Step)) > 0:
		return fmt.Sprintf("%s: step %q stands for %s: name one of them, or write %s* for all", r, r.Step,
			few(v.t.madeOf(r.Step)), r.Step)
	case !meant:
		return fmt.Sprintf("%s: unknown step %q%s", r, excerpt.Of(r.Step, maxKey), suggest.Hint(r.Step, v.t.Names()))
	case r.Each():
		return fmt.Sprintf("%s: none of these steps has it: %s", r, first)
	}
	return first
}

// ExportProblems returns what spec.export refers to and the steps never have, by the results of steps that were all applied: an RDMA
// device, a GID or an address that their configs leave out. Other fields depend on the node.
func (t *Topology) ExportProblems(set contract.Set, results []StepResult) (out []Problem) {
	if t.Export == nil {
		return nil
	}
	of := resultsOf(t, results)
	check := func(field, text string) {
		parsed, err := ref.ParseLists(text)
		if err != nil {
			return
		}
		for _, r := range parsed.Refs() {
			known, err := r.Lookup()
			for i := range t.Steps {
				s := &t.Steps[i]
				if result, applied := of.of(s.Name); applied && err == nil && r.Means(s.Name) && t.listed(set, s, r, known) {
					if why := t.lacks(s, &result, r); why != "" {
						out = append(out, Problem{Field: field, Message: fmt.Sprintf("%s: step %q %s", r, s.Name, why)})
						break
					}
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.Export.Env)) {
		check(exportField(name), string(t.Export.Env[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Export.Files)) {
		check(fileField(name), string(t.Export.Files[name]))
	}
	return out
}

// lacks says why the result of a step will never have a field of an RDMA device, or an address; "" if it may, or the field is another.
func (t *Topology) lacks(s *Step, result *Result, r ref.Ref) string {
	has := result.Devices != nil && result.Devices.RDMADevice != ""
	switch {
	case (r.Field == "rdmaDevice" || r.Field == "gidIndex") && !has:
		return "gives no RDMA device: set rdma: true in it, or remove the reference"
	case r.Field == "gidIndex" && result.Devices.GIDIndex == nil:
		return "requires no GID: add require.gid to it, or remove the reference"
	case r.Field != "ips" || r.Index == nil || result.Learns || t.allocates(s):
		return ""
	case len(result.IPs) == 0:
		return "has no addresses: add addresses or ipam to it, or remove the reference"
	case *r.Index >= len(result.IPs):
		return fmt.Sprintf("has only %s, counted from 0", excerpt.Count(len(result.IPs), "address"))
	case r.Sub == "gateway" && result.IPs[*r.Index].Gateway == "":
		return fmt.Sprintf("gives address %s no gateway: add one to it, or remove the reference", result.IPs[*r.Index].Address)
	}
	return ""
}

// allocates reports whether a step, or one that it is on, has addresses that its config does not list: how many is known in the
// cluster only.
func (t *Topology) allocates(s *Step) bool {
	done, next := map[string]bool{}, []string{s.Name}
	for len(next) > 0 {
		name := next[0]
		next = next[1:]
		of, known := t.Step(name)
		if done[name] || !known {
			continue
		}
		if _, _, pool := FromPool(of); pool || t.ClaimSetsAddresses(name) {
			return true
		}
		done[name], next = true, append(next, of.DependOn...)
	}
	return false
}

// Variable is an environment variable that containers are told.
type Variable struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
	// Needs says what the value depends on that is not known yet, as "vf0.mac"; Value is empty then.
	Needs string `json:"needs,omitempty"`
}

// Variables returns the variables of containers, by name, for the results of the steps; steps without one have not been applied yet. An
// error names the variable and the value that the pod lacks.
func (t *Topology) Variables(set contract.Set, results []StepResult) ([]Variable, error) {
	if t.Export == nil {
		return nil, nil
	}
	of := resultsOf(t, results)
	values := map[string]Variable{}
	pending := t.without(of)
	for _, name := range t.Export.Presets {
		p, known := presetNamed(name)
		if !known {
			continue
		}
		for _, v := range p.variables(t, of) {
			if pending != "" {
				v.Value, v.Needs = "", pending
			}
			values[v.Name] = v
		}
	}
	var errs []error
	for name, text := range t.Export.Env {
		value, needs, err := t.told(set, of, string(text))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", exportField(name), err))
		}
		values[name] = Variable{name, value, needs}
	}
	total := 0
	var out []Variable
	for _, name := range slices.Sorted(maps.Keys(values)) {
		v := values[name]
		if n := len(v.Value); n > maxExported {
			errs = append(errs, fmt.Errorf("spec.export: variable %s has %d bytes, at most %d are accepted", name, n, maxExported))
		}
		total += len(v.Name) + len(v.Value) + len("=\x00")
		out = append(out, v)
	}
	if total > MaxExportedSize {
		errs = append(errs, fmt.Errorf("spec.export: the variables have %d bytes, at most %d are accepted", total, MaxExportedSize))
	}
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return nil, errors.Join(errs...)
	}
	return out, nil
}

// steps are the results of steps in the order of their declaration; those without one are not applied yet.
type steps []StepResult

func resultsOf(t *Topology, results []StepResult) steps {
	by := map[string]StepResult{}
	for _, r := range results {
		by[r.Name] = r
	}
	var out steps
	for i := range t.Steps {
		if r, known := by[t.Steps[i].Name]; known {
			out = append(out, r)
		}
	}
	return out
}

// without returns the first step that has no result yet, "" if all have one.
func (t *Topology) without(of steps) string {
	i := slices.IndexFunc(t.Steps, func(s Step) bool { _, applied := of.of(s.Name); return !applied })
	if i < 0 {
		return ""
	}
	return t.Steps[i].Name
}

func (all steps) of(step string) (Result, bool) {
	i := slices.IndexFunc(all, func(r StepResult) bool { return r.Name == step })
	if i < 0 {
		return Result{}, false
	}
	return all[i].Result, true
}

// told resolves the references in a text; needs says what it depends on that is not known yet.
func (t *Topology) told(set contract.Set, of steps, text string) (value, needs string, err error) {
	parsed, err := ref.ParseLists(text)
	if err != nil {
		return "", "", err
	}
	size := 0
	expanded, err := parsed.Expand(func(r ref.Ref) (any, error) {
		known, err := r.Lookup()
		if err == nil && size > maxFileSize { // of thousands of lists in a text, each of hundreds of steps
			err = fmt.Errorf("has more than %d bytes", maxFileSize)
		}
		if err != nil {
			return nil, err
		}
		var list []string
		for i := range t.Steps {
			if !r.Means(t.Steps[i].Name) || r.Each() && !t.listed(set, &t.Steps[i], r, known) {
				continue
			}
			one := r
			one.Step = t.Steps[i].Name
			value, err := of.field(one)
			if errors.Is(err, ErrUnknown) {
				needs = cmp.Or(needs, one.Step+"."+one.Path())
				continue
			}
			if err != nil && r.Each() {
				err = fmt.Errorf("step %q: %w", one.Step, err)
			}
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		joined := strings.Join(list, ",")
		size += len(joined)
		return joined, nil
	})
	if err != nil || needs != "" {
		return "", needs, err
	}
	return expanded.(string), "", nil
}

// field returns a field of a step as text, a list with commas.
func (all steps) field(r ref.Ref) (string, error) {
	result, applied := all.of(r.Step)
	if !applied {
		return "", ErrUnknown
	}
	value, err := result.Field(r)
	if err != nil {
		return "", err
	}
	list, ok := value.([]any)
	if !ok {
		return fmt.Sprint(value), nil
	}
	texts := make([]string, len(list))
	for i := range list {
		texts[i] = fmt.Sprint(list[i])
	}
	return strings.Join(texts, ","), nil
}

// listed reports whether a step that a reference means is in its list: it may have the field itself. A step that takes a device is
// not if one that is derived from it says the same of that device, and does not name another one of it.
func (t *Topology) listed(set contract.Set, s *Step, r ref.Ref, f ref.Field) bool {
	if !mayHave(set, s, f) {
		return false
	}
	return !r.Each() || f.Source != ref.Devices || !slices.ContainsFunc(t.Steps, func(o Step) bool {
		c, _ := set.Contract(o.Type)
		return r.Means(o.Name) && slices.Contains(t.DerivedFrom(&o, c), s.Name) && mayHave(set, &o, f) && o.Config["rdmaDevice"] == nil
	})
}

// mayHave reports whether a step may have a field, as far as its own output is concerned.
func mayHave(set contract.Set, s *Step, f ref.Field) bool {
	c, known := set.Contract(s.Type)
	adds := func(flow contract.Flow) bool { return flow.Appends != 0 || flow.Conditional }
	switch {
	case !known:
		return false
	case f.Source == ref.IPs:
		return adds(c.Output.IPs)
	case f.Source == ref.Interfaces:
		return adds(c.Output.Interfaces) && len(c.Input.DerivedFrom) == 0
	}
	of := func(p contract.Param) bool { return p.Name == strings.TrimSuffix(f.Path, "[N]") }
	return c.GivesDevices(s.Config) && slices.ContainsFunc(c.Output.Devices, of)
}
