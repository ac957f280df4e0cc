package node

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

func registry(t *testing.T) contract.Set {
	t.Helper()
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	return reg
}

func parsed(t *testing.T, text string) *topology.Manifest {
	t.Helper()
	f, err := topology.Parse("", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// steps makes a topology "ai" of the YAML of its steps.
func steps(t *testing.T, list string) *topology.Topology {
	t.Helper()
	text := "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: ai}\nspec:\n  steps:\n" + list
	topo, _, err := Load(t.Context(), parsed(t, text), nil, registry(t))
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

const (
	twoVFs = `
  - {name: a, type: sriov}
  - {name: b, type: sriov}
`
	onPF1 = `
  - name: a
    type: sriov
    selector: {cel: 'device.attributes["dra.networking"].pfName == "pf1"'}
`
	onRDMA = `
    selector: {cel: 'device.attributes["dra.networking"].rdma'}
`
	dummy = `
  - {name: a, type: dummy}
`
)

// portOf is a step on a network of OVN, by a function of a PF.
func portOf(name, pf string) string {
	return "\n  - name: " + name + "\n    type: ovn-k8s-cni-overlay\n    config: {topology: layer2, name: blue, ifName: " + name + "0}\n" +
		"    selector: {cel: 'device.attributes[\"dra.networking\"].pfName == \"" + pf + "\"'}\n"
}

// The host: two VFs on each of two PFs, a card of its own that carries the
// default route, and a link without hardware.
func host() []inventory.Device {
	vf := func(address, name, pf string) inventory.Device {
		return inventory.Device{ID: address, Name: "pci-" + address, Kind: inventory.KindVF, IfName: name, MAC: "02:00:00:00:00:" + address[len(address)-4:len(address)-2], PF: &inventory.PF{IfName: pf}}
	}
	return []inventory.Device{
		vf("0000:01:10.0", "pf0v0", "pf0"), vf("0000:01:10.2", "pf0v1", "pf0"),
		vf("0000:02:10.0", "pf1v0", "pf1"), vf("0000:02:11.2", "pf1v1", "pf1"),
		{ID: "0000:03:00.0", Name: "pci-3", Kind: inventory.KindNIC, IfName: "eth0", HostUse: inventory.DefaultRoute},
		{ID: "0000:01:00.0", Name: "pci-1", Kind: inventory.KindNIC, RDMA: true, RDMAOnly: true},
		{ID: "if:dummy7", Name: "net-dummy7", Kind: inventory.KindVirtual, IfName: "dummy7"},
	}
}

// record is a sandbox with devices moved in from the interfaces named.
func record(id reconcile.SandboxID, topo *topology.Topology, devices map[string]string, from map[string]string) reconcile.Record {
	rec := reconcile.Record{Sandbox: reconcile.Sandbox{ID: id, Netns: "/run/netns/" + strings.Split(string(id), "/")[0], Topology: topo, Given: ops.Givens{}.WithDevices(devices)}, Phase: reconcile.Applied}
	for device, name := range from {
		rec.History = append(rec.History, netstate.Change{
			Before: netstate.Device{ID: device, At: new(netstate.HostName(name))},
			After:  netstate.Device{ID: device, At: new("net1")},
		})
	}
	return rec
}

func TestAssignment(t *testing.T) {
	macvlan := `
  - name: a
    type: macvlan
    selector: {cel: 'device.attributes["dra.networking"].pfName == "pf1"'}
`
	ownVF := record("blue/ai", steps(t, twoVFs), map[string]string{"a": "0000:01:10.2", "b": "0000:02:10.0"}, map[string]string{"0000:01:10.2": "pf0v1", "0000:02:10.0": "pf1v0"})
	for name, c := range map[string]struct {
		steps     string
		requested map[string]string
		records   []reconcile.Record
		ended     map[reconcile.SandboxID]bool
		others    map[string]bool // devices in a record of another version
		want      map[string]string
		err       string
		kind      fault.Kind
	}{
		"no step takes one":                          {steps: dummy},
		"the first free ones, each once":             {steps: twoVFs, want: map[string]string{"a": "0000:01:10.0", "b": "0000:01:10.2"}},
		"the selector decides":                       {steps: onPF1, want: map[string]string{"a": "0000:02:10.0"}},
		"requested by PCI address":                   {steps: twoVFs, requested: map[string]string{"a": "02:11.2"}, want: map[string]string{"a": "0000:02:11.2", "b": "0000:01:10.0"}},
		"requested by name":                          {steps: twoVFs, requested: map[string]string{"b": "pf0v0"}, want: map[string]string{"a": "0000:01:10.2", "b": "0000:01:10.0"}},
		"requested without PCI address":              {steps: "\n  - {name: a, type: host-device}\n", requested: map[string]string{"a": "dummy7"}, want: map[string]string{"a": "if:dummy7"}},
		"macvlan shares the selected one":            {steps: macvlan, want: map[string]string{"a": "0000:02:10.0"}},
		"rdma takes a function without an interface": {steps: "\n  - name: a\n    type: rdma" + onRDMA, want: map[string]string{"a": "0000:01:00.0"}},
		"sriov takes none": {
			steps: "\n  - name: a\n    type: sriov" + onRDMA, kind: fault.NotReady,
			err: "topology \"ai\": step \"a\": no free device matches `device.attributes[\"dra.networking\"].rdma`: 6 devices, 0 in use, 1 kept by the host; rdma is false on 6",
		},
		"macvlan takes none": {
			steps: "\n  - name: a\n    type: macvlan" + onRDMA, kind: fault.NotReady,
			err: "topology \"ai\": step \"a\": no free device matches `device.attributes[\"dra.networking\"].rdma`: 6 devices, 0 in use, 1 kept by the host; rdma is false on 6",
		},
		"macvlan finds its master": {steps: "\n  - {name: a, type: macvlan}\n"},
		"two macvlans share one": {
			steps:     "\n  - {name: a, type: macvlan}\n  - {name: b, type: macvlan}\n",
			requested: map[string]string{"a": "eth0", "b": "eth0"}, want: map[string]string{"a": "0000:03:00.0", "b": "0000:03:00.0"},
		},
		"ovn takes functions, each once": {
			steps: portOf("a", "pf1") + portOf("b", "pf1"), want: map[string]string{"a": "0000:02:10.0", "b": "0000:02:11.2"},
		},
		"ovn takes no function of another sandbox": {
			steps: portOf("a", "pf1"), want: map[string]string{"a": "0000:02:11.2"},
			records: []reconcile.Record{record("red/ai", steps(t, portOf("a", "pf1")), map[string]string{"a": "0000:02:10.0"}, nil)},
		},
		"ovn keeps no function that another sandbox has taken since": {
			steps: portOf("a", "pf1"), want: map[string]string{"a": "0000:02:11.2"}, ended: map[reconcile.SandboxID]bool{"blue/ai": true},
			records: []reconcile.Record{
				record("blue/ai", steps(t, portOf("a", "pf1")), map[string]string{"a": "0000:02:10.0"}, nil),
				record("red/ai", steps(t, portOf("a", "pf1")), map[string]string{"a": "0000:02:10.0"}, nil),
			},
		},
		"ovn takes no function in a record of another version": {
			steps: portOf("a", "pf1"), others: map[string]bool{"0000:02:10.0": true}, want: map[string]string{"a": "0000:02:11.2"},
		},
		"named in the config by MAC":     {steps: "\n  - {name: a, type: host-device, config: {hwaddr: '02:00:00:00:00:11'}}\n", want: map[string]string{"a": "0000:02:11.2"}},
		"named in the config by name":    {steps: "\n  - {name: a, type: host-device, config: {device: pf1v1}}\n", want: map[string]string{"a": "0000:02:11.2"}},
		"named in the config by address": {steps: "\n  - {name: a, type: sriov, config: {pciAddress: '0000:02:11.2'}}\n", want: map[string]string{"a": "0000:02:11.2"}},
		"named in the config by CNI":     {steps: "\n  - {name: a, type: sriov, config: {runtimeConfig: {deviceID: '0000:02:11.2'}}}\n", want: map[string]string{"a": "0000:02:11.2"}},
		"named in the config by path":    {steps: "\n  - {name: a, type: host-device, config: {kernelpath: /sys/devices/pci0000:00/0000:02:11.2}}\n", want: map[string]string{"a": "0000:02:11.2"}},
		"named by the path of a link":    {steps: "\n  - {name: a, type: host-device, config: {kernelpath: /sys/devices/virtual/x}}\n", want: map[string]string{"a": "if:dummy7"}},

		"kept": {steps: twoVFs, records: []reconcile.Record{ownVF}, want: map[string]string{"a": "0000:01:10.2", "b": "0000:02:10.0"}},
		"the same command works twice": {
			steps: twoVFs, records: []reconcile.Record{ownVF}, requested: map[string]string{"a": "pf0v1", "b": "0000:02:10.0"},
			want: map[string]string{"a": "0000:01:10.2", "b": "0000:02:10.0"},
		},
		"another one is refused": {
			steps: twoVFs, records: []reconcile.Record{ownVF}, requested: map[string]string{"a": "pf0v0"},
			err: `topology "ai": step "a": device "0000:01:10.0" is requested, but sandbox "blue/ai" has "0000:01:10.2": delete the sandbox first`, kind: fault.Conflict,
		},
		"another one is taken when the namespace is gone": {
			steps: twoVFs, records: []reconcile.Record{ownVF}, requested: map[string]string{"a": "pf0v0"}, ended: map[reconcile.SandboxID]bool{"blue/ai": true},
			want: map[string]string{"a": "0000:01:10.0", "b": "0000:02:10.0"},
		},
		"a step that is new gets its own": {
			steps: twoVFs, records: []reconcile.Record{record("blue/ai", steps(t, onPF1), map[string]string{"a": "0000:01:10.0"}, nil)},
			want: map[string]string{"a": "0000:01:10.0", "b": "0000:01:10.2"},
		},
		"devices of other sandboxes are not free": {
			steps: twoVFs, records: []reconcile.Record{record("red/ai", steps(t, onPF1), map[string]string{"a": "0000:01:10.0"}, nil), record("red/x", steps(t, dummy), nil, map[string]string{"0000:02:10.0": "pf1v0"})},
			want: map[string]string{"a": "0000:01:10.2", "b": "0000:02:11.2"},
		},
		"devices in a record of another version are not free": {
			steps: twoVFs, others: map[string]bool{"blue/ai": true, "0000:01:10.0": true, "0000:02:10.0": true},
			want: map[string]string{"a": "0000:01:10.2", "b": "0000:02:11.2"},
		},
		"devices of ended namespaces are free": {
			steps: onPF1, records: []reconcile.Record{record("red/ai", steps(t, onPF1), map[string]string{"a": "0000:02:10.0"}, nil)}, ended: map[reconcile.SandboxID]bool{"red/ai": true},
			want: map[string]string{"a": "0000:02:10.0"},
		},
		"an earlier device that was taken meanwhile is replaced": {
			steps: twoVFs, ended: map[reconcile.SandboxID]bool{"blue/ai": true},
			records: []reconcile.Record{ownVF, record("red/ai", steps(t, onPF1), map[string]string{"a": "0000:02:10.0"}, nil)},
			want:    map[string]string{"a": "0000:01:10.2", "b": "0000:01:10.0"},
		},
		"none is left": {
			steps: onPF1, records: []reconcile.Record{record("red/ai", steps(t, onPF1), map[string]string{"a": "0000:02:10.0"}, nil), record("green/ai", steps(t, onPF1), map[string]string{"a": "0000:02:11.2"}, nil)},
			err: "topology \"ai\": step \"a\": no free device matches `device.attributes[\"dra.networking\"].pfName == \"pf1\"`: 6 devices, 2 in use, 1 kept by the host; matching but not free: pci-0000:02:10.0 (in use), pci-0000:02:11.2 (in use)", kind: fault.NotReady,
		},
		"no such step":           {steps: twoVFs, requested: map[string]string{"c": "pf0v0"}, err: `topology "ai": step "c": device "pf0v0" is given to a step that does not exist: steps that take a device are a, b`, kind: fault.Invalid},
		"nearly a step":          {steps: "\n  - {name: uplink, type: sriov}\n", requested: map[string]string{"uplnk": "pf0v0"}, err: `topology "ai": step "uplnk": device "pf0v0" is given to a step that does not exist, did you mean "uplink"?`, kind: fault.Invalid},
		"a derived step":         {steps: twoVFs + "  - {name: v, type: vlan, dependOn: [a], config: {id: 1}}\n", requested: map[string]string{"v": "pf0v0"}, err: `topology "ai": step "v": device "pf0v0" is given to a derived step: only root steps take a device, and this one depends on a`, kind: fault.Invalid},
		"a step that needs none": {steps: dummy, requested: map[string]string{"a": "pf0v0"}, err: `topology "ai": step "a": device "pf0v0" is given to a step of type "dummy", which takes none`, kind: fault.Invalid},
		"one for two":            {steps: twoVFs, requested: map[string]string{"a": "pf0v0", "b": "0000:01:10.0"}, err: `topology "ai": step "b": device "0000:01:10.0" is the device of step "a" already`, kind: fault.Invalid},
		"no such interface":      {steps: twoVFs, requested: map[string]string{"a": "eth9"}, err: "topology \"ai\": step \"a\": interface \"eth9\" is not on this host: `plumbline devices` lists what is", kind: fault.NotReady},
		"no such address":        {steps: twoVFs, requested: map[string]string{"a": "0000:09:00.0"}, err: "topology \"ai\": step \"a\": device \"0000:09:00.0\" is not on this host: `plumbline devices` lists what is", kind: fault.NotReady},
		"no name at all":         {steps: twoVFs, requested: map[string]string{"a": "a/b"}, err: `topology "ai": step "a": device "a/b" is neither a PCI address nor an interface name`, kind: fault.Invalid},
		"named twice":            {steps: "\n  - {name: a, type: host-device, config: {device: pf1v1}}\n", requested: map[string]string{"a": "pf0v0"}, err: `topology "ai": step "a": device "0000:01:10.0" is requested, but the step's config names "0000:02:11.2": drop one of them`, kind: fault.Invalid},
		"a namespace of the same name": {
			steps: dummy, records: []reconcile.Record{{Sandbox: reconcile.Sandbox{ID: "blue/ai", Netns: "/elsewhere/blue", Topology: steps(t, dummy)}}},
			err: `sandbox "blue/ai" is in network namespace "/elsewhere/blue", which has the same name: delete it first`, kind: fault.Conflict,
		},
	} {
		t.Run(name, func(t *testing.T) {
			discovered, listed := 0, 0
			var own *reconcile.Record
			for _, rec := range c.records {
				if rec.Sandbox.ID == "blue/ai" {
					own = &rec
				}
			}
			sb, err := Assignment{
				ID: "blue/ai", Netns: Netns{"blue", "/run/netns/blue"}, Topology: steps(t, c.steps), Requested: c.requested, Contracts: registry(t), Own: own,
				Records: func() []reconcile.Record {
					listed++
					return c.records
				},
				OtherVersions: func() []*frame.OtherVersion { return []*frame.OtherVersion{{Mentions: c.others}} },
				Alive:         func(rec reconcile.Record) bool { return !c.ended[rec.Sandbox.ID] },
				Discover: func() ([]inventory.Device, error) {
					discovered++
					return host(), errors.New("a file could not be read")
				},
				Sys: fstest.MapFS{"devices/virtual/x/net/dummy7": {}},
			}.Sandbox(t.Context())
			if discovered > 1 {
				t.Errorf("discovered %d times", discovered)
			}
			if listed > 1 || discovered == 0 && listed > 0 && len(c.ended) == 0 {
				t.Errorf("all records read %d times, with %d discoveries", listed, discovered)
			}
			if c.err != "" {
				if err == nil || err.Error() != c.err || fault.Of(err) != c.kind {
					t.Errorf("error:\nhave %v (%s)\nwant %s (%s)", err, fault.Of(err), c.err, c.kind)
				}
				return
			}
			if err != nil || !maps.Equal(sb.Given.Devices(), c.want) {
				t.Errorf("have %v, %v; want %v", sb.Given.Devices(), err, c.want)
			}
		})
	}
}

func TestLoadOrdersProblemsBySteps(t *testing.T) {
	text := `apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: ai}
spec:
  steps:
  - {name: a, type: sriov, selector: {cel: 'true &&'}}
  - {name: b, type: nothing}
`
	_, _, err := Load(t.Context(), parsed(t, text), nil, registry(t))
	if err == nil || fault.Of(err) != fault.Invalid {
		t.Fatal(err)
	}
	if a, b := strings.Index(err.Error(), `step "a": selector.cel: `), strings.Index(err.Error(), `step "b": type: `); a < 0 || b < a {
		t.Error(err)
	}
}

// TestNamedAgainstSelector holds that a device chosen by name is taken, with a note if
// the step's selector does not match it.
func TestNamedAgainstSelector(t *testing.T) {
	for requested, want := range map[string]string{
		"pf0v0": `step "a": uses the named device "0000:01:10.0", although its selector does not match`,
		"pf1v0": "",
	} {
		said := ""
		sb, err := Assignment{
			ID: "blue/ai", Netns: Netns{Path: "/run/netns/blue"}, Topology: steps(t, onPF1), Contracts: registry(t),
			Requested: map[string]string{"a": requested}, Discover: func() ([]inventory.Device, error) { return host(), nil },
			Records: func() []reconcile.Record { return nil }, OtherVersions: func() []*frame.OtherVersion { return nil },
			Note: func(text string) { said = text },
		}.Sandbox(t.Context())
		if err != nil || sb.Given["a"].Device == "" || said != want {
			t.Errorf("%s: %v, %v, %q", requested, sb.Given.Devices(), err, said)
		}
	}
}

// TestOnePFIsNoted holds that a user who chooses no devices gets a note if those of a bond
// fail together.
func TestOnePFIsNoted(t *testing.T) {
	bonded := twoVFs + "  - {name: bond0, type: bond, dependOn: [a, b], config: {mode: active-backup}}\n"
	for _, c := range []struct {
		requested map[string]string
		want      string
	}{
		{nil, `step "bond0": the devices of ["a" "b"] are virtual functions of one physical function, 0000:pf0, and fail together: have them chosen by a claim as ` + "`plumbline claim`" + ` prints it, or by selectors`},
		{map[string]string{"b": "pf1v0"}, ""},
	} {
		said := ""
		_, err := Assignment{
			ID: "blue/ai", Netns: Netns{Path: "/run/netns/blue"}, Topology: steps(t, bonded), Contracts: registry(t), Requested: c.requested,
			Discover: func() ([]inventory.Device, error) {
				devices := host()
				for i := range devices {
					if devices[i].PF != nil {
						devices[i].PF.PCIAddress = "0000:" + devices[i].PF.IfName
					}
				}
				return devices, nil
			},
			Records: func() []reconcile.Record { return nil }, OtherVersions: func() []*frame.OtherVersion { return nil },
			Note: func(text string) { said = text },
		}.Sandbox(t.Context())
		if err != nil || said != c.want {
			t.Errorf("%v: said %q, want %q (%v)", c.requested, said, c.want, err)
		}
	}
}

// TestUserspaceDrivers holds that the list of userspace drivers agrees with the
// planner's.
func TestUserspaceDrivers(t *testing.T) {
	for driver, want := range map[string]bool{
		"vfio-pci": true, "mlx5_vfio_pci": true, "hisi-acc-vfio-pci": true, "igb_uio": true, "uio_pci_generic": true, "pci-stub": true, "xen-pciback": true,
		"igbvf": false, "mlx5_core": false, "": false,
	} {
		listed := inventory.Device{ID: "0000:01:10.0", Driver: driver}.State() == "userspace"
		if listed != want || netstate.UserspaceDriver(driver) != want {
			t.Errorf("%q: listed %t, planned %t, want %t", driver, listed, netstate.UserspaceDriver(driver), want)
		}
	}
}

// TestParseAddresses holds what --address accepts, and the errors for the rest.
func TestParseAddresses(t *testing.T) {
	for _, tt := range []struct {
		args      []string
		want, err string
	}{
		{nil, "map[]", ""},
		{[]string{"a=192.0.2.5/24", "b=2001:DB8::5/64", "a=198.51.100.5/32"}, "map[a:[192.0.2.5/24 198.51.100.5/32] b:[2001:db8::5/64]]", ""},
		{[]string{"a=none", "b=192.0.2.5/24"}, "map[a:[] b:[192.0.2.5/24]]", ""},
		{[]string{"192.0.2.5/24"}, "", `"192.0.2.5/24" is not of the form STEP=ADDRESS, as in data0=192.0.2.5/24 or data0=none`},
		{[]string{"a="}, "", `"a=" is not of the form STEP=ADDRESS, as in data0=192.0.2.5/24 or data0=none`},
		{[]string{"a=192.0.2.5"}, "", `step "a": "192.0.2.5" has no prefix length: write that of the subnet, as in "192.0.2.5/24", or "192.0.2.5/32" for the one address`},
		{[]string{"a=fe80::1%eth0/64"}, "", `step "a": "fe80::1%eth0/64" is not an address with its prefix length, as in 10.100.0.5/24`},
		{[]string{"a=none", "a=192.0.2.5/24"}, "", `step "a" is given none and ["192.0.2.5/24"]: keep one`},
	} {
		given, err := ParseAddresses(tt.args)
		have := map[string]any{}
		for step, g := range given {
			have[step] = g.Addresses
		}
		if got := fmt.Sprint(err); tt.err != "" && got != tt.err || tt.err == "" && (err != nil || fmt.Sprint(have) != tt.want) {
			t.Errorf("%q:\nhave %v, %v\nwant %s%s", tt.args, have, err, tt.want, tt.err)
		}
	}
}
