package claims_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// open opens a store as another agent would.
func open(t testing.TB, dir, bootID string) *claims.Store {
	t.Helper()
	j, err := journal.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := claims.Open(claims.Options{Dir: filepath.Join(dir, "claims"), Locker: j, BootID: bootID})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func example(uid types.UID) claims.Claim {
	return claims.Claim{
		UID: uid, Namespace: "ns", Name: "c", Pod: claims.Pod{Name: "p", UID: "pod-" + uid},
		Prepared: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC),
		Topologies: []claims.Topology{{
			Object: v1alpha1.NetworkTopology{
				ObjectMeta: metav1.ObjectMeta{Name: "t", UID: "t-uid", Generation: 3},
				Spec: v1alpha1.NetworkTopologySpec{Steps: []v1alpha1.Step{{
					Name: "vf0", Type: "sriov", Config: &runtime.RawExtension{Raw: []byte(`{"vlan":9007199254740993}`)},
				}}},
			},
			Devices: []claims.Device{{
				Device: claim.Device{Step: "vf0", Request: "r", Pool: "n", Name: "pci-0000-03-10-0"},
				Host:   inventory.Device{ID: "0000:03:10.0", Name: "pci-0000-03-10-0", IfName: "enp3s0f0v0"},
			}},
		}},
	}
}

func get(t *testing.T, s *claims.Store, uid types.UID) claims.Entry {
	t.Helper()
	e, known, err := s.Get(uid)
	if err != nil || !known {
		t.Fatalf("Get(%q): known %t, %v", uid, known, err)
	}
	return e
}

func TestStore(t *testing.T) {
	dir := t.TempDir()
	one, other := open(t, dir, "boot"), open(t, dir, "boot") // two agents
	want := example("aa")
	if err := one.Put(want); err != nil {
		t.Fatal(err)
	}
	e := get(t, other, "aa")
	have, err := json.Marshal(e.Claim)
	wanted, wrong := json.Marshal(want)
	if err != nil || wrong != nil || !bytes.Equal(have, wanted) {
		t.Errorf("have %s %v\nwant %s %v", have, err, wanted, wrong)
	}
	e.Set(claims.Sandbox{ID: "s1", Netns: "/n", NetnsID: reconcile.NetnsID{Inode: 7}, Phase: claims.Attached})
	if err := other.PutSandboxes(e); err != nil {
		t.Fatal(err)
	}
	if e = get(t, one, "aa"); len(e.In) != 1 || e.In[0].Phase != claims.Attached || !e.Held() {
		t.Errorf("what the other agent wrote: %+v", e.In)
	}
	used, err := one.InUse()
	if err != nil || used["pci-0000-03-10-0"].IfName != "enp3s0f0v0" {
		t.Errorf("InUse: %v, %v", used, err)
	}
	if all, errs := one.List(); len(errs) > 0 || len(all) != 1 || all[0].Pod.UID != "pod-aa" {
		t.Errorf("List: %v, %v", all, errs)
	}

	// The next boot knows the claim, and no sandbox.
	if e = get(t, open(t, dir, "next"), "aa"); len(e.In) != 0 || e.Name != "c" {
		t.Errorf("after a reboot: %+v", e)
	}
	for range 2 {
		if err := one.Remove("aa"); err != nil {
			t.Error(err)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "claims")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, known, err := other.Get("aa"); known || err != nil {
		t.Errorf("removed, but known %t (%v)", known, err)
	}
}

// TestExactNumbers holds that the engine gets the pinned topology unchanged.
// TestWakes: who reads the claims of the node is woken when one is added or removed, and who reads their
// sandboxes when these are recorded. A claim that is only edited is no other claim.
func TestWakes(t *testing.T) {
	s := open(t, t.TempDir(), "boot")
	records, sandboxes := table.Woken(&s.Records), table.Woken(&s.Sandboxes)
	for _, step := range []struct {
		what               string
		do                 func() error
		records, sandboxes int
	}{
		{"added", func() error { return s.Put(example("aa")) }, 1, 0},
		{"edited", func() error { return s.Put(example("aa")) }, 0, 0},
		{"attached", func() error { return s.PutSandboxes(get(t, s, "aa")) }, 0, 1},
		{"removed", func() error { return s.Remove("aa") }, 1, 0},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if len(records) != step.records || len(sandboxes) != step.sandboxes {
			t.Errorf("%s: woken by %d, %d, want %d, %d", step.what, len(records), len(sandboxes), step.records, step.sandboxes)
		}
		for _, w := range []table.Wake{records, sandboxes} {
			select {
			case <-w:
			default:
			}
		}
	}
}

func TestExactNumbers(t *testing.T) {
	s := open(t, t.TempDir(), "boot")
	if err := s.Put(example("aa")); err != nil {
		t.Fatal(err)
	}
	e := get(t, s, "aa")
	sandboxes, err := e.Sandboxes("s1", "/netns")
	if err != nil || len(sandboxes) != 1 {
		t.Fatal(sandboxes, err)
	}
	sb := sandboxes[0]
	if sb.ID != "s1/aa/t" || sb.Netns != "/netns" || sb.Given["vf0"].Device != "0000:03:10.0" || sb.Topology.Generation != 3 {
		t.Errorf("sandbox %+v", sb)
	}
	if v := sb.Topology.Steps[0].Config["vlan"]; v != int64(9007199254740993) {
		t.Errorf("vlan is %T %v", v, v)
	}
}

func TestDamage(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(data string) string
	}{
		{"cut off", func(d string) string { return d[:len(d)/2] }},
		{"empty", func(string) string { return "" }},
		{"a bit", func(d string) string { return strings.Replace(d, "enp3s0f0v0", "enp3s0f0v1", 1) }},
		{"no version", func(d string) string { return "x" + d[1:] }},
		{"another claim's", func(d string) string { return d }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, "boot")
			for _, uid := range []types.UID{"aa", "bb"} {
				if err := s.Put(example(uid)); err != nil {
					t.Fatal(err)
				}
			}
			from, to := filepath.Join(dir, "claims", "aa.claim"), filepath.Join(dir, "claims", "aa.claim")
			if c.name == "another claim's" {
				from = filepath.Join(dir, "claims", "bb.claim")
			}
			data, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to, []byte(c.damage(string(data))), 0o600); err != nil {
				t.Fatal(err)
			}
			entries, errs := s.List()
			if len(entries) != 1 || entries[0].UID != "bb" || len(errs) != 1 {
				t.Errorf("listed %d with %v, want the other one and an error", len(entries), errs)
			}
			if set, err := s.Damaged(); err != nil || len(set) != 1 {
				t.Errorf("set aside: %v, %v", set, err)
			}
			if _, known, err := s.Get("aa"); known || err != nil {
				t.Errorf("known %t, %v: it is decided again", known, err)
			}
			if _, errs := s.List(); len(errs) != 0 {
				t.Errorf("told twice: %v", errs)
			}
		})
	}
}

// TestLostSandboxes holds that losing the file of sandboxes loses no claim.
func TestLostSandboxes(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, "boot")
	if err := s.Put(example("aa")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "claims", "aa.sandboxes"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if e := get(t, s, "aa"); len(e.In) != 0 {
		t.Errorf("sandboxes out of nothing: %v", e.In)
	}
}

func TestRemembersReleased(t *testing.T) {
	var e claims.Entry
	e.Set(claims.Sandbox{ID: "live", Phase: claims.Attached})
	for i := range 40 {
		e.Set(claims.Sandbox{ID: string(rune('A' + i)), Phase: claims.Released})
	}
	if len(e.In) != 17 || e.Sandbox("live") == nil || e.Sandbox(string(rune('A'+39))) == nil {
		t.Errorf("%d remembered: %v", len(e.In), e.In)
	}
}

// TestGiven holds that a claim's record keeps what steps are given, that each generation
// gets the values of its steps.
func TestGiven(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, "boot")
	c := example("aa")
	c.Topologies[0].Devices[0].ShareID = new(types.UID("3f"))
	c.Topologies[0].Given = ops.Givens{
		"vf0":  {Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.5/24")}},
		"tune": {Addresses: []netip.Prefix{netip.MustParsePrefix("2001:db8::5/64")}},
	}
	c.Topologies[0].Object.Spec.Steps = append(c.Topologies[0].Object.Spec.Steps, v1alpha1.Step{Name: "tune", Type: "tuning", DependOn: []string{"vf0"}})
	for _, given := range []ops.Givens{nil, c.Topologies[0].Given} {
		c.Topologies[0].Given = given
		if err := s.Put(c); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "claims", "aa.claim"))
		if err != nil || bytes.Contains(data, []byte(`"given"`)) != (given != nil) {
			t.Errorf("given %v, %v: %s", given, err, data)
		}
		e := get(t, s, "aa")
		next := claims.Pinned(&e.Topologies[0].Object)
		next.Spec.Steps, next.Generation = next.Spec.Steps[:1], next.Generation+1
		for _, o := range []*v1alpha1.NetworkTopology{&e.Topologies[0].Object, &next} {
			sb, err := e.SandboxOf(&e.Topologies[0], o, "s1", "/netns")
			want := ops.Givens{"vf0": {Device: "0000:03:10.0", Share: "3f", Addresses: given["vf0"].Addresses}}
			if len(o.Spec.Steps) > 1 && given != nil {
				want["tune"] = given["tune"]
			}
			if err != nil || !reflect.DeepEqual(sb.Given, want) {
				t.Errorf("given %+v, %v; want %+v", sb.Given, err, want)
			}
		}
	}
}

// TestDecodedOnce holds that the topologies of a claim are decoded when its record is read, and not again until it is written. One
// that is edited meanwhile is another one, and is decoded once too.
func TestDecodedOnce(t *testing.T) {
	s := open(t, t.TempDir(), "boot")
	c := example("aa")
	c.Topologies[0].Next = c.Topologies[0].Object.DeepCopy()
	c.Topologies[0].Next.Generation++
	if err := s.Put(c); err != nil {
		t.Fatal(err)
	}
	read := func() *claims.Topology { e := get(t, s, "aa"); return &e.Topologies[0] }
	first, err := read().Decoded()
	if err != nil {
		t.Fatal(err)
	}
	again, err := read().Decoded()
	e := get(t, s, "aa")
	sb, wrong := e.SandboxOf(&e.Topologies[0], &e.Topologies[0].Object, "s1", "/netns")
	if err != nil || wrong != nil || again != first || sb.Topology != first {
		t.Errorf("decoded again: %t, %t, %v, %v", again != first, sb.Topology != first, err, wrong)
	}
	all := read().Generations()
	if later := read().Generations(); len(all) != 2 || all[0] != first || all[1] == first || later[1] != all[1] || all[1].Generation != first.Generation+1 {
		t.Errorf("generations %v, then %v", all, later)
	}
	edited := read()
	edited.Object.Spec.Steps = slices.Clone(edited.Object.Spec.Steps)
	edited.Object.Generation += 2
	edited.Object.Spec.Steps[0].Name = "other"
	if got, err := edited.Decoded(); err != nil || got.Steps[0].Name != "other" {
		t.Errorf("an edit is %+v, %v", got, err)
	}
	next := claims.Pinned(&edited.Object)
	next.Generation++
	later, err := topology.FromObject(&next)
	if err != nil {
		t.Fatal(err)
	}
	edited.Keep(&next, later)
	edited.Object = next
	if now, wrong := edited.Decoded(); wrong != nil || now != later {
		t.Errorf("an edit that is kept is decoded again: %t, %v", now != later, wrong)
	}
}

// TestSandboxOf holds that the device of a root step that no longer exists stays on the
// host, and with the claim.
func TestSandboxOf(t *testing.T) {
	c := example("aa")
	next := claims.Pinned(&c.Topologies[0].Object)
	next.Generation = 4
	next.Spec.Steps = []v1alpha1.Step{{Name: "d", Type: "dummy"}, {Name: "vf0", Type: "vlan", DependOn: []string{"d"}}}
	sb, err := c.SandboxOf(&c.Topologies[0], &next, "s1", "/netns")
	if err != nil || sb.ID != "s1/aa/t" || sb.Topology.Generation != 4 || len(sb.Given.Devices()) != 0 {
		t.Errorf("sandbox %+v, %v", sb, err)
	}
	if c.Topologies[0].Object.Generation != 3 || len(c.Topologies[0].Devices) != 1 || c.Updating() {
		t.Errorf("the claim is another: %+v", c)
	}
}

// TestDevicesOf holds that devices are found by ID, in the order of their steps, and
// that one that is missing is named with its step.
func TestDevicesOf(t *testing.T) {
	host := []inventory.Device{{ID: "1", Name: "one"}, {ID: "2", Name: "two"}, {ID: "3", Name: "three"}}
	have, err := claims.DevicesOf(map[string]string{"vf1": "1", "vf0": "3"}, host)
	if err != nil || len(have) != 2 || have[0].Step != "vf0" || have[0].Name != "three" || have[0].Host.ID != "3" || have[1].Step != "vf1" || have[1].Host.ID != "1" {
		t.Errorf("devices %+v, %v", have, err)
	}
	const want = `step "vf1": device "4" does not exist on this host`
	if _, err := claims.DevicesOf(map[string]string{"vf0": "1", "vf1": "4"}, host); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// TestNetworkOfDevice holds that the VLAN of the one physical network of a virtual function
// reaches its step, from the record too.
func TestNetworkOfDevice(t *testing.T) {
	one, two := inventory.PhysicalNetwork{Name: "physnet2", VLAN: 102}, inventory.PhysicalNetwork{Name: "physnet3", VLAN: 103}
	for name, c := range map[string]struct {
		host inventory.Device
		want uint16
	}{
		"one network":      {inventory.Device{Kind: inventory.KindVF, LinkType: inventory.Ethernet, PhysicalNetworks: []inventory.PhysicalNetwork{one}}, 102},
		"two networks":     {inventory.Device{Kind: inventory.KindVF, LinkType: inventory.Ethernet, PhysicalNetworks: []inventory.PhysicalNetwork{one, two}}, 0},
		"one without VLAN": {inventory.Device{Kind: inventory.KindVF, LinkType: inventory.Ethernet, PhysicalNetworks: []inventory.PhysicalNetwork{{Name: "x"}}}, 0},
		"a PF":             {inventory.Device{Kind: inventory.KindPF, LinkType: inventory.Ethernet, PhysicalNetworks: []inventory.PhysicalNetwork{one}}, 0},
		"InfiniBand":       {inventory.Device{Kind: inventory.KindVF, LinkType: inventory.InfiniBand, PhysicalNetworks: []inventory.PhysicalNetwork{one}}, 0},
	} {
		dir := t.TempDir()
		claim := example("aa")
		c.host.ID = claim.Topologies[0].Devices[0].Host.ID
		claim.Topologies[0].Devices[0].Host = c.host
		s := open(t, dir, "boot")
		if err := s.Put(claim); err != nil {
			t.Fatal(err)
		}
		s.Close()
		e := get(t, open(t, dir, "boot"), "aa")
		sb, err := e.SandboxOf(&e.Topologies[0], &e.Topologies[0].Object, "s1", "/netns")
		if err != nil || sb.Given["vf0"].VLAN != c.want {
			t.Errorf("%s: given %+v, %v", name, sb.Given, err)
		}
	}
}

// TestReadersAtOnce holds that claims are read at the same time: claims of several pods are prepared, attached and reported side by side.
func TestReadersAtOnce(t *testing.T) {
	s := open(t, t.TempDir(), "boot")
	var readers sync.WaitGroup
	for i := range 4 {
		readers.Go(func() {
			for n := range 200 {
				uid := types.UID(fmt.Sprintf("%d-%d", i, n))
				if err := s.Put(claims.Claim{UID: uid}); err != nil {
					t.Error(err)
				}
				if in, err := s.InSandbox(uid); in || err != nil {
					t.Errorf("in a sandbox: %t, %v", in, err)
				}
				if _, known, err := s.Get(uid); !known || err != nil {
					t.Errorf("known: %t, %v", known, err)
				}
			}
		})
	}
	readers.Wait()
}
