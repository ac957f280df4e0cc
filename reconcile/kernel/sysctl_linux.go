package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// sysctlFile returns the file of a sysctl. /proc/sys/net shows the namespace of
// the thread that opens it, so it is opened on a thread that has entered one.
func (h *Host) sysctlFile(path string) (string, error) {
	if !fs.ValidPath(path) || !strings.HasPrefix(path, "net/") {
		return "", invalid("%q is not the path of a sysctl below net/", path)
	}
	return filepath.Join(h.proc, "sys", filepath.FromSlash(path)), nil
}

// querySysctls reads sysctls of the sandbox and of the host, entering each namespace
// once. One that cannot be read (it is write-only, or has no value yet) is recorded without
// a value.
func (o *observer) querySysctls(_ context.Context, queried []netstate.Sysctl) error {
	var inside, outside []netstate.Sysctl
	for _, a := range queried {
		if netstate.OnHost(a.Path) {
			outside = append(outside, a)
		} else {
			inside = append(inside, a)
		}
	}
	return errors.Join(o.sysctlsOf(o.inside, inside), o.sysctlsOf(o.outside, outside))
}

func (o *observer) sysctlsOf(c *conn, queried []netstate.Sysctl) error {
	if c == nil {
		for _, a := range queried {
			o.snap.PutAbsent(a.Key())
		}
	}
	if c == nil || len(queried) == 0 {
		return nil
	}
	return c.enter(func() error {
		for _, a := range queried {
			v, err := o.readSysctl(netstate.BaseName(a.Path))
			switch {
			case errors.Is(err, fs.ErrNotExist):
				o.snap.PutAbsent(a.Key())
			case fault.Of(err) == fault.Invalid:
				return reading(a, err)
			case err != nil:
				o.snap.Put(netstate.Sysctl{Path: a.Path})
			default:
				o.snap.Put(netstate.Sysctl{Path: a.Path, Value: &v})
			}
		}
		return nil
	})
}

// readSysctl reads a sysctl. The calling thread is in the right namespace.
func (s *Sandbox) readSysctl(path string) (string, error) {
	file, err := s.host.sysctlFile(path)
	if err != nil {
		return "", err
	}
	s.count.gets.Add(1)
	var b []byte
	err = s.count.send(false, func() (err error) { b, err = readFile(file); return err })
	return strings.Join(strings.Fields(string(b)), " "), err
}

// readFile is os.ReadFile without the handling of files that may block.
func readFile(path string) ([]byte, error) { return readFileAt(unix.AT_FDCWD, path) }

// readFileAt is readFile for a path below an open folder.
func readFileAt(folder int, path string) ([]byte, error) {
	fd, err := unix.Openat(folder, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var out []byte
	buffer := fileBuffers.Get().(*[fileBytes]byte)
	defer fileBuffers.Put(buffer)
	for {
		n := 0
		if err := again(func() (err error) { n, err = unix.Read(fd, buffer[:]); return err }); err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if out = append(out, buffer[:n]...); n < len(buffer)/2 {
			return out, nil // a sysctl is read in one piece
		}
	}
}

// fileBytes is the size of a read from procfs and sysfs.
const fileBytes = 4 << 10

var fileBuffers = sync.Pool{New: func() any { return new([fileBytes]byte) }}

// writeFile is os.WriteFile without the handling of files that may block, for a file that exists.
func writeFile(path, value string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	err = again(func() error { _, err := unix.Write(fd, []byte(value)); return err })
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

func (s *Sandbox) applySysctl(ctx context.Context, c netstate.Change) error {
	_, after := typed[netstate.Sysctl](c)
	if c.After == nil || after.Value == nil {
		return nil // a sysctl is not created or deleted: it exists with its link
	}
	if s.inside == nil {
		return errGone
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.writeSysctl(s.inside, after)
}

// writeSysctl gives a sysctl of a namespace its value.
func (s *Sandbox) writeSysctl(of *conn, o netstate.Sysctl) error {
	file, err := s.host.sysctlFile(netstate.BaseName(o.Path))
	if err != nil {
		return err
	}
	s.count.writes.Add(1)
	err = s.count.send(true, func() error {
		return of.enter(func() error {
			return writeFile(file, *o.Value)
		})
	})
	return explainSysctl(o, err)
}

// detectDuplicates enables duplicate address detection on a device of the host again. A
// device that arrives without ARP, which a pod can turn off, loses it permanently
// (net/ipv6/addrconf.c, ipv6_add_dev: accept_dad is -1); any other has the default.
func (s *Sandbox) detectDuplicates(ctx context.Context, w ifLink) error {
	if err := ctx.Err(); err != nil || len(w.raw) < unix.SizeofIfInfomsg || u32(w.raw[8:])&(unix.IFF_NOARP|unix.IFF_LOOPBACK) != 0 {
		return err
	}
	own, err := s.host.sysctlFile("net/ipv6/conf/" + w.link.Name + "/accept_dad")
	if err != nil {
		return err
	}
	s.count.gets.Add(1)
	return s.count.send(false, func() error {
		return s.outside.enter(func() error {
			now, err := readFile(own)
			if err != nil || strings.TrimSpace(string(now)) != "-1" {
				return nil // without IPv6 there is none
			}
			usual, err := readFile(strings.Replace(own, "/"+w.link.Name+"/accept_dad", "/default/accept_dad", 1))
			if err != nil {
				return err
			}
			s.count.writes.Add(1)
			return writeFile(own, string(usual))
		})
	})
}

// refuseAdvertisements has the host accept no router advertisement from pods, on a new link: the host's end
// of a pair, which is still down, or a bridge, which has no port yet. The kernel accepts them by default
// where it does not forward IPv6, and a pod would be the host's router (CVE-2020-10749).
func (s *Sandbox) refuseAdvertisements(ctx context.Context, created netstate.Link) error {
	var links []string
	if netstate.OnHost(created.Name) && created.LinkKind == "bridge" {
		links = append(links, created.Name)
	}
	if created.Veth != nil && created.Veth.Peer != nil && netstate.OnHost(*created.Veth.Peer) {
		links = append(links, *created.Veth.Peer)
	}
	for _, link := range links {
		if err := ctx.Err(); err != nil {
			return err
		}
		o := netstate.Sysctl{Path: netstate.HostName("net/ipv6/conf/" + netstate.BaseName(link) + "/accept_ra"), Value: new("0")}
		if err := s.writeSysctl(s.outside, o); err != nil && !errors.Is(err, fs.ErrNotExist) { // without IPv6 there is none
			return fmt.Errorf("%s: %w", o.Key(), err)
		}
	}
	return nil
}

func explainSysctl(o netstate.Sysctl, err error) error {
	// The path of the file adds nothing to the name of the object.
	algorithm := false
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		algorithm = path.Op == "write" && netstate.BaseName(o.Path) == "net/ipv4/tcp_congestion_control"
		err = path.Err
	}
	switch {
	case algorithm && errors.Is(err, unix.ENOENT): // tcp_set_default_congestion_control in net/ipv4/tcp_cong.c
		return because(fault.Unsupported, err, "the kernel does not know %q: load its module on the node, or write another value", *o.Value)
	case algorithm && errors.Is(err, unix.EPERM):
		return because(fault.Unsupported, err,
			"a pod may not have %q: permit it on the node in net.ipv4.tcp_allowed_congestion_control, or write another value", *o.Value)
	case errors.Is(err, unix.ENOENT) && o.Link() != "":
		return because(fault.NotReady, err,
			"link %q has no such sysctl (is it there, and for net/ipv6 with an MTU of 1280 or more?)", o.Link())
	case errors.Is(err, unix.ENOENT):
		return because(fault.Unsupported, err, "this network namespace has no such sysctl")
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
		return because(fault.Invalid, err, "value %q is refused", *o.Value)
	case errors.Is(err, unix.EACCES) && !netstate.OnHost(o.Path):
		return because(fault.Unsupported, err, "the host alone can change it: set it on the node")
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		return because(fault.Unsupported, err, "it cannot be written")
	case err != nil:
		return fmt.Errorf("write %q: %w", *o.Value, err)
	}
	return nil
}
