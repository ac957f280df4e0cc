package ops

import (
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
)

// TestSettingsAreImagined: a setting exists on some node, so validation must not
// refuse a topology because it is absent on the imagined one.
func TestSettingsAreImagined(t *testing.T) {
	for _, k := range netstate.Kinds() {
		o, err := netstate.ReadObject(k, []byte(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		if !o.Traits().Setting || k == netstate.KindEthtool { // see addEthtool
			continue
		}
		have := netstate.NewSnapshot()
		(&imagination{have: have, view: have, mtu: 1500, domain: "ffff"}).add(o)
		got, there := have.Get(o.Key())
		if !there || len(netstate.Fields(got)) == 0 {
			t.Errorf("%s: %+v, there %v; want one with values", k, got, there)
		}
	}
}
