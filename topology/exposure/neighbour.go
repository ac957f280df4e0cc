package exposure

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// maxPattern bounds the text of a pattern, which RE2 compiles.
const maxPattern = 256

// neighbour is the neighbour that a policy expects at the other end of a device's wire.
type neighbour struct {
	rules v1alpha1.Neighbour
	// whole values
	toSwitch, toPort *regexp.Regexp
	ofPort           bool // the rail is derived from the port
	rail             *regexp.Regexp
}

// neighbour reads the rules of a policy.
func (p *Policy) neighbour(e *topology.Listed, n *v1alpha1.Neighbour) {
	if n == nil {
		return
	}
	out := &neighbour{rules: *n}
	if x := n.Expect; x != nil {
		if x.Switch == "" && x.SwitchPort == "" {
			e.Add("spec.neighbour.expect: is empty: name a switch or a switchPort")
		}
		out.toSwitch = pattern(e, "spec.neighbour.expect.switch", x.Switch)
		out.toPort = pattern(e, "spec.neighbour.expect.switchPort", x.SwitchPort)
	}
	if r := n.Rail; r != nil {
		switch r.From {
		case "", v1alpha1.RailFromSwitch:
		case v1alpha1.RailFromSwitchPort:
			out.ofPort = true
		default:
			e.Add("spec.neighbour.rail.from: %q is neither %q nor %q", r.From, v1alpha1.RailFromSwitch, v1alpha1.RailFromSwitchPort)
		}
		if r.Match == "" {
			e.Add("spec.neighbour.rail.match: is missing")
		}
		out.rail = pattern(e, "spec.neighbour.rail.match", r.Match)
		if out.rail != nil && out.rail.NumSubexp() != 1 {
			e.Add("spec.neighbour.rail.match: has %d groups, and needs one for the rail, as in 'leaf-([0-9]+)'",
				out.rail.NumSubexp())
		}
	}
	p.Neighbour = out
}

// pattern compiles an expression for a whole value, nil for none.
func pattern(e *topology.Listed, at, text string) *regexp.Regexp {
	if text == "" {
		return nil
	}
	if len(text) > maxPattern {
		e.Add("%s: has %d bytes, at most %d are accepted", at, len(text), maxPattern)
		return nil
	}
	_, err := syntax.Parse(text, syntax.Perl) // by itself: ")(" is none
	var compiled *regexp.Regexp
	if err == nil {
		compiled, err = regexp.Compile(`^(?:` + text + `)$`)
	}
	if wrong, ok := errors.AsType[*syntax.Error](err); ok {
		e.Add("%s: %q: %s: `%s`", at, text, wrong.Code, wrong.Expr)
	}
	return compiled
}

// apply sets what follows from the device's neighbour.
func (n *neighbour) apply(d *inventory.Device) {
	d.Exposure.Expects = n.rules.Expect != nil
	if d.Neighbour == nil {
		return
	}
	if n.rail != nil {
		of := d.Neighbour.Switch
		if n.ofPort {
			of = d.Neighbour.Port
		}
		if groups := n.rail.FindStringSubmatch(of); groups != nil {
			d.Rail = groups[1]
		}
	}
	if n.rules.Expect != nil {
		d.Exposure.Miswired = n.miswired(*d.Neighbour)
	}
}

// miswired describes how a neighbour differs from the expected one, "" if it does not.
func (n *neighbour) miswired(have inventory.Neighbour) string {
	fits := func(want *regexp.Regexp, have string) bool { return want == nil || want.MatchString(have) }
	switch x := n.rules.Expect; {
	case have == inventory.Neighbour{}:
		return fmt.Sprintf("no LLDP neighbor is seen, and %q is expected", cmp.Or(x.Switch, x.SwitchPort))
	case !fits(n.toSwitch, have.Switch):
		return fmt.Sprintf("it is connected to switch %q, and %q is expected", have.Switch, x.Switch)
	case !fits(n.toPort, have.Port):
		return fmt.Sprintf("it is connected to port %q of switch %q, and %q is expected", have.Port, have.Switch, x.SwitchPort)
	}
	return ""
}
