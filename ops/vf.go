package ops

import (
	"fmt"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/ref"
)

// VFConfig is the Go side of VFParams.
type VFConfig struct {
	VLAN      *uint16 `json:"vlan,omitempty"`
	VLANQoS   *uint8  `json:"vlanQoS,omitempty"`
	VLANProto *string `json:"vlanProto,omitempty"`
	MAC       *string `json:"mac,omitempty"`
	MinTxRate *uint32 `json:"minTxRate,omitempty"`
	MaxTxRate *uint32 `json:"maxTxRate,omitempty"`
	SpoofChk  *string `json:"spoofchk,omitempty"`
	Trust     *string `json:"trust,omitempty"`
	LinkState *string `json:"linkState,omitempty"`
	NodeGUID  *string `json:"nodeGUID,omitempty"`
	PortGUID  *string `json:"portGUID,omitempty"`
}

// VFParams are the keys of a virtual function's settings on its physical function.
func VFParams(mac string) []contract.Param {
	onOff := []string{"on", "off"}
	return []contract.Param{
		MACParam(mac),
		{
			Name: "vlan", Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(4094),
			Description: "VLAN tag that the PF adds; 0 clears it",
		},
		{
			Name: "vlanQoS", Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(7),
			Description: "802.1p priority of that VLAN",
		},
		{
			Name: "vlanProto", Type: contract.String, Enum: []string{"802.1q", "802.1ad"}, FoldCase: true,
			Description: "protocol of that VLAN; default: 802.1q",
		},
		{
			Name: "minTxRate", Aliases: []string{"min_tx_rate"}, Type: contract.Integer, Minimum: contract.Int(0),
			Maximum: contract.Int(1<<32 - 1), Description: "guaranteed transmit rate in Mbit/s; 0: none",
		},
		{
			Name: "maxTxRate", Aliases: []string{"max_tx_rate"}, Type: contract.Integer, Minimum: contract.Int(0),
			Maximum: contract.Int(1<<32 - 1), Description: "transmit rate limit in Mbit/s; 0: none",
		},
		{Name: "spoofchk", Type: contract.String, Enum: onOff, OnOff: true, Description: "drop frames with a foreign source MAC"},
		{
			Name: "trust", Type: contract.String, Enum: onOff, OnOff: true,
			Description: "let the VF change its MAC and enter promiscuous mode",
		},
		{
			Name: "linkState", Aliases: []string{"link_state"}, Type: contract.String,
			Enum:        []string{"auto", "enable", "disable", followLACP},
			Description: "link state of the VF; follow: disable while its PF is a port that LACP does not use, else auto",
		},
		{
			Name: "nodeGUID", Aliases: []string{"node_guid"}, Type: contract.String, Format: contract.GUID, AtCreation: true,
			Description: "node GUID of a VF of InfiniBand",
		},
		{
			Name: "portGUID", Aliases: []string{"port_guid"}, Type: contract.String, Format: contract.GUID, AtCreation: true,
			Description: "GUID of the port of a VF of InfiniBand, by which the subnet's manager puts it in partitions",
		},
	}
}

// followLACP is the link state of a function that follows the LACP state of its physical
// function. A virtual function has a carrier as long as the physical one has; that the switch
// does not use the port is known to LACP only.
const followLACP = "follow"

// CheckVF refuses the same combinations as sriov-cni: QoS and 802.1ad need a VLAN.
func CheckVF(c map[string]any, unresolved map[string]bool) []contract.FieldError {
	var out []contract.FieldError
	if c["nodeGUID"] != nil && c["portGUID"] == nil && !unresolved["portGUID"] {
		out = append(out, contract.FieldError{Field: "nodeGUID", Message: "needs portGUID: add it"})
	}
	if unresolved["vlan"] {
		return out
	}
	vlan, hasVLAN := number(c["vlan"])
	qos, hasQoS := number(c["vlanQoS"])
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

// limitByRule has the physical function enforce the rate of a rule, if it can. The smaller one of this
// rate and that of the config holds.
func (c *VFConfig) limitByRule(p *Planner, id string) error {
	rule, err := p.ruleForVF(id, c.MaxTxRate)
	if rule == nil || err != nil || c.MinTxRate != nil && *c.MinTxRate > rule.Mbps {
		return err
	}
	st := p.current
	switch {
	case c.MaxTxRate != nil && *c.MaxTxRate != 0 && *c.MaxTxRate <= rule.Mbps:
	case !st.prepared:
		c.MaxTxRate = &rule.Mbps
	case c.MaxTxRate != nil:
		return nil // the sandbox that prepares the function holds the rate, and has no rules
	default:
		st.prepared = false // only the rate is this sandbox's own
		err := p.Want(netstate.VF{ID: id, MaxTxRateMbps: &rule.Mbps})
		st.prepared = true
		if err != nil {
			return err
		}
	}
	st.rule = rule
	return nil
}

// WantVF wants the settings on the physical function, if there are any. A VLAN that the
// config does not name is that of the device's physical network; a rate is not above what the
// claim has of the bandwidth.
func (c VFConfig) WantVF(p *Planner, id string) error {
	if given := p.req.Given[p.stepName()].VLAN; c.VLAN == nil && given != 0 {
		c.VLAN = &given
	}
	if given := p.req.Given[p.stepName()].MaxTxRate; given != 0 && (c.MaxTxRate == nil || *c.MaxTxRate == 0 || *c.MaxTxRate > given) {
		c.MaxTxRate = &given
		if c.MinTxRate != nil && *c.MinTxRate > given {
			return Invalid("minTxRate",
				"%d Mbit/s are more than the %d that the claim has of the bandwidth: have the claim request more", *c.MinTxRate, given)
		}
	}
	if err := c.limitByRule(p, id); err != nil {
		return err
	}
	if c.MAC != nil {
		if err := MAC("mac", *c.MAC); err != nil {
			return err
		}
	}
	vf := netstate.VF{
		ID: id, MAC: c.MAC, VLAN: c.VLAN, QoS: c.VLANQoS, Protocol: c.VLANProto,
		SpoofCheck: OnOff(c.SpoofChk), Trust: OnOff(c.Trust),
		MinTxRateMbps: c.MinTxRate, MaxTxRateMbps: c.MaxTxRate, LinkState: c.LinkState,
		NodeGUID: c.NodeGUID, PortGUID: c.PortGUID,
	}
	if len(netstate.Fields(vf)) == 0 {
		return nil
	}
	follows := c.LinkState != nil && *c.LinkState == followLACP
	if follows {
		vf.LinkState = new("auto") // unless the physical function says otherwise
	}
	if c.VLAN != nil && c.VLANQoS == nil {
		vf.QoS = new(uint8(0))
	}
	if c.VLAN != nil && *c.VLAN != 0 && c.VLANProto == nil {
		vf.Protocol = new("802.1q")
	}
	have, ok, err := Lookup(p, vf)
	if err != nil {
		return err
	}
	if !ok {
		_, there, err := Lookup(p, netstate.Device{ID: id})
		if err == nil && !there { // unplugged, not an error of the user
			_, err = p.Device(id)
		}
		if err != nil {
			return err
		}
		return Invalid("",
			"device %q is not a virtual function: settings on a physical function do not apply to it; use type host-device", id)
	}
	if err := checkInfiniBand(vf, have, p.Imagined()); err != nil {
		return err
	}
	if err := p.uniqueGUID(vf); err != nil {
		return err
	}
	if follows {
		vf.LinkState = new(p.followed(have))
	}
	return p.Want(vf)
}

// checkInfiniBand refuses a GUID for a virtual function of Ethernet, and a MAC address for one of InfiniBand, which has its GUID for that.
func checkInfiniBand(vf, have netstate.VF, imagined bool) error {
	for _, guid := range []struct {
		field      string
		want, have *string
	}{{"nodeGUID", vf.NodeGUID, have.NodeGUID}, {"portGUID", vf.PortGUID, have.PortGUID}} {
		if guid.want != nil && guid.have == nil {
			return fault.New(fault.Unsupported,
				fmt.Errorf("%s: physical function %q does not say which GUIDs its virtual functions have, "+
					"as those of InfiniBand do since Linux 5.5: remove the key", guid.field, netstate.BaseName(have.PF)))
		}
	}
	if vf.MAC != nil && have.PortGUID != nil && !imagined {
		return Invalid("mac", "the function is one of InfiniBand, whose hardware address has its GUID: use portGUID")
	}
	return nil
}

// uniqueGUID refuses a port GUID that another function of the pod has.
func (p *Planner) uniqueGUID(vf netstate.VF) error {
	if vf.PortGUID == nil {
		return nil
	}
	p.current.portGUID = *vf.PortGUID
	for i := range p.req.Topology.Steps {
		name := p.req.Topology.Steps[i].Name
		if other, planned := p.steps[name]; planned && other != p.current && other.portGUID == *vf.PortGUID {
			return Invalid("portGUID",
				"step %q has the same GUID %s, by which the subnet's manager tells ports apart: give one of them another", name,
				*vf.PortGUID)
		}
	}
	for _, other := range p.req.Others {
		for _, c := range other.History {
			if theirs, ok := c.After.(netstate.VF); ok && theirs.ID != vf.ID && theirs.PortGUID != nil && *theirs.PortGUID == *vf.PortGUID {
				return Invalid("portGUID", "step %q of topology %q, which the pod has too, has the same GUID %s, "+
					"by which the subnet's manager tells ports apart: give one of them another",
					c.Step, other.Name, *vf.PortGUID)
			}
		}
	}
	return nil
}

// ReadGUIDs has the driver of a function of InfiniBand read the GUIDs that the physical function has for it: a driver does when it is bound
// (mlx5), so it is bound again, as ib-sriov-cni does. These are stages, as the driver reads what was set before, and makes another
// interface: the error says which one the step waits for.
func (c VFConfig) ReadGUIDs(p *Planner, id string) error {
	if c.PortGUID == nil || p.req.imagined != nil {
		return nil
	}
	d, there, err := Lookup(p, netstate.Device{ID: id})
	if err != nil || !there {
		return err
	}
	has, there, err := Lookup(p, netstate.Binding{ID: id})
	switch {
	case err != nil:
		return err
	case !there:
		return netstate.Absent(has)
	}
	want := netstate.Binding{ID: id, NodeGUID: c.NodeGUID, PortGUID: c.PortGUID}
	diff := netstate.Diff(want, has)
	now := netstate.Binding{ID: id, NodeGUID: has.NodeGUID, PortGUID: has.PortGUID}
	switch {
	case d.At != nil && !netstate.OnHost(*d.At): // in the sandbox
		if len(diff) > 0 && !p.req.Kept {
			return Conflict(
				"%s: cannot change from %s to %s while device %q is in the sandbox: its driver reads a GUID when it is bound, "+
					"and that deletes the interface: create the pod again, or release the sandbox and apply again",
				diff[0].Path, netstate.FormatValue(diff[0].Before), netstate.FormatValue(diff[0].After), id)
		}
		return p.Want(now)
	case len(diff) == 0:
		return p.Want(want)
	}
	if err := usedByHost(d); err != nil {
		return err
	}
	vf, _ := netstate.Lookup(p.req.Have, netstate.VF{ID: id})
	if set := netstate.Diff(netstate.VF{ID: id, NodeGUID: c.NodeGUID, PortGUID: c.PortGUID}, vf); len(set) > 0 {
		want = now
	}
	if err := p.Want(netstate.Device{ID: id}); err != nil { // whose interface the record restores
		return err
	}
	if err := p.Want(want); err != nil {
		return err
	}
	return &unknownRef{ref.Ref{Step: p.stepName(), Field: "interfaceName"}}
}

// followed returns the link state of a virtual function that follows LACP. A lost partner is
// followed at once, since what the pod sends meanwhile is lost. A partner that is back is
// followed when it has been stable for some time.
func (p *Planner) followed(vf netstate.VF) string {
	if p.current.step.DriftPolicy == topology.Observe {
		p.Note("driftPolicy is Observe: linkState follow is applied when the pod starts, and later changes are only reported")
	}
	pf := netstate.BaseName(vf.PF)
	switch port := vf.LACP; {
	case port == nil:
		if p.req.imagined == nil {
			p.Note("linkState follow sets auto: physical function %q is not a port of a bond with LACP", pf)
		}
	case !port.Agreed:
		p.Note("linkState follow sets disable: LACP does not use physical function %q", pf)
		return "disable"
	case port.SettlesMillis > 0 && vf.LinkState != nil && *vf.LinkState == "disable":
		p.Note("linkState follow keeps disable: LACP has used physical function %q for a short time only", pf)
		if p.plan.SettlesMillis == 0 || port.SettlesMillis < p.plan.SettlesMillis {
			p.plan.SettlesMillis = port.SettlesMillis
		}
		return "disable"
	}
	return "auto"
}
