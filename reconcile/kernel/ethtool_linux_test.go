package kernel_test

import (
	"runtime"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/topology/fault"
)

func feature(link, name, value string) netstate.Ethtool {
	return netstate.Ethtool{Link: link, Class: netstate.EthtoolFeature, Name: name, Value: &value}
}

func TestEthtool(t *testing.T) {
	for _, place := range []string{"", "host:"} {
		b := newBench(t)
		link := place + "e0"
		b.create(netstate.Link{Name: link, LinkKind: "veth", Veth: &netstate.Veth{Peer: new(place + "e1")}})
		settings := []netstate.Ethtool{feature(link, "tx-tcp-segmentation", "off"), feature(link, "rx-gro", "on")}
		if runtime.NumCPU() > 1 { // a veth has a queue for each
			settings = append(settings, netstate.Ethtool{Link: link, Class: netstate.EthtoolChannel, Name: "rx", Value: new("2")})
		}
		for _, e := range settings {
			before := b.observe(e)
			c := b.update(e)
			b.holds(e)
			if c.After == nil {
				t.Errorf("%s was so before", e.Key())
				continue
			}
			b.apply(netstatetest.Inverse(c))
			same(t, before, b.observe(e))
		}
		fixed, _ := netstate.Lookup(b.observe(feature(link, "rx-fcs", "")), feature(link, "rx-fcs", ""))
		if !fixed.Fixed || *fixed.Value != "off" {
			t.Errorf("got %+v", fixed)
		}
		b.absent(feature(link, "no-such-feature", "on"))
		b.absent(feature("nowhere", "rx-gro", "on"))
		b.absent(netstate.Ethtool{Link: link, Class: netstate.EthtoolCoalesce, Name: "no-such-thing"})
		b.absent(netstate.Ethtool{Link: link, Class: netstate.EthtoolPrivateFlag, Name: "no-such-flag"})
	}
}

func TestEthtoolRefused(t *testing.T) {
	b := newBench(t)
	b.create(netstate.Link{Name: "e0", LinkKind: "veth", Veth: &netstate.Veth{Peer: new("e1")}}, dummy("d0"))
	set := func(e netstate.Ethtool) netstate.Change { return netstate.Change{After: e} }
	b.refused(fault.Unsupported, set(feature("e0", "rx-fcs", "on")), "stays off")
	b.refused(fault.Unsupported, set(feature("e0", "no-such-feature", "on")), "no-such-feature")
	b.refused(fault.NotReady, set(feature("nowhere", "rx-gro", "on")), `"nowhere"`)
	channel := netstate.Ethtool{Link: "e0", Class: netstate.EthtoolChannel, Name: "rx", Value: new("1000000")}
	b.refused(fault.Invalid, set(channel), "refuses the value")
	channel.Value = new("some")
	b.refused(fault.Invalid, set(channel), "not a number")
	channel.Name, channel.Value = "no-such-channel", new("1")
	b.refused(fault.Unsupported, set(channel))
	b.refused(fault.Unsupported, set(netstate.Ethtool{Link: "d0", Class: netstate.EthtoolRing, Name: "rx", Value: new("1")}), "does not have it")
	b.refused(fault.Unsupported, set(netstate.Ethtool{Link: "d0", Class: netstate.EthtoolPrivateFlag, Name: "flag", Value: new("on")}), "does not have it")
}
