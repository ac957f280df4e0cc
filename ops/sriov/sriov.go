package sriov

import (
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
)

type config struct {
	ops.DeviceConfig
	ops.AddressConfig
	Name      string  `json:"name,omitempty"`
	VLAN      *uint16 `json:"vlan,omitempty"`
	VLANQoS   *uint8  `json:"vlanQoS,omitempty"`
	VLANProto *string `json:"vlanProto,omitempty"`
	MAC       *string `json:"mac,omitempty"`
	MTU       *uint32 `json:"mtu,omitempty"`
	MinTxRate *uint32 `json:"minTxRate,omitempty"`
	MaxTxRate *uint32 `json:"maxTxRate,omitempty"`
	SpoofChk  *string `json:"spoofchk,omitempty"`
	Trust     *string `json:"trust,omitempty"`
	LinkState *string `json:"linkState,omitempty"`
	LogLevel  string  `json:"logLevel,omitempty"`
	LogFile   string  `json:"logFile,omitempty"`
}

var onOff = []string{"on", "off"}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "sriov",
	Summary: "Bring an SR-IOV virtual function into the sandbox.",
	Description: `Moves the network interface of the allocated VF into the sandbox, renames it, and sets
MAC, VLAN, rates, spoof checking, trust and link state on the physical function before it runs.
Every setting that is changed is recorded first and restored on release, after the interface is
home under its own name, MAC and MTU. A key that is not given is not touched.

A VF bound to a userspace driver (vfio-pci, igb_uio, uio_pci_generic) has no interface to move;
then only the settings on the physical function are made.

Some drivers refuse what others take; the error names the key. The Intel 82576 (igb) for
instance knows no minTxRate, linkState or 802.1ad.`,
	Example: `- name: vf0
  type: sriov
  selector:
    cel: device.attributes["dra.networking"].pfName == "enp3s0f0"
  config:
    vlan: 0
    spoofchk: "off"
    trust: "on"
`,
	Params: ops.Join(ops.DeviceParams(), []contract.Param{
		ops.NameParam(ops.RootName),
		{Name: "vlan", Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(4094), Description: "VLAN the PF tags the VF's traffic with; 0 clears it"},
		{Name: "vlanQoS", Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(7), Description: "802.1p priority of that VLAN"},
		{Name: "vlanProto", Type: contract.String, Enum: []string{"802.1q", "802.1ad"}, FoldCase: true, Description: "protocol of that VLAN; default 802.1q when vlan is given"},
		ops.MACParam("MAC address, set on the PF and on the interface"),
		ops.MTUParam("as it is"),
		{Name: "minTxRate", Aliases: []string{"min_tx_rate"}, Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(1<<32 - 1), Description: "guaranteed transmit rate in Mbit/s; 0 is none"},
		{Name: "maxTxRate", Aliases: []string{"max_tx_rate"}, Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(1<<32 - 1), Description: "transmit rate limit in Mbit/s; 0 is none"},
		{Name: "spoofchk", Type: contract.String, Enum: onOff, OnOff: true, Description: "drop frames with a foreign source MAC"},
		{Name: "trust", Type: contract.String, Enum: onOff, OnOff: true, Description: "let the VF change its MAC and enter promiscuous mode"},
		{Name: "linkState", Aliases: []string{"link_state"}, Type: contract.String, Enum: []string{"auto", "enable", "disable"}, Description: "link state the VF sees"},
	}, ops.AddressParams(), ops.LogParams()),
	Input:  contract.Input{Device: true, DeviceTypes: []string{"vf"}},
	Output: contract.Output{Interfaces: contract.Flow{Appends: 1}, IPs: contract.Flow{Appends: -1}, Routes: contract.Flow{Appends: -1}},
	Check:  check,
}, plan)

// check holds the exclusions sriov-cni tests: QoS and 802.1ad need a VLAN.
func check(c map[string]any, unresolved map[string]bool) []contract.FieldError {
	if unresolved["vlan"] {
		return nil
	}
	vlan, hasVLAN := number(c["vlan"])
	qos, hasQoS := number(c["vlanQoS"])
	var out []contract.FieldError
	if hasQoS && !hasVLAN {
		out = append(out, contract.FieldError{Field: "vlanQoS", Message: "needs vlan: add it"})
	}
	if hasQoS && qos != 0 && hasVLAN && vlan == 0 {
		out = append(out, contract.FieldError{Field: "vlanQoS", Message: "must be 0 with vlan 0, which means no VLAN"})
	}
	if c["vlanProto"] == "802.1ad" && vlan == 0 {
		out = append(out, contract.FieldError{Field: "vlanProto", Message: "802.1ad needs a vlan other than 0"})
	}
	if lo, ok := number(c["minTxRate"]); ok {
		if hi, ok := number(c["maxTxRate"]); ok && hi != 0 && lo > hi {
			out = append(out, contract.FieldError{Field: "minTxRate", Message: "must not exceed maxTxRate"})
		}
	}
	return out
}

func number(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case float64:
		return int64(v), true
	case int:
		return int64(v), true
	}
	return 0, false
}

func plan(p *ops.Planner, c config) error {
	id, err := c.Assigned(p)
	if err != nil {
		return err
	}
	if c.MAC != nil {
		if err := ops.MAC("mac", *c.MAC); err != nil {
			return err
		}
	}
	if err := planVF(p, id, c); err != nil {
		return err
	}
	userspace, err := userspaceDriver(p, id)
	if err != nil {
		return err
	}
	if userspace {
		p.ProduceDevices(topology.Devices{PCIAddress: id})
		return nil
	}
	return p.Attach(id, c.Name, netstate.Link{MTU: c.MTU, MAC: c.MAC}, c.AddressConfig)
}

// planVF wants the settings on the physical function, if there are any.
func planVF(p *ops.Planner, id string, c config) error {
	vf := netstate.VF{
		ID: id, MAC: c.MAC, VLAN: c.VLAN, QoS: c.VLANQoS, Protocol: c.VLANProto,
		SpoofCheck: ops.OnOff(c.SpoofChk), Trust: ops.OnOff(c.Trust),
		MinTxRateMbps: c.MinTxRate, MaxTxRateMbps: c.MaxTxRate, LinkState: c.LinkState,
	}
	if len(netstate.Fields(vf)) == 0 {
		return nil
	}
	if c.VLAN != nil && c.VLANQoS == nil {
		vf.QoS = new(uint8(0))
	}
	if c.VLAN != nil && *c.VLAN != 0 && c.VLANProto == nil {
		vf.Protocol = new("802.1q")
	}
	_, ok, err := ops.Lookup(p, vf)
	if err != nil {
		return err
	}
	if !ok {
		_, there, err := ops.Lookup(p, netstate.Device{ID: id})
		if err == nil && !there { // unplugged, and no mistake of the user's
			_, err = p.Device(id)
		}
		if err != nil {
			return err
		}
		return ops.Invalid("", "device %q is not a virtual function: settings on a physical function do not apply to it; use type host-device", id)
	}
	return p.Want(vf)
}

// userspaceDriver reports whether the device has no interface because a
// userspace driver holds it.
func userspaceDriver(p *ops.Planner, id string) (bool, error) {
	d, ok, err := ops.Lookup(p, netstate.Device{ID: id})
	if err != nil || !ok {
		return false, err
	}
	return d.At == nil && ops.UserspaceDriver(d.Driver), nil
}
