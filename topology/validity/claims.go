package validity

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/suggest"
)

// itself returns what is wrong with the requests of a claim, whatever they are for: the API server says it, too. Notes are on selectors
// of requests for the DeviceClasses of topologies, by their name with the selector of their step.
func (c Claim) itself(classes map[string]string) (notes []string, errs []error) {
	var names []string
	wrong := func(field, format string, args ...any) {
		errs = append(errs, c.Document.At(c.devices()+field, fmt.Errorf("%s: %s", c.title(), fmt.Sprintf(format, args...))))
	}
	given := func(at, name string) {
		if slices.Contains(names, name) {
			wrong(at, "%s: %q is the name of an earlier request: give each a name of its own", at, excerpt.Of(name, maxText))
		}
		names = append(names, name)
	}
	request := func(field, name, class string, mode resourceapi.DeviceAllocationMode, selectors []resourceapi.DeviceSelector) {
		modes := []string{string(resourceapi.DeviceAllocationModeExactCount), string(resourceapi.DeviceAllocationModeAll)}
		if mode != "" && !slices.Contains(modes, string(mode)) {
			wrong(field+".allocationMode", "request %q: allocationMode: %q is not one of %s%s",
				name, excerpt.Of(string(mode), maxText), strings.Join(modes, ", "), suggest.Hint(string(mode), modes))
		}
		for i, s := range selectors {
			if s.CEL == nil {
				continue
			}
			at := fmt.Sprintf("request %q: selectors[%d].cel: ", name, i)
			if bad := Compiled(s.CEL.Expression).Err; bad != nil {
				said := bad.Error()
				if e, ok := errors.AsType[*inventory.SelectorError](bad); ok {
					said = e.Message
				}
				wrong(fmt.Sprintf("%s.selectors[%d].cel.expression", field, i), "%s%s", at, said)
				continue
			}
			if of, ours := classes[class]; ours {
				for _, doubt := range doubts(of, s.CEL.Expression) {
					notes = append(notes, c.title()+": "+at+doubt)
				}
			}
		}
	}
	if n := len(c.Spec.Requests); n > resourceapi.DeviceRequestsMaxSize {
		wrong("requests", "has %d requests, and a claim has at most %d: divide them between claims of the pod", n,
			resourceapi.DeviceRequestsMaxSize)
	}
	if n := len(c.Spec.Constraints); n > resourceapi.DeviceConstraintsMaxSize {
		wrong("constraints", "has %d constraints, and a claim has at most %d: divide its requests between claims of the pod", n,
			resourceapi.DeviceConstraintsMaxSize)
	}
	for i, r := range c.Spec.Requests {
		at := fmt.Sprintf("requests[%d]", i)
		given(at, r.Name)
		if e := r.Exactly; e != nil {
			request(at+".exactly", r.Name, e.DeviceClassName, e.AllocationMode, e.Selectors)
			continue
		}
		for j, s := range r.FirstAvailable {
			of := fmt.Sprintf("%s.firstAvailable[%d]", at, j)
			given(of, r.Name+"/"+s.Name)
			request(of, r.Name+"/"+s.Name, s.DeviceClassName, s.AllocationMode, s.Selectors)
		}
	}
	for i, constraint := range c.Spec.Constraints {
		at := fmt.Sprintf("constraints[%d]", i)
		for j, name := range constraint.Requests {
			if !slices.Contains(names, name) {
				of := fmt.Sprintf("%s.requests[%d]", at, j)
				wrong(of, "%s: no request is named %q: the requests are %s", of, excerpt.Of(name, maxText), strings.Join(names, ", "))
			}
		}
		for _, attribute := range []*resourceapi.FullyQualifiedName{constraint.MatchAttribute, constraint.DistinctAttribute} {
			if attribute == nil {
				continue
			}
			problem, doubt := aboutAttribute(string(*attribute))
			if problem != "" {
				wrong(at, "%s: %s", at, problem)
			}
			if doubt != "" {
				notes = append(notes, fmt.Sprintf("%s: %s: %s", c.title(), at, doubt))
			}
		}
	}
	return notes, errs
}

// exports compares what the topologies of a claim export: a container has one variable of a name.
func (c Claim) exports(topologies []*topology.Topology) (notes []string, errs []error) {
	const instead = "from spec.export of one, or request them with two claims for different containers"
	for i, t := range topologies {
		sure, perhaps := t.ExportNames()
		for _, other := range topologies[:i] {
			both := func(names, others []string) []string {
				return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !slices.Contains(others, n) })
			}
			first, maybe := other.ExportNames()
			if twice := both(sure, first); len(twice) > 0 {
				errs = append(errs, fmt.Errorf("%s: topologies %q and %q both export %s, and a container has one: remove it %s",
					c.title(), other.Name, t.Name, twice[0], instead))
				continue
			}
			if twice := both(slices.Concat(sure, perhaps), slices.Concat(first, maybe)); len(twice) > 0 {
				notes = append(notes, fmt.Sprintf(
					"%s: topologies %q and %q may both export %s, of which a container has one each: remove them %s", c.title(),
					other.Name, t.Name, strings.Join(twice, ", "), instead))
			}
		}
	}
	return notes, errs
}

// aboutAttribute is what is wrong with the attribute of a constraint, or a remark on it.
func aboutAttribute(attribute string) (problem, doubt string) {
	domain, name, qualified := strings.Cut(attribute, "/")
	shown, ours := excerpt.Of(attribute, maxText), inventory.AttributeNames()
	switch {
	case !qualified && slices.Contains(ours, attribute):
		return fmt.Sprintf("%q has no domain: write %s/%s", shown, claim.Driver, shown), ""
	case !qualified:
		return fmt.Sprintf("%q has no domain: write it before the name, as in resource.kubernetes.io/pcieRoot", shown), ""
	case domain == claim.Driver && !slices.Contains(ours, name):
		return "", fmt.Sprintf("no device has an attribute %q, so that no device meets the constraint%s", shown, suggest.Hint(name, ours))
	}
	return "", ""
}

// devices is the path of the requests in the object.
func (c Claim) devices() string {
	if c.Template {
		return "spec.spec.devices."
	}
	return "spec.devices."
}

const maxText = 253 // bytes that an error quotes

// doubts are remarks on a request's selector, which sees only devices that the selector of the step has selected.
func doubts(step, expr string) []string {
	if step == "" {
		return Compiled(expr).Unknown
	}
	known := Compiled(step).Unknown
	both := slices.Clone(Compiled("(" + step + ") && (" + expr + ")").Unknown)
	return slices.DeleteFunc(both, func(d string) bool { return slices.Contains(known, d) })
}
