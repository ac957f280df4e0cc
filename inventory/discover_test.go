package inventory_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/inventory/sysfstest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// node is a fixture: a tree and what the caller of the package knows besides.
// The comment of testdata/tree/NAME.txtar may hold the lines
//
//	@network INTERFACE NETWORK
//	@route INTERFACE
type node struct {
	tree    fs.FS
	dir     string
	opt     inventory.Options
	uplinks inventory.Uplinks
}

func open(tb testing.TB, name string) node {
	tb.Helper()
	archive, err := txtar.ParseFile(filepath.Join("testdata", "tree", name+".txtar"))
	if err != nil {
		tb.Fatal(err)
	}
	n := node{opt: inventory.Options{PhysicalNetworks: map[string]string{}}}
	n.tree, n.dir = sysfstest.Unpack(tb, archive)
	for line := range strings.Lines(string(archive.Comment)) {
		word := strings.Fields(line)
		switch {
		case !strings.HasPrefix(line, "@"):
		case word[0] == "@network":
			n.opt.PhysicalNetworks[word[1]] = word[2]
		case word[0] == "@route":
			n.uplinks.Routes = append(n.uplinks.Routes, word[1])
		default:
			tb.Fatalf("%s: %q is no directive", name, line)
		}
	}
	return n
}

// devices are those of a fixture without errors, guarded.
func devices(tb testing.TB, name string) []inventory.Device {
	tb.Helper()
	n := open(tb, name)
	found, err := inventory.Discover(n.tree, n.opt)
	if err != nil {
		tb.Fatal(err)
	}
	return inventory.GuardUplinks(found, n.uplinks)
}

func TestDiscover(t *testing.T) {
	files, err := filepath.Glob("testdata/tree/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			n := open(t, name)
			found, err := inventory.Discover(n.tree, n.opt)
			found = inventory.GuardUplinks(found, n.uplinks)

			golden := &txtar.Archive{}
			add := func(name, content string) {
				golden.Files = append(golden.Files, txtar.File{Name: name, Data: []byte(content)})
			}
			if err != nil {
				add("error.txt", strings.ReplaceAll(err.Error(), n.dir, "/sys")+"\n")
			}
			var table, js bytes.Buffer
			list := inventory.List(found, publish.Why(found))
			if err := inventory.Table(&table, list); err != nil {
				t.Fatal(err)
			}
			if err := inventory.JSON(&js, list); err != nil {
				t.Fatal(err)
			}
			add("table.txt", table.String())
			add("attributes.txt", attributes(found))
			add("devices.json", js.String())
			compareGolden(t, filepath.Join("testdata", "golden", name+".txtar"), golden)
		})
	}
}

func compareGolden(t *testing.T, file string, have *txtar.Archive) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, txtar.Format(have), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(txtar.Format(have))); diff != "" {
		t.Errorf("%s (-want +have), go test -update rewrites it:\n%s", file, diff)
	}
}

// attributes is one line a device: name=value, sorted.
func attributes(devices []inventory.Device) string {
	var b strings.Builder
	for _, d := range devices {
		attrs := inventory.Attributes(d)
		b.WriteString(d.Name)
		for _, name := range slices.Sorted(maps.Keys(attrs)) {
			fmt.Fprintf(&b, "\n  %s %s", name, value(attrs[name]))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func value(a resourceapi.DeviceAttribute) string {
	switch {
	case a.StringValue != nil:
		return fmt.Sprintf("%q", *a.StringValue)
	case a.BoolValue != nil:
		return fmt.Sprint(*a.BoolValue)
	case a.IntValue != nil:
		return fmt.Sprint(*a.IntValue)
	}
	return "?"
}

func TestDiscoverNeedsLinks(t *testing.T) {
	_, err := inventory.Discover(struct{ fs.FS }{fstest.MapFS{}}, inventory.Options{})
	if err == nil || !strings.Contains(err.Error(), "cannot read symbolic links") {
		t.Errorf("error: have %v", err)
	}
}

func TestDiscoverNothing(t *testing.T) {
	found, err := inventory.Discover(fstest.MapFS{}, inventory.Options{})
	if err != nil || len(found) != 0 {
		t.Errorf("have %v, %v; want nothing", found, err)
	}
	var js bytes.Buffer
	if err := inventory.JSON(&js, nil); err != nil || js.String() != "[]\n" {
		t.Errorf("JSON: have %q, %v", js.String(), err)
	}
}

// vanishing is a tree in which a directory goes away when one of its files is read.
type vanishing struct {
	fs.ReadLinkFS
	dir, file string
	gone      bool
}

func (v *vanishing) Open(name string) (fs.File, error) {
	v.gone = v.gone || name == v.dir+"/"+v.file
	if v.gone && strings.HasPrefix(name+"/", v.dir+"/") {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return v.ReadLinkFS.Open(name)
}

func TestDiscoverVanishing(t *testing.T) {
	for _, c := range []struct{ dir, file, id string }{
		{"devices/pci0000:40/0000:40:01.1/0000:41:00.0", "class", "0000:41:00.0"},
		{"devices/pci0000:40/0000:40:01.1/0000:41:00.0", "numa_node", "0000:41:00.0"},
		{"devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:01.3", "device", "0000:03:01.3"},
	} {
		t.Run(c.id+" "+c.file, func(t *testing.T) {
			tree := &vanishing{open(t, "mlx5").tree.(fs.ReadLinkFS), c.dir, c.file, false}
			found, err := inventory.Discover(tree, inventory.Options{})
			if err != nil {
				t.Error(err)
			}
			if len(found) != 6 || slices.ContainsFunc(found, func(d inventory.Device) bool { return d.ID == c.id }) {
				t.Errorf("have %d devices, want the six others", len(found))
			}
		})
	}
}

// TestStable: nothing but the link itself may change when an interface is
// renamed or leaves the namespace, or claims would lose their device.
func TestStable(t *testing.T) {
	before := devices(t, "mlx5")
	archive, err := txtar.ParseFile("testdata/tree/mlx5.txtar")
	if err != nil {
		t.Fatal(err)
	}
	archive.Files = slices.DeleteFunc(archive.Files, func(f txtar.File) bool {
		return strings.Contains(f.Name, "net/enp3s0f0v0")
	})
	tree, _ := sysfstest.Unpack(t, archive)
	after, err := inventory.Discover(tree, inventory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range before {
		if d.IfName == "enp3s0f0v0" {
			d.IfName, d.MTU, d.MAC, d.Up, d.Carrier = "", 0, "", false, false
			before[i] = d
			if after[i].State() != "not here" {
				t.Errorf("state: have %q", after[i].State())
			}
		}
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// TestAPILimits holds every device to what the API server accepts: one
// attribute out of bounds makes the whole ResourceSlice invalid.
func TestAPILimits(t *testing.T) {
	long := inventory.Device{
		ID: "if:x", Name: "net-x", Kind: inventory.KindVirtual, IfName: "\xff", PhysicalNetwork: strings.Repeat("x", 65),
		Driver: strings.Repeat("d", 65), PCIeRoot: strings.Repeat("p", 65), PF: &inventory.PF{IfName: strings.Repeat("f", 65)},
	}
	for i := range 9 {
		long.Networks = append(long.Networks, netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, byte(i)}), 64), netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(200 + i), 0}), 24))
	}
	if a := inventory.Attributes(long)[inventory.AttrNetworks]; a.StringValue == nil || *a.StringValue != "192.168.200.0/24,192.168.201.0/24,192.168.202.0/24" {
		t.Errorf("networks are %v", a)
	}
	all := []inventory.Device{long, {}}
	for _, name := range []string{"igb", "stack", "mlx5", "ovn", "others"} {
		all = append(all, devices(t, name)...)
	}
	for _, d := range all {
		attrs := inventory.Attributes(d)
		const others = 8 + 3 + 2 // additionalAttributes; switch, switchPort and rail; capacities
		if len(attrs) > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice-others {
			t.Errorf("device %q: %d attributes leave little room for a policy's", d.Name, len(attrs))
		}
		for name, a := range attrs {
			domain, id, qualified := strings.Cut(string(name), "/")
			if !qualified {
				domain, id = "", string(name)
			}
			if len(domain) > resourceapi.DeviceMaxDomainLength || len(id) > resourceapi.DeviceMaxIDLength {
				t.Errorf("device %q: attribute %q: name too long", d.Name, name)
			}
			if a.StringValue != nil && len(*a.StringValue) > resourceapi.DeviceAttributeMaxValueLength {
				t.Errorf("device %q: attribute %q: value too long", d.Name, name)
			}
		}
		for _, name := range []resourceapi.QualifiedName{"type", "ifName", "pfName", "rdma", "physicalNetworkName"} {
			if _, ok := attrs[name]; !ok {
				t.Errorf("device %q: attribute %q is missing", d.Name, name)
			}
		}
	}
}

func TestGuardUplinks(t *testing.T) {
	bond := []inventory.Device{
		{ID: "0000:01:00.0", IfName: "p0", Master: "bond0", Uppers: []string{"bond0"}, HostUse: inventory.BondPort},
		{ID: "0000:01:00.1", IfName: "p1", Master: "bond0", Uppers: []string{"bond0"}, HostUse: inventory.BondPort},
		{ID: "0000:02:00.0", IfName: "p2", Master: "bond1", Uppers: []string{"bond1"}, HostUse: inventory.BondPort},
		{ID: "0000:03:00.0", IfName: "pf", OtherIfNames: []string{"pf0vf0"}},
		{ID: "0000:03:00.1", PF: &inventory.PF{PCIAddress: "0000:03:00.0", IfName: "pf"}},
		{ID: "if:bond0", IfName: "bond0", Uppers: []string{"bond0.5", "bond0.6"}},
		{ID: "if:bond0.5", IfName: "bond0.5", Master: "red", Uppers: []string{"red"}},
		{ID: "if:bond0.6", IfName: "bond0.6"},
		{ID: "if:red", IfName: "red"},
	}
	unread := map[string]error{"bond0": errors.New("cannot be read")}
	for _, c := range []struct {
		name    string
		uplinks inventory.Uplinks
		want    []string
	}{
		{"what cannot be read, and all below it", inventory.Uplinks{Unread: unread}, []string{"0000:01:00.0", "0000:01:00.1", "if:bond0"}},
		{"no route", inventory.Uplinks{}, nil},
		{"a route on nothing we have", inventory.Uplinks{Routes: []string{"wg0", ""}}, nil},
		{"a card", inventory.Uplinks{Routes: []string{"p2"}}, []string{"0000:02:00.0"}},
		{"not the virtual functions of a PF", inventory.Uplinks{Routes: []string{"pf"}}, []string{"0000:03:00.0"}},
		{"a representor cannot leave its PF", inventory.Uplinks{Routes: []string{"pf0vf0"}}, []string{"0000:03:00.0"}},
		{"everything below a bond, nothing beside it", inventory.Uplinks{Routes: []string{"bond0"}}, []string{"0000:01:00.0", "0000:01:00.1", "if:bond0"}},
		{"below a VLAN, and its master, but not the other VLAN", inventory.Uplinks{Routes: []string{"bond0.5"}}, []string{"0000:01:00.0", "0000:01:00.1", "if:bond0", "if:bond0.5", "if:red"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := fmt.Sprintf("%+v", bond)
			var have []string
			for _, d := range inventory.GuardUplinks(bond, c.uplinks) {
				if d.Uplink() {
					have = append(have, d.ID)
				}
			}
			if diff := cmp.Diff(c.want, have); diff != "" {
				t.Errorf("guarded (-want +have):\n%s", diff)
			}
			if fmt.Sprintf("%+v", bond) != before {
				t.Error("the argument was changed")
			}
		})
	}
}

// FuzzDiscover writes odd contents into one file of a good tree. The other
// devices must come out as before, and nothing may panic.
func FuzzDiscover(f *testing.F) {
	archive, err := txtar.ParseFile("testdata/tree/mlx5.txtar")
	if err != nil {
		f.Fatal(err)
	}
	good := fstest.MapFS{}
	var files []string
	for _, a := range archive.Files {
		name, target, link := strings.Cut(a.Name, " -> ")
		switch {
		case link:
			good[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
		case strings.HasSuffix(name, "/"):
			good[strings.TrimSuffix(name, "/")] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
			continue
		default:
			good[name] = &fstest.MapFile{Data: a.Data}
		}
		files = append(files, name)
	}
	slices.Sort(files) // a fuzz input is a number of one
	want, err := inventory.Discover(good, inventory.Options{})
	if err != nil {
		f.Fatal(err)
	}
	seeded := map[string]bool{}
	for i, file := range files {
		if seeded[path.Base(file)] {
			continue // one file of each kind is enough to start from
		}
		seeded[path.Base(file)] = true
		for _, odd := range []string{"", "\n", "-1", "0x", "99999999999999999999", "../../..", "../../devices/virtual/net/x", "\x00\xff", "0x020000"} {
			f.Add(i, []byte(odd))
		}
	}
	f.Fuzz(func(t *testing.T, i int, odd []byte) {
		file := files[uint(i)%uint(len(files))]
		tree := maps.Clone(good)
		tree[file] = &fstest.MapFile{Data: odd, Mode: good[file].Mode}
		have, _ := inventory.Discover(tree, inventory.Options{})
		for _, d := range have {
			inventory.Attributes(d)
			if len(d.Name) > 63 {
				t.Errorf("name %q is no DNS label", d.Name)
			}
		}
		if strings.Contains(file, "0000:03:0") { // one PF's file may change its virtual functions
			have = slices.DeleteFunc(have, func(d inventory.Device) bool { return strings.HasPrefix(d.ID, "0000:03:") })
			for _, d := range want {
				if d.ID == "0000:41:00.0" && !slices.ContainsFunc(have, func(h inventory.Device) bool { return cmp.Equal(h, d) }) {
					t.Errorf("%s = %q: device %q is gone or differs", file, odd, d.ID)
				}
			}
		}
	})
}

// TestSoftwareRDMA: which software RDMA device is on an interface of the host is not decided by
// the names in sysfs, which contains devices of all network namespaces.
func TestSoftwareRDMA(t *testing.T) {
	n := open(t, "stack")
	of := func() (map[string][]string, error) {
		out := map[string][]string{}
		found, err := inventory.Discover(n.tree, n.opt)
		for _, d := range found {
			if d.RDMA || len(d.RDMADevices) > 0 {
				out[d.IfName] = d.RDMADevices
			}
		}
		return out, err
	}
	var asked [][]string
	var unreadable error
	n.opt.RDMANetdevs = func(names []string) (map[string]string, error) {
		asked = append(asked, names)
		return map[string]string{"rxe0": "enp3s0f0v0", "other": "dummy0"}, unreadable
	}
	for _, failure := range []error{nil, errors.New("not all could be read")} {
		unreadable = failure
		have, err := of()
		if !errors.Is(err, failure) || len(have) != 1 || len(have["enp3s0f0v0"]) != 1 || have["enp3s0f0v0"][0] != "rxe0" {
			t.Errorf("%v, %v", have, err)
		}
	}
	if want := []string{"rxe0", "rxe1"}; len(asked) != 2 || !slices.Equal(asked[0], want) {
		t.Errorf("asked for %q, want once for each scan for %q", asked, want)
	}
	n = open(t, "mlx5")
	n.opt.RDMANetdevs = func([]string) (map[string]string, error) {
		t.Error("asked for devices that have a PCI function")
		return nil, nil
	}
	if have, err := of(); len(have) == 0 || err != nil {
		t.Errorf("devices with a function: %v, %v", have, err)
	}
	for file, want := range map[string]string{"Y\n": inventory.RDMAShared, "N\n": inventory.RDMAExclusive, "": ""} {
		if err := os.WriteFile(filepath.Join(n.dir, "module/ib_core/parameters/netns_mode"), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		found, err := inventory.Discover(n.tree, n.opt)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range found {
			a := inventory.Attributes(d)[inventory.AttrRDMANetns]
			if want == "" || !d.RDMA {
				if a.StringValue != nil {
					t.Errorf("netns_mode %q, device %q: %q", file, d.Name, *a.StringValue)
				}
			} else if a.StringValue == nil || *a.StringValue != want {
				t.Errorf("netns_mode %q, device %q: %v, want %q", file, d.Name, a.StringValue, want)
			}
		}
	}
}

// TestRDMABelow: a bond and a VLAN have the RDMA device of the hardware below them, if it is one: mlx5 merges those of the ports of a bond
// (mlx5_bond_0, a child of the first port's function). A bridge has none, as RoCE does not pass it.
func TestRDMABelow(t *testing.T) {
	n := open(t, "stack")
	virtual := func() map[string]string {
		out := map[string]string{}
		found, err := inventory.Discover(n.tree, n.opt)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range found {
			if d.RDMA && d.Kind == inventory.KindVirtual {
				out[d.IfName] = strings.Join(d.RDMADevices, " ")
			}
		}
		return out
	}
	add := func(function, name string) {
		dir := "devices/pci0000:00/0000:00:07.0/" + function + "/infiniband/" + name
		if err := os.MkdirAll(filepath.Join(n.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../"+dir, filepath.Join(n.dir, "class/infiniband", name)); err != nil {
			t.Fatal(err)
		}
	}
	before := virtual() // of the dummy, in software
	add("0000:02:00.0", "mlx5_2")
	if got := virtual(); !maps.Equal(got, before) {
		t.Errorf("with a port of a bridge: %v, want %v", got, before)
	}
	add("0000:02:10.0", "mlx5_bond_0")
	want := maps.Clone(before)
	want["bond0"], want["bond0.100"] = "mlx5_bond_0", "mlx5_bond_0"
	if got := virtual(); !maps.Equal(got, want) {
		t.Errorf("with a merged RDMA device: %v, want %v", got, want)
	}
	add("0000:02:10.2", "mlx5_1")
	if got := virtual(); !maps.Equal(got, before) {
		t.Errorf("with two RDMA devices: %v, want %v", got, before)
	}
}

// TestRDMAOnly: an RDMA device is a device of its own if no interface belongs to it in any namespace. With IPoIB one of InfiniBand has one,
// and a port that cannot be read may have one.
func TestRDMAOnly(t *testing.T) {
	n := open(t, "rdma")
	only := func() (out []string) {
		found, err := inventory.Discover(n.tree, n.opt)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range found {
			typ := inventory.Attributes(d)[inventory.AttrType].StringValue
			if d.RDMAOnly != (*typ == inventory.TypeRDMA) {
				t.Errorf("%s: type %q", d.ID, *typ)
			}
			if d.RDMAOnly {
				out = append(out, d.ID)
			}
		}
		return out
	}
	if got := strings.Join(only(), " "); got != "0000:00:05.0 0000:00:06.0" {
		t.Errorf("without IPoIB: %s", got)
	}
	if err := os.MkdirAll(filepath.Join(n.dir, "module/ib_ipoib"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(only(), " "); got != "0000:00:05.0" {
		t.Errorf("with IPoIB: %s", got)
	}
	if err := os.Remove(filepath.Join(n.dir, "devices/pci0000:00/0000:00:05.0/infiniband/rdmap0s5/ports/1/link_layer")); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(only(), " "); got != "" {
		t.Errorf("with an unknown port: %s", got)
	}
}
