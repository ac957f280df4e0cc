package failures_test

import (
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/failures"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// claimOf is a claim with two devices, of which the second one is shared if it has a share.
func claimOf(policy *v1alpha1.FailurePolicy, share *types.UID) claims.Claim {
	o := v1alpha1.NetworkTopology{Spec: v1alpha1.NetworkTopologySpec{OnFailure: policy}}
	o.Name = "ai"
	return claims.Claim{UID: "c1", Topologies: []claims.Topology{{Object: o, Devices: []claims.Device{
		{Device: claim.Device{Step: "left", Name: "dev-left"}}, {Device: claim.Device{Step: "right", Name: "dev-right", ShareID: share}},
	}}}}
}

func report(sandbox string, devices map[string]ports.Severity) ports.Report {
	return ports.Report{
		Sandbox: reconcile.IDOfClaim(sandbox, "c1", "ai"), Topology: &topology.Topology{Name: "ai"}, Outcome: ports.Outcome{Devices: devices},
	}
}

type (
	failing  = map[string]publish.Failing
	severity = map[string]ports.Severity
)

func TestTracker(t *testing.T) {
	evict := &v1alpha1.FailurePolicy{Lost: v1alpha1.Evict, After: "2m"}
	only := &v1alpha1.FailurePolicy{Lost: v1alpha1.Report}
	share := types.UID("share")
	gone := ports.Report{Sandbox: reconcile.IDOfClaim("s", "c1", "ai"), Topology: &topology.Topology{Name: "ai"}, Gone: true}
	type at struct {
		after  time.Duration
		report *ports.Report
		want   failing
	}
	of := func(r ports.Report) *ports.Report { return &r }
	for _, tt := range []struct {
		name  string
		claim claims.Claim
		at    []at
	}{
		{"no policy", claimOf(nil, nil), []at{
			{0, of(report("s", severity{"left": ports.Lost})), failing{}}, {time.Hour, nil, failing{}},
		}},
		{"reported", claimOf(only, nil), []at{
			{0, of(report("s", severity{"left": ports.Degraded})), failing{}},
			{59 * time.Second, nil, failing{}},
			{time.Second, nil, failing{"dev-left": {}}},
			{0, of(report("s", severity{"left": ports.Lost, "right": ports.Lost})), failing{}},
			{time.Minute, nil, failing{"dev-left": {Lost: true}, "dev-right": {Lost: true}}},
			{0, of(report("s", severity{"right": ports.Degraded})), failing{}},
			{0, of(report("s", nil)), failing{}},
		}},
		{"evicted", claimOf(evict, nil), []at{
			{0, of(report("s", severity{"left": ports.Lost})), failing{}},
			{time.Minute, of(report("s", severity{"left": ports.Lost})), failing{}}, // again, with the same
			{time.Minute, nil, failing{"dev-left": {Lost: true, Evict: true}}},
			{time.Second, &gone, failing{"dev-left": {Lost: true, Held: true}}},
			{9 * time.Minute, nil, failing{"dev-left": {Lost: true, Held: true}}},
			{time.Minute, nil, failing{}},
		}},
		{"evicted from the same device again", claimOf(evict, nil), []at{
			{0, of(report("s", severity{"left": ports.Lost})), failing{}},
			{2 * time.Minute, &gone, failing{"dev-left": {Lost: true, Held: true}}},
			{0, of(report("s2", severity{"left": ports.Lost})), failing{"dev-left": {Lost: true, Held: true}}},
			{2 * time.Minute, nil, failing{"dev-left": {Lost: true, Evict: true}}},
		}},
		{"ended by itself before", claimOf(evict, nil), []at{
			{0, of(report("s", severity{"left": ports.Lost})), failing{}}, {time.Minute, &gone, failing{}},
		}},
		{"up again before", claimOf(evict, nil), []at{
			{0, of(report("s", severity{"left": ports.Lost})), failing{}},
			{time.Minute, of(report("s", nil)), failing{}},
			{time.Minute, of(report("s", severity{"left": ports.Lost})), failing{}},
			{time.Minute, nil, failing{}},
		}},
		// With its own link, a pod could evict those it shares the device with.
		{"a shared device", claimOf(evict, &share), []at{
			{0, of(report("s", severity{"right": ports.Lost})), failing{}}, {time.Hour, nil, failing{"dev-right": {Lost: true}}},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var changed atomic.Int32 // timers write it
				tracker := failures.New(failures.Options{
					InUse: func() []string { return nil }, Claim: func(uid types.UID) (claims.Claim, bool) { return tt.claim, uid == "c1" }, Changed: func() { changed.Add(1) }, Now: time.Now,
				})
				last := tracker.Failing()
				for i, a := range tt.at {
					time.Sleep(a.after)
					synctest.Wait()
					if a.report != nil {
						tracker.Report(*a.report)
					}
					got := tracker.Failing()
					for name, f := range got {
						if f.Held != !f.Since.IsZero() || f.Since.After(time.Now()) {
							t.Errorf("%d: %s is held since %s", i, name, f.Since)
						}
						f.Since = time.Time{}
						got[name] = f
					}
					if !reflect.DeepEqual(got, a.want) {
						t.Errorf("%d: %+v, want %+v", i, got, a.want)
					}
					if !reflect.DeepEqual(got, last) && changed.Load() == 0 {
						t.Errorf("%d: Changed was not called", i)
					}
					last = got
					changed.Store(0)
				}
				time.Sleep(time.Hour) // the timers end
			})
		})
	}
}

// TestRestored holds that an agent goes on with what an earlier one has published: devices
// are held for what is left of their time, and a pod that is being evicted is not spared,
// unless its port is up.
func TestRestored(t *testing.T) {
	const evicted = "dev-left"
	lost := failing{evicted: {Lost: true, Evict: true}}
	bad := report("s", severity{"left": ports.Lost})
	bad.Verdicts = []ports.Verdict{{Status: ports.Down}, {Status: ports.Up}}
	unknown, good := report("s", nil), report("s", nil)
	unknown.Verdicts = []ports.Verdict{{}, {Status: ports.Up}}
	good.Verdicts = []ports.Verdict{{Status: ports.Up}, {Status: ports.Up}}
	for name, run := range map[string]func(t *testing.T, tracker *failures.Tracker, inUse *[]string) failing{
		"held": func(_ *testing.T, tracker *failures.Tracker, _ *[]string) failing {
			tracker.Restore(failing{"dev": {Lost: true, Held: true, Since: time.Now().Add(-9 * time.Minute)}, "other": {Lost: true, Held: true, Since: time.Now().Add(-11 * time.Minute)}})
			return failing{"dev": {Lost: true, Held: true, Since: time.Now().Add(-9 * time.Minute)}}
		},
		"held for long enough": func(_ *testing.T, tracker *failures.Tracker, _ *[]string) failing {
			tracker.Restore(failing{"dev": {Lost: true, Held: true, Since: time.Now().Add(-9 * time.Minute)}})
			time.Sleep(time.Minute)
			return failing{}
		},
		"held by an earlier version": func(_ *testing.T, tracker *failures.Tracker, _ *[]string) failing {
			tracker.Restore(failing{"dev": {Lost: true, Held: true}})
			return failing{"dev": {Lost: true, Held: true, Since: time.Now()}}
		},
		"the clock was set": func(_ *testing.T, tracker *failures.Tracker, _ *[]string) failing {
			tracker.Restore(failing{"dev": {Lost: true, Held: true, Since: time.Now().Add(time.Hour)}})
			return failing{"dev": {Lost: true, Held: true, Since: time.Now()}}
		},
		"being evicted": func(_ *testing.T, tracker *failures.Tracker, _ *[]string) failing {
			tracker.Restore(lost)
			tracker.Report(unknown)
			tracker.Report(bad)
			return lost
		},
		"being evicted, and reported before": func(_ *testing.T, tracker *failures.Tracker, _ *[]string) failing {
			tracker.Report(bad)
			tracker.Restore(lost)
			return lost
		},
		"evicted meanwhile": func(_ *testing.T, tracker *failures.Tracker, inUse *[]string) failing {
			tracker.Restore(lost)
			*inUse = nil
			return failing{evicted: {Lost: true, Held: true, Since: time.Now()}}
		},
		"evicted then": func(_ *testing.T, tracker *failures.Tracker, inUse *[]string) failing {
			tracker.Restore(lost)
			tracker.Report(bad)
			gone := bad
			gone.Gone, *inUse = true, nil
			tracker.Report(gone)
			return failing{evicted: {Lost: true, Held: true, Since: time.Now()}}
		},
		"up again": func(_ *testing.T, tracker *failures.Tracker, _ *[]string) failing {
			tracker.Restore(lost)
			tracker.Report(good)
			return failing{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inUse := []string{evicted}
				tracker := failures.New(failures.Options{
					Claim: func(types.UID) (claims.Claim, bool) {
						return claimOf(&v1alpha1.FailurePolicy{Lost: v1alpha1.Evict, After: "2m"}, nil), true
					},
					InUse: func() []string { return inUse }, Changed: func() {}, Now: time.Now,
				})
				if want, got := run(t, tracker, &inUse), tracker.Failing(); !reflect.DeepEqual(got, want) {
					t.Errorf("%+v, want %+v", got, want)
				}
				time.Sleep(time.Hour) // the timers end
			})
		})
	}
}

// TestClockSetBack: a device is held for ten minutes, however far the clock of the node is set back meanwhile.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := time.Duration(0)
		tracker := failures.New(failures.Options{
			Claim:   func(types.UID) (claims.Claim, bool) { return claims.Claim{}, false },
			InUse:   func() []string { return nil },
			Changed: func() {}, Now: func() time.Time { return time.Now().Add(-back).Round(0) },
		})
		tracker.Restore(failing{"dev-left": {Lost: true, Evict: true}})
		if f := tracker.Failing()["dev-left"]; !f.Held {
			t.Fatalf("not held: %+v", f)
		}
		time.Sleep(5 * time.Minute)
		back = 24 * time.Hour
		if f := tracker.Failing()["dev-left"]; !f.Held || f.Since.After(time.Now().Add(-back)) {
			t.Errorf("held since %s, which is later than now: %+v", f.Since, f)
		}
		time.Sleep(11 * time.Minute)
		if f, is := tracker.Failing()["dev-left"]; is {
			t.Errorf("still held: %+v", f)
		}
	})
}
