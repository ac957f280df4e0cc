package tc

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
)

// Bounds of a Memo: one set of rules may be ten thousand filters.
const (
	memoSets    = 16
	memoFilters = 20_000
)

// Memo keeps the filters of the sets of rules that were compiled last: after an edit the pods of an object have the same
// rules, and to compile these for each is most of the time that an edit takes on a node. Its zero value is ready. It is
// safe for concurrent use.
type Memo struct {
	mu      sync.Mutex
	kept    []compiledRules // the last one used comes last
	filters int
}

// compiledRules are the filters of rules, with the members of their sets at that time.
type compiledRules struct {
	rules   []qos.Rule
	members map[qos.SetID][]netip.Addr
	filters []netstate.Filter
}

// Objects compiles rules and returns their objects: see Compile, Filters.Objects. The caller may change the result, but not the targets of
// its pointers.
func (m *Memo) Objects(rules []qos.Rule, members func(qos.SetID) []netip.Addr) ([]netstate.Filter, error) {
	now := compiledRules{rules: rules, members: map[qos.SetID][]netip.Addr{}}
	for i := range rules {
		for _, id := range rules[i].Sets {
			now.members[id] = members(id)
		}
	}
	m.mu.Lock()
	if i := slices.IndexFunc(m.kept, now.same); i >= 0 {
		found := m.kept[i]
		m.kept = append(slices.Delete(m.kept, i, i+1), found)
		m.mu.Unlock()
		return slices.Clone(found.filters), nil
	}
	m.mu.Unlock()
	compiled, err := Compile(rules, members)
	if err != nil {
		return nil, err
	}
	now.filters = compiled.Objects()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept, m.filters = append(m.kept, now), m.filters+len(now.filters)
	for len(m.kept) > memoSets || m.filters > memoFilters && len(m.kept) > 1 {
		m.filters -= len(m.kept[0].filters)
		m.kept = slices.Delete(m.kept, 0, 1)
	}
	return slices.Clone(now.filters), nil
}

// same reports whether two sets of rules have the same filters. It compares the addresses and ports of policies, which
// are not changed, by where they are.
func (c compiledRules) same(o compiledRules) bool {
	return slices.EqualFunc(c.rules, o.rules, func(a, b qos.Rule) bool {
		return a.Precedence == b.Precedence && a.Policy == b.Policy && a.Index == b.Index && a.DSCP == b.DSCP &&
			a.RateKbit == b.RateKbit && a.BurstKbit == b.BurstKbit &&
			a.Any == b.Any && a.Addresses == b.Addresses && sameSlice(a.Ports, b.Ports) && slices.Equal(a.Sets, b.Sets)
	}) && func() bool {
		for id, addresses := range c.members {
			if !sameSlice(addresses, o.members[id]) {
				return false
			}
		}
		return true
	}()
}

// sameSlice reports whether two slices have the same memory.
func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
