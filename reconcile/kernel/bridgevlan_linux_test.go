package kernel_test

import (
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/topology/fault"
)

func TestBridgeVLANs(t *testing.T) {
	for _, place := range []string{"", "host:"} {
		b := newBench(t)
		br, port := place+"br0", place+"p0"
		b.create(up(netstate.Link{Name: br, LinkKind: "bridge", Bridge: &netstate.Bridge{VLANFiltering: new(true)}}), dummy(port))
		b.update(netstate.Link{Name: port, Master: &br, Up: new(true), Port: &netstate.Port{Hairpin: new(true), Isolated: new(true)}})
		b.holds(netstate.Link{Name: port, Master: &br, Up: new(true), Port: &netstate.Port{Hairpin: new(true), Isolated: new(true)}})
		b.update(netstate.Link{Name: port, Port: &netstate.Port{Hairpin: new(false)}})
		b.holds(netstate.Link{Name: port, Port: &netstate.Port{Hairpin: new(false), Isolated: new(true)}})
		for _, link := range []string{port, br} {
			b.holds(netstate.BridgeVLAN{Link: link, VID: 1, PVID: new(true), Untagged: new(true)}) // the bridge's default
			for _, v := range []netstate.BridgeVLAN{
				{VID: 10, PVID: new(false), Untagged: new(false)},
				{VID: 11, PVID: new(false), Untagged: new(false)}, // the kernel answers with a range
				{VID: 4094, PVID: new(false), Untagged: new(true)},
			} {
				v.Link = link
				b.create(v)
				b.holds(v)
				b.holds(netstate.BridgeVLAN{Link: link, VID: 1, PVID: new(true), Untagged: new(true)})
				before := b.observe(v)
				c := b.update(netstate.BridgeVLAN{Link: link, VID: v.VID, Untagged: new(!*v.Untagged)})
				b.holds(netstate.BridgeVLAN{Link: link, VID: v.VID, PVID: v.PVID, Untagged: new(!*v.Untagged)})
				b.apply(netstatetest.Inverse(c))
				same(t, before, b.observe(v))
			}
			b.update(netstate.BridgeVLAN{Link: link, VID: 10, PVID: new(true)})
			b.holds(netstate.BridgeVLAN{Link: link, VID: 1, PVID: new(false)})
			for _, vid := range []uint16{10, 11, 4094, 1} {
				b.remove(netstate.BridgeVLAN{Link: link, VID: vid})
				b.absent(netstate.BridgeVLAN{Link: link, VID: vid})
				b.remove(netstate.BridgeVLAN{Link: link, VID: vid})
			}
		}
		b.remove(netstate.BridgeVLAN{Link: place + "nowhere", VID: 1})
		b.refused(fault.NotReady, netstate.Change{After: netstate.BridgeVLAN{Link: place + "nowhere", VID: 1}}, `"nowhere"`)
	}
}

func TestNoBridgeNoVLANs(t *testing.T) {
	b := newBench(t)
	b.create(dummy("d0"), dummy("host:d0"))
	b.absent(netstate.BridgeVLAN{Link: "d0", VID: 1})
	b.absent(netstate.BridgeVLAN{Link: "host:d0", VID: 1})
	b.refused(fault.Unsupported, netstate.Change{After: netstate.BridgeVLAN{Link: "d0", VID: 1}})
}
