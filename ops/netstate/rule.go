package netstate

import (
	"fmt"
	"strings"
)

// The families of a Rule.
const (
	IPv4 = "ipv4"
	IPv6 = "ipv6"
)

// Rule is a policy routing rule: it looks up matching packets in a routing table. All its fields are its identity, as for
// the kernel: two rules that differ in the table alone can both exist. Source: net/core/fib_rules.c, ip-rule(8).
type Rule struct {
	Family   string `json:"family" plan:"key"`
	Priority uint32 `json:"priority" plan:"key"`       // evaluated in ascending order
	From     string `json:"from,omitempty" plan:"key"` // prefix; "" is any
	To       string `json:"to,omitempty" plan:"key"`   // prefix; "" is any
	IIF      string `json:"iif,omitempty" plan:"key"`  // a link by name, which need not exist
	OIF      string `json:"oif,omitempty" plan:"key"`
	Mark     uint32 `json:"fwmark,omitempty" plan:"key"`
	Mask     uint32 `json:"fwmask,omitempty" plan:"key"` // of the mark; 0 is any mark
	Table    uint32 `json:"table" plan:"key"`
	// SuppressPrefixLength rejects a route whose prefix is this long or shorter.
	SuppressPrefixLength *uint32 `json:"suppressPrefixLength,omitempty" plan:"key"`
	// Observed only.
	Protocol int `json:"protocol,omitempty" plan:"-"`
}

// Key is everything the kernel tells rules apart by.
func (r Rule) Key() Key {
	var b strings.Builder
	fmt.Fprintf(&b, "%s priority %d", r.Family, r.Priority)
	for _, f := range [][2]string{{"from", r.From}, {"to", r.To}, {"iif", r.IIF}, {"oif", r.OIF}} {
		if f[1] != "" {
			fmt.Fprintf(&b, " %s %s", f[0], f[1])
		}
	}
	if r.Mask != 0 {
		fmt.Fprintf(&b, " fwmark %#x/%#x", r.Mark, r.Mask)
	}
	fmt.Fprintf(&b, " table %d", r.Table)
	if r.SuppressPrefixLength != nil {
		fmt.Fprintf(&b, " suppressPrefixLength %d", *r.SuppressPrefixLength)
	}
	return Key{KindRule, b.String()}
}

// LivesOn is nothing: a rule that names a link outlives it.
func (Rule) LivesOn() Key { return Key{} }

// A sandbox has as many rules as its owner likes, so they are read by key.
var ruleTraits = Traits{Phase: PhaseRules, Cost: 8}

// Traits returns the traits of rules.
func (Rule) Traits() *Traits { return &ruleTraits }
