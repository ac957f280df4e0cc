package validity_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// rail is the result of a step that has taken a function with RDMA.
func rail(step, name, address, pci, rdma string) topology.StepResult {
	r := topology.Result{Interfaces: []topology.Interface{{Name: name, Sandbox: "/n", PCIID: pci, MAC: "02:00:00:00:00:01"}}}
	if address != "" {
		r.IPs = []topology.IP{{Address: address, Interface: new(0)}}
	}
	if rdma != "" {
		r.Devices = &topology.Devices{PCIAddress: pci, RDMADevice: rdma, DeviceNodes: []string{"/dev/infiniband/" + rdma, "/dev/infiniband/rdma_cm"}}
	}
	return topology.StepResult{Name: step, Type: "sriov", Result: r}
}

func withGID(r topology.StepResult, index int) topology.StepResult {
	d := *r.Result.Devices
	d.GIDIndex = &index
	r.Result.Devices = &d
	return r
}

func named(step string, r topology.StepResult) topology.StepResult {
	r.Name = step
	return r
}

const (
	verbs = `{name: verbs0, type: rdma, dependOn: [rail0], config: {require: {gid: {}}}}, {name: verbs1, type: rdma, dependOn: [rail1], config: {require: {gid: {}}}}`

	railsWithGIDs = `{name: rail0, type: sriov, config: {require: {gid: {}}}}, {name: rail1, type: sriov, config: {require: {gid: {}}}}`

	railSteps = `{name: rail0, type: sriov, extendedResourceName: example.com/rail.a-b, config: {addresses: [192.0.2.1/25]}}, ` +
		`{name: rail1, type: sriov, extendedResourceName: example.com/rail.a-b, config: {addresses: [192.0.2.129/25]}}`
	bonded = `{name: a, type: sriov}, {name: b, type: sriov}, {name: bond, type: bond, dependOn: [a, b], config: {mode: active-backup, addresses: [192.0.2.1/24]}}`
)

// TestVariables holds what containers are told of results, which need not be in the order of the steps.
func TestVariables(t *testing.T) {
	zero, one := rail("rail0", "net1", "192.0.2.1/24", "0000:8e:00.2", "mlx5_9"), rail("rail1", "net2", "192.0.2.129/24", "0000:03:00.2", "mlx5_1")
	rails := []topology.StepResult{one, zero}
	for _, c := range []struct {
		name, spec string
		results    []topology.StepResult
		want       string
	}{
		{
			"lists in the order of the steps, not of the bus", `steps: [` + railSteps + `], export: {env: {A: "={{ rail*.rdmaDevice }}", B: "{{ rail*.ips[0].address }};{{ rail*.deviceNodes[0] }}", C: "{{ rail0.deviceNodes }}"}}`, rails,
			"A==mlx5_9,mlx5_1 B=192.0.2.1/24,192.0.2.129/24;/dev/infiniband/mlx5_9,/dev/infiniband/mlx5_1 C=/dev/infiniband/mlx5_9,/dev/infiniband/rdma_cm",
		},
		{
			"presets", `steps: [` + railSteps + `], export: {presets: [nccl, ucx, mpi, dpdk, devicePlugin]}`, rails,
			"DPDK_PCI_ADDRESSES=0000:8e:00.2,0000:03:00.2 NCCL_IB_HCA==mlx5_9,mlx5_1 NCCL_SOCKET_IFNAME==net1,net2 OMPI_MCA_btl_tcp_if_include=net1,net2 PCIDEVICE_EXAMPLE_COM_RAIL_A_B=0000:8e:00.2,0000:03:00.2 UCX_NET_DEVICES=mlx5_9:1,mlx5_1:1",
		},
		{
			"one index of a GID for all RDMA devices", `steps: [` + railsWithGIDs + `], export: {presets: [nccl, ucx], env: {A: "{{ rail*.gidIndex }}"}}`,
			[]topology.StepResult{withGID(one, 3), withGID(zero, 3)},
			"A=3,3 NCCL_IB_GID_INDEX=3 NCCL_IB_HCA==mlx5_9,mlx5_1 NCCL_SOCKET_IFNAME==net1,net2 UCX_IB_GID_INDEX=3 UCX_NET_DEVICES=mlx5_9:1,mlx5_1:1",
		},
		{
			"different indexes of GIDs", `steps: [` + railsWithGIDs + `], export: {presets: [nccl], env: {A: "{{ rail*.gidIndex }}"}}`,
			[]topology.StepResult{withGID(one, 3), withGID(zero, 5)},
			"A=5,3 NCCL_IB_HCA==mlx5_9,mlx5_1 NCCL_SOCKET_IFNAME==net1,net2",
		},
		{"an RDMA device that requires no GID", `steps: [` + railSteps + `], export: {presets: [nccl]}`, []topology.StepResult{withGID(one, 3), zero}, "NCCL_IB_HCA==mlx5_9,mlx5_1 NCCL_SOCKET_IFNAME==net1,net2"},
		{
			"an RDMA device by two steps", `steps: [{name: rail0, type: sriov}, {name: rail1, type: sriov, config: {rdma: false}}, ` + verbs + `], export: {presets: [nccl, ucx], env: {A: "{{ *.rdmaDevice }};{{ *.gidIndex }};{{ rail0.rdmaDevice }};{{ verbs*.rdmaDevice }};{{ *.interfaceName }};{{ verbs1.interfaceName }}"}}`,
			[]topology.StepResult{zero, rail("rail1", "net2", "192.0.2.129/24", "0000:03:00.2", ""), withGID(named("verbs0", zero), 3), withGID(named("verbs1", one), 3)},
			"A=mlx5_9,mlx5_1;3,3;mlx5_9;mlx5_9,mlx5_1;net1,net2;net2 NCCL_IB_GID_INDEX=3 NCCL_IB_HCA==mlx5_9,mlx5_1 NCCL_SOCKET_IFNAME==net1,net2 UCX_IB_GID_INDEX=3 UCX_NET_DEVICES=mlx5_9:1,mlx5_1:1",
		},
		{"a variable of a preset that is written", `steps: [` + railSteps + `], export: {presets: [nccl], env: {NCCL_SOCKET_IFNAME: eth0}}`, rails, "NCCL_IB_HCA==mlx5_9,mlx5_1 NCCL_SOCKET_IFNAME=eth0"},
		{"a bond without RDMA", `steps: [` + bonded + `], export: {presets: [nccl, ucx]}`, []topology.StepResult{
			rail("a", "net1", "", "0000:03:00.2", ""), rail("b", "net2", "", "0000:04:00.2", ""), rail("bond", "bond0", "192.0.2.1/24", "", ""),
		}, "NCCL_SOCKET_IFNAME==bond0 UCX_NET_DEVICES=bond0"},
		{"steps whose type has no such field are left out of a list", `steps: [` + bonded + `], export: {env: {A: "{{ *.rdmaDevice }}"}}`, []topology.StepResult{
			rail("a", "net1", "", "0000:03:00.2", "mlx5_1"), rail("b", "net2", "", "0000:04:00.2", "mlx5_2"), rail("bond", "bond0", "192.0.2.1/24", "", ""),
		}, "A=mlx5_1,mlx5_2"},
		{
			"a step without what its type may have is no shorter list", `steps: [` + railSteps + `], export: {env: {A: "{{ rail*.rdmaDevice }}"}}`,
			[]topology.StepResult{zero, rail("rail1", "net2", "192.0.2.129/24", "0000:03:00.2", "")},
			`spec.export.env.A: {{ rail*.rdmaDevice }}: step "rail1": the result has no RDMA device`,
		},
		{
			"not applied yet", `steps: [` + railSteps + `], export: {presets: [nccl], env: {A: "{{ rail*.mac }}", B: "{{ rail0.mac }}", C: c}}`,
			[]topology.StepResult{zero},
			"A needs rail1.mac B=02:00:00:00:00:01 C=c NCCL_IB_HCA needs rail1 NCCL_SOCKET_IFNAME needs rail1",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := exportedBy(t, c.spec, c.results); got != c.want {
				t.Errorf("have %s\nwant %s", got, c.want)
			}
		})
	}
}

// exportedBy returns what a topology exports, or the error.
func exportedBy(t *testing.T, spec string, results []topology.StepResult) string {
	t.Helper()
	reg := registry(t)
	o := &v1alpha1.NetworkTopology{}
	read(t, spec, o)
	topo, _, err := validity.Object(t.Context(), o, reg)
	if err != nil {
		t.Fatal(err)
	}
	variables, err := topo.Variables(reg, results)
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, v := range variables {
		text := v.Name + "=" + v.Value
		if v.Needs != "" {
			text = v.Name + " needs " + v.Needs
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// TestVariablesBounds holds that neither one value nor all of them exceed their bounds, whatever the results are.
func TestVariablesBounds(t *testing.T) {
	list := `"{{ s*.interfaceName }}"`
	var steps, names []string
	var results []topology.StepResult
	for i := range 256 {
		name := fmt.Sprintf("s%d", i)
		steps = append(steps, fmt.Sprintf("{name: %s, type: dummy, config: {name: x%014d}}", name, i))
		results = append(results, rail(name, fmt.Sprintf("x%014d", i), "", "", ""))
	}
	for i := range 9 {
		names = append(names, fmt.Sprintf("V%d: %s", i, list))
	}
	export := func(steps, env []string) string {
		return `steps: [` + strings.Join(steps, ", ") + `], export: {env: {` + strings.Join(env, ", ") + `}}`
	}
	if got := exportedBy(t, export(steps, []string{`A: "{{ s*.interfaceName }},{{ s0.interfaceName }}"`}), results); got != "spec.export: variable A has 4111 bytes, at most 4096 are accepted" {
		t.Errorf("%.300s", got)
	}
	if got := exportedBy(t, export(steps, names), results); got != "spec.export: the variables have 36891 bytes, at most 32768 are accepted" {
		t.Errorf("%.300s", got)
	}
	if got := exportedBy(t, export(steps, slices.Clone(names[:7])), results); !strings.HasPrefix(got, "V0=x00000000000000,x00000000000001") {
		t.Errorf("%.300s", got)
	}
}
