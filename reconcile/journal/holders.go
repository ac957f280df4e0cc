package journal

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// holding is which devices a log speaks of, and which state of the file it was
// read from.
type holding struct {
	inode   uint64
	size    int64
	mtime   unix.Timespec
	devices []string
}

// Holders returns the records whose history speaks of one of the devices. It
// looks at every file, so that what another process has written counts, but
// reads only those that are not as they were when it read them last: every new
// sandbox asks, and there are hundreds. A file that cannot be read is passed
// over; List reports it.
func (j *Journal) Holders(devices []string) []reconcile.Record {
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return nil
	}
	j.mu.Lock()
	known := j.holdings
	j.mu.Unlock()
	now := make(map[string]holding, len(entries))
	var out []reconcile.Record
	for _, e := range entries {
		name, isLog := strings.CutSuffix(e.Name(), logSuffix)
		var st unix.Stat_t
		if !isLog || unix.Lstat(j.path(name, logSuffix), &st) != nil {
			continue
		}
		h, ok := known[name]
		if !ok || h.inode != st.Ino || h.size != st.Size || h.mtime != st.Mtim {
			s, err := load(j.path(name, logSuffix), name)
			if err != nil || !s.found {
				continue
			}
			h = holding{s.inode, int64(s.size), s.mtime, heldBy(s.record)}
		}
		now[name] = h
		if !slices.ContainsFunc(h.devices, func(d string) bool { return slices.Contains(devices, d) }) {
			continue
		}
		if s, err := j.reload(name); err == nil && s.found {
			out = append(out, s.record)
		}
	}
	j.mu.Lock()
	j.holdings = now
	j.mu.Unlock()
	return out
}

func heldBy(r reconcile.Record) []string {
	var out []string
	for _, c := range r.History {
		if d, ok := c.Object().(netstate.Device); ok {
			out = append(out, strings.Clone(d.ID))
		}
	}
	return out
}
