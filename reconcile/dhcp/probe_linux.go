package dhcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// A probe is sent at each of these times after the one before (RFC 5227 section 2.1.1, whose times of seconds are for
// networks that need them: a pod waits for its address, and a host on a link of a data center answers in milliseconds).
var probes = []time.Duration{200 * time.Millisecond, 200 * time.Millisecond, 200 * time.Millisecond}

const (
	arpBytes       = 28 // of a packet for Ethernet and IPv4
	arpRequest     = 1
	maxProbeFrames = 64
)

// dropAll passes no packet.
var dropAll = []bpf.RawInstruction{{Op: 0x06}} // ret 0

// probe asks by ARP whether a host of the network has an address, and returns the hardware address of one that has it or
// probes for it too, nil if none answers. An ipvlan gets no answers, since it does not have the address yet.
func (w *wire) probe(ctx context.Context, address netip.Addr) (net.HardwareAddr, error) {
	only, err := answersFor(address)
	if err != nil {
		return nil, err
	}
	if err := w.arp.SetBPF(only); err != nil {
		return nil, err
	}
	request := make([]byte, arpBytes)
	binary.BigEndian.PutUint16(request, 1) // Ethernet
	binary.BigEndian.PutUint16(request[2:], unix.ETH_P_IP)
	request[4], request[5] = 6, 4
	binary.BigEndian.PutUint16(request[6:], arpRequest)
	copy(request[8:14], w.mac) // and 0.0.0.0, so that no neighbor learns it
	copy(request[24:], address.AsSlice())
	frames := 0
	for _, wait := range probes {
		if _, err := w.arp.WriteTo(request, &packet.Addr{HardwareAddr: everyone}); err != nil {
			return nil, err
		}
		within, cancel := context.WithTimeout(ctx, wait)
		holder, err := w.holder(within, &frames)
		cancel()
		if holder != nil || err != nil {
			return holder, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return nil, nil
}

// holder returns the hardware address of the first sender that is another host, nil if there is none until ctx ends.
func (w *wire) holder(ctx context.Context, frames *int) (net.HardwareAddr, error) {
	var b [arpBytes]byte
	for *frames < maxProbeFrames {
		n, _, err := read(ctx, w.arp, b[:])
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, nil
		case err != nil:
			return nil, err
		}
		*frames++
		if sender := net.HardwareAddr(b[8:14]); n == arpBytes && !bytes.Equal(sender, w.mac) {
			return bytes.Clone(sender), nil
		}
	}
	return nil, nil
}

// answersFor passes ARP packets from a host that has an address, and probes for it.
func answersFor(address netip.Addr) ([]bpf.RawInstruction, error) {
	a := address.As4()
	of := binary.BigEndian.Uint32(a[:])
	return bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 1<<16 | unix.ETH_P_IP, SkipFalse: 6}, // Ethernet and IPv4
		bpf.LoadAbsolute{Off: 14, Size: 4},                                        // address of the sender
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: of, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipFalse: 3},
		bpf.LoadAbsolute{Off: 24, Size: 4}, // address that is asked for
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: of, SkipFalse: 1},
		bpf.RetConstant{Val: arpBytes},
		bpf.RetConstant{Val: 0},
	})
}
