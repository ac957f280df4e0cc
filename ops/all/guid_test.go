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
				netstate.Binding{ID: function, Driver: new("mlx5_core"), Override: new(""), PF: "0000:03:00.0"})
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
