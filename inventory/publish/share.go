package publish

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plumbline/plumbline/inventory"
)

// The counters of a device that is offered in more than one form.
const (
	counterUse       = "use"       // 1: to whoever has it as a whole, or to its shares together
	counterFunctions = "functions" // of a PF, as many as it can have: each to its function, or all to the PF
)

// shared reports whether an entry is that of a shared device.
func (e *entry) shared() bool {
	return e.Device.AllowMultipleAllocations != nil && *e.Device.AllowMultipleAllocations
}

// shares returns the entries of a device as it is shared: as a policy wants it, and
// those that claims have shares of although no policy wants them any more.
func (k known) shares(d inventory.Device) (out []entry, withheld []Withheld) {
	name := ""
	if d.Exposure.Sharing != nil {
		s := d.AsShared()
		name = s.Name
		if e, reason := k.share(d, s); reason != "" {
			withheld = append(withheld, Withheld{name, reason})
		} else {
			out = append(out, e)
		}
	}
	for _, other := range slices.Sorted(maps.Keys(k.before)) {
		e := k.before[other]
		if e.ID != d.ID || !e.shared() || other == name {
			continue
		}
		if k.inUse[other] || d.Exposure.Verdict == inventory.Undecided {
			out = append(out, e)
		}
	}
	return out, withheld
}

// share returns the entry of a device as a policy shares it, or why it is withheld. What
// claims have shares of is never withheld: the scheduler would give its counters back.
func (k known) share(d, s inventory.Device) (entry, string) {
	e, was := k.before[s.Name]
	reason := cmp.Or(k.unshareable(d), k.besides(d))
	away := d.IfName == "" && k.inUse[d.Name] // with the pod that has it as a whole
	if was && e.ID == d.ID && (k.inUse[s.Name] || away) && reason != "" {
		return e, ""
	}
	if reason != "" {
		return entry{}, reason
	}
	capacity := inventory.Capacity(s)
	if s.Shared.Functions {
		capacity[inventory.CapacityFunctions] = inventory.OneEach(int64(k.functions(d)))
	}
	e = entry{d.ID, resourceapi.Device{
		Name: s.Name, Attributes: inventory.Attributes(s), AllowMultipleAllocations: new(true), Capacity: capacity,
	}}
	return e, invalid(e.Device)
}

// functions counts the functions of a PF that claims have or can have as shares: not those
// that a claim has by their own name, that the host uses, or that are elsewhere.
func (k known) functions(pf inventory.Device) int {
	n := 0
	unfit := Unfit(k.devices, k.dirty, k.others)
	for _, d := range k.devices {
		if d.PF != nil && d.PF.PCIAddress == pf.ID && (k.chosen[d.ID] || !k.inUse[d.Name] && unfit[d.ID] == "") {
			n++
		}
	}
	return n
}

// Unfit says by device ID why functions must not be allocated as shares of their PF. It
// does not know which of them claims have. Functions that a pod has by their own name would
// be withheld for the same reasons.
func Unfit(devices []inventory.Device, dirty, others map[string]string) map[string]string {
	out := map[string]string{}
	for _, d := range devices {
		if d.PF == nil {
			continue
		}
		why := cmp.Or(dirty[d.ID], known{others: others}.besides(d))
		switch {
		case why != "":
		case d.Exposure.Verdict == inventory.Withheld:
			why = withheldBy(d)
		case d.IfName == "" || d.HostUse != "":
			why = d.State()
		case len(d.Uppers) > 0:
			why = carries(d.Uppers)
		default:
			continue
		}
		out[d.ID] = why
	}
	return out
}

// pooled returns the policy that allocates the functions of a PF as shares, "" if none does.
// Where policies do not say what applies, they are allocated as before.
func (k known) pooled(pf string) string {
	i := slices.IndexFunc(k.devices, func(d inventory.Device) bool { return d.ID == pf })
	if i < 0 {
		return ""
	}
	e := k.devices[i].Exposure
	if e.Sharing != nil && e.Sharing.Functions {
		return e.Policy
	}
	if e.Verdict != inventory.Undecided {
		return ""
	}
	for _, was := range k.before {
		if _, functions := was.Device.Capacity[inventory.CapacityFunctions]; functions && was.ID == pf {
			return e.Policy
		}
	}
	return ""
}

// unshareable says why a device cannot be used in place. An uplink of the node may be
// shared, since the node keeps it.
func (k known) unshareable(d inventory.Device) string {
	by := d.Exposure.Sharing.By
	// The kernel passes packets of a port to its master, and refuses a second receiver
	// (netdev_rx_handler_register, net/core/dev.c).
	port := d.HostUse != "" && d.HostUse != inventory.DefaultRoute && d.HostUse != inventory.Unread ||
		d.Master != "" && d.HostUse == inventory.DefaultRoute
	if d.Exposure.Sharing.Functions && !k.noSharing {
		switch {
		case d.Kind != inventory.KindPF || d.NumVFs == 0:
			return "has no virtual functions to share"
		case d.IfName == "": // by which functions are limited
			return d.State()
		}
		return ""
	}
	stacks := len(by) == 0 || slices.ContainsFunc(by, func(t string) bool { return t == "ipvlan" || t == "macvlan" })
	switch {
	case k.noSharing:
		return "the API server does not support shared devices (feature DRAConsumableCapacity)"
	case d.HostUse == inventory.Unread:
		return d.State()
	case port && stacks:
		return fmt.Sprintf("%s: it is a port and passes its packets to its master: share the master", portOf(d))
	case (d.Kind != inventory.KindVirtual || d.SharedByName()) && d.LinkType != inventory.Ethernet:
		return "not Ethernet"
	case d.IfName == "":
		return d.State()
	}
	return ""
}

func portOf(d inventory.Device) string {
	if d.HostUse == inventory.DefaultRoute {
		return "port of " + d.Master
	}
	return d.State()
}

// exclude makes the forms of one device exclude each other by counters, so that the
// scheduler respects that and no pod has to wait on a node: a device as a whole and its
// shares; a PF as a whole and its functions. Shares do not exclude shares.
//
// The whole consumes the complete counter. Counters are computed on each scan, also for
// entries that stay as they were published.
func (k known) exclude(offered []entry) (kept []entry, withheld []Withheld) {
	shares, functions := map[string][]int{}, map[string][]int{} // by ID of the whole
	of := map[string]inventory.Device{}
	for _, d := range k.devices {
		of[d.ID] = d
	}
	for i := range offered {
		e := &offered[i]
		e.Device.ConsumesCounters = nil
		if e.shared() {
			shares[e.ID] = append(shares[e.ID], i)
		}
		if d := of[e.ID]; d.PF != nil {
			functions[d.PF.PCIAddress] = append(functions[d.PF.PCIAddress], i)
		}
	}
	without := map[int]string{}
	for i := range offered {
		whole := &offered[i]
		if whole.shared() || len(shares[whole.ID])+len(functions[whole.ID]) == 0 {
			continue
		}
		if k.noCounters {
			const why = "another form of the device is offered, and the API server cannot prevent that both are allocated: " +
				"enable its feature DRAPartitionableDevices to offer both"
			if !k.inUse[whole.Device.Name] {
				without[i] = why
				continue
			}
			for _, j := range slices.Concat(shares[whole.ID], functions[whole.ID]) {
				if !k.inUse[offered[j].Device.Name] {
					without[j] = why
				}
			}
			continue
		}
		set := whole.Device.Name
		if len(shares[whole.ID]) > 0 {
			whole.consume(set, counterUse, 1)
		}
		for _, j := range shares[whole.ID] {
			offered[j].consume(set, counterUse, 1)
		}
		if len(functions[whole.ID]) > 0 {
			// Not the current number: a counter below zero blocks all devices of the pool
			// that have counters.
			whole.consume(set, counterFunctions, int64(max(of[whole.ID].TotalVFs, len(functions[whole.ID]))))
		}
		for _, j := range functions[whole.ID] {
			offered[j].consume(set, counterFunctions, 1)
		}
	}
	for i, e := range offered {
		if why := without[i]; why != "" {
			withheld = append(withheld, Withheld{e.Device.Name, why})
			continue
		}
		kept = append(kept, e)
	}
	return kept, withheld
}

// consume adds a counter to what the device consumes.
func (e *entry) consume(set, counter string, n int64) {
	value := resourceapi.Counter{Value: *resource.NewQuantity(n, resource.DecimalSI)}
	i := slices.IndexFunc(e.Device.ConsumesCounters, func(c resourceapi.DeviceCounterConsumption) bool { return c.CounterSet == set })
	if i < 0 {
		e.Device.ConsumesCounters = append(e.Device.ConsumesCounters,
			resourceapi.DeviceCounterConsumption{CounterSet: set, Counters: map[string]resourceapi.Counter{}})
		i = len(e.Device.ConsumesCounters) - 1
	}
	e.Device.ConsumesCounters[i].Counters[counter] = value
}

// counterSets returns the sets that devices consume counters of. One is named like the
// whole that consumes all of it.
func counterSets(offered []entry) []resourceapi.CounterSet {
	var out []resourceapi.CounterSet
	for _, e := range offered {
		for _, c := range e.Device.ConsumesCounters {
			if c.CounterSet == e.Device.Name {
				out = append(out, resourceapi.CounterSet{Name: c.CounterSet, Counters: c.Counters})
			}
		}
	}
	return out
}
