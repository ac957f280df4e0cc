package draplugin_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// sharing shares the first device between macvlan steps, of which the topology has two.
func sharing(t *testing.T) *given {
	g := newGiven(t)
	for i := range g.topology.Spec.Steps {
		s := &g.topology.Spec.Steps[i]
		s.Type, s.Selector = "macvlan", nil
	}
	g.devices[0].HostUse = inventory.DefaultRoute
	g.devices[0].Exposure = inventory.Exposure{Policy: "p", Verdict: inventory.Exposed, Sharing: &inventory.Sharing{Suffix: "-x", By: []string{"macvlan"}}}
	return g
}

// shares is a claim with these shares of the first device; "" is none, as from a scheduler
// without shares.
func shares(uid types.UID, pod types.UID, ids ...string) *resourceapi.ResourceClaim {
	rc := allocated(uid, pod, slices.Repeat([]string{"0-x"}, len(ids))...)
	for i, id := range ids {
		if id != "" {
			rc.Status.Allocation.Devices.Results[i].ShareID = new(types.UID(id))
		}
	}
	return rc
}

// TestShares holds that claims have shares of one device beside each other, also two of
// one claim, that the share identifies each, and that the end of one leaves the others.
func TestShares(t *testing.T) {
	g := sharing(t)
	first, second := shares("c1", "p1", "s1", "s2"), shares("c2", "p2", "s3", "s4")
	for _, rc := range []*resourceapi.ResourceClaim{first, second, first} {
		devices, err := g.prepare(rc)
		if err != nil || len(devices) != 2 {
			t.Fatal(err, devices)
		}
		for i, d := range devices {
			want := rc.Status.Allocation.Devices.Results[i].ShareID
			a := d.Metadata.Attributes
			if d.ShareID == nil || *d.ShareID != *want || *a["shareID"].StringValue != string(*want) || *a["sharedBy"].StringValue != "macvlan" || d.DeviceName != "pci-0000-03-10-0-x" {
				t.Errorf("device %+v, want share %s", d, *want)
			}
		}
	}
	g.in("c1", "p1", claims.Attached)
	e, _, err := g.store.Get("c1")
	if err != nil {
		t.Fatal(err)
	}
	boxes, err := e.Sandboxes("s", "/netns")
	if err != nil {
		t.Fatal(err)
	}
	for step, want := range map[string]string{"vf0": "s1", "vf1": "s2"} {
		if have := boxes[0].Given[step]; have.Share != want || have.Device != "0000:03:10.0" {
			t.Errorf("step %s is given %+v", step, have)
		}
	}
	out, err := g.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "claim-c2"}, UID: "c2"}})
	if err != nil || out["c2"] != nil {
		t.Fatal(out, err)
	}
	used, err := g.store.InUse()
	if _, still := used["pci-0000-03-10-0-x"]; !still || err != nil {
		t.Errorf("in use %v, %v: the share of the other claim is forgotten", used, err)
	}
}

// TestWithdrawnShare: once no policy shares a device, nobody new gets a share of it, whatever taint the claim
// tolerates. Who has one keeps it, also when the kubelet asks again. While policies do not say what applies, the last
// word that was published counts.
func TestWithdrawnShare(t *testing.T) {
	inBubble(t, "withdrawn", func(t *testing.T) {
		g := sharing(t)
		shared := g.devices[0].Exposure
		first := shares("c1", "p1", "s1", "s2")
		if _, err := g.prepare(first); err != nil {
			t.Fatal(err)
		}
		const says = `device "pci-0000-03-10-0-x" was withdrawn: no policy shares it any more`
		for name, now := range map[string]inventory.Exposure{
			"policy deleted": {},
			"withheld":       {Policy: "p", Verdict: inventory.Withheld},
			"another suffix": {Policy: "p", Verdict: inventory.Exposed, Sharing: &inventory.Sharing{Suffix: "-y", By: []string{"macvlan"}}},
		} {
			g.devices[0].Exposure = now
			_, err := g.prepare(shares("c3", "p3", "s5", "s6"))
			if fault.Of(err) != fault.NotReady || !strings.Contains(fmt.Sprint(err), says) {
				t.Errorf("%s: a claim that is prepared afterwards: %v", name, err)
			}
			if _, err := g.prepare(first); err != nil {
				t.Errorf("%s: a claim that has a share: %v", name, err)
			}
		}
		g.devices[0].Exposure = inventory.Exposure{Verdict: inventory.Undecided}
		g.withdrawnDevices = map[string]bool{"pci-0000-03-10-0-x": true}
		if _, err := g.prepare(shares("c4", "p4", "s7", "s8")); !strings.Contains(fmt.Sprint(err), says) {
			t.Errorf("undecided, and published as withdrawn: %v", err)
		}
		g.withdrawnDevices = nil
		if _, err := g.prepare(shares("c4", "p4", "s7", "s8")); err != nil {
			t.Errorf("undecided, and published as shared: %v", err)
		}
		g.devices[0].Exposure = shared
		if _, err := g.prepare(shares("c3", "p3", "s5", "s6")); err != nil {
			t.Errorf("shared again: %v", err)
		}
	})
}

// TestShareRefused holds that a shared device is neither moved nor allocated as a whole.
func TestShareRefused(t *testing.T) {
	whole := func() *resourceapi.ResourceClaim { return allocated("c2", "p2", "0", "1") }
	for _, c := range []struct {
		name   string
		change func(g *given)
		held   bool // another claim has a share
		claim  *resourceapi.ResourceClaim
		kind   fault.Kind
		text   string
	}{
		{"a step that moves it", func(g *given) { g.topology.Spec.Steps[1].Type = "sriov" }, false, shares("c2", "p2", "s1", "s2"), fault.Invalid, `device "pci-0000-03-10-0-x" is shared, and step "vf1"`},
		{"a step that moves it, without a share", func(g *given) { g.topology.Spec.Steps[1].Type = "sriov" }, false, shares("c2", "p2", "", ""), fault.Invalid, `is shared, and step "vf1"`},
		{"a type that is not supported", func(g *given) { g.topology.Spec.Steps[1].Type = "ipvlan" }, false, shares("c2", "p2", "s1", "s2"), fault.Invalid, `is of type "ipvlan": name that in supportedCNIPlugins of policy "p"`},
		{"the whole, while others have shares", func(g *given) { g.devices[0].HostUse = "" }, true, whole(), fault.Conflict, `is still in use by another pod`},
		{"no share, while others have shares", func(*given) {}, true, shares("c2", "p2", "", ""), fault.Conflict, `is still in use by another pod`},
		{"an address that the host has no more", func(g *given) {
			g.topology.Spec.Steps[1].Config = &runtime.RawExtension{Raw: []byte(`{"masterNet":"10.0.1.0/24"}`)}
			g.devices[0].Networks = []netip.Prefix{netip.MustParsePrefix("10.0.1.0/25")}
		}, false, shares("c2", "p2", "s1", "s2"), fault.NotReady, `has no address in "10.0.1.0/24", which is the masterNet of step "vf1"`},
		{"the whole of an uplink", func(*given) {}, false, whole(), fault.Conflict, "used by the node itself (default route)"},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			g := sharing(t)
			if c.held {
				held := shares("c1", "p1", "s8", "s9")
				g.claims["claim-c1"] = held
				if _, err := g.prepare(held); err != nil {
					t.Fatal(err)
				}
			}
			c.change(g)
			g.refused(c.claim, c.kind, c.text)
		})
	}
}

// TestSharedName holds that a selector sees a recorded device as it was allocated.
func TestSharedName(t *testing.T) {
	g := sharing(t)
	g.topology.Spec.Steps[0].Selector = &v1alpha1.Selector{CEL: `device.allowMultipleAllocations && device.capacity["dra.networking"].shares.isGreaterThan(quantity("1"))`}
	g.topology.Generation++ // so that the selector is evaluated again
	if _, err := g.prepare(shares("c1", "p1", "s1", "s2")); err != nil {
		t.Error(err)
	}
}

// TestSharesOfOneKind holds that no pod changes, or is refused by, the links of another
// on a device that both share: with a passthru macvlan, ipvlan beside macvlan, or another
// mode, the second to come waits for the first.
func TestSharesOfOneKind(t *testing.T) {
	type steps struct{ typ, config string }
	for _, c := range []struct {
		name          string
		first, second steps
		text          string
	}{
		{"alike", steps{"ipvlan", `{"mode":"l2"}`}, steps{"ipvlan", `{}`}, ""},
		{"macvlan in other modes", steps{"macvlan", `{"mode":"vepa"}`}, steps{"macvlan", `{}`}, ""},
		{"another mode", steps{"ipvlan", `{"mode":"l3"}`}, steps{"ipvlan", `{}`}, "carries ipvlan links of mode l3 and flag bridge of another pod, and this one would have ipvlan links of mode l2 and flag bridge"},
		{"another flag", steps{"ipvlan", `{}`}, steps{"ipvlan", `{"flag":"private"}`}, "would have ipvlan links of mode l2 and flag private"},
		{"another type", steps{"macvlan", `{}`}, steps{"ipvlan", `{}`}, "carries macvlan links of another pod"},
		{"passthru", steps{"macvlan", `{}`}, steps{"macvlan", `{"mode":"passthru"}`}, "a macvlan link of mode passthru, which uses the device exclusively"},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			g := sharing(t)
			g.devices[0].Exposure.Sharing.By = nil
			as := func(s steps) {
				o := g.topology.DeepCopy()
				o.Spec.Steps = []v1alpha1.Step{{Name: "vf0", Type: s.typ, Config: &runtime.RawExtension{Raw: []byte(s.config)}}}
				g.topology = o
			}
			as(c.first)
			held := shares("c1", "p1", "s1")
			g.claims["claim-c1"] = held
			if _, err := g.prepare(held); err != nil {
				t.Fatal(err)
			}
			as(c.second)
			if next := shares("c2", "p2", "s2"); c.text != "" {
				g.refused(next, fault.Conflict, c.text)
			} else if _, err := g.prepare(next); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFunctionsAsShares: a claim with a share of a PF gets a function of it, which is
// recorded before it is returned to the kubelet, and which no other claim gets; its share
// of the bandwidth limits the function.
func TestFunctionsAsShares(t *testing.T) { synctest.Test(t, testFunctionsAsShares) }

func testFunctionsAsShares(t *testing.T) {
	g := newGiven(t)
	g.topology.Spec.Steps = []v1alpha1.Step{{Name: "vf0", Type: "sriov", Selector: &v1alpha1.Selector{CEL: `device.attributes["dra.networking"].type == "pf"`}}}
	pf := inventory.Device{ID: "0000:03:00.0", Name: "pci-0000-03-00-0", Kind: inventory.KindPF, IfName: "enp3s0f0", NumVFs: 3, HostUse: inventory.DefaultRoute}
	pf.Exposure.Sharing = &inventory.Sharing{Suffix: "-f", By: []string{"sriov"}, Functions: true}
	g.devices = append(g.devices, pf)
	g.devices[1].HostUse = inventory.BondPort // of the function 1: the host uses it
	part := func(uid, pod types.UID, bandwidth string) *resourceapi.ResourceClaim {
		rc := shares(uid, pod, "share-"+string(uid))
		r := &rc.Status.Allocation.Devices.Results[0]
		r.Device = pf.Name + "-f"
		if bandwidth != "" {
			r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"bandwidth": resource.MustParse(bandwidth)}
		}
		return rc
	}
	first, second, third := part("c1", "p1", "3G"), part("c2", "p2", ""), part("c3", "p3", "1M")
	for range 2 {
		for rc, want := range map[*resourceapi.ResourceClaim]ops.Given{
			first:  {Device: "0000:03:10.0", Share: "share-c1", MaxTxRate: 3000},
			second: {Device: "0000:03:10.2", Share: "share-c2"},
		} {
			if rc == second {
				if _, err := g.prepare(first); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := g.prepare(rc); err != nil {
				t.Fatal(err)
			}
			e, _, err := g.store.Get(rc.UID)
			if err != nil {
				t.Fatal(err)
			}
			boxes, err := e.Sandboxes("s", "/netns")
			if err != nil || !reflect.DeepEqual(boxes[0].Given["vf0"], want) {
				t.Errorf("claim %s: %v, given %+v, want %+v", rc.UID, err, boxes[0].Given["vf0"], want)
			}
		}
	}
	g.refused(third, fault.NotReady, `device "pci-0000-03-00-0-f" has no free virtual function now`)
	if err := g.store.Remove("c2"); err != nil {
		t.Fatal(err)
	}
	g.devices[3].Exposure = inventory.Exposure{} // the policy is withdrawn
	g.refused(third, fault.NotReady, `device "pci-0000-03-00-0-f" was withdrawn`)
	g.devices[3].Exposure = inventory.Exposure{Verdict: inventory.Undecided} // or not known yet
	devices, err := g.prepare(third)
	if err != nil {
		t.Fatal(err)
	}
	if a := devices[0].Metadata.Attributes; *a["bandwidth"].IntValue != 1_000_000 || *a["type"].StringValue != "vf" || *a["shareID"].StringValue != "share-c3" {
		t.Errorf("metadata %+v", a)
	}

	// Slices of an earlier version let a claim ask for nothing, and a function without a
	// rate has no limit.
	g.devices[3].Exposure = pf.Exposure
	g.devices[3].Exposure.Sharing.Capacity = map[string]resourceapi.DeviceCapacity{"bandwidth": {Value: resource.MustParse("10G")}}
	g.refused(part("c5", "p5", "0"), fault.Invalid, "has no bandwidth")

	g.topology.Spec.Steps[0].Selector = nil
	whole := allocated("c4", "p4", "0") // which c1 has
	g.claims["claim-c1"] = first
	g.refused(whole, fault.Conflict, "is still in use by another pod")

	// The policy offers the PF as a whole, too, and the scheduler has not seen the counters.
	g.topology.Spec.Steps[0].Type = "host-device"
	g.devices[3].HostUse = ""
	whole.Status.Allocation.Devices.Results[0].Device = pf.Name
	g.refused(whole, fault.Conflict, "is still in use by another pod")
}

// TestFunctionsNotChosen holds that no claim gets a function that would not be offered by its
// own name, nor one that a record of another version mentions.
func TestFunctionsNotChosen(t *testing.T) {
	g := newGiven(t)
	g.topology.Spec.Steps = g.topology.Spec.Steps[1:]
	g.topology.Spec.Steps[0].Name = "vf0"
	pf := inventory.Device{ID: "0000:03:00.0", Name: "pci-0000-03-00-0", Kind: inventory.KindPF, IfName: "enp3s0f0", NumVFs: 3}
	pf.Exposure.Sharing = &inventory.Sharing{Suffix: "-f", By: []string{"sriov"}, Functions: true}
	g.devices = append(g.devices, pf)
	g.Unfit = func([]inventory.Device) map[string]string { return map[string]string{"0000:03:10.0": "dirty"} }
	held := allocated("c1", "p1", "1")
	if _, err := g.prepare(held); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(g.store.Dir, "c1.claim")
	record, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append([]byte("3"), record[1:]...), 0o600); err != nil {
		t.Fatal(err)
	}
	part := shares("c2", "p2", "s1")
	part.Status.Allocation.Devices.Results[0].Device = pf.Name + "-f"
	if _, err := g.prepare(part); err != nil {
		t.Fatal(err)
	}
	if e, _, err := g.store.Get("c2"); err != nil || e.Topologies[0].Devices[0].Host.ID != "0000:03:10.2" {
		t.Errorf("%v: given %+v", err, e.Topologies)
	}
}
