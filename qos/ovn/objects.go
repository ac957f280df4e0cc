package ovn

import (
	"errors"
	"fmt"
	"net/netip"

	"go4.org/netipx"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
)

// Bounds of what Objects returns: each object is in the record of a sandbox, and is compared at
// each check.
const (
	// MaxObjects of a port.
	MaxObjects = 1024
	// MaxTerms of a port's rules together: prefixes and ports.
	MaxTerms = 4096
)

// ErrTooMany says that the rules of a port need more than it may have.
var ErrTooMany = errors.New("too many rows")

// Objects returns the rules as objects of a sandbox, without a port. Members says which addresses
// are in a set of destinations. They are written into the match: address sets would be those of all
// sandboxes with the rule, and no sandbox's.
func Objects(rules []qos.Rule, members func(qos.SetID) []netip.Addr) ([]netstate.LogicalRule, error) {
	resolved := make([]qos.Rule, len(rules))
	terms := 0
	for i, r := range rules {
		if len(r.Sets) > 0 {
			var err error
			if r.Addresses, err = withMembers(&r, members); err != nil {
				return nil, err
			}
			r.Sets = nil
		}
		if terms += len(r.Ports); r.Addresses != nil {
			terms += len(r.Addresses.Prefixes())
		}
		if terms > MaxTerms {
			return nil,
				fmt.Errorf("%w: with rule %d of %s the destinations and ports of all rules are %d, and a port of OVN may have %d: "+
					"use fewer exceptions, ports or destination pods", ErrTooMany, r.Index, r.Policy, terms, MaxTerms)
		}
		resolved[i] = r
	}
	out, err := rows(resolved)
	if err != nil {
		return nil, err
	}
	if len(out) > MaxObjects {
		return nil, fmt.Errorf("%w: %d rules cover a port of OVN, and it may have %d: use fewer NetworkQoS objects", ErrTooMany,
			len(out), MaxObjects)
	}
	return out, nil
}

// withMembers returns the addresses of a rule with those of its sets.
func withMembers(r *qos.Rule, members func(qos.SetID) []netip.Addr) (*netipx.IPSet, error) {
	var b netipx.IPSetBuilder
	if r.Addresses != nil {
		b.AddSet(r.Addresses)
	}
	for _, id := range r.Sets {
		for _, a := range members(id) {
			b.Add(a.Unmap().WithZone(""))
		}
	}
	out, err := b.IPSet()
	if err != nil {
		return nil, fmt.Errorf("rule %d of %s: %w", r.Index, r.Policy, err)
	}
	return out, nil
}
