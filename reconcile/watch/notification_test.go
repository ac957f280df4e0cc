package watch

import (
	"encoding/binary"
	"reflect"
	"testing"
)

// message builds a netlink message with its padding.
func message(kind uint16, payload ...byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(headerBytes+len(payload)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, make([]byte, 10)...) // flags, sequence, port
	b = append(b, payload...)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

func attr(kind uint16, value ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(attrBytes+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

func number(n int32) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }

func join(parts ...[]byte) []byte {
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// ofKind is a message about a link of a kind, as the kernel writes it: a name before, and a nested
// attribute.
func ofKind(kind string) []byte {
	info := attr(attrLinkInfo|1<<15, attr(attrKind, append([]byte(kind), 0)...)...)
	return message(typeNewLink, join(make([]byte, linkBytes), attr(3, 'n', '0', 0), info)...)
}

func TestParseNotifications(t *testing.T) {
	rtgen := make([]byte, rtgenBytes)
	deleted := func(n int32) []byte { return message(typeDelNSID, join(rtgen, attr(attrNSID, number(n)...))...) }
	long := message(24, 1, 2, 3, 4)
	binary.NativeEndian.PutUint32(long, 1<<31)
	short := message(24)
	binary.NativeEndian.PutUint32(short, 4)
	for _, tt := range []struct {
		name string
		data []byte
		want summary
	}{
		{"nothing", nil, summary{}},
		{"link", message(typeNewLink, make([]byte, 32)...), summary{changed: true, links: true, devices: true}},
		{"link gone", message(typeDelLink, make([]byte, 32)...), summary{changed: true, links: true, devices: true}},
		{"link of a pod", ofKind("veth"), summary{changed: true, links: true}},
		{"link of a bond", ofKind("bond"), summary{changed: true, links: true, devices: true}},
		{"link of a kind that begins so", ofKind("vethx"), summary{changed: true, links: true, devices: true}},
		{"port of a bridge", message(typeNewLink, join([]byte{familyBridge}, make([]byte, 15))...), summary{changed: true, links: true}},
		{"link of a pod and another", join(ofKind("veth"), message(typeNewLink, make([]byte, 32)...)), summary{changed: true, links: true, devices: true}},
		{"link of a pod, cut short", ofKind("veth")[:headerBytes+linkBytes+10], summary{changed: true, links: true, devices: true}},
		{"address", message(20, make([]byte, 8)...), summary{changed: true}},
		{"odd length", join(message(20, 1, 2, 3), message(typeNewLink)), summary{changed: true, links: true, devices: true}},
		{"netlink's own", join(message(2, make([]byte, 20)...), message(3), message(4)), summary{}},
		{"number given", message(typeNewNSID, join(rtgen, attr(attrNSID, number(3)...))...), summary{}},
		{"number withdrawn", deleted(3), summary{deleted: []int32{3}}},
		{"several", join(deleted(3), message(24), deleted(4)), summary{changed: true, deleted: []int32{3, 4}}},
		{"other attributes", message(typeDelNSID, join(rtgen, attr(5, number(1)...), attr(9, 1, 2, 3), attr(attrNSID, number(7)...))...), summary{deleted: []int32{7}}},
		{"no number", message(typeDelNSID, rtgen...), summary{}},
		{"not assigned", deleted(-1), summary{}},
		{"number of a wrong size", message(typeDelNSID, join(rtgen, attr(attrNSID, 1, 2))...), summary{}},
		{"attribute too long", message(typeDelNSID, join(rtgen, []byte{200, 0, 1, 0, 1, 0, 0, 0})...), summary{}},
		{"attribute too short", message(typeDelNSID, join(rtgen, []byte{0, 0, 1, 0, 1, 0, 0, 0})...), summary{}},
		{"no family", message(typeDelNSID, 1, 2), summary{}},
		{"cut short", message(24, make([]byte, 100)...)[:40], summary{changed: true}},
		{"length of more than there is", long, summary{changed: true}},
		{"length of less than a header", short, summary{}},
		{"less than a header", message(24)[:15], summary{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := parseNotifications(tt.data); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

func FuzzParseNotifications(f *testing.F) {
	f.Add(message(typeNewLink, 1, 2, 3))
	f.Add(join(message(20), message(typeDelNSID, join(make([]byte, 4), attr(attrNSID, number(3)...))...)))
	f.Fuzz(func(t *testing.T, data []byte) {
		got := parseNotifications(data)
		if got.links && !got.changed || got.devices && !got.links {
			t.Errorf("%+v", got)
		}
		for _, n := range got.deleted {
			if n < 0 {
				t.Errorf("%+v", got)
			}
		}
		// Bytes after complete messages do not change how these are read.
		with := parseNotifications(join(message(typeNewLink, 1), message(typeDelNSID, join(make([]byte, 4), attr(attrNSID, number(9)...))...), data))
		if !with.links || len(with.deleted) != len(got.deleted)+1 || with.deleted[0] != 9 {
			t.Errorf("%+v, alone %+v", with, got)
		}
	})
}
