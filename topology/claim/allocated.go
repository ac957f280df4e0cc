package claim

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// Device is one allocated device and the root step it is for.
type Device struct {
	Step string `json:"step"`
	// Request names the request, or "request/subrequest" of a prioritised list.
	Request string     `json:"request"`
	Pool    string     `json:"pool"`
	Name    string     `json:"name"` // in its ResourceSlice
	ShareID *types.UID `json:"shareID,omitempty"`
	// Bandwidth is the claim's share of the device's bandwidth, in bit/s.
	Bandwidth int64 `json:"bandwidth,omitempty"`
}

// Assignment is a claim's devices for one topology.
type Assignment struct {
	Topology TopologyRef `json:"topology"`
	Devices  []Device    `json:"devices"` // at most one a step, in order of allocation
	// Parameters are the claim's values in the configs of the topology's steps. Permission is not checked.
	Parameters []topology.Parameters `json:"parameters,omitempty"`
}

// bandwidth is the capacity of a shared device from which Device.Bandwidth is taken.
const bandwidth resourceapi.QualifiedName = "bandwidth"

// Allocated returns the devices that the claim's allocation has for each topology, in order
// of allocation; nothing when none of its devices are ours.
//
// Errors are of kind Invalid: the claim is not allocated, a device of ours comes
// without a class's config or with config from the claim, two devices are for
// one step, or classes of one topology pin different generations of it.
func Allocated(c *resourceapi.ResourceClaim) ([]Assignment, error) {
	if c.Status.Allocation == nil {
		return nil, fault.New(fault.NotReady, fmt.Errorf("ResourceClaim %q is not allocated", c.Name))
	}
	var out []Assignment
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != Driver {
			continue
		}
		cfg, err := configFor(c.Status.Allocation.Devices.Config, r)
		if err != nil {
			return nil, fault.New(fault.Invalid, fmt.Errorf("ResourceClaim %q request %q: %w", c.Name, r.Request, err))
		}
		if r.AdminAccess != nil && *r.AdminAccess {
			return nil, fault.New(fault.Invalid, fmt.Errorf(
				"ResourceClaim %q request %q: admin access is for watching a device, and a topology would move it: remove adminAccess",
				c.Name, r.Request))
		}
		d := Device{Request: r.Request, Pool: r.Pool, Name: r.Device, ShareID: r.ShareID}
		if q, ok := r.ConsumedCapacity[bandwidth]; ok {
			d.Bandwidth = q.Value()
		}
		if err := add(&out, cfg, d); err != nil {
			return nil, fault.New(fault.Invalid, fmt.Errorf("ResourceClaim %q: %w", c.Name, err))
		}
	}
	if err := allocatedParameters(c, out); err != nil {
		return nil, fault.New(fault.Invalid, fmt.Errorf("ResourceClaim %q: %w", c.Name, err))
	}
	return out, nil
}

// allocatedParameters adds to each topology what the claim sets for it.
func allocatedParameters(c *resourceapi.ResourceClaim, to []Assignment) error {
	for _, e := range c.Status.Allocation.Devices.Config {
		if e.Source != resourceapi.AllocationConfigSourceClaim || e.Opaque == nil || e.Opaque.Driver != Driver {
			continue
		}
		set, err := parseParameters(e.Opaque.Parameters.Raw)
		if err != nil {
			return err
		}
		a, err := onlyOne(to, func(a *Assignment) (string, bool) {
			return a.Topology.Name, slices.ContainsFunc(a.Devices, func(d Device) bool { return isFor(e.Requests, d.Request) })
		})
		if err != nil {
			return err
		}
		if a != nil { // else it is of a request that was not allocated to us
			a.Parameters = append(a.Parameters, set...)
		}
	}
	return nil
}

// configFor returns the class's config for one device. An allocation entry
// without requests is for all of them (the 1.37 allocator empties the list).
func configFor(entries []resourceapi.DeviceAllocationConfiguration, r resourceapi.DeviceRequestAllocationResult) (Config, error) {
	var found *Config
	for _, e := range resourceclaim.ConfigForResult(entries, r) {
		if e.Opaque == nil || e.Opaque.Driver != Driver {
			continue
		}
		if e.Source != resourceapi.AllocationConfigSourceClass {
			continue // its parameters, see allocatedParameters
		}
		cfg, err := ParseConfig(e.Opaque.Parameters.Raw)
		if err != nil {
			return Config{}, fmt.Errorf("config of the DeviceClass: %w", err)
		}
		if found != nil && !found.Equal(cfg) {
			return Config{},
				fmt.Errorf("its DeviceClass has config for step %q of NetworkTopology %q and for step %q of %q: one class serves one step",
					found.Step, found.NetworkTopologyRef.Name, cfg.Step, cfg.NetworkTopologyRef.Name)
		}
		found = &cfg
	}
	if found == nil {
		return Config{},
			fmt.Errorf("device %q was allocated without a NetworkTopology: request one of the DeviceClasses that have the label %q",
				r.Device, LabelTopology)
	}
	return *found, nil
}

// add adds a device, for the first step of its class that has none.
func add(to *[]Assignment, cfg Config, d Device) error {
	ref := cfg.NetworkTopologyRef
	i := slices.IndexFunc(*to, func(a Assignment) bool { return a.Topology.Name == ref.Name })
	if i < 0 {
		d.Step = cfg.Step
		*to = append(*to, Assignment{Topology: ref, Devices: []Device{d}})
		return nil
	}
	a := &(*to)[i]
	if a.Topology != ref {
		return fmt.Errorf("it was allocated while NetworkTopology %q changed: "+
			"request %q has generation %d of it, request %q generation %d. Delete the claim, or its pod, and create it again",
			ref.Name, a.Devices[0].Request, a.Topology.Generation, d.Request, ref.Generation)
	}
	of := func(step string) int {
		return slices.IndexFunc(a.Devices, func(other Device) bool { return other.Step == step })
	}
	for _, step := range cfg.Steps() {
		if of(step) < 0 {
			d.Step = step
			a.Devices = append(a.Devices, d)
			return nil
		}
	}
	return errTwice(cfg, a.Devices[of(cfg.Step)].Request, d.Request)
}

// Incomplete returns an error of kind Invalid unless the assignment has a device
// for each of Required, and none for a step that is not one of Roots.
func Incomplete(t *topology.Topology, set contract.Set, a Assignment, of Source) error {
	roots := names(Roots(t, set))
	steps := make([]string, len(a.Devices))
	for i, d := range a.Devices {
		steps[i] = d.Step
	}
	for _, s := range names(Required(t, set)) {
		if !slices.Contains(steps, s) {
			return fault.New(fault.Invalid, errors.New(noRequest(t, set, s, of)))
		}
	}
	for _, s := range steps {
		if !slices.Contains(roots, s) {
			return fault.New(fault.Invalid, fmt.Errorf(
				"%s has a device for step %q, which NetworkTopology %q does not have as a root step; it has [%s]",
				of, s, t.Name, strings.Join(roots, ", ")))
		}
	}
	return nil
}

// noRequest is two sentences for a pod's Event.
func noRequest(t *topology.Topology, set contract.Set, step string, of Source) string {
	if of.Pod != "" {
		return fmt.Sprintf("NetworkTopology %q root step %q has no device, as Pod %q does not request one. %s", t.Name, step, of.Pod,
			limits(t, set))
	}
	return fmt.Sprintf("NetworkTopology %q root step %q has no matching device request in %s. "+
		"The ResourceClaim must contain a request named %q with deviceClassName %q.",
		t.Name, step, of, step, ClassName(t.Name, step))
}
