package kernel

import (
	"encoding/hex"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
)

// TestAnnouncements: the bytes of RFC 826 and RFC 4861 section 4.4.
func TestAnnouncements(t *testing.T) {
	l := netstate.Link{Name: "net1", MAC: new("02:00:00:00:00:0a")}
	for address, want := range map[string][]string{
		"192.0.2.5/24": {
			"0001080006040001" + "02000000000a" + "c0000205" + "000000000000" + "c0000205",
			"0001080006040002" + "02000000000a" + "c0000205" + "02000000000a" + "c0000205",
		},
		"2001:db8::5/64": {
			"6000000000203aff" + "20010db8000000000000000000000005" + "ff020000000000000000000000000001" +
				"8800f919" + "20000000" + "20010db8000000000000000000000005" + "020102000000000a",
		},
	} {
		got := announcements(l, netstate.Addr{Link: "net1", Address: address})
		if len(got) != len(want) {
			t.Fatalf("%s: %d packets, want %d", address, len(got), len(want))
		}
		for i, p := range got {
			if h := hex.EncodeToString(p.packet); h != want[i] {
				t.Errorf("%s: packet %d\n%s, want\n%s", address, i, h, want[i])
			}
		}
	}
	// Packets for Ethernet are sent on no interface of InfiniBand, whose address has 20 bytes.
	l.MAC = new("00:00:02:66:fe:80:00:00:00:00:00:00:24:8a:07:03:00:a4:3e:7c")
	for _, address := range []string{"192.0.2.5/24", "2001:db8::5/64"} {
		if got := announcements(l, netstate.Addr{Link: "net1", Address: address}); len(got) != 0 {
			t.Errorf("%s on InfiniBand: %d packets", address, len(got))
		}
	}
}
