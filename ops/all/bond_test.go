package all_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/optest"
	"github.com/plumbline/plumbline/topology"
)

// bondOptions are the modes in which the kernel uses an option of a bond: bonding.rst, and for those of which it does
// not say it drivers/net/bonding. "" is a bond without options that monitor links.
var bondOptions = map[string][]string{
	"":                          {"balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"}, // by our default
	"miimon: 100":               {"balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"},
	"updelay: 200":              {"balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"},
	"downdelay: 200":            {"balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"},
	"miimon: 0":                 nil,
	"arpIpTargets: [192.0.2.1]": nil,
	"arpInterval: 100, arpIpTargets: [192.0.2.1]": {"balance-rr", "active-backup", "balance-xor", "broadcast"},
	"xmitHashPolicy: layer3+4":                    {"balance-xor", "802.3ad", "balance-tlb"},
	"lacpRate: fast":                              {"802.3ad"},
	"adSelect: count":                             {"802.3ad"},
	"minLinks: 1":                                 {"802.3ad"},
	"failOverMac: active":                         {"active-backup"},
	"allSlavesActive: 1":                          {"active-backup", "802.3ad", "balance-tlb", "balance-alb"},
	"tlbDynamicLb: 0":                             {"balance-tlb", "balance-alb"},
	"primary: a":                                  {"active-backup", "balance-tlb", "balance-alb"},
}

// TestBondOptionsCount holds that an option of a bond is accepted without a note only in the modes in which the kernel
// uses it, and that the links of each bond are monitored, or a note says that they are not.
func TestBondOptionsCount(t *testing.T) {
	for option, modes := range bondOptions {
		for _, mode := range bondOptions[""] {
			config := strings.TrimSuffix("mode: "+mode+", "+option, ", ")
			reg, top := vetted(t, fmt.Sprintf("    - {name: a, type: dummy, config: {name: a}}\n    - {name: b, type: dummy, config: {name: b}}\n    - {name: bond0, type: bond, dependOn: [a, b], config: {addresses: [192.0.2.2/24], %s}}\n", config))
			notes, err := topology.Inspect(t.Context(), top, reg)
			accepted := err == nil && len(notes) == 0
			if used := slices.Contains(modes, mode); accepted != used {
				t.Errorf("{%s}: accepted without a note: %v, used by the kernel: %v (%v %q)", config, accepted, used, err, notes)
			}
			if option != "" || err != nil {
				continue
			}
			if plan, err := optest.Outcome(t.Context(), reg, &optest.Case{Topology: top}); err != nil || !strings.Contains(plan, "bond.miimon 100") {
				t.Errorf("{%s}: the links of the ports are not monitored: %s %v", config, plan, err)
			}
		}
	}
}

// TestVLANOnPort holds that a VLAN on a port of a bond has the room that the port has: with the bond's default MTU after an edit, whether
// the step of the VLAN is before that of the bond or after it, and after another program has lowered both.
func TestVLANOnPort(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const bond, vlan = `  - {name: b, type: bond, dependOn: [d, e], config: {name: b0, mode: active-backup%s}}
`, `  - {name: v, type: vlan, dependOn: [%s], config: {id: 5, name: v0, master: d0%s}}
`
	with := func(steps string) *optest.Case {
		return &optest.Case{Topology: decode(t, `apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: t}
spec:
  steps:
  - {name: d, type: dummy, config: {name: d0}}
  - {name: e, type: dummy, config: {name: e0}}
`+steps)}
	}
	vlanLast := func(bondMTU, vlanMTU string) *optest.Case {
		return with(fmt.Sprintf(bond, bondMTU) + fmt.Sprintf(vlan, "b", vlanMTU))
	}
	vlanFirst := func(bondMTU, vlanMTU string) *optest.Case {
		return with(fmt.Sprintf(vlan, "d", vlanMTU) + fmt.Sprintf(bond, bondMTU))
	}
	for _, mtu := range []string{", mtu: 1300", ", mtu: 9000"} {
		for order, of := range map[string]func(bond, vlan string) *optest.Case{"after": vlanLast, "before": vlanFirst} {
			for _, edit := range [][2]*optest.Case{{of(mtu, ""), of("", "")}, {of("", ""), of(mtu, "")}} {
				if !edited(t, reg, edit[0], edit[1], nil) {
					t.Errorf("without or with%s of the bond, the VLAN %s it: refused", mtu, order)
				}
			}
		}
	}
	for _, mtu := range []string{"", ", mtu: 1400"} {
		none := func(*optest.World) []netstate.Object { return nil }
		if err := optest.Hold(t.Context(), t, reg, vlanLast("", mtu), none, func(w *optest.World, _ []netstate.Change) {
			for _, name := range []string{"d0", "v0"} {
				l, _ := w.Link(name)
				w.Put(netstate.Merge(l, netstate.Link{MTU: new(uint32(1280))}))
			}
		}); err != nil {
			t.Errorf("both lowered, the VLAN%s: %v", mtu, err)
		}
	}
}

// TestOwnMTUOfPort holds that a device has its own MTU again when it leaves a bond, whatever the MTU was with which an edit has found
// it in the bond.
func TestOwnMTUOfPort(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	devicesOf := func(mtu uint32) (have []netstate.Object) {
		for _, o := range append(vf(0), vf(1)...) {
			switch of := o.(type) {
			case netstate.Device:
				of.MTU = &mtu
				have = append(have, of)
			case netstate.Link:
				of.MTU = &mtu
				have = append(have, of)
			default:
				have = append(have, o)
			}
		}
		return have
	}
	given := ops.Givens{}.WithDevices(map[string]string{"d": "0000:01:10.0", "e": "0000:01:10.1"})
	const (
		devices = "  - {name: d, type: host-device, config: {name: d0}}\n  - {name: e, type: host-device, config: {name: e0}}\n"
		vlan    = "  - {name: v, type: vlan, dependOn: [d], config: {id: 5, name: v0, master: d0%s}}\n"
		bond    = "  - {name: b, type: bond, dependOn: [d, e], config: {name: b0, mode: active-backup%s}}\n"
	)
	plain, usual, small := fmt.Sprintf(vlan, ""), fmt.Sprintf(bond, ""), fmt.Sprintf(bond, ", mtu: 1300")
	large, other := fmt.Sprintf(vlan, ", mtu: 4000"), strings.ReplaceAll(small, "b0", "b1")
	tunnel := plain + "  - {name: x, type: vxlan, dependOn: [v], config: {id: 9, name: x0}}\n"
	for name, versions := range map[string][3]string{
		"raised with a new VLAN":      {small, plain + usual, plain},
		"raised, and the VLAN's own":  {plain + small, plain + usual, fmt.Sprintf(vlan, ", mtu: 1500")},
		"raised for a VLAN":           {plain + usual, large + usual, plain},
		"raised for a VLAN, for good": {plain + small, large + usual, plain + usual},
		"in another bond":             {usual, plain + other, plain},
		"with a tunnel on the VLAN":   {tunnel + usual, tunnel, tunnel + usual},
		"never raised":                {plain + small, plain + small, plain},
	} {
		for _, own := range []uint32{1300, 1500, 9000} {
			t.Run(fmt.Sprintf("%s/%d", name, own), func(t *testing.T) {
				var cases [3]*optest.Case
				for i, text := range versions {
					cases[i] = &optest.Case{Topology: steps(t, devices+text), Have: devicesOf(own), Given: given}
				}
				if !editedTwice(t, reg, cases) {
					t.Error("refused")
				}
			})
		}
	}
}
