package docs

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology/contract"
)

// sharedPage is a page that describes keys which many step types have.
type sharedPage struct {
	Title, Link string
	Params      []contract.Param
	Whole       bool             // a type that has all Params has them by the title, not by their names
	Results     []contract.Param // device fields that the page describes
}

// stepPage renders the documentation page of a step type. Keys that are described elsewhere are
// named with a link; one that this type has in another form is described here.
func stepPage(c contract.Contract, elsewhere ...sharedPage) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s %s\n", c.Type, strings.TrimSpace(c.Summary), flows(c))
	if d := strings.TrimSpace(c.Description); d != "" {
		fmt.Fprintf(&b, "\n%s\n", d)
	}
	b.WriteString("\n## Keys\n\n")
	own, links := c.Params, []string(nil)
	for _, e := range elsewhere {
		var shared []string
		if own, shared = e.split(own); len(shared) == 0 {
			continue
		}
		if e.Whole && len(shared) == len(e.Params) {
			links = append(links, fmt.Sprintf("[%s](%s)", e.Title, e.Link))
		} else {
			links = append(links, fmt.Sprintf("%s ([%s](%s))", strings.Join(shared, ", "), e.Title, e.Link))
		}
	}
	own, refused := withPrefix(own, "refused", func(p contract.Param) bool { return p.Type == contract.Any })
	own, ignored := withPrefix(own, "accepted", func(p contract.Param) bool { return p.Ignored != "" })
	switch {
	case len(c.Params) == 0:
		b.WriteString("None.\n")
	case len(own) > 0:
		b.WriteString(listOf(own))
	}
	for _, list := range []struct {
		title string
		names []string
	}{{"Also", links}, {"Without effect", ignored}, {"Refused, with advice", refused}} {
		if len(list.names) > 0 {
			fmt.Fprintf(&b, "\n%s: %s.\n", list.title, strings.Join(list.names, ", "))
		}
	}
	b.WriteString(results(c.Output.Devices, elsewhere))
	if c.Explain != "" {
		fmt.Fprintf(&b, "\n%s\n", c.Explain)
	}
	if e := strings.Trim(c.Example, "\n"); e != "" {
		fmt.Fprintf(&b, "\n```yaml\n%s\n```\n", e)
	}
	return b.String()
}

// withPrefix takes the parameters with such a description out of params, and returns their names.
func withPrefix(params []contract.Param, prefix string, also func(contract.Param) bool) (rest []contract.Param, names []string) {
	for _, p := range params {
		if strings.HasPrefix(p.Description, prefix) && also(p) {
			names = append(names, "`"+p.Name+"`")
		} else {
			rest = append(rest, p)
		}
	}
	return rest, names
}

// results lists device fields, of those that another page describes the names.
func results(fields []contract.Param, elsewhere []sharedPage) string {
	var out []string
	for _, e := range elsewhere {
		var names []string
		fields = slices.DeleteFunc(slices.Clone(fields), func(p contract.Param) bool {
			if e.describes(p) {
				names = append(names, "`"+p.Name+"`")
			}
			return e.describes(p)
		})
		if len(names) > 0 {
			out = append(out, fmt.Sprintf("%s ([%s](%s#device-fields))", strings.Join(names, ", "), e.Title, e.Link))
		}
	}
	for _, p := range fields {
		out = append(out, fmt.Sprintf("`%s` (%s): %s", p.Name, p.TypeName(), p.Description))
	}
	if len(out) == 0 {
		return ""
	}
	return fmt.Sprintf("\nDevice fields: %s.\n", strings.Join(out, "; "))
}

func (e sharedPage) describes(field contract.Param) bool {
	return slices.ContainsFunc(e.Results, func(p contract.Param) bool { return reflect.DeepEqual(p, field) })
}

// markdown renders the page.
func (e sharedPage) markdown(about string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\n%s", e.Title, strings.TrimSpace(about), listOf(e.Params))
	if len(e.Results) > 0 {
		b.WriteString("\n## Device fields\n\n")
	}
	for _, p := range e.Results {
		b.WriteString(entry(p.Name, nil, p.TypeName(), p.Description))
	}
	return b.String()
}

// sharedResults returns the device fields that several contracts have in the same form.
func sharedResults(contracts []contract.Contract) []contract.Param {
	var all, out []contract.Param
	for _, c := range contracts {
		for _, p := range c.Output.Devices {
			same := func(o contract.Param) bool { return reflect.DeepEqual(o, p) }
			if slices.ContainsFunc(all, same) && !slices.ContainsFunc(out, same) {
				out = append(out, p)
			}
			all = append(all, p)
		}
	}
	return out
}

// split returns the parameters that this page does not describe, and the names of those that it describes.
func (e sharedPage) split(params []contract.Param) (own []contract.Param, shared []string) {
	for _, p := range params {
		if slices.ContainsFunc(e.Params, func(o contract.Param) bool { return reflect.DeepEqual(o, p) }) {
			shared = append(shared, "`"+p.Name+"`")
		} else {
			own = append(own, p)
		}
	}
	return own, shared
}

// sharedParams returns the parameters that several contracts have in the same form, except those of known: each with properties that two
// have, and of the others those with a long description that three have, if no contract has another parameter of the name.
func sharedParams(contracts []contract.Contract, known []contract.Param) []contract.Param {
	const longDescription = 50
	in := func(list []contract.Param, p contract.Param) bool {
		return slices.ContainsFunc(list, func(o contract.Param) bool { return reflect.DeepEqual(o, p) })
	}
	var out []contract.Param
	for _, c := range contracts {
		for _, p := range c.Params {
			nested := len(p.Properties) > 0 || p.Items != nil && len(p.Items.Properties) > 0
			if !nested && len(p.Description) < longDescription || in(known, p) || in(out, p) {
				continue
			}
			named, same := 0, 0
			for _, other := range contracts {
				if slices.ContainsFunc(other.Params, func(o contract.Param) bool { return o.Name == p.Name }) {
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

// listOf returns a list with one entry per parameter.
func listOf(params []contract.Param) string {
	var l keyList
	l.add("", params)
	return l.b.String()
}

// keyList remembers the keys with properties that it has described.
type keyList struct {
	b    strings.Builder
	seen []contract.Param
}

// add writes one entry per parameter, properties after their object. A parameter that
// is described under another one already gets a reference to that.
func (t *keyList) add(path string, params []contract.Param) {
	for _, p := range params {
		at := strings.TrimPrefix(path+"."+p.Name, ".")
		if slices.ContainsFunc(t.seen, func(s contract.Param) bool { return reflect.DeepEqual(s, p) }) {
			t.b.WriteString(entry(at, nil, "", "as `"+p.Name+"`"))
			continue
		}
		t.b.WriteString(entry(at, p.Aliases, valueOf(p), p.Description))
		t.add(at, p.Properties)
		if p.Items != nil {
			suffix := map[contract.Type]string{contract.List: "[]", contract.Map: ".*"}[p.Type]
			t.add(at+suffix, p.Items.Properties)
		}
		if path == "" && (len(p.Properties) > 0 || p.Items != nil) {
			t.seen = append(t.seen, p)
		}
	}
}

// valueOf describes what a parameter accepts: its type, unless a constraint implies it.
func valueOf(p contract.Param) string {
	out := accepted(p)
	if implied := p.Type == contract.String || p.Type == contract.Integer && (p.Minimum != nil || p.Maximum != nil); out == "" ||
		!implied || strings.HasPrefix(out, "also") {
		out = strings.TrimSuffix(p.TypeName()+"; "+out, "; ")
	}
	if p.Required {
		out += "; required"
	}
	if d := defaultOf(p); d != "" {
		out += "; default " + d
	}
	return out
}

// entry is a line of a list: the name with other spellings, its value in parentheses, and a description.
func entry(name string, aliases []string, value, description string) string {
	out := "- `" + strings.Join(append([]string{name}, aliases...), "`, `") + "`"
	if value != "" {
		out += " (" + value + ")"
	}
	if d := strings.Join(strings.Fields(description), " "); d != "" {
		out += ": " + d
	}
	return out + "\n"
}

func defaultOf(p contract.Param) string {
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

// accepted describes the constraints of a parameter.
func accepted(p contract.Param) string {
	var out []string
	words := p.Enum
	if p.OnOff && len(words) == 0 {
		words = []string{"on", "off"}
	}
	if len(words) > 0 {
		out = append(out, "`"+strings.Join(words, "`, `")+"`")
	}
	if p.FoldCase {
		out = append(out, "in any case")
	}
	if p.OnOff && len(words) == 2 {
		out = append(out, "also a boolean")
	}
	if p.Type == contract.Map && p.Format != "" {
		out = append(out, "keys: "+formatText(p.Format))
	} else if p.Format != "" {
		out = append(out, formatText(p.Format))
	}
	switch {
	case p.Minimum != nil && p.Maximum != nil:
		out = append(out, fmt.Sprintf("%d–%d", *p.Minimum, *p.Maximum))
	case p.Minimum != nil:
		out = append(out, fmt.Sprintf("at least %d", *p.Minimum))
	case p.Maximum != nil:
		out = append(out, fmt.Sprintf("at most %d", *p.Maximum))
	}
	switch {
	case p.Scalar && len(words) > 0: // one of them
		out = append(out, "also as a number")
	case p.Scalar:
		out = append(out, "also a number or boolean")
	case p.NumericString && p.Type == contract.Integer:
		out = append(out, "also a string of digits")
	case p.NumericString:
		out = append(out, "also a number")
	}
	switch {
	case p.MinItems > 0 && p.MaxItems > 0:
		out = append(out, fmt.Sprintf("%d–%d entries", p.MinItems, p.MaxItems))
	case p.MinItems == 1:
		out = append(out, "at least 1 entry")
	case p.MinItems > 0:
		out = append(out, fmt.Sprintf("at least %d entries", p.MinItems))
	case p.MaxItems > 0:
		out = append(out, fmt.Sprintf("at most %d entries", p.MaxItems))
	}
	if p.Items != nil {
		if inner := accepted(*p.Items); inner != "" {
			out = append(out, "each: "+inner)
		}
	}
	if p.Shorthand != "" {
		out = append(out, "also its `"+p.Shorthand+"` alone")
	}
	return strings.Join(out, "; ")
}

// formatText describes a format for the documentation.
func formatText(f contract.Format) string {
	switch f {
	case contract.MAC:
		return "MAC address"
	case contract.GUID:
		return "GUID of InfiniBand"
	case contract.CIDR:
		return "address/length"
	case contract.Prefix:
		return "network/length or `default`"
	case contract.IP:
		return "IP address"
	case contract.InterfaceName:
		return "interface name"
	case contract.LinkName:
		return "name or alternative name of an interface"
	case contract.PCIAddress:
		return "PCI address"
	case contract.SysctlPath:
		return "sysctl below `net.`"
	default:
		return string(f)
	}
}

// flows says what a step needs and adds.
func flows(c contract.Contract) string {
	add, change := []string(nil), []string(nil)
	for _, f := range []struct {
		contract.Flow
		one, several string
	}{{c.Output.Interfaces, "interface", "interfaces"}, {c.Output.IPs, "address", "addresses"}, {c.Output.Routes, "route", "routes"}} {
		switch {
		case f.Appends < 0:
			add = append(add, f.several)
		case f.Conditional:
			add = append(add, fmt.Sprintf("%d %s if the device has it", max(1, f.Appends), f.one))
		case f.Appends == 1:
			add = append(add, "1 "+f.one)
		case f.Appends > 1:
			add = append(add, fmt.Sprintf("%d %s", f.Appends, f.several))
		}
		if f.Passthrough && f.Modifies {
			change = append(change, f.several)
		}
	}
	out := inputSentence(c.Input)
	if len(add) > 0 {
		adds := " Adds "
		if len(c.Input.DerivedFrom) > 0 {
			adds = " A derived step adds "
		}
		out += adds + strings.Join(add, ", ") + "."
	}
	if len(change) > 0 {
		out += " May change " + strings.Join(change, ", ") + "."
	}
	return out
}

func inputSentence(i contract.Input) string {
	var out string
	switch {
	case i.Required:
		out = "Needs `dependOn`"
	case i.Device:
		out = "A root step consumes one device"
	case i.Functions:
		out = "A root step uses one shared device, takes one virtual function, or needs no device"
	case i.Shares:
		out = "A root step uses one shared device, or what its config names"
	default:
		out = "A root step needs no device"
	}
	switch {
	case i.MinInterfaces > 0 && i.MaxInterfaces > 0:
		out += fmt.Sprintf(", with %d–%d interfaces", i.MinInterfaces, i.MaxInterfaces)
	case i.MinInterfaces == 1:
		out += ", with at least 1 interface"
	case i.MinInterfaces > 0:
		out += fmt.Sprintf(", with at least %d interfaces", i.MinInterfaces)
	case i.MaxInterfaces > 0:
		out += fmt.Sprintf(", with at most %d interfaces of dependencies", i.MaxInterfaces)
	}
	return out + "."
}
