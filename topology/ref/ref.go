package ref

import (
	"fmt"
	"strconv"
	"strings"
)

// Ref is a reference to one field of a step's result.
type Ref struct {
	Step  string
	Field string
	Index *int   // of a list's element, as in ips[0]
	Sub   string // of an element, as in ips[0].address
}

// Each reports whether the reference is to several steps: those whose names begin as its step does, before a "*".
func (r Ref) Each() bool { return strings.HasSuffix(r.Step, each) }

// Means reports whether a step is one that the reference is to.
func (r Ref) Means(step string) bool {
	if prefix, several := strings.CutSuffix(r.Step, each); several {
		return strings.HasPrefix(step, prefix)
	}
	return r.Step == step
}

// Path returns the reference without its step: "ips[0].address".
func (r Ref) Path() string {
	s := r.Field
	if r.Index != nil {
		s += "[" + strconv.Itoa(*r.Index) + "]"
	}
	if r.Sub != "" {
		s += "." + r.Sub
	}
	return s
}

// String returns the reference as written: "{{ step.field }}".
func (r Ref) String() string { return "{{ " + r.Step + "." + r.Path() + " }}" }

// SyntaxError is a malformed template.
type SyntaxError struct {
	Text   string
	Column int // in characters, from 1
	Reason string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("column %d of %q: %s", e.Column, around(e.Text, e.Column), e.Reason)
}

// around cuts a long text to the part around a column, to bound a message.
func around(text string, column int) string {
	const reach = 60 // characters on both sides
	runes := []rune(text)
	if len(runes) <= 2*reach {
		return text
	}
	from, to := max(0, column-reach), min(len(runes), column+reach)
	cut := string(runes[from:to])
	if from > 0 {
		cut = "…" + cut
	}
	if to < len(runes) {
		cut += "…"
	}
	return cut
}

// Template is a parsed string: text and references.
type Template struct {
	parts []part
}

// part is text, or a reference when ref is not nil.
type part struct {
	text string
	ref  *Ref
}

const (
	opening = "{{"
	closing = "}}"
	each    = "*"
)

// Parse parses a string. An error is a *SyntaxError.
func Parse(s string) (Template, error) { return parse(parser{text: s}) }

// ParseLists is Parse for a string in which a reference may be to several steps, as in "{{ rail*.interfaceName }}".
func ParseLists(s string) (Template, error) { return parse(parser{text: s, lists: true}) }

func parse(p parser) (Template, error) {
	s := p.text
	var t Template
	for p.pos < len(s) {
		i := strings.Index(s[p.pos:], opening)
		if i < 0 {
			t.addText(s[p.pos:])
			break
		}
		t.addText(s[p.pos : p.pos+i])
		p.pos += i
		if err := p.token(&t); err != nil {
			return Template{}, err
		}
	}
	return t, nil
}

func (t *Template) addText(s string) {
	if s == "" {
		return
	}
	if n := len(t.parts); n > 0 && t.parts[n-1].ref == nil {
		t.parts[n-1].text += s
		return
	}
	t.parts = append(t.parts, part{text: s})
}

// Refs returns the references in order.
func (t Template) Refs() []Ref {
	var out []Ref
	for _, p := range t.parts {
		if p.ref != nil {
			out = append(out, *p.ref)
		}
	}
	return out
}

// Whole returns the reference when the template is one token and nothing else.
func (t Template) Whole() (Ref, bool) {
	if len(t.parts) == 1 && t.parts[0].ref != nil {
		return *t.parts[0].ref, true
	}
	return Ref{}, false
}

// parser reads one string from pos.
type parser struct {
	text  string
	pos   int
	lists bool // a step may be a prefix with "*"
}

func (p *parser) fail(at int, format string, args ...any) error {
	return &SyntaxError{Text: p.text, Column: len([]rune(p.text[:at])) + 1, Reason: fmt.Sprintf(format, args...)}
}

// token reads from "{{" to "}}".
func (p *parser) token(t *Template) error {
	start := p.pos
	p.pos += len(opening)
	p.space()
	if strings.HasPrefix(p.text[p.pos:], `"`) {
		return p.quoted(t, start)
	}
	if strings.HasPrefix(p.text[p.pos:], closing) {
		return p.fail(start, `"{{ }}" is empty: write {{ step.field }}`)
	}
	r, err := p.reference(start)
	if err != nil {
		return err
	}
	if err := p.end(start); err != nil {
		return err
	}
	t.parts = append(t.parts, part{ref: &r})
	return nil
}

// quoted reads a text token; the quote is the next character.
func (p *parser) quoted(t *Template, start int) error {
	p.pos++
	i := strings.IndexByte(p.text[p.pos:], '"')
	if i < 0 {
		return p.fail(p.pos-1, `the quoted text has no end: a second " is missing`)
	}
	text := p.text[p.pos : p.pos+i]
	p.pos += i + 1
	if err := p.end(start); err != nil {
		return err
	}
	t.addText(text)
	return nil
}

// reference reads step.field[index].sub.
func (p *parser) reference(start int) (Ref, error) {
	var r Ref
	var err error
	if !p.lists || p.peek() != each[0] {
		if r.Step, err = p.ident(start, "a step name", isStepByte); err != nil {
			return r, err
		}
	}
	if p.lists && p.accept(each[0]) {
		r.Step += each
	}
	if !p.accept('.') {
		if p.peek() == '[' {
			return r, p.fail(p.pos, "a step has no index: write {{ %s.field[N] }}", r.Step)
		}
		if err := p.end(start); err != nil {
			return r, err
		}
		return r, p.fail(start, "%q names no field: write {{ %s.field }}, for example {{ %s.interfaceName }}", r.Step, r.Step, r.Step)
	}
	if r.Field, err = p.ident(start, "a field name", isFieldByte); err != nil {
		return r, err
	}
	if p.peek() == '[' {
		if r.Index, err = p.index(start); err != nil {
			return r, err
		}
	}
	if p.accept('.') {
		if r.Sub, err = p.ident(start, "a field name", isFieldByte); err != nil {
			return r, err
		}
	}
	if c := p.peek(); c == '.' || c == '[' {
		return r, p.fail(p.pos, "a reference goes no deeper than {{ step.field[N].field }}")
	}
	return r, nil
}

// maxIndex bounds N in [N]; no result has that many entries.
const maxIndex = 9999

func (p *parser) index(start int) (*int, error) {
	p.pos++
	p.space()
	from := p.pos
	for p.peek() >= '0' && p.peek() <= '9' {
		p.pos++
	}
	digits := p.text[from:p.pos]
	p.space()
	if p.pos >= len(p.text) {
		return nil, p.fail(start, `"{{" has no matching "}}"`)
	}
	if !p.accept(']') || digits == "" {
		return nil, p.fail(from, "an index is a number in brackets, as in [0]")
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n > maxIndex {
		return nil, p.fail(from, "index %s is too large", digits)
	}
	return &n, nil
}

func (p *parser) ident(start int, what string, ok func(byte) bool) (string, error) {
	from := p.pos
	for p.pos < len(p.text) && ok(p.text[p.pos]) {
		p.pos++
	}
	if p.pos > from {
		return p.text[from:p.pos], nil
	}
	if p.pos >= len(p.text) {
		return "", p.fail(start, `"{{" has no matching "}}"`)
	}
	if strings.HasPrefix(p.text[p.pos:], closing) {
		return "", p.fail(p.pos, "%s is missing", what)
	}
	return "", p.fail(p.pos, "%s cannot hold %q", what, p.rune())
}

// end reads optional space and "}}".
func (p *parser) end(start int) error {
	p.space()
	if strings.HasPrefix(p.text[p.pos:], closing) {
		p.pos += len(closing)
		return nil
	}
	if rest := p.text[p.pos:]; rest == "" || rest == "}" {
		return p.fail(start, `"{{" has no matching "}}"`)
	}
	return p.fail(p.pos, `unexpected %q: a reference is {{ step.field }}, and a literal "{{" is written {{ "{{" }}`, p.rune())
}

func (p *parser) rune() rune {
	for _, r := range p.text[p.pos:] {
		return r
	}
	return 0
}

func (p *parser) peek() byte {
	if p.pos < len(p.text) {
		return p.text[p.pos]
	}
	return 0
}

func (p *parser) accept(c byte) bool {
	if p.peek() == c {
		p.pos++
		return true
	}
	return false
}

func (p *parser) space() {
	for c := p.peek(); c == ' ' || c == '\t' || c == '\n' || c == '\r'; c = p.peek() {
		p.pos++
	}
}

// isStepByte accepts more than step names have: a name that no step has is refused later,
// by name.
func isStepByte(c byte) bool { return isFieldByte(c) || c == '-' }

func isFieldByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}
