package kernel

import (
	"net/netip"

	"github.com/vishvananda/netlink/nl"

	"github.com/plumbline/plumbline/ops/netstate"
)

var (
	bondModes = words{
		0: "balance-rr", 1: "active-backup", 2: "balance-xor", 3: "broadcast",
		4: "802.3ad", 5: "balance-tlb", 6: "balance-alb",
	}
	bondFailOverMAC = words{0: "none", 1: "active", 2: "follow"}
	bondHashPolicy  = words{
		0: "layer2", 1: "layer3+4", 2: "layer2+3", 3: "encap2+3", 4: "encap3+4", 5: "vlan+srcmac",
	}
	bondLACPRate = words{0: "slow", 1: "fast"}
	bondADSelect = words{0: "stable", 1: "bandwidth", 2: "count"}
)

// decodeBond reads the options of a bond. Those that its mode does not have are
// left unset although the kernel reports a value: setting them, even to that
// value, is refused (bond_options.c, unsuppmodes).
func decodeBond(w *ifLink, data []byte) {
	o := &netstate.Bond{
		Mode:            optionWord(data, nl.IFLA_BOND_MODE, u8, bondModes),
		FailOverMAC:     optionWord(data, nl.IFLA_BOND_FAIL_OVER_MAC, u8, bondFailOverMAC),
		MIIMonMillis:    option(data, nl.IFLA_BOND_MIIMON, u32),
		UpDelayMillis:   option(data, nl.IFLA_BOND_UPDELAY, u32),
		DownDelayMillis: option(data, nl.IFLA_BOND_DOWNDELAY, u32),
		ARPIntervalMs:   option(data, nl.IFLA_BOND_ARP_INTERVAL, u32),
		ARPIPTargets:    []string{},
		XmitHashPolicy:  optionWord(data, nl.IFLA_BOND_XMIT_HASH_POLICY, u8, bondHashPolicy),
		LACPRate:        optionWord(data, nl.IFLA_BOND_AD_LACP_RATE, u8, bondLACPRate),
		ADSelect:        optionWord(data, nl.IFLA_BOND_AD_SELECT, u8, bondADSelect),
		MinLinks:        option(data, nl.IFLA_BOND_MIN_LINKS, u32),
		AllPortsActive:  option(data, nl.IFLA_BOND_ALL_SLAVES_ACTIVE, isSet),
		TLBDynamicLB:    option(data, nl.IFLA_BOND_TLB_DYNAMIC_LB, isSet),
		Primary:         new(""),
	}
	for _, ip := range attributes(attribute(data, nl.IFLA_BOND_ARP_IP_TARGET)) {
		if a, ok := netip.AddrFromSlice(ip); ok {
			o.ARPIPTargets = append(o.ARPIPTargets, a.String())
		}
	}
	w.link.Bond, w.primary = o, int(u32(attribute(data, nl.IFLA_BOND_PRIMARY)))
	dropForeignOptions(o)
}

func dropForeignOptions(o *netstate.Bond) {
	mode := ""
	if o.Mode != nil {
		mode = *o.Mode
	}
	if mode != "802.3ad" {
		o.LACPRate, o.ADSelect = nil, nil
	}
	balanced := mode == "balance-tlb" || mode == "balance-alb"
	if !balanced {
		o.TLBDynamicLB = nil
	}
	if !balanced && mode != "active-backup" {
		o.Primary = nil
	}
}

// encodeBond adds the options that are set. The kernel takes them in its own
// order (bond_netlink.c, bond_changelink), mode and miimon first.
func encodeBond(e *infoData, l netstate.Link) {
	o := l.Bond
	if o == nil {
		return
	}
	e.word(nl.IFLA_BOND_MODE, 1, "mode", o.Mode, bondModes)
	e.word(nl.IFLA_BOND_FAIL_OVER_MAC, 1, "failOverMac", o.FailOverMAC, bondFailOverMAC)
	e.millis(nl.IFLA_BOND_MIIMON, o.MIIMonMillis, false)
	// Without MII monitoring a delay is refused with EPERM, even one of 0, which is its
	// value then anyway.
	off := o.MIIMonMillis != nil && *o.MIIMonMillis == 0
	e.millis(nl.IFLA_BOND_UPDELAY, o.UpDelayMillis, off)
	e.millis(nl.IFLA_BOND_DOWNDELAY, o.DownDelayMillis, off)
	// An interval, even of 0, is refused in modes that have no ARP monitoring.
	e.millis(nl.IFLA_BOND_ARP_INTERVAL, o.ARPIntervalMs, false)
	if len(o.ARPIPTargets) > 0 || o.ARPIPTargets != nil && !e.creating {
		e.arpTargets(o.ARPIPTargets)
	}
	e.word(nl.IFLA_BOND_XMIT_HASH_POLICY, 1, "xmitHashPolicy", o.XmitHashPolicy, bondHashPolicy)
	e.word(nl.IFLA_BOND_AD_LACP_RATE, 1, "lacpRate", o.LACPRate, bondLACPRate)
	e.word(nl.IFLA_BOND_AD_SELECT, 1, "adSelect", o.ADSelect, bondADSelect)
	if o.MinLinks != nil {
		e.u32(nl.IFLA_BOND_MIN_LINKS, *o.MinLinks)
	}
	e.flag(nl.IFLA_BOND_ALL_SLAVES_ACTIVE, o.AllPortsActive)
	e.flag(nl.IFLA_BOND_TLB_DYNAMIC_LB, o.TLBDynamicLB)
	if o.Primary != nil && !e.creating {
		e.primary(*o.Primary)
	}
}

// millis adds a time; 0 is what a new bond has, so then it is left out.
func (e *infoData) millis(typ int, v *uint32, skipZero bool) {
	if v == nil || *v == 0 && (e.creating || skipZero) {
		return
	}
	e.u32(typ, *v)
}

func (e *infoData) arpTargets(targets []string) {
	list := e.bytes(nl.IFLA_BOND_ARP_IP_TARGET, nil)
	for i, t := range targets {
		a, err := netip.ParseAddr(t)
		if err != nil || !a.Is4() {
			e.err = invalid("arpIpTargets: %q is not an IPv4 address", t)
			return
		}
		list.AddRtAttr(i, a.AsSlice())
	}
}

// primary adds the preferred port, by index; 0 means none.
func (e *infoData) primary(name string) {
	index := 0
	if name != "" {
		var err error
		if index, err = e.index(name); err != nil {
			e.err = err
			return
		}
	}
	e.u32(nl.IFLA_BOND_PRIMARY, uint32(index))
}
