package all_test

import (
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestSecretSysctl: a topology with a key in it is refused, and the value is not
// repeated. A sandbox that an earlier version gave one keeps it.
func TestSecretSysctl(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const key = "2001:db8:5ec::1"
	top := steps(t, `
  - {name: d, type: dummy, config: {name: d0}}
  - {name: t, type: tuning, dependOn: [d], config: {sysctl: {net.ipv6.conf.IFNAME.stable_secret: "`+key+`"}}}
`)
	for _, req := range []ops.Request{{}, {Kept: true}, {AppliedBefore: true}} {
		req.Topology, req.Netns, req.Have = top, "/run/netns/pod", netstate.NewSnapshot()
		_, err := reg.Plan(t.Context(), req)
		keeps := req.Kept || req.AppliedBefore
		if refused := fault.Of(err) == fault.Invalid; refused == keeps || err != nil && keeps {
			t.Errorf("kept %v, applied before %v: error %v", req.Kept, req.AppliedBefore, err)
		}
		if err != nil && strings.Contains(err.Error(), key) {
			t.Errorf("the error has the key in it: %v", err)
		}
	}
}
