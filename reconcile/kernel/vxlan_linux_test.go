package kernel

import (
	"testing"

	"github.com/vishvananda/netlink/nl"

	"github.com/plumbline/plumbline/ops/netstate"
)

func TestVXLAN(t *testing.T) {
	link := netstate.Link{Parent: new("low"), VXLAN: &netstate.VXLAN{
		ID: new(uint32(4100)), Port: new(uint16(4789)), Family: new("ipv6"), Local: new("2001:db8::5"), Remote: new("::"), Group: new("ff05::9"),
		TTL: new(uint8(9)), Learning: new(false),
	}}
	e := &infoData{attr: attr(nl.IFLA_INFO_DATA, nil), creating: true, index: func(string) (int, error) { return 7, nil }}
	encodeVXLAN(e, link)
	bytes := wire(t, `
		5400 0200                                        # IFLA_INFO_DATA
		  0800 0100 04100000                             # IFLA_VXLAN_ID
		  0600 0f00 12b5 0000                            # IFLA_VXLAN_PORT in network order
		  0800 0300 07000000                             # IFLA_VXLAN_LINK
		  1400 1100 20010db8 00000000 00000000 00000005  # IFLA_VXLAN_LOCAL6
		  1400 1000 ff050000 00000000 00000000 00000009  # IFLA_VXLAN_GROUP6
		  0500 0500 09 000000                            # IFLA_VXLAN_TTL
		  0500 0700 00 000000                            # IFLA_VXLAN_LEARNING off
	`)
	sameBytes(t, bytes, e.attr.Serialize())
	var w ifLink
	decodeVXLAN(&w, bytes[4:])
	if len(netstate.Diff(netstate.Link{VXLAN: link.VXLAN}, w.link)) > 0 || w.tunnel != 7 || e.err != nil {
		t.Errorf("read as %+v over %d, %v", w.link.VXLAN, w.tunnel, e.err)
	}
	e = &infoData{attr: attr(nl.IFLA_INFO_DATA, nil)}
	encodeVXLAN(e, netstate.Link{VXLAN: &netstate.VXLAN{Remote: new("192.0.2.6"), Group: new("0.0.0.0")}})
	sameBytes(t, wire(t, `
		0c00 0200
		  0800 0200 c0000206 # IFLA_VXLAN_GROUP, once
	`), e.attr.Serialize())
}

// IFLA_LINK of a tunnel that was moved comes after its options, and is an index in
// another namespace.
func TestMovedVXLAN(t *testing.T) {
	message := wire(t, `
		00 00 0100 09000000 00000000 00000000 # link 9
		0700 0300 743000 00                   # IFLA_IFNAME t0
		1c00 1200                             # IFLA_LINKINFO
		  0900 0100 7678 6c61 6e 000000       # vxlan
		  0c00 0200 0800 0300 04000000        # IFLA_VXLAN_LINK 4
	`)
	if w, err := decodeLink(message); err != nil || w.lower != 4 {
		t.Errorf("stands on %d, %v", w.lower, err)
	}
	if w, err := decodeLink(append(message, wire(t, `0800 0500 09000000 0800 2500 03000000`)...)); err != nil || w.lower != 9 || w.lowerNS != 3 {
		t.Errorf("moved: stands on %d in %d, %v", w.lower, w.lowerNS, err)
	}
}
