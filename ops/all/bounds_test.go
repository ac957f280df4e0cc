package all_test

import (
	"context"
	"errors"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestForeignPorts holds that what a pod puts into a bond by itself counts for
// nothing in the MTUs of the steps: not its own link, nor one of ours that
// belongs elsewhere.
func TestForeignPorts(t *testing.T) {
	reg, top := vetted(t, `
    - {name: d, type: dummy, config: {name: d0}}
    - {name: e, type: dummy, config: {name: e0}}
    - {name: b, type: bond, dependOn: [d, e], config: {name: bond0, mode: active-backup, miimon: 100, mtu: 1500}}
    - {name: f, type: dummy, config: {name: f0}}
    - {name: v, type: vlan, dependOn: [f], config: {id: 2, name: v0, mtu: 2000}}`)
	up, mtu := new(true), new(uint32(1500))
	dummy := func(name string) netstate.Link {
		return netstate.Link{Name: name, LinkKind: "dummy", Master: new("bond0"), Up: up, MTU: mtu}
	}
	have := netstate.NewSnapshot(dummy("d0"), dummy("e0"), dummy("f0"), dummy("foreign"), netstate.Link{
		Name: "bond0", LinkKind: "bond", Up: up, MTU: mtu, Master: new(""),
		Bond: &netstate.Bond{Mode: new("active-backup"), MIIMonMillis: new(uint32(100))},
	})
	withoutIPv6(have, "f0", "bond0")
	var owned []netstate.Change
	for _, name := range []string{"d0", "e0", "f0", "bond0"} {
		owned = append(owned, netstate.Change{Step: "s", After: netstate.Link{Name: name}})
	}
	plan, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/pod", Have: have, Owned: owned})
	if err != nil {
		t.Fatal(err)
	}
	want := "~ link f0 mtu 1500 → 2000\n+ link v0 kind vlan, parent f0, vlan.id 2, vlan.protocol 802.1q, mtu 2000\n~ link v0 up off → on\n"
	if got := plan.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// asked is a context that ends when it was asked for the nth time.
type asked struct {
	context.Context
	n int
}

func (a *asked) Err() error {
	if a.n--; a.n < 0 {
		return context.Canceled
	}
	return nil
}

// TestInterrupted holds that validating and planning end with their context,
// wherever they are, that this is no step's fault, and that they ask for it
// about every step at least.
func TestInterrupted(t *testing.T) {
	reg, top := vetted(t, `
    - {name: d, type: dummy, config: {name: d0}}
    - {name: e, type: dummy, config: {name: e0}}
    - {name: b, type: bond, dependOn: [d, e], config: {name: bond0, mode: active-backup, miimon: 100}}
    - {name: v, type: vlan, dependOn: [b], config: {id: 2, name: v0, mtu: 2000, addresses: [192.0.2.1/24], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.2}]}}`)
	for name, act := range map[string]func(context.Context) error{
		"validate": func(ctx context.Context) error { return topology.Validate(ctx, top, reg) },
		"plan": func(ctx context.Context) error {
			_, err := reg.Plan(ctx, ops.Request{Topology: top, Netns: "/run/netns/pod", Have: withoutIPv6(netstate.NewSnapshot())})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			times := 0
			for ; ; times++ {
				err := act(&asked{t.Context(), times})
				if err == nil {
					break
				}
				if !errors.Is(err, context.Canceled) || errors.As(err, new(*ops.StepError)) || fault.Of(err) == fault.Invalid {
					t.Fatalf("asked %d times: %v", times, err)
				}
			}
			if times < 2*len(top.Steps) {
				t.Errorf("asks %d times only", times)
			}
		})
	}
}
