package claimstatus

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/excerpt"
)

// The conditions of a device.
const (
	Ready  = claim.Ready
	InSync = claim.InSync
	LinkUp = claim.LinkUp
)

// ours reports whether a condition is one of these: others may add their own.
func ours(conditionType string) bool {
	return conditionType == Ready || conditionType == InSync || conditionType == LinkUp
}

// The other reasons.
const (
	reasonReady     = "NetworkReady"
	reasonAttaching = "Attaching" // it takes longer than the runtime's hook
	reasonDetached  = "Detached"  // the topology was detached from the pod
	reasonInSync    = "InSync"
	reasonDrifted   = "Drifted"
	reasonFighting  = "Fighting" // another writer changes back what is repaired
)

// condition is a condition of a device, without its time of transition, which is set
// when it is written.
type condition struct {
	status          metav1.ConditionStatus
	reason, message string
}

// verdict is the report about the devices of one topology in a claim. A field that is
// nil was not reported and stays as it is.
type verdict struct {
	ready, inSync *condition
	steps         []topology.StepResult
	failure       *failure
	// bare is set if the devices are not in the pod: what was written about them there
	// no longer applies.
	bare bool
	// links are the conditions LinkUp by root step; a step without one has no port.
	links map[string]condition
	// runs is the generation that the pod has; its Topology is not used.
	runs *claim.Report
}

// failure is why a topology could not be applied.
type failure = claim.Failure

// after returns the verdict when v was reported after old.
func (v verdict) after(old verdict) verdict {
	v.ready = cmp.Or(v.ready, old.ready)
	v.inSync = cmp.Or(v.inSync, old.inSync)
	if v.links == nil && !v.bare {
		v.links = old.links
	}
	v.runs = cmp.Or(v.runs, old.runs)
	if v.steps == nil && v.failure == nil && !v.bare {
		v.steps, v.failure, v.bare = old.steps, old.failure, old.bare
	}
	return v
}

// every is the key of a verdict about all topologies of a claim.
const every = ""

// data is the content of an entry's data.
type data = claim.DeviceReport

// entries returns our part of status.devices as it should be: from verdicts by
// topology, and for devices without a verdict what is there already. Only devices that
// are allocated may have an entry.
func entries(c *resourceapi.ResourceClaim, verdicts map[string]verdict, now time.Time) []resourceapi.AllocatedDeviceStatus {
	if c.Status.Allocation == nil {
		return nil
	}
	uses := usesOf(c)
	var out []resourceapi.AllocatedDeviceStatus
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != claim.Driver {
			continue
		}
		e := resourceapi.AllocatedDeviceStatus{Driver: r.Driver, Pool: r.Pool, Device: r.Device, ShareID: (*string)(r.ShareID)}
		if slices.ContainsFunc(out, func(o resourceapi.AllocatedDeviceStatus) bool { return sameDevice(o, e) }) {
			continue
		}
		known := false
		if i := slices.IndexFunc(c.Status.Devices, func(o resourceapi.AllocatedDeviceStatus) bool { return sameDevice(o, e) }); i >= 0 {
			e, known = withOurConditions(c.Status.Devices[i]), true
		}
		u := uses[deviceKey(e)]
		all, allReported := verdicts[every]
		v, reported := verdicts[u.topology]
		if reported && u.topology != every {
			v = v.after(all)
		} else {
			v, reported = all, allReported
		}
		if reported {
			fill(&e, v, u, now)
		}
		if reported || known {
			out = append(out, e)
		}
	}
	return out
}

// withOurConditions returns a copy of an entry with only our conditions.
func withOurConditions(e resourceapi.AllocatedDeviceStatus) resourceapi.AllocatedDeviceStatus {
	e = *e.DeepCopy()
	e.Conditions = slices.DeleteFunc(e.Conditions, func(c metav1.Condition) bool { return !ours(c.Type) })
	return e
}

// replaced returns the claim with our entries replaced. Conditions that others have
// added to them stay.
func replaced(c *resourceapi.ResourceClaim, want []resourceapi.AllocatedDeviceStatus) *resourceapi.ResourceClaim {
	c = c.DeepCopy()
	for _, w := range want {
		i := slices.IndexFunc(c.Status.Devices, func(o resourceapi.AllocatedDeviceStatus) bool { return sameDevice(o, w) })
		if i < 0 {
			c.Status.Devices = append(c.Status.Devices, w)
			continue
		}
		for _, o := range c.Status.Devices[i].Conditions {
			if !ours(o.Type) {
				w.Conditions = append(w.Conditions, o)
			}
		}
		c.Status.Devices[i] = w
	}
	return c
}

// use is the topology and step of a device.
type use struct {
	topology, step string
	first          bool     // of the topology's devices in the claim
	others         []string // root steps of the topology that have devices
}

// usesOf returns what each of our devices is for, as far as the claim is valid.
func usesOf(c *resourceapi.ResourceClaim) map[string]use {
	out := map[string]use{}
	assignments, err := claim.Allocated(c)
	if err != nil {
		return out // reported when the claim is prepared
	}
	for _, a := range assignments {
		var steps []string
		for _, d := range a.Devices {
			steps = append(steps, d.Step)
		}
		for i, d := range a.Devices {
			key := deviceKey(resourceapi.AllocatedDeviceStatus{
				Driver: claim.Driver, Pool: d.Pool, Device: d.Name,
				ShareID: (*string)(d.ShareID),
			})
			out[key] = use{a.Topology.Name, d.Step, i == 0, steps}
		}
	}
	return out
}

func deviceKey(e resourceapi.AllocatedDeviceStatus) string {
	key := e.Driver + "/" + e.Pool + "/" + e.Device
	if e.ShareID != nil {
		key += "/" + *e.ShareID
	}
	return key
}

func sameDevice(a, b resourceapi.AllocatedDeviceStatus) bool { return deviceKey(a) == deviceKey(b) }

// fill writes a verdict into an entry.
func fill(e *resourceapi.AllocatedDeviceStatus, v verdict, u use, now time.Time) {
	var link *condition
	if c, ok := v.links[u.step]; ok {
		link = &c
	} else if v.links != nil || v.bare {
		meta.RemoveStatusCondition(&e.Conditions, LinkUp)
	}
	for name, c := range map[string]*condition{Ready: v.ready, InSync: v.inSync, LinkUp: link} {
		if c != nil {
			meta.SetStatusCondition(&e.Conditions, metav1.Condition{
				Type: name, Status: c.status, Reason: c.reason, Message: excerpt.Of(c.message, messageMax),
				LastTransitionTime: metav1.NewTime(now),
			})
		}
	}
	slices.SortFunc(e.Conditions, func(a, b metav1.Condition) int { return bytes.Compare([]byte(b.Type), []byte(a.Type)) }) // Ready first
	if v.steps == nil && v.failure == nil && !v.bare && v.runs == nil {
		return
	}
	d := reportedData(e)
	d.Topology, d.Step = u.topology, u.step
	if v.runs != nil {
		d.Generation, d.Update = v.runs.Generation, v.runs.Update
	}
	if v.steps != nil || v.failure != nil || v.bare {
		e.NetworkData = networkData(v.steps, u.step)
		d.Steps, d.Failure, d.Note = builtOn(v.steps, u), nil, ""
		d.MTU, d.PCIAddress = deviceFacts(v.steps, u.step)
	}
	if v.failure != nil {
		d.Failure = new(*v.failure)
		d.Failure.Message = excerpt.Of(v.failure.Message, messageMax)
	}
	e.Data = raw(d)
}

// reportedData reads the data of an entry of ours.
func reportedData(e *resourceapi.AllocatedDeviceStatus) data {
	var d data
	if e.Data == nil || json.Unmarshal(e.Data.Raw, &d) != nil {
		return data{}
	}
	return d
}

// identity identifies an interface of a topology.
type identity struct{ sandbox, name string }

// interfaceOf returns the interface in the pod of a root step's device.
func interfaceOf(steps []topology.StepResult, step string) (topology.Interface, bool) {
	for _, s := range steps {
		if s.Name == step {
			return s.Result.Last()
		}
	}
	return topology.Interface{}, false
}

// deviceFacts returns the MTU of a root step's interface in the pod, and the function of its device.
func deviceFacts(steps []topology.StepResult, step string) (mtu int, pciAddress string) {
	for _, s := range steps {
		if s.Name != step {
			continue
		}
		if d := s.Result.Devices; d != nil {
			pciAddress = d.PCIAddress
		}
		if last, ok := s.Result.Last(); ok {
			mtu, pciAddress = last.MTU, cmp.Or(last.PCIID, pciAddress)
		}
	}
	return mtu, pciAddress
}

// networkData returns the interface of a device and the addresses any step gave it; nil
// for a device without an interface. A port of a bond has no addresses of its own:
// those of the bond are in the data.
func networkData(steps []topology.StepResult, step string) *resourceapi.NetworkDeviceData {
	iface, ok := interfaceOf(steps, step)
	if !ok {
		return nil
	}
	out := &resourceapi.NetworkDeviceData{InterfaceName: iface.Name, HardwareAddress: iface.MAC}
	for _, s := range steps {
		for _, ip := range s.Result.IPs {
			if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(s.Result.Interfaces) {
				continue
			}
			of := s.Result.Interfaces[*ip.Interface]
			address, ok := canonical(ip.Address)
			if of.Name != iface.Name || of.Sandbox != iface.Sandbox || !ok || slices.Contains(out.IPs, address) ||
				len(out.IPs) == resourceapi.NetworkDeviceDataMaxIPs {
				continue
			}
			out.IPs = append(out.IPs, address)
		}
	}
	return out
}

// canonical returns an address with its prefix length in the one spelling that
// the API server accepts.
func canonical(address string) (string, bool) {
	p, err := netip.ParsePrefix(address)
	if err != nil || p.Addr().Zone() != "" {
		return "", false
	}
	return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()).String(), !p.Addr().Is4In6()
}

// builtOn returns the results of the steps built on a device. A step built on no
// device of the claim is listed with the first of them.
func builtOn(steps []topology.StepResult, u use) []topology.StepResult {
	devices := map[identity]string{} // by device: the root step
	for _, step := range u.others {
		if i, ok := interfaceOf(steps, step); ok {
			devices[identity{i.Sandbox, i.Name}] = step
		}
	}
	var out []topology.StepResult
	for _, s := range steps {
		if slices.Contains(u.others, s.Name) {
			continue
		}
		below := map[string]bool{}
		for _, i := range s.Result.Interfaces {
			if step, ok := devices[identity{i.Sandbox, i.Name}]; ok {
				below[step] = true
			}
		}
		if below[u.step] || len(below) == 0 && u.first {
			out = append(out, s)
		}
	}
	return out
}

// same reports whether an apply of want would change nothing of have.
func same(have, want []resourceapi.AllocatedDeviceStatus) bool {
	for _, w := range want {
		i := slices.IndexFunc(have, func(h resourceapi.AllocatedDeviceStatus) bool { return sameDevice(h, w) })
		if i < 0 {
			return false
		}
		h := withOurConditions(have[i])
		if !slices.EqualFunc(h.Conditions, w.Conditions, sameCondition) || !reflect.DeepEqual(h.NetworkData, w.NetworkData) ||
			!sameJSON(h.Data, w.Data) {
			return false
		}
	}
	return true
}

// sameCondition compares all but the time, which is that of the transition.
func sameCondition(a, b metav1.Condition) bool {
	return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

func sameJSON(a, b *runtime.RawExtension) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	var x, y any
	return json.Unmarshal(a.Raw, &x) == nil && json.Unmarshal(b.Raw, &y) == nil && reflect.DeepEqual(x, y)
}
