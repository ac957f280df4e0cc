package all_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
)

// Whoever writes a topology chooses how many routes and addresses it has, and each
// node of its pods plans it at each check: that takes no time that is their product.
func TestManyRoutesAndAddresses(t *testing.T) {
	n := 3_000
	if effort.Long() {
		n = 12_000
	}
	var addresses, routes []string
	for i := range n {
		addresses = append(addresses, fmt.Sprintf(`"10.%d.%d.1/32"`, i>>8, i&255))
		routes = append(routes, fmt.Sprintf(`{"destination":"11.0.%d.%d/32","gateway":"10.255.0.1"}`, i>>8, i&255))
	}
	config := fmt.Sprintf(`{"name":"d0","addresses":[%s,"10.255.0.2/24"],"routes":[%s]}`, strings.Join(addresses, ","), strings.Join(routes, ","))
	topo, err := topology.Decode([]byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n    - {name: s, type: dummy, config: " + config + "}\n"))
	if err != nil {
		t.Fatal(err)
	}
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	plan, err := reg.Plan(ctx, ops.Request{Topology: topo, Netns: "/run/netns/pod", Have: withoutIPv6(netstate.NewSnapshot())})
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Missing) == 0 && len(plan.Changes) < 2*n {
		t.Errorf("%d changes", len(plan.Changes))
	}
}
