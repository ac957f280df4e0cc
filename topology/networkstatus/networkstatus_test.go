package networkstatus_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/networkstatus"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden is the file that integration/networkstatus reads as other programs do.
const golden = "testdata/annotation.json"

// claimOf is a claim with devices of topologies, as a node reports of them.
func claimOf(topologies []string, devices ...resourceapi.AllocatedDeviceStatus) *resourceapi.ResourceClaim {
	o := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Devices: devices, Allocation: &resourceapi.AllocationResult{}}}
	for _, topology := range topologies {
		o.Status.Allocation.Devices.Config = append(o.Status.Allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClass,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: fmt.Appendf(nil, `{"networkTopologyRef":{"name":%q,"uid":"u","generation":1},"step":"vf0"}`, topology)},
			}},
		})
	}
	return o
}

func device(data, iface, mac string, ips ...string) resourceapi.AllocatedDeviceStatus {
	d := resourceapi.AllocatedDeviceStatus{Driver: claim.Driver, Data: &runtime.RawExtension{Raw: []byte(data)}}
	if iface != "" {
		d.NetworkData = &resourceapi.NetworkDeviceData{InterfaceName: iface, HardwareAddress: mac, IPs: ips}
	}
	return d
}

const sandbox = `"sandbox":"/run/netns/p"`

// pod is a claim for a bond of two functions with a VLAN on it, a macvlan that was imported, and a function without an interface.
func pod() *resourceapi.ResourceClaim {
	const bond = `,"steps":[{"name":"bond0","type":"bond","result":{"interfaces":[{"name":"net1",` + sandbox + `,"pciID":"0000:03:10.0"},{"name":"net2",` + sandbox + `},{"name":"bond0","mac":"02:00:00:00:00:01","mtu":9000,` + sandbox + `}]}},
{"name":"v7","type":"vlan","result":{"interfaces":[{"name":"bond0",` + sandbox + `},{"name":"bond0.7","mac":"02:00:00:00:00:01","mtu":1500,` + sandbox + `},{"name":"host7"}],"ips":[{"address":"192.0.2.7/24","interface":1},{"address":"2001:db8::7/64","interface":1},{"address":"192.0.2.9/24","interface":2}]}}]`
	return claimOf([]string{"rail", "office", "dpdk"},
		device(`{"topology":"rail","step":"vf0","mtu":9000,"pciAddress":"0000:03:10.0"`+bond+`}`, "net1", "02:00:00:00:00:01"),
		device(`{"topology":"rail","step":"vf1","mtu":9000,"pciAddress":"0000:03:10.2"`+bond+`}`, "net2", "02:00:00:00:00:01"),
		device(`{"topology":"office","step":"m","mtu":1500}`, "net3", "02:00:00:00:00:03", "198.51.100.3/24", "fe80::3/64"),
		device(`{"topology":"dpdk","step":"vf","pciAddress":"0000:05:10.1"}`, "", ""),
	)
}

func nameOf(topology string) string {
	return networkstatus.NameOf(topology, map[string]string{"office": "shop/office"}[topology])
}

// TestAnnotation holds the text of the annotation, which integration/networkstatus reads.
func TestAnnotation(t *testing.T) {
	text, err := networkstatus.Text(networkstatus.Of(pod(), nameOf))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(golden, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if text != strings.TrimSpace(string(want)) {
		t.Errorf("%s\nwant\n%s", text, want)
	}
}

// TestForged gives what users can write into the status of a claim: nothing of it gets into the annotation but what has the form that a
// node writes.
func TestForged(t *testing.T) {
	for name, c := range map[string]struct {
		topology string
		device   resourceapi.AllocatedDeviceStatus
		want     string
	}{
		"another topology":    {"rail", device(`{"topology":"other"}`, "net1", ""), `null`},
		"another driver":      {"rail", resourceapi.AllocatedDeviceStatus{Driver: "gpu.example.com", Data: &runtime.RawExtension{Raw: []byte(`{"topology":"rail"}`)}, NetworkData: &resourceapi.NetworkDeviceData{InterfaceName: "x"}}, `null`},
		"no JSON":             {"rail", device(`{`, "net1", ""), `null`},
		"a name of the shell": {"rail", device(`{"topology":"rail"}`, "a b/c", ""), `null`},
		"a long name":         {"rail", device(`{"topology":"rail"}`, strings.Repeat("n", 16), ""), `null`},
		"values":              {"rail", device(`{"topology":"rail","mtu":-7,"pciAddress":"../../etc"}`, "net1", "no MAC", "no address", "192.0.2.7", "192.0.2.8/24"), `[{"name":"rail","interface":"net1","ips":["192.0.2.8"],"dns":{}}]`},
		"an index":            {"rail", device(`{"topology":"rail","steps":[{"name":"a","result":{"interfaces":[{"name":"net1",`+sandbox+`}],"ips":[{"address":"192.0.2.7/24","interface":-1},{"address":"192.0.2.7/24"}]}}]}`, "", ""), `[{"name":"rail","interface":"net1","dns":{}}]`},
	} {
		have, _ := json.Marshal(networkstatus.Of(claimOf([]string{c.topology}, c.device), nameOf))
		if string(have) != c.want {
			t.Errorf("%s: %s, want %s", name, have, c.want)
		}
	}
	var links, addresses []string
	for i := range 5000 {
		links = append(links, fmt.Sprintf(`{"name":"n%d",%s}`, i, sandbox))
		addresses = append(addresses, fmt.Sprintf("2001:db8::%x/64", i))
	}
	all := networkstatus.Of(claimOf([]string{"rail"}, device(`{"topology":"rail","steps":[{"name":"a","result":{"interfaces":[`+strings.Join(links, ",")+`]}}]}`, "net1", "", addresses...)), nameOf)
	if text, err := networkstatus.Text(all); !errors.Is(err, networkstatus.ErrTooLarge) || text != "" || len(all) > 129 || len(all[0].IPs) > 16 {
		t.Errorf("%d entries, %d addresses, %d bytes, %v", len(all), len(all[0].IPs), len(text), err)
	}
	if _, err := networkstatus.Text(all[:100]); err != nil {
		t.Errorf("100 entries: %v", err)
	}
}

// TestOurs holds on which pods the annotation is ours to write.
func TestOurs(t *testing.T) {
	const text = `[{"name":"rail","dns":{}}]`
	for name, c := range map[string]struct {
		annotations map[string]string
		want        bool
	}{
		"nothing":                  {nil, true},
		"ours":                     {map[string]string{networkstatus.Annotation: text, networkstatus.Mark: networkstatus.Digest(text)}, true},
		"Multus has written":       {map[string]string{networkstatus.Annotation: text}, false},
		"Multus has written later": {map[string]string{networkstatus.Annotation: text + " ", networkstatus.Mark: networkstatus.Digest(text)}, false},
		"Multus has emptied":       {map[string]string{networkstatus.Annotation: "", networkstatus.Mark: networkstatus.Digest(text)}, false},
		"Multus is asked":          {map[string]string{"k8s.v1.cni.cncf.io/networks": "a"}, false},
		"Multus is asked for eth0": {map[string]string{"v1.multus-cni.io/default-network": "a"}, false},
		"removed by hand":          {map[string]string{networkstatus.Mark: networkstatus.Digest(text)}, true},
	} {
		if have := networkstatus.Ours(c.annotations); have != c.want {
			t.Errorf("%s: %v", name, have)
		}
	}
}

// TestNameOf holds which definitions a topology stands for.
func TestNameOf(t *testing.T) {
	for definition, want := range map[string]string{"": "office", "shop/office-net": "shop/office-net", "office-net": "office", "a/b/c": "office", "a/" + strings.Repeat("b", 300): "office", "A/b": "office"} {
		if have := networkstatus.NameOf("office", definition); have != want {
			t.Errorf("%q: %q", definition, have)
		}
	}
}
