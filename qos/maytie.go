package qos

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	operators "k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Tie is a rule of another object that has the same precedence as a rule of this one, where
// one packet can match both.
type Tie struct {
	Rule  int                  // index in spec.egress, the same in both
	Other types.NamespacedName // the other object
	// Wins says that this object decides.
	Wins bool
}

// maxCompared bounds the comparisons of PossibleTies, each of two names, values, ports or ranges of addresses: some
// tens of milliseconds. Users may create any number of objects, and one worker compares those of all namespaces.
const maxCompared = 2_000_000

// comparisons counts them.
type comparisons int

func (n *comparisons) over() bool { return *n > maxCompared }

// PossibleTies returns, of the policies of one namespace, which rules of others have the
// precedence of a rule of each, where one packet of one pod might match both: no pod is
// considered, only whether the selectors exclude one another. Complete is false if there were
// too many rules to compare.
func PossibleTies(policies []*Policy) (ties map[types.NamespacedName][]Tie, complete bool) {
	var n comparisons
	ties = n.ties(policies)
	return ties, !n.over()
}

func (n *comparisons) ties(policies []*Policy) map[types.NamespacedName][]Tie {
	ties := map[types.NamespacedName][]Tie{}
	policies = slices.SortedFunc(slices.Values(policies), func(a, b *Policy) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	for i, p := range policies {
		for _, q := range policies[i+1:] {
			if q.Priority != p.Priority {
				break
			}
			if *n++; n.over() {
				return ties
			}
			if p.Err != nil || q.Err != nil || n.exclude(p.required, q.required) || !n.mayShareNetwork(p, q) {
				continue
			}
			for k := range min(len(p.Rules), len(q.Rules)) {
				overlap := n.mayOverlap(&p.Rules[k], &q.Rules[k])
				if n.over() {
					return ties
				}
				if overlap {
					ties[p.Key] = append(ties[p.Key], Tie{Rule: k, Other: q.Key, Wins: true})
					ties[q.Key] = append(ties[q.Key], Tie{Rule: k, Other: p.Key})
				}
			}
		}
	}
	return ties
}

// mayOverlap reports whether one packet can match both rules, in time that is linear in the number of prefixes. Where pods are a
// destination that is assumed: they may get any address.
func (n *comparisons) mayOverlap(r, s *PolicyRule) bool {
	*n += comparisons(1 + len(r.Ports)*len(s.Ports))
	if ports := r.sharesPorts(s); !ports || len(r.To) == 0 || len(s.To) == 0 {
		return ports
	}
	*n += comparisons(len(r.To) + len(s.To) + r.ranges + s.ranges)
	pods := func(d PolicyDestination) bool { return d.Addresses == nil }
	return slices.ContainsFunc(r.To, pods) || slices.ContainsFunc(s.To, pods) || r.Addresses.Overlaps(s.Addresses)
}

// sharesPorts reports whether one protocol and port can match both rules.
func (r *PolicyRule) sharesPorts(s *PolicyRule) bool {
	return len(r.Ports) == 0 || len(s.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p Port) bool {
		return slices.ContainsFunc(s.Ports, func(q Port) bool { return p.contains(q) || q.contains(p) })
	})
}

// mayShareNetwork reports whether there may be a network that both policies cover.
func (n *comparisons) mayShareNetwork(p, q *Policy) bool {
	if len(p.networks) == 0 || len(q.networks) == 0 {
		return len(p.networks) == len(q.networks) || slices.ContainsFunc(slices.Concat(p.networks, q.networks), func(t networkTerm) bool {
			return t.primary == nil || *t.primary
		})
	}
	return slices.ContainsFunc(p.networks, func(a networkTerm) bool {
		return slices.ContainsFunc(q.networks, func(b networkTerm) bool {
			return n.mayMeet(a, b) && !n.exclude(a.required, b.required)
		})
	})
}

// mayMeet reports whether a network may be of the kinds and names of both terms: a topology may be the default network, and be on
// any that a term selects by labels.
func (n *comparisons) mayMeet(a, b networkTerm) bool {
	if a.among == nil {
		a, b = b, a
	}
	switch {
	case a.among == nil:
		return (a.kind == b.kind ||
			a.kind == DefaultNetwork && b.kind == NetworkTopology || a.kind == NetworkTopology && b.kind == DefaultNetwork) &&
			(a.name == "" || b.name == "" || a.name == b.name && a.namespace == b.namespace)
	case b.among != nil:
		*n += comparisons(len(a.among))
		for name := range a.among {
			if b.among[name] {
				return true
			}
		}
		return false
	case b.definition() != "":
		return a.among[b.definition()]
	default:
		return b.kind == NetworkTopology
	}
}

// required are the values of a label of which a selector requires one.
type required struct {
	key    string
	values []string // sorted
}

// requiredBy returns what a selector requires, by label, each once.
func requiredBy(s labels.Selector) []required {
	by := map[string]sets.Set[string]{}
	all, _ := s.Requirements()
	for _, r := range all {
		if op := r.Operator(); op != operators.In && op != operators.Equals && op != operators.DoubleEquals {
			continue
		}
		values := sets.New(r.Values().UnsortedList()...)
		if before, ok := by[r.Key()]; ok {
			values = values.Intersection(before)
		}
		by[r.Key()] = values
	}
	var out []required
	for _, key := range slices.Sorted(maps.Keys(by)) {
		out = append(out, required{key, sets.List(by[key])})
	}
	return out
}

// exclude reports whether no labels match two selectors, as far as that follows from values
// of one label that they require.
func (n *comparisons) exclude(a, b []required) bool {
	for len(a) > 0 && len(b) > 0 {
		*n++
		switch c := cmp.Compare(a[0].key, b[0].key); {
		case c < 0:
			a = a[1:]
		case c > 0:
			b = b[1:]
		case !n.meet(a[0].values, b[0].values):
			return true
		default:
			a, b = a[1:], b[1:]
		}
	}
	return false
}

// meet reports whether two sorted lists have a value in common.
func (n *comparisons) meet(a, b []string) bool {
	for len(a) > 0 && len(b) > 0 {
		*n++
		switch c := cmp.Compare(a[0], b[0]); {
		case c < 0:
			a = a[1:]
		case c > 0:
			b = b[1:]
		default:
			return true
		}
	}
	return false
}
