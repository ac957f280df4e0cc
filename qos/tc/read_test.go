package tc_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/qos/tc"
)

// TestRead: the objects of a sandbox decide as the filters that they were made of.
func TestRead(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 9))
		rules, sets := qostest.Rules(rng, rng.IntN(8))
		compiled, err := tc.Compile(rules, func(id qos.SetID) []netip.Addr { return sets[id] })
		if err != nil {
			t.Fatal(err)
		}
		read, err := tc.Read(compiled.Objects())
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			p := qostest.Packet(rng)
			want, _ := compiled.Decide(p)
			have, _ := read.Decide(p)
			if (want == nil) != (have == nil) || want != nil && (want.Handle != have.Handle || want.Pref != have.Pref || want.DSCP != have.DSCP || want.Policer != have.Policer) {
				t.Fatalf("seed %d, packet %+v: %+v, want %+v", seed, p, have, want)
			}
		}
	}
}

func TestParsePacket(t *testing.T) {
	for text, want := range map[string]qos.Packet{
		"10.0.0.5:443/tcp":         {Destination: netip.MustParseAddr("10.0.0.5"), Protocol: qos.TCP, Port: 443},
		"[2001:db8::5]:53/udp":     {Destination: netip.MustParseAddr("2001:db8::5"), Protocol: qos.UDP, Port: 53},
		"[::ffff:10.0.0.5]:9/sctp": {Destination: netip.MustParseAddr("10.0.0.5"), Protocol: qos.SCTP, Port: 9},
		"10.0.0.5":                 {Destination: netip.MustParseAddr("10.0.0.5")},
		"10.0.0.5:443":             {},
		"10.0.0.5/tcp":             {},
		"10.0.0.5:0/tcp":           {},
		"10.0.0.5:443/icmp":        {},
		"fe80::1%eth0":             {},
		"web:443/tcp":              {},
	} {
		got, err := tc.ParsePacket(text)
		if got != want || (err == nil) != want.Destination.IsValid() {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}
