package all_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestLeased plans a step that has a lease of a DHCP server, from the request until the link is gone.
func TestLeased(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top := steps(t, `
  - {name: a, type: dummy, config: {name: d1, ipam: {type: dhcp, acceptDefaultRoute: true, routes: [{dst: 10.0.0.0/8}]}}}
  - {name: v, type: dummy, dependOn: [a], config: {name: d2, addresses: ["{{ a.ips[0].address }}"], routes: [{dst: 172.16.0.0/12, gw: "{{ a.ips[0].gateway }}"}]}}
`)
	have := netstate.NewSnapshot()
	var owned []netstate.Change
	plan := func(kept bool) *ops.Plan {
		t.Helper()
		for {
			p, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/blue", Client: "claim/1/t", Have: have, Owned: owned, Kept: kept})
			if err != nil {
				t.Fatal(err)
			}
			if len(p.Missing) == 0 {
				return p
			}
			for _, o := range p.Missing {
				have.PutAbsent(o.Key())
			}
		}
	}
	has := func(p *ops.Plan, change string) bool {
		return slices.ContainsFunc(p.Changes, func(c netstate.Change) bool { return c.String() == change })
	}
	lease := func() netstate.DHCPLease {
		t.Helper()
		l, there := netstate.Lookup(have, netstate.DHCPLease{Link: "d1"})
		if !there {
			t.Fatal("there is no lease")
		}
		return l
	}
	// apply makes the changes of a plan; the lease is as before, or has no address yet.
	apply := func(p *ops.Plan) {
		before, had := netstate.Lookup(have, netstate.DHCPLease{Link: "d1"})
		for _, c := range p.Changes {
			have.Apply(c)
			owned = netstate.Coalesce(owned, c)
		}
		if !had {
			before = netstate.DHCPLease{Link: "d1", ClientID: lease().ClientID, Hostname: new(""), Requested: new(""), Active: new(true)}
		}
		have.Put(before)
		have = netstate.NewSnapshot(netstate.All[netstate.Object](have)...)
	}
	p := plan(false)
	if p.Settling() != "" || len(p.Pending) != 2 || slices.ContainsFunc(p.Changes, func(c netstate.Change) bool { return c.Key().Kind == netstate.KindRoute }) {
		t.Errorf("before there is a link: %s", p)
	}
	apply(p)
	l := lease()
	if id := *l.ClientID; len(id) != 2*23 || !strings.HasPrefix(id, "ff") || id[10:14] != "0004" {
		t.Errorf("the client identifier is %s", id)
	}
	if p = plan(false); p.Settling() == "" || len(p.Pending) != 2 {
		t.Errorf("does not wait: %s", p)
	}
	l.Failure = "3 DHCPDISCOVER in 7 s, and no answer"
	have.Put(l)
	for _, w := range plan(true).Pending {
		if fault.Of(w.Withheld) != fault.NotReady || !strings.Contains(w.Withheld.Error(), l.Failure) {
			t.Errorf("a running sandbox: step %q waits: %v", w.Step, w.Withheld)
		}
	}
	if p = plan(true); p.Settling() != "" {
		t.Errorf("a running sandbox waits: %s", p)
	}

	l.Address, l.Router, l.Server, l.Expires = "192.0.2.9/24", "192.0.2.1", "192.0.2.1", 1000
	have.Put(l)
	p = plan(false)
	for _, want := range []string{
		"+ address 192.0.2.9/24 on d1", "+ address 192.0.2.9/24 on d2", "+ route 0.0.0.0/0 via 192.0.2.1 dev d1",
		"+ route 10.0.0.0/8 via 192.0.2.1 dev d1", "+ route 172.16.0.0/12 via 192.0.2.1 dev d2",
	} {
		if !has(p, want) {
			t.Errorf("with a lease, %q is missing: %s", want, p)
		}
	}
	for _, c := range p.Changes {
		if a, ok := c.After.(netstate.Addr); ok && (a.Expires == 1000) != (a.Link == "d1") {
			t.Errorf("%s expires at %d", c, a.Expires)
		}
	}
	apply(p)
	if p = plan(true); !p.Empty() {
		t.Errorf("is left to do: %s", p)
	}
	if ips := p.Results[0].Result.IPs; len(ips) != 1 || ips[0].Address != l.Address || ips[0].Gateway != l.Router {
		t.Errorf("the result is %+v", ips)
	}
	l.Expires = 2000
	have.Put(l)
	if p = plan(true); !p.Empty() {
		t.Errorf("a renewal is drift: %s", p)
	}

	// Another process deletes the address; the domain cannot be read; the server gives another one;
	// none.
	gone := have.Clone()
	gone.PutAbsent(netstate.Addr{Link: "d1", Address: l.Address}.Key())
	was := have
	have = gone
	if p = plan(true); !has(p, "+ address 192.0.2.9/24 on d1") {
		t.Errorf("is not repaired: %s", p)
	}
	have = was.Clone()
	have.Withhold(netstate.Key{Kind: netstate.KindDHCPLease}, errors.New("disk full"))
	if p = plan(true); len(p.Changes) > 0 || len(p.Pending) != 2 {
		t.Errorf("changes what cannot be observed: %s", p)
	}
	have = was
	other := l
	other.Address, other.Router = "192.0.2.10/24", "192.0.2.254"
	have.Put(other)
	if p = plan(true); !has(p, "- address 192.0.2.9/24 on d1") || !has(p, "+ address 192.0.2.10/24 on d1") || !has(p, "+ route 0.0.0.0/0 via 192.0.2.254 dev d1") {
		t.Errorf("another address: %s", p)
	}
	none := l
	none.Address, none.Router, none.Expires = "", "", 0
	have.Put(none)
	p = plan(true)
	if !has(p, "- address 192.0.2.9/24 on d1") || has(p, "- address 192.0.2.9/24 on d2") || len(p.Pending) != 2 {
		t.Errorf("without a lease: %s", p)
	}
	idle := l
	idle.Active = new(false)
	have.Put(idle)
	if p = plan(true); !has(p, "~ dhcp-lease d1 active off → on") {
		t.Errorf("nobody requests a lease: %s", p)
	}
	l.Router = ""
	have.Put(l)
	if p = plan(true); !strings.Contains(strings.Join(p.Notes, "\n"), "offers no router") || len(p.Pending) != 1 || fault.Of(p.Pending[0].Withheld) != fault.NotReady {
		t.Errorf("without a router: %s %v", p, p.Notes)
	}

	// A release ends the lease before its link, and also if that no longer exists.
	changes, _ := ops.Undo(have, owned)
	at := func(of []netstate.Change, what string) int {
		return slices.IndexFunc(of, func(c netstate.Change) bool { return strings.HasPrefix(c.String(), what) })
	}
	if at(changes, "- dhcp-lease d1") < 0 || at(changes, "- dhcp-lease d1") > at(changes, "- link d1") {
		t.Errorf("released by %v", changes)
	}
	have = netstate.NewSnapshot(l)
	changes, _ = ops.Undo(have, owned)
	if len(changes) != 1 || at(changes, "- dhcp-lease d1") != 0 {
		t.Errorf("without the namespace released by %v", changes)
	}
}

// TestLeasedTwice: an address that the pod has already is not taken from a server, and refused with who
// has it.
func TestLeasedTwice(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ steps, says string }{
		{"\n  - {name: z, type: dummy, config: {name: d0, addresses: [192.0.2.9/32]}}\n  - {name: a, type: dummy, config: {name: d1, ipam: {type: dhcp}}}\n", `which step "z" has on "d0"`},
		{"\n  - {name: a, type: dummy, config: {name: d1, addresses: [192.0.2.9/16], ipam: {type: dhcp}}}\n", "which the step has itself"},
		{"\n  - {name: a, type: dummy, config: {name: d1, ipam: {type: dhcp}}}\n", `which "eth0" has in the pod`},
	} {
		top := steps(t, c.steps)
		have := netstate.NewSnapshot(netstate.Link{Name: "eth0", LinkKind: "device", Up: new(true), Master: new("")})
		if strings.Contains(c.says, "eth0") {
			have.Put(netstate.Addr{Link: "eth0", Address: "192.0.2.9/24"})
		}
		have.Put(netstate.DHCPLease{Link: "d1", Active: new(true), Address: "192.0.2.9/24", Server: "192.0.2.1"})
		withoutIPv6(have)
		p, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/blue", Have: have})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(p.Pending, func(w ops.Pending) bool { return fault.Of(w.Withheld) == fault.Conflict })
		if i < 0 || !strings.Contains(p.Pending[i].Withheld.Error(), c.says) {
			t.Errorf("%s, want %q", p, c.says)
		}
	}
}
