package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/ref"
	"github.com/plumbline/plumbline/topology/suggest"
)

// Validate returns all errors of a topology, given the contracts of the known step types:
// its structure, each step's config, and whether each step gets the interfaces and the
// fields it needs. If the set is a Vetter, it checks a topology without other errors. The
// error is an *Invalid, or that of a context that has ended.
func Validate(ctx context.Context, t *Topology, set contract.Set) error {
	_, err := Inspect(ctx, t, set)
	return err
}

// Inspect is Validate with notes: remarks on a valid topology, one line each, naming its
// step. An invalid topology has none.
func Inspect(ctx context.Context, t *Topology, set contract.Set) (notes []string, err error) {
	v := &validator{ctx: ctx, t: t, set: set, graph: newGraph(t), inv: newInvalid(t.Name)}
	v.run()
	err = v.inv.orNil(t)
	if vetter, ok := set.(Vetter); ok && err == nil && ctx.Err() == nil {
		notes, err = vetter.Vet(ctx, t)
	}
	if err == nil {
		notes = append(v.ignored(), notes...)
	}
	if ctx.Err() != nil { // the problems found so far are not all
		return nil, fmt.Errorf("NetworkTopology %q: validation was stopped: %w", t.Name, context.Cause(ctx))
	}
	return notes, err
}

// ignored are notes on the keys of configs that have no effect.
func (v *validator) ignored() (notes []string) {
	for i := range v.t.Steps {
		if v.contracts[i] == nil {
			continue
		}
		for _, k := range v.contracts[i].Ignored(v.t.Steps[i].Config) {
			note := fmt.Sprintf("step %q: config.%s: %s", v.t.written(Problem{Step: v.t.Steps[i].Name}).Step, k.Field, k.Message)
			if !slices.Contains(notes, note) && len(notes) < MaxProblems {
				notes = append(notes, note)
			}
		}
	}
	return notes
}

// Vetter knows more of its step types than their contracts: their plans.
type Vetter interface {
	// Vet returns the errors of a topology whose steps are valid by themselves. The error
	// is an *Invalid, or that of a context that has ended. Notes are remarks on a valid
	// topology, one line each, few and short.
	Vet(ctx context.Context, t *Topology) (notes []string, err error)
}

// Maker knows the interfaces that its step types make.
type Maker interface {
	// Interfaces returns the interfaces that the steps of a valid topology make in the sandbox of
	// a pod, whatever the node, with their steps; each device is assumed to have an interface. Those
	// that topologies share, such as a VRF, are not among them, nor are those whose names only a node
	// knows. The error is that of a context that has ended.
	Interfaces(ctx context.Context, t *Topology) (map[string]string, error)
}

type validator struct {
	ctx       context.Context
	t         *Topology
	set       contract.Set
	graph     *graph
	inv       *Invalid
	contracts []*contract.Contract // per step; nil when the type is unknown
	flows     []flow
}

func (v *validator) run() {
	v.topology()
	if n := len(v.t.Steps); n == 0 || n > maxSteps {
		return
	}
	v.contracts = make([]*contract.Contract, len(v.t.Steps))
	v.flows = make([]flow, len(v.t.Steps))
	for i := range v.t.Steps {
		v.step(i)
	}
	v.parameters()
	v.graph.check(v.inv)
	for i := range v.flows {
		v.flows[i] = unknownFlow() // of steps that cannot be ordered
	}
	for _, i := range v.graph.order() {
		if v.stop() {
			return
		}
		v.input(i)
	}
	for i := range v.t.Steps {
		if v.stop() {
			return
		}
		v.config(i)
	}
	if !v.stop() {
		v.export()
	}
}

// stop reports whether validation can end: enough was found, or the context has ended.
func (v *validator) stop() bool {
	v.inv.More = v.inv.More || v.inv.Full()
	return v.inv.More || v.ctx.Err() != nil
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

const dnsLabelRule = "lower-case letters, digits and '-', a letter or digit at both ends, at most 63 characters"

func (v *validator) topology() {
	switch {
	case v.t.Name == "":
		v.inv.Addf("", "metadata.name", "is missing")
	case !dnsLabel.MatchString(v.t.Name):
		v.inv.Addf("", "metadata.name", "%q is not a DNS label (%s)", v.t.Name, dnsLabelRule)
	}
	v.inv.oneOf("", "spec.driftPolicy", string(v.t.DriftPolicy), string(Repair), string(Observe))
	v.inv.oneOf("", "spec.updatePolicy", string(v.t.UpdatePolicy), string(Immutable), string(InPlace))
	switch n := len(v.t.Steps); {
	case n == 0:
		v.inv.Addf("", "spec.steps", "is empty: a topology has at least one step")
	case n > maxSteps:
		v.inv.Addf("", "spec.steps", "has %d entries, at most %d are accepted", n, maxSteps)
	}
}

// oneOf checks a value of a fixed list; the empty one stands for the default.
func (e *Invalid) oneOf(step, field, value string, accepted ...string) {
	if value != "" && !slices.Contains(accepted, value) {
		e.Addf(step, field, "%q is not one of %s%s", excerpt.Of(value, maxKey), strings.Join(accepted, ", "), suggest.Hint(value, accepted))
	}
}

// step checks the fields of a step, without its config.
func (v *validator) step(i int) {
	s := &v.t.Steps[i]
	switch {
	case s.Name == "":
		v.inv.Addf("", fmt.Sprintf("spec.steps[%d].name", i), "is missing")
	case !dnsLabel.MatchString(s.Name):
		v.inv.Addf(s.Name, "name", "%q is not a DNS label (%s)", s.Name, dnsLabelRule)
	}
	if c, ok := v.set.Contract(s.Type); ok {
		v.contracts[i] = &c
	} else {
		v.unknownType(i)
	}
	if s.Selector != "" && !s.Root() {
		addTo(v.inv, i, s.Name, "selector", "only a root step allocates a device: remove the selector, or dependOn")
	}
	if s.DriftPolicy != v.t.DriftPolicy { // else it is that of the topology
		v.inv.oneOf(s.Name, "driftPolicy", string(s.DriftPolicy), string(Repair), string(Observe))
	}
}

func (v *validator) unknownType(i int) {
	s := &v.t.Steps[i]
	known := strings.Join(v.set.Types(), ", ")
	if s.Type == "" {
		addTo(v.inv, i, s.Name, "type", "is missing: known types are %s", known)
		return
	}
	if why, ok := unsupportedTypes[s.Type]; ok {
		if strings.Contains(why, ": ") { // what to write instead
			known = ""
		} else {
			known = ": known types are " + known
		}
		addTo(v.inv, i, s.Name, "type", "step type %q is %s%s", s.Type, why, known)
		return
	}
	hint := cmp.Or(suggest.Hint(s.Type, v.set.Types()), ": known types are "+known)
	addTo(v.inv, i, s.Name, "type", "unknown step type %q%s", s.Type, hint)
}

// unsupportedTypes are types that users of other drivers may expect here. One that
// a schema describes, or that is built in by now, is known and not looked up.
var unsupportedTypes = map[string]string{
	"sbr":         "a key here: write sourceRouting: true in the config of the step that has the addresses, and remove the step",
	"bandwidth":   "an object here: write a NetworkQoS that selects the topology, and remove the step; sriov has maxTxRate",
	"portmap":     "a key here: write portMappings in the config of a step of type bridge or ptp, and remove the step",
	"firewall":    "not supported: NetworkPolicies are of the cluster's own network; remove the step",
	"loopback":    "not needed: the interface lo of a pod is up; remove the step",
	"dhcp":        "a type of ipam: write ipam: {type: dhcp} in the config of the step that has the addresses",
	"static":      "a type of ipam: write addresses in the config of the step",
	"host-local":  "a type of ipam: write it in the config of the step that has the addresses",
	"whereabouts": "not supported: create an AddressPool, and write ipam: {type: pool, pool: NAME} in the config of the step",
}

// input checks a step's input and computes its output.
func (v *validator) input(i int) {
	s, c := &v.t.Steps[i], v.contracts[i]
	if c == nil {
		return
	}
	deps := make([]flow, len(s.DependOn))
	for n, name := range s.DependOn {
		deps[n] = unknownFlow() // a dependency that does not exist
		if d, ok := v.graph.index[name]; ok {
			deps[n] = v.flows[d]
		}
	}
	in := union(deps...)
	msg := v.inputProblem(i, *c, in.interfaces)
	if msg == "" && !s.Root() {
		msg = v.lacks(i, *c, in)
	}
	if msg != "" {
		v.inv.Add(Problem{Step: s.Name, Field: "dependOn", Message: msg, Complete: true})
		return // errors of the steps that depend on it would be consequences
	}
	v.flows[i] = flowOf(i, *c, in)
	if s.Root() && len(c.Input.DerivedFrom) > 0 {
		v.flows[i].interfaces = entries{}
	}
}

func (v *validator) inputProblem(i int, c contract.Contract, in entries) string {
	s := &v.t.Steps[i]
	switch most, bounded := in.atMost(); {
	case s.Root() && c.Input.Required:
		need := "a dependency"
		if c.Input.MinInterfaces > 0 {
			need = "at least " + interfaces(c.Input.MinInterfaces) + " in prevResult"
		}
		return fmt.Sprintf("CNIPluginSchema %q requires %s,\nbut step %q has no dependOn.\nName the steps it builds on in dependOn.",
			c.Type, need, s.Name)
	case s.Root():
		return ""
	case c.RootOnly():
		return fmt.Sprintf("CNIPluginSchema %q attaches a device and takes no prevResult,\nbut step %q depends on %s.\n"+
			"Remove dependOn: a step of this type is a root step.", c.Type, s.Name, bracket(s.DependOn))
	case len(c.Input.DerivedFrom) > 0:
		return v.notDerived(i, c)
	case bounded && most < c.Input.MinInterfaces:
		return v.tooFew(i, c, most)
	case c.Input.MaxInterfaces > 0 && in.atLeast() > c.Input.MaxInterfaces:
		return fmt.Sprintf(
			"CNIPluginSchema %q takes at most %s in prevResult,\nbut step %q depends on %s which %s %s.\nRemove steps from dependOn.",
			c.Type, interfaces(c.Input.MaxInterfaces), s.Name, bracket(s.DependOn), produce(s.DependOn), interfaces(in.atLeast()))
	}
	return ""
}

// notDerived says that a derived step does not depend on exactly one step of a type that it is about, "" if it does.
func (v *validator) notDerived(i int, c contract.Contract) string {
	s := &v.t.Steps[i]
	on := v.t.DerivedFrom(s, c)
	if len(on) == 1 || len(v.graph.deps[i]) < len(s.DependOn) { // a step that does not exist is reported
		return ""
	}
	types := strings.Join(c.Input.DerivedFrom, " or ")
	if len(on) > 1 {
		return fmt.Sprintf("CNIPluginSchema %q takes the device of one step of type %s,\nbut step %q depends on %d of them, %s.\n"+
			"Write a step of type %s for each, or leave one in dependOn.", c.Type, types, s.Name, len(on), bracket(on), c.Type)
	}
	fix := "Add a step of such a type to dependOn, or remove dependOn: a root step takes a device itself."
	var above []string
	for j, is := range v.graph.ancestors(i) {
		if is && slices.Contains(c.Input.DerivedFrom, v.t.Steps[j].Type) {
			above = append(above, v.t.Steps[j].Name)
		}
	}
	if len(above) > 0 {
		fix = fmt.Sprintf("Add the step whose device is meant to dependOn, of %s.", bracket(above))
	}
	return fmt.Sprintf("CNIPluginSchema %q takes the device of one step of type %s,\nbut step %q depends on %s, of other types.\n%s",
		c.Type, types, s.Name, bracket(s.DependOn), fix)
}

// DerivedFrom returns the steps in dependOn of a step that its type is about: see contract.Input.DerivedFrom.
func (t *Topology) DerivedFrom(s *Step, c contract.Contract) (on []string) {
	for _, name := range s.DependOn {
		if dep, ok := t.Step(name); ok && slices.Contains(c.Input.DerivedFrom, dep.Type) && !slices.Contains(on, name) {
			on = append(on, name)
		}
	}
	return on
}

// lacks says which part of prevResult a step needs and none of its dependencies has.
func (v *validator) lacks(i int, c contract.Contract, in flow) string {
	s := &v.t.Steps[i]
	for _, part := range []struct {
		name   string
		needed bool
		given  entries
	}{{"IP address", c.Input.IPs, in.ips}, {"route", c.Input.Routes, in.routes}} {
		if most, bounded := part.given.atMost(); part.needed && bounded && most == 0 {
			return fmt.Sprintf("CNIPluginSchema %q requires at least 1 %s in prevResult,\nbut step %q depends on %s which %s none.\n"+
				"Add a step that makes one to dependOn.",
				c.Type, part.name, s.Name, bracket(s.DependOn), produce(s.DependOn))
		}
	}
	return ""
}

// tooFew describes a lack of interfaces: by the dependency that gives none, else by
// all of them.
func (v *validator) tooFew(i int, c contract.Contract, have int) string {
	s := &v.t.Steps[i]
	requires := fmt.Sprintf("CNIPluginSchema %q requires at least %s in prevResult,\n", c.Type, interfaces(c.Input.MinInterfaces))
	for _, d := range v.graph.deps[i] {
		if most, bounded := v.flows[d].interfaces.atMost(); !bounded || most > 0 {
			continue
		}
		dep := &v.t.Steps[d]
		msg := requires + fmt.Sprintf("but dependency %q uses plugin %q which produces 0 interfaces.", dep.Name, dep.Type)
		if explain := cmp.Or(v.contracts[d].ExplainTo[c.Type], v.contracts[d].Explain); explain != "" {
			msg += "\n" + explain
		}
		return msg
	}
	add := "Add another VF step to dependOn."
	if missing := c.Input.MinInterfaces - have; missing > 1 {
		add = fmt.Sprintf("Add %d more VF steps to dependOn.", missing)
	}
	return requires + fmt.Sprintf("but step %q depends on %s which %s only %s.\n%s",
		s.Name, bracket(s.DependOn), produce(s.DependOn), interfaces(have), add)
}

func interfaces(n int) string { return excerpt.Count(n, "interface") }

func produce(names []string) string {
	if len(names) == 1 {
		return "produces"
	}
	return "together produce"
}

func bracket(names []string) string { return "[" + few(names) + "]" }

// config checks a step's config and the references in it.
func (v *validator) config(i int) {
	s := &v.t.Steps[i]
	reported := v.references(i)
	if v.contracts[i] == nil {
		return
	}
	_, problems := v.contracts[i].Decode(s.Config, contract.Options{Unresolved: true})
	for _, p := range problems {
		if slices.ContainsFunc(reported, func(path string) bool { return within(p.Field, path) }) {
			continue
		}
		if of := v.below(i, p.Unknown); of != "" {
			p.Message += fmt.Sprintf("\nStep %q accepts it: write it there.", of)
		}
		v.inv.Add(Problem{Step: s.Name, Field: ref.Join("config", p.Field), Message: p.Message, Complete: p.Complete})
	}
}

// below returns the first step below a step that accepts a key of its config, "" if none does.
func (v *validator) below(i int, key string) string {
	for at, is := range v.graph.ancestors(i) {
		if c := v.contracts[at]; key != "" && is && c != nil && c.Accepts(key) {
			return v.t.written(Problem{Step: v.t.Steps[at].Name}).Step
		}
	}
	return ""
}

// within reports whether a path is at or below another.
func within(path, above string) bool {
	rest, ok := strings.CutPrefix(path, above)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// references checks that each reference names a field that a step it depends
// on will have. It returns the paths that have problems.
func (v *validator) references(i int) (reported []string) {
	s := &v.t.Steps[i]
	uses, err := ref.Walk(s.Config)
	for _, e := range fault.Each(err) {
		if at, ok := errors.AsType[*ref.Error](e); ok {
			reported = append(reported, at.Path)
			v.inv.Addf(s.Name, ref.Join("config", at.Path), "%v", at.Err)
		}
	}
	ancestors := v.graph.ancestors(i)
	for _, u := range uses {
		if v.inv.Full() {
			return reported
		}
		if msg := v.referenceProblem(i, u.Ref, ancestors); msg != "" {
			reported = append(reported, u.Path)
			v.inv.Addf(s.Name, ref.Join("config", u.Path), "%s", msg)
		}
	}
	return reported
}

func (v *validator) referenceProblem(i int, r ref.Ref, ancestors []bool) string {
	s := &v.t.Steps[i]
	target, exists := v.graph.index[r.Step]
	switch {
	case r.Step == s.Name:
		return fmt.Sprintf("%s is the step's own result, which is not there yet", r)
	case !exists:
		return fmt.Sprintf("%s: %s", r, v.graph.unknownStep(s, r.Step))
	case !ancestors[target] && v.graph.ancestors(target)[i]:
		return fmt.Sprintf("%s: step %q depends on this one, so its result is not there yet", r, r.Step)
	case !ancestors[target] && s.Root() && v.contracts[i] != nil && v.contracts[i].RootOnly():
		return fmt.Sprintf("%s: a root step has no dependencies and cannot refer to results", r)
	case !ancestors[target]:
		return fmt.Sprintf("%s: step %q is not among the dependencies: add it to dependOn", r, r.Step)
	}
	f, err := r.Lookup()
	if unknown, ok := errors.AsType[*ref.UnknownField](err); ok && unknown.Near == "" && v.contracts[target] != nil {
		if has := v.offered(target, r.Step); len(has) > 0 {
			return fmt.Sprintf("unknown field %q in %s: step %q of type %q has %s", r.Path(), r, r.Step, v.contracts[target].Type,
				strings.Join(has, ", "))
		}
	}
	if err != nil {
		return err.Error()
	}
	return v.fieldProblem(target, r, f)
}

// fieldProblem explains why a step's result cannot have a field.
func (v *validator) fieldProblem(target int, r ref.Ref, f ref.Field) string {
	c := v.contracts[target]
	if c == nil || v.offers(target, r, f) {
		return ""
	}
	if n, _ := v.flows[target].interfaces.atMost(); f.Source == ref.Interfaces && n > 0 {
		return fmt.Sprintf("%s: step %q has only %s, counted from 0", r, r.Step, interfaces(n))
	}
	gives := func(p contract.Param) bool { return p.Name == r.Field }
	if f.Source == ref.Devices && slices.ContainsFunc(c.Output.Devices, gives) { // not asked for
		return fmt.Sprintf("%s: step %q gives no RDMA device: set rdma: true in it, or remove the reference", r, r.Step)
	}
	has := v.offered(target, r.Step)
	what := r.Path()
	if f.Source == ref.Interfaces {
		what = "interface"
	}
	if len(has) == 0 {
		return fmt.Sprintf("%s: step %q of type %q has no %s, nor anything else to refer to", r, r.Step, c.Type, what)
	}
	return fmt.Sprintf("%s: step %q of type %q has no %s: it has %s", r, r.Step, c.Type, what, strings.Join(has, ", "))
}

// offered lists the fields of a step that can be referred to.
func (v *validator) offered(target int, step string) []string {
	var has []string
	for _, f := range ref.Fields() {
		if v.offers(target, f.Of(step), f) {
			has = append(has, f.Path)
		}
	}
	return has
}

// offers reports whether a step of known type may have a field.
func (v *validator) offers(target int, r ref.Ref, f ref.Field) bool {
	need := 1
	if r.Index != nil {
		need = *r.Index + 1
	}
	list := v.flows[target].interfaces
	switch f.Source {
	case ref.Devices:
		c := v.contracts[target]
		named := func(p contract.Param) bool { return p.Name == r.Field }
		return c.GivesDevices(v.t.Steps[target].Config) && slices.ContainsFunc(c.Output.Devices, named)
	case ref.IPs:
		list = v.flows[target].ips
	case ref.Interfaces:
	}
	n, bounded := list.atMost()
	return !bounded || n >= need
}
