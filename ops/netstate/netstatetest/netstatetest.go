// Package netstatetest compares snapshots and inverts changes. Only tests import it.
package netstatetest

import (
	"cmp"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
)

// Inverse returns the change that takes the object back.
func Inverse(c netstate.Change) netstate.Change {
	c.Before, c.After = c.After, c.Before
	return c
}

// Differences returns the differences of two snapshots in what plumbline manages, nil when there is none. Observed-only fields
// do not count.
func Differences(want, have *netstate.Snapshot) []string {
	var out []string
	for _, o := range sorted(want) {
		got, ok := have.Get(o.Key())
		if !ok {
			out = append(out, "- "+o.Key().String())
			continue
		}
		for _, d := range append(netstate.Diff(o, got), netstate.Diff(got, o)...) {
			out = append(out, "~ "+o.Key().String()+" "+d.Path+": "+netstate.FormatValue(d.After)+" / "+netstate.FormatValue(d.Before))
		}
	}
	for _, o := range sorted(have) {
		if _, ok := want.Get(o.Key()); !ok {
			out = append(out, "+ "+o.Key().String())
		}
	}
	return out
}

// sorted returns the objects of a snapshot by kind and ID.
func sorted(s *netstate.Snapshot) []netstate.Object {
	return slices.SortedFunc(slices.Values(netstate.All[netstate.Object](s)), func(a, b netstate.Object) int {
		return cmp.Or(cmp.Compare(a.Key().Kind, b.Key().Kind), cmp.Compare(a.Key().ID, b.Key().ID))
	})
}
