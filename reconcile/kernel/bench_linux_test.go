package kernel_test

import (
	"fmt"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
)

// BenchmarkObserve is the cost of a pass that has nothing to do.
func BenchmarkObserve(b *testing.B) {
	for _, vlans := range []int{2, 100} {
		b.Run(fmt.Sprintf("%d VLANs", vlans), func(b *testing.B) {
			s := newBench(b)
			s.create(up(dummy("d0")))
			for i := range vlans {
				name := fmt.Sprintf("v%d", i)
				s.create(netstate.Link{Name: name, LinkKind: "vlan", Parent: new("d0"), VLAN: &netstate.VLAN{ID: new(uint16(100 + i))}, Up: new(true)},
					netstate.Addr{Link: name, Address: fmt.Sprintf("10.0.%d.1/24", i)})
			}
			b.ReportAllocs()
			for b.Loop() {
				s.observe()
			}
		})
	}
}

// BenchmarkSysctl is the cost of entering the namespace once.
func BenchmarkSysctl(b *testing.B) {
	s := newBench(b)
	queried := netstate.Sysctl{Path: "net/ipv4/ip_forward"}
	for b.Loop() {
		if err := s.Extend(b.Context(), netstate.NewSnapshot(), []netstate.Object{queried}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen is the cost of opening and closing a view.
func BenchmarkOpen(b *testing.B) {
	s := newBench(b)
	for b.Loop() {
		v, err := s.host.Sandbox(s.ns.path())
		if err != nil {
			b.Fatal(err)
		}
		v.Close()
	}
}
