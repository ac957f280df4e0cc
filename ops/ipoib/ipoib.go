package ipoib

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

type config struct {
	ops.StackedConfig
	PKey string `json:"pkey,omitempty"`
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "ipoib",
	Summary: "Create an interface of an InfiniBand partition.",
	Description: `Makes what ` + "`ip link add link IB name NAME type ipoib pkey 0x8001`" + ` makes. The master is the interface of a device
of InfiniBand: in the pod, as that of a step of type sriov, or, of a root step, on the host, where it stays.

The subnet's manager decides which partitions a port is in: without that the interface has no carrier. Its hardware address is the
driver's. The mode is switched live; mlx5 has no connected mode. Not shown on hardware.

If the pod's network namespace ends first, the kernel moves the interface to the host, where the release deletes it by its alias.`,
	Example: `- name: ib
  type: sriov
  selector:
    cel: device.attributes["dra.networking"].?linkType.orValue("") == "infiniband"
- name: storage
  type: ipoib
  dependOn: [ib]
  config:
    pkey: "0x8001"
    name: ib0.8001
    addresses: ["192.0.2.1/24"]
`,
	Params: slices.Concat([]contract.Param{
		{
			Name: "pkey", Type: contract.String, NumericString: true,
			Description: "key of the partition, such as 0x8001; the bit of full membership, 0x8000, is always set. Default: the master's",
		},
		{
			Name: "mode", Type: contract.String, Enum: []string{"datagram", "connected"}, Default: "datagram",
			Description: "transport of IP packets; connected allows an MTU up to 65520",
		},
	}, ops.StackedParams("the partition's")),
	Input:  contract.Input{Shares: true, NamedBy: "master", RDMA: ops.NeedsSharedRDMA},
	Output: ops.StackedOutput(ops.Appends()),
	Check:  check,
}, plan)

func check(c map[string]any, unresolved map[string]bool) []contract.FieldError {
	text, ok := c["pkey"].(string)
	if !ok || unresolved["pkey"] {
		return nil
	}
	if _, err := partition(text); err != nil {
		return []contract.FieldError{{Field: "pkey", Message: err.Error()}}
	}
	return nil
}

// partition is the key as the kernel reports it. 0 and 0x8000 are none (ipoib_new_child_link).
func partition(text string) (string, error) {
	n, err := strconv.ParseUint(text, 0, 16)
	if err != nil || n&0x7fff == 0 {
		return "", fmt.Errorf("%q is not the key of a partition: want a number up to 0xffff other than 0 and 0x8000, such as 0x8001", text)
	}
	return fmt.Sprintf("%#04x", n|0x8000), nil
}

func plan(p *ops.Planner, c config) error {
	name, parent, err := c.Links(p)
	if err != nil {
		return err
	}
	options := netstate.IPoIB{Mode: &c.Mode}
	if c.PKey != "" {
		key, err := partition(c.PKey)
		if err != nil {
			return ops.Invalid("pkey", "%v", err)
		}
		options.PKey = &key
	}
	err = p.Want(netstate.Link{Name: name, LinkKind: netstate.InfiniBandKind, Parent: &parent, IPoIB: &options, MTU: c.MTU, Up: new(true)})
	if err != nil {
		return err
	}
	// By which a release finds it on the host.
	if err := p.Want(netstate.Link{Name: name, Alias: new(p.HostLinkName())}); err != nil {
		return err
	}
	return c.Complete(p, name, parent)
}
