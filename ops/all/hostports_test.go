package all_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
)

// TestManyHostPorts: a pod may have as many ports of the host as the docs say, and a node observes them
// together: it gives up a plan that needs one observation after the other.
func TestManyHostPorts(t *testing.T) {
	const ports, families = 256, 2
	var mappings []string
	for i := range ports {
		mappings = append(mappings, fmt.Sprintf("{hostPort: %d, containerPort: 80}", 1024+i))
	}
	top := steps(t, `  - {name: p, type: ptp, config: {addresses: [192.0.2.5/24, "2001:db8::5/64"], portMappings: [`+strings.Join(mappings, ", ")+"]}}\n")
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	have := netstate.NewSnapshot(
		netstate.Sysctl{Path: "host:net/ipv4/ip_forward", Value: new("1")}, netstate.Sysctl{Path: "host:net/ipv6/conf/all/forwarding", Value: new("1")})
	for range 8 {
		p, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/pod", Have: have})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Missing) == 0 {
			created := 0
			for _, c := range p.Changes {
				if c.Key().Kind == netstate.KindPortMapping && c.Action() == netstate.Create {
					created++
				}
			}
			if created != ports*families {
				t.Errorf("%d ports are created, not %d", created, ports*families)
			}
			return
		}
		for _, o := range p.Missing {
			have.PutAbsent(o.Key())
		}
	}
	t.Error("the plan still needs observations after 8")
}
