package kernel

import (
	"net/netip"
	"testing"
	"time"

	"go4.org/netipx"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/tc"
	"github.com/plumbline/plumbline/reconcile"
)

// TestManyFilters: many filters, in the long form as many as an interface may have, are applied, checked and released, and an edit of one of their rules
// writes only what it is about.
func TestManyFilters(t *testing.T) {
	l := newLane(t)
	sb := box(newNetns(t), parse(t, "t", "    - {name: d, type: dummy, config: {name: d0, addresses: [192.0.2.5/24]}}\n"))
	size := 1000
	if effort.Long() {
		size = tc.MaxFilters
	}
	rules := make([]qos.Rule, 20)
	for i := range rules {
		rules[i] = qos.Rule{Precedence: qos.MaxPrecedence - i, Index: i, DSCP: uint8(i)}
		var b netipx.IPSetBuilder
		for j := range size / len(rules) {
			b.AddPrefix(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), byte(j >> 7), byte(2 * j)}), 32))
		}
		rules[i].Addresses, _ = b.IPSet()
	}
	given := func() []netstate.Filter {
		compiled, err := tc.Compile(rules, nil)
		if err != nil {
			t.Fatal(err)
		}
		return compiled.Objects()
	}
	sb.Filters = given()
	if len(sb.Filters) != size {
		t.Fatalf("%d filters", len(sb.Filters))
	}
	r := l.engine(nil)
	began := time.Now()
	lap := func(what string) {
		t.Logf("%s: %s", what, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	lap("applied")
	if st, err := r.Check(ctxFor(t), sb.ID); err != nil || st.State != reconcile.InSync {
		t.Fatalf("%v, %+v", err, st)
	}
	lap("checked")
	rules[3].DSCP = 63
	sb.Filters = given()
	rep, err := r.Ensure(ctxFor(t), sb)
	if err != nil || len(rep.Changes) != size/len(rules) {
		t.Errorf("another mark of a rule: %d changes, %v", len(rep.Changes), err)
	}
	lap("a rule edited")
	if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
		t.Error(err)
	}
	lap("released")
}
