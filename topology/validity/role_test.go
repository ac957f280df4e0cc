package validity_test

import (
	"net/netip"
	"testing"

	"github.com/plumbline/plumbline/topology"
)

// TestForPod: each type that may be the pod network gets the runtime's name and the
// pod CIDRs, whichever key its contract has for the name.
func TestForPod(t *testing.T) {
	reg := registry(t)
	for _, typ := range []string{"bridge", "ptp"} {
		top, _, err := checked(t, []byte(`
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: pods}
spec:
  role: primary
  steps:
    - {name: eth, type: `+typ+`}
`), reg)
		if err != nil {
			t.Errorf("type %s: %v", typ, err)
			continue
		}
		pod := top.ForPod(reg, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, "eth7")
		if got := pod.Steps[0].Config["ifName"]; got != "eth7" {
			t.Errorf("type %s: the interface has the name %v, want eth7", typ, got)
		}
		if ipam, _ := pod.Steps[0].Config["ipam"].(map[string]any); ipam["type"] != topology.IPAMHostLocal {
			t.Errorf("type %s: ipam is %v, want the pod CIDRs", typ, ipam)
		}
		if have, want := pod.Steps[0].Config["hairpinMode"], map[string]any{"bridge": true}[typ]; have != want {
			t.Errorf("type %s: hairpinMode is %v, want %v", typ, have, want)
		}
		if err := topology.Validate(t.Context(), pod, reg); err != nil {
			t.Errorf("type %s, for a pod: %v", typ, err)
		}
	}
	for _, config := range []string{"{hairpinMode: false}", "{promiscMode: true}"} {
		top, _, err := checked(t, []byte(`
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: pods}
spec:
  role: primary
  steps:
    - {name: eth, type: bridge, config: `+config+`}
`), reg)
		if err != nil {
			t.Errorf("%s: %v", config, err)
			continue
		}
		if pod := top.ForPod(reg, nil, "eth0"); pod.Steps[0].Config["hairpinMode"] == true {
			t.Errorf("%s: hairpinMode is true", config)
		}
	}
}
