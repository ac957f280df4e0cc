package claims

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// changesMask are the events that may change a file of the directory, and those that
// end the watch.
const changesMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// changes reports which files of a directory have changed. The kernel queues a
// notification before the call that makes the change returns, in any process, so a
// query after a write includes it. No goroutine runs in between.
type changes struct {
	dir     string
	file    *os.File // an inotify instance; nil when none can be created
	conn    syscall.RawConn
	watched bool
	buf     [16 << 10]byte
}

func newChanges(dir string) *changes {
	c := &changes{dir: dir}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return c // a limit was reached: everything is read every time
	}
	c.file = os.NewFile(uintptr(fd), "changes")
	if c.conn, err = c.file.SyscallConn(); err != nil {
		c.file.Close()
		c.file = nil
	}
	return c
}

func (c *changes) close() error {
	if c.file == nil {
		return nil
	}
	return c.file.Close()
}

// since returns the names of the files that have changed since the last call; all if they
// are not known.
func (c *changes) since() (names []string, all bool) {
	if c.file == nil {
		return nil, true
	}
	if !c.watched {
		_ = c.conn.Control(func(fd uintptr) {
			_, err := unix.InotifyAddWatch(int(fd), c.dir, changesMask)
			c.watched = err == nil // otherwise the next call tries again and reads all
		})
		return nil, true
	}
	for {
		n, err := c.read()
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return names, all
		case err != nil || n <= 0:
			return nil, true
		}
		more, lost := c.parse(c.buf[:n])
		names, all = append(names, more...), all || lost
	}
}

// read reads once, without waiting.
func (c *changes) read() (n int, err error) {
	var failed error
	err = c.conn.Read(func(fd uintptr) bool {
		n, failed = unix.Read(int(fd), c.buf[:])
		return true // also after an error
	})
	return n, cmp.Or(failed, err)
}

// parse reads notifications; lost if some were lost, or the directory was replaced.
func (c *changes) parse(b []byte) (names []string, lost bool) {
	for len(b) >= unix.SizeofInotifyEvent {
		mask, length := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		name := b[unix.SizeofInotifyEvent:]
		if len(name) < length {
			return nil, true
		}
		name, b = name[:length], name[length:]
		if mask&(unix.IN_IGNORED|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT) != 0 {
			c.watched, lost = false, true
		}
		if mask&unix.IN_Q_OVERFLOW != 0 {
			lost = true
		}
		if length > 0 {
			names = append(names, string(bytes.TrimRight(name, "\x00")))
		}
	}
	return names, lost
}
