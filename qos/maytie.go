package qos

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	operators "k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
)

// maxCompared bounds how many pairs of rules PossibleTies compares: users may create any
// number of objects.
const maxCompared = 20_000

// PossibleTies returns, of the policies of one namespace, which rules of others have the
// precedence of a rule of each, where one packet of one pod might match both: no pod is
// considered, only whether the selectors exclude one another. Complete is false if there were
// too many rules to compare.
func PossibleTies(policies []*Policy) (ties map[types.NamespacedName][]Tie, complete bool) {
	ties = map[types.NamespacedName][]Tie{}
	policies = slices.SortedFunc(slices.Values(policies), func(a, b *Policy) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	compared := 0
	for i, p := range policies {
		for _, q := range policies[i+1:] {
			if q.Priority != p.Priority {
				break
			}
			if compared++; compared > maxCompared {
				return ties, false
			}
			if p.Err != nil || q.Err != nil || exclude(p.pods, q.pods) || !p.mayShareNetwork(q) {
				continue
			}
			for k := range min(len(p.Rules), len(q.Rules)) {
				if compared++; compared > maxCompared {
					return ties, false
				}
				if p.Rules[k].mayOverlap(&q.Rules[k]) {
					ties[p.Key] = append(ties[p.Key], Tie{Rule: k, Other: q.Key, Wins: true})
					ties[q.Key] = append(ties[q.Key], Tie{Rule: k, Other: p.Key})
				}
			}
		}
	}
	return ties, true
}

// mayOverlap is overlaps in time that is linear in the number of prefixes.
func (r *PolicyRule) mayOverlap(s *PolicyRule) bool {
	if ports := r.sharesPorts(s); !ports || len(r.To) == 0 || len(s.To) == 0 {
		return ports
	}
	pods := func(d PolicyDestination) bool { return d.Addresses == nil }
	return slices.ContainsFunc(r.To, pods) || slices.ContainsFunc(s.To, pods) || r.Addresses.Overlaps(s.Addresses)
}

// mayShareNetwork reports whether there may be a network that both policies cover.
func (p *Policy) mayShareNetwork(q *Policy) bool {
	if len(p.networks) == 0 || len(q.networks) == 0 {
		return len(p.networks) == len(q.networks) || slices.ContainsFunc(slices.Concat(p.networks, q.networks), func(t networkTerm) bool {
			return t.primary == nil && t.kind != NetworkTopology || t.primary != nil && *t.primary
		})
	}
	return slices.ContainsFunc(p.networks, func(a networkTerm) bool {
		return slices.ContainsFunc(q.networks, func(b networkTerm) bool {
			return a.kind == b.kind && (a.name == "" || b.name == "" || a.name == b.name && a.namespace == b.namespace) && !exclude(a.networks, b.networks)
		})
	})
}

// exclude reports whether no labels match both selectors, as far as that follows from values
// of one key that they require.
func exclude(a, b labels.Selector) bool {
	if a == nil || b == nil {
		return false
	}
	mine, _ := a.Requirements()
	theirs, _ := b.Requirements()
	for _, x := range mine {
		for _, y := range theirs {
			if x.Key() == y.Key() && oneOf(x) && oneOf(y) && !x.Values().HasAny(y.Values().List()...) {
				return true
			}
		}
	}
	return false
}

func oneOf(r labels.Requirement) bool {
	return r.Operator() == operators.In || r.Operator() == operators.Equals || r.Operator() == operators.DoubleEquals
}
