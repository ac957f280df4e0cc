package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nothingStacked asks the kernel with one call what is otherwise asked with 8191:
// whether any link at all stands on a device. Every macvlan, ipvlan and VLAN is in the
// device's list of upper links for as long as it works (register_vlan_dev,
// macvlan_common_newlink, ipvlan_link_new), in whatever namespace it is, and a BPF
// program can read whether that list is empty. The program is run once for the query,
// on a packet of its own, and attached to nothing. Where it cannot be loaded links are
// searched for by what the kernel refuses (docs/adr/0022).

// upperProbe is the program; its zero value is one that is not there.
type upperProbe struct {
	program int
	proven  []string // with links of these kinds
	failed  error    // why it cannot be used
}

// What the program answers. Neither is 0, which would also be no answer.
const (
	upperSome = 1
	upperNone = 2
)

func (p upperProbe) close() error {
	if p.program == 0 {
		return nil
	}
	return unix.Close(p.program)
}

// nothingStacked reports whether it is certain that no link stands on a device in c.
func (s *Sandbox) nothingStacked(c *conn, index int) bool {
	kinds := []string{"macvlan"}
	if s.knowsVLANs() {
		kinds = append(kinds, "vlan")
	}
	probe, err := s.host.upperProbe(kinds)
	if err != nil {
		return false
	}
	some := true
	err = c.enter(func() (err error) {
		some, err = probe.hasUpper(index)
		return err
	})
	return err == nil && !some
}

// upperProbe loads the program, once. It is not trusted before it has seen a link of
// each kind: on a kernel where it reads something else it would clear every device. A
// kind is tried only where the kernel has it loaded, or is going to be asked for it.
func (h *Host) upperProbe(kinds []string) (upperProbe, error) {
	away, err := h.scratchSpace()
	if err != nil {
		return upperProbe{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &h.upper
	if p.failed == nil && p.program == 0 {
		p.program, p.failed = loadUpperProbe(filepath.Join(h.sysfs.root, "kernel/btf/vmlinux"))
	}
	for _, kind := range kinds {
		if p.failed != nil || slices.Contains(p.proven, kind) {
			continue
		}
		if err := p.prove(away, kind); err != nil {
			p.failed = fmt.Errorf("try the program with a %s: %w", kind, err)
		}
		p.proven = append(p.proven, kind)
	}
	return *p, p.failed
}

// prove is an error unless the program tells a link without any upper link from one
// with an upper link of a kind. Both are made in the scratch namespace, and stay there:
// to remove them would wait for the kernel.
func (p upperProbe) prove(away scratch, kind string) error {
	lower := 1000 + len(p.proven) // an index of our choice
	c := &conn{away.socket, &counters{}, false, Bounds{}}
	create := func(index int, kind, name string, data *nl.RtAttr, more ...nl.NetlinkRequestData) error {
		info := attr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, nil)
		info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(kind))
		if data != nil {
			info.AddChild(data)
		}
		return c.write(context.Background(), unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL,
			append([]nl.NetlinkRequestData{ifInfo(unix.AF_UNSPEC, index, 0, 0), attr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)), info}, more...)...)
	}
	expect := func(want bool) error {
		return c.enter(func() error {
			if some, err := p.hasUpper(lower); err != nil || some != want {
				return errors.Join(err, fmt.Errorf("it says %v, not %v", some, want))
			}
			return nil
		})
	}
	if err := create(lower, "veth", kind+"-low", nil); err != nil {
		return err
	}
	if err := expect(false); err != nil {
		return err
	}
	data := attr(nl.IFLA_INFO_DATA|unix.NLA_F_NESTED, nil)
	if kind == "vlan" {
		data.AddRtAttr(nl.IFLA_VLAN_ID, nl.Uint16Attr(1))
	} else {
		data.AddRtAttr(nl.IFLA_MACVLAN_MODE, nl.Uint32Attr(macvlanPassthru))
	}
	if err := create(0, kind, kind+"-up", data, attr(unix.IFLA_LINK, nl.Uint32Attr(uint32(lower)))); err != nil {
		return err
	}
	return expect(true)
}

// loadUpperProbe loads the program, with the places of the structures of this kernel.
func loadUpperProbe(types string) (int, error) {
	raw, err := os.ReadFile(types)
	if err != nil {
		return 0, err
	}
	b, err := parseBTF(raw)
	if err != nil {
		return 0, err
	}
	toContext, err := b.find(btfFunc, "bpf_cast_to_kern_ctx")
	device, err1 := b.offset("sk_buff", "dev")
	uppers, err2 := b.offset("net_device", "adj_list", "upper")
	next, err3 := b.offset("list_head", "next")
	if err := errors.Join(err, err1, err2, err3); err != nil {
		return 0, err
	}
	const (
		r0, r1, r2 = 0, 1, 2
		load       = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_DW
		set        = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K
	)
	var program []byte
	put := func(code, to, from uint8, offset int16, value int32) {
		program = append(program, code, from<<4|to)
		program = binary.NativeEndian.AppendUint16(program, uint16(offset))
		program = binary.NativeEndian.AppendUint32(program, uint32(value))
	}
	put(unix.BPF_JMP|unix.BPF_CALL, 0, unix.BPF_PSEUDO_KFUNC_CALL, 0, int32(toContext))
	put(load, r1, r0, device, 0)
	put(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, r1, 0, 4, 0) // no device: to "some"
	put(load, r2, r1, uppers+next, 0)
	put(unix.BPF_ALU64|unix.BPF_ADD|unix.BPF_K, r1, 0, 0, int32(uppers))
	put(set, r0, 0, 0, upperNone)
	put(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_X, r1, r2, 1, 0) // the list is empty: to the end
	put(set, r0, 0, 0, upperSome)
	put(unix.BPF_JMP|unix.BPF_EXIT, 0, 0, 0, 0)

	// The kernel shows its structures only to programs that may be used under the GPL.
	// These nine instructions may.
	license := []byte("Dual BSD/GPL\x00")
	var pin runtime.Pinner
	defer pin.Unpin()
	attr := make([]uint32, 18) // union bpf_attr, load
	attr[0], attr[1] = unix.BPF_PROG_TYPE_SCHED_CLS, uint32(len(program)/8)
	address(&pin, attr[2:], program)
	address(&pin, attr[4:], license)
	fd, err := bpf(unix.BPF_PROG_LOAD, attr)
	if err != nil {
		return 0, fmt.Errorf("load program: %w", err)
	}
	return fd, nil
}

// hasUpper runs the program on a device of the namespace of the calling thread.
func (p upperProbe) hasUpper(index int) (bool, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	packet := make([]byte, 64)
	context := make([]byte, 44) // struct __sk_buff, up to ifindex
	binary.NativeEndian.PutUint32(context[40:], uint32(index))
	attr := make([]uint32, 20) // union bpf_attr, test
	attr[0], attr[2] = uint32(p.program), uint32(len(packet))
	address(&pin, attr[4:], packet)
	attr[8] = 1 // run
	attr[10] = uint32(len(context))
	address(&pin, attr[12:], context)
	if _, err := bpf(unix.BPF_PROG_TEST_RUN, attr); err != nil {
		return false, fmt.Errorf("run program: %w", err)
	}
	switch attr[1] {
	case upperNone:
		return false, nil
	case upperSome:
		return true, nil
	}
	return false, fmt.Errorf("program answers %d", attr[1])
}
