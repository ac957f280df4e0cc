package journal

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
)

// holding is which devices a log mentions, whether they are being released, and the path of
// the namespace, and which state of the file that was read from.
type holding struct {
	inode     uint64
	size      int64
	mtime     unix.Timespec
	devices   []string
	netns     string
	releasing bool
}

// Holders returns the records whose history mentions one of the devices. It is called for
// every new sandbox. Afterwards OtherVersions returns what other versions hold.
func (j *Journal) Holders(devices []string) []reconcile.Record {
	return j.those("", func(h holding) bool {
		return slices.ContainsFunc(h.devices, func(d string) bool { return slices.Contains(devices, d) })
	})
}

// Beside returns the records of the other sandboxes of a path.
func (j *Journal) Beside(id reconcile.SandboxID, netns string) []reconcile.Record {
	own, err := fileName(id)
	if err != nil {
		return nil
	}
	return j.those(own, func(h holding) bool { return h.netns == netns })
}

// Releasing returns the records of sandboxes whose release has begun.
func (j *Journal) Releasing() []reconcile.Record {
	return j.those("", func(h holding) bool { return h.releasing })
}

// those returns some of the records. It checks every file, so that what another process
// has written counts, but reads only those that have changed since it read them last:
// there are hundreds. A file that cannot be read is skipped; List reports it. The sandbox
// whose file is named but, if any, is left out and not read.
func (j *Journal) those(but string, accept func(holding) bool) []reconcile.Record {
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
		if !isLog || j.knownOther(name) || unix.Lstat(j.path(name, logSuffix), &st) != nil {
			continue
		}
		h, ok := known[name]
		if name == but {
			if ok {
				now[name] = h
			}
			continue
		}
		if !ok || h.inode != st.Ino || h.size != st.Size || h.mtime != st.Mtim {
			s, err := j.load(name)
			if err != nil || !s.found {
				continue
			}
			h = holding{s.inode, int64(s.size), s.mtime, heldBy(s.record), strings.Clone(s.record.Sandbox.Netns), s.record.Phase == reconcile.Releasing}
		}
		now[name] = h
		if !accept(h) {
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
	out := r.Devices()
	for i := range out {
		out[i] = strings.Clone(out[i])
	}
	return out
}
