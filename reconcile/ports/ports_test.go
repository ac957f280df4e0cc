package ports

import (
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
)

func TestOf(t *testing.T) {
	at := func(s string) *string { return &s }
	rec := reconcile.Record{
		Sandbox: reconcile.Sandbox{Given: ops.Givens{"left": {Device: "0000:03:10.0"}}},
		History: []netstate.Change{
			{
				Step:   "left",
				Before: netstate.Device{ID: "0000:03:10.0", At: at("host:enp3s0f0v0"), LinkKind: "device", Parent: "pci/0000:03:10.0", Index: 7},
				After:  netstate.Device{ID: "0000:03:10.0", At: at("net1"), Index: 4},
			},
			{Step: "bond0", After: netstate.Link{Name: "bond0", LinkKind: "bond", Index: 5}},
			{Step: "vlan7", After: netstate.Link{Name: "data0", LinkKind: "vlan"}},                            // not verified yet
			{Step: "tune", Before: netstate.Link{Name: "eth0", Index: 2}, After: netstate.Link{Name: "eth0"}}, // of the pod
			{Step: "br", After: netstate.Link{Name: "host:br0", LinkKind: "bridge", Index: 9}},
			{Step: "bond0", After: netstate.Addr{Link: "bond0", Address: "192.0.2.1/24"}},
		},
	}
	want := []Port{
		{Step: "bond0", Name: "bond0", Index: 5, Kind: "bond"},
		{Step: "left", Name: "net1", Index: 4, Kind: "device", Parent: "pci/0000:03:10.0", Device: "0000:03:10.0"},
	}
	if got := Of(&rec); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		name  string
		state State
		want  Verdict
	}{
		{"gone", State{}, Verdict{Unknown, NotFound}},
		{"set down", State{Found: true}, Verdict{Unknown, SetDown}},
		{"no carrier", State{Found: true, Up: true}, Verdict{Down, NoCarrier}},
		{"carrier", State{Found: true, Up: true, Carrier: true}, Verdict{Up, Carrier}},
		{"port of a bond", State{Found: true, Up: true, Carrier: true, Bond: &BondPort{MII: true}}, Verdict{Up, Carrier}},
		{"monitor of a bond", State{Found: true, Up: true, Carrier: true, Bond: &BondPort{}}, Verdict{Down, NotUsed}},
		{"no partner", State{Found: true, Up: true, Carrier: true, Bond: &BondPort{MII: true, LACP: true}}, Verdict{Down, NoPartner}},
		{"partner", State{Found: true, Up: true, Carrier: true, Bond: &BondPort{MII: true, LACP: true, Partner: true}}, Verdict{Up, Carrier}},
		{"RDMA port", State{Found: true, Up: true, Carrier: true, RDMA: &RDMAPort{Active: true}}, Verdict{Up, Carrier}},
		{"RDMA port without a carrier", State{Found: true, Up: true, RDMA: &RDMAPort{}}, Verdict{Down, NoCarrier}},
		{"RDMA port down", State{Found: true, Up: true, Carrier: true, RDMA: &RDMAPort{}}, Verdict{Down, RDMADown}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Judge(tt.state); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// flagship is two devices, a bond, a VLAN on it, and settings of all.
var flagship = topology.Topology{Steps: []topology.Step{
	{Name: "left"},
	{Name: "right"},
	{Name: "tuned", DependOn: []string{"left"}},
	{Name: "bond0", DependOn: []string{"tuned", "right"}},
	{Name: "vlan7", DependOn: []string{"bond0"}},
	{Name: "other"},
}}

func TestWeigh(t *testing.T) {
	ports := []Port{
		{Step: "left", Device: "a", Kind: "device"},
		{Step: "right", Device: "b", Kind: "device"},
		{Step: "bond0", Kind: "bond"},
		{Step: "vlan7", Kind: "vlan"},
		{Step: "other", Device: "c", Kind: "device"},
	}
	for _, tt := range []struct {
		name  string
		down  string
		steps map[string]Severity // that are not fine
		want  Outcome
	}{
		{"nothing", "", map[string]Severity{}, Outcome{Fine, map[string]Severity{}}},
		{"one leg", "left", map[string]Severity{"left": Lost, "bond0": Degraded, "vlan7": Degraded}, Outcome{Degraded, map[string]Severity{"left": Degraded}}},
		{"both legs", "left right", map[string]Severity{"left": Lost, "right": Lost, "bond0": Lost, "vlan7": Lost}, Outcome{Lost, map[string]Severity{"left": Lost, "right": Lost}}},
		// Fewer ports are left than min_links.
		{"a leg, and the bond", "left bond0", map[string]Severity{"left": Lost, "bond0": Lost, "vlan7": Lost}, Outcome{Lost, map[string]Severity{"left": Lost}}},
		// The pod has taken both legs out, which have a carrier: no device is to blame.
		{"the bond alone", "bond0", map[string]Severity{"bond0": Lost, "vlan7": Lost}, Outcome{Lost, map[string]Severity{}}},
		{"a device of its own", "other", map[string]Severity{"other": Lost}, Outcome{Lost, map[string]Severity{"other": Lost}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var verdicts []Verdict
			for _, p := range ports {
				v := Verdict{Up, Carrier}
				for d := range strings.FieldsSeq(tt.down) {
					if d == p.Step {
						v = Verdict{Down, NoCarrier}
					}
				}
				verdicts = append(verdicts, v)
			}
			g, steps := graphOf(&flagship, ports, verdicts), map[string]Severity{}
			for _, p := range ports {
				if s := g.severity(p.Step); s != Fine {
					steps[p.Step] = s
				}
			}
			if !maps.Equal(steps, tt.steps) {
				t.Errorf("%v, want %v", steps, tt.steps)
			}
			if got := Weigh(&flagship, ports, verdicts); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestDebounce(t *testing.T) {
	up, down, set := Verdict{Up, Carrier}, Verdict{Down, NoCarrier}, Verdict{Unknown, SetDown}
	type at struct {
		seconds float64
		verdict Verdict
		changes uint32
		changed bool
		want    Verdict // that is reported
	}
	for _, tt := range []struct {
		name string
		at   []at
	}{
		{"up at once, when it is the first", []at{{0, up, 1, true, up}, {1, up, 1, false, up}}},
		{"no carrier yet", []at{{0, down, 1, false, Verdict{}}, {2, up, 2, true, up}}},
		{"never a carrier", []at{{0, down, 1, false, Verdict{}}, {3, down, 1, true, down}}},
		{"a failure", []at{{0, up, 1, true, up}, {10, down, 2, false, up}, {13, down, 2, true, down}, {20, up, 3, false, down}, {25, up, 3, true, up}}},
		{"a short one", []at{{0, up, 1, true, up}, {10, down, 2, false, up}, {11, up, 3, false, up}, {20, up, 3, false, up}}},
		{"two short ones look like a long one", []at{{0, up, 1, true, up}, {10, down, 2, false, up}, {13, down, 4, false, up}, {16, down, 4, true, down}}},
		{"another reason", []at{{0, down, 1, false, Verdict{}}, {3, down, 1, true, down}, {4, Verdict{Down, NoPartner}, 1, true, Verdict{Down, NoPartner}}}},
		{"set down", []at{{0, up, 1, true, up}, {1, set, 1, false, up}, {4, set, 1, true, set}}},
		{"flapping, and quiet again", []at{
			{0, up, 1, true, up},
			{1, up, 1000, true, Verdict{Down, Flapping}},
			{2, down, 2000, false, Verdict{Down, Flapping}},
			{31, up, 2000, false, Verdict{Down, Flapping}},
			{32, up, 2000, false, Verdict{Down, Flapping}},
			{37, up, 2000, true, up},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d debouncer
			began := time.Unix(1e9, 0)
			for _, a := range tt.at {
				changed, _ := d.observe(began.Add(time.Duration(a.seconds*float64(time.Second))), a.verdict, a.changes)
				if changed != a.changed || d.reported != a.want {
					t.Errorf("after %v s: news %t, %+v; want %t, %+v", a.seconds, changed, d.reported, a.changed, a.want)
				}
			}
		})
	}
}

// TestDebounceBound lets a pod change its carrier as it likes.
func TestDebounceBound(t *testing.T) {
	const hour = 3600
	for _, tt := range []struct {
		name   string
		period time.Duration // of one observation
		each   uint32        // changes from one to the next
		most   int
	}{
		{"1000 a second, seen once a second", time.Second, 1000, 2},
		{"one a second", time.Second, 1, 2},
		{"as slow as it has to be to be reported", 6 * time.Second, 1, hour / 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d debouncer
			reports, changes, now := 0, uint32(0), time.Unix(1e9, 0)
			for end := now.Add(hour * time.Second); now.Before(end); {
				changes += tt.each
				v := Verdict{Up, Carrier}
				if changes%2 == 0 {
					v = Verdict{Down, NoCarrier}
				}
				changed, again := d.observe(now, v, changes)
				if changed {
					reports++
				}
				next := now.Add(tt.period)
				for again > 0 && now.Add(again).Before(next) {
					now = now.Add(again)
					if changed, again = d.observe(now, v, changes); changed {
						reports++
					}
				}
				now = next
			}
			if reports > tt.most || reports == 0 {
				t.Errorf("%d reports in an hour, want 1 to %d", reports, tt.most)
			}
		})
	}
}
