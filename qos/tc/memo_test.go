package tc

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
)

// drawn are rules and the members of their sets.
type drawn struct {
	rules   []qos.Rule
	members map[qos.SetID][]netip.Addr
}

func (d drawn) of(id qos.SetID) []netip.Addr { return d.members[id] }

// edited returns the rules with one of what an edit of an object, or of the pods that it has as a destination, may change.
func (d drawn) edited(rng *rand.Rand) drawn {
	out := drawn{slices.Clone(d.rules), map[qos.SetID][]netip.Addr{}}
	for id, addresses := range d.members {
		out.members[id] = addresses
		if rng.IntN(4) == 0 {
			out.members[id] = append(slices.Clone(addresses), qostest.Address(rng))
		}
	}
	other, _ := qostest.Rules(rng, len(out.rules))
	r, o := &out.rules[rng.IntN(len(out.rules))], other[rng.IntN(len(other))]
	switch rng.IntN(7) {
	case 0:
		r.DSCP = o.DSCP
	case 1:
		r.RateKbit = o.RateKbit
	case 2:
		r.BurstKbit = o.BurstKbit
	case 3:
		r.Addresses = o.Addresses
	case 4:
		r.Ports = o.Ports
	case 5:
		r.Any = !r.Any
	case 6:
		r.Policy.Name = "other"
	}
	return out
}

// TestMemo holds that filters that were kept are those that the rules have now, whatever was compiled before, that a caller may change what it was
// given, and that what is kept is bounded.
func TestMemo(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		var m Memo
		rules, members := qostest.Rules(rng, 1+rng.IntN(8))
		all := []drawn{{rules, members}}
		for range 100 {
			d := all[rng.IntN(len(all))]
			if rng.IntN(2) == 0 {
				d = d.edited(rng)
				all = append(all, d)
			}
			have, err := m.Objects(d.rules, d.of)
			if err != nil {
				t.Fatal(err)
			}
			want, err := Compile(d.rules, d.of)
			if err != nil {
				t.Fatal(err)
			}
			if objects := want.Objects(); len(have)+len(objects) > 0 && !reflect.DeepEqual(have, objects) {
				t.Fatalf("%+v\nhas\n%+v\nwant\n%+v", d, have, objects)
			}
			for i := range have {
				have[i].Link = "d0"
			}
		}
		if len(m.kept) > memoSets || m.filters > memoFilters {
			t.Fatalf("%d sets of rules with %d filters are kept", len(m.kept), m.filters)
		}
	}
}

// TestMemoBounded holds that large sets of rules are not all kept, and that the pods of an object are compiled once.
func TestMemoBounded(t *testing.T) {
	var m Memo
	for n := range memoSets {
		var members []netip.Addr
		for i := range 4000 {
			members = append(members, netip.AddrFrom4([4]byte{10, byte(n), byte(i / 250), byte(i % 250)}))
		}
		id := qos.SetID{To: n}
		of := func(qos.SetID) []netip.Addr { return members }
		rules := []qos.Rule{{Precedence: 10000, DSCP: 8, Sets: []qos.SetID{id}}}
		for range 2 {
			if out, err := m.Objects(rules, of); err != nil || len(out) != 4000 {
				t.Fatal(len(out), err)
			}
		}
	}
	n := 0
	for _, k := range m.kept {
		n += len(k.filters)
	}
	if n != m.filters || n > memoFilters || len(m.kept) != memoFilters/4000 {
		t.Errorf("%d filters in %d sets are kept, counted %d", n, len(m.kept), m.filters)
	}
}
