package ovn

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
)

// The keys of external_ids.
const (
	// OwnerKey has the name of who made the row.
	OwnerKey = "dra.networking/owner"
	// IDKey tells the rows of an owner apart.
	IDKey = "dra.networking/id"
	// RuleKey names the object and the index of the rule, for those who read the database.
	RuleKey = "dra.networking/rule"
)

const (
	// Direction of all rows.
	Direction = netstate.FromPort
	// FirstPriority is that of the winning rule, if its precedence is the highest there is. So a rule has its precedence as
	// priority, as OKEP-4380 writes it, unless others of the port have the same one. It is
	// at least FirstPriority less twice the rules of an interface: 7980 (ovn-nb(5): 0 to 32767).
	FirstPriority = qos.MaxPrecedence
	// MaxPrefixes of a rule's destinations, without those in address sets.
	MaxPrefixes = 1024
	// unlimited is the rate, in kbit/s, of a rule that has no limit and precedes one that has.
	unlimited = math.MaxUint32
)

// ErrInvalid says that what a port or a rule has cannot be written as a match.
var ErrInvalid = errors.New("cannot be written as a match of OVN")

// Port is a logical switch port, and the switch that it is a port of.
type Port struct{ Switch, Name string }

// QoS is a row of table QoS.
type QoS struct {
	ID       string // unique among the rows of an owner
	Rule     string // NAMESPACE/NAME[INDEX]
	Switch   string
	Priority int
	Match    string
	DSCP     uint8
	// RateKbit per second and BurstKbit; 0 is none.
	RateKbit, BurstKbit uint32
}

// AddressSet is a row of table Address_Set.
type AddressSet struct {
	Name      string   // unique in the database
	Addresses []string // sorted
}

// portName is what Kubernetes and ovn-kubernetes make names of ports of. It leaves no way out of
// a quoted string.
var portName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./:-]{0,511}$`)

// Rows returns an owner's rows for the rules of one port, the winning one first. A rule that no
// address matches has none.
func Rows(owner string, p Port, rules []qos.Rule) ([]QoS, error) {
	if !portName.MatchString(p.Name) {
		return nil, fmt.Errorf("logical switch port %q: its name %w", p.Name, ErrInvalid)
	}
	out, err := ofAnyPort(owner, rules)
	if err != nil {
		return nil, fmt.Errorf("logical switch port %q: %w", p.Name, err)
	}
	for i := range out {
		out[i].ID, out[i].Switch = p.Name+"/"+strconv.Itoa(FirstPriority-out[i].Priority), p.Switch
		out[i].Match = netstate.InPort(p.Name) + " && " + out[i].Match
	}
	return out, nil
}

// ofAnyPort are the rows for the rules of a port without what names the port: their matches match
// packets of all ports.
func ofAnyPort(owner string, rules []qos.Rule) ([]QoS, error) {
	if len(rules) > qos.MaxAttachmentRules { // priorities would leave the range of the schema
		return nil, fmt.Errorf("%d rules cover it, and it may have %d", len(rules), qos.MaxAttachmentRules)
	}
	limited := 0 // so many rules precede one that has a limit
	for i := range rules {
		if rules[i].RateKbit > 0 {
			limited = i
		}
	}
	var out []QoS
	for i, place := range qos.Places(rules) {
		r := &rules[i]
		to, err := destinations(owner, r)
		if err != nil {
			return nil, fmt.Errorf("rule %d of %s: %w", r.Index, r.Policy, err)
		}
		if len(to) == 0 {
			continue
		}
		row := QoS{
			Rule: fmt.Sprintf("%s[%d]", r.Policy, r.Index), Priority: FirstPriority - place, DSCP: r.DSCP, RateKbit: r.RateKbit, BurstKbit: r.BurstKbit,
		}
		switch {
		case row.RateKbit == 0 && i < limited:
			row.RateKbit, row.BurstKbit = unlimited, 0
		case row.RateKbit == 0: // a meter without a rate does not exist
			row.BurstKbit = 0
		}
		terms := []string{alternatives(to)}
		if len(r.Ports) > 0 {
			terms = append(terms, alternatives(ports(r.Ports)))
		}
		row.Match = strings.Join(terms, " && ")
		out = append(out, row)
	}
	return out, nil
}

// Compile returns what an owner is to have for the rules of one port: the rows, and the address sets
// that they name. Members says which addresses are in a set of destinations.
func Compile(owner string, p Port, rules []qos.Rule, members func(qos.SetID) []netip.Addr) (*Desired, error) {
	rows, err := Rows(owner, p, rules)
	if err != nil {
		return nil, err
	}
	out := &Desired{QoS: rows}
	seen := map[qos.SetID]bool{}
	for i := range rules {
		for _, id := range rules[i].Sets {
			if !seen[id] {
				seen[id] = true
				out.Sets = append(out.Sets, Sets(owner, id, members(id))...)
			}
		}
	}
	return out, nil
}

// alternatives joins what may match, of which there is at least one.
func alternatives(of []string) string {
	if len(of) == 1 {
		return of[0]
	}
	return "(" + strings.Join(of, " || ") + ")"
}

// destinations are the alternatives for the destination of a rule, none if nothing matches.
func destinations(owner string, r *qos.Rule) ([]string, error) {
	if r.Any {
		return []string{"ip"}, nil
	}
	var out []string
	if r.Addresses != nil {
		prefixes := r.Addresses.Prefixes()
		if len(prefixes) > MaxPrefixes {
			return nil, fmt.Errorf("its addresses are %d prefixes, and a row may have %d: use fewer exceptions", len(prefixes), MaxPrefixes)
		}
		for _, four := range []bool{true, false} {
			if one := oneOf(prefixes, four); one != "" {
				out = append(out, one)
			}
		}
	}
	for _, id := range r.Sets {
		for _, four := range []bool{true, false} {
			out = append(out, fmt.Sprintf("%s.dst == $%s", family(four), setName(owner, id, four)))
		}
	}
	return out, nil
}

func family(four bool) string {
	if four {
		return "ip4"
	}
	return "ip6"
}

// oneOf matches the prefixes of one family, "" for none.
func oneOf(prefixes []netip.Prefix, four bool) string {
	var list []string
	for _, p := range prefixes {
		switch {
		case p.Addr().Is4() != four:
		case p.Bits() == 0:
			return family(four)
		case p.IsSingleIP():
			list = append(list, p.Addr().String())
		default:
			list = append(list, p.String())
		}
	}
	if len(list) == 0 {
		return ""
	}
	return family(four) + ".dst == " + values(list)
}

// values are the constants of a comparison.
func values(list []string) string {
	if len(list) == 1 {
		return list[0]
	}
	return "{" + strings.Join(list, ", ") + "}"
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
		name := protocols[protocol]
		if list[0] == 0 { // any port
			out = append(out, name)
			continue
		}
		var text []string
		for _, n := range slices.Compact(list) {
			text = append(text, strconv.Itoa(int(n)))
		}
		out = append(out, name+".dst == "+values(text))
	}
	return out
}

var protocols = map[qos.Protocol]string{qos.TCP: "tcp", qos.UDP: "udp", qos.SCTP: "sctp"}

// setName is the name of the address set of one family: letters, digits and "_" only, and not
// longer for long names. Owners have sets of their own, as names are unique in a database.
func setName(owner string, id qos.SetID, four bool) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%q", []string{
		owner, id.Policy.String(), strconv.Itoa(id.Rule), strconv.Itoa(id.To), string(id.Network.Kind), id.Network.Namespace, id.Network.Name,
	}))
	return "plumbline_" + hex.EncodeToString(h[:16]) + "_" + family(four)
}

// Sets returns an owner's address sets of a set of destinations: one of each family, which may
// be empty.
func Sets(owner string, id qos.SetID, members []netip.Addr) []AddressSet {
	out := []AddressSet{{Name: setName(owner, id, true)}, {Name: setName(owner, id, false)}}
	for _, a := range members {
		a = a.Unmap().WithZone("")
		i := 0
		if a.Is6() {
			i = 1
		}
		out[i].Addresses = append(out[i].Addresses, a.String())
	}
	for i := range out {
		slices.Sort(out[i].Addresses)
		out[i].Addresses = slices.Compact(out[i].Addresses)
	}
	return out
}
