package validity_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/validity"
)

// TestTogether: two topologies in one pod make no interface of one name. Shared objects, and those on the
// host or of a name that only a node knows, are accepted.
func TestTogether(t *testing.T) {
	const nets = "{name: net, type: ipvlan, config: {masterNets: [10.0.1.0/24, 10.0.2.0/24]}}"
	for name, c := range map[string]struct {
		steps   []string
		want    string
		without []string
	}{
		"one": {[]string{nets}, "", nil},
		"default names of masterNets": {
			[]string{nets, "{name: data, type: ipvlan, config: {masterNets: [10.0.3.0/24]}}"},
			`NetworkTopology "t1", step "data": makes an interface "net1-0", as step "net" of NetworkTopology "t0" does in the same pod: set another ifName in the config of one of them, then delete the pod and create it again`, nil,
		},
		"names of masterNets": {[]string{nets, "{name: data, type: ipvlan, config: {ifName: data, masterNets: [10.0.3.0/24]}}"}, "", nil},
		"default names of devices": {
			[]string{"{name: vf, type: sriov}", "{name: pf, type: host-device}"},
			`NetworkTopology "t1", step "pf": makes an interface "net1", as step "vf" of NetworkTopology "t0" does in the same pod: set another ifName in the config of one of them, then delete the pod and create it again`, nil,
		},
		"a device without an interface": {[]string{"{name: vf, type: sriov}", "{name: other, type: sriov}"}, "", []string{"vf"}},
		"of the third": {
			[]string{"{name: a, type: dummy}", "{name: b, type: dummy, config: {name: b}}", "{name: c, type: dummy, config: {ifName: b}}"},
			`NetworkTopology "t2", step "c": makes an interface "b", as step "b" of NetworkTopology "t1" does in the same pod: set another ifName in the config of one of them, then delete the pod and create it again`, nil,
		},
		"the default name of a bond": {
			[]string{
				"{name: a1, type: dummy, config: {name: a1}}, {name: a2, type: dummy, config: {name: a2}}, {name: x, type: bond, dependOn: [a1, a2], config: {mode: active-backup}}",
				"{name: b1, type: dummy, config: {name: b1}}, {name: b2, type: dummy, config: {name: b2}}, {name: w, type: bond, dependOn: [b1, b2], config: {mode: active-backup}}",
			},
			`NetworkTopology "t1", step "w": makes an interface "bond0", as step "x" of NetworkTopology "t0" does in the same pod: set another ifName in the config of one of them, then delete the pod and create it again`, nil,
		},
		"a VRF that both use": {[]string{
			"{name: a, type: dummy, config: {name: a}}, {name: red, type: vrf, dependOn: [a], config: {vrfname: red}}",
			"{name: b, type: dummy, config: {name: b}}, {name: red, type: vrf, dependOn: [b], config: {vrfname: red}}",
		}, "", nil},
		"a bridge of the host that both use": {[]string{"{name: a, type: bridge, config: {ifName: a}}", "{name: b, type: bridge, config: {ifName: b}}"}, "", nil},
		"a name that only a node knows": {[]string{
			`{name: a, type: sriov, config: {name: a}}, {name: x, type: dummy, dependOn: [a], config: {name: "d{{ a.interfaces[0].mtu }}"}}`,
			`{name: b, type: sriov, config: {name: b}}, {name: x, type: dummy, dependOn: [b], config: {name: "d{{ b.interfaces[0].mtu }}"}}`,
		}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			reg := registry(t)
			var all []validity.Member
			for i, steps := range c.steps {
				top, err := topology.Decode(fmt.Appendf(nil, "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t%d}\nspec: {steps: [%s]}\n", i, steps))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := validity.Check(t.Context(), top, reg); err != nil {
					t.Fatal(err)
				}
				m := validity.Member{Topology: top, WithoutInterface: map[string]bool{}}
				for _, step := range c.without {
					m.WithoutInterface[step] = true
				}
				all = append(all, m)
			}
			last := len(all) - 1
			with, err := validity.Together(t.Context(), reg, all[:last], all[last:])
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
			} else {
				if fault.Of(err) != fault.Invalid || err.Error() != c.want || with != last-1 {
					t.Errorf("with %d: %v, want\n%s", with, err, c.want)
				}
				if with, err := validity.Together(t.Context(), reg, nil, all); fault.Of(err) != fault.Invalid || err.Error() != c.want || with != -1 {
					t.Errorf("all are added, with %d: %v, want\n%s", with, err, c.want)
				}
				free, err := topology.Decode([]byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: free}\nspec: {steps: [{name: s, type: dummy, config: {ifName: free}}]}\n"))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := validity.Together(t.Context(), reg, all, []validity.Member{{Topology: free}}); err != nil {
					t.Errorf("all are there: %v", err)
				}
			}
			if c.want = `NetworkTopology "t0" is in the same pod twice`; len(all) == 1 {
				if with, err := validity.Together(t.Context(), reg, all, all); with != 0 || fault.Of(err) != fault.Invalid || err.Error()[:len(c.want)] != c.want {
					t.Errorf("twice: %v", err)
				}
			}
			ended, end := context.WithCancel(t.Context())
			end()
			if _, err := validity.Together(ended, reg, all, all); fault.Of(err) != fault.NotReady {
				t.Errorf("of a context that has ended: %v", err)
			}
		})
	}
}
