package lldp

import (
	"encoding/binary"
	"net"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// A filter runs before a frame takes a place in the queue of its socket. The data that it sees begins behind the header of
// Ethernet, which is at linkHeader (SKF_LL_OFF in include/uapi/linux/filter.h).
const (
	linkHeader  = 0xffe00000
	destination = linkHeader
	from        = linkHeader + 6

	all = 1 << 16 // bytes of a frame that are kept
	// maxOwn bounds the addresses in a filter, which has at most 4096 instructions; the rest is compared
	// when a frame is read.
	maxOwn = 512
)

// program drops what is not sent to the group of LLDP, what the host or a function of the port sends, and keeps so much
// of a frame of a speaker and of others.
func program(own []string, speaker string, ofSpeaker, ofOthers uint32) []bpf.Instruction {
	drop := bpf.RetConstant{}
	out := []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 1},
		drop,
	}
	out = append(out, not(destination, nearest)...)
	out = append(out, bpf.Jump{Skip: 1}, drop)
	for _, text := range own[:min(len(own), maxOwn)] {
		if mac, err := net.ParseMAC(text); err == nil && len(mac) == 6 {
			out = append(append(out, not(from, mac)...), drop)
		}
	}
	if mac, err := net.ParseMAC(speaker); err == nil && len(mac) == 6 {
		out = append(append(out, not(from, mac)...), bpf.RetConstant{Val: ofSpeaker})
	}
	return append(out, bpf.RetConstant{Val: ofOthers})
}

// not skips the next instruction unless the address at an offset is mac.
func not(at uint32, mac net.HardwareAddr) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: at, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(mac), SkipTrue: 3},
		bpf.LoadAbsolute{Off: at + 4, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(binary.BigEndian.Uint16(mac[4:])), SkipTrue: 1},
	}
}
