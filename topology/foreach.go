package topology

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/plumbline/plumbline/topology/ref"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// maxForEach bounds the values of one step, and maxForEachValue the bytes of one, as in the CRD.
const (
	maxForEach      = 32
	maxForEachValue = 32
)

var (
	// forEachValue is the form of a value: it is the end of a name, and stands in expressions.
	forEachValue = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	// eachToken matches a reference to the value, or to its position from 0.
	eachToken = regexp.MustCompile(`\{\{\s*each\.([A-Za-z0-9_]*)\s*\}\}`)
	// stepToken matches the beginning of a reference.
	stepToken = regexp.MustCompile(`\{\{\s*([-A-Za-z0-9_]+)\.`)
)

// checkForEach checks the values of a step, and reports whether steps can be made of them.
func checkForEach(s *v1alpha1.Step, wrong func(field, format string, args ...any)) bool {
	if len(s.ForEach) == 0 {
		wrong("forEach", "is empty: list the values, or remove it")
		return false
	}
	ok := true
	bad := func(field, format string, args ...any) { wrong(field, format, args...); ok = false }
	if n := len(s.ForEach); n > maxForEach {
		bad("forEach", "has %d values, at most %d are accepted", n, maxForEach)
		return false
	}
	for i, value := range s.ForEach {
		at := fmt.Sprintf("forEach[%d]", i)
		switch {
		case len(value) > maxForEachValue:
			bad(at, "has %d bytes, at most %d are accepted", len(value), maxForEachValue)
		case !forEachValue.MatchString(value):
			bad(at, "%q is not the end of a step's name: lower-case letters, digits and '-', a letter or digit at both ends", value)
		case slices.Contains(s.ForEach[:i], value):
			bad(at, "%q is listed twice", value)
		}
	}
	if name := s.ExtendedResourceName; name != "" && !eachToken.MatchString(name) {
		bad("extendedResourceName", "names the devices of one selector, and forEach makes a step for each value: "+
			"write {{ each.value }} into it, so that each has a name of its own, or remove it")
	}
	return ok
}

// repeat returns the steps that one with forEach stands for: under its name with each value at the end. A step with the same values that it
// names, in dependOn and in references, is the one of the same value.
func repeat(all []v1alpha1.Step, s Step, values []string, b *budget, wrong func(field, format string, args ...any)) []Step {
	if _, has := s.Config["masterNets"]; has {
		wrong("config.masterNets", "makes several steps, as forEach does: write masterNet, with {{ each.value }} in it, or remove forEach")
		return []Step{standIn(s, values, wrong)}
	}
	lists := pairs(all, s, values, wrong)
	var out []Step
	for i, value := range values {
		e := each{index: i, value: value, pairs: map[string]string{}}
		for step, list := range lists {
			if e.pairs[step] = value; !slices.Contains(list, value) {
				e.pairs[step] = list[0]
			}
		}
		one := s
		one.Name = s.Name + value
		one.DependOn = slices.Clone(s.DependOn)
		for j, d := range one.DependOn {
			one.DependOn[j] = d + e.pairs[d]
		}
		e.replaceIn(&one)
		for _, p := range e.problems {
			if i == 0 { // those of the other values are the same
				wrong(p.Field, "%s", p.Message)
			}
		}
		if _, err := b.jsonValue(one.Config, 0); err != nil {
			wrong("forEach", "the configs of the steps that it makes are too large: %v", err)
			return []Step{one}
		}
		out = append(out, one)
	}
	return out
}

// pairs returns the values of the steps whose steps go with those of a step one by one: those of the same list. Lists that share a value
// and differ were probably meant to be one. They are refused, and taken for pairs, so that nothing else follows from it.
func pairs(all []v1alpha1.Step, s Step, values []string, wrong func(field, format string, args ...any)) map[string][]string {
	lists := map[string][]string{}
	for i := range all {
		other := &all[i]
		shared := slices.ContainsFunc(other.ForEach, func(value string) bool { return slices.Contains(values, value) })
		switch {
		case slices.Equal(other.ForEach, values):
			lists[other.Name] = values
		case shared && slices.Contains(s.DependOn, other.Name):
			lists[other.Name] = other.ForEach
			if checkForEach(other, func(string, string, ...any) {}) { // else that is reported
				wrong("forEach", "its values are not those of step %q: make the lists equal, in the same order, "+
					"or name the steps in dependOn, such as %s", other.Name, other.Name+other.ForEach[0])
			}
		}
	}
	return lists
}

// standIn is a step whose forEach is wrong, for one value: what refers to it is no further problem.
func standIn(s Step, values []string, wrong func(field, format string, args ...any)) Step {
	e := each{value: "0"}
	if i := slices.IndexFunc(values, forEachValue.MatchString); i >= 0 && len(values[i]) <= maxForEachValue {
		e.value = values[i]
	}
	e.replaceIn(&s)
	for _, p := range e.problems {
		wrong(p.Field, "%s", p.Message)
	}
	return s
}

// each replaces what stands for one value.
type each struct {
	index    int
	value    string
	pairs    map[string]string // the value of each step that goes with it one by one
	problems []Problem
}

// placeholder matches the beginning of what was meant to be replaced.
var placeholder = regexp.MustCompile(`(\{\{|\$\{)[^"']{0,32}`)

// checkSelector refuses placeholders that nothing has replaced: as a text they select no device.
func checkSelector(s *Step, wrong func(field, format string, args ...any)) {
	left := placeholder.FindString(s.Selector)
	switch {
	case left == "":
	case eachToken.MatchString(left):
		wrong("selector.cel", "{{ each.value }} and {{ each.index }} stand for something only in a step with forEach")
	default:
		wrong("selector.cel", "%q is not replaced: a selector may have {{ each.value }} and {{ each.index }}, in a step with forEach", left)
	}
}

// replaceIn replaces it in what is written of a step.
func (e *each) replaceIn(s *Step) {
	s.Selector = fmt.Sprint(e.text("selector.cel", s.Selector))
	s.ExtendedResourceName = e.resource(s.ExtendedResourceName)
	if config, ok := e.in("config", s.Config).(map[string]any); ok && s.Config != nil {
		s.Config = config
	}
}

// in returns a copy of a value of a config for this value of forEach.
func (e *each) in(path string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k := range v {
			out[k] = e.in(ref.Join(path, k), v[k])
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = e.in(fmt.Sprintf("%s[%d]", path, i), v[i])
		}
		return out
	case string:
		return e.text(path, v)
	}
	return v
}

// resource returns the extended resource name of a step for this value.
func (e *each) resource(name string) string { return fmt.Sprint(e.text("extendedResourceName", name)) }

// text returns a text for this value; the index alone is a number.
func (e *each) text(path, text string) any {
	if !strings.Contains(text, "{{") {
		return text
	}
	if m := eachToken.FindStringSubmatch(text); m != nil && m[0] == text && m[1] == "index" {
		return int64(e.index)
	}
	text = eachToken.ReplaceAllStringFunc(text, func(token string) string {
		switch field := eachToken.FindStringSubmatch(token)[1]; field {
		case "value":
			return e.value
		case "index":
			return strconv.Itoa(e.index)
		default:
			e.problems = append(e.problems, Problem{Field: path, Message: fmt.Sprintf("{{ each.%s }}: each has value and index", field)})
			return e.value // what is wrong is reported, and no other problem should follow from it
		}
	})
	return stepToken.ReplaceAllStringFunc(text, func(token string) string {
		name := stepToken.FindStringSubmatch(token)[1]
		return strings.TrimSuffix(token, ".") + e.pairs[name] + "."
	})
}
