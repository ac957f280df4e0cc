package publish

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/plumbline/plumbline/inventory"
)

// The taints. Those of the first block have the effect NoSchedule: a pod that already has
// the device is not evicted, since the fault existed before or is repaired in the pod. The
// topology of the pod decides the effect of the others.
const (
	TaintLinkDown = inventory.Driver + "/link-down" // no carrier, although somebody has set the link up
	TaintDirty    = inventory.Driver + "/dirty"     // came back from a pod, and not as it left
	TaintGone     = inventory.Driver + "/gone"      // in use, and no longer in the machine
	// TaintWithdrawn is on a shared device that no policy shares any more and of which
	// claims have shares.
	TaintWithdrawn = inventory.Driver + "/withdrawn"
	TaintMiswired  = inventory.Driver + "/miswired" // not connected to what a policy expects

	TaintDegraded = inventory.Driver + "/degraded" // down in a pod that works without it
	TaintLost     = inventory.Driver + "/lost"     // down in a pod that has lost a network by it
)

// Failing describes a device whose port in a pod is down.
type Failing struct {
	// Lost: the pod has lost a network by it; otherwise it works without it.
	Lost bool
	// Evict: the pod is to be deleted. Held: the pod has ended since, and the device is not
	// given to another one for a while.
	Evict, Held bool
	// Since is when a held device was taken from its pod, in whole seconds: another agent
	// reads it from the taint.
	Since time.Time
}

// failing returns what the taints of a device say.
func (e *entry) failing() (Failing, bool) {
	for _, t := range e.Device.Taints {
		if t.Key != TaintLost || t.Effect == resourceapi.DeviceTaintEffectNone {
			continue
		}
		return Failing{
			Lost: true, Evict: t.Effect == resourceapi.DeviceTaintEffectNoExecute,
			Held: t.Effect == resourceapi.DeviceTaintEffectNoSchedule, Since: ptr.Deref(t.TimeAdded, metav1.Time{}).Time,
		}, true
	}
	return Failing{}, false
}

func (f Failing) taint() resourceapi.DeviceTaint {
	t := resourceapi.DeviceTaint{Key: TaintLost, Effect: resourceapi.DeviceTaintEffectNone}
	switch {
	case !f.Lost:
		t.Key = TaintDegraded
	case f.Held:
		t.Effect, t.TimeAdded = resourceapi.DeviceTaintEffectNoSchedule, &metav1.Time{Time: f.Since}
	case f.Evict:
		t.Effect = resourceapi.DeviceTaintEffectNoExecute
	}
	return t
}

// sliceMax is how many devices one slice may hold as soon as one of them has a
// taint: half of what it may hold otherwise. A slice that had to be split when a
// link goes down would move devices between slices.
const sliceMax = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// known is the state of the node according to a scan and the records.
type known struct {
	devices []inventory.Device // guarded
	inUse   map[string]bool    // by device name: prepared for a claim
	chosen  map[string]bool    // by device ID: functions that claims have as shares of their PF
	dirty   map[string]string  // by device ID: why
	down    map[string]bool    // by device name, for long enough
	failing map[string]Failing // by device name
	before  map[string]entry   // by device name: what was published last
	plain   bool               // the API server knows no taints
	// noSharing and noCounters say that the API server does not support shared devices or
	// counters.
	noSharing, noCounters bool
	others                map[string]string // by device ID: another driver that publishes it
	// attributes are the names that each device has, as a policy gives them to some.
	attributes []string
}

// entry is a device as it is published.
type entry struct {
	ID     string             `json:"id"` // inventory.Device.ID
	Device resourceapi.Device `json:"device"`
}

// Withheld is a device that is not offered, and why.
type Withheld struct {
	Name, Reason string
}

// offer decides which devices are published, in the order of their allocation.
func (k known) offer() (offered []entry, withheld []Withheld) {
	seen := map[string]bool{}
	used := map[string]bool{} // by device ID
	for _, d := range k.devices {
		used[d.ID] = k.inUse[d.Name]
	}
	add := func(d inventory.Device, e entry, reason string) {
		name := cmp.Or(e.Device.Name, d.Name)
		if reason == "" && seen[name] && name != d.Name {
			reason = "another device has the same name: choose another deviceNameSuffix"
		}
		seen[name] = true
		if reason == "" {
			reason = e.tainted(k, d)
		}
		if reason != "" {
			withheld = append(withheld, Withheld{name, reason})
			return
		}
		offered = append(offered, e)
	}
	for _, d := range k.devices {
		e, reason := k.describe(d, used)
		add(d, e, reason)
	}
	for _, d := range k.devices {
		shares, without := k.shares(d)
		withheld = append(withheld, without...)
		for _, e := range shares {
			add(d, e, "")
		}
	}
	// A device without a PCI address is found by its name alone, and not at all
	// while it is in a pod. A PCI function that is not found has been unplugged.
	for name := range k.inUse {
		e, ok := k.before[name]
		if seen[name] || !ok || !k.inUse[name] {
			continue
		}
		e.Device.Taints = nil
		if (inventory.Device{ID: e.ID}).PCIAddress() != "" && !k.plain {
			e.Device.Taints = taints(TaintGone)
		}
		e.fail(k)
		offered = append(offered, e)
	}
	offered, without := k.exclude(offered)
	withheld = append(withheld, without...)
	for i := range offered {
		offered[i].complete(k.attributes)
	}
	// The scheduler takes the first device that fits, and evaluates full shared devices too:
	// those come last.
	slices.SortStableFunc(offered, func(a, b entry) int {
		return cmp.Or(order(a.shared(), b.shared()), inventory.Compare(inventory.Device{ID: a.ID}, inventory.Device{ID: b.ID}),
			cmp.Compare(a.Device.Name, b.Device.Name))
	})
	return offered, withheld
}

// order sorts entries for which the condition is false before the others.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// complete adds missing attributes as empty ones: if a selector reads a missing attribute,
// the scheduler gives the pod up. Devices that an earlier version published lack attributes
// that are new.
func (e *entry) complete(attributes []string) {
	attributes = append([]string{string(inventory.AttrSharedBy)}, attributes...)
	cloned := false
	for _, name := range attributes {
		if _, ok := e.Device.Attributes[resourceapi.QualifiedName(name)]; ok {
			continue
		}
		if !cloned { // the map is shared with what was published last
			e.Device.Attributes, cloned = maps.Clone(e.Device.Attributes), true
			if e.Device.Attributes == nil { // of a file that somebody has edited
				e.Device.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
			}
		}
		e.Device.Attributes[resourceapi.QualifiedName(name)] = resourceapi.DeviceAttribute{StringValue: new("")}
	}
}

// remember returns how devices were published last, for the time when they are in use. A
// device whose interface is absent is remembered even if it is not known to be in use: the
// record of its claim may be unreadable for a moment.
func (k known) remember(offered []entry) map[string]entry {
	out := map[string]entry{}
	for _, d := range k.devices {
		if e, ok := k.before[d.Name]; ok && d.IfName == "" {
			out[d.Name] = e
		}
	}
	for _, e := range offered {
		out[e.Device.Name] = e
	}
	return out
}

// describe returns the device as it is to be published, or why it is not.
func (k known) describe(d inventory.Device, used map[string]bool) (entry, string) {
	if d.HostUse == inventory.DefaultRoute {
		return entry{}, d.State() + ": the node's traffic uses it" // even if a claim has prepared it
	}
	if d.Uplink() {
		return entry{}, d.State()
	}
	if k.inUse[d.Name] {
		if e, ok := k.before[d.Name]; ok {
			return e, ""
		}
	} else if k.chosen[d.ID] { // also while it is on the host, and its policy is gone
		return entry{}, "allocated to a claim as a share of its PF"
	} else if reason := cmp.Or(obstacle(d, used), k.ruled(d)); reason != "" {
		return entry{}, reason
	} else if e, ok := k.before[d.Name]; ok && d.Exposure.Verdict == inventory.Undecided {
		return e, ""
	}
	e := entry{d.ID, resourceapi.Device{Name: d.Name, Attributes: inventory.Attributes(d)}}
	return e, invalid(e.Device)
}

// asPublished returns a device with the published values in place of those that are unknown
// while its interface is in a pod.
func (e entry) asPublished(d inventory.Device) inventory.Device {
	read := func(name resourceapi.QualifiedName, to *string) {
		*to = ptr.Deref(e.Device.Attributes[name].StringValue, *to)
	}
	read(inventory.AttrIfName, &d.IfName)
	read(inventory.AttrDriver, &d.Driver)
	linkType := string(d.LinkType)
	read(inventory.AttrLinkType, &linkType)
	d.LinkType = inventory.LinkType(linkType)
	read(inventory.AttrRDMANetns, &d.RDMANetns)
	d.RDMA = ptr.Deref(e.Device.Attributes[inventory.AttrRDMA].BoolValue, d.RDMA)
	return d
}

// ruled says why an available device is withheld: because of a policy, or because another
// driver publishes it.
func (k known) ruled(d inventory.Device) string {
	_, offered := k.before[d.Name]
	switch e := d.Exposure; {
	case e.Verdict == inventory.Withheld:
		return withheldBy(d)
	case e.Verdict == inventory.Undecided && !offered:
		return fmt.Sprintf("policy %q could not be evaluated, so the device stays as it was: %s", e.Policy, e.Reason)
	}
	if d.PF != nil {
		if policy := k.pooled(d.PF.PCIAddress); policy != "" && !k.noSharing {
			return fmt.Sprintf("policy %q offers it as a share of its PF", policy)
		}
	}
	if s := d.Exposure.Sharing; s != nil && !s.Whole {
		return fmt.Sprintf("policy %q shares it", d.Exposure.Policy)
	}
	return k.besides(d)
}

// besides says which other driver publishes a device that must not.
func (k known) besides(d inventory.Device) string {
	if driver := k.others[d.ID]; driver != "" && !slices.Contains(d.Exposure.BesideDrivers, driver) {
		return fmt.Sprintf(
			"driver %q publishes it on this node, too: exclude it there, or name the driver in besideDrivers of a policy", driver)
	}
	return ""
}

// obstacle says why an unused device cannot be given to a pod.
func obstacle(d inventory.Device, used map[string]bool) string {
	uppers := slices.DeleteFunc(slices.Clone(d.Uppers), func(name string) bool { return name == d.Master })
	switch {
	case d.HostUse != "":
		return d.State()
	case d.Kind == inventory.KindVirtual:
		return "virtual: it would be deleted with the pod's network namespace"
	case d.Kind == inventory.KindPF && d.NumVFs > 0 && !d.Exposure.BesideFunctions:
		return fmt.Sprintf("has %d virtual functions, which would lose their network", d.NumVFs)
	case d.Kind == inventory.KindVF && used[d.PF.PCIAddress]:
		return fmt.Sprintf("its PF %q is in a pod", d.PF.PCIAddress)
	case d.LinkType == "" || d.DevType == "wlan" || d.DevType == "wwan":
		return "neither Ethernet nor InfiniBand"
	case d.RDMAOnly:
		return ""
	case d.IfName == "": // in another namespace, or with no driver that makes one
		return d.State()
	case len(uppers) > 0:
		return carries(uppers)
	}
	return ""
}

func withheldBy(d inventory.Device) string {
	return fmt.Sprintf("policy %q withholds it", d.Exposure.Policy)
}

func carries(uppers []string) string { return "carries " + strings.Join(uppers, ", ") }

// tainted sets the taints, or says why the device is withheld where there are none.
func (e *entry) tainted(k known, d inventory.Device) string {
	var keys []string
	if _, dirty := k.dirty[d.ID]; dirty {
		keys = append(keys, TaintDirty)
	}
	if k.down[d.Name] {
		keys = append(keys, TaintLinkDown)
	}
	if e.miswired(k, d) {
		keys = append(keys, TaintMiswired)
	}
	if e.withdrawn(k, d) {
		keys = append(keys, TaintWithdrawn)
	}
	e.Device.Taints = nil
	switch {
	case !k.plain:
		e.Device.Taints = taints(keys...)
		e.fail(k)
	case len(keys) > 0 && !k.inUse[e.Device.Name]:
		return "would be tainted with " + strings.Join(keys, ", ") +
			", and the API server does not support taints (feature DRADeviceTaints)"
	}
	return ""
}

// fail adds the taint of a device whose port is down. Without taints nobody is evicted,
// and nothing is withheld for it.
func (e *entry) fail(k known) {
	if f, ok := k.failing[e.Device.Name]; ok && !k.plain {
		e.Device.Taints = append(e.Device.Taints, f.taint())
	}
}

// withdrawn reports whether no policy shares a shared device any more. It is as it was while
// the policies do not say what applies.
func (e *entry) withdrawn(k known, d inventory.Device) bool {
	if !e.shared() || d.Exposure.Verdict == inventory.Undecided {
		was := k.before[e.Device.Name]
		return e.shared() && was.has(TaintWithdrawn)
	}
	return d.Exposure.Sharing == nil || d.AsShared().Name != e.Device.Name
}

// has reports whether a device has a taint.
func (e *entry) has(taint string) bool {
	return slices.ContainsFunc(e.Device.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == taint })
}

// miswired reports whether a device is connected to something else than a policy expects.
// While that is not known, as after a start of the agent, the last known state is used.
func (e *entry) miswired(k known, d inventory.Device) bool {
	if d.Neighbour == nil {
		was := k.before[e.Device.Name]
		return d.Exposure.Expects && was.has(TaintMiswired)
	}
	return d.Exposure.Miswired != ""
}

func taints(keys ...string) []resourceapi.DeviceTaint {
	var out []resourceapi.DeviceTaint
	for _, key := range keys {
		out = append(out, resourceapi.DeviceTaint{Key: key, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	return out
}

// invalid says why the API server would refuse a device: with it, it would
// refuse the whole slice.
func invalid(d resourceapi.Device) string {
	if problems := validation.IsDNS1123Label(d.Name); len(problems) > 0 {
		return fmt.Sprintf("name %q: %s", d.Name, problems[0])
	}
	if n := len(d.Attributes) + len(d.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		return fmt.Sprintf("%d attributes and capacities, at most %d are allowed", n,
			resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice)
	}
	for name, a := range d.Attributes {
		if a.StringValue != nil && len(*a.StringValue) > resourceapi.DeviceAttributeMaxValueLength {
			return fmt.Sprintf("attribute %q is longer than %d bytes", name, resourceapi.DeviceAttributeMaxValueLength)
		}
	}
	return ""
}

// down returns the names of the devices whose wire is dead: the interface has
// been set up and has no carrier. For a virtual function it is that of its PF.
//
// A link that is down proves nothing: free devices are usually down, and the kernel does
// not know their carrier then.
func down(devices []inventory.Device) map[string]bool {
	dead := map[string]bool{} // by device ID
	for _, d := range devices {
		dead[d.ID] = d.IfName != "" && d.Up && !d.Carrier
	}
	out := map[string]bool{}
	for _, d := range devices {
		if d.PF != nil && dead[d.PF.PCIAddress] || d.PF == nil && dead[d.ID] {
			out[d.Name] = true
		}
	}
	return out
}

// pools makes the pool of a node. A node without devices has one empty slice: no slice
// would mean that its devices are unknown.
func pools(node string, offered []entry) resourceslice.DriverResources {
	out := []resourceslice.Slice{}
	// Counters come first, and shared devices last and in slices of their own: where a
	// slice moves, all are written again, and the pool is unusable meanwhile.
	for sets := range slices.Chunk(counterSets(offered), resourceapi.ResourceSliceMaxCounterSets) {
		s := resourceslice.Slice{}
		for _, set := range sets {
			s.SharedCounters = append(s.SharedCounters, *set.DeepCopy())
		}
		out = append(out, s)
	}
	first := slices.IndexFunc(offered, func(e entry) bool { return e.shared() })
	if first < 0 {
		first = len(offered)
	}
	for _, part := range [][]entry{offered[:first], offered[first:]} {
		for chunk := range slices.Chunk(part, sliceMax) {
			s := resourceslice.Slice{}
			for _, e := range chunk {
				s.Devices = append(s.Devices, *e.Device.DeepCopy())
			}
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		out = append(out, resourceslice.Slice{})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: {Slices: out}}}
}
