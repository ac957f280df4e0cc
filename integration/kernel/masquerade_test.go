package kernel

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/reconcile"
)

// TestMasquerade: pods with ipMasq reach a machine that knows no route to them, in both
// families, and hosts of excepted networks see their own addresses. What others do to the
// table is repaired, and nothing of others is changed. The table ends with the last pod.
func TestMasquerade(t *testing.T) {
	for _, kind := range effort.Sample(t, 2, []string{"ptp", "bridge"}) {
		t.Run(kind, func(t *testing.T) { testMasquerade(t, kind) })
	}
}

func testMasquerade(t *testing.T, kind string) {
	h := newRoutedHost(t)
	l := h.lane(t)
	r := l.engine(nil)
	const foreign = "table inet plumbline-of-another { chain postrouting { type nat hook postrouting priority srcnat + 10; policy accept; ip saddr 192.0.2.77 masquerade; }; }"
	h.run("ip netns exec $NS nft '" + foreign + "'")
	ruleset := func() string { // the order of elements is the kernel's
		words := strings.FieldsFunc(h.run("ip netns exec $NS nft list ruleset"), func(r rune) bool { return strings.ContainsRune(" \t\n,", r) })
		slices.Sort(words)
		return strings.Join(words, " ")
	}
	before := ruleset()

	var pods []string
	id := func(i int) reconcile.SandboxID { return reconcile.SandboxID(fmt.Sprintf("pod%d/t", i)) }
	attach := func(i int, more string) {
		t.Helper()
		path := newNetns(t)
		pods = append(pods, filepath.Base(path))
		h.run("ip -n " + filepath.Base(path) + " link set lo up")
		more += map[string]string{"bridge": ", bridge: br0"}[kind]
		sb := box(path, parse(t, "t", fmt.Sprintf("    - {name: p, type: %s, config: {ipMasq: true, isDefaultGateway: true, dad: \"off\", addresses: [10.9.0.%d/24, \"2001:db8:9::%d/64\"]%s}}\n", kind, i+5, i+5, more)))
		sb.ID = id(i)
		if _, err := r.Ensure(ctxFor(t), sb); err != nil {
			t.Fatal(err)
		}
	}
	attach(0, "")
	attach(1, `, ipMasqExcept: [203.0.113.0/25, "2001:db8:f::/64"]`)
	reach := func(pod int, to ...string) {
		t.Helper()
		eventually.Succeeds(t, patience, "the network is as wanted", func() error {
			for _, to := range to {
				if err := h.reaches(pods[pod], to); err != nil {
					return err
				}
			}
			return nil
		})
	}
	reach(0, "203.0.113.2", "2001:db8:f::2")
	for _, to := range []string{"203.0.113.2", "2001:db8:f::2"} {
		if h.reaches(pods[1], to) == nil {
			t.Errorf("the excepted %s answers a pod to which it has no route: it has seen another address", to)
		}
	}
	// Pods see one another's addresses: a rule that drops what comes from the host's would
	// else keep them apart.
	h.run("ip netns exec " + pods[1] + " nft 'table inet t { chain c { type filter hook input priority 0; ip saddr 10.9.0.5 accept; ip6 saddr 2001:db8:9::5 accept; meta l4proto icmp drop; icmpv6 type echo-request drop; }; }'")
	reach(0, "10.9.0.6", "2001:db8:9::6")

	whole := ruleset()
	check := func(what, disturb string) {
		t.Helper()
		h.run("ip netns exec $NS " + disturb)
		for i := range 2 {
			st, err := r.Check(ctxFor(t), id(i))
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 && (st.State != reconcile.Drifted || !strings.Contains(summary(st.Drift), "masquerade")) {
				t.Errorf("%s: it is %s: %s", what, st.State, summary(st.Drift))
			}
			if _, err := r.Repair(ctxFor(t), id(i)); err != nil {
				t.Errorf("%s: repair: %v", what, err)
			}
			if st, err := r.Check(ctxFor(t), id(i)); err != nil || st.State != reconcile.InSync {
				t.Errorf("%s: after repair of pod %d: %v, %+v", what, i, err, st)
			}
		}
		if what != "ruleset flushed" {
			if now := ruleset(); now != whole {
				t.Errorf("%s: after repair\n%s\nwant\n%s", what, now, whole)
			}
		}
		reach(0, "203.0.113.2", "2001:db8:f::2")
	}
	if st, err := r.Check(ctxFor(t), id(0)); err != nil || st.State != reconcile.InSync {
		t.Errorf("after the attachment: %v, %+v", err, st)
	}
	check("rules deleted", "nft flush chain inet plumbline postrouting")
	check("a foreign rule before ours", "nft insert rule inet plumbline postrouting accept")
	check("a source deleted", "nft delete element inet plumbline sources4 '{ 10.9.0.5 }'")
	check("an exception added", "nft add element inet plumbline excepts4 '{ 10.9.0.5 . 203.0.113.0/24 }'")
	check("an exception deleted", "nft delete element inet plumbline excepts6 '{ 2001:db8:9::5 . 2001:db8:9::/64 }'")
	check("table deleted", "nft delete table inet plumbline")
	check("ruleset flushed", "nft flush ruleset")
	h.run("ip netns exec $NS nft '" + foreign + "'")

	if _, err := r.AwaitRelease(ctxFor(t), id(0)); err != nil {
		t.Fatal(err)
	}
	if now := ruleset(); strings.Contains(now, "10.9.0.5") || !strings.Contains(now, "10.9.0.6") {
		t.Errorf("after one of two pods ended:\n%s", now)
	}
	h.run("ip netns delete " + pods[1])
	if _, err := r.AwaitRelease(ctxFor(t), id(1)); err != nil {
		t.Fatal(err)
	}
	if now := ruleset(); now != before {
		t.Errorf("after the last pod:\n%s\nwant\n%s", now, before)
	}
}
