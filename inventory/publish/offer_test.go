package publish

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/sysfstest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func discover(t *testing.T, tree string, routes ...string) []inventory.Device {
	t.Helper()
	devices, _ := inventory.Discover(sysfstest.Open(t, "../testdata/tree/"+tree+".txtar"), inventory.Options{})
	if len(devices) == 0 {
		t.Fatalf("no devices in %s", tree)
	}
	return inventory.GuardUplinks(devices, inventory.Uplinks{Routes: routes})
}

// TestOffer shows for whole machines what is offered, and why the rest is not.
func TestOffer(t *testing.T) {
	for tree, routes := range map[string][]string{
		"igb": {"enp3s0f0"}, "stack": {"bond0.100"}, "mlx5": nil, "ovn": {"br-ex"}, "others": {"eth0"}, "broken": nil,
	} {
		t.Run(tree, func(t *testing.T) {
			devices := discover(t, tree, routes...)
			offered, withheld := known{devices: devices, down: down(devices)}.offer()
			var b bytes.Buffer
			for _, e := range offered {
				fmt.Fprintf(&b, "%s\n", e.Device.Name)
				for _, name := range slices.Sorted(maps.Keys(e.Device.Attributes)) {
					fmt.Fprintf(&b, "  %s: %s\n", name, value(e.Device.Attributes[name]))
				}
				for _, taint := range e.Device.Taints {
					fmt.Fprintf(&b, "  taint %s: %s\n", taint.Key, taint.Effect)
				}
			}
			for _, w := range withheld {
				fmt.Fprintf(&b, "- %s: %s\n", w.Name, w.Reason)
			}
			if len(offered)+len(withheld) != len(devices) {
				t.Errorf("%d devices became %d offered and %d withheld", len(devices), len(offered), len(withheld))
			}
			golden(t, "testdata/"+tree+".txt", b.Bytes())
		})
	}
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

func golden(t *testing.T, file string, have []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, have, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s\nhave\n%s\nwant\n%s", file, have, want)
	}
}

func vf(i int) inventory.Device {
	return inventory.Device{
		ID: fmt.Sprintf("0000:%02x:00.1", i), Name: fmt.Sprintf("pci-0000-%02x-00-1", i), Kind: inventory.KindVF,
		IfName: fmt.Sprintf("v%d", i), LinkType: inventory.Ethernet, PF: &inventory.PF{PCIAddress: "0000:ff:00.0", IfName: "pf0"},
	}
}

// A device whose interface cannot be read costs nobody but itself, also when it was
// published before and is in use.
func TestUnreadDevice(t *testing.T) {
	all := []inventory.Device{vf(1), vf(2), vf(3)}
	offered, _ := known{devices: all}.offer()
	before := map[string]entry{}
	for _, e := range offered {
		before[e.Device.Name] = e
	}
	unread := inventory.GuardUplinks(all, inventory.Uplinks{Unread: map[string]error{"v2": errors.New("message too long")}})
	for _, inUse := range []map[string]bool{nil, {all[1].Name: true}} {
		offered, withheld := known{devices: unread, inUse: inUse, before: before}.offer()
		if len(offered) != 2 || len(withheld) != 1 || withheld[0].Name != all[1].Name || withheld[0].Reason != string(inventory.Unread) {
			t.Errorf("in use %v: %d offered, withheld %v", inUse, len(offered), withheld)
		}
	}
}

func TestSplit(t *testing.T) {
	for count, want := range map[int][]int{0: {0}, 1: {1}, 64: {64}, 65: {64, 1}, 129: {64, 64, 1}} {
		var devices []inventory.Device
		for i := range count {
			devices = append(devices, vf(i))
		}
		offered, _ := known{devices: devices}.offer()
		var have []int
		names := map[string]bool{}
		for _, s := range pools("n", offered).Pools["n"].Slices {
			have = append(have, len(s.Devices))
			for _, d := range s.Devices {
				names[d.Name] = true
			}
		}
		if !slices.Equal(have, want) || len(names) != count {
			t.Errorf("%d devices: slices of %v with %d names, want %v", count, have, len(names), want)
		}
	}
}

// expecting is a device of which a policy expects a neighbour, and not this one.
func expecting(d inventory.Device, n *inventory.Neighbour) inventory.Device {
	d.Neighbour, d.Exposure.Expects = n, true
	if n != nil {
		d.Exposure.Miswired = "why"
	}
	return d
}

func withTaint(before map[string]entry, key string) map[string]entry {
	out := map[string]entry{}
	for name, e := range before {
		e.Device.Taints = taints(key)
		out[name] = e
	}
	return out
}

func TestInUse(t *testing.T) {
	before := vf(1)
	before.RDMA = true
	published := map[string]entry{before.Name: {before.ID, resourceapi.Device{Name: before.Name, Attributes: inventory.Attributes(before)}}}
	away := before
	away.IfName, away.RDMA = "", false

	attributes := func(k known) (string, []string) {
		offered, _ := k.offer()
		if len(offered) == 0 {
			return "", nil
		}
		var keys []string
		for _, taint := range offered[0].Device.Taints {
			keys = append(keys, taint.Key)
		}
		return value(offered[0].Device.Attributes["ifName"]) + value(offered[0].Device.Attributes["rdma"]), keys
	}
	inUse := map[string]bool{before.Name: true}
	guarded := before
	guarded.HostUse = inventory.DefaultRoute
	virtual := inventory.Device{ID: "if:usb0", Name: "net-usb0"}
	for _, c := range []struct {
		name       string
		k          known
		want       string
		wantTaints []string
	}{
		{"free", known{devices: []inventory.Device{before}, before: published}, `"v1"true`, nil},
		{"in a pod", known{devices: []inventory.Device{away}, inUse: inUse, before: published}, `"v1"true`, nil},
		{"in a pod, and the file is lost", known{devices: []inventory.Device{away}, inUse: inUse}, `""false`, nil},
		{"in a pod nobody knows of", known{devices: []inventory.Device{away}, before: published}, "", nil},
		{"unplugged in a pod", known{inUse: inUse, before: published}, `"v1"true`, []string{TaintGone}},
		{"a card of no PCI address in a pod", known{inUse: map[string]bool{"net-usb0": true}, before: map[string]entry{
			"net-usb0": {virtual.ID, resourceapi.Device{Name: "net-usb0", Attributes: inventory.Attributes(before)}},
		}}, `"v1"true`, nil},
		{"in a pod, and somebody has edited the file", known{inUse: map[string]bool{"net-usb0": true}, before: map[string]entry{
			"net-usb0": {virtual.ID, resourceapi.Device{Name: "net-usb0"}},
		}}, "??", nil},
		{"in use of a claim, and then of the host", known{devices: []inventory.Device{guarded}, inUse: inUse, before: published}, "", nil},
		{"dirty", known{devices: []inventory.Device{before}, dirty: map[string]string{before.ID: "why"}}, `"v1"true`, []string{TaintDirty}},
		{"miswired", known{devices: []inventory.Device{expecting(before, &inventory.Neighbour{Switch: "leaf-2"})}}, `"v1"true`, []string{TaintMiswired}},
		{"miswired before, and now unknown", known{devices: []inventory.Device{expecting(before, nil)}, before: withTaint(published, TaintMiswired)}, `"v1"true`, []string{TaintMiswired}},
		{"unknown", known{devices: []inventory.Device{expecting(before, nil)}, before: published}, `"v1"true`, nil},
		{"dirty and dead", known{devices: []inventory.Device{before}, dirty: map[string]string{before.ID: "why"}, down: inUse}, `"v1"true`, []string{TaintDirty, TaintLinkDown}},
		{"dirty, and the cluster has no taints", known{devices: []inventory.Device{before}, dirty: map[string]string{before.ID: "why"}, plain: true}, "", nil},
		{"dead in use, and the cluster has no taints", known{devices: []inventory.Device{before}, down: inUse, inUse: inUse, plain: true}, `"v1"true`, nil},
	} {
		have, taints := attributes(c.k)
		if have != c.want || !slices.Equal(taints, c.wantTaints) {
			t.Errorf("%s: have %s %v, want %s %v", c.name, have, taints, c.want, c.wantTaints)
		}
	}
}

// TestFailing holds the taints of a device that is down in a pod.
func TestFailing(t *testing.T) {
	d, since := vf(1), time.Unix(1_800_000_000, 0)
	for name, c := range map[string]struct {
		failing Failing
		want    resourceapi.DeviceTaint
	}{
		"degraded": {Failing{}, resourceapi.DeviceTaint{Key: TaintDegraded, Effect: resourceapi.DeviceTaintEffectNone}},
		"lost":     {Failing{Lost: true}, resourceapi.DeviceTaint{Key: TaintLost, Effect: resourceapi.DeviceTaintEffectNone}},
		"evicted":  {Failing{Lost: true, Evict: true}, resourceapi.DeviceTaint{Key: TaintLost, Effect: resourceapi.DeviceTaintEffectNoExecute}},
		"held":     {Failing{Lost: true, Held: true, Since: since}, resourceapi.DeviceTaint{Key: TaintLost, Effect: resourceapi.DeviceTaintEffectNoSchedule, TimeAdded: &metav1.Time{Time: since}}},
	} {
		k := known{devices: []inventory.Device{d}, failing: map[string]Failing{d.Name: c.failing}, down: map[string]bool{d.Name: true}}
		offered, _ := k.offer()
		if len(offered) != 1 || len(offered[0].Device.Taints) != 2 || !reflect.DeepEqual(offered[0].Device.Taints[1], c.want) {
			t.Errorf("%s: %+v", name, offered)
		}
		if have, ok := offered[0].failing(); ok != (c.failing.Evict || c.failing.Held) || ok && have != c.failing {
			t.Errorf("%s: another agent reads %+v, %t", name, have, ok)
		}
		k = known{devices: []inventory.Device{d}, failing: k.failing, plain: true}
		if offered, _ := k.offer(); len(offered) != 1 || len(offered[0].Device.Taints) != 0 {
			t.Errorf("%s, on a cluster without taints: %+v", name, offered)
		}
	}
}

// TestPolicies holds the effect of a policy's verdict on a device: what a pod has
// is not withdrawn from under it, and an undecided device stays as it was.
func TestPolicies(t *testing.T) {
	is := func(e inventory.Exposure, change ...func(*inventory.Device)) inventory.Device {
		d := vf(1)
		d.Exposure = e
		for _, c := range change {
			c(&d)
		}
		return d
	}
	earlier := vf(1)
	earlier.Additional = map[string]string{"example.com/rail": "earlier"}
	before := map[string]entry{vf(1).Name: {vf(1).ID, resourceapi.Device{Name: vf(1).Name, Attributes: inventory.Attributes(earlier)}}}
	now := func(d *inventory.Device) { d.Additional = map[string]string{"example.com/rail": "now"} }
	inUse := map[string]bool{vf(1).Name: true}
	withheld := inventory.Exposure{Policy: "p", Verdict: inventory.Withheld}
	undecided := inventory.Exposure{Policy: "p", Verdict: inventory.Undecided, Reason: "why"}
	exposed := inventory.Exposure{Policy: "p", Verdict: inventory.Exposed}
	other := map[string]string{vf(1).ID: "k8s.ovn.org"}
	for name, c := range map[string]struct {
		k            known
		want, reason string // the attribute, or why it is withheld
	}{
		"exposed":                           {known{devices: []inventory.Device{is(exposed, now)}, before: before}, "now", ""},
		"withheld":                          {known{devices: []inventory.Device{is(withheld)}, before: before}, "", `policy "p" withholds it`},
		"withheld in use":                   {known{devices: []inventory.Device{is(withheld, now)}, before: before, inUse: inUse}, "earlier", ""},
		"undecided, and was offered":        {known{devices: []inventory.Device{is(undecided, now)}, before: before}, "earlier", ""},
		"undecided, and was not offered":    {known{devices: []inventory.Device{is(undecided)}}, "", `policy "p" could not be evaluated, so the device stays as it was: why`},
		"undecided, and an uplink by now":   {known{devices: []inventory.Device{is(undecided, func(d *inventory.Device) { d.HostUse = inventory.DefaultRoute })}, before: before}, "", "default route: the node's traffic uses it"},
		"exposed, and an uplink":            {known{devices: []inventory.Device{is(exposed, func(d *inventory.Device) { d.HostUse = inventory.DefaultRoute })}}, "", "default route: the node's traffic uses it"},
		"exposed, and the host's bond port": {known{devices: []inventory.Device{is(exposed, func(d *inventory.Device) { d.HostUse, d.Master = inventory.BondPort, "b" })}}, "", "bond port of b"},
		"another driver's":                  {known{devices: []inventory.Device{is(exposed)}, others: other}, "", `driver "k8s.ovn.org" publishes it on this node, too: exclude it there, or name the driver in besideDrivers of a policy`},
		"another driver's in use":           {known{devices: []inventory.Device{is(exposed)}, others: other, inUse: inUse, before: before}, "earlier", ""},
		"beside another driver":             {known{devices: []inventory.Device{is(inventory.Exposure{Policy: "p", Verdict: inventory.Exposed, BesideDrivers: []string{"k8s.ovn.org"}}, now)}, others: other}, "now", ""},
		"with an attribute of other nodes":  {known{devices: []inventory.Device{is(inventory.Exposure{})}, attributes: []string{"example.com/rail"}}, "", ""},
	} {
		offered, not := c.k.offer()
		switch {
		case c.reason != "":
			if len(offered) != 0 || len(not) != 1 || not[0].Reason != c.reason {
				t.Errorf("%s: offered %v, withheld %v, want %s", name, offered, not, c.reason)
			}
		case len(offered) != 1 || len(not) != 0:
			t.Errorf("%s: offered %v, withheld %v", name, offered, not)
		default:
			if a, ok := offered[0].Device.Attributes["example.com/rail"]; !ok || *a.StringValue != c.want {
				t.Errorf("%s: attributes %v, want %q", name, offered[0].Device.Attributes, c.want)
			}
		}
	}
	if a := before[vf(1).Name].Device.Attributes["example.com/rail"]; len(before[vf(1).Name].Device.Attributes) == 0 || *a.StringValue != "earlier" {
		t.Error("what was published before is changed")
	}
}

func TestObstacles(t *testing.T) {
	pf := inventory.Device{ID: "0000:ff:00.0", Name: "pci-0000-ff-00-0", Kind: inventory.KindPF, IfName: "pf0", LinkType: inventory.Ethernet}
	with := func(change func(*inventory.Device)) inventory.Device {
		d := pf
		change(&d)
		return d
	}
	for _, c := range []struct {
		d    inventory.Device
		want string
	}{
		{pf, ""},
		{with(func(d *inventory.Device) { d.NumVFs = 2 }), "has 2 virtual functions"},
		{with(func(d *inventory.Device) { d.Uppers = []string{"pf0.7"} }), "carries pf0.7"},
		{with(func(d *inventory.Device) {
			d.Uppers, d.Master, d.HostUse = []string{"br0"}, "br0", inventory.BridgePort
		}), "bridge port of br0"},
		{with(func(d *inventory.Device) { d.DevType = "wlan" }), "neither Ethernet"},
		{with(func(d *inventory.Device) { d.LinkType = "" }), "neither Ethernet"},
		{with(func(d *inventory.Device) { d.IfName, d.Driver = "", "vfio-pci" }), "userspace"},
		{with(func(d *inventory.Device) { d.Kind = inventory.KindVirtual }), "virtual"},
		{with(func(d *inventory.Device) { d.HostUse = inventory.DefaultRoute }), "default route"},
		{vf(1), ""},
	} {
		have := obstacle(c.d, nil)
		if (have == "") != (c.want == "") || !strings.HasPrefix(have, c.want) {
			t.Errorf("%+v: have %q, want %q", c.d, have, c.want)
		}
	}
	// Virtual functions that were made while a pod has their PF.
	_, withheld := known{devices: []inventory.Device{pf, vf(1)}, inUse: map[string]bool{pf.Name: true}}.offer()
	if len(withheld) != 1 || withheld[0].Name != vf(1).Name {
		t.Errorf("a VF of a PF in use: withheld %v", withheld)
	}
}

func TestInvalid(t *testing.T) {
	long := strings.Repeat("x", 65)
	many := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	for i := range 33 {
		many[resourceapi.QualifiedName(fmt.Sprintf("a%d", i))] = resourceapi.DeviceAttribute{BoolValue: new(true)}
	}
	for _, d := range []resourceapi.Device{
		{Name: "Not_a_label"},
		{Name: "a", Attributes: many},
		{Name: "a", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"a": {StringValue: &long}}},
	} {
		if invalid(d) == "" {
			t.Errorf("%s with %d attributes is taken for valid", d.Name, len(d.Attributes))
		}
	}
	// Text from a machine is made valid before.
	odd := vf(1)
	odd.IfName, odd.Driver, odd.Vendor = long, long, "\xff"
	if reason := invalid(resourceapi.Device{Name: odd.Name, Attributes: inventory.Attributes(odd)}); reason != "" {
		t.Error(reason)
	}
}

func TestDown(t *testing.T) {
	pf := inventory.Device{ID: "0000:ff:00.0", Name: "pf", IfName: "pf0", Kind: inventory.KindPF}
	for _, c := range []struct {
		name             string
		up, carrier, out bool
	}{
		{"nobody has set it up", false, false, false},
		{"set up and dead", true, false, true},
		{"set up and alive", true, true, false},
	} {
		pf.Up, pf.Carrier = c.up, c.carrier
		have := down([]inventory.Device{pf, vf(1)})
		if have["pf"] != c.out || have[vf(1).Name] != c.out {
			t.Errorf("%s: %v, want %v of both", c.name, have, c.out)
		}
	}
}
