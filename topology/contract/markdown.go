package contract

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Elsewhere is a page that describes keys which many step types have.
type Elsewhere struct {
	Title, Link string
	Params      []Param
}

// Markdown renders the documentation page of a step type. Keys that are described elsewhere are
// named with a link; one that this type has in another form is described here.
func Markdown(c Contract, elsewhere ...Elsewhere) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n", c.Type, strings.TrimSpace(c.Summary))
	if d := strings.TrimSpace(c.Description); d != "" {
		fmt.Fprintf(&b, "\n%s\n", d)
	}
	b.WriteString("\n## Keys\n\n")
	own, ignored := c.Params, []string(nil)
	var links []string
	for _, e := range elsewhere {
		var shared []string
		if own, shared = e.split(own); len(shared) > 0 {
			links = append(links, fmt.Sprintf("For %s see [%s](%s).", strings.Join(shared, ", "), e.Title, e.Link))
		}
	}
	own = slices.DeleteFunc(slices.Clone(own), func(p Param) bool {
		effectless := p.Ignored != "" && strings.HasPrefix(p.Description, "accepted")
		if effectless {
			ignored = append(ignored, "`"+p.Name+"`")
		}
		return effectless
	})
	switch {
	case len(c.Params) == 0:
		b.WriteString("None.\n")
	case len(own) > 0:
		b.WriteString(table(own))
	}
	if len(ignored) > 0 {
		fmt.Fprintf(&b, "\nAccepted, without effect: %s.\n", strings.Join(ignored, ", "))
	}
	if len(links) > 0 {
		fmt.Fprintf(&b, "\n%s\n", strings.Join(links, "\n"))
	}
	fmt.Fprintf(&b, "\n## Input\n\n%s\n", c.Input.sentence())
	o := c.Output
	fmt.Fprintf(&b, "\n## Output\n\nInterfaces of the dependencies: %s; added: %s. Addresses: %s; added: %s. Routes: %s; added: %s.\n",
		o.Interfaces.kept(), o.Interfaces.added(), o.IPs.kept(), o.IPs.added(), o.Routes.kept(), o.Routes.added())
	if len(c.Output.Devices) > 0 {
		b.WriteString("\nDevice fields:\n\n")
		for _, p := range c.Output.Devices {
			fmt.Fprintf(&b, "- `%s` (%s): %s\n", p.Name, p.TypeName(), p.Description)
		}
	}
	if c.Explain != "" {
		fmt.Fprintf(&b, "\n%s\n", c.Explain)
	}
	if e := strings.Trim(c.Example, "\n"); e != "" {
		fmt.Fprintf(&b, "\n## Example\n\n```yaml\n%s\n```\n", e)
	}
	return b.String()
}

// Markdown renders the page.
func (e Elsewhere) Markdown(about string) string {
	return fmt.Sprintf("# %s\n\n%s\n\n%s", e.Title, strings.TrimSpace(about), table(e.Params))
}

// split returns the parameters that this page does not describe, and the names of those that it describes.
func (e Elsewhere) split(params []Param) (own []Param, shared []string) {
	for _, p := range params {
		if slices.ContainsFunc(e.Params, func(o Param) bool { return reflect.DeepEqual(o, p) }) {
			shared = append(shared, "`"+p.Name+"`")
		} else {
			own = append(own, p)
		}
	}
	return own, shared
}

// Blocks returns the parameters that several contracts have in the same form, except those of known: each with properties that two
// have, and of the others those with a long description that three have, if no contract has another parameter of the name.
func Blocks(contracts []Contract, known []Param) []Param {
	const longDescription = 50
	in := func(list []Param, p Param) bool {
		return slices.ContainsFunc(list, func(o Param) bool { return reflect.DeepEqual(o, p) })
	}
	var out []Param
	for _, c := range contracts {
		for _, p := range c.Params {
			nested := len(p.Properties) > 0 || p.Items != nil && len(p.Items.Properties) > 0
			if !nested && len(p.Description) < longDescription || in(known, p) || in(out, p) {
				continue
			}
			named, same := 0, 0
			for _, other := range contracts {
				if slices.ContainsFunc(other.Params, func(o Param) bool { return o.Name == p.Name }) {
					named++
				}
				if in(other.Params, p) {
					same++
				}
			}
			if nested && same > 1 || same > 2 && same == named {
				out = append(out, p)
			}
		}
	}
	return out
}

func table(params []Param) string {
	var t tableOfKeys
	t.b.WriteString("| key | value | meaning |\n| --- | --- | --- |\n")
	t.rows("", params)
	return t.b.String()
}

// tableOfKeys remembers the keys with properties that it has described.
type tableOfKeys struct {
	b    strings.Builder
	seen []Param
}

// rows writes one line per parameter, properties after their object. Of a parameter
// that is described already under another one, it says so.
func (t *tableOfKeys) rows(path string, params []Param) {
	for _, p := range params {
		at := child(path, p.Name)
		if slices.ContainsFunc(t.seen, func(s Param) bool { return reflect.DeepEqual(s, p) }) {
			fmt.Fprintf(&t.b, "| `%s` | | as `%s` |\n", at, p.Name)
			continue
		}
		fmt.Fprintf(&t.b, "| `%s` | %s | %s |\n", at, cell(p.value()), cell(p.meaning()))
		t.rows(at, p.Properties)
		if p.Items != nil {
			entry := map[Type]string{List: "[]", Map: ".*"}[p.Type]
			t.rows(at+entry, p.Items.Properties)
		}
		if path == "" && (len(p.Properties) > 0 || p.Items != nil) {
			t.seen = append(t.seen, p)
		}
	}
}

// value describes what a parameter accepts: its type, unless a constraint implies it.
func (p Param) value() string {
	out := p.accepts()
	if implied := p.Type == String || p.Type == Integer && (p.Minimum != nil || p.Maximum != nil); out == "" ||
		!implied || strings.HasPrefix(out, "also") {
		out = strings.TrimSuffix(p.TypeName()+"; "+out, "; ")
	}
	if p.Required {
		out += "; required"
	}
	if d := p.defaultText(); d != "" {
		out += "; default " + d
	}
	return out
}

func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(strings.TrimSpace(s))
}

func (p Param) defaultText() string {
	if p.Default == nil {
		return ""
	}
	if s, ok := p.Default.(string); ok {
		return "`" + s + "`"
	}
	raw, err := json.Marshal(p.Default)
	if err != nil {
		return fmt.Sprint(p.Default)
	}
	return "`" + string(raw) + "`"
}

// accepts describes the constraints of a parameter.
func (p Param) accepts() string {
	var out []string
	if words := p.words(); len(words) > 0 {
		out = append(out, "`"+strings.Join(words, "`, `")+"`")
	}
	if p.FoldCase {
		out = append(out, "in any case")
	}
	if p.OnOff && len(p.words()) == 2 {
		out = append(out, "also a boolean")
	}
	if p.Type == Map && p.Format != "" {
		out = append(out, "keys: "+p.Format.words())
	} else if p.Format != "" {
		out = append(out, p.Format.words())
	}
	switch {
	case p.Minimum != nil && p.Maximum != nil:
		out = append(out, fmt.Sprintf("%d to %d", *p.Minimum, *p.Maximum))
	case p.Minimum != nil:
		out = append(out, fmt.Sprintf("%d or more", *p.Minimum))
	case p.Maximum != nil:
		out = append(out, fmt.Sprintf("%d or less", *p.Maximum))
	}
	switch {
	case p.Scalar:
		out = append(out, "also a number or boolean")
	case p.NumericString && p.Type == Integer:
		out = append(out, "also a string of digits")
	case p.NumericString:
		out = append(out, "also a number")
	}
	switch {
	case p.MinItems > 0 && p.MaxItems > 0:
		out = append(out, fmt.Sprintf("%d to %d entries", p.MinItems, p.MaxItems))
	case p.MinItems > 0:
		out = append(out, fmt.Sprintf("%d entries or more", p.MinItems))
	case p.MaxItems > 0:
		out = append(out, fmt.Sprintf("%d entries or less", p.MaxItems))
	}
	if p.Items != nil {
		if inner := p.Items.accepts(); inner != "" {
			out = append(out, "each: "+inner)
		}
	}
	if p.Shorthand != "" {
		out = append(out, "also its `"+p.Shorthand+"` alone")
	}
	return strings.Join(out, "; ")
}

func (p Param) meaning() string {
	out := p.Description
	if len(p.Aliases) > 0 {
		out += " (also spelled `" + strings.Join(p.Aliases, "`, `") + "`)"
	}
	return out
}

// words describes a format for the documentation.
func (f Format) words() string {
	switch f {
	case MAC:
		return "a MAC address"
	case CIDR:
		return "an address with prefix length"
	case Prefix:
		return "a network with prefix length, or `default`"
	case IP:
		return "an IP address"
	case InterfaceName:
		return "an interface name"
	case PCIAddress:
		return "a PCI address"
	case SysctlPath:
		return "a sysctl below `net.`"
	default:
		return string(f)
	}
}

func (i Input) sentence() string {
	var out []string
	switch {
	case i.Required:
		out = append(out, "A step of this type needs `dependOn`.")
	case i.Device:
		out = append(out, "As a root step it consumes one device.")
	case i.Functions:
		out = append(out, "As a root step it uses one shared device, takes one virtual function, or needs no device.")
	case i.Shares:
		out = append(out, "As a root step it uses one shared device, or what its config names.")
	default:
		out = append(out, "It can be a root step and consumes no device.")
	}
	switch {
	case i.MinInterfaces > 0 && i.MaxInterfaces > 0:
		out = append(out, fmt.Sprintf("Its dependencies give %d to %d interfaces.", i.MinInterfaces, i.MaxInterfaces))
	case i.MinInterfaces == 1:
		out = append(out, "Its dependencies give at least 1 interface.")
	case i.MinInterfaces > 0:
		out = append(out, fmt.Sprintf("Its dependencies give at least %d interfaces.", i.MinInterfaces))
	case i.MaxInterfaces > 0:
		out = append(out, fmt.Sprintf("Its dependencies give at most %d interfaces.", i.MaxInterfaces))
	}
	return strings.Join(out, " ")
}

func (f Flow) kept() string {
	switch {
	case f.Passthrough && f.Modifies:
		return "kept, may change"
	case f.Passthrough:
		return "kept"
	default:
		return "none"
	}
}

func (f Flow) added() string {
	n := fmt.Sprint(f.Appends)
	switch {
	case f.Appends < 0:
		n = "as configured"
	case f.Appends == 0 && f.Conditional:
		return "1, if the device has it"
	}
	if f.Conditional {
		n += ", if the device has it"
	}
	return n
}
