package lldp

import (
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/inventory"
)

var sender = net.HardwareAddr{2, 0, 0, 0, 0, 1}

func tlv(typ int, value string) string {
	return string(binary.BigEndian.AppendUint16(nil, uint16(typ<<9|len(value)))) + value
}

const (
	mac       = "\x04\x02\x00\x00\x00\x00\xaa"
	ethernet1 = "\x05Ethernet1/1"
)

// unit is a data unit of a switch, with these TLVs behind the first three.
func unit(chassis, port string, more ...string) string {
	return tlv(tlvChassis, chassis) + tlv(tlvPort, port) + tlv(tlvTTL, "\x00\x78") + strings.Join(more, "")
}

func TestDecode(t *testing.T) {
	end := tlv(tlvEnd, "")
	for name, c := range map[string]struct {
		frame        string
		system, port string
	}{
		"a system name":                {unit(mac, ethernet1, tlv(4, "uplink"), tlv(tlvSystemName, "leaf-1"), end), "leaf-1", "Ethernet1/1"},
		"padded":                       {unit(mac, ethernet1, tlv(tlvSystemName, "leaf-1"), end, "\x00\x00\xff"), "leaf-1", "Ethernet1/1"},
		"without an end":               {unit(mac, ethernet1), "02:00:00:00:00:aa", "Ethernet1/1"},
		"a local chassis":              {unit("\x07leaf-2", ethernet1, end), "leaf-2", "Ethernet1/1"},
		"an IPv4 chassis":              {unit("\x05\x01\xc0\x00\x02\x01", ethernet1, end), "192.0.2.1", "Ethernet1/1"},
		"an IPv6 chassis":              {unit("\x05\x02"+strings.Repeat("\x20", 16), ethernet1, end), "2020:2020:2020:2020:2020:2020:2020:2020", "Ethernet1/1"},
		"a chassis of no known kind":   {unit("\x09leaf-2", ethernet1, end), "", "Ethernet1/1"},
		"a chassis that is no address": {unit("\x05\x01\xc0", ethernet1, end), "", "Ethernet1/1"},
		"a port's MAC":                 {unit(mac, "\x03\x02\x00\x00\x00\x00\xbb", end), "02:00:00:00:00:aa", "02:00:00:00:00:bb"},
		"a port's circuit":             {unit(mac, "\x06\x00\x01", end), "02:00:00:00:00:aa", ""},
		"a name that ends with a zero": {unit(mac, ethernet1, tlv(tlvSystemName, "leaf-1\x00"), end), "leaf-1", "Ethernet1/1"},
		"a name of 64 bytes":           {unit(mac, ethernet1, tlv(tlvSystemName, strings.Repeat("x", 64)), end), strings.Repeat("x", 64), "Ethernet1/1"},
		"a name that is too long":      {unit(mac, ethernet1, tlv(tlvSystemName, strings.Repeat("x", 65)), end), "02:00:00:00:00:aa", "Ethernet1/1"},
		"a name with a line feed":      {unit(mac, ethernet1, tlv(tlvSystemName, "leaf\n1"), end), "02:00:00:00:00:aa", "Ethernet1/1"},
		"a name that is no UTF-8":      {unit(mac, ethernet1, tlv(tlvSystemName, "leaf\xff"), end), "02:00:00:00:00:aa", "Ethernet1/1"},
		"a name that begins blank":     {unit(mac, ethernet1, tlv(tlvSystemName, " leaf"), end), "02:00:00:00:00:aa", "Ethernet1/1"},
		"of an organization":           {unit(mac, ethernet1, tlv(127, "\x00\x80\xc2\x01\x00\x01"), end), "02:00:00:00:00:aa", "Ethernet1/1"},
	} {
		f, err := Decode(sender, []byte(c.frame))
		if want := (inventory.Neighbour{Switch: c.system, Port: c.port}); err != nil || f.Neighbour != want || f.TTL != 2*time.Minute {
			t.Errorf("%s: %+v, %v, want %+v", name, f, err, want)
		}
	}
	for name, frame := range map[string]string{
		"nothing":              "",
		"half a head":          "\x02",
		"cut off":              unit(mac, ethernet1)[:12],
		"a length of too much": unit(mac, ethernet1) + "\x0b\xff",
		"another order":        tlv(tlvPort, ethernet1) + tlv(tlvChassis, mac) + tlv(tlvTTL, "\x00\x78"),
		"no time to live":      tlv(tlvChassis, mac) + tlv(tlvPort, ethernet1) + end,
		"a short time to live": tlv(tlvChassis, mac) + tlv(tlvPort, ethernet1) + tlv(tlvTTL, "\x78"),
		"two chassis":          unit(mac, ethernet1, tlv(tlvChassis, mac), end),
		"two names":            unit(mac, ethernet1, tlv(tlvSystemName, "a"), tlv(tlvSystemName, "b"), end),
		"an empty chassis":     unit("\x04", ethernet1, end),
		"a chassis too long":   unit("\x07"+strings.Repeat("x", 256), ethernet1, end),
		"an end that goes on":  unit(mac, ethernet1, tlv(tlvEnd, "x")),
	} {
		if f, err := Decode(sender, []byte(frame)); err == nil {
			t.Errorf("%s: decoded as %+v", name, f)
		}
	}
	a, _ := Decode(sender, []byte(unit(mac, ethernet1)))
	b, _ := Decode(sender, []byte(unit(mac, "\x05Ethernet1/2")))
	if a.Speaker == b.Speaker || source(a.Speaker) != sender.String() {
		t.Errorf("speakers %q and %q", a.Speaker, b.Speaker)
	}
}

// FuzzDecode holds that whatever is sent, an attribute made of it is one that the API server
// takes.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(unit(mac, ethernet1, tlv(tlvSystemName, "leaf-1"), tlv(tlvEnd, ""))))
	f.Add([]byte(unit("\x05\x01\xc0\x00\x02\x01", "\x06\x00\x01", tlv(127, "x"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := Decode(sender, b)
		if err != nil {
			return
		}
		for _, s := range []string{frame.Switch, frame.Port} {
			if len(s) > 64 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("%q of % x", s, b)
			}
		}
		if frame.TTL < 0 || frame.TTL > 65535*time.Second || source(frame.Speaker) != sender.String() {
			t.Errorf("%+v", frame)
		}
	})
}
