package reconcile_test

import (
	"testing"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology"
)

// TestChosenOnce holds that a value which the planner chose stays, whatever becomes of that by
// which it was chosen, also for an engine that starts later: the metric of a default route, the
// link below a macvlan, the table of a VRF. Each is chosen once more in another namespace only.
func TestChosenOnce(t *testing.T) {
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	nic := func(name, mac string) netstate.Link {
		return netstate.Link{Name: netstate.HostName(name), LinkKind: "device", MAC: &mac, MTU: new(uint32(1500)), Up: new(true), Master: new("")}
	}
	k := &sandbox{t: t, Snapshot: netstate.NewSnapshot(
		netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new("")},
		nic("eth0", "02:00:00:00:00:01"), nic("eth1", "02:00:00:00:00:02"),
		netstate.Device{ID: netstate.DefaultRouteDevice, At: new("host:eth0")},
		netstate.Device{ID: netstate.NetworkPrefix + "10.0.1.0/24", At: new("host:eth0")},
	)}
	engine := func() *reconcile.Reconciler {
		return reconcile.New(reconcile.Options{Registry: registry, Store: store, BootID: "boot", Open: func(string) (reconcile.Domain, error) { return k, nil }})
	}
	top, err := topology.Decode([]byte(`
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: t}
spec:
  steps:
    - {name: d, type: dummy, config: {name: d0, addresses: [192.0.2.5/24, "2001:db8:1::5/64"], routes: [{dst: 0.0.0.0/0, gw: 192.0.2.1}, {dst: "::/0", gw: "2001:db8:1::1"}]}}
    - {name: e, type: dummy, config: {name: e0}}
    - {name: red, type: vrf, dependOn: [e], config: {vrfname: red}}
    - {name: m, type: macvlan, config: {name: m0}}
    - {name: i, type: macvlan, config: {name: i0, masterNet: 10.0.1.0/24}}
`))
	if err != nil {
		t.Fatal(err)
	}
	sb := reconcile.Sandbox{ID: "blue/t", Netns: "/run/netns/blue", Topology: top}
	if _, err := engine().Ensure(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	k.Put(netstate.Device{ID: netstate.DefaultRouteDevice, At: new("host:eth1")})
	k.Put(netstate.Device{ID: netstate.NetworkPrefix + "10.0.1.0/24", At: new("host:eth1")})
	k.Put(netstate.Route{Link: "d0", Dst: "::/0", Gateway: "fe80::99", Table: netstate.TableMain, Metric: 1024, Protocol: 9})
	k.Put(netstate.Route{Link: "d0", Dst: "0.0.0.0/0", Gateway: "192.0.2.9", Table: netstate.TableMain, Metric: 5000, Protocol: 3})
	before := k.Clone()
	for what, pass := range map[string]func() (reconcile.Report, error){
		"repair": func() (reconcile.Report, error) { return engine().Repair(t.Context(), sb.ID) },
		"ensure": func() (reconcile.Report, error) { return engine().Ensure(t.Context(), sb) },
	} {
		if rep, err := pass(); err != nil || !rep.Unchanged {
			t.Errorf("%s: %v, %v", what, rep.Changes, err)
		}
	}
	vrf, _ := k.Link("red")
	k.Snapshot.Apply(netstate.Change{Before: vrf})
	k.Put(netstate.Route{Link: "d0", Dst: "203.0.113.0/24", Table: *vrf.VRF.Table, Protocol: 3}) // the lowest free table is another now
	if _, err := engine().Repair(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	if again, _ := k.Link("red"); again.VRF == nil || *again.VRF.Table != *vrf.VRF.Table {
		t.Errorf("VRF has table %v, had %d", again.VRF, *vrf.VRF.Table)
	}
	k.Put(netstate.Route{Link: "d0", Dst: "203.0.113.0/24", Table: *vrf.VRF.Table})
	if diff := netstatetest.Differences(before, k.Snapshot); len(diff) != 1 { // that route
		t.Errorf("changed: %v", diff)
	}
}
