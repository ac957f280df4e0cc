package kernel

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// kinds of the kernel's errors. An error that is not here is Internal: one that was not
// expected.
var errnoKind = map[unix.Errno]fault.Kind{
	unix.EEXIST:          fault.Conflict,
	unix.EADDRINUSE:      fault.Conflict,
	unix.ENODEV:          fault.NotReady,
	unix.ENXIO:           fault.NotReady,
	unix.ENETDOWN:        fault.NotReady,
	unix.ENETUNREACH:     fault.NotReady,
	unix.EHOSTUNREACH:    fault.NotReady,
	unix.EBUSY:           fault.NotReady,
	unix.EAGAIN:          fault.NotReady,
	unix.EINTR:           fault.NotReady,
	unix.EADDRNOTAVAIL:   fault.NotReady,
	unix.EOPNOTSUPP:      fault.Unsupported,
	unix.EPROTONOSUPPORT: fault.Unsupported,
	unix.EAFNOSUPPORT:    fault.Unsupported,
	unix.EROFS:           fault.Unsupported,
	unix.ERANGE:          fault.Invalid,
}

// kindOf returns the kind of err: the one attached to it, else that of the
// kernel's number in it.
func kindOf(err error) fault.Kind {
	if k := fault.Of(err); k != fault.Internal {
		return k
	}
	var errno unix.Errno
	switch {
	case errors.Is(err, errUnanswered): // whatever the cause
		return fault.Internal
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return fault.NotReady
	case errors.As(err, &errno):
		if k, ok := errnoKind[errno]; ok {
			return k
		}
	}
	return fault.Internal
}

// failed names the change that failed and gives the error its kind.
func failed(c netstate.Change, err error) error {
	if err == nil {
		return nil
	}
	k := c.Key()
	return fault.New(kindOf(err), fmt.Errorf("%s %s %q: %w", c.Action(), k.Kind, k.ID, err))
}

// because explains an error of the kernel: the reason first, the kernel's message last.
func because(kind fault.Kind, err error, format string, args ...any) error {
	return fault.New(kind, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err))
}

// withUndoError joins the error of a change with that of its undo.
func withUndoError(err, undo error) error {
	if undo == nil {
		return err
	}
	return fault.New(kindOf(err), errors.Join(err, fmt.Errorf("and it could not be restored: %w", undo)))
}

// where describes where a link is.
func where(name string) string {
	if netstate.OnHost(name) {
		return fmt.Sprintf("%q on the host", netstate.BaseName(name))
	}
	return fmt.Sprintf("%q in the sandbox", name)
}

func noLink(name string) error {
	return fault.New(fault.NotReady, fmt.Errorf("no link %s: %w", where(name), unix.ENODEV))
}

func invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, fmt.Errorf(format, args...))
}

// oneOf is the error for an unknown word.
func oneOf(field, got string, w words) error {
	var all []string
	for n := uint32(0); len(all) < len(w); n++ {
		if s, ok := w[n]; ok {
			all = append(all, s)
		}
	}
	return invalid("%s: %q is not one of %s", field, got, strings.Join(all, ", "))
}

// reading is the error of an object that could not be read.
func reading(o netstate.Object, err error) error {
	k := o.Key()
	return fault.New(kindOf(err), fmt.Errorf("read %s %q: %w", k.Kind, k.ID, err))
}
