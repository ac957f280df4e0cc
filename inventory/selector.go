package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

// ErrNoDevice is wrapped by the error of First when nothing fits. It may help
// to try again later: a device may be released, or a PF may get more functions.
var ErrNoDevice = errors.New("no free device")

// Selector is a compiled CEL expression over one device. It is safe for
// concurrent use. The zero Selector matches every device, as a DeviceClass
// without selectors does.
type Selector struct {
	expr     string
	compiled cel.CompilationResult
	reads    []resourceapi.QualifiedName // attributes the expression reads, without our own domain
}

// SelectorError is why a selector was refused.
type SelectorError struct {
	Message string // one line; begins with line and column where there are any
}

func (e *SelectorError) Error() string { return "selector.cel: " + e.Message }

// Compile compiles the CEL expression of a selector with the DRA library's
// compiler in the environment the scheduler uses, and refuses what the API
// server would refuse in a DeviceClass: too long, too expensive. The error is
// a *SelectorError.
func Compile(expr string) (Selector, error) {
	if strings.TrimSpace(expr) == "" {
		return Selector{}, &SelectorError{"the expression is empty"}
	}
	if n := len(expr); n > resourceapi.CELSelectorExpressionMaxLength {
		return Selector{}, &SelectorError{fmt.Sprintf("the expression is %d bytes long, at most %d are allowed", n,
			resourceapi.CELSelectorExpressionMaxLength)}
	}
	// The scheduler's (stored) environment is the same for all feature gates; the
	// one named here is on by default since 1.36.
	compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expr, cel.Options{})
	if compiled.Error != nil {
		return Selector{}, &SelectorError{oneLine(compiled.Error.Detail)}
	}
	if compiled.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
		return Selector{}, &SelectorError{fmt.Sprintf("the expression may cost %d units to evaluate, at most %d are allowed",
			compiled.MaxCost, resourceapi.CELSelectorExpressionMaxCost)}
	}
	return Selector{expr: expr, compiled: compiled, reads: attributesRead(compiled)}, nil
}

// String returns the expression on one line.
func (s Selector) String() string { return strings.Join(strings.Fields(s.expr), " ") }

// Match reports whether the device satisfies the selector. An evaluation error
// (a missing attribute, values that cannot be compared) is returned with the
// name of the device. The scheduler gives the whole pod up on such an error,
// on whichever device and node it meets it first; it does not go on to the
// next device.
func (s Selector) Match(ctx context.Context, d Device) (bool, error) {
	if s.expr == "" {
		return true, nil
	}
	return s.MatchPublished(ctx, resourceapi.Device{
		Name: d.Name, AllowMultipleAllocations: new(d.Shared != nil), Attributes: Attributes(d), Capacity: Capacity(d),
	})
}

// MatchPublished is Match of a device of ours in a ResourceSlice.
func (s Selector) MatchPublished(ctx context.Context, d resourceapi.Device) (bool, error) {
	if s.expr == "" {
		return true, nil
	}
	matches, _, err := s.compiled.DeviceMatches(ctx, cel.Device{
		Driver: Driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
	})
	if err != nil {
		return false, fmt.Errorf("device %q: selector.cel: %w", d.Name, err)
	}
	return matches, nil
}

// Networks returns the physical networks for which the selector chooses a device: those
// with which it matches when the device is wired to no other. A selector that says
// nothing of networks chooses it for all of them.
func (s Selector) Networks(ctx context.Context, d Device) []PhysicalNetwork {
	var out []PhysicalNetwork
	for _, n := range d.PhysicalNetworks {
		onNetwork := d
		onNetwork.PhysicalNetwork, onNetwork.PhysicalNetworks = n.Name, []PhysicalNetwork{n}
		if matches, err := s.Match(ctx, onNetwork); err == nil && matches {
			out = append(out, n)
		}
	}
	return out
}

// Unknown returns the attributes of our domain that the expression reads and no
// device ever has. Reading one is an evaluation error, on which the scheduler
// gives the pod up.
func (s Selector) Unknown() []string {
	var out []string
	for _, name := range s.reads {
		if !strings.Contains(string(name), "/") && !slices.Contains(attributeNames, name) {
			out = append(out, string(name))
		}
	}
	return out
}

// Reads reports whether the expression reads one of these attributes of our domain, by a
// constant name.
func (s Selector) Reads(names ...resourceapi.QualifiedName) bool {
	return slices.ContainsFunc(names, func(name resourceapi.QualifiedName) bool { return slices.Contains(s.reads, name) })
}

// First returns the first device, in the order of Compare, that satisfies the
// selector, is not in taken (by ID) and is not kept by the host. Devices on
// which the evaluation fails are passed over.
//
// When there is none, the error wraps ErrNoDevice and says what was searched for,
// how many devices there are, why those that match are not free, where the
// evaluation failed, and which values the attributes in the selector have.
func First(ctx context.Context, devices []Device, s Selector, taken map[string]bool) (Device, error) {
	sorted := slices.SortedFunc(slices.Values(devices), Compare)
	var busy []string
	failed := map[string][]string{} // cause to device names
	for _, d := range sorted {
		matches, err := s.Match(ctx, d)
		switch {
		case ctx.Err() != nil:
			return Device{}, fmt.Errorf("select a device: %w", context.Cause(ctx))
		case err != nil:
			cause := errors.Unwrap(err).Error()
			failed[cause] = append(failed[cause], d.Name)
		case !matches:
		case taken[d.ID]:
			busy = append(busy, d.Name+" (in use)")
		case d.HostUse != "":
			busy = append(busy, d.Name+" ("+d.State()+")")
		default:
			return d, nil
		}
	}
	return Device{}, s.none(sorted, taken, busy, failed)
}

// listMax bounds every list in the error of First.
const listMax = 6

func (s Selector) none(devices []Device, taken map[string]bool, busy []string, failed map[string][]string) error {
	inUse, kept := 0, 0
	for _, d := range devices {
		if taken[d.ID] {
			inUse++
		} else if d.HostUse != "" {
			kept++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d devices, %d in use, %d kept by the host", len(devices), inUse, kept)
	if len(busy) > 0 {
		fmt.Fprintf(&b, "; matching but not free: %s", list(busy))
	}
	for _, cause := range slices.Sorted(maps.Keys(failed)) {
		fmt.Fprintf(&b, "; %s on %s", cause, list(failed[cause]))
	}
	if len(busy) == 0 {
		for _, name := range s.reads {
			fmt.Fprintf(&b, "; %s is %s", name, seen(devices, name))
		}
	}
	want := "of any kind"
	if s.expr != "" {
		want = "matches " + quote(s.String())
	}
	return fmt.Errorf("%w %s: %s", ErrNoDevice, want, b.String())
}

// seen lists the values an attribute has, the commonest first.
func seen(devices []Device, name resourceapi.QualifiedName) string {
	count := map[string]int{}
	for _, d := range devices {
		value := "not set"
		if a, ok := Attributes(d)[name]; ok {
			switch {
			case a.StringValue != nil:
				value = strconv.Quote(*a.StringValue)
			case a.BoolValue != nil:
				value = strconv.FormatBool(*a.BoolValue)
			case a.IntValue != nil:
				value = strconv.FormatInt(*a.IntValue, 10)
			}
		}
		count[value]++
	}
	values := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(count[b]-count[a], strings.Compare(a, b))
	})
	for i, v := range values {
		values[i] = fmt.Sprintf("%s on %d", v, count[v])
	}
	if len(values) == 0 {
		return "not set"
	}
	return list(values)
}

func list(items []string) string {
	if more := len(items) - listMax; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(items[:listMax], ", "), more)
	}
	return strings.Join(items, ", ")
}

// quote uses back quotes where it can: expressions are full of double ones.
func quote(s string) string {
	if strconv.CanBackquote(s) {
		return "`" + s + "`"
	}
	return strconv.Quote(s)
}

// oneLine turns the compiler's report, which draws the source with a caret
// below each error, into "1:8: what is wrong; 2:3: what else".
func oneLine(report string) string {
	var found []string
	for line := range strings.Lines(report) {
		_, message, ok := strings.Cut(line, "ERROR: <input>:")
		if !ok {
			continue
		}
		if at, rest, ok := strings.Cut(message, ": Syntax error: token recognition error at: '="); ok && !strings.HasPrefix(rest, "=") {
			// What the parser says of the rest follows from it.
			return at + `: "=" is not an operator, did you mean "=="?`
		}
		found = append(found, explained(strings.TrimSpace(message)))
	}
	if len(found) == 0 {
		return strings.Join(strings.Fields(report), " ")
	}
	if more := len(found) - listMax; more > 0 {
		found = append(found[:listMax], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(found, "; ")
}

var (
	wordOperator = regexp.MustCompile(`^([0-9:]+): Syntax error: mismatched input '(and|or)' expecting <EOF>$`)
	undeclared   = regexp.MustCompile(`undeclared reference to '(\w+)' \(in container ''\)$`)
	ofAttributes = regexp.MustCompile(`found no matching overload for '.*' applied to '.*map\(string, dyn\)`)
)

// explained adds the probable mistake to a message of the compiler, which has no types of error.
func explained(message string) string {
	if m := wordOperator.FindStringSubmatch(message); m != nil {
		return fmt.Sprintf("%s: %q is not an operator, did you mean %q?", m[1], m[2], map[string]string{"and": "&&", "or": "||"}[m[2]])
	}
	domain, _, _ := strings.Cut(Driver, ".")
	m := undeclared.FindStringSubmatch(message)
	switch {
	case m != nil && m[1] == domain:
		return message + fmt.Sprintf(": write %q in quotes", Driver)
	case m != nil && slices.Contains(AttributeNames(), m[1]):
		return message + ": write " + expressionOf(qualified(Driver, m[1]))
	case ofAttributes.MatchString(message):
		return message + ": attributes are by domain, as in " + expressionOf(AttrIfName)
	}
	return message
}

// attributesRead returns the attributes an expression reads by a constant name,
// in any of the ways CEL offers: .name, ["name"], .?name, [?"name"], has(), and
// through a variable of cel.bind.
func attributesRead(compiled cel.CompilationResult) []resourceapi.QualifiedName {
	parsed, issues := compiled.Environment.Parse(compiled.Expression)
	if issues != nil && issues.Err() != nil {
		return nil
	}
	r := newAttributeReader()
	found := map[resourceapi.QualifiedName]bool{}
	ast.PreOrderVisit(parsed.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		r.bind(e)
		if name, ok := r.read(e); ok {
			found[name] = true
		}
	}))
	return slices.Sorted(maps.Keys(found))
}

// attributeReader finds the attributes in an expression.
type attributeReader struct {
	bound map[string]string // variable of cel.bind to domain
}

func newAttributeReader() attributeReader { return attributeReader{map[string]string{}} }

// bind remembers a variable of cel.bind, which is the initial value of a comprehension.
func (r attributeReader) bind(e ast.Expr) {
	if e.Kind() != ast.ComprehensionKind {
		return
	}
	c := e.AsComprehension()
	if domain, ok := r.domain(c.AccuInit()); ok {
		r.bound[c.AccuVar()] = domain
	}
}

// domain returns the domain of which an expression is all attributes.
func (r attributeReader) domain(e ast.Expr) (string, bool) {
	if e.Kind() == ast.IdentKind {
		domain, ok := r.bound[e.AsIdent()]
		return domain, ok
	}
	object, domain, ok := member(e)
	if !ok || object.Kind() != ast.SelectKind || object.AsSelect().FieldName() != "attributes" {
		return "", false
	}
	return domain, isDevice(object.AsSelect().Operand())
}

// read returns the attribute that an expression reads, without our own domain.
func (r attributeReader) read(e ast.Expr) (resourceapi.QualifiedName, bool) {
	object, id, ok := member(e)
	if !ok {
		return "", false
	}
	domain, ok := r.domain(object)
	return qualified(domain, id), ok
}

func qualified(domain, id string) resourceapi.QualifiedName {
	if domain == Driver {
		return resourceapi.QualifiedName(id)
	}
	return resourceapi.QualifiedName(domain + "/" + id)
}

// member splits o.name, o["name"] and their optional forms.
func member(e ast.Expr) (object ast.Expr, name string, ok bool) {
	if e.Kind() == ast.SelectKind {
		return e.AsSelect().Operand(), e.AsSelect().FieldName(), true
	}
	if e.Kind() != ast.CallKind {
		return nil, "", false
	}
	switch call := e.AsCall(); call.FunctionName() {
	case operators.Index, operators.OptIndex, operators.OptSelect:
		if args := call.Args(); len(args) == 2 && args[1].Kind() == ast.LiteralKind {
			name, ok = args[1].AsLiteral().Value().(string)
			return args[0], name, ok
		}
	}
	return nil, "", false
}
