package all_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// addresses is a step that is given these.
func addresses(of ...string) ops.Given {
	var g ops.Given
	for _, a := range of {
		g.Addresses = append(g.Addresses, netip.MustParsePrefix(a))
	}
	return g
}

// TestGivenRefused holds what is said of addresses that a step cannot be given. The
// planned sandbox and validation say the same.
func TestGivenRefused(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	many := ops.Given{}
	for i := range 65 {
		many.Addresses = append(many.Addresses, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 24))
	}
	for _, tt := range []struct {
		name, steps string
		given       ops.Givens
		want        string // behind the step's name
	}{
		{
			"no such step", "\n  - {name: data, type: dummy}\n",
			ops.Givens{"dat": addresses("192.0.2.5/24")},
			`step "dat": given addresses: the topology has no such step, did you mean "data"?`,
		},
		{
			"a type that takes none", "\n  - {name: d, type: dummy}\n  - {name: v, type: vrf, dependOn: [d], config: {vrfname: red}}\n",
			ops.Givens{"v": addresses("192.0.2.5/24")},
			`step "v": given addresses: a step of type "vrf" takes none: give them to a step that does, such as one of type tuning behind it`,
		},
		{
			"in the config", "\n  - {name: d, type: dummy, config: {addresses: [192.0.2.5/32]}}\n",
			ops.Givens{"d": addresses("192.0.2.5/24")},
			`step "d": given addresses: "192.0.2.5/24" is in the step's config already, as "192.0.2.5/32": remove one of them`,
		},
		{
			"in the config, as CNI has it", "\n  - {name: d, type: dummy, config: {ipam: {type: static, addresses: [{address: 192.0.2.5/24}]}}}\n",
			ops.Givens{"d": addresses("192.0.2.5/24")},
			`step "d": given addresses: "192.0.2.5/24" is in the step's config already, as "192.0.2.5/24": remove one of them`,
		},
		{
			"twice", "\n  - {name: d, type: dummy}\n",
			ops.Givens{"d": addresses("192.0.2.5/24", "192.0.2.5/32")},
			`step "d": given addresses: "192.0.2.5/32" is given twice`,
		},
		{
			"to another step of the link", "\n  - {name: d, type: dummy, config: {name: d0, addresses: [192.0.2.5/24]}}\n  - {name: t, type: tuning, dependOn: [d]}\n",
			ops.Givens{"t": addresses("192.0.2.5/24")},
			`step "t": given addresses: "192.0.2.5/24" is an address of "d0" already, as step "d" wants "192.0.2.5/24": remove one of them`,
		},
		{
			"what no interface can have", "\n  - {name: d, type: dummy}\n",
			ops.Givens{"d": addresses("ff02::1/64")},
			`step "d": given addresses: "ff02::1/64" is a multicast address and cannot be assigned to an interface`,
		},
		{
			"IPv4 in IPv6", "\n  - {name: d, type: dummy}\n",
			ops.Givens{"d": {Addresses: []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr("::ffff:192.0.2.5"), 120)}}},
			`step "d": given addresses: "::ffff:192.0.2.5/120" is IPv4 written as IPv6: write "192.0.2.5/24"`,
		},
		{
			"none at all", "\n  - {name: d, type: dummy}\n",
			ops.Givens{"d": {Addresses: []netip.Prefix{{}}}},
			`step "d": given addresses: "invalid Prefix" is not an address with its prefix length, as in 10.100.0.5/24`,
		},
		{
			"too many", "\n  - {name: d, type: dummy}\n",
			ops.Givens{"d": many},
			`step "d": given addresses: 65 are more than the 64 that a step can be given`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			top := steps(t, tt.steps)
			_, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/pod", Given: tt.given, Have: netstate.NewSnapshot()})
			if err == nil || err.Error() != `topology "t": `+tt.want || fault.Of(err) != fault.Invalid {
				t.Errorf("plan:\nhave %v (%s)\nwant %s", err, fault.Of(err), tt.want)
			}
			err = topology.Validate(t.Context(), top, ops.Giving(reg, tt.given))
			if err == nil || err.Error() != `NetworkTopology "t", `+tt.want {
				t.Errorf("validation:\nhave %v\nwant %s", err, tt.want)
			}
			if err := topology.Validate(t.Context(), top, reg); err != nil {
				t.Errorf("valid without: %v", err)
			}
		})
	}
}

// TestGivenToUserspace holds that addresses are not lost in silence where the driver of
// a VF leaves no interface that could have them.
func TestGivenToUserspace(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, reg: reg, have: netstate.NewSnapshot(
		netstate.Device{ID: "0000:01:10.0", Driver: "vfio-pci"},
		netstate.VF{ID: "0000:01:10.0", MAC: new("52:54:00:aa:bb:01"), VLAN: new(uint16(0))},
	)}
	given := ops.Given{Device: "0000:01:10.0", Addresses: addresses("192.0.2.5/24").Addresses}
	_, err = reg.Plan(t.Context(), ops.Request{Topology: steps(t, "\n  - {name: vf, type: sriov}\n"), Given: ops.Givens{"vf": given}, Have: w.have})
	if want := `topology "t": step "vf": given addresses: it has no interface here that could have them`; err == nil || err.Error() != want {
		t.Errorf("have %v\nwant %s", err, want)
	}
}

// TestGivenIsNeeded holds that validation takes a topology that lives from what it is
// given only with that.
func TestGivenIsNeeded(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top := steps(t, `
  - {name: d, type: dummy, config: {name: d0, routes: [{destination: 203.0.113.0/24, gateway: 192.0.2.1}]}}
  - {name: v, type: vlan, dependOn: [d], config: {id: 7, addresses: ["{{ d.ips[0].address }}"]}}
`)
	err = topology.Validate(t.Context(), top, reg)
	if err == nil || !strings.Contains(err.Error(), "{{ d.ips[0].address }}: no address 0") {
		t.Errorf("without: %v", err)
	}
	if err := topology.Validate(t.Context(), top, ops.Giving(reg, ops.Givens{"d": addresses("192.0.2.5/24")})); err != nil {
		t.Errorf("with: %v", err)
	}
}

// TestGivenChanges holds that another address is an edit in place: the old one goes, the
// new one comes, and nothing else is touched.
func TestGivenChanges(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top := steps(t, "\n  - {name: d, type: dummy, config: {name: d0, mac: \"02:00:00:00:00:01\", addresses: [10.0.0.1/32]}}\n")
	w := &world{t: t, reg: reg, have: netstate.NewSnapshot(), given: ops.Givens{"d": addresses("192.0.2.5/24")}}
	owned := w.ensure(top, nil)
	w.given = ops.Givens{"d": addresses("192.0.2.6/24")}
	var changes []string
	for _, c := range w.ensure(top, owned) {
		changes = append(changes, c.String())
	}
	slices.Sort(changes)
	if want := []string{"+ address 192.0.2.6/24 on d0", "- address 192.0.2.5/24 on d0"}; !slices.Equal(changes, want) {
		t.Errorf("changes %q, want %q", changes, want)
	}
}

// TestGivenIsNotShared holds that sandboxes of one topology that are planned at the same
// time do not get each other's addresses: they share the step's config.
func TestGivenIsNotShared(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top := steps(t, "\n  - {name: d, type: dummy, config: {name: d0, addresses: [10.0.0.1/32, 10.0.0.2/32, 10.0.0.3/32]}}\n")
	var all sync.WaitGroup
	for i := range 4 {
		own := fmt.Sprintf("192.0.2.%d/24", i+1)
		all.Go(func() {
			for range 200 {
				p, err := reg.Plan(t.Context(), ops.Request{Topology: top, Given: ops.Givens{"d": addresses(own)}, Have: withoutIPv6(netstate.NewSnapshot())})
				if err != nil {
					t.Error(err)
					return
				}
				if ips := p.Results[0].Result.IPs; ips[len(ips)-1].Address != own {
					t.Errorf("%s: %v", own, ips)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestGivenRate holds that what a claim has of the bandwidth limits a function, unless the
// step's config limits it more, and that nothing is guaranteed above it.
func TestGivenRate(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for config, want := range map[string]string{
		"{}": "3000", "{maxTxRate: 0}": "3000", "{maxTxRate: 4000}": "3000", "{maxTxRate: 100}": "100",
		"{minTxRate: 3001}": `minTxRate: 3001 Mbit/s are more than the 3000 that the claim has of the bandwidth`,
	} {
		have := netstate.NewSnapshot(
			netstate.Device{ID: "0000:01:10.0", Driver: "vfio-pci"},
			netstate.VF{ID: "0000:01:10.0", MAC: new("52:54:00:aa:bb:01"), VLAN: new(uint16(0)), MinTxRateMbps: new(uint32(0)), MaxTxRateMbps: new(uint32(0))},
		)
		plan, err := reg.Plan(t.Context(), ops.Request{
			Topology: steps(t, "\n  - {name: vf, type: sriov, config: "+config+"}\n"), Given: ops.Givens{"vf": {Device: "0000:01:10.0", MaxTxRate: 3000}}, Have: have,
		})
		if err != nil {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: have %v\nwant %s", config, err, want)
			}
			continue
		}
		rate := ""
		for _, c := range plan.Changes {
			if vf, ok := c.After.(netstate.VF); ok && vf.MaxTxRateMbps != nil {
				rate = fmt.Sprint(*vf.MaxTxRateMbps)
			}
		}
		if rate != want {
			t.Errorf("%s: limited to %q Mbit/s, want %q", config, rate, want)
		}
	}
}

// TestGivenRoutes holds that given gateways and routes count as if they were written in
// the config, and that the config takes precedence.
func TestGivenRoutes(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	given := addresses("192.0.2.5/24", "2001:db8::5/64")
	given.Gateways = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	given.Routes = []ops.Route{{Destination: "10.1.0.0/16", Gateway: "192.0.2.1"}, {Destination: "10.2.0.0/16", Gateway: "192.0.2.2"}, {Destination: "0.0.0.0/0", Gateway: "192.0.2.1"}}
	for _, c := range []struct{ config, want string }{
		{"", "0.0.0.0/0 192.0.2.1, 10.1.0.0/16 192.0.2.1, 10.2.0.0/16 192.0.2.2"},
		{"routes: [{dst: default, gw: 192.0.2.9}]", "0.0.0.0/0 192.0.2.9, 10.1.0.0/16 192.0.2.1, 10.2.0.0/16 192.0.2.2"},
		{"routes: [{dst: 10.2.0.0/16, gw: 192.0.2.9}]", "0.0.0.0/0 192.0.2.1, 10.1.0.0/16 192.0.2.1, 10.2.0.0/16 192.0.2.9"},
		{"routes: [{dst: 10.9.0.0/16}, {dst: '2001:db8:9::/48'}]", "0.0.0.0/0 192.0.2.1, 10.1.0.0/16 192.0.2.1, 10.2.0.0/16 192.0.2.2, 10.9.0.0/16 192.0.2.1, 2001:db8:9::/48 2001:db8::1"},
	} {
		top := steps(t, "\n  - {name: d, type: dummy, config: {name: d0, "+c.config+"}}\n")
		p, err := reg.Plan(t.Context(), ops.Request{Topology: top, Given: ops.Givens{"d": given}, Have: withoutIPv6(netstate.NewSnapshot())})
		if err != nil {
			t.Errorf("%s: %v", c.config, err)
			continue
		}
		var routes []string
		for _, change := range p.Changes {
			if r, ok := change.After.(netstate.Route); ok {
				routes = append(routes, r.Dst+" "+r.Gateway)
			}
		}
		slices.Sort(routes)
		if have := strings.Join(routes, ", "); have != c.want {
			t.Errorf("%s:\nhave %s\nwant %s", c.config, have, c.want)
		}
		if ips := p.Results[0].Result.IPs; ips[0].Gateway != "192.0.2.1" || ips[1].Gateway != "2001:db8::1" {
			t.Errorf("%s: the result has %+v", c.config, ips)
		}
	}
}

// TestPoolReferences holds that references to what a pool will give are valid, and those to
// what it will not are not.
func TestPoolReferences(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ reference, want string }{
		{"{{ d.ips[0].address }}", ""},
		{"{{ d.ips[1].address }}", ""},
		{"{{ d.ips[0].gateway }}", "is of type string (ip), type object is wanted here"},
		{"{{ d.ips[2].address }}", "no address 2"},
	} {
		for _, ipam := range []string{"{type: pool, pool: blue}", "{type: host-local, subnet: 10.9.0.0/24}"} {
			top := steps(t, `
  - {name: d, type: dummy, config: {name: d0, ipam: `+ipam+`}}
  - {name: v, type: vlan, dependOn: [d], config: {id: 7, addresses: ["`+c.reference+`"]}}
`)
			err := topology.Validate(t.Context(), top, reg)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s of %s: %v, want %q", c.reference, ipam, err, c.want)
			}
		}
	}
	for reference, valid := range map[string]bool{"{{ d.ips[0].address }}": true, "{{ d.ips[0].gateway }}": false} {
		err := topology.Validate(t.Context(), steps(t, `
  - {name: d, type: dummy, config: {name: d0, ipam: {type: slaac}}}
  - {name: v, type: vlan, dependOn: [d], config: {id: 7, routes: [{dst: 2001:db8:9::/64, src: "2001:db8::1"}], addresses: ["`+reference+`"]}}
`), reg)
		if (err == nil) != valid {
			t.Errorf("%s of slaac: %v", reference, err)
		}
	}
	top := steps(t, `
  - {name: d, type: dummy, config: {name: d0, ipam: {type: pool, pool: blue}}}
  - {name: v, type: vlan, dependOn: [d], config: {id: 7, routes: [{dst: 10.0.0.0/8, gw: "{{ d.ips[0].gateway }}", onlink: true}]}}
`)
	if err := topology.Validate(t.Context(), top, reg); err != nil {
		t.Errorf("the gateway of a pool: %v", err)
	}
}

// TestMasterByAlternativeName: a node knows the alternative name as one of the allocated device before it has read the link.
func TestMasterByAlternativeName(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const id, named = "0000:03:00.0", "rail-of-the-first-leaf"
	link := netstate.Link{Name: "host:ens1", LinkKind: "device", DeviceID: id, Up: new(true), MTU: new(uint32(1500)), Master: new(""), AltNames: []string{named}}
	device := netstate.Device{ID: id, At: &link.Name, AltNames: []string{named}, MTU: new(uint32(1500)), Up: new(true)}
	for name, works := range map[string]bool{named: true, "ens1": true, "rail-of-the-second-leaf": false} {
		have := netstate.NewSnapshot(device)
		var plan *ops.Plan
		for range 8 {
			plan, err = reg.Plan(t.Context(), ops.Request{
				Topology: steps(t, "\n  - {name: a, type: macvlan, config: {name: net1, master: "+name+"}}\n"), Netns: "/run/netns/pod",
				Given: ops.Givens{}.WithDevices(map[string]string{"a": id}), Have: have,
			})
			if err != nil || len(plan.Missing) == 0 {
				break
			}
			for _, o := range plan.Missing {
				have.PutAbsent(o.Key())
				if l, ok := o.(netstate.Link); ok && works {
					have.Put(link)
					read := link
					read.Name = l.Name
					have.Put(read)
				}
			}
		}
		if (err == nil) != works {
			t.Errorf("%q: %v", name, err)
		}
		if err == nil && !slices.ContainsFunc(plan.Changes, func(c netstate.Change) bool {
			l, ok := c.After.(netstate.Link)
			return ok && l.Parent != nil && *l.Parent == link.Name
		}) {
			t.Errorf("%q: %v", name, plan.Changes)
		}
	}
}
