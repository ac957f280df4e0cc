package ops

import (
	"cmp"
	"fmt"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

// Keys that several step types share, described once.

// NameParam is the interface's name in the sandbox.
func NameParam(dflt string) contract.Param {
	return contract.Param{
		Name: "name", Aliases: []string{"ifName"}, Type: contract.String, Format: contract.InterfaceName,
		Description: "default: " + dflt,
	}
}

// RootName is the default NameParam text of a root step.
const RootName = "`net1`, `net2`, … by position among root steps"

// MTUParam is the interface's MTU.
func MTUParam(dflt string) contract.Param {
	return contract.Param{
		Name: "mtu", Type: contract.Integer, Minimum: contract.Int(68), Maximum: contract.Int(65535),
		Description: "MTU in bytes; default: " + dflt,
	}
}

// MACParam is the interface's hardware address.
func MACParam(description string) contract.Param {
	return contract.Param{Name: "mac", Type: contract.String, Format: contract.MAC, Description: description}
}

// DeviceParams are the keys by which a root step may name its device itself.
func DeviceParams() []contract.Param {
	return []contract.Param{
		{
			Name: "deviceID", Aliases: []string{"pciAddress", "pciBusID"}, Type: contract.String, Format: contract.PCIAddress,
			Description: "PCI address of the device; default: that of the allocated one",
		},
		{Name: "runtimeConfig", Type: contract.Object, Description: "CNI spelling of deviceID", Properties: []contract.Param{
			{Name: "deviceID", Type: contract.String, Format: contract.PCIAddress, Description: "PCI address of the device"},
		}},
	}
}

// DeviceConfig is the Go side of DeviceParams.
type DeviceConfig struct {
	DeviceID      string `json:"deviceID,omitempty"`
	RuntimeConfig struct {
		DeviceID string `json:"deviceID,omitempty"`
	} `json:"runtimeConfig"`
}

// Assigned returns the identity of the step's device: the allocated one, otherwise the one
// that its config names; both must agree.
func (c DeviceConfig) Assigned(p *Planner) (string, error) {
	named := cmp.Or(c.DeviceID, c.RuntimeConfig.DeviceID)
	id, ok := p.AssignedDevice()
	switch {
	case !ok && named == "":
		var err error
		if id, err = p.DeviceID(); err != nil {
			return "", err
		}
	case !ok:
		id = named
	case named != "" && named != id:
		return "", Invalid("deviceID", "%q is not the device %q that was allocated: remove the key", named, id)
	}
	p.current.device = id
	return id, nil
}

// MovedConfig holds the common keys of sriov and host-device: a device that is moved to the sandbox, with its RDMA device.
type MovedConfig struct {
	DeviceConfig
	AddressConfig
	RDMAConfig
	Name string  `json:"name,omitempty"`
	MTU  *uint32 `json:"mtu,omitempty"`
}

// Move moves a device to the sandbox, with its RDMA device.
func (c MovedConfig) Move(p *Planner, id string, mac *string) error {
	if err := c.give(p, id); err != nil {
		return err
	}
	if err := p.Attach(id, c.Name, netstate.Link{MTU: c.MTU, MAC: mac}, c.AddressConfig); err != nil {
		return err
	}
	name, err := p.DefaultName(c.Name)
	if err != nil {
		return err
	}
	return p.RequireRDMA(name, c.Require)
}

const noLog = "a step writes no log of its own; remove it"

// NoDNS is why the key dns has no effect.
const NoDNS = "the DNS of a pod is that of Kubernetes; set dnsConfig in the pod"

// LogParams are the CNI logging keys: accepted so that existing configs need no change, and
// ignored.
func LogParams() []contract.Param {
	return []contract.Param{
		{Name: "logLevel", Type: contract.String, Description: "accepted, without effect", Ignored: noLog},
		{Name: "logFile", Type: contract.String, Description: "accepted, without effect", Ignored: noLog},
	}
}

// OnOff reads the canonical "on"/"off" of an OnOff parameter; nil when unset.
func OnOff(s *string) *bool {
	if s == nil {
		return nil
	}
	return new(*s == "on")
}

// Appends is the output of a step that adds one interface and keeps all else.
func Appends() contract.Output {
	return contract.Output{
		Interfaces: contract.Flow{Appends: 1, Passthrough: true},
		IPs:        contract.Flow{Appends: -1, Passthrough: true},
		Routes:     contract.Flow{Appends: -1, Passthrough: true},
	}
}

// Relays is Appends of a step whose interface sends through the one below it.
func Relays() contract.Output {
	out := Appends()
	out.Relays = true
	return out
}

// Master returns the link a step stacks on, see Interface.
func Master(p *Planner, named string, onHost bool) (string, error) {
	return Interface(p, "master", named, onHost)
}

// Interface returns the own name of the link that a key of a step names, perhaps by an alternative name, on the host when
// onHost says so, else the last interface of the dependencies. It must exist.
func Interface(p *Planner, key, named string, onHost bool) (string, error) {
	name := named
	if name == "" {
		last, err := p.LastInput()
		if err != nil {
			return "", Invalid(key, "is needed: %v", err)
		}
		name = last
	}
	if onHost {
		name = netstate.HostName(name)
	}
	name = p.OwnName(name)
	if _, err := p.Link(name); err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	return p.OwnName(name), nil // of an imagined node
}
