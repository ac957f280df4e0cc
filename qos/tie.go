package qos

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Tie is a rule of another object that has the same precedence as a rule of this one, where
// one packet can match both.
type Tie struct {
	Rule  int                  // index in spec.egress, the same in both
	Other types.NamespacedName // the other object
	// Wins says that this object decides.
	Wins bool
}

// Ties returns the ties of a policy, for its condition: which of the two decides is fixed,
// and probably not what their authors know.
func (c *Compiler) Ties(key types.NamespacedName) []Tie {
	p := c.policies[key.Namespace][key.Name]
	if p == nil {
		return nil
	}
	var out []Tie
	for name, other := range c.policies[key.Namespace] {
		if name == key.Name || other.Priority != p.Priority || !c.meet(p, other) {
			continue
		}
		for i := range min(len(p.Rules), len(other.Rules)) {
			if p.Rules[i].overlaps(&other.Rules[i]) {
				out = append(out, Tie{Rule: i, Other: other.Key, Wins: key.Name < name})
			}
		}
	}
	slices.SortFunc(out, func(a, b Tie) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Other.Name, b.Other.Name))
	})
	return out
}

// meet reports whether two policies of a namespace cover an attachment together.
func (c *Compiler) meet(p, q *compiled) bool {
	for _, pod := range c.pods[p.Key.Namespace] {
		if p.selects(pod) && q.selects(pod) && slices.ContainsFunc(pod.Attachments, func(a Attachment) bool {
			return c.covers(p.Policy, a.Network) && c.covers(q.Policy, a.Network)
		}) {
			return true
		}
	}
	return false
}

// overlaps reports whether one packet can match both rules. Where pods are a destination
// that is assumed: they may get any address.
func (r *PolicyRule) overlaps(s *PolicyRule) bool {
	if ports := r.sharesPorts(s); !ports || len(r.To) == 0 || len(s.To) == 0 {
		return ports
	}
	return slices.ContainsFunc(r.To, func(a PolicyDestination) bool {
		return slices.ContainsFunc(s.To, func(b PolicyDestination) bool {
			return a.Addresses == nil || b.Addresses == nil || a.Addresses.Overlaps(b.Addresses)
		})
	})
}

// sharesPorts reports whether one protocol and port can match both rules.
func (r *PolicyRule) sharesPorts(s *PolicyRule) bool {
	return len(r.Ports) == 0 || len(s.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p Port) bool {
		return slices.ContainsFunc(s.Ports, func(q Port) bool { return p.contains(q) || q.contains(p) })
	})
}
