package controller_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/dynamic-resource-allocation/cel"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

var update = flag.Bool("update", false, "write the golden files")

func contracts(t *testing.T) contract.Set {
	t.Helper()
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	return registry
}

func topologyOf(steps ...v1alpha1.Step) *v1alpha1.NetworkTopology {
	o := &v1alpha1.NetworkTopology{}
	o.Name, o.UID, o.Generation, o.Spec.Steps = "ai", "u1", 3, steps
	return o
}

func TestClasses(t *testing.T) {
	set := contracts(t)
	o := topologyOf(
		v1alpha1.Step{Name: "vf0", Type: "sriov", Selector: &v1alpha1.Selector{CEL: `device.attributes["dra.networking"].rdma`}},
		v1alpha1.Step{Name: "vf1", Type: "sriov"},
		v1alpha1.Step{Name: "nic", Type: "host-device"},
		v1alpha1.Step{Name: "port0", Type: "sriov", ExtendedResourceName: "openshift.io/sriov_a"},
		v1alpha1.Step{Name: "port1", Type: "sriov", ExtendedResourceName: "openshift.io/sriov_a"},
		v1alpha1.Step{Name: "shared", Type: "macvlan"},
		v1alpha1.Step{Name: "chosen", Type: "ipvlan", Selector: &v1alpha1.Selector{CEL: `device.attributes["dra.networking"].physicalNetworkName == "storage" // and no other`}},
		v1alpha1.Step{Name: "named", Type: "macvlan", Config: &runtime.RawExtension{Raw: []byte(`{"master":"bond0","name":"m1"}`)}},
		v1alpha1.Step{Name: "network", Type: "ipvlan", Config: &runtime.RawExtension{Raw: []byte(`{"masterNet":"10.0.1.0/24","name":"i1"}`)}},
		v1alpha1.Step{Name: "port", Type: "bridge", Config: &runtime.RawExtension{Raw: []byte(`{"ifName":"b0"}`)}},
		v1alpha1.Step{
			Name: "function", Type: "ovn-k8s-cni-overlay", Config: &runtime.RawExtension{Raw: []byte(`{"topology":"layer2","name":"blue","ifName":"blue0"}`)},
			Selector: &v1alpha1.Selector{CEL: `device.attributes["dra.networking"].type == "vf"`},
		},
		v1alpha1.Step{ // the uplink, and none of its functions, which have its physical network
			Name: "uplink", Type: "ovn-k8s-cni-overlay", Config: &runtime.RawExtension{Raw: []byte(`{"topology":"localnet","name":"green","physicalNetworkName":"localnet1","ifName":"green0"}`)},
			Selector: &v1alpha1.Selector{CEL: `device.attributes["dra.networking"].physicalNetworkName == "localnet1" // of any type`},
		},
		v1alpha1.Step{
			Name: "offloaded", Type: "ovn-k8s-cni-overlay", Config: &runtime.RawExtension{Raw: []byte(`{"topology":"localnet","name":"red","physicalNetworkName":"localnet1","ifName":"red0"}`)},
			Selector: &v1alpha1.Selector{CEL: `device.attributes["dra.networking"].physicalNetworkName == "localnet1" && device.attributes["dra.networking"].type == "vf"`},
		},
		v1alpha1.Step{Name: "inside", Type: "macvlan", Config: &runtime.RawExtension{Raw: []byte(`{"linkInContainer":true,"name":"m2"}`)}}, // takes no device
		v1alpha1.Step{Name: "loop", Type: "dummy"}, // takes no device
		v1alpha1.Step{Name: "tune", Type: "tuning", DependOn: []string{"vf0"}, Config: &runtime.RawExtension{Raw: []byte(`{"mtu":9000}`)}},
	)
	decoded, _, err := validity.Object(t.Context(), o, set)
	if err != nil {
		t.Fatal(err)
	}
	classes := controller.Classes(o, decoded, set)
	var got strings.Builder
	for _, c := range classes {
		text, err := yaml.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "---\n%s", text)
		if !passesOver(t, c.Spec.Selectors[0].CEL.Expression) {
			t.Errorf("class %q: another driver's device gets to its second selector, or fails the first", c.Name)
		}
		repaired := c.DeepCopy()
		if controller.Repair(repaired, c) {
			t.Errorf("class %q is not as it should be when it is made", c.Name)
		}
	}
	if *update {
		if err := os.WriteFile("testdata/classes.yaml", []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/classes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestWithoutInterface holds which classes choose a function with RDMA and no interface: those of types that give device nodes of any
// device instead of an interface, also if a plugin describes the type.
func TestWithoutInterface(t *testing.T) {
	set := contracts(t)
	types := []contract.Contract{
		{Type: "plugin", Input: contract.Input{Device: true}, Output: contract.Output{Interfaces: contract.Flow{Appends: 1}}},
		{Type: "nodes", Input: contract.Input{Device: true}, Output: contract.Output{Devices: []contract.Param{{Name: "deviceNodes"}}}},
	}
	for _, name := range []string{"sriov", "host-device", "vfio-pci", "rdma", "macvlan"} {
		c, _ := set.Contract(name)
		types = append(types, c)
	}
	bare := inventory.Device{ID: "0000:01:00.0", Name: "pci-0000-01-00-0", Kind: inventory.KindVF, RDMA: true, RDMAOnly: true}
	for _, c := range types {
		for _, own := range []string{"", "true"} {
			s, err := inventory.Compile(controller.Fitting(&topology.Step{Name: "a", Type: c.Type, Selector: own}, c))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := s.Match(t.Context(), bare); err != nil || got != (c.Type == "rdma" || c.Type == "nodes") {
				t.Errorf("type %q, selector %q: %v, %v", c.Type, own, got, err)
			}
		}
	}
}

// TestClassesWithRDMA holds that the scheduler chooses a device with an RDMA device where a step cannot do without one, and on a node in
// exclusive mode only one that moves, as the kernel does not let one of InfiniBand.
func TestClassesWithRDMA(t *testing.T) {
	set := contracts(t)
	device := func(mode string) inventory.Device {
		d := inventory.Device{ID: "0000:01:00.0", Name: "pci-0000-01-00-0", Kind: inventory.KindVF, IfName: "v0", RDMA: mode != "none", LinkType: inventory.Ethernet}
		d.RDMANetns = strings.TrimPrefix(strings.TrimPrefix(mode, "none"), "ib ")
		if strings.HasPrefix(mode, "ib ") {
			d.LinkType = inventory.InfiniBand
		}
		return d
	}
	const all = "none, shared, exclusive, ib shared, ib exclusive"
	for step, want := range map[string]string{
		"sriov {}":                                  all,
		"sriov {rdma: false}":                       all,
		"sriov {rdma: true}":                        "shared, exclusive, ib shared",
		"sriov {require: {state: ACTIVE}}":          "shared, exclusive, ib shared",
		"sriov {rdma: false, require: {mtu: 4096}}": all,
		"rdma {}":                         "shared, ib shared",
		"macvlan {}":                      all,
		"macvlan {rdma: true}":            "shared, ib shared",
		"ipvlan {rdma: true, master: v0}": "shared, ib shared",
		`ipvlan {rdma: "{{ other.interfaceName }}"}`: all,
	} {
		typ, text, _ := strings.Cut(step, " ")
		c, _ := set.Contract(typ)
		var config map[string]any
		if err := yaml.Unmarshal([]byte(text), &config); err != nil {
			t.Fatal(err)
		}
		for _, own := range []string{"", "true"} {
			s, err := inventory.Compile(controller.Fitting(&topology.Step{Name: "a", Type: typ, Selector: own, Config: config}, c))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for mode := range strings.SplitSeq(all, ", ") {
				d := device(mode)
				if c.Input.Shares {
					d.Shared = &inventory.Sharing{}
				}
				switch fits, err := s.Match(t.Context(), d); {
				case err != nil:
					t.Fatal(err)
				case fits:
					got = append(got, mode)
				}
			}
			if is := strings.Join(got, ", "); is != want {
				t.Errorf("%s, selector %q: chooses %s, want %s", step, own, is, want)
			}
		}
	}
}

// TestFunctionsWithRDMA holds that a step which uses a virtual function or a shared device, and asks for RDMA, has only functions chosen:
// a shared device stays on the host, as does what the kernel hangs on it.
func TestFunctionsWithRDMA(t *testing.T) {
	c, _ := contracts(t).Contract("ovn-k8s-cni-overlay")
	for asked, want := range map[bool]string{false: "function, function without RDMA, shared, shared without RDMA", true: "function"} {
		config := map[string]any{"topology": "layer2", "netAttachDefName": "default/blue", "rdma": asked}
		s, err := inventory.Compile(controller.Fitting(&topology.Step{Name: "a", Type: c.Type, Selector: "true", Config: config}, c))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, of := range []string{"function", "function without RDMA", "shared", "shared without RDMA"} {
			d := inventory.Device{ID: "0000:01:00.0", Name: "pci-0000-01-00-0", Kind: inventory.KindVF, IfName: "v0", RDMA: !strings.HasSuffix(of, "without RDMA")}
			if strings.HasPrefix(of, "shared") {
				d.Kind, d.Shared = inventory.KindPF, &inventory.Sharing{}
			}
			if fits, err := s.Match(t.Context(), d); err != nil {
				t.Fatal(err)
			} else if fits {
				got = append(got, of)
			}
		}
		if is := strings.Join(got, ", "); is != want {
			t.Errorf("rdma: %v chooses %s, want %s", asked, is, want)
		}
	}
}

// TestClassesWithDerivedRDMA holds that a step from which one of type rdma is derived is given a device with an RDMA device.
func TestClassesWithDerivedRDMA(t *testing.T) {
	set := contracts(t)
	o := topologyOf(v1alpha1.Step{Name: "vf0", Type: "sriov"}, v1alpha1.Step{Name: "vf1", Type: "sriov"}, v1alpha1.Step{Name: "verbs", Type: "rdma", DependOn: []string{"vf1"}})
	decoded, _, err := validity.Object(t.Context(), o, set)
	if err != nil {
		t.Fatal(err)
	}
	classes := controller.Classes(o, decoded, set)
	if len(classes) != 2 {
		t.Fatalf("%d classes", len(classes))
	}
	for i, want := range []bool{false, true} {
		expr := classes[i].Spec.Selectors[0].CEL.Expression
		if got := strings.Contains(expr, "attributes[\"dra.networking\"].rdma"); got != want {
			t.Errorf("%s: %s", classes[i].Name, expr)
		}
	}
}

// TestRepair changes each field of a class, and holds that foreign metadata is kept.
func TestRepair(t *testing.T) {
	set := contracts(t)
	o := topologyOf(v1alpha1.Step{Name: "vf0", Type: "sriov"})
	decoded, _, err := validity.Object(t.Context(), o, set)
	if err != nil {
		t.Fatal(err)
	}
	classes := controller.Classes(o, decoded, set)
	want := classes[0]
	for name, disturb := range map[string]func(*resourceapi.DeviceClass){
		"label":    func(c *resourceapi.DeviceClass) { delete(c.Labels, "networking.dra.io/step") },
		"selector": func(c *resourceapi.DeviceClass) { c.Spec.Selectors[0].CEL.Expression = "true" },
		"pin": func(c *resourceapi.DeviceClass) {
			c.Spec.Config[0].Opaque.Parameters.Raw = []byte(`{"networkTopologyRef":{"name":"ai","uid":"u1","generation":2},"step":"vf0"}`)
		},
		"more":       func(c *resourceapi.DeviceClass) { c.Spec.Config = append(c.Spec.Config, c.Spec.Config[0]) },
		"owner gone": func(c *resourceapi.DeviceClass) { c.OwnerReferences = nil },
		"own name":   func(c *resourceapi.DeviceClass) { c.Spec.ExtendedResourceName = new("example.com/vf") },
	} {
		t.Run(name, func(t *testing.T) {
			c := want.DeepCopy()
			c.Labels["mine"] = "stays"
			disturb(c)
			if !controller.Owned(c, o) {
				t.Error("it is not known as the topology's any more")
			}
			if !controller.Repair(c, want) || controller.Repair(c, want) {
				t.Error("mending did not end at once")
			}
			if c.Labels["mine"] != "stays" {
				t.Error("a foreign label is gone")
			}
			delete(c.Labels, "mine")
			if diff := cmp.Diff(want, c); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	other := topologyOf()
	other.UID = "u2"
	if controller.Owned(want, other) {
		t.Error("it is taken for that of a topology of the same name")
	}
}

func TestStatusOf(t *testing.T) {
	o := topologyOf()
	long := metav1.NewTime(time.Unix(1, 0))
	o.Status.Conditions = []metav1.Condition{{Type: "Valid", Status: "True", Reason: "Succeeded", LastTransitionTime: long}}
	s := controller.StatusOf(o, controller.Outcome{
		Steps: 2, Classes: 1, Clashes: []string{"DeviceClass x is theirs"},
		Use: controller.Use{Claims: 6, Pods: 6, Degraded: 1},
	})
	var got []string
	for _, c := range s.Conditions {
		got = append(got, fmt.Sprintf("%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	want := []string{
		"Valid True Succeeded: 2 steps",
		"Programmed False Conflict: the DeviceClasses are not changed:\nDeviceClass x is theirs",
		"Ready False Conflict: the DeviceClasses are not changed:\nDeviceClass x is theirs",
		"InUse True Claims: 6 claims and 6 pods",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if c := meta.FindStatusCondition(s.Conditions, "Valid"); !c.LastTransitionTime.Equal(&long) || c.ObservedGeneration != 3 {
		t.Errorf("a condition that stays: %+v", c)
	}
	if s.Sandboxes != 6 || s.Degraded != 1 || s.DeviceClasses != 1 || s.ObservedGeneration != 3 {
		t.Errorf("status %+v", s)
	}
}

// TestStatusUnnamed holds that a topology whose extended resource name the API server drops
// is Ready, as claims can use it, and that its condition says what it lacks.
func TestStatusUnnamed(t *testing.T) {
	s := controller.StatusOf(topologyOf(), controller.Outcome{Steps: 1, Classes: 1, Unnamed: []string{"vf0"}})
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady); c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, `step "vf0": the API server has dropped extendedResourceName`) {
		t.Errorf("condition %+v", c)
	}
}

// TestStatusWithoutDevices holds that a topology which no pod can use is not Ready.
func TestStatusWithoutDevices(t *testing.T) {
	s := controller.StatusOf(topologyOf(), controller.Outcome{Steps: 1})
	for _, typ := range []string{v1alpha1.ConditionProgrammed, v1alpha1.ConditionReady} {
		if c := meta.FindStatusCondition(s.Conditions, typ); c.Status != metav1.ConditionFalse || c.Reason != "NoDevice" || !strings.HasPrefix(c.Message, "no root step takes a device") {
			t.Errorf("%s: %+v", typ, c)
		}
	}
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionValid); c.Status != metav1.ConditionTrue {
		t.Errorf("Valid: %+v", c)
	}
}

// passesOver reports whether a selector says no, rather than yes or an error, to a device of another driver, which has none of our
// attributes.
func passesOver(t *testing.T, expr string) bool {
	t.Helper()
	compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expr, cel.Options{})
	if compiled.Error != nil {
		t.Fatal(compiled.Error)
	}
	matches, _, err := compiled.DeviceMatches(t.Context(), cel.Device{Driver: "another." + inventory.Driver})
	return err == nil && !matches
}
