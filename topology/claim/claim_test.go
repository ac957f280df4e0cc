package claim_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

func pair() *topology.Topology {
	return &topology.Topology{Name: "ai-bonded-rdma", Steps: []topology.Step{
		{Name: "vf0", Type: "sriov"},
		{Name: "vf1", Type: "sriov"},
		{Name: "lo1", Type: "dummy"},
		{Name: "bond0", Type: "bond", DependOn: []string{"vf0", "vf1"}},
	}}
}

func contracts(t *testing.T) contract.Set {
	t.Helper()
	r, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func params(step string) *resourceapi.OpaqueDeviceConfiguration {
	return &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver, Parameters: runtime.RawExtension{
		Raw: []byte(`{"networkTopologyRef":{"name":"ai-bonded-rdma","uid":"u","generation":2},"step":"` + step + `"}`),
	}}
}

func classes(name string) (*resourceapi.DeviceClass, error) {
	step, ours := map[string]string{"ai-bonded-rdma-vf0": "vf0", "ai-bonded-rdma-vf1": "vf1"}[name]
	class := &resourceapi.DeviceClass{}
	if ours {
		class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: params(step)}}}
	}
	return class, nil
}

func exactly(name, class string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}
}

func TestRequests(t *testing.T) {
	two := exactly("vf0", "ai-bonded-rdma-vf0")
	two.Exactly.Count = 2
	either := resourceapi.DeviceRequest{Name: "any", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "a", DeviceClassName: "ai-bonded-rdma-vf0"}, {Name: "b", DeviceClassName: "ai-bonded-rdma-vf1"},
	}}
	same := resourceapi.DeviceRequest{Name: "any", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "a", DeviceClassName: "ai-bonded-rdma-vf0"}, {Name: "b", DeviceClassName: "ai-bonded-rdma-vf0"},
	}}
	partly := resourceapi.DeviceRequest{Name: "any", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "a", DeviceClassName: "gpu"}, {Name: "b", DeviceClassName: "ai-bonded-rdma-vf0"},
	}}
	for _, c := range []struct {
		name string
		spec resourceapi.DeviceClaim
		want string // the mismatch, "" for none
	}{
		{name: "complete, with another driver's", spec: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			exactly("gpu", "gpu"), exactly("x", "ai-bonded-rdma-vf1"), exactly("vf0", "ai-bonded-rdma-vf0"),
		}}},
		{name: "alternatives for one step", spec: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{same, exactly("vf1", "ai-bonded-rdma-vf1")}}},
		{
			name: "one request for each root step", spec: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{exactly("vf0", "ai-bonded-rdma-vf0")}},
			want: "NetworkTopology \"ai-bonded-rdma\" requires root step requests [vf0, vf1],\nbut ResourceClaimTemplate \"ai-gpu-bonded-rdma\" only provides requests [vf0].\nMissing: [vf1]",
		},
		{
			name: "config from the claim", spec: resourceapi.DeviceClaim{Config: []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: params("vf0")}}}},
			want: `config[0].opaque: in a claim, config for driver "dra.networking" may have parameters only: the DeviceClass decides which topology and step a device is for: json: unknown field "networkTopologyRef"`,
		},
		{
			name: "count", spec: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{two}},
			want: `request "vf0": it is for 2 devices of DeviceClass "ai-bonded-rdma-vf0", of which NetworkTopology "ai-bonded-rdma" takes 1, for [vf0]: ask for 1`,
		},
		{
			name: "one step twice", spec: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{exactly("a", "ai-bonded-rdma-vf0"), exactly("b", "ai-bonded-rdma-vf0")}},
			want: `requests "a" and "b" are both for root step "vf0" of NetworkTopology "ai-bonded-rdma": a topology takes one device for each of its root steps; request another topology's class for a second network`,
		},
		{
			name: "alternatives for two steps", spec: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{either}},
			want: `request "any": its alternatives "any/a" and "any/b" are for different steps ("vf0" of NetworkTopology "ai-bonded-rdma", "vf1" of "ai-bonded-rdma"): which one would be allocated is open, so a topology could lack a device`,
		},
		{
			name: "alternatives of others", spec: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{partly}},
			want: `request "any": alternative "any/b" is for root step "vf0" of NetworkTopology "ai-bonded-rdma", and others are not: which one would be allocated is open, so the topology could lack a device`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			demands, err := claim.Requests(&c.spec, classes)
			if err == nil && len(demands) != 1 {
				t.Fatalf("%d demands, want 1", len(demands))
			}
			if err == nil {
				err = claim.Mismatch(pair(), contracts(t), demands[0], claim.Source{Kind: "ResourceClaimTemplate", Name: "ai-gpu-bonded-rdma"})
			}
			check(t, err, c.want)
		})
	}
}

func check(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("error:\n%v", err)
	case want != "" && (err == nil || err.Error() != want):
		t.Errorf("error:\n%v\nwant:\n%s", err, want)
	case want != "" && fault.Of(err) != fault.Invalid:
		t.Errorf("kind %s, want Invalid", fault.Of(err))
	}
}

// TestExtendedResources holds the messages about a claim that the scheduler has created:
// the user knows only the pod.
func TestExtendedResources(t *testing.T) {
	rc := &resourceapi.ResourceClaim{}
	rc.GenerateName = "trainer-extended-resources-"
	rc.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
	rc.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "trainer", Controller: new(true)}}
	of := claim.SourceOf("ResourceClaim", rc)
	if of.String() != `extended resources of Pod "trainer"` {
		t.Errorf("source %s", of)
	}
	const limits = "The limits of its containers must have, taken together, deviceclass.resource.kubernetes.io/ai-bonded-rdma-vf0: 1, deviceclass.resource.kubernetes.io/ai-bonded-rdma-vf1: 1."
	demand := claim.Demand{Steps: []claim.Demanded{{Step: "vf1", Request: "container-0-request-2"}}}
	check(t, claim.Mismatch(pair(), contracts(t), demand, of),
		"NetworkTopology \"ai-bonded-rdma\" takes devices for its root steps [vf0, vf1],\nbut Pod \"trainer\" only requests those of [vf1].\nMissing: [vf0]. "+limits)
	check(t, claim.Incomplete(pair(), contracts(t), claim.Assignment{Devices: []claim.Device{{Step: "vf1"}}}, of),
		`NetworkTopology "ai-bonded-rdma" root step "vf0" has no device, as Pod "trainer" does not request one. `+limits)
	delete(rc.Annotations, resourceapi.ExtendedResourceClaimAnnotation)
	if of := claim.SourceOf("ResourceClaim", rc); of.String() != `ResourceClaim "trainer-extended-resources-*"` {
		t.Errorf("source of another claim of a pod: %s", of)
	}
}

func TestAllocated(t *testing.T) {
	class := func(step string, requests ...string) resourceapi.DeviceAllocationConfiguration {
		return resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClass, Requests: requests,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: params(step)},
		}
	}
	result := func(request, device string) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: claim.Driver, Pool: "n", Device: device}
	}
	fromClaim := class("vf0", "vf0")
	fromClaim.Source = resourceapi.AllocationConfigSourceClaim
	type results = []resourceapi.DeviceRequestAllocationResult
	type config = []resourceapi.DeviceAllocationConfiguration
	for _, c := range []struct {
		name    string
		results results
		config  config
		want    string
	}{
		{name: "both", results: results{result("vf0", "d0"), result("r/sub", "d1")}, config: config{class("vf0", "vf0"), class("vf1", "r")}},
		{
			name: "config without requests is for all", results: results{result("vf0", "d0")}, config: config{class("vf0")},
			want: `NetworkTopology "ai-bonded-rdma" root step "vf1" has no matching device request in ResourceClaim "c". The ResourceClaim must contain a request named "vf1" with deviceClassName "ai-bonded-rdma-vf1".`,
		},
		{
			name: "a step that is gone", results: results{result("vf0", "d0"), result("vf1", "d1"), result("vf2", "d2")}, config: config{class("vf0", "vf0"), class("vf1", "vf1"), class("vf2", "vf2")},
			want: `ResourceClaim "c" has a device for step "vf2", which NetworkTopology "ai-bonded-rdma" does not have as a root step; it has [vf0, vf1]`,
		},
		{
			name: "a tenant's config", results: results{result("vf0", "d0")}, config: config{class("vf0"), fromClaim},
			want: `ResourceClaim "c": in a claim, config for driver "dra.networking" may have parameters only: the DeviceClass decides which topology and step a device is for: json: unknown field "networkTopologyRef"`,
		},
		{
			name: "no config at all", results: results{result("vf0", "d0")},
			want: `ResourceClaim "c" request "vf0": device "d0" was allocated without a NetworkTopology: request one of the DeviceClasses that have the label "networking.dra.io/topology"`,
		},
		{
			name: "two devices for a step", results: results{result("a", "d0"), result("b", "d1")}, config: config{class("vf0")},
			want: `ResourceClaim "c": requests "a" and "b" are both for root step "vf0" of NetworkTopology "ai-bonded-rdma": a topology takes one device for each of its root steps; request another topology's class for a second network`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			rc := &resourceapi.ResourceClaim{}
			rc.Name = "c"
			rc.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: c.results, Config: c.config}}
			as, err := claim.Allocated(rc)
			if err == nil && len(as) != 1 {
				t.Fatalf("%d assignments, want 1", len(as))
			}
			if err == nil {
				err = claim.Incomplete(pair(), contracts(t), as[0], claim.SourceOf("ResourceClaim", rc))
			}
			check(t, err, c.want)
			if c.want == "" && (as[0].Devices[1] != claim.Device{Step: "vf1", Request: "r/sub", Pool: "n", Name: "d1"}) {
				t.Errorf("device %+v", as[0].Devices[1])
			}
		})
	}
}

// sharing is the config of a class whose devices are for three steps.
func sharing(t *testing.T) claim.Config {
	t.Helper()
	o := &v1alpha1.NetworkTopology{}
	o.Name, o.UID, o.Generation = "ai", "u", 2
	for _, name := range []string{"vf0", "nic", "vf1", "vf2"} {
		s := v1alpha1.Step{Name: name, ExtendedResourceName: "openshift.io/sriov_a"}
		if name == "nic" {
			s.ExtendedResourceName = "example.com/nic"
		}
		o.Spec.Steps = append(o.Spec.Steps, s)
	}
	for _, other := range []string{"nic", "vf1", "vf2"} {
		if cfg := claim.ConfigOf(o, other); cfg.ThenSteps != nil {
			t.Errorf("the class of step %q is for %v", other, cfg.Steps())
		}
	}
	return claim.ConfigOf(o, "vf0")
}

// TestShared assigns the devices of one extended resource to steps, in the same way before
// they are allocated and after.
func TestShared(t *testing.T) {
	cfg := sharing(t)
	raw, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"networkTopologyRef":{"generation":2,"name":"ai","uid":"u"},"step":"vf0","thenSteps":["vf1","vf2"]}`; string(raw) != want {
		t.Errorf("config %s, want %s", raw, want) // the API server wants the keys sorted
	}
	opaque := func(raw []byte) *resourceapi.OpaqueDeviceConfiguration {
		return &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: raw}}
	}
	only := []byte(`{"networkTopologyRef":{"generation":2,"name":"ai","uid":"u"},"step":"vf2"}`)
	for _, c := range []struct {
		name   string
		counts []int64 // of the requests for the shared class; below 0 for that of vf2 alone
		steps  []string
		want   string
	}{
		{name: "one", counts: []int64{1}, steps: []string{"vf0"}},
		{name: "all", counts: []int64{3}, steps: []string{"vf0", "vf1", "vf2"}},
		{name: "two containers", counts: []int64{1, 2}, steps: []string{"vf0", "vf1", "vf2"}},
		{name: "with another class", counts: []int64{-1, 2}, steps: []string{"vf2", "vf0", "vf1"}},
		{name: "too many of one", counts: []int64{4}, want: `request "r0": it is for 4 devices of DeviceClass "shared", of which NetworkTopology "ai" takes 3, for [vf0, vf1, vf2]: ask for 3`},
		{name: "too many of two", counts: []int64{2, 2}, want: `request "r1" is for one device too many: NetworkTopology "ai" takes 3 devices of the class, for its root steps [vf0, vf1, vf2]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var spec resourceapi.DeviceClaim
			rc := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}
			rc.Name = "c"
			got := &rc.Status.Allocation.Devices
			for i, count := range c.counts {
				r, of := exactly(fmt.Sprintf("r%d", i), "shared"), raw
				if count < 0 {
					r.Exactly.DeviceClassName, of, count = "only", only, -count
				}
				r.Exactly.Count = count
				spec.Requests = append(spec.Requests, r)
				for n := range count {
					got.Results = append(got.Results, resourceapi.DeviceRequestAllocationResult{Request: r.Name, Driver: claim.Driver, Pool: "n", Device: fmt.Sprintf("d%d-%d", i, n)})
				}
				got.Config = append(got.Config, resourceapi.DeviceAllocationConfiguration{
					Source: resourceapi.AllocationConfigSourceClass, Requests: []string{r.Name}, DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: opaque(of)},
				})
			}
			demands, err := claim.Requests(&spec, func(name string) (*resourceapi.DeviceClass, error) {
				class := &resourceapi.DeviceClass{}
				class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: opaque(map[string][]byte{"shared": raw, "only": only}[name])}}}
				return class, nil
			})
			check(t, err, c.want)
			assigned, errAllocated := claim.Allocated(rc)
			if c.want != "" {
				if errAllocated == nil {
					t.Errorf("allocated: %+v", assigned)
				}
				return
			}
			if errAllocated != nil {
				t.Fatal(errAllocated)
			}
			var demanded, given []string
			for _, s := range demands[0].Steps {
				demanded = append(demanded, s.Step)
			}
			for _, d := range assigned[0].Devices {
				given = append(given, d.Step)
			}
			if !slices.Equal(demanded, c.steps) || !slices.Equal(given, c.steps) {
				t.Errorf("asked for %v, given %v, want %v", demanded, given, c.steps)
			}
		})
	}
}

// TestSpec holds the constraints of a claim: between the virtual functions that a bond
// joins, and those of the topology.
func TestSpec(t *testing.T) {
	topo := pair()
	topo.Steps = append(topo.Steps, topology.Step{Name: "nic", Type: "host-device"},
		topology.Step{Name: "vlan0", Type: "vlan", DependOn: []string{"nic"}},
		topology.Step{Name: "bond1", Type: "bond", DependOn: []string{"vlan0", "vf0"}},
		topology.Step{Name: "bond2", Type: "bond", DependOn: []string{"vf1", "lo1"}})
	say := func() []string {
		spec := claim.Spec(topo, contracts(t))
		var out []string
		for _, r := range spec.Devices.Requests {
			out = append(out, r.Name+" of "+r.Exactly.DeviceClassName)
		}
		for _, c := range spec.Devices.Constraints {
			if c.MatchAttribute != nil {
				out = append(out, fmt.Sprintf("%v match %s", c.Requests, *c.MatchAttribute))
			}
			if c.DistinctAttribute != nil {
				out = append(out, fmt.Sprintf("%v distinct %s", c.Requests, *c.DistinctAttribute))
			}
		}
		return out
	}
	requests := []string{"vf0 of ai-bonded-rdma-vf0", "vf1 of ai-bonded-rdma-vf1", "nic of ai-bonded-rdma-nic"}
	// A network card that is no virtual function has no physical function, and is one.
	ports := "[vf0 vf1] distinct dra.networking/pfName"
	if got, want := say(), append(slices.Clone(requests), ports); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	topo.ClaimTemplate = &v1alpha1.ClaimTemplate{Constraints: []v1alpha1.ClaimConstraint{{MatchAttribute: "a.b/c"}, {Steps: []string{"vf0", "nic"}, DistinctAttribute: "d.e/f"}}}
	own := []string{"[] match a.b/c", "[vf0 nic] distinct d.e/f"}
	if got, want := say(), slices.Concat(requests, []string{ports}, own); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	topo.ClaimTemplate.BondPorts = v1alpha1.AnyPF
	if got, want := say(), slices.Concat(requests, own); !slices.Equal(got, want) {
		t.Errorf("any ports: got %q, want %q", got, want)
	}
}

// TestPair: a constraint on all devices of a topology is not one on those of another driver, which lack its attributes.
func TestPair(t *testing.T) {
	topo := pair()
	topo.ClaimTemplate = &v1alpha1.ClaimTemplate{BondPorts: v1alpha1.AnyPF, Constraints: []v1alpha1.ClaimConstraint{
		{MatchAttribute: "dra.networking/vfIndex"}, {Steps: []string{"vf1"}, DistinctAttribute: "d.e/f"},
	}}
	spec := claim.Spec(topo, contracts(t))
	if err := claim.Pair(&spec, "gpu.example.com"); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range spec.Devices.Constraints {
		got = append(got, fmt.Sprint(c.Requests))
	}
	if want := []string{"[vf0 vf1]", "[vf1]", "[vf0 vf0-pair]", "[vf1 vf1-pair]"}; !slices.Equal(got, want) {
		t.Errorf("constraints on %q, want %q", got, want)
	}
}

// TestOnePF holds which devices a note reports as failing together.
func TestOnePF(t *testing.T) {
	topo := &topology.Topology{Name: "t", Steps: []topology.Step{
		{Name: "vf0", Type: "sriov"},
		{Name: "vf1", Type: "sriov"},
		{Name: "vf2", Type: "sriov"},
		{Name: "nic", Type: "host-device"},
		{Name: "bond0", Type: "bond", DependOn: []string{"vf0", "vf1", "nic"}},
		{Name: "bond1", Type: "bond", DependOn: []string{"nic", "vf2"}},
	}}
	if notes := claim.OnePF(topo, contracts(t), map[string]string{"vf0": "0000:03:00.0", "vf1": "0000:04:00.0", "vf2": "0000:03:00.0"}); len(notes) != 0 {
		t.Errorf("of devices that no bond joins: %q", notes)
	}
	want := []string{`step "bond0": the devices of ["vf0" "vf1"] are virtual functions of one physical function, 0000:03:00.0, and fail together: have them chosen by a claim as ` + "`plumbline claim`" + ` prints it, or by selectors`}
	if notes := claim.OnePF(topo, contracts(t), map[string]string{"vf0": "0000:03:00.0", "vf1": "0000:03:00.0"}); !slices.Equal(notes, want) {
		t.Errorf("said %q, want %q", notes, want)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"networkTopologyRef":{"name":"a","uid":"u","generation":1},"step":"vf0"}`))
	f.Add([]byte(`{"networkTopologyRef":{"name":"a"},"step":"vf0"} {}`))
	f.Add([]byte(`{"networkTopologyRef":{"name":"a"},"step":"vf0","thenSteps":["vf1",""]}`))
	f.Add([]byte(`{"networkTopologyRef":{"name":"a"},"step":"vf0","mac":"x"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := claim.ParseConfig(data)
		if err == nil && (c.NetworkTopologyRef.Name == "" || c.Step == "") {
			t.Errorf("%q names no topology or no step, and is no error", data)
		}
	})
}

// TestSharing holds which root steps have a class, which of them a claim must have a
// device for, that ports of a bond are on different devices, and that a report is that of
// its own share.
func TestSharing(t *testing.T) {
	topo := &topology.Topology{Name: "t", Steps: []topology.Step{
		{Name: "a", Type: "macvlan"},
		{Name: "b", Type: "ipvlan", Config: map[string]any{"master": "bond0"}},
		{Name: "chosen", Type: "macvlan", Selector: "true"},
		{Name: "inside", Type: "macvlan", Config: map[string]any{"linkInContainer": true}},
		{Name: "vf", Type: "sriov"},
		{Name: "bond", Type: "bond", DependOn: []string{"a", "b"}},
		{Name: "mixed", Type: "bond", DependOn: []string{"chosen", "vf"}},
	}}
	set := contracts(t)
	names := func(steps []*topology.Step) (out []string) {
		for _, s := range steps {
			out = append(out, s.Name)
		}
		return out
	}
	if have, want := names(claim.Roots(topo, set)), []string{"a", "b", "chosen", "vf"}; !slices.Equal(have, want) {
		t.Errorf("have classes: %q, want %q", have, want)
	}
	if have, want := names(claim.Required(topo, set)), []string{"chosen", "vf"}; !slices.Equal(have, want) {
		t.Errorf("must be requested: %q, want %q", have, want)
	}
	spec := claim.Spec(topo, set)
	if c := spec.Devices.Constraints; len(spec.Devices.Requests) != 4 || len(c) != 1 || !slices.Equal(c[0].Requests, []string{"a", "b"}) || *c[0].DistinctAttribute != claim.IfName {
		t.Errorf("claim %+v", spec)
	}
	step, _ := topo.Step("b")
	c, _ := set.Contract("ipvlan")
	if below, inside := claim.Below(step, c); below != "bond0" || inside {
		t.Errorf("step b is on %q, inside %v", below, inside)
	}

	rc := &resourceapi.ResourceClaim{}
	device := func(step, share string) {
		rc.Status.Allocation.Devices.Results = append(rc.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{Request: step, Driver: claim.Driver, Pool: "n", Device: "d-x", ShareID: new(types.UID(share))})
		rc.Status.Allocation.Devices.Config = append(rc.Status.Allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClass, Requests: []string{step},
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: []byte(`{"networkTopologyRef":{"name":"` + step + `"},"step":"a"}`)}}},
		})
		rc.Status.Devices = append([]resourceapi.AllocatedDeviceStatus{{Driver: claim.Driver, Pool: "n", Device: "d-x", ShareID: &share, Data: &runtime.RawExtension{Raw: []byte(`{"topology":"` + step + `","generation":7}`)}}}, rc.Status.Devices...)
	}
	rc.Status.Allocation = &resourceapi.AllocationResult{}
	device("one", "s1")
	device("two", "s2")
	for _, r := range claim.Reports(rc) {
		if r.Generation != 7 {
			t.Errorf("topology %q: %+v", r.Topology, r)
		}
	}
}

// TestPairRefused: a claim that no API server would accept is not written.
func TestPairRefused(t *testing.T) {
	long := strings.Repeat("a", 60)
	many := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprint("rail", i))
		}
		return out
	}
	for _, tt := range []struct {
		requests []string
		shared   int // constraints that there are
		want     string
	}{
		{many(16), 16, ""},
		{many(17), 0, "34 requests, and a claim has at most 32"},
		{many(16), 17, "33 constraints, and a claim has at most 32"},
		{[]string{"rail", "rail-pair"}, 0, `would have the name "rail-pair" of another request`},
		{[]string{long}, 0, `would be called "` + long + `-pair"`},
	} {
		var spec resourceapi.ResourceClaimSpec
		for _, name := range tt.requests {
			spec.Devices.Requests = append(spec.Devices.Requests, resourceapi.DeviceRequest{Name: name})
		}
		spec.Devices.Constraints = slices.Repeat([]resourceapi.DeviceConstraint{{}}, tt.shared)
		err := claim.Pair(&spec, "gpu.example.com")
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%d requests: %v, want %q", len(tt.requests), err, tt.want)
		}
	}
}
