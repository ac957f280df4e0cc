package kernel

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

var tcxPoints = map[string]ebpf.AttachType{"tcx.ingress": ebpf.AttachTCXIngress, "tcx.egress": ebpf.AttachTCXEgress}

// tcxPrograms lists what is attached to the link at a point, in the namespace of
// the calling thread. A kernel without tcx has nothing attached.
func tcxPrograms(index int, point ebpf.AttachType) ([]link.AttachedProgram, error) {
	found, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: point})
	switch {
	case isAny(err, unix.ENOENT, unix.EINVAL):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return found.Programs, nil
}

func detachTCX(index int, point ebpf.AttachType, a link.AttachedProgram) error {
	if id, linked := a.LinkID(); linked {
		l, err := link.NewFromID(id)
		if err != nil {
			return err
		}
		defer l.Close()
		return l.Detach()
	}
	program, err := ebpf.NewProgramFromID(a.ID)
	if err != nil {
		return err
	}
	defer program.Close()
	return link.RawDetachProgram(link.RawDetachProgramOptions{Target: index, Program: program, Attach: point})
}

// detachXDPLinks takes a program away from a device of that index, in any namespace, by the links that attach it: a
// program on two devices has two. A link itself exists while a process holds its descriptor, but attaches nothing.
func detachXDPLinks(index int, program ebpf.ProgramID) error {
	var errs []error
	var links link.Iterator
	defer links.Close()
	for links.Next() {
		info, err := links.Link.Info() // of a link of a kind that the package does not know, an error
		if err != nil || info.Program != program {
			continue
		}
		if at := info.XDP(); at != nil && at.Ifindex == uint32(index) {
			errs = append(errs, links.Link.Detach())
		}
	}
	return errors.Join(append(errs, links.Err())...)
}

func programList(of []link.AttachedProgram) string {
	var out []string
	for _, a := range of {
		out = append(out, fmt.Sprint(uint32(a.ID)))
	}
	return strings.Join(out, ",")
}
