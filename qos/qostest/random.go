// Package qostest draws rules and packets at random, with which the backends are compared with
// the rules. Only tests import it.
package qostest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/qos"
)

var protocols = []qos.Protocol{qos.TCP, qos.UDP, qos.SCTP, 1}

// Address returns one of few, of both families.
func Address(rng *rand.Rand) netip.Addr {
	if rng.IntN(3) == 0 {
		return netip.MustParseAddr(fmt.Sprintf("fd00::%x", rng.IntN(32)))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.0.%d.%d", rng.IntN(2), rng.IntN(32)))
}

func prefix(rng *rand.Rand, bits int) netip.Prefix {
	a := Address(rng)
	p, _ := a.Prefix(max(0, a.BitLen()-rng.IntN(bits)))
	return p
}

// Rules returns rules of one attachment, the winning one first, two of each
// precedence, and the members of their sets.
func Rules(rng *rand.Rand, count int) ([]qos.Rule, map[qos.SetID][]netip.Addr) {
	members := map[qos.SetID][]netip.Addr{}
	var out []qos.Rule
	for n := range count {
		out = append(out, rule(rng, n, members))
	}
	return out, members
}

func rule(rng *rand.Rand, n int, members map[qos.SetID][]netip.Addr) qos.Rule {
	r := qos.Rule{
		Policy: types.NamespacedName{Namespace: "ns", Name: "q"}, Index: n, Precedence: qos.MaxPrecedence - n/2,
		DSCP: uint8(rng.IntN(64)), RateKbit: uint32(rng.IntN(3)), BurstKbit: uint32(rng.IntN(2)), Any: rng.IntN(4) == 0,
	}
	for range rng.IntN(3) {
		r.Ports = append(r.Ports, qos.Port{Protocol: protocols[rng.IntN(3)], Port: uint16(rng.IntN(2) * (80 + rng.IntN(3)))})
	}
	if r.Any {
		return r
	}
	if rng.IntN(3) > 0 {
		var b netipx.IPSetBuilder
		b.AddPrefix(prefix(rng, 33))
		for range rng.IntN(4) {
			b.RemovePrefix(prefix(rng, 6))
		}
		r.Addresses, _ = b.IPSet()
	}
	for i := range rng.IntN(3) {
		id := qos.SetID{Policy: r.Policy, Rule: n, To: i}
		members[id] = nil
		for range rng.IntN(6) {
			members[id] = append(members[id], Address(rng))
		}
		r.Sets = append(r.Sets, id)
	}
	return r
}

// Packet returns a packet that rules may match.
func Packet(rng *rand.Rand) qos.Packet {
	return qos.Packet{
		Destination: Address(rng), Protocol: protocols[rng.IntN(4)], Port: uint16(80 + rng.IntN(4)),
		Fragment: rng.IntN(6) == 0,
	}
}

// Matches reports whether a rule matches a packet, as NetworkQoS defines it: the backends are compared with it. Members says
// which addresses are in a set.
func Matches(r *qos.Rule, p qos.Packet, members func(qos.SetID) []netip.Addr) bool {
	if len(r.Ports) > 0 && !slices.ContainsFunc(r.Ports, func(q qos.Port) bool {
		return q.Protocol == p.Protocol && (q.Port == 0 || q.Port == p.Port && !p.Fragment)
	}) {
		return false
	}
	return r.Any || r.Addresses != nil && r.Addresses.Contains(p.Destination) ||
		slices.ContainsFunc(r.Sets, func(id qos.SetID) bool { return slices.Contains(members(id), p.Destination) })
}
