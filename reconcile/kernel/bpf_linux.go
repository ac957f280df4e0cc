package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const maxPrograms = 64 // BPF_MPROG_MAX

var tcxPoints = map[string]uint32{"tcx.ingress": unix.BPF_TCX_INGRESS, "tcx.egress": unix.BPF_TCX_EGRESS}

// bpf calls bpf(2) with an attribute of 32-bit words.
func bpf(command uintptr, attr []uint32) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(&attr[0])), uintptr(4*len(attr)))
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// address writes the address of a buffer into two words of an attribute.
func address[T any](pin *runtime.Pinner, attr []uint32, buffer []T) {
	pin.Pin(&buffer[0])
	b := binary.NativeEndian.AppendUint64(nil, uint64(uintptr(unsafe.Pointer(&buffer[0]))))
	attr[0], attr[1] = binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint32(b[4:])
}

// attachment is a program at one point of a device; link is 0 where it was
// attached without one.
type attachment struct{ program, link uint32 }

// tcxPrograms lists what is attached to the link at a point, in the namespace of
// the calling thread. A kernel without tcx has nothing attached.
func tcxPrograms(index int, point uint32) ([]attachment, error) {
	programs, links := make([]uint32, maxPrograms), make([]uint32, maxPrograms)
	var pin runtime.Pinner
	defer pin.Unpin()
	attr := make([]uint32, 16) // union bpf_attr, query
	attr[0], attr[1] = uint32(index), point
	address(&pin, attr[4:], programs)
	attr[6] = maxPrograms
	address(&pin, attr[10:], links)
	_, err := bpf(unix.BPF_PROG_QUERY, attr)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
		return nil, nil
	case err != nil:
		return nil, err
	}
	var out []attachment
	for i := range min(attr[6], maxPrograms) {
		out = append(out, attachment{programs[i], links[i]})
	}
	return out, nil
}

func detachTCX(index int, point uint32, a attachment) error {
	if a.link != 0 {
		return detachLink(a.link)
	}
	fd, err := bpf(unix.BPF_PROG_GET_FD_BY_ID, []uint32{a.program, 0, 0})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = bpf(unix.BPF_PROG_DETACH, []uint32{uint32(index), uint32(fd), point, 0, 0, 0, 0, 0})
	return err
}

// detachLink takes a program away from what its link attaches it to. The link
// itself exists while a process holds its descriptor, but attaches nothing.
func detachLink(id uint32) error {
	fd, err := bpf(unix.BPF_LINK_GET_FD_BY_ID, []uint32{id, 0, 0})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = bpf(unix.BPF_LINK_DETACH, []uint32{uint32(fd)})
	return err
}

// xdpLinks lists the links that attach the program to a device of that index, in
// any namespace: both links of a program on two devices are listed.
func xdpLinks(index int, program uint32) ([]uint32, error) {
	var out []uint32
	for id := uint32(0); ; {
		attr := []uint32{id, 0, 0}
		if _, err := bpf(unix.BPF_LINK_GET_NEXT_ID, attr); errors.Is(err, unix.ENOENT) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		id = attr[1]
		info, err := bpfLinkInfo(id)
		if errors.Is(err, unix.ENOENT) {
			continue // gone meanwhile
		}
		if err != nil {
			return nil, err
		}
		if info[0] == unix.BPF_LINK_TYPE_XDP && info[2] == program && info[4] == uint32(index) {
			out = append(out, id)
		}
	}
}

// bpfLinkInfo reads the beginning of struct bpf_link_info: type, id, program, and
// from the fifth word on what depends on the type.
func bpfLinkInfo(id uint32) ([]uint32, error) {
	fd, err := bpf(unix.BPF_LINK_GET_FD_BY_ID, []uint32{id, 0, 0})
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var pin runtime.Pinner
	defer pin.Unpin()
	info := make([]uint32, 16)
	attr := make([]uint32, 4)
	attr[0], attr[1] = uint32(fd), uint32(4*len(info))
	address(&pin, attr[2:], info)
	_, err = bpf(unix.BPF_OBJ_GET_INFO_BY_FD, attr)
	return info, err
}

func programList(of []attachment) string {
	var out []string
	for _, a := range of {
		out = append(out, fmt.Sprint(a.program))
	}
	return strings.Join(out, ",")
}
