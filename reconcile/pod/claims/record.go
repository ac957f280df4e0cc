package claims

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Claim is a ResourceClaim as it was prepared.
type Claim struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	// Pod is the one pod the claim is reserved for.
	Pod        Pod        `json:"pod"`
	Topologies []Topology `json:"topologies"`
	Prepared   time.Time  `json:"prepared"`
	// Beside are the PCI addresses of devices that other drivers have given the claim, as they publish them. They are known if a topology
	// exports the topology file of NCCL.
	Beside []string `json:"beside,omitempty"`
}

// Pod names a pod in the claim's namespace.
type Pod struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// Topology is the record of one topology of a claim.
type Topology struct {
	// Object is the topology as it was read, without status and managed fields. Its UID and
	// generation pin it.
	Object v1alpha1.NetworkTopology `json:"object"`
	// Next is the later generation that an update applies: the pod has one of both, or
	// a state between them.
	Next    *v1alpha1.NetworkTopology `json:"next,omitempty"`
	Devices []Device                  `json:"devices"`
	// Prepared: steps that give device nodes are applied before there is a sandbox, see
	// Preparation.
	Prepared bool `json:"prepared,omitempty"`
	// Attached is the generation that the pod has had attached, 0 for none. A later
	// version that would refuse it attaches it again after a reboot.
	Attached int64 `json:"attached,omitempty"`
	// Given are the given values of steps other than devices.
	Given ops.Givens `json:"given,omitempty"`
	// Parameters are the claim's values in the configs of steps, permitted by the topology when the claim was prepared.
	Parameters []topology.Parameters `json:"parameters,omitempty"`

	read []decoded // Object and Next, as they were when the record was read, or as kept before
}

// decoded is a generation of an object, decoded.
type decoded struct {
	uid        types.UID
	generation int64
	topology   *topology.Topology
	err        error
}

// decode decodes the topologies of a claim whose record was read.
func (c *Claim) decode() {
	for i := range c.Topologies {
		t := &c.Topologies[i]
		for _, o := range []*v1alpha1.NetworkTopology{&t.Object, t.Next} {
			if o != nil {
				d := decoded{uid: o.UID, generation: o.Generation}
				d.topology, d.err = t.With(topology.FromObject(o))
				t.read = append(t.read, d)
			}
		}
	}
}

// With returns a topology of the claim with the claim's parameters.
func (t *Topology) With(of *topology.Topology, err error) (*topology.Topology, error) {
	if err != nil {
		return of, err
	}
	return of.With(t.Parameters), nil
}

// Decoded returns Object as a topology, with the claim's parameters. Callers share it, and must not change it.
func (t *Topology) Decoded() (*topology.Topology, error) { return t.Generation(&t.Object) }

// Generations returns Object, and Next if there is one, as topologies, without one that cannot be decoded. Callers share them,
// and must not change them.
func (t *Topology) Generations() (out []*topology.Topology) {
	for _, o := range []*v1alpha1.NetworkTopology{&t.Object, t.Next} {
		if o == nil {
			continue
		}
		if decoded, err := t.Generation(o); err == nil {
			out = append(out, decoded)
		}
	}
	return out
}

// Keep has Generation return a generation that the caller has decoded, with the claim's parameters: Object, or a later one.
func (t *Topology) Keep(o *v1alpha1.NetworkTopology, of *topology.Topology) {
	now := slices.DeleteFunc(slices.Clone(t.read), func(d decoded) bool {
		return d.uid != t.Object.UID || d.generation != t.Object.Generation
	})
	t.read = append(now, decoded{uid: o.UID, generation: o.Generation, topology: of})
}

// Generation returns a generation with the claim's parameters. One that is neither of the record that was read nor kept is decoded.
func (t *Topology) Generation(o *v1alpha1.NetworkTopology) (*topology.Topology, error) {
	for _, d := range t.read {
		if d.uid == o.UID && d.generation == o.Generation {
			return d.topology, d.err
		}
	}
	return t.With(topology.FromObject(o))
}

// HasNodes reports whether the results of the steps may have device nodes. Steps of an unknown type may.
func (t *Topology) HasNodes(contracts contract.Set) bool {
	decoded, err := t.Decoded()
	return err != nil || t.Prepared || slices.ContainsFunc(decoded.Steps, func(s topology.Step) bool {
		known, ok := contracts.Contract(s.Type)
		return !ok || known.MayGiveNodes(s.Config)
	})
}

// Exports reports whether containers are told of the results of the steps.
func (t *Topology) Exports() bool { return t.Object.Spec.Export != nil }

// OnePF returns notes about devices that fail together although the topology joins them for
// redundancy.
func (t *Topology) OnePF(set contract.Set) []string {
	decoded, err := t.Decoded()
	if err != nil {
		return nil // reported by the caller that prepares or attaches it
	}
	pf := map[string]string{}
	for i := range t.Devices {
		if d := &t.Devices[i]; d.Host.PF != nil {
			pf[d.Step] = d.Host.PF.PCIAddress
		}
	}
	return claim.OnePF(decoded, set, pf)
}

// Pinned returns the part of a topology that is recorded. By its labels NetworkQoS
// objects select when it no longer exists.
func Pinned(o *v1alpha1.NetworkTopology) v1alpha1.NetworkTopology {
	return v1alpha1.NetworkTopology{
		TypeMeta:   o.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, Generation: o.Generation, Labels: o.Labels},
		Spec:       *o.Spec.DeepCopy(),
	}
}

// Topology returns what the claim records for a topology, or nil.
func (c *Claim) Topology(name string) *Topology {
	i := slices.IndexFunc(c.Topologies, func(t Topology) bool { return t.Object.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Topologies[i]
}

// Updating reports whether a topology is, or was left, between two generations.
func (c *Claim) Updating() bool {
	return slices.ContainsFunc(c.Topologies, func(t Topology) bool { return t.Next != nil })
}

// Unchosen returns a device that its step's selector does not choose: the device
// was given to an earlier generation of the topology. Nil when all are chosen.
func Unchosen(ctx context.Context, t *topology.Topology, devices []Device) (*Device, error) {
	for i := range devices {
		s, ok := t.Step(devices[i].Step)
		if !ok || s.Selector == "" {
			continue
		}
		selector, err := inventory.Compile(s.Selector)
		if err != nil {
			return nil, fault.New(fault.Invalid, fmt.Errorf("NetworkTopology %q step %q: %w", t.Name, s.Name, err))
		}
		if matches, err := selector.Match(ctx, *cmp.Or(devices[i].Offered, &devices[i].Host)); err != nil || !matches {
			return &devices[i], err
		}
	}
	return nil, nil
}

// Device is an allocated device.
type Device struct {
	claim.Device
	// Host is the device as it was on the host before it was given to the pod.
	Host inventory.Device `json:"host"`
	// Offered is the allocated device if that is not Host: the PF, if Host is a function of
	// it that the node has chosen.
	Offered *inventory.Device `json:"offered,omitempty"`
}

// mbit is a unit of rates of functions.
const mbit = 1_000_000

// Given returns the given values of the device's step.
func (d *Device) Given() ops.Given {
	out := ops.Given{Device: d.Host.ID}
	if d.ShareID != nil {
		out.Share = string(*d.ShareID)
	}
	// With several networks it is unknown which one is meant.
	if n := d.Host.PhysicalNetworks; len(n) == 1 && (d.Host.Shared == nil || d.Offered != nil) && d.Host.Kind == inventory.KindVF &&
		d.Host.LinkType == inventory.Ethernet {
		out.VLAN = uint16(n[0].VLAN)
	}
	if d.Offered != nil && d.Bandwidth > 0 {
		out.MaxTxRate = uint32(min(max(d.Bandwidth/mbit, 1), math.MaxUint32))
	}
	return out
}

// DevicesOf returns the devices with these IDs, by step, as they are on the host now.
func DevicesOf(ids map[string]string, host []inventory.Device) ([]Device, error) {
	var out []Device
	for _, step := range slices.Sorted(maps.Keys(ids)) {
		i := slices.IndexFunc(host, func(d inventory.Device) bool { return d.ID == ids[step] })
		if i < 0 {
			return nil, fmt.Errorf("step %q: device %q does not exist on this host", step, ids[step])
		}
		out = append(out, Device{Device: claim.Device{Step: step, Name: host[i].Name}, Host: host[i]})
	}
	return out, nil
}

// SandboxID returns the engine's ID of the topology in a runtime's sandbox.
func (c *Claim) SandboxID(sandbox string, t *Topology) reconcile.SandboxID {
	return reconcile.IDOfClaim(sandbox, string(c.UID), t.Object.Name)
}

// Sandboxes returns what is to be applied in a runtime's sandbox.
func (c *Claim) Sandboxes(sandbox, netns string) ([]reconcile.Sandbox, error) {
	var out []reconcile.Sandbox
	for i := range c.Topologies {
		t := &c.Topologies[i]
		sb, err := c.SandboxOf(t, &t.Object, sandbox, netns)
		if err != nil {
			return nil, err
		}
		out = append(out, sb)
	}
	return out, nil
}

// SandboxOf returns what is to be applied for one generation of a topology. A device
// whose step no longer exists stays on the host.
func (c *Claim) SandboxOf(t *Topology, o *v1alpha1.NetworkTopology, sandbox, netns string) (reconcile.Sandbox, error) {
	decoded, err := t.Generation(o)
	if err != nil {
		return reconcile.Sandbox{}, err
	}
	given := t.Given.ForSteps(decoded)
	for _, d := range t.Devices {
		if s, ok := decoded.Step(d.Step); ok && len(s.DependOn) == 0 {
			given[d.Step] = d.Given().WithNetwork(given[d.Step])
		}
	}
	sb := reconcile.Sandbox{ID: c.SandboxID(sandbox, t), Netns: netns, Topology: decoded, Given: given}
	sb.AppliedBefore = t.Attached != 0 && t.Attached == o.Generation
	if t.Prepared {
		sb.Prepared = reconcile.IDOfPreparation(string(c.UID), t.Object.Name)
	}
	return sb, nil
}

// Prepares reports whether something is applied for the claim before there is a sandbox. It
// lasts until the claim is withdrawn.
func (c *Claim) Prepares() bool {
	return slices.ContainsFunc(c.Topologies, func(t Topology) bool { return t.Prepared })
}

// Preparation returns the part of one generation of a topology that is applied before there
// is a sandbox, the steps that give device nodes: a runtime is given the nodes when it
// creates a container. It needs no namespace.
func (c *Claim) Preparation(t *Topology, o *v1alpha1.NetworkTopology, contracts contract.Set) (reconcile.Sandbox, error) {
	sb, err := c.SandboxOf(t, o, "", "")
	if err != nil {
		return reconcile.Sandbox{}, err
	}
	part := *sb.Topology
	part.Steps = slices.DeleteFunc(slices.Clone(part.Steps), func(s topology.Step) bool { return !GivesNodes(contracts, &s) })
	maps.DeleteFunc(sb.Given, func(step string, _ ops.Given) bool { _, ok := part.Step(step); return !ok })
	sb.ID, sb.Prepared, sb.Topology = reconcile.IDOfPreparation(string(c.UID), t.Object.Name), "", &part
	return sb, nil
}

// GivesNodes reports whether a step gives device nodes of its device and makes no interface. A derived step has no device.
func GivesNodes(contracts contract.Set, s *topology.Step) bool {
	known, ok := contracts.Contract(s.Type)
	return ok && s.Root() && known.Output.InsteadOfInterface()
}

// Phase is the phase of a claim in a sandbox.
type Phase string

// The phases.
const (
	Attaching Phase = "Attaching" // the engine is applying it, or a crash interrupted that
	Attached  Phase = "Attached"  // every topology was verified
	Failed    Phase = "Failed"    // it was rolled back; it may be retried
	Stopping  Phase = "Stopping"  // it must be released, and never attached again
	Released  Phase = "Released"  // nothing of it is left
)

// Sandbox is the sandbox of a container runtime, and the phase of the claim in it.
type Sandbox struct {
	ID     string    `json:"id"` // the runtime's
	PodUID types.UID `json:"podUID"`
	Netns  string    `json:"netns"` // path
	// NetnsID identifies the namespace at the path; without the cookie.
	NetnsID reconcile.NetnsID `json:"netnsID"`
	Phase   Phase             `json:"phase"`
	// Failure is why the phase is Failed.
	Failure string `json:"failure,omitempty"`
}

// Held reports whether the sandbox may have something of the claim.
func (s *Sandbox) Held() bool { return s.Phase != Released }

// Entry is all that is recorded of a claim.
type Entry struct {
	Claim
	// In lists the sandboxes of this boot, oldest first. The last released ones
	// are kept, so that late calls for them are recognized.
	In []Sandbox
}

// Sandbox returns one of the sandboxes, nil when it is not known.
func (e *Entry) Sandbox(id string) *Sandbox {
	i := slices.IndexFunc(e.In, func(s Sandbox) bool { return s.ID == id })
	if i < 0 {
		return nil
	}
	return &e.In[i]
}

// Attached returns the sandbox that has all topologies, nil for none.
func (e *Entry) Attached() *Sandbox {
	i := slices.IndexFunc(e.In, func(s Sandbox) bool { return s.Phase == Attached })
	if i < 0 {
		return nil
	}
	return &e.In[i]
}

// remembered bounds how many released sandboxes stay listed.
const remembered = 16

// Set adds a sandbox or replaces the one of the same ID.
func (e *Entry) Set(s Sandbox) {
	if old := e.Sandbox(s.ID); old != nil {
		*old = s
	} else {
		e.In = append(e.In, s)
	}
	released := 0
	for i, s := range slices.Backward(e.In) {
		if s.Phase != Released {
			continue
		}
		if released++; released > remembered {
			e.In = slices.Delete(e.In, i, i+1)
		}
	}
}

// Held reports whether a sandbox may have something of the claim.
func (e *Entry) Held() bool {
	return slices.ContainsFunc(e.In, func(s Sandbox) bool { return s.Held() })
}
