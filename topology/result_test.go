package topology_test

import (
	"encoding/json"
	"errors"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/ref"
)

const netns = "/var/run/netns/pod-abc"

// Results of a bond, a VLAN and tuning.
var (
	net1  = topology.Interface{Name: "net1", MAC: "52:54:00:aa:bb:01", Sandbox: netns, PCIID: "0000:03:00.2"}
	net2  = topology.Interface{Name: "net2", MAC: "52:54:00:aa:bb:02", Sandbox: netns}
	bond0 = topology.Interface{Name: "bond0", MAC: "52:54:00:aa:bb:01", Sandbox: netns}
	data0 = topology.Interface{Name: "data0", MAC: "52:54:00:aa:bb:01", Sandbox: netns, MTU: 9000}
	mgmt0 = topology.Interface{Name: "mgmt0", MAC: "52:54:00:aa:bb:01", Sandbox: netns}
)

func interfaces(list ...topology.Interface) topology.Result {
	return topology.Result{Interfaces: list}
}

func tunedData() topology.Result {
	r := interfaces(net1, net2, bond0, data0)
	r.IPs = []topology.IP{{Address: "10.100.0.5/24", Gateway: "10.100.0.1", Interface: new(3)}}
	r.Routes = []topology.Route{{Dst: "10.100.0.0/16", GW: "10.100.0.1"}}
	return r
}

func TestMerge(t *testing.T) {
	if diff := cmp.Diff(interfaces(net1, net2), topology.Merge(interfaces(net1), interfaces(net2))); diff != "" {
		t.Errorf("bond0 of section 3.3 (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(topology.Result{}, topology.Merge()); diff != "" {
		t.Errorf("nothing (-want +got):\n%s", diff)
	}

	// Both VLANs carry the ports and the bond; the second one's address moves
	// from index 3 to index 4, the common route comes once.
	second := interfaces(net1, net2, bond0, mgmt0)
	second.IPs = []topology.IP{{Address: "10.200.0.5/24", Interface: new(3)}, {Address: "10.9.9.9/32"}}
	second.Routes = []topology.Route{{Dst: "10.100.0.0/16", GW: "10.100.0.1"}, {Dst: "default", Table: new(100)}}
	got := topology.Merge(tunedData(), second, second)
	want := interfaces(net1, net2, bond0, data0, mgmt0)
	want.IPs = []topology.IP{
		{Address: "10.100.0.5/24", Gateway: "10.100.0.1", Interface: new(3)},
		{Address: "10.200.0.5/24", Interface: new(4)},
		{Address: "10.9.9.9/32"},
	}
	want.Routes = []topology.Route{{Dst: "10.100.0.0/16", GW: "10.100.0.1"}, {Dst: "default", Table: new(100)}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("two VLANs over one bond (-want +got):\n%s", diff)
	}
	*got.IPs[1].Interface, *got.Routes[1].Table = 7, 7
	if *second.IPs[0].Interface != 3 || *second.Routes[1].Table != 100 {
		t.Error("the result shares memory with the arguments")
	}
}

func TestMergeOddities(t *testing.T) {
	host := topology.Interface{Name: "net1"} // same name, but on the host
	bare := topology.Interface{Name: "net1", Sandbox: netns}
	got := topology.Merge(interfaces(bare), interfaces(host, net1))
	if diff := cmp.Diff(interfaces(net1, host), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	odd := topology.Result{
		IPs:     []topology.IP{{Address: "10.0.0.1/8", Interface: new(5)}, {Address: "10.0.0.2/8", Interface: new(-1)}},
		Devices: &topology.Devices{RDMADevice: "mlx5_0"},
	}
	got = topology.Merge(odd)
	if diff := cmp.Diff(topology.Result{IPs: []topology.IP{{Address: "10.0.0.1/8"}, {Address: "10.0.0.2/8"}}}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestResultJSON(t *testing.T) {
	r := tunedData()
	r.Interfaces = r.Interfaces[:1]
	r.IPs[0].Interface = new(0)
	got, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	want := `{
  "interfaces": [
    {
      "name": "net1",
      "mac": "52:54:00:aa:bb:01",
      "sandbox": "/var/run/netns/pod-abc",
      "pciID": "0000:03:00.2"
    }
  ],
  "ips": [
    {
      "address": "10.100.0.5/24",
      "gateway": "10.100.0.1",
      "interface": 0
    }
  ],
  "routes": [
    {
      "dst": "10.100.0.0/16",
      "gw": "10.100.0.1"
    }
  ]
}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("unexpected CNI result (-want +got):\n%s", diff)
	}
}

func TestField(t *testing.T) {
	full := tunedData()
	full.Interfaces = append(full.Interfaces, topology.Interface{Name: "veth1", MAC: "02:00:00:00:00:01"}) // its host end
	full.IPs = append(full.IPs, topology.IP{Address: "10.1.0.1/24"})
	planned := interfaces(topology.Interface{Name: "data0", Sandbox: netns})
	onHost := interfaces(topology.Interface{Name: "veth1"})
	device := topology.Result{Devices: &topology.Devices{PCIAddress: "0000:03:00.2", IOMMUGroup: "42", DeviceNodes: []string{"/dev/vfio/42", "/dev/vfio/vfio"}}}
	pending := topology.Result{Devices: &topology.Devices{PCIAddress: "0000:03:00.2"}}
	for _, tt := range []struct {
		name    string
		result  topology.Result
		ref     string
		want    any
		wantErr string
		unknown bool
	}{
		{"last interface in a sandbox", full, "interfaceName", "data0", "", false},
		{"its MAC", full, "mac", "52:54:00:aa:bb:01", "", false},
		{"its sandbox", full, "sandbox", netns, "", false},
		{"interface by index", full, "interfaces[0].name", "net1", "", false},
		{"interface on the host by index", full, "interfaces[4].mac", "02:00:00:00:00:01", "", false},
		{"MTU", full, "interfaces[3].mtu", int64(9000), "", false},
		{"PCI address", full, "interfaces[0].pciID", "0000:03:00.2", "", false},
		{"address", full, "ips[0].address", "10.100.0.5/24", "", false},
		{"gateway", full, "ips[0].gateway", "10.100.0.1", "", false},
		{"device", device, "pciAddress", "0000:03:00.2", "", false},
		{"group", device, "iommuGroup", "42", "", false},
		{"nodes", device, "deviceNodes", []any{"/dev/vfio/42", "/dev/vfio/vfio"}, "", false},
		{"node", device, "deviceNodes[1]", "/dev/vfio/vfio", "", false},
		{"all interfaces", interfaces(net1, data0), "interfaces", []any{
			ref.Object{"name": "net1", "mac": "52:54:00:aa:bb:01", "sandbox": netns, "pciID": "0000:03:00.2"},
			ref.Object{"name": "data0", "mac": "52:54:00:aa:bb:01", "sandbox": netns, "mtu": int64(9000)},
		}, "", false},

		{"MAC before apply", planned, "mac", nil, `MAC address of interface "data0": not known yet`, true},
		{"MTU before apply", planned, "interfaces[0].mtu", nil, `MTU of interface "data0": not known yet`, true},
		{"nodes before apply", pending, "deviceNodes[0]", nil, "deviceNodes: not known yet", true},
		{"group before apply", pending, "iommuGroup", nil, "iommuGroup: not known yet", true},

		{"no interface", topology.Result{}, "interfaceName", nil, "no interface in a sandbox: the result has no interfaces", false},
		{"only on the host", onHost, "interfaceName", nil, "no interface in a sandbox: the result has 1 interface [veth1]", false},
		{"no interfaces", device, "interfaces", nil, "the result has no interfaces", false},
		{"index too large", full, "interfaces[5].name", nil, "no interface 5: the result has 5 interfaces [net1, net2, bond0, data0, veth1]", false},
		{"no device", full, "interfaces[1].pciID", nil, `interface "net2" has no PCI address: it is not a device`, false},
		{"no address", full, "ips[2].address", nil, "no address 2: the result has 2 addresses [10.100.0.5/24, 10.1.0.1/24]", false},
		{"no gateway", full, "ips[1].gateway", nil, `address "10.1.0.1/24" has no gateway`, false},
		{"no devices", full, "rdmaDevice", nil, "the result has no RDMA device", false},
		{"no such node", device, "deviceNodes[2]", nil, "no device node 2: the result has 2 device nodes [/dev/vfio/42, /dev/vfio/vfio]", false},
		{"unknown field", full, "ips.address", nil, `unknown field "ips.address" in {{ s.ips.address }}, did you mean "ips[N].address"?`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tmpl, err := ref.Parse("{{ s." + tt.ref + " }}")
			if err != nil {
				t.Fatal(err)
			}
			r, _ := tmpl.Whole()
			got, err := tt.result.Field(r)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if errString(err) != tt.wantErr || errors.Is(err, topology.ErrUnknown) != tt.unknown {
				t.Errorf("got error %v, want %s", err, tt.wantErr)
			}
		})
	}
}

func errString(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestCNI(t *testing.T) {
	r := tunedData()
	r.IPs = append(r.IPs, topology.IP{Address: "2001:db8::5/64"})
	r.Routes = append(r.Routes,
		topology.Route{Dst: "default", GW: "fe80::1", Table: new(100), Scope: new(253), Priority: 5, MTU: 1400, AdvMSS: 1360},
		topology.Route{Dst: "default"})
	cni, err := r.CNI()
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(cni)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"cniVersion":"1.1.0","interfaces":[` +
		`{"name":"net1","mac":"52:54:00:aa:bb:01","sandbox":"/var/run/netns/pod-abc","pciID":"0000:03:00.2"},` +
		`{"name":"net2","mac":"52:54:00:aa:bb:02","sandbox":"/var/run/netns/pod-abc"},` +
		`{"name":"bond0","mac":"52:54:00:aa:bb:01","sandbox":"/var/run/netns/pod-abc"},` +
		`{"name":"data0","mac":"52:54:00:aa:bb:01","mtu":9000,"sandbox":"/var/run/netns/pod-abc"}],` +
		`"ips":[{"interface":3,"address":"10.100.0.5/24","gateway":"10.100.0.1"},{"address":"2001:db8::5/64"}],` +
		`"routes":[{"dst":"10.100.0.0/16","gw":"10.100.0.1"},` +
		`{"dst":"::/0","gw":"fe80::1","mtu":1400,"advmss":1360,"priority":5,"table":100,"scope":253},{"dst":"0.0.0.0/0"}]}`
	var wantJSON, gotJSON any
	if err := errors.Join(json.Unmarshal([]byte(want), &wantJSON), json.Unmarshal(got, &gotJSON)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantJSON, gotJSON); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := types100.NewResult(got); err != nil {
		t.Errorf("not read back as CNI: %v", err)
	}

	for _, tt := range []struct {
		result topology.Result
		want   string
	}{
		{topology.Result{IPs: []topology.IP{{Address: "10.0.0.1"}}}, `address "10.0.0.1": invalid CIDR address: 10.0.0.1`},
		{topology.Result{IPs: []topology.IP{{Address: "10.0.0.1/8", Gateway: "gw"}}}, `gateway of address "10.0.0.1/8": "gw" is not an IP address`},
		{topology.Result{IPs: []topology.IP{{Address: "10.0.0.1/8", Interface: new(0)}}}, `address "10.0.0.1/8": no interface 0: the result has no interfaces`},
		{topology.Result{Routes: []topology.Route{{Dst: "everywhere"}}}, `route "everywhere": invalid CIDR address: everywhere`},
		{topology.Result{Routes: []topology.Route{{Dst: "::/0", GW: "x"}}}, `gateway of route "::/0": "x" is not an IP address`},
	} {
		if _, err := tt.result.CNI(); errString(err) != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}
