package all_test

import (
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
)

// TestAdvertised plans steps that wait for an address of a router: with dad: wait, and with a
// reference through a step between. A running sandbox does not wait, and the kernel's address
// is neither wanted nor deleted.
func TestAdvertised(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top := steps(t, `
  - {name: a, type: tuning, dependOn: [z], config: {dev: d9, ipam: {type: slaac}}}
  - {name: z, type: dummy, config: {name: d1}}
  - {name: m, type: tuning, dependOn: [a], config: {dev: d9, txQLen: 9}}
  - {name: v, type: dummy, dependOn: [m], config: {name: d2, dad: "off", addresses: ["{{ m.ips[0].address }}"]}}
  - {name: w, type: tuning, dependOn: [z], config: {dev: d8, dad: wait, ipam: {type: slaac}}}
`)
	have := netstate.NewSnapshot()
	for _, name := range []string{"d8", "d9"} {
		have.Put(netstate.Link{Name: name, LinkKind: "device", Up: new(true), Master: new(""), MTU: new(uint32(1500)), TxQueueLen: new(uint32(9)), MAC: new("02:00:00:00:00:09")})
	}
	var owned []netstate.Change
	plan := func(kept bool) *ops.Plan {
		t.Helper()
		for {
			p, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/blue", Have: have, Owned: owned, Kept: kept})
			if err != nil {
				t.Fatal(err)
			}
			if len(p.Missing) == 0 {
				return p
			}
			for _, o := range p.Missing {
				if s, ok := o.(netstate.Sysctl); ok {
					have.Put(netstate.Sysctl{Path: s.Path, Value: new("1")})
				} else {
					have.PutAbsent(o.Key())
				}
			}
		}
	}
	apply := func(p *ops.Plan) {
		for _, c := range p.Changes {
			have.Apply(c)
			owned = netstate.Coalesce(owned, c)
		}
	}
	p := plan(false)
	if p.Settling() != "" {
		t.Errorf("waits for a router before the changes are made: %s", p)
	}
	apply(p)
	if p = plan(false); p.Settling() == "" || len(p.Pending) != 2 {
		t.Errorf("does not wait: %s", p)
	}
	if p = plan(true); p.Settling() != "" || len(p.Pending) != 2 || p.Pending[0].Withheld == nil || p.Pending[1].Withheld == nil {
		t.Errorf("a running sandbox waits: %s", p)
	}
	for i, link := range []string{"d8", "d9"} {
		have.Put(netstate.Addr{Link: link, Address: "2001:db8::5/64", Kernel: true, NoDAD: new(false), Tentative: i == 0})
	}
	if p = plan(false); p.Settling() != "" || len(p.Pending) != 1 {
		t.Errorf("with one of two addresses: %s", p)
	}
	apply(p)
	if p = plan(false); p.Settling() != "w" {
		t.Errorf("does not wait for detection: %s", p)
	}
	have.Put(netstate.Addr{Link: "d8", Address: "2001:db8::5/64", Kernel: true, NoDAD: new(false)})
	if p = plan(false); !p.Empty() {
		t.Errorf("is left to do: %s", p)
	}
	for _, r := range p.Results {
		if n := len(r.Result.IPs); (n > 0) != (r.Name != "z") {
			t.Errorf("step %q has %v", r.Name, r.Result.IPs)
		}
	}
}
