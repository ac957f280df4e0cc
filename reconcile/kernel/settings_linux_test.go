package kernel_test

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

// program loads an eBPF program that lets every packet pass.
func program(t testing.TB, typ uint32) *os.File {
	t.Helper()
	pass := map[uint32]uint32{unix.BPF_PROG_TYPE_XDP: 2, unix.BPF_PROG_TYPE_SCHED_CLS: 0xffffffff}[typ]
	instructions := binary.NativeEndian.AppendUint64(nil, 0xb7|uint64(pass)<<32) // r0 = pass
	instructions = binary.NativeEndian.AppendUint64(instructions, 0x95)          // exit
	license := []byte("GPL\x00")
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&instructions[0])
	pin.Pin(&license[0])
	attr := make([]byte, 128)
	binary.NativeEndian.PutUint32(attr, typ)
	binary.NativeEndian.PutUint32(attr[4:], 2)
	binary.NativeEndian.PutUint64(attr[8:], uint64(uintptr(unsafe.Pointer(&instructions[0]))))
	binary.NativeEndian.PutUint64(attr[16:], uint64(uintptr(unsafe.Pointer(&license[0]))))
	return file(t, "program", unix.BPF_PROG_LOAD, attr)
}

// file makes a descriptor with bpf(2) that lives as long as the test.
func file(t testing.TB, name string, command uintptr, attr []byte) *os.File {
	t.Helper()
	fd, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr)))
	if errno != 0 {
		t.Fatalf("bpf %s: %v", name, errno)
	}
	f := os.NewFile(fd, name)
	t.Cleanup(func() { f.Close() })
	return f
}

const xdpPoint = 37

// linked attaches a program by a link, in the namespace of the calling thread.
func linked(t testing.TB, program *os.File, index int, point uint32) {
	attr := make([]byte, 64)
	binary.NativeEndian.PutUint32(attr, uint32(program.Fd()))
	binary.NativeEndian.PutUint32(attr[4:], uint32(index))
	binary.NativeEndian.PutUint32(attr[8:], point)
	if point == xdpPoint {
		binary.NativeEndian.PutUint32(attr[12:], unix.XDP_FLAGS_SKB_MODE)
	}
	file(t, "link", unix.BPF_LINK_CREATE, attr)
}

// pinnedTCX attaches a program without a link: it stays when the process that attached
// it ends.
func pinnedTCX(t testing.TB, program *os.File, index int) {
	attr := make([]byte, 64)
	binary.NativeEndian.PutUint32(attr, uint32(index))
	binary.NativeEndian.PutUint32(attr[4:], uint32(program.Fd()))
	binary.NativeEndian.PutUint32(attr[8:], unix.BPF_TCX_INGRESS)
	if _, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_ATTACH, uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr))); errno != 0 {
		t.Fatalf("attach: %v", errno)
	}
}

// inPod runs f in the namespace, on the link of that name.
func (b *bench) inPod(name string, f func(h *netlink.Handle, l netlink.Link) error) {
	b.Helper()
	err := kernel.Within(b.ns.path(), func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		l, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		return f(h, l)
	})
	if err != nil {
		b.Fatal(err)
	}
}

// disturbed are the settings that a pod leaves on a device, by name.
var disturbed = map[string]func(b *bench, h *netlink.Handle, l netlink.Link) error{
	"link.flags": func(_ *bench, h *netlink.Handle, l netlink.Link) error {
		return errors.Join(h.SetPromiscOn(l), h.LinkSetAllmulticastOn(l), h.LinkSetMulticastOff(l), h.LinkSetARPOff(l))
	},
	"link.group":        func(_ *bench, h *netlink.Handle, l netlink.Link) error { return h.LinkSetGroup(l, 77) },
	"link.txqlen":       func(_ *bench, h *netlink.Handle, l netlink.Link) error { return h.LinkSetTxQLen(l, 7) },
	"link.gso-max-size": func(_ *bench, h *netlink.Handle, l netlink.Link) error { return h.LinkSetGSOMaxSize(l, 4000) },
	"link.gso-max-segs": func(_ *bench, h *netlink.Handle, l netlink.Link) error { return h.LinkSetGSOMaxSegs(l, 7) },
	"link.gro-max-size": func(_ *bench, h *netlink.Handle, l netlink.Link) error { return h.LinkSetGROMaxSize(l, 5000) },
	"xdp.generic": func(b *bench, _ *netlink.Handle, l netlink.Link) error {
		return netlink.LinkSetXdpFdWithFlags(l, int(program(b, unix.BPF_PROG_TYPE_XDP).Fd()), unix.XDP_FLAGS_SKB_MODE)
	},
	"xdp.generic by a link": func(b *bench, _ *netlink.Handle, l netlink.Link) error {
		linked(b, program(b, unix.BPF_PROG_TYPE_XDP), l.Attrs().Index, xdpPoint)
		return nil
	},
	"tcx.ingress": func(b *bench, _ *netlink.Handle, l netlink.Link) error {
		pinnedTCX(b, program(b, unix.BPF_PROG_TYPE_SCHED_CLS), l.Attrs().Index)
		return nil
	},
	"tcx.ingress by a link": func(b *bench, _ *netlink.Handle, l netlink.Link) error {
		linked(b, program(b, unix.BPF_PROG_TYPE_SCHED_CLS), l.Attrs().Index, unix.BPF_TCX_INGRESS)
		return nil
	},
	"feature.rx-gro": func(b *bench, _ *netlink.Handle, _ netlink.Link) error {
		return b.Apply(b.ctx, netstate.Change{
			Before: netstate.Ethtool{Link: "net1", Class: "feature", Name: "rx-gro", Value: new("on")},
			After:  netstate.Ethtool{Link: "net1", Class: "feature", Name: "rx-gro", Value: new("off")},
		})
	},
}

// settingsOf returns a device with its settings.
func (b *bench) settingsOf(id string) netstate.Device {
	b.Helper()
	d, _ := b.observe(netstate.Device{ID: id, Settings: netstate.Settings{}}).Device(id)
	if len(d.Settings) == 0 {
		b.Fatalf("%s has no settings", id)
	}
	return d
}

// All settings of a device are restored when it returns from a pod, and programs that
// the pod attached are detached, also if the record has no settings.
func TestSettingsAreRestored(t *testing.T) {
	for name, spoil := range disturbed {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.create(up(dummy("host:eth1")))
			start := b.settingsOf("if:eth1")
			b.apply(netstate.Change{Before: start, After: netstate.Device{ID: "if:eth1", At: new("net1")}})
			b.inPod("net1", func(h *netlink.Handle, l netlink.Link) error { return spoil(b, h, l) })
			unclean := start
			unclean.Settings = nil // as an earlier version recorded it
			b.apply(netstate.Change{Before: b.device("if:eth1"), After: unclean})
			seen := b.settingsOf("if:eth1").Settings
			if clean := len(start.Settings.Differing(seen)) == 0; clean != netstate.Attached(name) {
				t.Fatalf("without a record of it: clean %v", clean)
			}
			b.apply(netstate.Change{Before: b.device("if:eth1"), After: start})
			if got := b.settingsOf("if:eth1"); len(start.Settings.Differing(got.Settings)) > 0 || !*got.Up {
				t.Errorf("differs in %v, up %v", start.Settings.Differing(got.Settings), *got.Up)
			}
		})
	}
}

// All of it at once, in the move.
func TestSettingsAreRestoredOnTheWay(t *testing.T) {
	b := newBench(t)
	b.create(up(netstate.Link{Name: "host:eth1", LinkKind: "dummy", Alias: new("to rack 7")}))
	start := b.settingsOf("if:eth1")
	b.apply(netstate.Change{Before: start, After: netstate.Device{ID: "if:eth1", At: new("net1")}})
	b.inPod("net1", func(h *netlink.Handle, l netlink.Link) error {
		for name, spoil := range disturbed {
			if slices.Contains([]string{"xdp.generic by a link", "tcx.ingress by a link"}, name) {
				continue // one program at a point is enough
			}
			if err := spoil(b, h, l); err != nil {
				return err
			}
		}
		return errors.Join(h.LinkSetAlias(l, "see me"), h.LinkAddAltName(l, "foreign"))
	})
	b.apply(netstate.Change{Before: b.device("if:eth1"), After: start})
	got := b.settingsOf("if:eth1")
	for _, d := range netstate.Diff(start, got) {
		t.Errorf("%s is %v, was %v", d.Path, d.Before, d.After)
	}
}
