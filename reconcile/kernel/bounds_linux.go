package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// Bounds limit how many objects of a kind are read from a sandbox. The owner of a
// sandbox decides what is in it, and we decide how much of that a pass reads: a route
// takes ten times as much memory here as in the kernel. A sandbox that exceeds a bound
// is not read in full, which is an error of that sandbox only.
type Bounds struct {
	Links     int // default 16384
	Addresses int // default 32768
	Routes    int // of IPv4, and of IPv6; default 16384
	VLANs     int // of bridges and their ports; default 65536
}

func (b Bounds) withDefaults() Bounds {
	return Bounds{
		Links:     cmp.Or(b.Links, 16<<10),
		Addresses: cmp.Or(b.Addresses, 32<<10),
		Routes:    cmp.Or(b.Routes, 16<<10),
		VLANs:     cmp.Or(b.VLANs, 64<<10),
	}
}

// maxDumpBytes bounds the messages of one dump: those of links are of any size up
// to datagramBytes.
const maxDumpBytes = 32 << 20

// dumpAttempts bounds how often an interrupted dump is repeated. What changes that
// often is better read later.
const dumpAttempts = 16

// query is a dump.
type query struct {
	typ   int
	reply uint16
	parts []nl.NetlinkRequestData
	what  string
	// most bounds the objects that are kept, read the messages; 0 is no bound, for a
	// dump of which little is kept. The host is read without bounds.
	most, read int
}

// dump requests all objects of a kind. Each answer goes to decode, which passes what is
// wanted to keep. The kernel marks a dump during which something changed
// (NLM_F_DUMP_INTR), and it is repeated. The kept messages are returned also with an error
// that wraps reconcile.ErrPartial.
func dump[T any](ctx context.Context, c *conn, q query, decode func(b []byte, keep func(T)) error) ([]T, error) {
	attempts := dumpAttempts
	if q.read == 0 {
		attempts = 2 // each may take long
	}
	var out []T
	keep := func(v T) { out = append(out, v) }
	for range attempts {
		t := tally{query: q, conn: c}
		clear(out)
		out = out[:0]
		c.count.dumps.Add(1)
		err := c.send(ctx, q.typ, unix.NLM_F_DUMP, q.parts, q.reply, func(b []byte) error {
			if err := decode(b, keep); err != nil {
				return err
			}
			return t.add(len(b), len(out))
		})
		if !errors.Is(err, errInterrupted) {
			return out, err
		}
	}
	return out, fault.New(fault.NotReady, fmt.Errorf("%w: its %s keep changing while they are read", partial(c), q.what))
}

// tally counts the results of a dump.
type tally struct {
	query
	*conn
	messages, bytes int
}

func (t *tally) add(size, kept int) error {
	t.messages++
	t.bytes += size
	switch {
	case t.host:
		return nil
	case kept > t.most, t.read != 0 && t.messages > t.read:
		return fault.New(fault.Conflict,
			fmt.Errorf("%w: more than %d %s, the most that are read of one: delete some", partial(t.conn), t.most, t.what))
	case t.read == 0:
		return nil
	case t.bytes > maxDumpBytes:
		return fault.New(fault.Conflict,
			fmt.Errorf("%w: its %s take more than %d MiB, the most that is read: delete some, or some of their alternative names",
				partial(t.conn), t.what, maxDumpBytes>>20))
	}
	return nil
}

func partial(c *conn) error {
	return fmt.Errorf("network namespace %q %w", c.ns.Name(), reconcile.ErrPartial)
}
