package watch

import (
	"encoding/binary"
	"strings"
)

// The part of rtnetlink(7) that matters here. The numbers are the kernel's ABI; they
// are repeated here so that the parser builds and is tested on any system.
const (
	headerBytes = 16 // struct nlmsghdr
	rtgenBytes  = 4  // struct rtgenmsg, aligned
	attrBytes   = 4  // struct nlattr
	linkBytes   = 16 // struct ifinfomsg

	typeBase    = 16 // NLMSG_MIN_TYPE: below are netlink's own messages
	typeNewLink = 16
	typeDelLink = 17
	typeNewNSID = 88
	typeDelNSID = 89
	attrNSID    = 1  // NETNSA_NSID
	nsidUnknown = -1 // NETNSA_NSID_NOT_ASSIGNED

	familyBridge   = 7  // AF_BRIDGE: about the link as the port of a bridge
	attrLinkInfo   = 18 // IFLA_LINKINFO
	attrKind       = 1  // IFLA_INFO_KIND
	attrTypeMask   = 1<<14 - 1
	kindOfPodLinks = "veth"
)

// summary sums up the notifications of one datagram.
type summary struct {
	changed bool    // something in a namespace did
	links   bool    // a link did
	devices bool    // a link did that is not the other end of a pod's
	deleted []int32 // numbers of namespaces that no longer exist
}

// parseNotifications reads the messages of one datagram. A truncated message counts by
// its type: that something changed is all we need to know.
func parseNotifications(b []byte) summary {
	var s summary
	for len(b) >= headerBytes {
		length := int(binary.NativeEndian.Uint32(b))
		kind := binary.NativeEndian.Uint16(b[4:])
		if length < headerBytes {
			return s
		}
		message := b[headerBytes:min(length, len(b))]
		switch {
		case kind == typeDelNSID:
			if id, ok := parseNSID(message); ok {
				s.deleted = append(s.deleted, id)
			}
		case kind == typeNewNSID, kind < typeBase:
		default:
			s.changed = true
			if kind == typeNewLink || kind == typeDelLink {
				s.links = true
				s.devices = s.devices || !podLink(message)
			}
		}
		if length > len(b) { // so align does not overflow
			return s
		}
		b = b[min(align(length), len(b)):]
	}
	return s
}

// podLink reports whether a message is about one end of a pair, whose carrier the owner of the other
// end decides about, or about a link as the port of a bridge. A truncated message is not.
func podLink(b []byte) bool {
	if len(b) < linkBytes {
		return false
	}
	if b[0] == familyBridge {
		return true
	}
	info := attribute(b[linkBytes:], attrLinkInfo)
	return strings.TrimRight(string(attribute(info, attrKind)), "\x00") == kindOfPodLinks
}

// attribute returns the value of the first attribute of a type, nil if there is none.
func attribute(b []byte, typ uint16) []byte {
	for len(b) >= attrBytes {
		length := int(binary.NativeEndian.Uint16(b))
		if length < attrBytes || length > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:])&attrTypeMask == typ {
			return b[attrBytes:length]
		}
		b = b[min(align(length), len(b)):]
	}
	return nil
}

// parseNSID reads the ID in a message about the ID of a network namespace.
func parseNSID(b []byte) (int32, bool) {
	if len(b) < rtgenBytes {
		return 0, false
	}
	v := attribute(b[rtgenBytes:], attrNSID)
	if len(v) != 4 {
		return 0, false
	}
	id := int32(binary.NativeEndian.Uint32(v))
	return id, id >= 0
}

func align(n int) int { return (n + 3) &^ 3 }
