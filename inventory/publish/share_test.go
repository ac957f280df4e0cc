package publish

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/inventory"
)

// cards are a PF without functions, and one with two of eight.
func cards() []inventory.Device {
	out := []inventory.Device{
		{ID: "0000:01:00.0", Name: "pci-0000-01-00-0", Kind: inventory.KindPF, IfName: "p0", LinkType: inventory.Ethernet, TotalVFs: 8},
		{ID: "0000:02:00.0", Name: "pci-0000-02-00-0", Kind: inventory.KindPF, IfName: "p1", LinkType: inventory.Ethernet, TotalVFs: 8, NumVFs: 2},
	}
	for i := range 2 {
		out = append(out, inventory.Device{
			ID: fmt.Sprintf("0000:02:10.%d", i), Name: fmt.Sprintf("pci-0000-02-10-%d", i), Kind: inventory.KindVF, IfName: fmt.Sprintf("p1v%d", i),
			LinkType: inventory.Ethernet, PF: &inventory.PF{PCIAddress: "0000:02:00.0", IfName: "p1", VFIndex: i},
		})
	}
	return out
}

// shown lists what is published, in order, with counters in brackets.
func shown(offered []entry) string {
	var out []string
	for _, e := range offered {
		s := strings.TrimPrefix(e.Device.Name, "pci-0000-")
		var counters []string
		for _, c := range e.Device.ConsumesCounters {
			for _, name := range slices.Sorted(maps.Keys(c.Counters)) {
				n := c.Counters[name]
				counters = append(counters, fmt.Sprintf("%s %s of %s", n.Value.String(), name, strings.TrimPrefix(c.CounterSet, "pci-0000-")))
			}
		}
		if c, ok := e.Device.Capacity[inventory.CapacityFunctions]; ok {
			s += "[" + c.Value.String() + "]"
		}
		if len(counters) > 0 {
			s += "(" + strings.Join(counters, ", ") + ")"
		}
		if _, limited := e.Device.Capacity[inventory.CapacityShares]; limited != e.shared() {
			s += " with the wrong capacity"
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

// TestShared follows what is published of a card through edits of policies while claims
// have parts of it. A name that was published as shared is never one that is allocated
// as a whole, what is in use is never withdrawn, and forms that exclude each other have
// a counter.
func TestShared(t *testing.T) {
	const p0, p1 = "0000:01:00.0", "0000:02:00.0"
	share := func(suffix string, whole bool) inventory.Exposure {
		return inventory.Exposure{Policy: "p", Verdict: inventory.Exposed, Sharing: &inventory.Sharing{Suffix: suffix, Whole: whole}}
	}
	beside := share("-x", true)
	beside.BesideFunctions = true
	pool := share("-f", false)
	pool.Sharing.By, pool.Sharing.Functions = []string{"sriov"}, true
	undecided := inventory.Exposure{Policy: "p", Verdict: inventory.Undecided, Reason: "why"}
	const functions = "02-10-0 02-10-1"
	k := known{before: map[string]entry{}}
	for _, step := range []struct {
		name    string
		say     map[string]inventory.Exposure
		chosen  string
		dirty   string
		other   string
		inUse   []string
		away    string
		without string
		want    string
	}{
		{name: "no policy", want: "01-00-0 " + functions},
		{name: "shared only", say: map[string]inventory.Exposure{p0: share("-shared", false), p1: share("-shared", false)}, want: functions + " 01-00-0-shared 02-00-0-shared"},
		{name: "undecided", say: map[string]inventory.Exposure{p0: undecided, p1: undecided}, want: functions + " 01-00-0-shared 02-00-0-shared"},
		{name: "withdrawn in use", inUse: []string{"01-00-0-shared"}, want: "01-00-0(1 use of 01-00-0) " + functions + " 01-00-0-shared(1 use of 01-00-0)"},
		{name: "another suffix, the old in use", say: map[string]inventory.Exposure{p0: share("-b", false)}, inUse: []string{"01-00-0-shared"}, want: functions + " 01-00-0-b 01-00-0-shared"},
		{name: "the old is free", say: map[string]inventory.Exposure{p0: share("-b", false)}, want: functions + " 01-00-0-b"},
		{name: "withdrawn", want: "01-00-0 " + functions},
		{name: "taken as a whole", inUse: []string{"01-00-0"}, away: "p0", want: "01-00-0 " + functions},
		{name: "shared while taken", say: map[string]inventory.Exposure{p0: share("-b", false)}, inUse: []string{"01-00-0"}, away: "p0", want: "01-00-0 " + functions},
		{name: "both", say: map[string]inventory.Exposure{p0: share("-x", true)}, want: "01-00-0(1 use of 01-00-0) " + functions + " 01-00-0-x(1 use of 01-00-0)"},
		{name: "both, taken as a whole", say: map[string]inventory.Exposure{p0: share("-x", true)}, inUse: []string{"01-00-0"}, away: "p0", want: "01-00-0(1 use of 01-00-0) " + functions + " 01-00-0-x(1 use of 01-00-0)"},
		{name: "beside functions", say: map[string]inventory.Exposure{p1: beside}, want: "01-00-0 02-00-0(8 functions of 02-00-0, 1 use of 02-00-0) 02-10-0(1 functions of 02-00-0) 02-10-1(1 functions of 02-00-0) 02-00-0-x(1 use of 02-00-0)"},
		{name: "beside functions, one taken", say: map[string]inventory.Exposure{p1: beside}, inUse: []string{"02-10-1"}, away: "p1v1", want: "01-00-0 02-00-0(8 functions of 02-00-0, 1 use of 02-00-0) 02-10-0(1 functions of 02-00-0) 02-10-1(1 functions of 02-00-0) 02-00-0-x(1 use of 02-00-0)"},
		{name: "functions as shares", say: map[string]inventory.Exposure{p0: pool, p1: pool}, want: "02-00-0-f[2]"},
		{name: "functions as shares, undecided", say: map[string]inventory.Exposure{p1: undecided}, want: "01-00-0 02-00-0-f[2]"},
		{name: "functions as shares, one taken by its name", say: map[string]inventory.Exposure{p1: pool}, inUse: []string{"02-10-1"}, away: "p1v1", want: "01-00-0 02-10-1 02-00-0-f[1]"},
		{name: "functions as shares, withdrawn in use", inUse: []string{"02-00-0-f"}, want: "01-00-0 " + functions + " 02-00-0-f[1]"},
		{name: "functions as shares, withdrawn while one that a claim has is on the host", inUse: []string{"02-00-0-f"}, chosen: "0000:02:10.1", want: "01-00-0 02-10-0 02-00-0-f[1]"},
		{name: "functions as shares, one is dirty", say: map[string]inventory.Exposure{p1: pool}, dirty: "0000:02:10.1", want: "01-00-0 02-00-0-f[1]"},
		{name: "functions as shares, one is dirty, and in use", say: map[string]inventory.Exposure{p1: pool}, inUse: []string{"02-00-0-f"}, dirty: "0000:02:10.1", chosen: "0000:02:10.1", want: "01-00-0 02-00-0-f[2]"},
		{name: "functions as shares, another driver has one", say: map[string]inventory.Exposure{p1: pool}, other: "0000:02:10.1", want: "01-00-0 02-00-0-f[1]"},
		{name: "functions as shares, another policy withholds one", say: map[string]inventory.Exposure{p1: pool, "0000:02:10.1": {Policy: "w", Verdict: inventory.Withheld}}, want: "01-00-0 02-00-0-f[1]"},
		{name: "a cluster without shared devices", without: "DRAConsumableCapacity", say: map[string]inventory.Exposure{p0: share("-x", true)}, want: "01-00-0 " + functions},
		{name: "a cluster without counters", without: "DRAPartitionableDevices", say: map[string]inventory.Exposure{p0: share("-x", true), p1: beside}, want: functions + " 01-00-0-x 02-00-0-x"},
		{name: "a cluster without counters, taken as a whole", without: "DRAPartitionableDevices", say: map[string]inventory.Exposure{p0: share("-x", true)}, inUse: []string{"01-00-0"}, want: "01-00-0 " + functions},
	} {
		k.devices, k.inUse = cards(), map[string]bool{}
		k.noSharing, k.noCounters = step.without == "DRAConsumableCapacity", step.without == "DRAPartitionableDevices"
		for i := range k.devices {
			d := &k.devices[i]
			d.Exposure = step.say[d.ID]
			if d.IfName == step.away {
				d.IfName = ""
			}
		}
		k.chosen, k.dirty, k.others = map[string]bool{step.chosen: true}, map[string]string{step.dirty: "why"}, map[string]string{step.other: "other"}
		for _, name := range step.inUse {
			k.inUse["pci-0000-"+name] = true
		}
		offered, withheld := k.offer()
		if have := shown(offered); have != step.want {
			t.Errorf("%s\nhave %s\nwant %s\nwithheld %v", step.name, have, step.want, withheld)
		}
		for _, e := range offered {
			if was, ok := k.before[e.Device.Name]; ok && was.shared() != e.shared() {
				t.Errorf("%s: %q is shared and allocated under one name", step.name, e.Device.Name)
			}
		}
		k.before = k.remember(offered)
	}
}

// TestSharedSlices holds that counters come first, and shared devices last in a slice of
// their own, and that every counter has a set.
func TestSharedSlices(t *testing.T) {
	devices := cards()
	devices[0].Exposure.Sharing = &inventory.Sharing{Suffix: "-x", Whole: true}
	offered, _ := known{devices: devices}.offer()
	slices := pools("n", offered).Pools["n"].Slices
	if len(slices) != 3 || len(slices[0].SharedCounters) != 1 || len(slices[1].Devices) != 3 || len(slices[2].Devices) != 1 {
		t.Fatalf("%+v", slices)
	}
	for _, s := range slices[1:] {
		for _, d := range s.Devices {
			for _, c := range d.ConsumesCounters {
				if c.CounterSet != slices[0].SharedCounters[0].Name {
					t.Errorf("device %q consumes of %q", d.Name, c.CounterSet)
				}
			}
		}
	}
}

// TestSharedNames holds that a name leads to one device, whatever interfaces are called.
func TestSharedNames(t *testing.T) {
	var devices []inventory.Device
	for _, name := range []string{"net-a", "net-a-b"} {
		d := inventory.Device{ID: "if:" + strings.TrimPrefix(name, "net-"), Name: name, Kind: inventory.KindVirtual, DevType: "bond"}
		d.Exposure.Sharing = &inventory.Sharing{Suffix: "-b"}
		devices = append(devices, d)
	}
	for _, d := range inventory.Forms(devices) {
		if found, ok := inventory.Named(devices, d.Name); !ok || found.ID != d.ID {
			t.Errorf("%q leads to %q", d.Name, found.ID)
		}
	}
	if d, ok := inventory.Named(devices[:1], inventory.Forms(devices)[3].Name); ok {
		t.Errorf("a device that is gone is %q", d.ID)
	}
}

// TestWithdrawnStays: a shared device that a claim has keeps the taint that says that no policy shares it while the policies
// do not say what applies, as after a restart.
func TestWithdrawnStays(t *testing.T) {
	share := inventory.Exposure{Policy: "p", Verdict: inventory.Exposed, Sharing: &inventory.Sharing{Suffix: "-x"}}
	undecided := inventory.Exposure{Policy: "p", Verdict: inventory.Undecided, Reason: "why"}
	const name = "pci-0000-01-00-0-x"
	k := known{before: map[string]entry{}, inUse: map[string]bool{name: true}}
	for _, step := range []struct {
		what      string
		exposure  inventory.Exposure
		withdrawn bool
	}{
		{"shared", share, false},
		{"undecided", undecided, false},
		{"deleted", inventory.Exposure{}, true},
		{"undecided after that", undecided, true},
		{"shared again", share, false},
	} {
		k.devices = cards()
		k.devices[0].Exposure = step.exposure
		offered, _ := k.offer()
		p := &Publisher{}
		p.noteWithdrawn(offered)
		if p.Withdrawn(name) != step.withdrawn {
			t.Errorf("%s: withdrawn is %t", step.what, !step.withdrawn)
		}
		k.before = k.remember(offered)
	}
}
