package all_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/optest"
	"github.com/plumbline/plumbline/topology"
)

// TestImported applies topologies that were made of published networks of Multus, with what their claims may set, and holds the laws.
func TestImported(t *testing.T) {
	reg, _ := vetted(t, "    - {name: a, type: dummy}")
	files, err := filepath.Glob("../../topology/imports/testdata/found-*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		f, err := topology.Parse("", archive.Files[1].Data) // output.yaml
		if err != nil {
			t.Fatal(err)
		}
		pools := map[any]map[string]any{}
		for _, o := range f.Values() {
			if o["kind"] == "AddressPool" {
				pools[o["metadata"].(map[string]any)["name"]] = o
			}
		}
		for _, o := range f.Values() {
			if o["kind"] != "NetworkTopology" {
				continue
			}
			text, err := yaml.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			top, err := topology.Decode(text)
			if err != nil {
				t.Fatal(err)
			}
			if reason := unlike[top.Name]; reason != "" {
				continue
			}
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar")+"/"+top.Name, func(t *testing.T) {
				c := hosted(t, top.With(top.Examples()), pools)
				_, changes, err := optest.Converge(t.Context(), reg, c)
				if err != nil {
					t.Fatal(err)
				}
				if len(changes) < 40 { // their time grows with the square
					optest.Laws(t.Context(), t, reg, c, changes)
				}
			})
		}
	}
}

// unlike are topologies of which the node lacks something, with what.
var unlike = map[string]string{
	"two-routes": "features of a card",
	"macvlan":    "a network of the host",
	"dpdk":       "a device node",
}

// hosted is a topology on a node that has what its steps name, with an address of each pool.
func hosted(t *testing.T, top *topology.Topology, pools map[any]map[string]any) *optest.Case {
	t.Helper()
	const card = `altNames: [], mac: "52:54:00:aa:bb:%02x", mtu: 9000, up: false`
	have := []string{
		`- link: {name: lo, kind: device, up: true, master: ""}`,
		`- link: {name: "host:uplink", kind: device, up: true, mtu: 9000, mac: "52:54:00:aa:bb:ff", master: ""}`,
		`- device: {id: default-route, at: "host:uplink", mac: "52:54:00:aa:bb:ff", mtu: 9000, up: true}`,
		`- chassis: {id: local, name: node-1, bridge: br-int, networks: [lab, physnet, physnet1, tenant-black, localnet1]}`,
		`- sysctl: {path: "host:net/ipv4/ip_forward", value: "1"}`,
		`- sysctl: {path: "host:net/ipv6/conf/all/forwarding", value: "1"}`,
		`- sysctl: {path: net/core/somaxconn, value: "128"}`,
	}
	for _, name := range []string{"arp_announce", "arp_filter", "arp_ignore", "rp_filter", "accept_local"} {
		have = append(have, fmt.Sprintf(`- sysctl: {path: net/ipv4/conf/all/%s, value: "0"}`, name))
	}
	given := ops.Givens{}
	masters := map[string]bool{"": true}
	for i := range top.Steps {
		s := &top.Steps[i]
		g := ops.Given{}
		ipam, _ := s.Config["ipam"].(map[string]any)
		of := values(pools[ipam["pool"]], "prefix")
		if ipam["type"] == "pool" && len(of) == 0 { // it is not among the files
			of = []string{"198.18.0.0/24"}
		}
		for _, text := range values(pools[ipam["pool"]], "gateway") {
			g.Gateways = append(g.Gateways, netip.MustParseAddr(text))
		}
		if ipam["type"] == "host-local" {
			of = values(ipam, "subnet")
		}
		if subnets, ok := topology.FromSubnets(s); ok {
			of = subnets.Subnets
		}
		for _, text := range of {
			p := netip.MustParsePrefix(text)
			a := p.Masked().Addr()
			for range min(1<<min(a.BitLen()-p.Bits(), 8)-2, 200) { // behind what is excluded
				a = a.Next()
			}
			if !slices.ContainsFunc(g.Addresses, func(o netip.Prefix) bool { return o.Addr().Is4() == a.Is4() }) {
				g.Addresses = append(g.Addresses, netip.PrefixFrom(a, p.Bits()))
			}
		}
		master, _ := s.Config["master"].(string)
		id := fmt.Sprintf("0000:01:10.%d", i)
		if runtime, ok := s.Config["runtimeConfig"].(map[string]any); ok {
			id = fmt.Sprint(runtime["deviceID"])
		}
		guid := ""
		if s.Config["portGUID"] != nil {
			guid = `, nodeGUID: "", portGUID: ""`
		}
		switch {
		case s.Type == "host-device" || s.Type == "sriov" || s.Type == "vfio-pci":
			g.Device = id
			have = append(have,
				fmt.Sprintf(`- device: {id: %q, at: "host:vf%d", rdma: [{name: mlx5_%d, nodes: [/dev/infiniband/uverbs%d]}], `+card+`}`, id, i, i, i, i),
				fmt.Sprintf(`- link: {name: "host:vf%d", kind: device, device: %q, txQueueLen: 1000, master: "", `+card+`}`, i, id, i),
				fmt.Sprintf(`- vf: {id: %q, pf: "host:pf", vlan: 0, qos: 0, protocol: 802.1q, spoofchk: true, trust: false, minTxRate: 0, maxTxRate: 0, linkState: auto, mac: "00:00:00:00:00:00"%s}`, id, guid),
				fmt.Sprintf(`- binding: {id: %q, driver: igbvf, override: "", pf: "0000:01:00.0", group: "%d", shared: []}`, id, i))
		case !masters[master] && len(s.DependOn) == 0:
			masters[master] = true
			kind := "device"
			if s.Type == "ipoib" {
				kind = "ipoib, device: \"0000:02:00.0\""
			}
			have = append(have, fmt.Sprintf(`- link: {name: "host:%s", kind: %s, mtu: 9000, up: true, master: ""}`, master, kind))
		}
		given[s.Name] = g
	}
	raw, err := yaml.Marshal(given)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "case.txtar")
	text := txtar.Format(&txtar.Archive{Files: []txtar.File{{Name: "have.yaml", Data: []byte(strings.Join(have, "\n"))}, {Name: "given.yaml", Data: raw}}})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := optest.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	c.Topology = top
	return c
}

// values are the values of a key, however deep.
func values(v any, key string) (out []string) {
	switch v := v.(type) {
	case map[string]any:
		if text, ok := v[key].(string); ok {
			out = append(out, text)
		}
		for k, e := range v {
			if k != "routes" {
				out = append(out, values(e, key)...)
			}
		}
	case []any:
		for _, e := range v {
			out = append(out, values(e, key)...)
		}
	}
	return out
}
