package draplugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

func invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, fmt.Errorf(format, args...))
}

// prepare decides what a claim is for and records it. It is idempotent by UID. It waits for
// temporary conditions to end, until ctx ends, and holds no lock meanwhile: the kubelet
// retries only a minute after a failure.
func (p *Plugin) prepare(ctx context.Context, rc *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	assigned, err := claim.Allocated(rc)
	if err != nil || len(assigned) == 0 {
		return nil, err
	}
	pod, err := onlyPod(rc)
	if err != nil {
		return nil, err
	}
	d := decision{p, rc, pod, assigned}
	devices, err := retry(ctx, func() ([]kubeletplugin.Device, error) { return d.try(ctx) }, func(err error) {
		p.Log.Info("waiting to prepare", "claim", rc.Namespace+"/"+rc.Name, "pod", pod.Name, "reason", err)
	})
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		// Where the time ended says nothing: a step before that took it.
		err = fault.New(fault.NotReady, fmt.Errorf("this node or the API server is overloaded; retrying: %w", err))
	}
	if err != nil {
		p.Log.Warn("not prepared", "claim", rc.Namespace+"/"+rc.Name, "pod", pod.Name, "kind", fault.Of(err), "error", err)
	}
	return devices, err
}

// decision is the preparation of a claim for a pod.
type decision struct {
	*Plugin
	rc       *resourceapi.ResourceClaim
	pod      claims.Pod
	assigned []claim.Assignment
}

// try prepares the claim, or makes room for the next try.
func (d *decision) try(ctx context.Context) ([]kubeletplugin.Device, error) {
	for {
		devices, err := d.record(ctx)
		t, ok := errors.AsType[*taken](err)
		if !ok {
			return devices, err
		}
		if err := d.giveOn(ctx, t); err != nil {
			return nil, err
		}
	}
}

// record answers from the record, or writes it. For writing, the claim is locked, and all
// claims only while its devices are reserved. Reading needs no lock: an attachment may hold
// the claim's lock for minutes, and does not change the answer.
func (d *decision) record(ctx context.Context) ([]kubeletplugin.Device, error) {
	if e, _, answers, err := d.recorded(); answers && !d.toPrepare(&e) || err != nil {
		if err == nil {
			err = d.lostAddress(&e)
		}
		return d.devices(e), err
	}
	unlock, err := d.Store.Lock(ctx, d.rc.UID)
	if err != nil {
		return nil, passing(err)
	}
	defer unlock()
	e, known, answers, err := d.recorded()
	switch {
	case answers && err == nil && d.toPrepare(&e):
		return d.devices(e), d.Keeper.Prepare(ctx, &e.Claim)
	case answers || err != nil:
		return d.devices(e), err
	case known && e.Held():
		return nil, passing(fault.New(fault.Conflict,
			fmt.Errorf("ResourceClaim %q is still attached to pod %q: it is released when that pod has ended", d.rc.Name, e.Pod.Name)))
	case known && !pins(&e.Claim, d.assigned):
		// It was reallocated while the agent was not called.
		return nil, &taken{by: e, err: errors.New("it is prepared for devices of an earlier allocation")}
	}
	c := claims.Claim{UID: d.rc.UID, Namespace: d.rc.Namespace, Name: d.rc.Name, Pod: d.pod, Prepared: d.Now().UTC()}
	if known {
		// The claim outlived its pod. The decision for it stays, but was not attached
		// in this pod.
		c.Topologies = slices.Clone(e.Topologies)
		for i := range c.Topologies {
			if e.Pod.UID != d.pod.UID {
				c.Topologies[i].Attached = 0
			}
		}
	} else if c.Topologies, err = d.resolve(ctx, claim.SourceOf("ResourceClaim", d.rc), d.assigned); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(c.Topologies, func(t claims.Topology) bool {
		return t.Exports() && slices.Contains(t.Object.Spec.Export.Presets, v1alpha1.ExportNCCLTopology)
	}) {
		if c.Beside, err = d.Cluster.Beside(ctx, d.rc); err != nil {
			return nil, err
		}
	}
	if d.Known != nil {
		// Here one may wait for the API server; when the pod is attached it is too late.
		if err := d.Known(c.Namespace, c.Pod); err != nil {
			return nil, passing(err)
		}
	}
	if err := d.plug(ctx, &c); err != nil {
		return nil, err
	}
	if !known {
		// Its record may have been damaged, while its addresses are on links.
		if known, err = d.Store.InSandbox(d.rc.UID); err != nil {
			return nil, passing(err)
		}
	}
	if err := d.addresses(&c, !known); err != nil {
		return nil, err
	}
	if err := d.reserve(ctx, &c); err != nil {
		return nil, err
	}
	if err := d.Keeper.Prepare(ctx, &c); err != nil {
		return nil, err
	}
	d.Log.Info("prepared", "claim", c.Namespace+"/"+c.Name, "pod", c.Pod.Name, "topologies", len(c.Topologies))
	return d.devices(claims.Entry{Claim: c}), nil
}

// addresses allocates addresses of pools to the steps of a claim, and reserves those that its
// topologies have as literals, and the MAC addresses that it sets. They are those recorded
// before, unless the node has lost its lease meanwhile; fresh says that there is no record,
// and no sandbox has anything of the claim.
func (d *decision) addresses(c *claims.Claim, fresh bool) error {
	of := addresses.Claim{
		UID: c.UID, Namespace: c.Namespace, Name: c.Name, Pod: c.Pod.Name, PodUID: c.Pod.UID, InPod: inPod(d.rc), New: fresh,
	}
	var wants []addresses.Want
	at := map[addresses.Want]int{}
	for i := range c.Topologies {
		t, err := c.Topologies[i].Decoded()
		if err != nil {
			return err
		}
		of.Literals = append(of.Literals, addresses.Literals(t, c.Topologies[i].Parameters)...)
		of.Gateways = append(of.Gateways, topology.RouteGateways(t)...)
		own, err := addresses.Wants(t)
		if err != nil {
			return err
		}
		for _, w := range own {
			if w.OfSubnets() && c.Topologies[i].Given[w.Step].Port != nil {
				continue // ovn-kubernetes gives its addresses, or none
			}
			if w.Pool == "" {
				if w.Pool, w.Network, err = poolOf(&c.Topologies[i], w.Step); err != nil {
					return fmt.Errorf("step %q of NetworkTopology %q: %w", w.Step, t.Name, err)
				}
			}
			wants = append(wants, w)
			at[w] = i
		}
	}
	if len(wants) == 0 && len(of.Literals) == 0 {
		return nil
	}
	given, err := d.Addresses.Take(of, wants)
	if err != nil {
		if fault.Of(err) == fault.NotReady || errors.Is(err, addresses.ErrInUse) {
			err = passing(err)
		}
		return err
	}
	for _, w := range wants {
		t := &c.Topologies[at[w]]
		out := ops.Givens{}
		maps.Copy(out, t.Given)
		port := out[w.Step].Port
		of := out[w.Step].WithNetwork(given[w])
		of.Port = port
		out[w.Step] = of
		t.Given = out
	}
	return nil
}

// poolOf returns the pool for a step that names none, and its physical network: the recorded pool, else that of the network
// which the step's device is wired to.
func poolOf(t *claims.Topology, step string) (pool, network string, err error) {
	i := slices.IndexFunc(t.Devices, func(d claims.Device) bool { return d.Step == step })
	if i < 0 {
		return "", "", invalid("ipam names no AddressPool, and the claim has no device for the step: name one in ipam.pool")
	}
	host := &t.Devices[i].Host
	pool, network, err = host.AddressPool()
	switch recorded := t.Given[step].Pool; {
	case recorded != "":
		return recorded, network, nil
	case err != nil:
		return "", "",
			invalid("ipam names no AddressPool, and %w: name an AddressPool in ipam.pool, or have the selector of the step choose one of "+
				"the networks, such as device.attributes[\"dra.networking\"].physicalNetworkName == %q", err, host.PhysicalNetworks[0].Name)
	case pool != "":
		return pool, network, nil
	case host.Exposure.NoPool != "":
		err = fmt.Errorf("ipam names no AddressPool, and %s: add it there, or name an AddressPool in ipam.pool", host.Exposure.NoPool)
	case network != "":
		err = fmt.Errorf("ipam names no AddressPool, and no DeviceExposurePolicy names an addressPool of physical network %q: "+
			"add it there, or name one in ipam.pool", network)
	case host.Exposure.Verdict == inventory.Undecided && host.Exposure.Policy == "":
		err = errors.New("ipam names no AddressPool, and the DeviceExposurePolicies are not known yet")
	default:
		err = fmt.Errorf("ipam names no AddressPool, and no DeviceExposurePolicy names the physical network of device %q: "+
			"add physicalNetworks with an addressPool to one, or name an AddressPool in ipam.pool", host.Name)
		if host.Exposure.Reason != "" {
			err = fault.Detailed(err, host.Exposure.Reason)
		}
	}
	return "", "", passing(fault.New(fault.NotReady, err))
}

// inPod returns the name that a claim has in its pod. Who creates a claim can write any text into the annotation;
// what cannot be a name in a pod, as it is too long for a lease, is not used.
func inPod(c *resourceapi.ResourceClaim) string {
	if name := c.Annotations[resourceapi.PodResourceClaimAnnotation]; len(validation.IsDNS1123Label(name)) == 0 {
		return name
	}
	return c.Name
}

// lostAddress returns an error if a recorded claim that is in no sandbox has an address
// that another node may have by now.
func (d *decision) lostAddress(e *claims.Entry) error {
	if e.Held() || !slices.ContainsFunc(e.Topologies, func(t claims.Topology) bool { return t.Given.Addressed() }) {
		return nil
	}
	return d.Addresses.Lost(e.UID)
}

// toPrepare reports whether the devices of a recorded claim may have to be prepared, as
// after a boot. A claim in a sandbox of this boot is prepared.
func (d *decision) toPrepare(e *claims.Entry) bool {
	return !e.Held() && e.Prepares()
}

// recorded returns the record of the claim, and whether it answers the request for the pod.
// A record of another version of plumbline is an error.
func (d *decision) recorded() (e claims.Entry, known, answers bool, err error) {
	e, known, err = d.Store.Get(d.rc.UID)
	switch {
	case frame.AsOtherVersion(err) != nil:
		return claims.Entry{}, false, false, err
	case err != nil:
		d.Log.Error("cannot read claim records", "error", err) // it is set aside; the claim is decided again
		return claims.Entry{}, false, false, nil
	}
	return e, known, known && e.Pod.UID == d.pod.UID && pins(&e.Claim, d.assigned), nil
}

// pins reports whether a record has the devices and the topologies of a claim's allocation.
func pins(c *claims.Claim, assigned []claim.Assignment) bool {
	return slices.EqualFunc(c.Topologies, assigned, func(t claims.Topology, a claim.Assignment) bool {
		return t.Object.Name == a.Topology.Name && (a.Topology.UID == "" || a.Topology.UID == t.Object.UID) &&
			slices.EqualFunc(t.Devices, a.Devices, func(x claims.Device, y claim.Device) bool { return sameDevice(x.Device, y) })
	})
}

func sameDevice(x, y claim.Device) bool {
	if (x.ShareID == nil) != (y.ShareID == nil) || x.ShareID != nil && *x.ShareID != *y.ShareID {
		return false
	}
	x.ShareID, y.ShareID = nil, nil
	return x == y
}

// onlyPod returns the pod a claim is reserved for.
func onlyPod(rc *resourceapi.ResourceClaim) (claims.Pod, error) {
	switch users := rc.Status.ReservedFor; {
	case len(users) == 0:
		return claims.Pod{}, fault.New(fault.NotReady, fmt.Errorf("ResourceClaim %q is not reserved for a pod", rc.Name))
	case len(users) > 1:
		names := make([]string, len(users))
		for i, u := range users {
			names[i] = u.Resource + "/" + u.Name
		}
		return claims.Pod{},
			invalid("ResourceClaim %q is shared by %s: its devices are moved into a pod, and a device is in one pod at a time. "+
				"Give each pod a claim of its own with a ResourceClaimTemplate",
				rc.Name, strings.Join(names, ", "))
	case users[0].APIGroup != "" || users[0].Resource != "pods":
		return claims.Pod{},
			invalid("ResourceClaim %q is reserved for %s %q, not for a pod: give each pod a claim of its own with a ResourceClaimTemplate",
				rc.Name, users[0].Resource, users[0].Name)
	default:
		return claims.Pod{Name: users[0].Name, UID: users[0].UID}, nil
	}
}

// resolve finds the topologies and the devices on the host.
func (p *Plugin) resolve(ctx context.Context, of claim.Source, assigned []claim.Assignment) ([]claims.Topology, error) {
	found, partial := p.scans.discover(ctx)
	if partial != nil && ctx.Err() != nil {
		return nil, partial
	}
	var out []claims.Topology
	for _, a := range assigned {
		o, err := p.Cluster.Topology(ctx, a.Topology.Name)
		if err != nil {
			return nil, err
		}
		t, permitted, err := p.check(ctx, o, a, of)
		if err != nil {
			return nil, err
		}
		ct := claims.Topology{Object: claims.Pinned(o), Parameters: permitted}
		ct.Keep(o, t)
		ct.Prepared = slices.ContainsFunc(t.Steps, func(s topology.Step) bool { return claims.GivesNodes(p.Contracts, &s) })
		for _, d := range a.Devices {
			host, err := locate(found, d)
			if err != nil {
				if partial != nil { // the unreadable device may be another pod's
					err = fault.Detailed(err, partial.Error())
				}
				return nil, fmt.Errorf("request %q: %w", d.Request, err)
			}
			if err := p.usable(t, d, &host); err != nil {
				return nil, err
			}
			ct.Devices = append(ct.Devices, claims.Device{Device: d, Host: wired(ctx, t, d.Step, host)})
		}
		if a.Topology.Generation != 0 && a.Topology.Generation != o.Generation {
			if err := stillMatches(ctx, t, ct.Devices, a.Topology.Generation); err != nil {
				return nil, err
			}
		}
		out = append(out, ct)
	}
	return out, nil
}

// wired returns a device with the one physical network that the selector of its step names,
// if that is one. The selectors of a claim have no effect: the author of the topology
// decides which of the networks behind a PF a pod is in.
func wired(ctx context.Context, t *topology.Topology, step string, host inventory.Device) inventory.Device {
	s, ok := t.Step(step)
	if !ok || len(host.PhysicalNetworks) < 2 {
		return host
	}
	selector, err := inventory.Compile(s.Selector)
	if err != nil {
		return host // the step has none: the topology was checked
	}
	if meant := selector.Networks(ctx, host); len(meant) == 1 {
		host.PhysicalNetwork, host.PhysicalNetworks = meant[0].Name, meant
	}
	return host
}

// check refuses a topology that is invalid, is not the one the classes were generated from,
// lacks devices, or does not permit what the claim sets. It repeats the checks of admission, which may have been bypassed.
// It returns the topology with the claim's parameters, and these as they are recorded.
func (p *Plugin) check(ctx context.Context, o *v1alpha1.NetworkTopology, a claim.Assignment,
	of claim.Source,
) (*topology.Topology, []topology.Parameters, error) {
	if pin := a.Topology.UID; pin != "" && pin != o.UID {
		return nil, nil, invalid("NetworkTopology %q was deleted and created again since ResourceClaim %q was allocated: "+
			"delete the claim, or its pod, and create it again", o.Name, of.Name)
	}
	t, _, err := validity.Object(ctx, o, p.Contracts)
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, fault.New(fault.NotReady, err)
		}
		return nil, nil, fault.New(fault.Invalid, err)
	}
	if err := claim.Incomplete(t, p.Contracts, a, of); err != nil || len(a.Parameters) == 0 {
		return t, nil, err
	}
	t, permitted, err := validity.Parameters(ctx, t, a.Parameters, p.Contracts)
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, fault.New(fault.NotReady, err)
		}
		return nil, nil, fault.New(fault.Invalid, fmt.Errorf("%s: %w", of, err))
	}
	return t, permitted, nil
}

// locate finds a device by the name it was published with. A shared device may be one that
// the node uses, which keeps it.
func locate(devices []inventory.Device, allocated claim.Device) (inventory.Device, error) {
	d, ok := inventory.Named(devices, allocated.Name)
	switch {
	case !ok:
		// It may be returning from a pod, or its driver may be reloading.
		return d, passing(fault.New(fault.NotReady, fmt.Errorf("device %q is not on this node any more", allocated.Name)))
	case d.Name != allocated.Name:
		if s := d.Exposure.Sharing; s != nil && d.AsShared().Name == allocated.Name {
			d.Shared = s
		} else {
			// of a policy that no longer exists, or is not known yet
			d.Shared = &inventory.Sharing{Suffix: "-" + allocated.Name[strings.LastIndex(allocated.Name, "-")+1:]}
		}
	case d.HostUse != "":
		return d, fault.New(fault.Conflict, fmt.Errorf("device %q is used by the node itself (%s)", allocated.Name, d.State()))
	}
	return d, nil
}

// usable refuses a device that its step would not use as it was allocated: a shared device
// must not be moved, and shares of a device that is published to be moved are not counted.
// Admission and classes ensure that, but may have been bypassed.
func (p *Plugin) usable(t *topology.Topology, d claim.Device, host *inventory.Device) error {
	s, ok := t.Step(d.Step)
	if !ok {
		return nil // Incomplete has reported it
	}
	if p.withdrawn(d.Name, host) {
		return passing(fault.New(fault.NotReady,
			fmt.Errorf("device %q was withdrawn: no policy shares it any more, and only claims that have a share keep it. "+
				"Delete the claim, or its pod, and create it again without tolerating taints of the driver", d.Name)))
	}
	c, _ := p.Contracts.Contract(s.Type)
	if functions := slices.Equal(c.Input.DeviceTypes, []string{"vf"}); functions && d.ShareID != nil && host.Shared != nil &&
		host.Exposure.Sharing == nil && host.Kind == inventory.KindPF {
		host.Shared.Functions, host.Shared.By = true, []string{s.Type} // of a policy that is not known yet
	}
	if network := claim.MasterNet(s, c); network != "" &&
		!slices.ContainsFunc(host.Networks, func(p netip.Prefix) bool { return p.String() == network }) {
		return passing(fault.New(fault.NotReady,
			fmt.Errorf("device %q has no address in %q, which is the masterNet of step %q of NetworkTopology %q: "+
				"give the host an address there, or delete the claim, or its pod, and create it again", d.Name, network, s.Name, t.Name)))
	}
	switch shared := d.ShareID != nil || host.Shared != nil; {
	case shared && takesFunction(c, *host):
		if d.ShareID == nil {
			return invalid("device %q was allocated without a share: the scheduler has no feature DRAConsumableCapacity", d.Name)
		}
		if _, limits := host.Shared.Capacity[inventory.CapacityBandwidth]; limits && d.Bandwidth <= 0 {
			return invalid("the claim has no bandwidth of device %q, and its function would have no limit: "+
				"delete the claim, or its pod, and request %s of 1 or more", d.Name, inventory.CapacityBandwidth)
		}
	case shared && !c.Input.Shares:
		return invalid("device %q is shared, and step %q of NetworkTopology %q, of type %q, would use it exclusively: "+
			"its DeviceClass must not choose shared devices", d.Name, s.Name, t.Name, s.Type)
	case host.Shared != nil && len(host.Shared.By) > 0 && !slices.Contains(host.Shared.By, s.Type):
		return invalid("device %q is shared for steps of type %s, and step %q of NetworkTopology %q is of type %q: "+
			"name that in supportedCNIPlugins of policy %q",
			d.Name, strings.Join(host.Shared.By, ", "), s.Name, t.Name, s.Type, host.Exposure.Policy)
	}
	return nil
}

// withdrawn reports whether a shared device is one that no policy shares any more. It has a taint
// then, which claims may tolerate.
func (p *Plugin) withdrawn(name string, host *inventory.Device) bool {
	switch {
	case host.Shared == nil:
		return false
	case host.Exposure.Verdict == inventory.Undecided:
		return p.Withdrawn != nil && p.Withdrawn(name)
	}
	return host.Shared != host.Exposure.Sharing
}

// takesFunction reports whether a step takes a function of a PF that is shared.
func takesFunction(c contract.Contract, host inventory.Device) bool {
	return host.Shared != nil && host.Shared.Functions && slices.Contains(host.Shared.By, c.Type) &&
		slices.Equal(c.Input.DeviceTypes, []string{"vf"})
}

// choose assigns to a claim functions of the PFs that it has shares of: the first that no
// other claim has. It is called while all claims are locked, and its choice is recorded
// before it is returned to the kubelet.
//
// The devices were listed before that, as it takes long where there are hundreds of
// functions: one that was returned since is found by the next try.
func (p *Plugin) choose(claim types.UID, devices []*claims.Device, found []inventory.Device, others []claims.Entry) error {
	taken := map[string]bool{}
	for _, other := range others {
		for _, t := range other.Topologies {
			for _, held := range t.Devices {
				taken[held.Host.ID] = taken[held.Host.ID] || other.UID != claim
			}
		}
	}
	unknown, err := p.Store.OtherVersions()
	if err != nil {
		return err
	}
	for _, other := range unknown {
		maps.Copy(taken, other.Mentions)
	}
	var unfit map[string]string
	if p.Unfit != nil {
		unfit = p.Unfit(found)
	}
	for _, d := range devices {
		k := slices.IndexFunc(found, func(f inventory.Device) bool {
			return f.PF != nil && f.PF.PCIAddress == d.Host.ID && f.IfName != "" && f.HostUse == "" && len(f.Uppers) == 0 &&
				!taken[f.ID] && unfit[f.ID] == ""
		})
		if k < 0 {
			return passing(fault.Detailed(
				fault.New(fault.NotReady,
					fmt.Errorf("device %q has no free virtual function now: one that is being released becomes free", d.Name)),
				withheld(found, d.Host.ID, unfit)))
		}
		pf := d.Host
		d.Offered, d.Host = &pf, found[k]
		d.Host.Shared = pf.Shared
		if len(pf.PhysicalNetworks) > 0 { // as the step's selector requires
			d.Host.PhysicalNetworks, d.Host.PhysicalNetwork = pf.PhysicalNetworks, pf.PhysicalNetwork
		}
		taken[d.Host.ID] = true
	}
	return nil
}

// toChoose returns the devices of a claim for which the node has yet to choose a function.
func toChoose(c *claims.Claim) (out []*claims.Device) {
	for i := range c.Topologies {
		for j := range c.Topologies[i].Devices {
			if d := &c.Topologies[i].Devices[j]; d.Offered == nil && d.Host.Shared != nil && d.Host.Shared.Functions {
				out = append(out, d)
			}
		}
	}
	return out
}

// withheld lists the functions of a PF that are not allocated.
func withheld(devices []inventory.Device, pf string, unfit map[string]string) string {
	var out []string
	for _, f := range devices {
		if f.PF != nil && f.PF.PCIAddress == pf && unfit[f.ID] != "" {
			out = append(out, fmt.Sprintf("%s: %s", f.ID, unfit[f.ID]))
		}
	}
	return strings.Join(out, "; ")
}

// stillMatches refuses a device that an edited topology would not have chosen.
func stillMatches(ctx context.Context, t *topology.Topology, devices []claims.Device, allocated int64) error {
	d, err := claims.Unchosen(ctx, t, devices)
	if d == nil {
		return err
	}
	return fault.New(fault.Invalid, errors.Join(fmt.Errorf(
		"NetworkTopology %q was edited since device %q was allocated for step %q (generation %d then, %d now), "+
			"and the step's selector does not choose it any more: delete the claim, or its pod, and create it again",
		t.Name, d.Name, d.Step, allocated, t.Generation), err))
}

// taken is the error of a conflicting record.
type taken struct {
	by  claims.Entry
	err error
	// lasting says that the conflict does not end by itself.
	lasting bool
}

func (t *taken) Error() string { return t.err.Error() }
func (t *taken) Unwrap() error { return t.err }

// reserve records a claim unless another has one of its devices. The scheduler may allocate
// a device up to seconds before it is released, as when a pod is deleted by force.
func (p *Plugin) reserve(ctx context.Context, c *claims.Claim) error {
	var found []inventory.Device
	unchosen := toChoose(c)
	if len(unchosen) > 0 {
		var partial error
		if found, partial = p.scans.discover(ctx); partial != nil && ctx.Err() != nil { // else one that cannot be read is not chosen
			return partial
		}
	}
	unlock, err := p.Store.LockAll(ctx)
	if err != nil {
		return passing(err)
	}
	defer unlock()
	others, errs := p.Store.List()
	for _, err := range errs {
		p.Log.Error("cannot read claim records", "error", err)
	}
	if err := p.together(ctx, c, others); err != nil {
		return err
	}
	if len(unchosen) > 0 {
		if err := p.choose(c.UID, unchosen, found, others); err != nil {
			return err
		}
	}
	for _, other := range others {
		if other.UID == c.UID || detached(&other) {
			continue
		}
		if err := p.conflict(c, &other.Claim); err != nil {
			// Other tenants must not see whose it is.
			return &taken{by: other, err: fault.Detailed(err,
				fmt.Sprintf("ResourceClaim %q of pod %q in namespace %q has it", other.Name, other.Pod.Name, other.Namespace))}
		}
	}
	if err := p.refuseOtherVersions(c); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil { // the kubelet has given up: it may have unprepared the claim already
		return fault.New(fault.NotReady, err)
	}
	err = p.Store.Put(*c)
	if fault.Of(err) == fault.Invalid {
		return err // retrying does not make it smaller
	}
	return passing(err)
}

// conflict returns an error if another claim has something that both cannot have.
func (p *Plugin) conflict(c, other *claims.Claim) error {
	if why := p.mixed(c, other); why != "" {
		return errors.New(why)
	}
	if port := samePort(c, other); port != nil {
		return fmt.Errorf("the port of pod %q on network %q is still used by another claim: a pod has one interface there", c.Pod.Name,
			port.Attachment)
	}
	if device := common(c, other); device != "" {
		return fmt.Errorf("device %q is still in use by another pod: it becomes free when the network of that pod has been released",
			device)
	}
	return nil
}

// together refuses a claim whose topologies cannot be in one pod with each other, or with those of another claim
// of the pod: the second one would be refused in the sandbox.
func (p *Plugin) together(ctx context.Context, c *claims.Claim, others []claims.Entry) error {
	var there []validity.Member
	var of []claims.Entry
	for _, other := range others {
		if other.UID == c.UID || other.Pod.UID != c.Pod.UID || detached(&other) {
			continue
		}
		for _, m := range members(&other.Claim) {
			there, of = append(there, m), append(of, other)
		}
	}
	with, err := validity.Together(ctx, p.Contracts, there, members(c))
	if err != nil && with >= 0 {
		return &taken{by: of[with], err: err, lasting: true}
	}
	return err
}

// members are the topologies of a claim. Those of a record were valid when that was written.
func members(c *claims.Claim) []validity.Member {
	var out []validity.Member
	for i := range c.Topologies {
		t, err := c.Topologies[i].Decoded()
		if err != nil {
			continue
		}
		m := validity.Member{Topology: t, WithoutInterface: map[string]bool{}}
		for _, d := range c.Topologies[i].Devices {
			if d.Host.IfName == "" {
				m.WithoutInterface[d.Step] = true
			}
		}
		out = append(out, m)
	}
	return out
}

// detached reports whether a claim is in no sandbox any more: only its record waits for the kubelet.
func detached(e *claims.Entry) bool {
	return !e.Held() && len(e.In) > 0 && !e.Prepares()
}

// giveOn removes a conflicting record, if that is allowed.
func (d *decision) giveOn(ctx context.Context, t *taken) error {
	held := passing(fault.New(fault.Conflict, t.err))
	if t.by.UID != d.rc.UID {
		lost, err := d.lost(ctx, &t.by)
		switch {
		case err != nil:
			return fault.Detailed(held, err.Error())
		case !lost && t.lasting:
			return t.err
		case !lost:
			return held
		}
	}
	if err := d.Keeper.Withdraw(ctx, t.by.UID); err != nil {
		return fault.Detailed(held, err.Error())
	}
	return nil
}

// refuseOtherVersions refuses devices that a record of another version mentions. A device
// of which each claim has a share conflicts with none.
func (p *Plugin) refuseOtherVersions(c *claims.Claim) error {
	others, err := p.Store.OtherVersions()
	if err != nil {
		return err
	}
	for _, other := range others {
		for _, t := range c.Topologies {
			for _, d := range t.Devices {
				if d.ShareID == nil && other.Mentions[d.Name] || (d.ShareID == nil || d.Offered != nil) && other.Mentions[d.Host.ID] {
					return fault.New(fault.Conflict,
						fmt.Errorf("device %q is held by another ResourceClaim: its record was %w", d.Name, other))
				}
			}
		}
	}
	return nil
}

// lost reports whether the kubelet will never unprepare a claim: the claim no longer exists
// and was never in a sandbox, or in none that still exists.
func (p *Plugin) lost(ctx context.Context, e *claims.Entry) (bool, error) {
	if e.Held() {
		return false, nil
	}
	rc, err := p.Cluster.Claim(ctx, e.Namespace, e.Name)
	if err != nil {
		return false, err
	}
	return rc == nil || rc.UID != e.UID || !slices.ContainsFunc(rc.Status.ReservedFor,
		func(u resourceapi.ResourceClaimConsumerReference) bool {
			return u.UID == e.Pod.UID
		}), nil
}

// mixed returns a conflict if both claims have shares of a device for links that the kernel
// does not allow together, or of which one would change the other. The scheduler cannot
// know that: a policy for one step type, and topologies with the same mode, avoid it.
func (p *Plugin) mixed(a, b *claims.Claim) string {
	links := p.stacked(b)
	for id, of := range p.stacked(a) {
		if others, both := links[id]; both && others != of {
			return fmt.Sprintf("device %q carries %s of another pod, and this one would have %s: a device carries links of one kind, "+
				"and ipvlan links of one mode and flag. Have a policy share it for one step type, and give the topologies one mode",
				id, others, of)
		}
	}
	return ""
}

// stacked returns the links that a claim has on shared devices, by device.
func (p *Plugin) stacked(c *claims.Claim) map[string]string {
	out := map[string]string{}
	for _, t := range c.Topologies {
		if !slices.ContainsFunc(t.Devices, func(d claims.Device) bool { return d.ShareID != nil && d.Host.Shared != nil }) {
			continue
		}
		decoded, _ := t.Decoded()
		if decoded == nil {
			continue // it was checked when the claim was prepared
		}
		for _, d := range t.Devices {
			s, ok := decoded.Step(d.Step)
			if !ok || d.ShareID == nil || d.Host.Shared == nil {
				continue
			}
			if known, _ := p.Contracts.Contract(s.Type); known.Stacks != nil {
				config, _ := known.Decode(s.Config, contract.Options{Unresolved: true})
				out[d.Host.ID] = known.Stacks(config)
			}
		}
	}
	return out
}

// common returns a device that both claims have exclusively. A PF as a whole includes its
// functions: the scheduler counts that, except shortly after a policy begins to offer both.
func common(a, b *claims.Claim) string {
	for _, ta := range a.Topologies {
		for _, da := range ta.Devices {
			for _, tb := range b.Topologies {
				if slices.ContainsFunc(tb.Devices, func(db claims.Device) bool {
					moved := da.ShareID == nil || db.ShareID == nil || da.Offered != nil || db.Offered != nil
					return db.Host.ID == da.Host.ID && moved || functionOf(&da, &db) || functionOf(&db, &da)
				}) {
					return da.Name
				}
			}
		}
	}
	return ""
}

// functionOf reports whether a claim has a function of a PF that another one has as a whole.
func functionOf(function, pf *claims.Device) bool {
	return pf.ShareID == nil && function.Host.PF != nil && function.Host.PF.PCIAddress == pf.Host.ID
}

// samePort returns a port of ovn-kubernetes that both claims have: an interface is bound to a
// port by its name, and with two OVN would choose either.
func samePort(a, b *claims.Claim) *ops.Port {
	for _, ta := range a.Topologies {
		for _, ga := range ta.Given {
			for _, tb := range b.Topologies {
				for _, gb := range tb.Given {
					if ga.Port != nil && gb.Port != nil && ga.Port.Name == gb.Port.Name {
						return ga.Port
					}
				}
			}
		}
	}
	return nil
}
