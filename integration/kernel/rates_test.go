package kernel

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/tc"
	"github.com/plumbline/plumbline/reconcile"
)

// limitAll are the filters of a rule that limits all that a pod sends.
func limitAll(mbps uint32) []netstate.Filter {
	compiled, err := tc.Compile([]qos.Rule{{Precedence: 10200, Any: true, DSCP: 8, RateKbit: 1000 * mbps}}, nil)
	if err != nil {
		panic(err) // too many rules
	}
	return compiled.Objects()
}

// cardOf is the card of a function, on which the host has set a rate.
type cardOf struct {
	*foreignWriter
	t *testing.T
}

// withHostRate sets a rate of virtual function 1 of enp3s0f0, as somebody on the host may.
func withHostRate(t *testing.T) cardOf {
	t.Helper()
	c := cardOf{&foreignWriter{t: t}, t}
	// The card takes rates only while its link is up, and only up to its speed, 1 Gbit/s.
	c.run("ip link set enp3s0f0 up; timeout 60 sh -c 'until [ \"$(cat /sys/class/net/enp3s0f0/carrier)\" = 1 ]; do :; done'; ip link set enp3s0f0 vf 1 max_tx_rate 700")
	t.Cleanup(func() { c.run("ip link set enp3s0f0 vf 1 max_tx_rate 0") })
	return c
}

// has compares the rate that ip prints.
func (c cardOf) has(when string, mbps uint32) {
	c.t.Helper()
	vf := regexp.MustCompile(`(?m)^ +vf 1 .*$`).FindString(c.run("ip link show dev enp3s0f0"))
	if have := regexp.MustCompile(`max_tx_rate (\d+)|tx rate (\d+)`).FindStringSubmatch(vf); have == nil || have[1]+have[2] != fmt.Sprint(mbps) {
		c.t.Fatalf("%s: the function has %q, not %d Mbit/s: %s", when, have, mbps, vf)
	}
}

// TestRateOnPF: the PF limits a function to the rate of a rule that limits all it sends, and the filters
// of the rule only mark. A rate that the driver refuses is enforced by tc. A change behind the
// record is repaired, and release restores the rate of the host. The output of ip and tc is compared.
func TestRateOnPF(t *testing.T) {
	if !hasCards() {
		return // no PCI there
	}
	l := newLane(t)
	device := functions(t, map[string]string{"vf0": "enp3s0f0/1"})
	l.devices = []string{device["vf0"]}
	host := withHostRate(t)
	host.has("before", 700)
	sb := box(newNetns(t), parse(t, "t", "    - {name: vf0, type: sriov, config: {addresses: [192.0.2.5/24]}}\n"))
	start := l.state(sb.Netns)
	sb.Given = ops.Givens{}.WithDevices(device)
	r := l.engine(nil)
	is := func(when string, mbps uint32, police string) {
		t.Helper()
		host.has(when, mbps)
		if st, err := r.Check(ctxFor(t), sb.ID); err != nil || st.State != reconcile.InSync {
			t.Fatalf("%s: %v, %+v", when, err, st)
		}
		shown := host.run("tc -n " + filepath.Base(sb.Netns) + " filter show dev net1 egress 2>/dev/null || true")
		have := strings.Join(regexp.MustCompile(`rate \S+`).FindAllString(shown, -1), ", ")
		if marks := len(sb.Filters) > 0; have != police || strings.Contains(shown, "pedit") != marks {
			t.Fatalf("%s: tc limits by %q, not %q:\n%s", when, have, police, shown)
		}
	}
	for _, s := range []struct {
		name    string
		filters []netstate.Filter
		mbps    uint32
		police  string
		refused bool
	}{
		{"attached", limitAll(300), 300, "", false},
		{"another rate", limitAll(400), 400, "", false},
		{"above the speed of the link", limitAll(2000), 700, "rate 2Gbit, rate 2Gbit", true},
		{"again", limitAll(2000), 700, "rate 2Gbit, rate 2Gbit", true},
		{"no rule", nil, 700, "", false},
		{"once more", limitAll(50), 50, "", false},
	} {
		sb.Filters = s.filters
		if _, err := r.Ensure(ctxFor(t), sb); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		is(s.name, s.mbps, s.police)
		rec, _, err := r.Record(sb.ID)
		if why := rec.Refused[device["vf0"]]; err != nil || (why != "") != s.refused || s.refused && !strings.Contains(why, "as for a rate above the link's speed") {
			t.Errorf("%s: refused: %q, %v", s.name, why, err)
		}
	}
	r = l.engine(nil) // which has the record alone
	host.run("ip link set enp3s0f0 vf 1 max_tx_rate 0")
	if st, err := r.Check(ctxFor(t), sb.ID); err != nil || len(st.Drift) != 1 || st.Drift[0].Field != "maxTxRate" {
		t.Errorf("disturbed: %v, %+v", err, st)
	}
	if _, err := r.Repair(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	is("repaired", 50, "")
	if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	host.has("released", 700)
	l.mustEqual(start, sb.Netns, "after release")
}

// TestRateOfUserspace: the PF limits a function that a driver in the container uses, which no filter of
// tc could.
func TestRateOfUserspace(t *testing.T) {
	if !hasCards() {
		return
	}
	l, path := newLane(t), newNetns(t)
	host := withHostRate(t)
	host.run("modprobe vfio-pci")
	device := functions(t, map[string]string{"dpdk0": "enp3s0f0/1"})
	start, r := l.state(path), l.engine(nil)
	prepared := reconcile.Sandbox{ID: reconcile.IDOfPreparation("claim", "t"), Topology: parse(t, "t", dpdk), Given: ops.Givens{}.WithDevices(device)}
	pod := prepared
	pod.ID, pod.Netns, pod.Prepared, pod.Filters = reconcile.IDOfClaim("s1", "claim", "t"), path, prepared.ID, limitAll(300)
	for _, sb := range []reconcile.Sandbox{prepared, pod} {
		if _, err := r.Ensure(ctxFor(t), sb); err != nil {
			t.Fatal(err)
		}
	}
	host.has("attached", 300)
	host.run("ip link set enp3s0f0 vf 1 max_tx_rate 0")
	if _, err := r.Repair(ctxFor(t), pod.ID); err != nil {
		t.Fatal(err)
	}
	host.has("repaired", 300)
	for _, id := range []reconcile.SandboxID{prepared.ID, pod.ID} {
		if st, err := r.Check(ctxFor(t), id); err != nil || st.State != reconcile.InSync {
			t.Errorf("%s: %v, %+v", id, err, st)
		}
	}
	for _, id := range []reconcile.SandboxID{pod.ID, prepared.ID} {
		if _, err := r.AwaitRelease(ctxFor(t), id); err != nil {
			t.Fatal(err)
		}
		host.has("released", 700)
	}
	l.mustEqual(start, path, "after release")
}
