package rxe

import (
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/topology/contract"
)

type config struct {
	Netdev  string               `json:"netdev,omitempty"`
	Require *ops.RDMARequirement `json:"require,omitempty"`
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "rxe",
	Summary: "Make an RDMA device in software (soft RoCE) on an interface.",
	Description: `Makes what ` + "`rdma link add NAME type rxe netdev IF`" + ` makes: RoCE v2 over any Ethernet interface of the pod, for
tests and programs that need verbs; it is slower than TCP. Containers get ` + "`/dev/infiniband/uverbsN`" + ` and
` + "`/dev/infiniband/rdma_cm`" + `.

The device's name is plumbline's own. If somebody deletes it, it is made again with another device node, which only new containers get:
the claim's status says so until the pod is created again.

The node needs the kernel modules ` + "`rdma_rxe`" + `, ` + "`ib_uverbs`" + ` and ` + "`rdma_ucm`" + `. A VLAN cannot have one: put
it on the interface below, where the VLAN's addresses work, too. Before Linux 7.1 it exchanges no data outside of the host's namespace:
` + "`apply`" + ` says so. On Linux 6.12 it cannot be made on a node in [exclusive mode](../devices.md#rdma),
in which programs cannot use the connection manager (` + "`rping`" + `).`,
	Example: `- name: vf0
  type: sriov
  config: {addresses: ["192.0.2.1/24"]}
- name: roce
  type: rxe
  dependOn: [vf0]
`,
	Params: []contract.Param{
		{
			Name: "netdev", Type: contract.String, Format: contract.LinkName, AtCreation: true,
			Description: "interface; default: the dependencies' last",
		},
		ops.RDMARequireParam(),
	},
	Input: contract.Input{Required: true, MinInterfaces: 1},
	Output: contract.Output{
		Interfaces: contract.Flow{Passthrough: true},
		IPs:        contract.Flow{Passthrough: true},
		Routes:     contract.Flow{Passthrough: true},
		Devices:    ops.RDMAFields(),
	},
}, plan)

func plan(p *ops.Planner, c config) error {
	link, err := ops.Interface(p, "netdev", c.Netdev, false)
	if err != nil {
		return err
	}
	l, err := p.Link(link)
	if err != nil {
		return err
	}
	if l.LinkKind == "vlan" && !p.Kept() {
		return ops.Invalid("netdev",
			"%q is a VLAN, on which the kernel makes no soft RoCE device (rxe_newlink): name the interface below it", link)
	}
	if err := p.SoftRDMA(link, "rxe"); err != nil {
		return err
	}
	return p.RequireRDMA(link, c.Require)
}
