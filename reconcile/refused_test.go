package reconcile_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// card is a host whose physical function refuses rates above the speed of its link.
type card struct {
	*sandbox
	speed    uint32 // Mbit/s
	attempts int
	refuses  []string // the fields that it names
}

func (c *card) Apply(ctx context.Context, change netstate.Change) error {
	if vf, ok := change.After.(netstate.VF); ok && vf.MaxTxRateMbps != nil && *vf.MaxTxRateMbps > c.speed {
		c.attempts++
		return &netstate.Refused{Paths: c.refuses, Err: fault.New(fault.Invalid, errors.New("above the speed"))}
	}
	return c.sandbox.Apply(ctx, change)
}

func (c *card) rate() uint32 {
	vf, _ := netstate.Lookup(c.Snapshot, netstate.VF{ID: function})
	return *vf.MaxTxRateMbps
}

// policed returns the rates of the filters of a link, in Mbit/s.
func (c *card) policed() (out []uint64) {
	for _, f := range netstate.All[netstate.Filter](c.Snapshot) {
		out = append(out, *f.Rate*8/1_000_000)
	}
	return out
}

// limit are the filters of a rule that limits all that a pod sends.
func limit(mbps uint64) []netstate.Filter {
	f := netstate.Filter{
		Rule: "ai/a[0]", Pref: 20000, Handle: 1, Family: new(netstate.IPv4), To: new(""), Protocol: new(""), Port: new(uint16(0)),
		DSCP: new(uint8(8)), Policer: new(uint16(1)), Rate: new(mbps * 1_000_000 / 8), BurstNanos: new(uint64(64_000_000)),
	}
	g := f
	g.Pref, g.Family = 20001, new(netstate.IPv6)
	return []netstate.Filter{f, g}
}

func withCard(t *testing.T) (*reconcile.Reconciler, *card, reconcile.Sandbox) {
	t.Helper()
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	c := &card{speed: 1000, refuses: []string{"maxTxRate"}, sandbox: &sandbox{t: t, Snapshot: netstate.NewSnapshot(
		netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new("")},
		netstate.Link{Name: ownName, LinkKind: "device", DeviceID: function, MAC: new("02:00:00:00:00:01"), MTU: new(uint32(1500)), Up: new(false), Master: new(""), TxQueueLen: new(uint32(1000))},
		netstate.Device{ID: function, At: new(ownName), MAC: new("02:00:00:00:00:01"), MTU: new(uint32(1500)), Up: new(false), AltNames: []string{}, Driver: "igbvf"},
		netstate.VF{ID: function, VLAN: new(uint16(0)), QoS: new(uint8(0)), Protocol: new("802.1q"), MinTxRateMbps: new(uint32(0)), MaxTxRateMbps: new(uint32(700)), PF: "enp1s0"},
	)}}
	r := reconcile.New(reconcile.Options{
		Registry: registry, Store: store, BootID: "boot", Now: time.Now, Patience: time.Millisecond,
		Open: func(string) (reconcile.Domain, error) { return c, nil },
	})
	return r, c, reconcile.Sandbox{
		ID: "blue/t", Netns: "/run/netns/blue", Given: ops.Givens{}.WithDevices(map[string]string{"d": function}),
		Topology: &topology.Topology{Name: "t", DriftPolicy: topology.Repair, Steps: []topology.Step{{Name: "d", Type: "sriov", Config: map[string]any{"vlan": int64(7)}}}},
	}
}

// TestRateRefused: tc enforces a rule whose rate the physical function refuses, which is remembered
// until the sandbox has other rules; the rate of the host is restored.
func TestRateRefused(t *testing.T) {
	r, c, sb := withCard(t)
	steps := []struct {
		filters  []netstate.Filter
		rate     uint32
		policed  uint64
		attempts int
	}{
		{limit(2000), 700, 2000, 1},
		{limit(2000), 700, 2000, 1},
		{limit(100), 100, 0, 1},
		{limit(3000), 700, 3000, 2},
		{nil, 700, 0, 2},
		{limit(900), 900, 0, 2},
	}
	for i, s := range steps {
		sb.Filters = s.filters
		rep, err := r.Ensure(t.Context(), sb)
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		policed := c.policed()
		if c.rate() != s.rate || len(policed) != len(s.filters) || len(policed) > 0 && (policed[0] != s.policed || policed[1] != s.policed) || c.attempts != s.attempts {
			t.Errorf("step %d: the function has %d Mbit/s, filters %v; %d attempts; changes %v", i, c.rate(), policed, c.attempts, rep.Changes)
		}
		rec, _, err := r.Record(sb.ID)
		if why := rec.Refused[function]; err != nil || (why != "") != (s.policed > 0) {
			t.Errorf("step %d: recorded %q, %v", i, why, err)
		}
		if st, err := r.Check(t.Context(), sb.ID); err != nil || st.State != reconcile.InSync {
			t.Errorf("step %d: %v, %+v", i, err, st)
		}
	}
	c.speed = 800 // the link has another speed, and the driver has reset the rate
	c.Snapshot.Apply(netstate.Change{After: netstate.VF{ID: function, MaxTxRateMbps: new(uint32(0))}})
	if _, err := r.Repair(t.Context(), sb.ID); err != nil || c.attempts != 3 || c.policed()[0] != 900 {
		t.Errorf("repair: %v, %d attempts, filters %v", err, c.attempts, c.policed())
	}
	if _, err := r.Release(t.Context(), sb.ID); err != nil || !c.has(ownName) {
		t.Errorf("release: %v", err)
	}
}

// TestRateRefusedLater: a repair that finds nothing to do but a rate which the physical function refuses by
// now leaves a record that says so, and does not try it again.
func TestRateRefusedLater(t *testing.T) {
	r, c, sb := withCard(t)
	c.Snapshot = netstate.NewSnapshot(
		netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new("")},
		netstate.Device{ID: function, AltNames: []string{}, Driver: "vfio-pci"}, // without an interface, so without filters
		netstate.VF{ID: function, VLAN: new(uint16(0)), QoS: new(uint8(0)), Protocol: new("802.1q"), MinTxRateMbps: new(uint32(0)), MaxTxRateMbps: new(uint32(0)), PF: "enp1s0"},
	)
	sb.Filters = limit(900)
	if _, err := r.Ensure(t.Context(), sb); err != nil || c.rate() != 900 {
		t.Fatalf("%v, %d Mbit/s", err, c.rate())
	}
	c.speed = 100
	c.Snapshot.Apply(netstate.Change{After: netstate.VF{ID: function, MaxTxRateMbps: new(uint32(0))}})
	for i := range 2 {
		rep, err := r.Repair(t.Context(), sb.ID)
		rec, _, known := r.Record(sb.ID)
		if err != nil || known != nil || len(rep.Changes) > 0 || c.attempts != 1 || rec.Phase != reconcile.Applied || rec.Refused[function] == "" {
			t.Errorf("repair %d: %v, %v, %d attempts, record %s %q", i, err, rep.Changes, c.attempts, rec.Phase, rec.Refused)
		}
	}
	if st, err := r.Check(t.Context(), sb.ID); err != nil || st.State != reconcile.InSync {
		t.Errorf("%v, %+v", err, st)
	}
	if _, err := r.Release(t.Context(), sb.ID); err != nil || c.rate() != 0 || c.attempts != 1 {
		t.Errorf("release: %v, %d Mbit/s, %d attempts", err, c.rate(), c.attempts)
	}
}

// TestOtherSettingRefused: a pass fails if the physical function refuses a setting that is not the rate
// of a rule.
func TestOtherSettingRefused(t *testing.T) {
	for name, disturb := range map[string]func(*card, *reconcile.Sandbox){
		"another setting":        func(c *card, _ *reconcile.Sandbox) { c.refuses = []string{"vlan"} },
		"the rate of the config": func(_ *card, sb *reconcile.Sandbox) { sb.Topology.Steps[0].Config["maxTxRate"] = int64(1500) },
	} {
		r, c, sb := withCard(t)
		sb.Filters = limit(2000)
		disturb(c, &sb)
		if _, err := r.Ensure(t.Context(), sb); fault.Of(err) != fault.Invalid || c.rate() != 700 || !c.has(ownName) || c.attempts != 1 {
			t.Errorf("%s: %v, %d attempts", name, err, c.attempts)
		}
	}
}

// TestRateOfPrepared: the sandbox of a pod has the rate of its rules for a function that was prepared for
// user space, and what prepares it has none.
func TestRateOfPrepared(t *testing.T) {
	boot, k, prepared, pod := withFunction(t)
	k.Snapshot.Apply(netstate.Change{After: netstate.VF{ID: function, MaxTxRateMbps: new(uint32(0))}})
	c := &card{sandbox: k}
	r := boot("boot")
	if _, err := r.Ensure(t.Context(), prepared); err != nil {
		t.Fatal(err)
	}
	inSync := func(when string, rate uint32) {
		t.Helper()
		for _, id := range []reconcile.SandboxID{prepared.ID, pod.ID} {
			if st, err := r.Check(t.Context(), id); err != nil || st.State != reconcile.InSync {
				t.Errorf("%s: %v, %+v", when, err, st)
			}
		}
		if c.rate() != rate {
			t.Errorf("%s: the function has %d Mbit/s, not %d", when, c.rate(), rate)
		}
	}
	pod.Filters = limit(100)
	if _, err := r.Ensure(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	inSync("applied", 100)
	k.Snapshot.Apply(netstate.Change{After: netstate.VF{ID: function, MaxTxRateMbps: new(uint32(0))}})
	if st, err := r.Check(t.Context(), prepared.ID); err != nil || st.State != reconcile.InSync {
		t.Errorf("what is prepared: %v, %+v", err, st)
	}
	if _, err := r.Repair(t.Context(), pod.ID); err != nil {
		t.Error(err)
	}
	inSync("repaired", 100)
	pod.Filters = limit(50)
	if _, err := r.Ensure(t.Context(), pod); err != nil {
		t.Error(err)
	}
	inSync("edited", 50)
	if _, err := r.Release(t.Context(), pod.ID); err != nil || c.rate() != 0 || k.driver() != "vfio-pci" {
		t.Errorf("release of the pod's: %v, %d Mbit/s, driver %s", err, c.rate(), k.driver())
	}
	if _, err := r.Release(t.Context(), prepared.ID); err != nil || k.driver() != "igbvf" {
		t.Errorf("release: %v", err)
	}
}
