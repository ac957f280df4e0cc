package topology_test

import (
	"testing"

	"github.com/plumbline/plumbline/topology/contract"
)

// testContracts are the contracts of the tests: those of published CNIPluginSchemas,
// and two more for what these do not cover.
func testContracts(t testing.TB) contract.Set {
	t.Helper()
	onOff := func(name string) contract.Param {
		return contract.Param{Name: name, Type: contract.String, Enum: []string{"on", "off"}, OnOff: true}
	}
	through := contract.Flow{Passthrough: true}
	appends := contract.Flow{Appends: 1, Passthrough: true}
	configured := contract.Flow{Appends: -1, Passthrough: true}
	set, err := contract.NewSet(
		contract.Contract{
			Type: "bond",
			Params: []contract.Param{
				{Name: "mode", Type: contract.String, Required: true, Enum: []string{"balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"}},
				{Name: "links", Type: contract.List, Required: true, MinItems: 2, Items: &contract.Param{
					Type: contract.Object, Shorthand: "name", Properties: []contract.Param{{Name: "name", Type: contract.String, Format: contract.InterfaceName, Required: true}},
				}},
				{Name: "name", Type: contract.String, Format: contract.InterfaceName, Default: "bond0"},
				{Name: "xmitHashPolicy", Type: contract.String, Enum: []string{"layer2", "layer3+4", "layer2+3", "encap2+3", "encap3+4"}},
				{Name: "miimon", Type: contract.Integer, NumericString: true, Minimum: contract.Int(0)},
				{Name: "lacpRate", Type: contract.String, Enum: []string{"slow", "fast"}},
			},
			Input:  contract.Input{Required: true, MinInterfaces: 2, MaxInterfaces: 8},
			Output: contract.Output{Interfaces: appends, IPs: through, Routes: through},
		},
		contract.Contract{
			Type: "vlan",
			Params: []contract.Param{
				{Name: "id", Type: contract.Integer, Required: true, Minimum: contract.Int(1), Maximum: contract.Int(4094)},
				{Name: "master", Type: contract.String, Format: contract.InterfaceName, Required: true},
				{Name: "name", Type: contract.String, Format: contract.InterfaceName},
			},
			Input:  contract.Input{Required: true, MinInterfaces: 1},
			Output: contract.Output{Interfaces: appends, IPs: through, Routes: through},
		},
		contract.Contract{
			Type: "sriov",
			Params: []contract.Param{
				{Name: "vlan", Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(4094)},
				onOff("spoofchk"), onOff("trust"),
				{Name: "mac", Type: contract.String, Format: contract.MAC},
			},
			Input:  contract.Input{Device: true},
			Output: contract.Output{Interfaces: contract.Flow{Appends: 1}},
		},
		contract.Contract{
			Type:   "vfio-pci",
			Params: []contract.Param{{Name: "driver", Type: contract.String, Enum: []string{"vfio-pci", "igb_uio", "uio_pci_generic"}, Default: "vfio-pci"}},
			Input:  contract.Input{Device: true},
			Output: contract.Output{Devices: []contract.Param{
				{Name: "pciAddress", Type: contract.String},
				{Name: "iommuGroup", Type: contract.String},
				{Name: "deviceNodes", Type: contract.List, Items: &contract.Param{Type: contract.String}},
			}},
			Explain: "VFIO devices cannot be bonded — they are userspace-managed.",
		},
		contract.Contract{
			Type:   "rdma",
			Params: []contract.Param{{Name: "rdmaDevice", Type: contract.String}},
			Input:  contract.Input{Device: true},
			Output: contract.Output{
				Interfaces: contract.Flow{Conditional: true},
				Devices: []contract.Param{
					{Name: "rdmaDevice", Type: contract.String},
					{Name: "deviceNodes", Type: contract.List, Items: &contract.Param{Type: contract.String}},
				},
			},
		},
		contract.Contract{
			Type: "tuning",
			Params: []contract.Param{
				{Name: "dev", Type: contract.String, Format: contract.InterfaceName},
				{Name: "mtu", Type: contract.Integer},
				{Name: "addresses", Type: contract.List, Items: &contract.Param{Type: contract.String, Format: contract.CIDR}},
				{Name: "routes", Type: contract.List, Items: &contract.Param{Type: contract.Object, Properties: []contract.Param{
					{Name: "destination", Type: contract.String, Format: contract.Prefix}, {Name: "gateway", Type: contract.String, Format: contract.IP},
				}}},
				{Name: "ethtool", Type: contract.Object, Properties: []contract.Param{
					{Name: "features", Type: contract.Map, Items: &contract.Param{Type: contract.Boolean}},
				}},
				{Name: "sysctl", Type: contract.Map, Format: contract.SysctlPath, Items: &contract.Param{Type: contract.String, Scalar: true}},
			},
			Input:  contract.Input{Required: true, MinInterfaces: 1},
			Output: contract.Output{Interfaces: contract.Flow{Passthrough: true, Modifies: true}, IPs: configured, Routes: configured},
		},
		// quad needs more interfaces than most graphs have.
		contract.Contract{
			Type:   "quad",
			Params: []contract.Param{{Name: "note", Type: contract.Any}, {Name: "links", Type: contract.Any}},
			Input:  contract.Input{Required: true, MinInterfaces: 4},
			Output: contract.Output{Interfaces: through},
		},
		// single takes one interface at most.
		contract.Contract{
			Type:   "single",
			Input:  contract.Input{Required: true, MinInterfaces: 1, MaxInterfaces: 1},
			Output: contract.Output{Interfaces: through},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	return set
}
