package imports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

func typeOf(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: kind}
}

// result validates what was made, and returns what is valid.
func (c *converter) result(ctx context.Context) (out Result, err error) {
	objects := validity.Objects{Pools: map[string]*addresspool.Layout{}}
	pools := c.validPools(objects.Pools)
	var topologies []map[string]any
	from := map[string]*source{}
	roots := map[*network][]*topology.Step{}
	decoded := map[*network]*topology.Topology{}
	for _, n := range c.networks {
		if n.from.failed() || !c.hasPools(n, objects.Pools) {
			continue
		}
		o, named, err := c.topology(ctx, n)
		if err != nil {
			return Result{}, err
		}
		if n.from.failed() {
			continue
		}
		if from[n.topology] != nil {
			n.from.problem("metadata.name",
				"the topology of %s has the same name, %q: give one of them another name", from[n.topology].title(), n.topology)
			continue
		}
		from[n.topology] = n.from
		decoded[n] = named.Topology
		roots[n] = claim.Requested(named.Topology, c.Set)
		topologies = append(topologies, o)
		objects.Topologies = append(objects.Topologies, named)
	}
	policies, err := c.exposures(objects.Topologies, &objects)
	if err != nil {
		return Result{}, err
	}
	notes, errs := validity.Across(ctx, objects, c.Set)
	c.across(from, notes)
	if err := errors.Join(errs...); err != nil {
		return Result{}, err
	}
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("the conversion was stopped: %w", context.Cause(ctx))
	}
	patches, templates := c.patches(roots, decoded)
	for _, list := range [][]map[string]any{pools, policies, topologies, templates} {
		slices.SortStableFunc(list, byName)
		out.Objects = append(out.Objects, list...)
	}
	out.Patches = patches
	for _, s := range c.sources {
		out.Notes, out.Problems = append(out.Notes, s.notes...), append(out.Problems, s.problems...)
	}
	return out, nil
}

// across gives the notes on topologies to their sources.
func (c *converter) across(from map[string]*source, notes []string) {
	for _, note := range notes {
		rest, ok := strings.CutPrefix(note, "NetworkTopology ")
		name, text, _ := strings.Cut(rest, ", ")
		if s := from[strings.Trim(name, `"`)]; ok && s != nil {
			s.note("", "%s", text)
		}
	}
}

// validPools returns the pools that are valid and whose sources have no problem.
func (c *converter) validPools(layouts map[string]*addresspool.Layout) (out []map[string]any) {
	for _, p := range c.pools {
		if !slices.ContainsFunc(p.froms, func(s *source) bool { return !s.failed() }) {
			continue
		}
		first := p.froms[0]
		o := &v1alpha1.AddressPool{TypeMeta: typeOf(v1alpha1.AddressPoolKind), ObjectMeta: metav1.ObjectMeta{Name: p.name}, Spec: p.spec}
		l, err := addresspool.Of(o)
		if layouts[p.name] != nil {
			err = fmt.Errorf("%s %q: there are two of this name: rename a network", v1alpha1.AddressPoolKind, p.name)
		}
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				first.problem("", "%s", strings.TrimSpace(line))
			}
			continue
		}
		spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&p.spec)
		if err != nil {
			first.problem("", "%v", err)
			continue
		}
		layouts[p.name] = l
		out = append(out, objectOf(o.TypeMeta, p.name, spec))
	}
	return out
}

// hasPools reports whether the pools of a network are valid; else it says so.
func (c *converter) hasPools(n *network, layouts map[string]*addresspool.Layout) bool {
	for _, s := range n.steps {
		if s.pool != nil && layouts[s.pool.name] == nil {
			n.from.problem("", "its %s %q is not valid", v1alpha1.AddressPoolKind, s.pool.name)
			return false
		}
	}
	return true
}

// topology returns the topology of a network. Its errors are problems of its source.
func (c *converter) topology(ctx context.Context, n *network) (object map[string]any, named validity.Named, err error) {
	if len(n.inside) > 0 {
		n.from.problem("", "builds on %s, which other networks of the pod make: give the pods that use it, too", quoted(n.inside, " and "))
		return nil, named, nil
	}
	var steps []any
	for _, s := range n.steps {
		steps = append(steps, s.object())
	}
	object = objectOf(typeOf(v1alpha1.Kind), n.topology, map[string]any{"steps": steps})
	meta := object["metadata"].(map[string]any)
	if d := n.definition(); d != "" {
		meta["annotations"] = map[string]any{Definition: d}
	}
	if len(n.from.labels) > 0 {
		meta["labels"] = n.from.labels
	}
	if list := n.claimParameters(); len(list) > 0 {
		object["spec"].(map[string]any)["claimParameters"] = list
	}
	typed := &v1alpha1.NetworkTopology{}
	if err := retype(object, typed); err != nil {
		return nil, named, err
	}
	var notes []string
	decoded, err := topology.FromObject(typed)
	if err == nil {
		if (len(n.constraints) > 0 || len(n.namespaces) > 0) && len(claim.Roots(decoded, c.Set)) > 0 {
			typed.Spec.ClaimTemplate = &v1alpha1.ClaimTemplate{Namespaces: slices.Clone(n.namespaces), Constraints: n.constraints}
			object["spec"].(map[string]any)["claimTemplate"] = typed.Spec.ClaimTemplate
		}
		named.Object = typed
		named.Topology, notes, err = validity.Object(ctx, typed, c.Set)
	}
	if invalid, ok := errors.AsType[*topology.Invalid](err); ok {
		for _, p := range invalid.Problems {
			n.from.problem(n.place(p), "%s", strings.ReplaceAll(p.Message, "\n", " "))
		}
		return nil, named, nil
	}
	if err != nil {
		return nil, named, err
	}
	for _, note := range notes {
		if !strings.HasPrefix(note, "spec.claimTemplate: neither") {
			n.from.note("", "%s", note)
		}
	}
	return object, named, nil
}

// place is where in the source a problem of a step is.
func (n *network) place(p topology.Problem) string {
	for _, s := range n.steps {
		if s.name != p.Step {
			continue
		}
		rest, ok := strings.CutPrefix(p.Field, "config.")
		if !ok || s.at == "" {
			return s.at
		}
		for key, at := range s.places {
			if below, found := strings.CutPrefix(rest, key); found && (below == "" || below[0] == '[' || below[0] == '.') {
				return at + strings.NewReplacer(".gateway", ".gw", ".destination", ".dst").Replace(below)
			}
		}
		return s.at + "." + rest
	}
	return p.Field
}

func (s *step) object() map[string]any {
	out := map[string]any{"name": s.name, "type": s.typ}
	if len(s.config) > 0 {
		out["config"] = s.config
	}
	if len(s.dependOn) > 0 {
		out["dependOn"] = s.dependOn
	}
	if s.selector != "" {
		out["selector"] = map[string]any{"cel": s.selector}
	}
	if s.resource != "" {
		out["extendedResourceName"] = s.resource
	}
	return out
}

func quoted(names []string, between string) string {
	return strings.Join(excerpt.Texts(names, strconv.Quote), between)
}

// retype reads an object as one of another type.
func retype(object, into any) error {
	raw, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// below is an expression for an interface of the host by its name or its network.
func below(master string) string {
	if !strings.Contains(master, "/") { // which no name of an interface has
		return named("ifName", master)
	}
	networks := fmt.Sprintf("device.attributes[%q].networks", inventory.Driver)
	return fmt.Sprintf("has(%s) && %q in %s.split(\",\")", networks, master, networks)
}

// exposures returns the policies that share what the topologies use of the host.
func (c *converter) exposures(topologies []validity.Named, objects *validity.Objects) (out []map[string]any, err error) {
	used := map[string]bool{}
	for _, t := range topologies {
		for _, s := range validity.Shared(t.Topology, c.Set) {
			used[s.Master], used[s.Network] = true, true
		}
	}
	for _, master := range slices.Sorted(maps.Keys(c.shares)) {
		if !used[master] {
			continue
		}
		var types []any
		for _, typ := range slices.Sorted(maps.Keys(c.shares[master])) {
			types = append(types, map[string]any{"name": typ})
		}
		object := objectOf(typeOf(v1alpha1.PolicyKind), "share-"+label(master), map[string]any{
			"selector": map[string]any{"cel": below(master)},
			"exposure": map[string]any{"allowMultipleAllocations": true, "supportedCNIPlugins": types},
		})
		typed := &v1alpha1.DeviceExposurePolicy{}
		if err := retype(object, typed); err != nil {
			return nil, err
		}
		p := exposure.New(typed)
		if p.Err != nil {
			return nil, p.Err
		}
		objects.Policies = append(objects.Policies, p)
		out = append(out, object)
	}
	return out, nil
}
