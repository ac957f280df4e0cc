package topology_test

import (
	"fmt"
	"testing"

	"github.com/plumbline/plumbline/topology"
)

func TestRouteGateways(t *testing.T) {
	top, err := topology.Decode([]byte(`{apiVersion: networking.dra.io/v1alpha1, kind: NetworkTopology, metadata: {name: t}, spec: {steps: [
  {name: a, type: dummy, config: {routes: [{destination: default, gateway: 192.0.2.1}, {destination: 198.51.100.0/24}, {destination: 203.0.113.0/24, gateway: none}]}},
  {name: b, type: dummy, config: {ipam: {type: pool, pool: p, routes: [{dst: "::/0", gw: "2001:db8::1"}]}}}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(topology.RouteGateways(top)); got != "[192.0.2.1 2001:db8::1]" {
		t.Errorf("the gateways are %s", got)
	}
}
