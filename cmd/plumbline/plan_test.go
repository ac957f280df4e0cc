package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
)

// TestOwnNetworkAsPlanned: apply of a topology with a role and addresses of its own makes what a plan shows.
func TestOwnNetworkAsPlanned(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	a := &app{registry: registry}
	topo, err := topology.Decode([]byte(`apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: pods}
spec:
  role: primary
  steps:
    - {name: pod, type: bridge, config: {bridge: pods0, isDefaultGateway: true, addresses: [192.0.2.2/24]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	planned, err := (&target{}).ownNetwork(a, topo, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	applied, err := (&target{}).ownNetwork(a, topo, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(planned.Steps, applied.Steps); diff != "" || applied.Steps[0].Config["ifName"] != topology.PodInterface {
		t.Errorf("the interface is %v (-planned +applied):\n%s", applied.Steps[0].Config["ifName"], diff)
	}
}
