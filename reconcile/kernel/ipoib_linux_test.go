package kernel

import (
	"errors"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestIPoIB: the bytes of a partition's interface, as ipoib_policy and ipoib_fill_info in drivers/infiniband/ulp/ipoib/ipoib_netlink.c have them:
// numbers of two bytes in the order of the host.
func TestIPoIB(t *testing.T) {
	link := netstate.Link{IPoIB: &netstate.IPoIB{PKey: new("0x8001"), Mode: new("connected")}}
	e := &infoData{attr: attr(nl.IFLA_INFO_DATA, nil), creating: true}
	encodeIPoIB(e, link)
	bytes := wire(t, `
		1400 0200             # IFLA_INFO_DATA
		  0600 0100 0180 0000 # IFLA_IPOIB_PKEY
		  0600 0200 0100 0000 # IFLA_IPOIB_MODE
	`)
	sameBytes(t, bytes, e.attr.Serialize())
	var w ifLink
	decodeIPoIB(&w, append(bytes[4:], wire(t, `0600 0300 0100 0000`)...)) // IFLA_IPOIB_UMCAST
	if len(netstate.Diff(link, w.link)) > 0 || e.err != nil {
		t.Errorf("read as %+v, %v", w.link.IPoIB, e.err)
	}
	e = &infoData{attr: attr(nl.IFLA_INFO_DATA, nil)}
	encodeIPoIB(e, netstate.Link{IPoIB: &netstate.IPoIB{Mode: new("datagram")}})
	sameBytes(t, wire(t, `
		0c00 0200
		  0600 0200 0000 0000 # IFLA_IPOIB_MODE
	`), e.attr.Serialize())
	for want, l := range map[string]netstate.IPoIB{
		"cannot be changed: recreate the interface": {PKey: new("0x8002")},
		`mode: "fast" is not one of`:                {Mode: new("fast")},
		`pkey: "0x18001" is not the`:                {PKey: new("0x18001")},
	} {
		if encodeIPoIB(e, netstate.Link{IPoIB: &l}); e.err == nil || !strings.Contains(e.err.Error(), want) {
			t.Errorf("%+v: %v, want %s", l, e.err, want)
		}
	}
}

// TestIPoIBLink: an interface of a partition stands on that of its device, which is told from it by its parent. Its address belongs to its driver.
func TestIPoIBLink(t *testing.T) {
	message := func(lower string) []byte {
		return wire(t, `
			00 00 2000 09000000 00000000 00000000                   # link 9, ARPHRD_INFINIBAND
			0800 0300 69623000                                      # IFLA_IFNAME ib0
			`+lower+`
			1800 0100 80000266fe80000000000000 0002c90300216e78     # IFLA_ADDRESS
			1c00 1200                                               # IFLA_LINKINFO
			  0a00 0100 69706f6962 00 0000                          # ipoib
			  0c00 0200 0600 0100 0180 0000                         # IFLA_IPOIB_PKEY
		`)
	}
	device, err := decodeLink(message(""))
	if err != nil || !device.hardware() || !device.infiniband || device.link.IPoIB == nil || *device.link.IPoIB.PKey != "0x8001" || portGUID(device.link) != "00:02:c9:03:00:21:6e:78" {
		t.Errorf("a device: %+v, %v", device, err)
	}
	partition, err := decodeLink(message("0800 0500 04000000")) // IFLA_LINK
	if err != nil || partition.hardware() || partition.lower != 4 || partition.link.LinkKind != netstate.InfiniBandKind {
		t.Errorf("a partition: %+v, %v", partition, err)
	}
}

// TestIPoIBRefused: the words of refusals that the kernel words badly.
func TestIPoIBRefused(t *testing.T) {
	parent := netstate.Link{Name: "ib0", LinkKind: netstate.InfiniBandKind}
	for name, tt := range map[string]struct {
		err    error
		mode   string
		parent netstate.Link
		kind   fault.Kind
		want   string
	}{
		"another type of parent": {unix.ENODEV, "datagram", netstate.Link{Name: "eth0"}, fault.Invalid, `"eth0" in the sandbox is not an InfiniBand interface`},
		"no parent any more":     {unix.ENODEV, "datagram", netstate.Link{}, "", "no such device"},
		"without the module":     {unix.EOPNOTSUPP, "datagram", parent, fault.Unsupported, "load the module ib_ipoib"},
		"mlx5":                   {unix.EINVAL, "connected", parent, fault.Unsupported, "use mode datagram"},
		"another reason":         {unix.EINVAL, "datagram", parent, "", "invalid argument"},
		"another writer":         {unix.EBUSY, "connected", parent, fault.NotReady, "another change of links came between"},
	} {
		t.Run(name, func(t *testing.T) {
			err := explainIPoIB(tt.err, netstate.Link{IPoIB: &netstate.IPoIB{Mode: &tt.mode}}, tt.parent)
			if tt.kind != "" && fault.Of(err) != tt.kind || tt.kind == "" && !errors.Is(err, tt.err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v of kind %v, want %s", err, fault.Of(err), tt.want)
			}
		})
	}
}
