package all_test

import (
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestGUIDOfOtherTopology: two topologies of a pod have functions with one port GUID only if it is the same function.
func TestGUIDOfOtherTopology(t *testing.T) {
	const function, guid = "0000:03:00.2", "00:02:c9:03:00:21:6e:78"
	host := netstate.HostName("ibp3s0v0")
	reg, top := vetted(t, `    - {name: ib, type: sriov, config: {portGUID: "`+guid+`"}}`+"\n")
	for name, tt := range map[string]struct {
		other netstate.VF
		wrong string
	}{
		"another function":    {netstate.VF{ID: "0000:03:00.3", PortGUID: new(guid)}, `step "storage" of topology "other", which the pod has too, has the same GUID ` + guid},
		"the same function":   {netstate.VF{ID: function, PortGUID: new(guid)}, ""},
		"another GUID":        {netstate.VF{ID: "0000:03:00.3", PortGUID: new("00:02:c9:03:00:21:6e:79")}, ""},
		"its GUIDs were left": {netstate.VF{ID: "0000:03:00.3", Trust: new(true)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			have := netstate.NewSnapshot(
				netstate.Device{ID: function, At: &host, Up: new(false), LinkKind: netstate.InfiniBandKind, Driver: "mlx5_core", PortGUID: guid},
				netstate.Link{Name: host, LinkKind: netstate.InfiniBandKind, DeviceID: function, Up: new(false), Master: new("")},
				netstate.VF{ID: function, PF: "host:ibp3s0", NodeGUID: new(""), PortGUID: new("")},
				netstate.Binding{ID: function, Driver: new("mlx5_core"), Override: new(""), PF: "0000:03:00.0", NodeGUID: new(""), PortGUID: new(guid)})
			_, err := reg.Plan(t.Context(), ops.Request{
				Topology: top, Netns: "/run/netns/pod", Given: ops.Givens{"ib": {Device: function}}, Have: have,
				Others: []ops.Other{{Name: "other", History: []netstate.Change{{Step: "storage", After: tt.other}}}},
			})
			if wrong := tt.wrong != ""; wrong != (err != nil) || wrong && (!strings.Contains(err.Error(), tt.wrong) || fault.Of(err) != fault.Invalid) {
				t.Errorf("error %v, want %q", err, tt.wrong)
			}
		})
	}
}

// TestGUIDOfRunningPod: the GUID of a function in a sandbox is not changed on the physical function only, and a repair leaves it alone.
func TestGUIDOfRunningPod(t *testing.T) {
	const function, guid = "0000:03:00.2", "00:02:c9:03:00:21:6e:78"
	in := "net1"
	reg, top := vetted(t, `    - {name: ib, type: sriov, config: {portGUID: "`+guid+`"}}`+"\n")
	for name, tt := range map[string]struct {
		read    *string // by the driver
		kept    bool
		refused bool
	}{
		"edited":                       {new("00:02:c9:03:00:21:6e:99"), false, true},
		"edited where none was":        {new(""), false, true},
		"another key is edited":        {new(guid), false, false},
		"checked":                      {new(guid), true, false},
		"checked, and rebound by hand": {new("00:02:c9:03:00:21:6e:99"), true, false},
		"checked without a device":     {nil, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			device := netstate.Device{ID: function, At: &in, Up: new(true), LinkKind: netstate.InfiniBandKind, Driver: "mlx5_core"}
			have := netstate.NewSnapshot(device,
				netstate.Link{Name: in, LinkKind: netstate.InfiniBandKind, DeviceID: function, Up: new(true), Master: new("")},
				netstate.VF{ID: function, PF: "host:ibp3s0", NodeGUID: new(""), PortGUID: new("")},
				netstate.Binding{ID: function, Driver: new("mlx5_core"), Override: new(""), PF: "0000:03:00.0", NodeGUID: tt.read, PortGUID: tt.read})
			home := device
			home.At = new(netstate.HostName("ibp3s0v0"))
			request := ops.Request{
				Topology: top, Netns: "/run/netns/pod", Given: ops.Givens{"ib": {Device: function}}, Kept: tt.kept, Have: have,
				Owned: []netstate.Change{{Step: "ib", Before: home, After: netstate.Device{ID: function, At: &in}}},
			}
			p, err := reg.Plan(t.Context(), request)
			for err == nil && len(p.Missing) > 0 {
				for _, o := range p.Missing {
					if s, ok := o.(netstate.Sysctl); ok {
						have.Put(netstate.Sysctl{Path: s.Path, Value: new("0")})
					} else {
						have.PutAbsent(o.Key())
					}
				}
				p, err = reg.Plan(t.Context(), request)
			}
			if tt.refused {
				if fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), `portGUID: cannot change from `) ||
					!strings.Contains(err.Error(), ` to `+guid+` while device "0000:03:00.2" is in the sandbox: its driver reads a GUID when it is bound`) {
					t.Errorf("error: %v, plan:\n%s", err, p)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range p.Changes {
				if c.Key().Kind == netstate.KindBinding || c.Key().Kind == netstate.KindDevice {
					t.Errorf("the running pod's function is changed: %s", c)
				}
			}
		})
	}
}

// TestGUIDsReturned: a function returns with the GUIDs that its driver had read, though the physical function held none for it. A driver that
// has read neither ours nor those is left alone, one that was unbound when its agent was killed is bound again.
func TestGUIDsReturned(t *testing.T) {
	const function, ours, own = "0000:03:00.2", "00:02:c9:03:00:21:6e:78", "00:02:c9:03:00:21:6e:99"
	guids := func(driver, guid string) netstate.Binding {
		return netstate.Binding{ID: function, Driver: new(driver), Override: new(""), NodeGUID: new(guid), PortGUID: new(guid)}
	}
	unbound := netstate.Binding{ID: function, Driver: new(""), Override: new("")}
	for name, tt := range map[string]struct {
		held, had string // by the physical function, and by the driver
		now       netstate.Binding
		vf, read  string // what is restored; "-": nothing
	}{
		"none held":           {"", own, guids("mlx5_core", ours), own, own},
		"its own held":        {own, own, guids("mlx5_core", ours), own, own},
		"none at all":         {"", "", guids("mlx5_core", ours), "", ""},
		"another is held":     {"00:02:c9:03:00:21:6e:11", own, guids("mlx5_core", ours), "00:02:c9:03:00:21:6e:11", own},
		"others read since":   {"", own, guids("mlx5_core", "00:02:c9:03:00:21:6e:22"), own, "-"},
		"not bound":           {"", own, unbound, own, own},
		"without RDMA device": {"", own, netstate.Binding{ID: function, Driver: new("mlx5_core"), Override: new("")}, own, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			vf := func(guid string) netstate.VF {
				return netstate.VF{ID: function, NodeGUID: new(guid), PortGUID: new(guid)}
			}
			history := []netstate.Change{
				{Step: "ib", Before: vf(tt.held), After: vf(ours)},
				{Step: "ib", Before: netstate.Binding{ID: function, NodeGUID: &tt.had, PortGUID: &tt.had}, After: netstate.Binding{ID: function, NodeGUID: new(ours), PortGUID: new(ours)}},
			}
			device := netstate.Device{ID: function, Driver: *tt.now.Driver}
			if device.Driver != "" { // its interface is on the host
				device.At = new(netstate.HostName("ib0"))
			}
			changes, missing := ops.Undo(netstate.NewSnapshot(vf(ours), tt.now, device), history)
			restored, read := "-", "-"
			for i, c := range changes {
				switch o := c.After.(type) {
				case netstate.VF:
					if restored = *o.PortGUID; i != 0 || o.NodeGUID == nil || *o.NodeGUID != restored {
						t.Errorf("change %d: %s", i, c)
					}
				case netstate.Binding:
					read = *o.PortGUID
				}
			}
			if len(missing) > 0 || restored != tt.vf || read != tt.read {
				t.Errorf("missing %v; restored %q on the physical function, want %q; read %q, want %q", missing, restored, tt.vf, read, tt.read)
			}
		})
	}
}
