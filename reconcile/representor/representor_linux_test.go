package representor_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/plumbline/plumbline/inventory/sysfstest"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/representor"
	"github.com/plumbline/plumbline/topology/fault"
)

// card has a physical function with two virtual ones. An attribute that a driver does not have is
// a folder here: it cannot be read.
const card = `
-- bus/pci/devices/0000:03:00.0/virtfn0 -> ../0000:03:00.2 --
-- bus/pci/devices/0000:03:00.0/virtfn1 -> ../0000:03:00.3 --
-- bus/pci/devices/0000:03:00.2/physfn -> ../0000:03:00.0 --
-- bus/pci/devices/0000:03:00.3/physfn -> ../0000:03:00.0 --
-- bus/pci/devices/0000:03:00.4/physfn -> ../0000:03:00.0 --
`

const net = "bus/pci/devices/0000:03:00.0/net/"

func link(name, of, port string) string {
	return "-- " + net + name + "/phys_switch_id --\n" + of + "\n-- " + net + name + "/phys_port_name --\n" + port + "\n"
}

func read(t *testing.T, mode string, broken error, tree, id string) (netstate.Representor, bool, error) {
	t.Helper()
	_, dir := sysfstest.Unpack(t, txtar.Parse([]byte(card+tree)))
	s := netstate.NewSnapshot()
	modeOf := func(bus, device string) (string, error) {
		if bus != "pci" || device != "0000:03:00.0" {
			t.Errorf("the mode of %s/%s was queried", bus, device)
		}
		return mode, broken
	}
	err := representor.Open(dir, modeOf).Extend(t.Context(), s, []netstate.Object{netstate.Representor{ID: id}})
	r, there := netstate.Lookup(s, netstate.Representor{ID: id})
	if err == nil && !there && !s.Known(netstate.Representor{ID: id}) {
		t.Errorf("%s: not recorded as absent", id)
	}
	return r, there, err
}

func TestRepresentor(t *testing.T) {
	uplink := link("enp3s0", "aabb", "p0")
	for _, c := range []struct {
		name, tree, id, want string
	}{
		{"the first", uplink + link("eth7", "aabb", "pf0vf0") + link("eth8", "aabb", "pf0vf1"), "0000:03:00.2", "host:eth7"},
		{"the second", uplink + link("eth7", "aabb", "pf0vf0") + link("eth8", "aabb", "pf0vf1"), "0000:03:00.3", "host:eth8"},
		{"names of links mean nothing", uplink + link("pf0vf0", "aabb", "pf0vf1") + link("pf0vf1", "aabb", "pf0vf0"), "0000:03:00.2", "host:pf0vf1"},
		{"ten is not one", uplink + link("eth7", "aabb", "pf0vf10"), "0000:03:00.3", "host:"},
		{"of the computer that the card is in", uplink + link("eth7", "aabb", "c1pf0vf0"), "0000:03:00.2", "host:"},
		{"a subfunction", uplink + link("eth7", "aabb", "pf0sf0"), "0000:03:00.2", "host:"},
		{"of another switch", uplink + link("eth7", "ccdd", "pf0vf0"), "0000:03:00.2", "host:"},
		{"the second port of a card", link("enp3s0", "aabb", "p1") + link("eth7", "aabb", "pf1vf0"), "0000:03:00.2", "host:eth7"},
		{"no uplink", link("eth7", "aabb", "pf0vf0"), "0000:03:00.2", "host:"},
		{"an uplink without a switch", "-- " + net + "enp3s0/phys_switch_id/ --\n-- " + net + "enp3s0/phys_port_name --\np0\n" + link("eth7", "aabb", "pf0vf0"), "0000:03:00.2", "host:"},
		{"no links", "", "0000:03:00.2", "host:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, there, err := read(t, "switchdev", nil, c.tree, c.id)
			if err != nil || !there || r.PF != "0000:03:00.0" || r.Link == nil || !r.Switchdev {
				t.Fatalf("%+v %v %v", r, there, err)
			}
			if got := netstate.HostName(netstate.BaseName(*r.Link)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestLegacy: whatever sysfs has, only devlink says whether there are representors.
func TestLegacy(t *testing.T) {
	for _, mode := range []string{"legacy", "", "unknown"} {
		r, there, err := read(t, mode, nil, link("enp3s0", "aabb", "p0")+link("eth7", "aabb", "pf0vf1"), "0000:03:00.3")
		if err != nil || !there || r.Switchdev || r.Link == nil || *r.Link != "" || r.Index != 1 {
			t.Errorf("mode %q: %+v %v %v", mode, r, there, err)
		}
	}
}

func TestNoVirtualFunction(t *testing.T) {
	for _, id := range []string{"0000:03:00.0", "0000:07:00.0", "if:eth0", "../../etc", ""} {
		if r, there, err := read(t, "switchdev", nil, "", id); there || err != nil {
			t.Errorf("%q: %+v %v", id, r, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	double := link("enp3s0", "aabb", "p0") + link("eth7", "aabb", "pf0vf0") + link("eth8", "aabb", "pf0vf0")
	if _, _, err := read(t, "switchdev", nil, double, "0000:03:00.2"); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), `["eth7" "eth8"] all represent virtual function 0`) {
		t.Errorf("two representors: %v", err)
	}
	if _, _, err := read(t, "switchdev", nil, "", "0000:03:00.4"); fault.Of(err) != fault.NotReady {
		t.Errorf("a function that the physical one does not have: %v", err)
	}
	broken := errors.New("broken")
	if _, _, err := read(t, "", broken, "", "0000:03:00.2"); !errors.Is(err, broken) {
		t.Errorf("devlink does not answer: %v", err)
	}
	if err := representor.Open("/sys", kernel.SwitchMode).Apply(t.Context(), netstate.Change{}); err == nil {
		t.Error("a representor was changed")
	}
}

// TestModeOfNoDevice: a device that the kernel's devlink does not know has no mode, as one whose
// driver has none.
func TestModeOfNoDevice(t *testing.T) {
	if mode, err := kernel.SwitchMode("pci", "0000:ff:1f.7"); mode != "" || err != nil {
		t.Errorf("mode %q %v", mode, err)
	}
}
