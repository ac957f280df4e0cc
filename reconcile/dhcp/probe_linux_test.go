package dhcp

import (
	"net/netip"
	"testing"

	"golang.org/x/net/bpf"
)

// TestAnswersForProbe holds which ARP packets say that an address is in use.
func TestAnswersForProbe(t *testing.T) {
	address := netip.MustParseAddr("192.0.2.10")
	raw, err := answersFor(address)
	if err != nil {
		t.Fatal(err)
	}
	program, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the filter cannot be read")
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	arp := func(op byte, from, of string) []byte {
		b := append([]byte{0, 1, 8, 0, 6, 4, 0, op}, 2, 0, 0, 0, 0, 9)
		b = append(b, netip.MustParseAddr(from).AsSlice()...)
		return append(append(b, make([]byte, 6)...), netip.MustParseAddr(of).AsSlice()...)
	}
	for _, tt := range []struct {
		name   string
		packet []byte
		in     bool
	}{
		{"an answer", arp(2, "192.0.2.10", "0.0.0.0"), true},
		{"an announcement", arp(1, "192.0.2.10", "192.0.2.10"), true},
		{"another host probes for it", arp(1, "0.0.0.0", "192.0.2.10"), true},
		{"the server asks for it", arp(1, "192.0.2.1", "192.0.2.10"), false},
		{"another address", arp(2, "192.0.2.11", "0.0.0.0"), false},
		{"a probe for another address", arp(1, "0.0.0.0", "192.0.2.11"), false},
		{"another protocol", append([]byte{0, 6}, arp(2, "192.0.2.10", "0.0.0.0")[2:]...), false},
		{"cut off", arp(2, "192.0.2.10", "0.0.0.0")[:16], false},
	} {
		n, err := vm.Run(tt.packet)
		if err != nil || (n > 0) != tt.in {
			t.Errorf("%s: %d bytes, %v", tt.name, n, err)
		}
	}
}

// TestDecline holds what a server reads of a declined address.
func TestDecline(t *testing.T) {
	r := &record{Client: "ff01", Hostname: "web", Requested: "26"}
	m, err := decline(r, []byte{2, 0, 0, 0, 0, 1}, Lease{Address: netip.MustParsePrefix("192.0.2.10/24"), Server: netip.MustParseAddr("192.0.2.1")})
	if err != nil {
		t.Fatal(err)
	}
	if got := m.RequestedIPAddress().String() + " " + m.ServerIdentifier().String() + " " + m.ClientIPAddr.String(); got != "192.0.2.10 192.0.2.1 0.0.0.0" || m.MessageType().String() != "DECLINE" {
		t.Errorf("%s: %s", m.MessageType(), got)
	}
	for _, o := range m.ParameterRequestList() {
		t.Errorf("requests %s, which RFC 2131 excludes", o)
	}
}
