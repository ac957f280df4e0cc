package kernel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nothingStacked finds with one call what otherwise takes 8191: whether there is any link
// on a device. Every macvlan, ipvlan and VLAN is in the device's list of upper links for as
// long as it works (register_vlan_dev, macvlan_common_newlink, ipvlan_link_new), in
// whatever namespace it is, and a BPF program can read whether that list is empty. The
// program is run once for the query, on a packet of its own, and attached to nothing. Where
// it cannot be loaded links are searched for by what the kernel refuses (docs/adr/0022).

// upperProbe is the program; its zero value is one that is not there.
type upperProbe struct {
	program *ebpf.Program
	proven  []string // with links of these kinds
	failed  error    // why it cannot be used
}

// What the program answers. Neither is 0, which would also be no answer.
const (
	upperSome = 1
	upperNone = 2
)

func (p upperProbe) close() error {
	if p.program == nil {
		return nil
	}
	return p.program.Close()
}

// nothingStacked reports whether it is certain that there is no link on a device in c.
func (s *Sandbox) nothingStacked(c *conn, index int) bool {
	kinds := []string{"macvlan"}
	if s.knowsVLANs() {
		kinds = append(kinds, "vlan")
	}
	some := true
	probe, err := s.host.upperProbe(kinds)
	if err == nil {
		err = c.enter(func() (err error) {
			some, err = probe.hasUpper(index)
			return err
		})
	}
	if err != nil && !errors.Is(err, unix.ENODEV) { // ENODEV: the device no longer exists
		s.host.searching(err)
	}
	return err == nil && !some
}

// upperProbe loads the program, once. It is not trusted before it has seen a link of
// each kind: on a kernel where it reads something else it would clear every device. A
// kind is tried only if the kernel has it loaded, or will be requested to load it.
func (h *Host) upperProbe(kinds []string) (upperProbe, error) {
	away, err := h.scratchSpace()
	if err != nil {
		return upperProbe{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &h.upper
	if p.failed == nil && p.program == nil {
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

// prove returns an error unless the program distinguishes a link without any upper link
// from one with an upper link of a kind. Both are made in the scratch namespace, and stay
// there: to remove them would wait for the kernel.
func (p upperProbe) prove(away scratch, kind string) error {
	lower := 1000 + len(p.proven) // an index of our choice
	c := &conn{socket: away.socket, count: &counters{}}
	create := func(index int, name string, more ...nl.NetlinkRequestData) error {
		parts := []nl.NetlinkRequestData{ifInfo(unix.AF_UNSPEC, index, 0, 0), attr(unix.IFLA_IFNAME, nl.ZeroTerminated(name))}
		return c.write(context.Background(), unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, append(parts, more...)...)
	}
	expect := func(want bool) error {
		return c.enter(func() error {
			if some, err := p.hasUpper(lower); err != nil || some != want {
				return errors.Join(err, fmt.Errorf("it says %v, not %v", some, want))
			}
			return nil
		})
	}
	if err := create(lower, kind+"-low", kindInfo("veth", nil)); err != nil {
		return err
	}
	if err := expect(false); err != nil {
		return err
	}
	info := passthruInfo()
	if kind == "vlan" {
		info = kindInfo(kind, func(data *nl.RtAttr) { data.AddRtAttr(nl.IFLA_VLAN_ID, nl.Uint16Attr(1)) })
	}
	if err := create(0, kind+"-up", info, attr(unix.IFLA_LINK, nl.Uint32Attr(uint32(lower)))); err != nil {
		return err
	}
	return expect(true)
}

// loadUpperProbe loads the program, with the offsets of the structures of this kernel.
func loadUpperProbe(types string) (*ebpf.Program, error) {
	spec, err := btf.LoadSpec(types)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's types: %w", err)
	}
	var cast *btf.Func
	var toContext btf.TypeID
	if err := spec.TypeByName("bpf_cast_to_kern_ctx", &cast); err != nil {
		return nil, err
	} else if toContext, err = spec.TypeID(cast); err != nil {
		return nil, err
	}
	device, err := memberOffset(spec, "sk_buff", "dev")
	uppers, err1 := memberOffset(spec, "net_device", "adj_list", "upper")
	next, err2 := memberOffset(spec, "list_head", "next")
	if err := errors.Join(err, err1, err2); err != nil {
		return nil, err
	}
	const some, end = "some", "end"
	program, err := ebpf.NewProgramWithOptions(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS,
		// The kernel shows its structures only to programs that may be used under the GPL.
		// These nine instructions may.
		License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall, Constant: int64(toContext)},
			asm.LoadMem(asm.R1, asm.R0, device, asm.DWord),
			asm.JEq.Imm(asm.R1, 0, some), // no device
			asm.LoadMem(asm.R2, asm.R1, uppers+next, asm.DWord),
			asm.Add.Imm(asm.R1, int32(uppers)),
			asm.Mov.Imm(asm.R0, upperNone),
			asm.JEq.Reg(asm.R1, asm.R2, end), // the list is empty
			asm.Mov.Imm(asm.R0, upperSome).WithSymbol(some),
			asm.Return().WithSymbol(end),
		},
	}, ebpf.ProgramOptions{LogDisabled: true})
	if err != nil {
		return nil, fmt.Errorf("load program: %w", err)
	}
	return program, nil
}

// memberOffset returns where in a structure a member of a member is, in bytes.
func memberOffset(spec *btf.Spec, structure string, path ...string) (int16, error) {
	var of *btf.Struct
	if err := spec.TypeByName(structure, &of); err != nil {
		return 0, err
	}
	var typ btf.Type = of
	var bits btf.Bits
	for _, name := range path {
		m, ok := memberOf(typ, name)
		if !ok || m.BitfieldSize != 0 {
			return 0, fmt.Errorf("%w: field %q of %q", btf.ErrNotFound, name, structure)
		}
		bits += m.Offset
		typ = m.Type
	}
	if bits%8 != 0 || bits.Bytes() > math.MaxInt16 {
		return 0, fmt.Errorf("%w: field %q of %q in the reach of a program", btf.ErrNotFound, path, structure)
	}
	return int16(bits.Bytes()), nil
}

// memberOf finds a member also in the members that have no name; its offset is that in
// the outer structure.
func memberOf(typ btf.Type, name string) (btf.Member, bool) {
	var members []btf.Member
	switch t := btf.UnderlyingType(typ).(type) {
	case *btf.Struct:
		members = t.Members
	case *btf.Union:
		members = t.Members
	}
	for _, m := range members {
		switch m.Name {
		case name:
			return m, true
		case "":
			if inner, ok := memberOf(m.Type, name); ok {
				inner.Offset += m.Offset
				return inner, true
			}
		}
	}
	return btf.Member{}, false
}

// hasUpper runs the program on a device of the namespace of the calling thread.
func (p upperProbe) hasUpper(index int) (bool, error) {
	context := make([]uint32, 11) // struct __sk_buff, up to ifindex
	context[10] = uint32(index)
	answer, err := p.program.Run(&ebpf.RunOptions{Data: make([]byte, 64), Context: context, Repeat: 1})
	if err != nil {
		return false, err
	}
	switch answer {
	case upperNone:
		return false, nil
	case upperSome:
		return true, nil
	}
	return false, fmt.Errorf("program answers %d", answer)
}
