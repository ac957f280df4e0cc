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
	return slices.ContainsFunc(p.terms(), func(a networkTerm) bool {
		return slices.ContainsFunc(q.terms(), func(b networkTerm) bool {
			return n.mayMeet(a, b) && !n.exclude(a.required, b.required)
		})
	})
}

// terms are those of the policy's networks: the primary network, if it has none.
func (p *Policy) terms() []networkTerm {
	if len(p.networks) == 0 {
		return []networkTerm{{kind: DefaultNetwork}}
	}
	return p.networks
}

// mayMeet reports whether a network may be of both terms. Agents make topologies: any may be the default network, and be on the network
// of one NetworkAttachmentDefinition.
func (n *comparisons) mayMeet(a, b networkTerm) bool {
	defined, also := a.definitions(), b.definitions()
	switch {
	case defined != nil && also != nil:
		if len(also) < len(defined) {
			defined, also = also, defined
		}
		*n += comparisons(len(defined))
		for name := range defined {
			if also[name] {
				return true
			}
		}
		return false
	case defined != nil:
		return len(defined) > 0 && b.ofTopologies()
	case also != nil:
		return len(also) > 0 && a.ofTopologies()
	case a.ofTopologies() && b.ofTopologies():
		return a.name == "" || b.name == "" || a.name == b.name
	default:
		return a.kind == b.kind // networks by labels, which are not resolved
	}
}

// ofTopologies reports whether the term selects topologies by their names, labels or role.
func (t networkTerm) ofTopologies() bool {
	return t.kind == NetworkTopology || t.kind == DefaultNetwork
}

// definitions are the NetworkAttachmentDefinitions whose networks the term selects, nil if it selects by something else.
func (t networkTerm) definitions() map[string]bool {
	if d := t.definition(); d != "" {
		return map[string]bool{d: true}
	}
	return t.among
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
