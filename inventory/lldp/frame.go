package lldp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/plumbline/plumbline/inventory"
)

// Frame is the content of one LLDP data unit.
type Frame struct {
	// Speaker identifies who has sent it: source address, chassis and port.
	Speaker string
	inventory.Neighbour
	// TTL is the time for which the frame is valid; 0 means that the speaker stops.
	TTL time.Duration
}

// Types of a TLV (802.1AB-2016, table 8-1), and subtypes of its chassis and port IDs
// (tables 8-2 and 8-3).
const (
	tlvEnd, tlvChassis, tlvPort, tlvTTL, tlvSystemName = 0, 1, 2, 3, 5

	chassisMAC, chassisAddress           = 4, 5
	portMAC, portAddress, portAgent      = 3, 4, 6
	familyIPv4, familyIPv6               = 1, 2 // of an address
	idMax, firstChassisText, lastSubtype = 255, 1, 7
)

// Decode reads the payload of a frame that came from a MAC address. The three TLVs that each
// unit begins with have to be there, once and in order, and nothing may be cut off.
//
// A name that is no plain text, or longer than an attribute may be, is left empty: if it
// were shortened or replaced, two switches could become one.
func Decode(from net.HardwareAddr, b []byte) (Frame, error) {
	var f Frame
	var chassis, system string
	named := false
	for n := 0; ; n++ {
		if len(b) == 0 && n >= 3 {
			break // the end may be left out since 2016
		}
		typ, value, rest, err := next(b)
		if err != nil {
			return Frame{}, err
		}
		b = rest
		if want := n + 1; n < 3 && typ != want || n >= 3 && typ >= tlvChassis && typ <= tlvTTL {
			return Frame{}, fmt.Errorf("TLV %d has type %d", n, typ)
		}
		switch typ {
		case tlvEnd:
			if len(value) > 0 {
				return Frame{}, errors.New("the end has a value")
			}
			b = nil // the rest is padding
		case tlvChassis, tlvPort:
			if len(value) < 2 || len(value) > 1+idMax {
				return Frame{}, fmt.Errorf("TLV %d has %d bytes", n, len(value))
			}
			f.Speaker += "/" + string(value)
			if typ == tlvChassis {
				chassis = identity(value[0], value[1:], chassisMAC, chassisAddress, 0)
			} else {
				f.Port = identity(value[0], value[1:], portMAC, portAddress, portAgent)
			}
		case tlvTTL:
			if len(value) < 2 {
				return Frame{}, errors.New("the time to live is cut off")
			}
			f.TTL = time.Duration(binary.BigEndian.Uint16(value)) * time.Second
		case tlvSystemName:
			if named {
				return Frame{}, errors.New("two system names")
			}
			named, system = true, printable(value)
		}
		if typ == tlvEnd {
			break
		}
	}
	if f.Switch = system; system == "" {
		f.Switch = chassis
	}
	f.Speaker = from.String() + f.Speaker
	return f, nil
}

// next splits off a TLV: 7 bits of type, 9 of length.
func next(b []byte) (typ int, value, rest []byte, err error) {
	if len(b) < 2 {
		return 0, nil, nil, errors.New("a TLV is cut off")
	}
	head := binary.BigEndian.Uint16(b)
	typ, length := int(head>>9), int(head&0x1ff)
	if len(b)-2 < length {
		return 0, nil, nil, fmt.Errorf("a TLV of type %d with %d bytes is cut off", typ, length)
	}
	return typ, b[2 : 2+length], b[2+length:], nil
}

// identity is the text of a chassis or port ID, "" if it has none.
func identity(subtype byte, id []byte, mac, address, binaryOnly byte) string {
	switch {
	case subtype == mac && len(id) == 6:
		return net.HardwareAddr(id).String()
	case subtype == address && len(id) > 1 && (id[0] == familyIPv4 && len(id) == 5 || id[0] == familyIPv6 && len(id) == 17):
		a, _ := netip.AddrFromSlice(id[1:])
		return a.String()
	case subtype == mac, subtype == address, subtype == binaryOnly, subtype < firstChassisText, subtype > lastSubtype:
		return ""
	}
	return printable(id)
}

// printable returns text of printable ASCII that fits in an attribute, else "". Some switches end it
// with a zero byte.
func printable(b []byte) string {
	s := strings.TrimRight(string(b), "\x00")
	if len(s) > resourceapi.DeviceAttributeMaxValueLength || s != strings.TrimSpace(s) {
		return ""
	}
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' {
			return ""
		}
	}
	return s
}
