package inventory

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

// valueType is the type of an attribute's values, in the words of messages.
type valueType string

const (
	aString  valueType = "a string"
	aBoolean valueType = "a boolean"
	aNumber  valueType = "a number"
)

// attributeType describes an attribute that devices are published with.
type attributeType struct {
	values valueType
	always bool // each device has it
	ofPCI  bool // each function of a PCI card has it
}

// publishedAttributes are the attributes of Attributes, apart from those that policies add.
var publishedAttributes = map[resourceapi.QualifiedName]attributeType{
	AttrType: {aString, true, true}, AttrIfName: {aString, true, true}, AttrPFName: {aString, true, true}, AttrRDMA: {aBoolean, true, true},
	AttrPhysicalNetwork: {aString, true, true}, AttrPhysicalNets: {aString, true, true}, AttrSharedBy: {aString, true, true},
	AttrVendor: {aString, false, true}, AttrDevice: {aString, false, true}, AttrDriver: {aString, false, false},
	AttrSwitch: {aString, false, false}, AttrSwitchPort: {aString, false, false}, AttrRail: {aString, false, false},
	AttrLinkType: {aString, false, false}, AttrRDMANetns: {aString, false, false},
	AttrNetworks: {aString, false, false}, AttrNUMANode: {aNumber, false, false}, AttrVFIndex: {aNumber, false, false},
	attrDeviceK8sPCIeRoot:                           {aString, false, true},
	deviceattribute.StandardDeviceAttributePCIeRoot: {aString, false, true},
	deviceattribute.StandardDeviceAttributePCIBusID: {aString, false, true},
	deviceattribute.StandardDeviceAttributeNUMANode: {aNumber, false, false},
}

// maxDoubts bounds the remarks on one selector.
const maxDoubts = 8

// Doubts are remarks on an expression that compiles and probably means something else: CEL compares attributes when
// a device is selected, so that the compiler accepts values of any type, and any domain. additional are the names of
// attributes that policies add, as domain/name; nil if they are not known. similar returns the name among others that was
// probably meant, "" for none.
func (s Selector) Doubts(additional []string, similar func(name string, others []string) string) []string {
	parsed, issues := s.compiled.Environment.Parse(s.expr)
	if s.expr == "" || issues != nil && issues.Err() != nil {
		return nil
	}
	d := &doubter{attributes: newAttributeReader(), guarded: map[resourceapi.QualifiedName]bool{}, additional: additional, similar: similar}
	root := parsed.NativeRep().Expr()
	ast.PreOrderVisit(root, ast.NewExprVisitor(d.attributes.bind))
	ast.PreOrderVisit(root, ast.NewExprVisitor(d.guard))
	ast.PreOrderVisit(root, ast.NewExprVisitor(d.visit))
	d.truth(root)
	for _, name := range s.reads {
		d.missing(name, s.Reads(AttrType, AttrPFName))
	}
	return d.found[:min(len(d.found), maxDoubts)]
}

type doubter struct {
	attributes attributeReader
	guarded    map[resourceapi.QualifiedName]bool // that are tested before they are read, or read as optional
	additional []string
	similar    func(name string, others []string) string
	found      []string
}

func (d *doubter) say(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(d.found, text) {
		d.found = append(d.found, text)
	}
}

// hint names what was probably meant.
func (d *doubter) hint(name string, others []string) string {
	if similar := d.similar(name, others); similar != "" {
		return fmt.Sprintf(", did you mean %q?", similar)
	}
	return ""
}

// expressionOf returns an attribute as expressions write it.
func expressionOf(name resourceapi.QualifiedName) string {
	domain, id, ok := strings.Cut(string(name), "/")
	if !ok {
		domain, id = Driver, string(name)
	}
	return fmt.Sprintf("device.attributes[%q].%s", domain, id)
}

// guard finds what is tested for: has(a.name), a[?"name"], a.?name and "name" in a.
func (d *doubter) guard(e ast.Expr) {
	name, known := d.attributes.read(e)
	switch {
	case known && e.Kind() == ast.SelectKind && e.AsSelect().IsTestOnly(),
		known && e.Kind() == ast.CallKind && e.AsCall().FunctionName() != operators.Index:
		d.guarded[name] = true
	case e.Kind() == ast.CallKind && e.AsCall().FunctionName() == operators.In:
		args := e.AsCall().Args()
		domain, ok := d.attributes.domain(args[1])
		if id, isText := literal(args[0]); ok && isText {
			if text, ok := id.Value().(string); ok {
				d.guarded[qualified(domain, text)] = true
			}
		}
	}
}

// visit compares the types of attributes with what is done with them.
func (d *doubter) visit(e ast.Expr) {
	if e.Kind() != ast.CallKind {
		return
	}
	call := e.AsCall()
	args := call.Args()
	switch call.FunctionName() {
	case operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		d.compared(args[0], args[1])
		d.compared(args[1], args[0])
	case operators.In:
		if args[1].Kind() == ast.ListKind {
			for _, element := range args[1].AsList().Elements() {
				d.compared(args[0], element)
			}
		}
	case operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot:
		for _, arg := range args {
			d.truth(arg)
		}
	case "startsWith", "endsWith", "contains", "matches", "split", "lowerAscii", "upperAscii", "find":
		if !call.IsMemberFunction() {
			return
		}
		if name, of, ok := d.typed(call.Target()); ok && of.values != aString {
			d.say("%s is %s and has no function %s, so that the scheduler gives up the pod: compare it with ==", expressionOf(name),
				of.values, call.FunctionName())
		}
	}
}

// typed returns what is known of the attribute that an expression reads, also as optional with a value instead.
func (d *doubter) typed(e ast.Expr) (resourceapi.QualifiedName, attributeType, bool) {
	if e.Kind() == ast.CallKind && e.AsCall().IsMemberFunction() && e.AsCall().FunctionName() == "orValue" {
		e = e.AsCall().Target()
	}
	name, ok := d.attributes.read(e)
	if !ok {
		return "", attributeType{}, false
	}
	of, known := publishedAttributes[name]
	return name, of, known
}

// compared doubts a comparison of an attribute with a value of another type. CEL says of == and != that they differ.
func (d *doubter) compared(attribute, with ast.Expr) {
	value, isLiteral := literal(with)
	if !isLiteral {
		return
	}
	if attribute.Kind() == ast.SelectKind && attribute.AsSelect().FieldName() == "driver" && isDevice(attribute.AsSelect().Operand()) {
		if text, ok := value.Value().(string); ok && text != Driver {
			d.say("device.driver is %q for each device that a step can have, and is compared with %q: "+
				"use device.attributes[%q].driver for the driver of the kernel", Driver, text, Driver)
		}
		return
	}
	name, of, known := d.typed(attribute)
	if have := typeOf(value); known && have != "" && have != of.values {
		d.say("%s is %s and is compared with %s, %s, which it never equals: %s", expressionOf(name), of.values, quoted(value), have,
			inPlace(value, of.values))
		return
	}
	if text, ok := value.Value().(string); ok && !instead(attribute, text) {
		d.valued(name, text)
	}
}

// instead reports whether a text is what an expression has where the attribute is missing.
func instead(e ast.Expr, text string) bool {
	if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != "orValue" || len(e.AsCall().Args()) != 1 {
		return false
	}
	value, ok := literal(e.AsCall().Args()[0])
	return ok && value.Value() == text
}

// valuesOf are all values of attributes that have few.
var valuesOf = map[resourceapi.QualifiedName][]string{
	AttrLinkType:  {string(Ethernet), string(InfiniBand)},
	AttrRDMANetns: {RDMAExclusive, RDMAShared},
}

var pciID = regexp.MustCompile(`^[0-9a-f]{4}$`)

// valued doubts a text that is no value of an attribute.
func (d *doubter) valued(name resourceapi.QualifiedName, text string) {
	if values := valuesOf[name]; values != nil && !slices.Contains(values, text) {
		d.say("%s is %s, and never equals %q%s", expressionOf(name), strings.Join(values, " or "), text, d.hint(text, values))
	}
	if (name == AttrVendor || name == AttrDevice) && text != "" && !pciID.MatchString(text) {
		hint := ""
		if meant := strings.TrimPrefix(strings.ToLower(text), "0x"); pciID.MatchString(meant) {
			hint = fmt.Sprintf(": write %q", meant)
		}
		d.say("%s is four digits of 0-9 and a-f, and never equals %q%s", expressionOf(name), text, hint)
	}
}

func quoted(value ref.Val) string {
	if text, ok := value.Value().(string); ok {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprint(value.Value())
}

// inPlace says what to write instead of a value of another type.
func inPlace(value ref.Val, want valueType) string {
	text := fmt.Sprint(value.Value())
	switch {
	case want == aString:
		return fmt.Sprintf("write %q", text)
	case want == aBoolean && (text == "true" || text == "false"), want == aNumber && text != "" && strings.Trim(text, "0123456789") == "":
		return "write " + text + " without quotes"
	case want == aBoolean:
		return "write true or false"
	}
	return "write a number"
}

func typeOf(value ref.Val) valueType {
	switch value.Type() {
	case types.StringType:
		return aString
	case types.BoolType:
		return aBoolean
	case types.IntType, types.UintType, types.DoubleType:
		return aNumber
	}
	return ""
}

// truth doubts an attribute in the place of a condition.
func (d *doubter) truth(e ast.Expr) {
	if e.Kind() == ast.SelectKind && e.AsSelect().IsTestOnly() {
		return
	}
	if name, of, ok := d.typed(e); ok && of.values != aBoolean {
		d.say("%s is %s and no condition, so that the scheduler gives up the pod: compare it, as in %s != \"\"", expressionOf(name),
			of.values, expressionOf(name))
	}
}

// missing doubts an attribute that some device lacks. functions says that the expression is about functions of PCI
// cards: it is false for others, and then what they lack does not matter.
func (d *doubter) missing(name resourceapi.QualifiedName, functions bool) {
	domain, id, foreign := strings.Cut(string(name), "/")
	of, known := publishedAttributes[name]
	switch {
	case known && (of.always || of.ofPCI && functions || d.guarded[name]):
	case known:
		d.say("not every device has the attribute %q, and the scheduler gives up a pod whose selector reads a missing one: "+
			"write has(%s) && before it", string(name), expressionOf(name))
	case !foreign: // see Unknown
	case domain == standardDomain:
		d.say("no device has an attribute %q%s", name, d.hint(string(name), standardNames()))
	case d.additional != nil && !slices.Contains(d.additional, string(name)):
		d.say("no device has an attribute %q: no DeviceExposurePolicy adds it%s", name, d.hint(string(name), d.additional))
	case d.additional == nil && d.similar(domain, []string{Driver, standardDomain}) != "",
		d.additional == nil && slices.Contains(attributeNames, resourceapi.QualifiedName(id)):
		similar := cmp.Or(d.similar(domain, []string{Driver, standardDomain}), Driver)
		d.say("no device has attributes of the domain %q, unless a DeviceExposurePolicy adds them: did you mean %q?", domain, similar)
	}
}

// standardDomain is that of the attributes which Kubernetes defines.
var standardDomain = strings.TrimSuffix(deviceattribute.StandardDeviceAttributePrefix, "/")

func standardNames() (out []string) {
	for name := range publishedAttributes {
		if strings.HasPrefix(string(name), deviceattribute.StandardDeviceAttributePrefix) {
			out = append(out, string(name))
		}
	}
	slices.Sort(out)
	return out
}

func literal(e ast.Expr) (ref.Val, bool) {
	if e.Kind() != ast.LiteralKind {
		return nil, false
	}
	return e.AsLiteral(), true
}

func isDevice(e ast.Expr) bool { return e.Kind() == ast.IdentKind && e.AsIdent() == "device" }
