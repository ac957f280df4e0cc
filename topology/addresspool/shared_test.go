package addresspool_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
)

func layouts(t testing.TB, prefixes map[string][]string) map[string]*addresspool.Layout {
	t.Helper()
	out := map[string]*addresspool.Layout{}
	for name, of := range prefixes {
		l, err := addresspool.Of(addresspool.OfSubnets(topology.IPAM{Pool: name, Subnets: of}))
		if err != nil {
			t.Fatal(err)
		}
		out[name] = l
	}
	return out
}

// TestSharedAmong holds that of any pools exactly those are named that share addresses with another one, with one of these.
func TestSharedAmong(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		prefixes := map[string][]string{}
		for i := range 1 + random.IntN(8) {
			name := fmt.Sprint("p", i)
			bits := 24 + random.IntN(5)
			prefixes[name] = []string{fmt.Sprintf("10.0.%d.%d/%d", random.IntN(3), random.IntN(256)>>(32-bits)<<(32-bits), bits)}
			if random.IntN(2) == 0 {
				prefixes[name] = append(prefixes[name], fmt.Sprintf("fd00:%d::/64", random.IntN(6)))
			}
			if random.IntN(2) == 0 {
				prefixes[name] = append(prefixes[name], fmt.Sprintf("10.0.%d.0/24", 3+random.IntN(4)))
			}
		}
		all := layouts(t, prefixes)
		for i := range len(all) {
			all[fmt.Sprint("p", i)].Switch = []string{"", "", "blue", "red"}[random.IntN(4)]
		}
		shared := addresspool.SharedAmong(all)
		for name, l := range all {
			shares := false
			for other, o := range all {
				_, _, ok := l.Overlaps(o)
				shares = shares || ok && other != name
			}
			got, ok := shared[name]
			if ok != shares || ok && (got.Pool == name || !got.Mine.Overlaps(got.Theirs) || all[got.Pool].Switch != l.Switch) {
				t.Fatalf("%v: %s shares %+v, want any: %t", prefixes, name, got, shares)
			}
		}
	}
}

// TestSharedAmongMany holds that pools of ten thousand networks, equal or beside one another, are compared at once, and that one more
// changes what few of them share.
func TestSharedAmongMany(t *testing.T) {
	const n = 10_000
	for what, subnet := range map[string]func(i int) string{
		"equal":  func(int) string { return "10.0.0.0/16" },
		"others": func(i int) string { return fmt.Sprintf("10.%d.%d.0/24", i/250, i%250) },
	} {
		prefixes := map[string][]string{}
		for i := range n {
			prefixes[fmt.Sprintf("ovn-%05d", i)] = []string{subnet(i)}
		}
		all := layouts(t, prefixes)
		began := time.Now()
		before := addresspool.SharedAmong(all)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: %s", what, took)
		}
		all["a"] = layouts(t, map[string][]string{"a": {subnet(0)}})["a"]
		changed := 0
		for name, now := range addresspool.SharedAmong(all) {
			if before[name] != now {
				changed++
			}
		}
		if changed == 0 || changed > 3 {
			t.Errorf("%s: one more pool changes what %d share", what, changed)
		}
	}
}
