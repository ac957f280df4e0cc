package inventory_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/inventory"
)

// Selectors as users write them in a NetworkTopology.
const (
	selectVF0 = `
cel: >-
  device.driver == "dra.networking" &&
  device.attributes["dra.networking"].pfName == "enp3s0f0" &&
  device.attributes["dra.networking"].rdma == true
`
	selectVF1 = `
cel: >-
  device.driver == "dra.networking" &&
  device.attributes["dra.networking"].pfName == "enp3s0f1" &&
  device.attributes["dra.networking"].rdma == true
`
	selectGPU = `
cel: >-
  device.driver == "gpu.nvidia.com" &&
  device.attributes["gpu.nvidia.com"].productName == "H100"
`
	selectOVN = `
cel: >-
  device.driver == "dra.networking" &&
  device.attributes["dra.networking"].type == "vf" &&
  device.attributes["dra.networking"].pfName == "enp5s0f0"
`
	selectUplink = `
cel: >-
  device.attributes["dra.networking"].type == "pf" &&
  device.attributes["dra.networking"].ifName == "enp6s0f0"
`
	selectLocalnet = `
cel: >-
  device.driver == "dra.networking" &&
  device.attributes["dra.networking"].physicalNetworkName == "localnet1"
`
)

// cel reads a selector block as the topology parser does.
func cel(tb testing.TB, block string) string {
	tb.Helper()
	var selector struct{ CEL string }
	if err := yaml.UnmarshalStrict([]byte(block), &selector); err != nil {
		tb.Fatal(err)
	}
	return selector.CEL
}

func compile(tb testing.TB, expr string) inventory.Selector {
	tb.Helper()
	s, err := inventory.Compile(expr)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestSeedSelectors(t *testing.T) {
	for _, c := range []struct {
		node, name, block string
		want              []string
	}{
		{"mlx5", "vf0", selectVF0, []string{"0000:03:00.2", "0000:03:00.3"}},
		{"mlx5", "vf1", selectVF1, []string{"0000:03:01.2", "0000:03:01.3"}},
		{"mlx5", "gpu", selectGPU, nil},
		{"igb", "vf0 without RDMA", selectVF0, nil},
		{"stack", "vf0 with one soft RDMA device", selectVF0, []string{"0000:01:10.0"}},
		{"ovn", "ovn-vf", selectOVN, []string{"0000:05:01.0", "0000:05:01.1"}},
		{"ovn", "localnet-uplink", selectUplink, []string{"0000:06:00.0"}},
		{"ovn", "localnet-port", selectLocalnet, []string{"0000:06:00.0"}},
		{"others", "localnet-port", selectLocalnet, nil},
	} {
		t.Run(c.node+" "+c.name, func(t *testing.T) {
			s := compile(t, cel(t, c.block))
			var have []string
			for _, d := range devices(t, c.node) {
				matches, err := s.Match(t.Context(), d)
				if err != nil {
					t.Error(err)
				}
				if matches {
					have = append(have, d.ID)
				}
			}
			if diff := cmp.Diff(c.want, have); diff != "" {
				t.Errorf("matches (-want +have):\n%s", diff)
			}
		})
	}
}

func TestCompileErrors(t *testing.T) {
	for _, c := range []struct{ name, expr, want string }{
		{"empty", " \n", `selector.cel: the expression is empty`},
		{"syntax", "device.driver == ", `selector.cel: 1:18: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}`},
		{"second line", "device.driver == 'a' &&\n  device.nam == 'b'", `selector.cel: 2:9: undefined field 'nam'`},
		{"two errors", "device.x == dev.y", `selector.cel: 1:7: undefined field 'x'; 1:13: undeclared reference to 'dev' (in container '')`},
		{"single equals sign", "device.driver = 'a'", `selector.cel: 1:15: "=" is not an operator, did you mean "=="?`},
		{"word for an operator", "device.driver == 'a' and true", `selector.cel: 1:22: "and" is not an operator, did you mean "&&"?`},
		{"word for another", "device.driver == 'a' or true", `selector.cel: 1:22: "or" is not an operator, did you mean "||"?`},
		{"attribute alone", "pfName == 'a'", `selector.cel: 1:1: undeclared reference to 'pfName' (in container ''): write device.attributes["dra.networking"].pfName`},
		{"attribute without domain", "device.attributes.pfName == 'a'", `selector.cel: 1:26: found no matching overload for '_==_' applied to '(map(string, dyn), string)': attributes are by domain, as in device.attributes["dra.networking"].ifName`},
		{"attribute as its own domain", `device.attributes["dra.networking/pfName"] == 'a'`, `selector.cel: 1:44: found no matching overload for '_==_' applied to '(map(string, dyn), string)': attributes are by domain, as in device.attributes["dra.networking"].ifName`},
		{"domain without quotes", "device.attributes[dra.networking].ifName == 'a'", `selector.cel: 1:19: undeclared reference to 'dra' (in container ''): write "dra.networking" in quotes`},
		{"types", `device.driver == 1`, `selector.cel: 1:15: found no matching overload for '_==_' applied to '(string, int)'`},
		{"not a bool", `device.driver`, `selector.cel: must evaluate to bool or the unknown type, not string`},
		{"too long", `device.driver == "` + strings.Repeat("x", 10<<10) + `"`, `selector.cel: the expression is 10259 bytes long, at most 10240 are allowed`},
		{"too expensive", `[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, [1,2,3,4,5,6,7,8,9].all(d, [1,2,3,4,5,6,7,8,9].all(e, [1,2,3,4,5,6,7,8,9].all(f, device.driver.contains("x")))))))`, `selector.cel: the expression may cost`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := inventory.Compile(c.expr)
			if err == nil {
				t.Fatal("it compiles")
			}
			if have := err.Error(); !strings.HasPrefix(have, c.want) || strings.Contains(have, "\n") {
				t.Errorf("error:\nhave %s\nwant %s", have, c.want)
			}
		})
	}
}

func TestMatch(t *testing.T) {
	node := 1
	d := inventory.Device{
		ID: "0000:03:00.2", Name: "pci-0000-03-00-2", Kind: inventory.KindVF, Vendor: "15b3", DeviceID: "101e", Driver: "mlx5_core",
		PF: &inventory.PF{PCIAddress: "0000:03:00.0", IfName: "enp3s0f0"}, RDMA: true, NUMANode: &node, PCIeRoot: "pci0000:00", LinkType: inventory.Ethernet,
	}
	for _, c := range []struct {
		expr string
		want bool
		err  string
	}{
		{expr: `true`, want: true},
		{expr: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].productName == "H100"`},
		{expr: `device.attributes["dra.networking"].rdma`, want: true},
		{expr: `device.attributes["dra.networking"].numaNode == 1`, want: true},
		{expr: `device.attributes["dra.networking"].vendor in ["15b3", "8086"]`, want: true},
		{expr: `device.attributes["resource.kubernetes.io"].pciBusID.startsWith("0000:03:")`, want: true},
		{expr: `device.attributes["resource.kubernetes.io"].pcieRoot == device.attributes["device.k8s.io"].pcieRoot`, want: true},
		{expr: `cel.bind(dra, device.attributes["dra.networking"], dra.type == "vf" && dra.linkType == "ethernet")`, want: true},
		{expr: `device.attributes["dra.networking"].physicalNetworkName == "localnet1"`},
		{expr: `device.attributes["dra.networking"].?speed.orValue(0) >= 100`},
		{expr: `has(device.attributes["dra.networking"].speed)`},
		{expr: `device.attributes["example.com"].?x.hasValue()`},
		{expr: `device.allowMultipleAllocations`},
		{expr: `device.attributes["dra.networking"].speed == 100`, err: `device "pci-0000-03-00-2": selector.cel: no such key: speed`},
		{expr: `device.attributes["dra.networking"].rdma == "yes"`},
		{expr: `device.attributes["dra.networking"].numaNode > "0"`, err: `device "pci-0000-03-00-2": selector.cel: no such overload`},
		{expr: `device.attributes["dra.networking"].pfName`, err: `device "pci-0000-03-00-2": selector.cel: CEL result of type string could not be converted to bool: `},
		{expr: `device.attributes["dra.networking"].speed == 100 && device.driver == "x"`}, // false decides, whatever the error
	} {
		have, err := compile(t, c.expr).Match(t.Context(), d)
		switch {
		case c.err != "" && (err == nil || !strings.HasPrefix(err.Error(), c.err)):
			t.Errorf("%s\nerror: have %v\nwant        %s", c.expr, err, c.err)
		case c.err == "" && err != nil:
			t.Errorf("%s: %v", c.expr, err)
		case have != c.want:
			t.Errorf("%s: have %t", c.expr, have)
		}
	}
	if ok, err := (inventory.Selector{}).Match(t.Context(), d); !ok || err != nil {
		t.Errorf("the zero Selector: have %t, %v", ok, err)
	}
}

func TestFirst(t *testing.T) {
	for _, c := range []struct {
		name, node, expr string
		taken            []string
		want             string // device ID, or the whole error
	}{
		{"in order", "mlx5", cel(t, selectVF0), nil, "0000:03:00.2"},
		{"skips what is taken", "mlx5", cel(t, selectVF0), []string{"0000:03:00.2"}, "0000:03:00.3"},
		{"skips what the host uses", "stack", `device.attributes["dra.networking"].pfName == "enp3s0f1"`, nil, "0000:02:10.4"},
		{"skips what cannot be evaluated", "mlx5", `device.attributes["dra.networking"].numaNode > 3`, nil, "0000:41:00.0"},
		{"skips devices without the attribute", "others", `device.attributes["dra.networking"].numaNode == 0`, nil, "0000:08:00.0"},
		{
			"all taken", "mlx5", cel(t, selectVF0),
			[]string{"0000:03:00.2", "0000:03:00.3"},
			"no free device matches `device.driver == \"dra.networking\" && device.attributes[\"dra.networking\"].pfName == \"enp3s0f0\" && device.attributes[\"dra.networking\"].rdma == true`: " +
				"7 devices, 2 in use, 0 kept by the host; matching but not free: pci-0000-03-00-2 (in use), pci-0000-03-00-3 (in use)",
		},
		{
			"kept by the host", "ovn", cel(t, selectLocalnet), nil,
			"no free device matches `device.driver == \"dra.networking\" && device.attributes[\"dra.networking\"].physicalNetworkName == \"localnet1\"`: " +
				"9 devices, 0 in use, 6 kept by the host; matching but not free: pci-0000-06-00-0 (openvswitch port of ovs-system)",
		},
		{
			"near misses", "igb", cel(t, selectVF0), nil,
			"no free device matches `device.driver == \"dra.networking\" && device.attributes[\"dra.networking\"].pfName == \"enp3s0f0\" && device.attributes[\"dra.networking\"].rdma == true`: " +
				"10 devices, 0 in use, 0 kept by the host; pfName is \"enp3s0f0\" on 4, \"enp3s0f1\" on 4, \"\" on 2; rdma is false on 10",
		},
		{
			"a misspelt attribute", "mlx5", `device.attributes["dra.networking"].pfname == "enp3s0f0"`, nil,
			"no free device matches `device.attributes[\"dra.networking\"].pfname == \"enp3s0f0\"`: 7 devices, 0 in use, 0 kept by the host; " +
				"no such key: pfname on pci-0000-03-00-0, pci-0000-03-00-1, pci-0000-03-00-2, pci-0000-03-00-3, pci-0000-03-01-2, pci-0000-03-01-3 and 1 more; pfname is not set on 7",
		},
		{
			"every way to read an attribute", "ovn",
			`cel.bind(d, device.attributes["dra.networking"], d.type == "x" && d["vendor"] == "x") && device.attributes["dra.networking"].?driver.orValue("") == "x" && device.attributes["dra.networking"][?"numaNode"].orValue(9) == 1 && has(device.attributes["device.k8s.io"].pcieRoot)`, nil,
			"no free device matches `cel.bind(d, device.attributes[\"dra.networking\"], d.type == \"x\" && d[\"vendor\"] == \"x\") && device.attributes[\"dra.networking\"].?driver.orValue(\"\") == \"x\" && device.attributes[\"dra.networking\"][?\"numaNode\"].orValue(9) == 1 && has(device.attributes[\"device.k8s.io\"].pcieRoot)`: " +
				`9 devices, 0 in use, 6 kept by the host; device.k8s.io/pcieRoot is "pci0000:00" on 5, not set on 4; driver is not set on 4, "ice" on 3, "iavf" on 2; numaNode is 0 on 5, not set on 4; type is "virtual" on 4, "pf" on 3, "vf" on 2; vendor is "8086" on 5, not set on 4`,
		},
		{"no selector", "ovn", "", []string{"0000:05:00.0", "0000:05:01.0", "0000:05:01.1"}, "no free device of any kind: 9 devices, 3 in use, 6 kept by the host; matching but not free: pci-0000-05-00-0 (in use), pci-0000-05-01-0 (in use), pci-0000-05-01-1 (in use), pci-0000-06-00-0 (openvswitch port of ovs-system), pci-0000-07-00-0 (openvswitch port of ovs-system), net-br-ex (default route) and 3 more"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s inventory.Selector
			if c.expr != "" {
				s = compile(t, c.expr)
			}
			taken := map[string]bool{}
			for _, id := range c.taken {
				taken[id] = true
			}
			d, err := inventory.First(t.Context(), devices(t, c.node), s, taken)
			have := d.ID
			if err != nil {
				have = err.Error()
				if !errors.Is(err, inventory.ErrNoDevice) {
					t.Errorf("%v is not ErrNoDevice", err)
				}
			}
			if have != c.want {
				t.Errorf("\nhave %s\nwant %s", have, c.want)
			}
		})
	}
	t.Run("no devices", func(t *testing.T) {
		_, err := inventory.First(t.Context(), nil, compile(t, `device.attributes["dra.networking"].rdma`), nil)
		want := "no free device matches `device.attributes[\"dra.networking\"].rdma`: 0 devices, 0 in use, 0 kept by the host; rdma is not set"
		if err == nil || err.Error() != want {
			t.Errorf("have %v\nwant %s", err, want)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("the hook's time is up"))
		_, err := inventory.First(ctx, devices(t, "mlx5"), compile(t, cel(t, selectVF0)), nil)
		if err == nil || err.Error() != "select a device: the hook's time is up" {
			t.Errorf("have %v", err)
		}
	})
}

// TestSelectorConcurrent matches with one selector from many goroutines; it is
// for the race detector.
func TestSelectorConcurrent(t *testing.T) {
	s, all := compile(t, cel(t, selectVF0)), devices(t, "mlx5")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := inventory.First(t.Context(), all, s, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// FuzzCompile: an error is one line that names the field; what compiles can be
// evaluated and explained.
func FuzzCompile(f *testing.F) {
	for _, block := range []string{selectVF0, selectVF1, selectGPU, selectOVN, selectUplink, selectLocalnet} {
		f.Add(cel(f, block))
	}
	for _, expr := range []string{
		"", "1", "device", "device.driver ==", "device.attributes[device.driver].x == 1", "device.attributes['a'].b.c",
		`cel.bind(d, device.attributes["dra.networking"], d.?type.orValue("") == "vf")`, `[1].map(d, d)[?0] == optional.of(1)`,
		`device.attributes["dra.networking"].ifName.matches("(a+)+$")`, "\"\n\" == device.driver // x", "`", "\x00",
	} {
		f.Add(expr)
	}
	all := devices(f, "ovn")
	f.Fuzz(func(t *testing.T, expr string) {
		s, err := inventory.Compile(expr)
		if err != nil {
			if m := err.Error(); !strings.HasPrefix(m, "selector.cel: ") || strings.ContainsAny(m, "\n\r") {
				t.Errorf("%q: error %q", expr, m)
			}
			return
		}
		if _, err := inventory.First(t.Context(), all, s, nil); err != nil && !errors.Is(err, inventory.ErrNoDevice) {
			t.Errorf("%q: %v", expr, err)
		}
	})
}

// TestUnknown holds which attributes of a selector no device has.
func TestUnknown(t *testing.T) {
	for name, tt := range map[string]struct {
		expr string
		want []string
	}{
		"misspelt":        {`device.attributes["dra.networking"].pfname == "enp3s0f0" && device.attributes["dra.networking"].rdma`, []string{"pfname"}},
		"of other domain": {`device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:00"`, nil},
		"asked for first": {`has(device.attributes["dra.networking"].colour)`, []string{"colour"}},
	} {
		s, err := inventory.Compile(tt.expr)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Unknown(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	for name := range inventory.Attributes(inventory.Device{ID: "0000:03:10.0", Kind: inventory.KindVF, PF: &inventory.PF{IfName: "a"}, Vendor: "8086", DeviceID: "10ca", Driver: "igbvf", LinkType: "ethernet", NUMANode: new(0)}) {
		if !strings.Contains(string(name), "/") && !slices.Contains(inventory.AttributeNames(), string(name)) {
			t.Errorf("attribute %q is published, and not known", name)
		}
	}
}

// TestSelectorOfNetworks holds that a selector can choose among the networks of a device.
func TestSelectorOfNetworks(t *testing.T) {
	s, err := inventory.Compile(`"b" in device.attributes["dra.networking"].physicalNetworks.split(",")`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		names []string
		want  bool
	}{{nil, false}, {[]string{"b"}, true}, {[]string{"a", "b"}, true}, {[]string{"ab"}, false}} {
		d := inventory.Device{Name: "d"}
		for _, n := range c.names {
			d.PhysicalNetworks = append(d.PhysicalNetworks, inventory.PhysicalNetwork{Name: n})
		}
		if have, err := s.Match(t.Context(), d); err != nil || have != c.want {
			t.Errorf("%v: %v, %v", c.names, have, err)
		}
	}
}
