package all_test

import (
	"reflect"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
)

// guards plans a topology and returns the guards that it wants.
func guards(t *testing.T, steps string, req ops.Request) map[string]netstate.PortGuard {
	t.Helper()
	out := map[string]netstate.PortGuard{}
	for _, c := range changesOf(t, "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec: {steps: ["+steps+"]}\n", req) {
		if g, ok := c.After.(netstate.PortGuard); ok {
			out[g.Port] = g
		}
	}
	return out
}

// TestGuardedMACs: the MACs of a port are those of all links that steps put on it, and not those of links that the pod makes.
func TestGuardedMACs(t *testing.T) {
	const steps = `{name: b, type: bridge, config: {bridge: br0, hostIfName: h0, mac: "02:00:00:00:00:0b"}}, ` +
		`{name: m, type: macvlan, dependOn: [b], config: {name: m0, mac: "02:00:00:00:00:0a", addresses: [192.0.2.6/24]}}`
	own := netstate.Link{Name: "own0", LinkKind: "macvlan", Parent: new("net1"), MAC: new("02:00:00:00:00:66")}
	got := guards(t, steps, ops.Request{Have: netstate.NewSnapshot(own, netstate.Addr{Link: "own0", Address: "192.0.2.66/24"})})["h0"]
	want := netstate.PortGuard{
		Port: "h0", Bridge: new("br0"), MACs: []string{"02:00:00:00:00:0a", "02:00:00:00:00:0b"}, Addresses: []string{"192.0.2.6"}, Gateways: []string{}, RAGuard: new(true),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestGuardIsChosenOnce: the default of a port stays what it was, whatever becomes of the bridge.
func TestGuardIsChosenOnce(t *testing.T) {
	const steps = `{name: b, type: bridge, config: {bridge: br0, hostIfName: h0}}`
	foreign := netstate.Link{Name: "host:br0", LinkKind: "bridge", MAC: new("02:00:00:00:00:98"), Up: new(true), Master: new(""), MTU: new(uint32(1500)), Bridge: &netstate.Bridge{}}
	if got := guards(t, steps, ops.Request{Have: netstate.NewSnapshot(foreign)}); len(got) > 0 {
		t.Errorf("on a bridge of somebody else: %+v", got)
	}
	chosen := ops.Choices{netstate.PortGuard{Port: "h0"}.Key().String() + " default": "true"}
	if got := guards(t, steps, ops.Request{Have: netstate.NewSnapshot(foreign), Chosen: chosen})["h0"]; len(got.MACs) != 1 || !*got.RAGuard {
		t.Errorf("on a bridge that was ours: %+v", got)
	}
}
