package ovn

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
)

const (
	// firstPriority is that of the winning rule, if its precedence is the highest there is. So a rule has its precedence as
	// priority, as OKEP-4380 writes it, unless others of the port have the same one. It is
	// at least firstPriority less twice the rules of an interface: 7980 (ovn-nb(5): 0 to 32767).
	firstPriority = qos.MaxPrecedence
	// MaxPrefixes of a rule's destinations.
	MaxPrefixes = 1024
	// unlimited is the rate, in kbit/s, of a rule that has no limit and precedes one that has.
	unlimited = math.MaxUint32
)

// rows are the rules without a port: their matches match packets of all ports. A rule that no address matches has none.
func rows(rules []qos.Rule) ([]netstate.LogicalRule, error) {
	if len(rules) > qos.MaxAttachmentRules { // priorities would leave the range of the schema
		return nil, fmt.Errorf("%d rules cover it, and it may have %d", len(rules), qos.MaxAttachmentRules)
	}
	limited := 0 // so many rules precede one that has a limit
	for i := range rules {
		if rules[i].RateKbit > 0 {
			limited = i
		}
	}
	var out []netstate.LogicalRule
	for i, place := range qos.Places(rules) {
		r := &rules[i]
		to, err := destinations(r)
		if err != nil {
			return nil, fmt.Errorf("rule %d of %s: %w", r.Index, r.Policy, err)
		}
		if len(to) == 0 {
			continue
		}
		rate, burst := r.RateKbit, r.BurstKbit
		switch {
		case rate == 0 && i < limited:
			rate, burst = unlimited, 0
		case rate == 0: // a meter without a rate does not exist
			burst = 0
		}
		terms := []string{joined(to, "(", " || ", ")")}
		if len(r.Ports) > 0 {
			terms = append(terms, joined(ports(r.Ports), "(", " || ", ")"))
		}
		out = append(out, netstate.LogicalRule{
			Rule: fmt.Sprintf("%s[%d]", r.Policy, r.Index), Direction: new(netstate.FromPort), Priority: new(uint16(firstPriority - place)),
			Match: new(strings.Join(terms, " && ")), DSCP: new(r.DSCP), Rate: &rate, Burst: &burst,
		})
	}
	return out, nil
}

// joined joins alternatives, of which there is at least one; several are put in brackets.
func joined(of []string, begin, between, end string) string {
	if len(of) == 1 {
		return of[0]
	}
	return begin + strings.Join(of, between) + end
}

// destinations are the alternatives for the destination of a rule, none if nothing matches.
func destinations(r *qos.Rule) ([]string, error) {
	if r.Any {
		return []string{"ip"}, nil
	}
	var out []string
	if r.Addresses != nil {
		prefixes := r.Addresses.Prefixes()
		if len(prefixes) > MaxPrefixes {
			return nil, fmt.Errorf("its addresses are %d prefixes, and a row may have %d: use fewer exceptions", len(prefixes), MaxPrefixes)
		}
		for _, family := range []string{"ip4", "ip6"} {
			if one := oneOf(prefixes, family); one != "" {
				out = append(out, one)
			}
		}
	}
	return out, nil
}

// oneOf matches the prefixes of one family, "" for none.
func oneOf(prefixes []netip.Prefix, family string) string {
	var list []string
	for _, p := range prefixes {
		switch {
		case p.Addr().Is4() != (family == "ip4"):
		case p.Bits() == 0:
			return family
		case p.IsSingleIP():
			list = append(list, p.Addr().String())
		default:
			list = append(list, p.String())
		}
	}
	if len(list) == 0 {
		return ""
	}
	return family + ".dst == " + joined(list, "{", ", ", "}")
}

// ports are the alternatives for the protocol and the port.
func ports(of []qos.Port) []string {
	numbers := map[qos.Protocol][]uint16{}
	for _, p := range of {
		numbers[p.Protocol] = append(numbers[p.Protocol], p.Port)
	}
	var out []string
	for _, protocol := range slices.Sorted(maps.Keys(numbers)) {
		list := numbers[protocol]
		slices.Sort(list)
		name := strings.ToLower(protocol.String())
		if list[0] == 0 { // any port
			out = append(out, name)
			continue
		}
		var text []string
		for _, n := range slices.Compact(list) {
			text = append(text, strconv.Itoa(int(n)))
		}
		out = append(out, name+".dst == "+joined(text, "{", ", ", "}"))
	}
	return out
}
