package all_test

import (
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
)

// TestUplink holds which interface of a pod is refused on a node, where more is
// known than a name.
func TestUplink(t *testing.T) {
	ext := netstate.Link{Name: "ext0", LinkKind: "veth", Up: new(true), MTU: new(uint32(1500)), Master: new("")}
	route := func(protocol int, table uint32) netstate.Route {
		return netstate.Route{Link: "ext0", Dst: "0.0.0.0/0", Gateway: "192.0.2.1", Table: table, Protocol: protocol}
	}
	tuned := netstate.Change{Step: "t", Before: netstate.Link{Name: "ext0", MTU: new(uint32(1500))}, After: netstate.Link{Name: "ext0", MTU: new(uint32(9000))}}
	for name, tt := range map[string]struct {
		have    []netstate.Object
		owned   []netstate.Change
		kept    bool
		refused bool
	}{
		"default route of the pod":   {[]netstate.Object{ext, route(3, netstate.TableMain)}, nil, false, true},
		"default route of ours":      {[]netstate.Object{ext, route(netstate.RouteProtocol, netstate.TableMain)}, nil, false, false},
		"default route of a VRF":     {[]netstate.Object{ext, route(3, 1001)}, nil, false, false},
		"no default route":           {[]netstate.Object{ext}, nil, false, false},
		"changed by an earlier pass": {[]netstate.Object{ext, route(3, netstate.TableMain)}, []netstate.Change{tuned}, false, false},
		"applied before":             {[]netstate.Object{ext, route(3, netstate.TableMain)}, nil, true, false},
	} {
		reg, top := vetted(t, "    - {name: d, type: dummy, config: {name: d0}}\n    - {name: t, type: tuning, dependOn: [d], config: {dev: ext0, mtu: 9000}}\n")
		plan := func() error {
			_, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/pod", Have: netstate.NewSnapshot(tt.have...), Owned: tt.owned, Kept: tt.kept})
			return err
		}
		if err := plan(); (err != nil) != tt.refused || tt.refused && !strings.Contains(err.Error(), `step "t": dev: "ext0" is the pod's own interface to the cluster: set spec.allowPodUplink`) {
			t.Errorf("%s: %v", name, err)
		}
		top.AllowPodUplink = true
		if err := plan(); err != nil {
			t.Errorf("%s, allowed: %v", name, err)
		}
	}
}
