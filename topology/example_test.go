package topology_test

import (
	"context"
	"fmt"
	"os"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/ref"
)

func ExampleDecode() {
	t, err := topology.Decode([]byte(`
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata:
  name: vlan-on-vf
spec:
  steps:
    - name: vlan100
      type: vlan
      dependOn: [vf0]
      config: {id: 100, master: "{{ vf0.interfaceName }}"}
    - name: vf0
      type: sriov
`))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	order, err := topology.Order(t)
	for _, s := range order {
		fmt.Println(s.Name, s.Root())
	}
	fmt.Println(err)
	// Output:
	// vf0 true
	// vlan100 false
	// <nil>
}

func ExampleValidate() {
	set, err := contract.NewSet(contract.Contract{
		Type:   "vlan",
		Params: []contract.Param{{Name: "id", Type: contract.Integer, Required: true, Maximum: contract.Int(4094)}},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	t := &topology.Topology{Name: "t", Steps: []topology.Step{
		{Name: "v", Type: "vlan", Config: map[string]any{"id": 4095}},
	}}
	fmt.Println(topology.Validate(context.Background(), t, set))
	// Output: NetworkTopology "t", step "v": config.id: 4095 is above the maximum 4094
}

func ExampleResult_Field() {
	merged := topology.Merge(
		topology.Result{Interfaces: []topology.Interface{{Name: "net1", Sandbox: "/run/netns/a"}}},
		topology.Result{Interfaces: []topology.Interface{{Name: "net2", Sandbox: "/run/netns/a"}, {Name: "veth0"}}},
	)
	fmt.Println(merged.Field(ref.Ref{Field: "interfaceName"}))
	_, err := merged.Field(ref.Ref{Field: "mac"})
	fmt.Println(err)
	// Output:
	// net2 <nil>
	// MAC address of interface "net2": not known yet
}
