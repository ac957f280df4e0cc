package claimstatus

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/fault"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var (
	monday  = time.Date(2026, 11, 16, 8, 0, 0, 0, time.UTC)
	tuesday = monday.AddDate(0, 0, 1)
)

const flagship = "bonded-vlan-topology"

// results are those of the flagship topology, as the engine reports them.
func results(t *testing.T) []topology.StepResult {
	t.Helper()
	b, err := os.ReadFile("testdata/flagship.json")
	if err != nil {
		t.Fatal(err)
	}
	var out []topology.StepResult
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// allocated is a claim with a GPU and a device for each step of a topology.
func allocated(topologyName string, steps ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ai", Name: "net", UID: "c1"}}
	a := &resourceapi.AllocationResult{}
	a.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: "gpu.example.com", Pool: "n1", Device: "gpu-0"}}
	for i, step := range steps {
		a.Devices.Results = append(a.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "my-" + step, Driver: claim.Driver, Pool: "n1", Device: fmt.Sprintf("pci-0000-0%d-10-0", i+1),
		})
		config, err := json.Marshal(claim.Config{NetworkTopologyRef: claim.TopologyRef{Name: topologyName}, Step: step})
		if err != nil {
			panic(err)
		}
		a.Devices.Config = append(a.Devices.Config, resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClass, Requests: []string{"my-" + step},
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: config}}},
		})
	}
	c.Status.Allocation = a
	return c
}

// TestFlagship shows what a user reads about the flagship topology.
func TestFlagship(t *testing.T) {
	c := allocated(flagship, "vf0", "vf1")
	have := entries(c, map[string]verdict{flagship: attached(flagship, results(t))}, monday)
	b, err := json.MarshalIndent(have, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	b = append(b, '\n')
	if *update {
		if err := os.WriteFile("testdata/flagship.golden.json", b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/flagship.golden.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, want) {
		t.Errorf("have\n%s\nwant\n%s", b, want)
	}
}

func decode(t *testing.T, e resourceapi.AllocatedDeviceStatus) data {
	t.Helper()
	var d data
	if err := json.Unmarshal(e.Data.Raw, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func names(steps []topology.StepResult) string {
	var out []string
	for _, s := range steps {
		out = append(out, s.Name)
	}
	return strings.Join(out, " ")
}

// TestLifeOfAClaim follows a claim through its possible reports.
func TestLifeOfAClaim(t *testing.T) {
	c := allocated(flagship, "vf0", "vf1")
	foreign := resourceapi.AllocatedDeviceStatus{Driver: "gpu.example.com", Pool: "n1", Device: "gpu-0"}
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{foreign}
	now := monday
	update := func(topologyName string, v verdict) {
		want := entries(c, map[string]verdict{topologyName: v}, now)
		if len(want) > 0 && same(c.Status.Devices, want) {
			t.Error("an apply was taken for one without effect")
		}
		c.Status.Devices = append([]resourceapi.AllocatedDeviceStatus{foreign}, want...)
		if again := entries(c, map[string]verdict{topologyName: v}, now.Add(time.Hour)); !same(c.Status.Devices, again) {
			t.Error("the same report again changes something")
		}
		now = now.Add(time.Hour)
	}
	check := func(when, conditions, iface string, steps string) {
		t.Helper()
		if len(c.Status.Devices) != 3 {
			t.Fatalf("%s: %d entries", when, len(c.Status.Devices))
		}
		for _, e := range c.Status.Devices[1:] {
			var have []string
			for _, c := range e.Conditions {
				have = append(have, fmt.Sprintf("%s=%s %s %s", c.Type, c.Status, c.Reason, c.LastTransitionTime.UTC().Format("15:04")))
			}
			if s := strings.Join(have, ", "); s != conditions {
				t.Errorf("%s: conditions %s, want %s", when, s, conditions)
			}
			if (e.NetworkData != nil) != (iface != "") {
				t.Errorf("%s: network data %v", when, e.NetworkData)
			}
			if have := names(decode(t, e).Steps); have != steps {
				t.Errorf("%s: steps %q, want %q", when, have, steps)
			}
		}
	}
	const derived = "bond0 vlan100 vlan200 tune-vlan100 tune-vlan200"

	update(flagship, failed(flagship, &ops.StepError{Topology: flagship, Step: "bond0", Err: fault.New(fault.Unsupported, errors.New("no bonding"))}))
	check("failed", "Ready=False Unsupported 08:00, InSync=Unknown Unsupported 08:00", "", "")
	d := decode(t, c.Status.Devices[1])
	if want := (failure{Step: "bond0", Kind: "Unsupported", Message: `topology "bonded-vlan-topology": step "bond0": no bonding`}); *d.Failure != want {
		t.Errorf("failure %+v, want %+v", *d.Failure, want)
	}
	update(flagship, attached(flagship, results(t)))
	check("attached", "Ready=True NetworkReady 09:00, InSync=True InSync 09:00", "net1", derived)
	update(flagship, verdict{inSync: &condition{metav1.ConditionFalse, reasonDrifted, "x"}})
	check("drifted", "Ready=True NetworkReady 09:00, InSync=False Drifted 10:00", "net1", derived)
	update(flagship, verdict{ready: &condition{metav1.ConditionFalse, string(fault.Conflict), "y"}})
	check("degraded", "Ready=False Conflict 11:00, InSync=False Drifted 10:00", "net1", derived)
	update(flagship, attached(flagship, results(t)))
	check("repaired", "Ready=True NetworkReady 12:00, InSync=True InSync 12:00", "net1", derived)
	update(every, verdict{ready: &condition{metav1.ConditionFalse, reasonDetached, ""}, inSync: &condition{metav1.ConditionUnknown, reasonDetached, ""}, bare: true})
	check("detached", "Ready=False Detached 13:00, InSync=Unknown Detached 13:00", "", "")

	if have := entries(c, map[string]verdict{"another": attached("another", nil)}, now); !same(c.Status.Devices, have) || len(have) != 2 {
		t.Errorf("a report on another topology changes ours: %+v", have)
	}
	c.Status.Allocation = nil
	if have := entries(c, map[string]verdict{flagship: attached(flagship, nil)}, now); have != nil {
		t.Errorf("a claim that is not allocated gets %+v", have)
	}
}

// TestForeignConditions holds that conditions of others in our entries are left alone.
func TestForeignConditions(t *testing.T) {
	c := allocated(flagship, "vf0")
	c.Status.Devices = entries(c, map[string]verdict{flagship: attached(flagship, results(t))}, monday)
	c.Status.Devices[0].Conditions = append(c.Status.Devices[0].Conditions, metav1.Condition{Type: "Scanned", Status: metav1.ConditionTrue, Reason: "By", LastTransitionTime: metav1.NewTime(monday)})
	have := entries(c, map[string]verdict{flagship: attached(flagship, results(t))}, tuesday)
	if !same(c.Status.Devices, have) || len(have[0].Conditions) != 2 {
		t.Errorf("have %+v", have[0].Conditions)
	}
}

func TestSharedDevice(t *testing.T) {
	c := allocated("shared", "uplink")
	one, two := types.UID("11111111-1111-1111-1111-111111111111"), types.UID("22222222-2222-2222-2222-222222222222")
	r := &c.Status.Allocation.Devices.Results
	(*r)[1].ShareID = &one
	again := (*r)[1]
	again.ShareID, again.Request = &two, "other"
	*r = append(*r, again)
	c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config, c.Status.Allocation.Devices.Config[0])
	c.Status.Allocation.Devices.Config[1].Requests = []string{"other"}
	c.Status.Allocation.Devices.Config[1].Opaque = &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: []byte(`{"networkTopologyRef":{"name":"second"},"step":"uplink"}`)}}
	have := entries(c, map[string]verdict{"shared": attached("shared", nil), "second": failed("second", errors.New("no"))}, monday)
	if len(have) != 2 || *have[0].ShareID != string(one) || *have[1].ShareID != string(two) || have[0].Conditions[0].Status == have[1].Conditions[0].Status {
		t.Errorf("have %+v", have)
	}
}

func TestNetworkData(t *testing.T) {
	step := func(name string, addresses ...string) topology.StepResult {
		r := topology.Result{Interfaces: []topology.Interface{{Name: "host0"}, {Name: "net1", MAC: "02:00:00:00:00:01", Sandbox: "/run/netns/p"}}}
		for _, a := range addresses {
			r.IPs = append(r.IPs, topology.IP{Address: a, Interface: new(1)})
		}
		return topology.StepResult{Name: name, Result: r}
	}
	var many []string
	for i := range 20 {
		many = append(many, fmt.Sprintf("10.0.%d.1/24", i))
	}
	for _, c := range []struct {
		steps []topology.StepResult
		want  []string
	}{
		{[]topology.StepResult{step("vf0")}, nil},
		{[]topology.StepResult{step("vf0", "10.0.0.1/24", "2001:DB8::0:1/64"), step("tune", "10.0.0.1/24", "10.0.0.2/24")}, []string{"10.0.0.1/24", "2001:db8::1/64", "10.0.0.2/24"}},
		{[]topology.StepResult{step("vf0", "nonsense", "::ffff:10.0.0.1/120", "10.0.0.1/24")}, []string{"10.0.0.1/24"}},
		{[]topology.StepResult{step("vf0", many...)}, many[:16]},
	} {
		have := networkData(c.steps, "vf0")
		if have == nil || have.InterfaceName != "net1" || have.HardwareAddress != "02:00:00:00:00:01" || !slices.Equal(have.IPs, c.want) {
			t.Errorf("%v: have %+v, want %v", c.steps, have, c.want)
		}
	}
	if have := networkData([]topology.StepResult{step("vf0")}, "vf1"); have != nil {
		t.Errorf("a step without a result has %+v", have)
	}
}

// TestBuiltOn holds that every step of a topology is listed with the devices it is
// built on.
func TestBuiltOn(t *testing.T) {
	iface := func(names ...string) topology.Result {
		var r topology.Result
		for _, name := range names {
			r.Interfaces = append(r.Interfaces, topology.Interface{Name: name, Sandbox: "p"})
		}
		return r
	}
	steps := []topology.StepResult{
		{Name: "a", Result: iface("net1")},
		{Name: "b", Result: iface("net2")},
		{Name: "d", Result: iface("dummy0")},
		{Name: "on-a", Result: iface("net1", "net1.5")},
		{Name: "on-both", Result: iface("net1", "net2", "bond0")},
		{Name: "on-d", Result: iface("dummy0")},
	}
	for step, want := range map[string]string{"a": "d on-a on-both on-d", "b": "on-both"} {
		if have := names(builtOn(steps, use{"t", step, step == "a", []string{"a", "b"}})); have != want {
			t.Errorf("%s: have %q, want %q", step, have, want)
		}
	}
}

func TestTooLarge(t *testing.T) {
	for _, count := range []int{10, 30, 60, 300} {
		var steps []topology.StepResult
		for i := range count {
			r := topology.Result{IPs: []topology.IP{{Address: "10.0.0.1/24", Interface: new(2)}}, Routes: []topology.Route{{Dst: "10.0.0.0/8", GW: "10.0.0.254"}}}
			for k := range 3 {
				r.Interfaces = append(r.Interfaces, topology.Interface{Name: fmt.Sprintf("if%d-%d", i, k), MAC: "02:00:00:00:00:01", Sandbox: "/run/netns/cni-0123456789"})
			}
			steps = append(steps, topology.StepResult{Name: fmt.Sprintf("step-%d", i), Type: "vlan", Result: r})
		}
		b := raw(data{Report: claim.Report{Topology: "t"}, Step: "s", Steps: steps})
		var d data
		if err := json.Unmarshal(b.Raw, &d); err != nil {
			t.Fatal(err)
		}
		if len(b.Raw) > resourceapi.AllocatedDeviceStatusDataMaxLength {
			t.Errorf("%d steps: %d bytes", count, len(b.Raw))
		}
		if complete := len(d.Steps) == count && len(d.Steps[0].Result.Routes) == 1; complete != (d.Note == "") || len(d.Steps) == 0 {
			t.Errorf("%d steps: %d are left, note %q", count, len(d.Steps), d.Note)
		}
		if last := d.Steps[0].Result; last.Interfaces[len(last.Interfaces)-1].Name != "if0-2" || len(last.IPs) != 1 {
			t.Errorf("%d steps: the first is left with %+v", count, last)
		}
	}
}

func TestLongMessage(t *testing.T) {
	v := failed("t", errors.New(strings.Repeat("x", 40000)))
	c := allocated(flagship, "vf0")
	have := entries(c, map[string]verdict{every: v}, monday)
	if len(have) != 1 || len(have[0].Conditions[0].Message) > messageMax || len(have[0].Data.Raw) > 2*messageMax {
		t.Errorf("a long message became %d bytes", len(have[0].Conditions[0].Message))
	}
}

func TestMessages(t *testing.T) {
	mtu := reconcile.Drift{Step: "bond0", Action: netstate.Update, Object: netstate.Key{Kind: "link", ID: "bond0"}, Field: "mtu", Want: 9000, Have: 1500}
	gone := reconcile.Drift{Step: "vlan100", Action: netstate.Create, Object: netstate.Key{Kind: "link", ID: "data0"}}
	extra := reconcile.Drift{Step: "vrf", Action: netstate.Delete, Object: netstate.Key{Kind: "link", ID: "net9"}}
	pending := reconcile.Drift{Step: "tune", Field: "link data0"}
	for _, c := range []struct {
		drift []reconcile.Drift
		want  string
	}{
		{[]reconcile.Drift{mtu}, `topology "t": step "bond0": link bond0: mtu is 1500, not 9000`},
		{[]reconcile.Drift{gone, extra}, `topology "t": step "vlan100": link data0 is missing; step "vrf": link net9 is not wanted`},
		{[]reconcile.Drift{pending, mtu, gone, extra, extra}, `topology "t": step "tune": needs link data0; step "bond0": link bond0: mtu is 1500, not 9000; step "vlan100": link data0 is missing; and 2 more`},
	} {
		if have := driftMessage("t", c.drift); have != c.want {
			t.Errorf("have %s\nwant %s", have, c.want)
		}
	}
	if have, want := readyMessage(flagship, results(t)), `topology "bonded-vlan-topology": 7 steps done, interfaces net1, net2, bond0, data0, mgmt0`; have != want {
		t.Errorf("have %s\nwant %s", have, want)
	}
	for _, c := range []struct {
		topology string
		err      error
		want     failure
	}{
		{"t", errors.New("x"), failure{Step: "", Kind: "Internal", Message: `topology "t": x`}},
		{"", fault.New(fault.Gone, errors.New("x")), failure{Step: "", Kind: "Gone", Message: `x`}},
		{"t", fmt.Errorf("attach: %w", &ops.StepError{Topology: "t", Step: "s", Err: fault.New(fault.Conflict, errors.New("x"))}), failure{Step: "s", Kind: "Conflict", Message: `attach: topology "t": step "s": x`}},
	} {
		if have := *failed(c.topology, c.err).failure; have != c.want {
			t.Errorf("have %+v\nwant %+v", have, c.want)
		}
	}
}

// TestOrder joins reports that could not be written one by one.
func TestOrder(t *testing.T) {
	ok, bad := attached("a", results(t)), failed("a", errors.New("x"))
	drift := verdict{inSync: &condition{metav1.ConditionFalse, reasonDrifted, "x"}}
	detached := verdict{ready: &condition{metav1.ConditionFalse, reasonDetached, ""}, inSync: &condition{metav1.ConditionUnknown, reasonDetached, ""}, bare: true}
	type reportOf struct {
		topology string
		verdict
	}
	for _, c := range []struct {
		name    string
		reports []reportOf
		want    string // ready, inSync, what is known
	}{
		{"attached, drifted", []reportOf{{"a", ok}, {"a", drift}}, "NetworkReady Drifted steps"},
		{"failed, attached", []reportOf{{"a", bad}, {"a", ok}}, "NetworkReady InSync steps"},
		{"attached, failed", []reportOf{{"a", ok}, {"a", bad}}, "Internal Internal failure"},
		{"attached, detached", []reportOf{{"a", ok}, {every, detached}}, "Detached Detached bare"},
		{"detached, attached", []reportOf{{every, detached}, {"a", ok}}, "NetworkReady InSync steps"},
		{"attached, detached, attached", []reportOf{{"a", ok}, {every, detached}, {"a", ok}}, "NetworkReady InSync steps"},
		{"detached, drifted", []reportOf{{every, detached}, {"a", drift}}, "Detached Drifted bare"},
	} {
		// All at once, and each requeued before the next one comes.
		whole := &report{verdicts: map[string]verdict{}}
		r := &Reporter{pending: map[types.UID]*report{}}
		for _, x := range c.reports {
			whole.add(x.topology, x.verdict)
			newer := &report{verdicts: map[string]verdict{}}
			newer.add(x.topology, x.verdict)
			older := r.pending["c"]
			r.pending["c"] = newer
			if older != nil {
				r.requeue("c", older)
			}
		}
		for how, p := range map[string]*report{"at once": whole, "requeued": r.pending["c"]} {
			v, all := p.verdicts["a"], p.verdicts[every]
			v = v.after(all)
			known := "nothing"
			switch {
			case v.steps != nil:
				known = "steps"
			case v.failure != nil:
				known = "failure"
			case v.bare:
				known = "bare"
			}
			if have := v.ready.reason + " " + v.inSync.reason + " " + known; have != c.want {
				t.Errorf("%s, %s: have %s, want %s", c.name, how, have, c.want)
			}
		}
	}
}
