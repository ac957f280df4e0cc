package all_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/optest"
	"github.com/plumbline/plumbline/topology"
)

func vetted(t testing.TB, steps string) (*ops.Registry, *topology.Topology) {
	t.Helper()
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top, err := topology.Decode([]byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n" + steps))
	if err != nil {
		t.Fatal(err)
	}
	return reg, top
}

// TestVetRefuses holds what is wrong with a topology on every node.
func TestVetRefuses(t *testing.T) {
	for name, c := range map[string]struct{ steps, want string }{
		"one name for two devices": {
			`
    - {name: a, type: sriov, config: {name: data0}}
    - {name: b, type: sriov, config: {name: data0}}`,
			`step "b": makes an interface "data0", as step "a" does already: give one of them another name`,
		},
		"one GUID for two functions": {
			`
    - {name: a, type: sriov, config: {portGUID: "00:02:c9:03:00:21:6e:78"}}
    - {name: b, type: vfio-pci, config: {portGUID: "00:02:C9:03:00:21:6E:78"}}`,
			`step "b": config.portGUID: step "a" has the same GUID 00:02:c9:03:00:21:6e:78, by which the subnet's manager tells ports apart: give one of them another`,
		},
		"one name for two equal links": {
			`
    - {name: a, type: dummy, config: {name: d0}}
    - {name: b, type: dummy, config: {name: d0}}`,
			`step "b": makes an interface "d0", as step "a" does already: give one of them another name`,
		},
		"the name a root step gets": {
			`
    - {name: a, type: sriov}
    - {name: b, type: dummy, dependOn: [a], config: {name: net1}}`,
			`step "b": makes an interface "net1", as step "a" does already: give one of them another name`,
		},
		"one end of two pairs": {
			`
    - {name: a, type: bridge, config: {hostIfName: p0}}
    - {name: b, type: bridge, config: {hostIfName: p0}}`,
			`step "b": makes an interface "p0", as step "a" does already: give one of them another name`,
		},
		"the loopback device": {
			`
    - {name: a, type: dummy, config: {name: lo}}`,
			`step "a": the name "lo" is taken in the sandbox by a device link that is not ours`,
		},
		"a link that is made only later": {
			`
    - {name: a, type: dummy, config: {name: d0}}
    - {name: b, type: tuning, dependOn: [a], config: {dev: z9, mtu: 1400}}
    - {name: z9, type: dummy, dependOn: [b]}`,
			`step "b": no link "z9" in the sandbox`,
		},
		"contradiction above a value of the device": {
			`
    - {name: a, type: sriov}
    - {name: b, type: dummy, dependOn: [a], config: {name: d0, mac: "{{ a.mac }}", mtu: 1400}}
    - {name: c, type: tuning, dependOn: [b], config: {mtu: 1500}}`,
			`step "c": wants link d0 mtu = 1500, but step "b" wants 1400: remove one of them`,
		},
		"a gateway without an address": {
			`
    - {name: a, type: macvlan, config: {master: eth1, routes: [{dst: 0.0.0.0/0, gw: 192.0.2.1}]}}
  claimParameters: [{step: a, key: mac, macPrefix: "02"}]`,
			`step "a": config.routes[0].gateway: "192.0.2.1" is not on the subnet of any address of "net1": add the address, or set onlink: true`,
		},
		"source routing without an address": {
			`
    - {name: a, type: macvlan, config: {master: eth1, sourceRouting: true}}
    - {name: b, type: macvlan, config: {master: eth1}}
  claimParameters: [{step: b, key: addresses, subnets: [{prefix: 192.0.2.0/24}]}]`,
			`step "a": config.sourceRouting: needs addresses in the same step`,
		},
		"a source of the other family": {
			`
    - {name: a, type: dummy, config: {addresses: [192.0.2.5/24], routes: [{dst: 10.0.0.0/8, gw: 192.0.2.1, src: "2001:db8::5"}]}}`,
			`step "a": config.routes[0].src: "2001:db8::5" and destination "10.0.0.0/8" are of different families`,
		},
		"a source that stands for none": {
			`
    - {name: a, type: dummy, config: {addresses: ["2001:db8::5/64"], routes: [{dst: "fd00::/8", gw: "2001:db8::1", src: "::"}]}}`,
			`step "a": config.routes[0].src: "::" cannot be a source address: name an address of the pod, or remove the key`,
		},
		"a multicast source": {
			`
    - {name: a, type: dummy, config: {addresses: [192.0.2.5/24], routes: [{dst: 10.0.0.0/8, gw: 192.0.2.1, src: 224.0.0.1}]}}`,
			`step "a": config.routes[0].src: "224.0.0.1" cannot be a source address: name an address of the pod, or remove the key`,
		},
		"an MTU of a route that the kernel lowers": {
			`
    - {name: a, type: dummy, config: {addresses: [192.0.2.5/24], routes: [{dst: 10.0.0.0/8, gw: 192.0.2.1, mtu: 65521}]}}`,
			`step "a": config.routes[0].mtu: 65521 is above the maximum 65520`,
		},
		"one MAC address for two macvlans of a master": {
			`
    - {name: a, type: macvlan, config: {master: eth1, mac: "02:00:00:00:00:01"}}
    - {name: b, type: macvlan, config: {master: eth1, mac: "02:00:00:00:00:01"}}`,
			`step "b": config.mac: "net1" on the same master has "02:00:00:00:00:01" too, and the kernel refuses that: choose another`,
		},
		"one device twice": {
			`
    - {name: a, type: sriov, config: {deviceID: "0000:01:10.0"}}
    - {name: b, type: sriov, config: {deviceID: "0000:01:10.0"}}`,
			`step "b": wants device 0000:01:10.0 at = net2, but step "a" wants net1: remove one of them`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			reg, top := vetted(t, c.steps)
			err := topology.Validate(t.Context(), top, reg)
			if want := `NetworkTopology "t", ` + c.want; err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

// TestVetGateways holds that a gateway is refused which the kernel refuses on every node.
func TestVetGateways(t *testing.T) {
	for _, c := range []struct{ address, gateway, route, why string }{
		{"192.0.2.5/24", "0.0.0.0", "10.0.0.0/8", "the unspecified address"},
		{"192.0.2.5/24", "224.0.0.1", "10.0.0.0/8", "a multicast address"},
		{"192.0.2.5/24", "127.0.0.1", "10.0.0.0/8", "an address of the loopback device"},
		{"192.0.2.5/24", "255.255.255.255", "10.0.0.0/8", "the broadcast address"},
		{"192.0.2.5/24", "192.0.2.255", "10.0.0.0/8", `the broadcast address of "192.0.2.0/24"`},
		{"2001:db8::5/64", "::", "fd00::/8", "the unspecified address"},
		{"2001:db8::5/64", "ff02::1", "fd00::/8", "a multicast address"},
		{"2001:db8::5/64", "::1", "fd00::/8", "an address of the loopback device"},
		{"192.0.2.5/24", "192.0.2.254", "10.0.0.0/8", ""},
		{"192.0.2.0/31", "192.0.2.1", "10.0.0.0/8", ""}, // RFC 3021
		{"2001:db8::5/64", "2001:db8::ffff:ffff:ffff:ffff", "fd00::/8", ""},
		{"2001:db8::5/64", "fe80::1", "fd00::/8", ""},
	} {
		for field, config := range map[string]string{
			"addresses[0].gateway": fmt.Sprintf(`{addresses: [{address: %q, gateway: %q}]}`, c.address, c.gateway),
			"routes[0].gateway":    fmt.Sprintf(`{addresses: [%q], routes: [{dst: %q, gw: %q, onlink: true}]}`, c.address, c.route, c.gateway),
		} {
			reg, top := vetted(t, "\n    - {name: a, type: dummy, config: "+config+"}")
			err := topology.Validate(t.Context(), top, reg)
			switch want := fmt.Sprintf(`config.%s: %q is %s`, field, c.gateway, c.why); {
			case c.why == "" && err != nil:
				t.Errorf("%s: %v", config, err)
			case c.why != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("%s: got  %v\nwant %s", config, err, want)
			}
		}
	}
}

// TestVetAccepts holds that nothing is refused which some node would take.
func TestVetAccepts(t *testing.T) {
	for name, steps := range map[string]string{
		"an interface of others": `
    - {name: a, type: dummy}
    - {name: b, type: tuning, dependOn: [a], config: {dev: ext0, mtu: 9000, routes: [{dst: 192.0.2.0/24, gw: 10.0.0.1}], ethtool: {features: {tso: on}, rings: {rx: 512}}, addresses: ["2001:db8::1/64"]}}
    - {name: c, type: vlan, dependOn: [a], config: {master: ext0, id: 5, mtu: 9000}}`,
		"VRF of the pod": `
    - {name: a, type: dummy}
    - {name: b, type: tuning, dependOn: [a], config: {dev: blue, txQLen: 9}}
    - {name: c, type: vrf, dependOn: [a], config: {vrfname: blue}}`,
		"links of the host": `
    - {name: a, type: macvlan, config: {master: eth1, mtu: 9000}}
    - {name: b, type: ipvlan, config: {master: eth2}}
    - {name: c, type: macvlan, config: {master: br0}}
    - {name: d, type: bridge, config: {bridge: br0, vlan: 7}}`,
		"one bridge of the host": `
    - {name: a, type: bridge, config: {bridge: br0, mtu: 1400, isGateway: true, addresses: [192.0.2.2/24]}}
    - {name: b, type: bridge, config: {bridge: br0, mtu: 1500, isGateway: true, addresses: [192.0.2.3/24]}}`,
		"the default route's interface": `
    - {name: a, type: ipvlan, config: {linkInContainer: true}}
    - {name: b, type: macvlan}`,
		"shared kinds on devices of their own": `
    - {name: a, type: ipvlan, selector: {cel: "true"}}
    - {name: b, type: macvlan, selector: {cel: "true"}}`,
		"values of devices that agree on some node": `
    - {name: a, type: sriov}
    - {name: b, type: dummy, dependOn: [a], config: {name: d0, mtu: "{{ a.interfaces[0].mtu }}", mac: "{{ a.mac }}"}}
    - {name: c, type: tuning, dependOn: [b], config: {mtu: 1500, mac: "52:54:00:aa:bb:01"}}`,
		"settings of all kinds": `
    - {name: a, type: sriov, config: {vlan: 5, trust: on, maxTxRate: 100, linkState: auto, mac: "02:00:00:00:00:01"}}
    - {name: b, type: tuning, dependOn: [a], config: {sysctl: {net.core.somaxconn: 5, net.ipv4.conf.IFNAME.rp_filter: 2}, ethtool: {features: {rx: off, gro: on}, coalesce: {rx-usecs: 3}, privateFlags: {x: on}}}}`,
		"a gateway on the subnet of addresses that claims set": `
    - {name: a, type: macvlan, config: {master: eth1, sourceRouting: true, routes: [{dst: 0.0.0.0/0, gw: 192.0.2.1}]}}
  claimParameters: [{step: a, key: addresses, subnets: [{prefix: 192.0.2.0/24}]}]`,
		"a small MTU, and a pool that may be of IPv4": `
    - {name: a, type: ptp, config: {mtu: 512, ipam: {type: pool, pool: p}}}`,
		"different MACs of devices": `
    - {name: a, type: sriov}
    - {name: b, type: sriov}
    - {name: c, type: bond, dependOn: [a, b], config: {mode: balance-alb, miimon: 100}}`,
	} {
		t.Run(name, func(t *testing.T) {
			reg, top := vetted(t, steps)
			if err := topology.Validate(t.Context(), top, reg); err != nil {
				t.Error(err)
			}
		})
	}
}

// planned are the files of all cases that have a plan, with these plans.
func planned(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../*/testdata/*.txtar")
	if err != nil || len(files) < 40 {
		t.Fatal(files, err)
	}
	out := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, plan, ok := strings.Cut(string(text), "\n-- plan.txt --"); ok {
			out[file] = plan
		}
	}
	return out
}

// TestVetCases holds that every plan of every step type passes, and that the topology can be planned without a node. (That
// what is wrong on every node is refused, their goldens hold.)
func TestVetCases(t *testing.T) {
	reg, _ := vetted(t, "    - {name: a, type: dummy}")
	for file := range planned(t) {
		c, err := optest.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := topology.Validate(t.Context(), c.Topology, ops.Giving(reg, c.Given)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if p, _, err := reg.PlanImagined(t.Context(), c.Topology, c.Given, ops.Rules{}); err != nil || p == nil {
			t.Errorf("%s, on an imagined node: %v", file, err)
		}
	}
}

// TestImaginedDevice holds that a step has the device that its config names on an imagined node, too.
func TestImaginedDevice(t *testing.T) {
	for _, step := range []string{
		`{name: a, type: sriov, config: {deviceID: "0000:03:00.1"}}`,
		`{name: a, type: host-device, config: {pciBusID: "0000:03:00.1"}}`,
		`{name: a, type: vfio-pci, config: {runtimeConfig: {deviceID: "0000:03:00.1"}}}`,
	} {
		reg, topo := vetted(t, "    - "+step)
		_, given, err := reg.PlanImagined(t.Context(), topo, nil, ops.Rules{})
		if err != nil || given["a"].Device != "0000:03:00.1" {
			t.Errorf("%s: %q, %v", step, given["a"].Device, err)
		}
	}
}

// TestImaginedUplink holds how a note names the pod's own interface, whose name no node has said.
func TestImaginedUplink(t *testing.T) {
	reg, topo := vetted(t, "    - {name: a, type: dummy, config: {addresses: [192.0.2.5/24], routes: [{dst: 0.0.0.0/0, gw: 192.0.2.1}]}}")
	p, _, err := reg.PlanImagined(t.Context(), topo, nil, ops.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	const want = "gets metric 4096: the route of the pod's own interface stays preferred"
	if !slices.ContainsFunc(p.Notes, func(n string) bool { return strings.Contains(n, want) }) {
		t.Errorf("have %q, want %q", p.Notes, want)
	}
}

// TestInventedSubnets holds that two steps are of one subnet on an imagined node only where they have one AddressPool.
func TestInventedSubnets(t *testing.T) {
	for name, c := range map[string]struct {
		a, b  string
		noted bool
	}{
		"one pool":                    {"ipam: {type: pool, pool: rails}", "ipam: {type: pool, pool: rails}", true},
		"two pools":                   {"ipam: {type: pool, pool: rail0}", "ipam: {type: pool, pool: rail1}", false},
		"pools of their networks":     {"ipam: {type: pool}", "ipam: {type: pool}", false},
		"interfaces of a multi-nic":   {"ipam: {type: multi-nic-ipam, pool: p, interface: 0, hostBlock: 8, interfaceBlock: 1}", "ipam: {type: multi-nic-ipam, pool: p, interface: 1, hostBlock: 8, interfaceBlock: 1}", false},
		"DHCP":                        {"ipam: {type: dhcp}", "ipam: {type: dhcp}", false},
		"a router, and a pool":        {"ipam: {type: slaac}", "ipam: {type: pool, pool: rails}", false},
		"ranges of the node, and one": {"ipam: {type: host-local, subnet: 192.0.2.0/24}", "ipam: {type: host-local, subnet: 198.51.100.0/24}", false},
	} {
		reg, topo := vetted(t, fmt.Sprintf(`
    - {name: a, type: sriov, config: {name: a0, rdma: true, %s}}
    - {name: b, type: sriov, config: {name: b0, rdma: true, %s}}`, c.a, c.b))
		p, _, err := reg.PlanImagined(t.Context(), topo, nil, ops.Rules{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if noted := slices.ContainsFunc(p.Notes, func(n string) bool { return strings.Contains(n, "of one subnet") }); noted != c.noted {
			t.Errorf("%s: %q", name, p.Notes)
		}
	}
}

// BenchmarkVet measures what validation adds, for a topology as it should be and for
// those that cost most.
func BenchmarkVet(b *testing.B) {
	hostile := func(step func(i int) string) string {
		var s strings.Builder
		for i := range 256 {
			s.WriteString(step(i))
		}
		return s.String()
	}
	flagship, err := os.ReadFile("testdata/flagship.txtar")
	if err != nil {
		b.Fatal(err)
	}
	_, text, _ := strings.Cut(string(flagship), "  steps:\n")
	text, _, _ = strings.Cut(text, "\n-- ")
	for name, steps := range map[string]string{
		"flagship": text,
		"steps":    hostile(func(i int) string { return fmt.Sprintf("    - {name: a%d, type: dummy, config: {name: d%d}}\n", i, i) }),
		"trunks": hostile(func(i int) string {
			return fmt.Sprintf("    - {name: a%d, type: bridge, config: {vlanTrunk: [{minID: 1, maxID: 4094}]}}\n", i)
		}),
		"links": "    - {name: a, type: dummy}\n    - {name: b, type: vrf, dependOn: [a], config: {vrfname: v, interfaces: [" + list(4000, "x%d") + "]}}\n",
		"routes": "    - {name: a, type: dummy, config: {addresses: [" + list(600, "'2001:db8:%x::1/64'") + "], routes: [" +
			list(900, "{dst: '2001:db9:%x::/64', gw: '2001:db8:258::2'}") + "]}}\n",
		"addresses": "    - {name: b0, type: dummy, config: {addresses: [" + list(2000, "'2001:db8:%x::1/64'") + "]}}\n" +
			strings.ReplaceAll(hostile(func(i int) string {
				return fmt.Sprintf("    - {name: b%d, type: tuning, dependOn: [b%d]}\n", i+1, i)
			}), "b256", "z"),
	} {
		b.Run(name, func(b *testing.B) {
			reg, top := vetted(b, strings.Replace(steps, "    - {name: z, type: tuning, dependOn: [b255]}\n", "", 1))
			for b.Loop() {
				_, _ = reg.Vet(b.Context(), top)
			}
		})
	}
}

func list(n int, format string) string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format, i+1)
	}
	return strings.Join(out, ", ")
}
