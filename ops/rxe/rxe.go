package rxe

import (
	"fmt"

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
	Description: `Makes what ` + "`rdma link add NAME type rxe netdev IF`" + ` makes: RoCE v2 by the kernel, over any Ethernet interface of the
pod, without hardware for it. The containers get the device's ` + "`/dev/infiniband/uverbsN`" + ` and ` + "`/dev/infiniband/rdma_cm`" + `.
It is slower than TCP: use it for tests, and for programs that need verbs.

The name of the RDMA device is plumbline's own, since all RDMA devices of a node share their names. The device is made again
if somebody deletes it, renamed back if somebody renames it, and ends with the pod's interface. A device that was made again has another
device node, which containers get when they are created: the claim's status says so, until the pod is created again.

The node needs the kernel modules ` + "`rdma_rxe`, `ib_uverbs` and `rdma_ucm`" + `. A VLAN cannot have one: put the device on the interface
below, where the VLAN's addresses are usable too. On Linux 6.12 devices on interfaces outside of the host's namespace exchange no data.

On a node in exclusive mode (` + "`rdma system show`" + `) the device is moved to the pod once it is made.
Linux 6.12 refuses that, and programs cannot use the connection manager (` + "`rping`" + `) there.`,
	Example: `- name: vf0
  type: sriov
  config: {addresses: ["192.0.2.1/24"]}
- name: roce
  type: rxe
  dependOn: [vf0]
`,
	Params: []contract.Param{
		{Name: "netdev", Type: contract.String, Format: contract.InterfaceName, AtCreation: true, Description: "the interface; default: the last one of the dependencies"},
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
	link := c.Netdev
	if link == "" {
		last, err := p.LastInput()
		if err != nil {
			return err
		}
		link = last
	}
	link = p.OwnName(link)
	l, err := p.Link(link)
	if err != nil {
		return fmt.Errorf("netdev: %w", err)
	}
	if l.LinkKind == "vlan" && !p.Kept() {
		return ops.Invalid("netdev", "%q is a VLAN, on which the kernel makes no soft RoCE device (rxe_newlink): name the interface below it", link)
	}
	if err := p.SoftRDMA(link, "rxe"); err != nil {
		return err
	}
	return p.RequireRDMA(link, c.Require)
}
