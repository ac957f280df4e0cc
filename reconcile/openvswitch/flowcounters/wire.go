package flowcounters

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The parts of OpenFlow 1.5 that are used (TS-025), in its order of bytes.
const (
	version = 6

	typeHello            = 0
	typeError            = 1
	typeEchoRequest      = 2
	typeEchoReply        = 3
	typeMultipartRequest = 18
	typeMultipartReply   = 19

	multipartFlowDesc = 1
	multipartMeter    = 9

	replyMore = 1 // of the flags of a reply

	headerLength    = 8
	multipartLength = 16 // with the header
	flowLength      = 24
	meterLength     = 40
	bandLength      = 16

	allTables = 0xff
	anyPort   = 0xffffffff

	matchOXM          = 1
	instructionApply  = 4
	actionSetField    = 25
	actionMeter       = 29
	oxmInPort         = 0x8000<<16 | 4
	oxmMetadata       = 0x8000<<16 | 2<<9 | 8
	oxmDSCP           = 0x8000<<16 | 8<<9 | 1
	oxmRegister14     = 0x0001<<16 | 14<<9 | 4 // NXM_NX_REG14
	oxmMask           = 1 << 8
	oxsPackets        = 0x8002<<16 | 4<<9 | 8
	oxsBytes          = 0x8002<<16 | 5<<9 | 8
	versionBitmap     = 1
	hostileReplyBytes = 64 << 20
	hostileReplyFlows = 1 << 18
)

var errMalformed = errors.New("malformed OpenFlow message")

func malformed(what string) error { return fmt.Errorf("%w: %s", errMalformed, what) }

// header begins each message.
func header(typ uint8, xid uint32, body []byte) []byte {
	out := binary.BigEndian.AppendUint16([]byte{version, typ}, uint16(headerLength+len(body)))
	return append(binary.BigEndian.AppendUint32(out, xid), body...)
}

func hello(xid uint32) []byte {
	body := binary.BigEndian.AppendUint16(nil, versionBitmap)
	body = binary.BigEndian.AppendUint16(body, 8)
	return header(typeHello, xid, binary.BigEndian.AppendUint32(body, 1<<version))
}

func multipart(xid uint32, kind uint16, body []byte) []byte {
	out := binary.BigEndian.AppendUint16(nil, kind)
	return header(typeMultipartRequest, xid, append(append(out, make([]byte, 6)...), body...))
}

// flowsRequest queries the flows of a table that match at least these fields.
func flowsRequest(xid uint32, table uint8, fields []byte) []byte {
	body := append([]byte{table}, make([]byte, 3)...)
	body = binary.BigEndian.AppendUint32(body, anyPort)
	body = binary.BigEndian.AppendUint32(body, anyPort) // groups
	body = append(body, make([]byte, 4+8+8)...)         // any cookie
	match := binary.BigEndian.AppendUint16(nil, matchOXM)
	match = binary.BigEndian.AppendUint16(match, uint16(4+len(fields)))
	match = append(match, fields...)
	return multipart(xid, multipartFlowDesc, append(body, append(match, make([]byte, padded(len(match))-len(match))...)...))
}

func meterRequest(xid, meter uint32) []byte {
	return multipart(xid, multipartMeter, append(binary.BigEndian.AppendUint32(nil, meter), make([]byte, 4)...))
}

func inPort(number uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, oxmInPort), number)
}

// logicalPort is a port of OVN as flows name it: the key of the datapath and its own.
type logicalPort struct {
	datapath uint64
	port     uint32
}

func (p logicalPort) fields() []byte {
	out := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, oxmMetadata), p.datapath)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(out, oxmRegister14), p.port)
}

// padded is a length with the bytes that fill the last eight.
func padded(n int) int { return (n + 7) &^ 7 }

// cut divides a structure, whose length is in two bytes at an offset, from what follows it. The length is at
// least so many.
func cut(b []byte, at, least int, pad bool) (one, rest []byte, err error) {
	if len(b) < at+2 || len(b) < least {
		return nil, nil, malformed("ends within a structure")
	}
	n := int(binary.BigEndian.Uint16(b[at:]))
	end := n
	if pad {
		end = padded(n)
	}
	if n < least || n < at+2 || end > len(b) {
		return nil, nil, malformed(fmt.Sprintf("a structure of %d bytes", n))
	}
	return b[:n], b[end:], nil
}

// flow holds the fields of a flow that are used.
type flow struct {
	table          uint8
	priority       uint16
	cookie         uint64
	packets, bytes uint64
	to             logicalPort // that its actions write
	writesPort     bool        // both of its keys
	dscp           int         // that its actions set, -1 for none
	meters         []uint32
}

// decodeFlows decodes the body of a reply.
func decodeFlows(b []byte, each func(*flow) error) error {
	for len(b) > 0 {
		one, rest, err := cut(b, 0, flowLength, false)
		if err != nil {
			return err
		}
		f, err := decodeFlow(one)
		if err != nil {
			return err
		}
		if err := each(&f); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

func decodeFlow(b []byte) (flow, error) {
	f := flow{table: b[4], priority: binary.BigEndian.Uint16(b[6:]), cookie: binary.BigEndian.Uint64(b[16:]), dscp: -1}
	_, b, err := cut(b[flowLength:], 2, 4, true) // the match, which the request has named
	if err != nil {
		return f, err
	}
	stats, b, err := cut(b, 2, 4, true)
	if err != nil {
		return f, err
	}
	if err := f.decodeStats(stats[4:]); err != nil {
		return f, err
	}
	for len(b) > 0 {
		var one []byte
		if one, b, err = cut(b, 2, 4, false); err != nil {
			return f, err
		}
		if binary.BigEndian.Uint16(one) == instructionApply {
			if len(one) < 8 {
				return f, malformed("an instruction without actions")
			}
			if err := f.decodeActions(one[8:]); err != nil {
				return f, err
			}
		}
	}
	return f, nil
}

func (f *flow) decodeStats(b []byte) error {
	packets, bytes := false, false
	for len(b) > 0 {
		if len(b) < 4 || len(b) < 4+int(b[3]) {
			return malformed("ends within a statistic")
		}
		value := b[4 : 4+int(b[3])]
		switch binary.BigEndian.Uint32(b) {
		case oxsPackets:
			f.packets, packets = binary.BigEndian.Uint64(value), true
		case oxsBytes:
			f.bytes, bytes = binary.BigEndian.Uint64(value), true
		}
		b = b[4+len(value):]
	}
	if !packets || !bytes {
		return malformed("a flow without counters")
	}
	return nil
}

func (f *flow) decodeActions(b []byte) error {
	datapath, port := false, false
	for len(b) > 0 {
		one, rest, err := cut(b, 2, 8, false)
		if err != nil {
			return err
		}
		b = rest
		switch binary.BigEndian.Uint16(one) {
		case actionMeter:
			f.meters = append(f.meters, binary.BigEndian.Uint32(one[4:]))
		case actionSetField:
			field, value := binary.BigEndian.Uint32(one[4:]), one[8:]
			if len(value) < int(field&0xff) {
				return malformed("ends within a field")
			}
			switch field {
			case oxmMetadata:
				f.to.datapath, datapath = binary.BigEndian.Uint64(value), true
			case oxmRegister14:
				f.to.port, port = binary.BigEndian.Uint32(value), true
			case oxmDSCP, oxmDSCP + 1 | oxmMask: // OVN writes all of its bits
				f.dscp = int(value[0])
			}
		}
	}
	f.writesPort = f.writesPort || datapath && port
	return nil
}

// meter holds the counters of a meter.
type meter struct {
	id, flows uint32
	dropped   uint64
}

// decodeMeters decodes the body of a reply.
func decodeMeters(b []byte) ([]meter, error) {
	var out []meter
	for len(b) > 0 {
		one, rest, err := cut(b, 4, meterLength, false)
		if err != nil {
			return nil, err
		}
		b = rest
		m := meter{id: binary.BigEndian.Uint32(one), flows: binary.BigEndian.Uint32(one[12:])}
		for bands := one[meterLength:]; len(bands) > 0; bands = bands[bandLength:] {
			if len(bands) < bandLength {
				return nil, malformed("ends within a band")
			}
			m.dropped += binary.BigEndian.Uint64(bands)
		}
		out = append(out, m)
	}
	return out, nil
}
