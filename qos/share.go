package qos

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Bounds of what is enforced of one namespace. Its users may create any number of objects, and each node with one of
// its pods holds them.
const (
	// MaxObjects of a namespace.
	MaxObjects = 256
	// MaxNamespaceBytes is the memory that they take, as New estimates it.
	MaxNamespaceBytes = 2 << 20
	// MaxNamespaceLabels are the labels and values of their selectors: the controller evaluates those of destinations
	// for each pod that changes.
	MaxNamespaceLabels = 4096
	// MaxNamespaceMembers are the pods that their destinations select, each counted for each destination.
	MaxNamespaceMembers = 16 << 10
)

// Sizes of what New makes, with their allocations, on 64 bits: rounded up.
const (
	bytesOfObject      = 1 << 10
	bytesOfRule        = 192
	bytesOfDestination = 80
	bytesOfPort        = 8
	bytesOfRange       = 160 // in the set of its destination and in that of its rule
	bytesOfLabel       = 160
)

// bytes estimates the memory that a policy takes.
func (r *reader) bytes(p *Policy) int {
	out := bytesOfObject + bytesOfRange*(r.blocks+r.excepts) + bytesOfLabel*r.labels + 3*r.labelBytes
	for i := range p.Rules {
		out += bytesOfRule + bytesOfDestination*len(p.Rules[i].To) + bytesOfPort*len(p.Rules[i].Ports)
	}
	return out
}

// older orders policies of one namespace, the oldest first.
func older(a, b *Policy) int {
	return cmp.Or(a.Created.Compare(b.Created.Time), cmp.Compare(a.Key.Name, b.Key.Name), cmp.Compare(a.UID, b.UID))
}

// Share is the policies of one namespace that are enforced: of all, the oldest, until the next one would exceed a
// bound. Agents and the controller agree on it, since it does not depend on the order in which policies come. Its zero
// value has none.
type Share struct {
	policies      []*Policy // the oldest first
	bytes, labels int
	left          *Policy // the oldest of those that were left out
	stale         bool
}

// Put adds a policy, or replaces that of its name, and returns those that have no room any more, among them this one if
// it has none.
func (s *Share) Put(p *Policy) (out []*Policy) {
	bytes, labels := s.bytes, s.labels
	old := slices.IndexFunc(s.policies, func(o *Policy) bool { return o.Key == p.Key })
	if old >= 0 {
		s.remove(old)
	}
	if s.left != nil && older(s.left, p) <= 0 {
		if s.left.Key == p.Key {
			s.stale = s.stale || p.bytes < s.left.bytes || p.labels < s.left.labels
			s.left = p
		}
		return []*Policy{p}
	}
	at, _ := slices.BinarySearchFunc(s.policies, p, older)
	s.policies = slices.Insert(s.policies, at, p)
	s.bytes, s.labels = s.bytes+p.bytes, s.labels+p.labels
	for s.exceeds() {
		s.left = s.remove(len(s.policies) - 1)
		out = append(out, s.left)
	}
	s.stale = s.stale || s.left != nil && old >= 0 && (s.bytes < bytes || s.labels < labels)
	return out
}

func (s *Share) exceeds() bool {
	return len(s.policies) > MaxObjects || s.bytes > MaxNamespaceBytes || s.labels > MaxNamespaceLabels
}

// Delete removes a policy, if it is there.
func (s *Share) Delete(key types.NamespacedName) {
	at := slices.IndexFunc(s.policies, func(p *Policy) bool { return p.Key == key })
	if at >= 0 {
		s.remove(at)
	}
	if s.left != nil && (at >= 0 || s.left.Key == key) {
		s.stale = true
	}
}

func (s *Share) remove(at int) *Policy {
	p := s.policies[at]
	s.policies = slices.Delete(s.policies, at, at+1)
	s.bytes, s.labels = s.bytes-p.bytes, s.labels-p.labels
	return p
}

// Policies are those that are enforced, the oldest first.
func (s *Share) Policies() []*Policy { return s.policies }

// Stale reports whether there may be room for a policy that was left out: then all are to be put into a new Share.
func (s *Share) Stale() bool { return s.stale }
