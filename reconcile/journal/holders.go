package journal

import (
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// holding is which devices a log mentions, whether they are being released, and the path and the ID of
// the namespace, and which state of the file that was read from.
type holding struct {
	inode     uint64
	size      int64
	mtime     unix.Timespec
	devices   []string
	netns     string
	opened    reconcile.NetnsID
	releasing bool
}

// Holders returns the records whose history mentions one of the devices. It is called for
// every new sandbox. Afterwards OtherVersions returns what other versions hold.
func (j *Journal) Holders(devices []string) []reconcile.Record {
	return j.those("", func(h holding) bool {
		return slices.ContainsFunc(h.devices, func(d string) bool { return slices.Contains(devices, d) })
	})
}

// Beside returns the records of the other sandboxes of a namespace: of its path, or of its ID.
func (j *Journal) Beside(id reconcile.SandboxID, netns string, open reconcile.NetnsID) []reconcile.Record {
	own, err := fileName(id)
	if err != nil {
		return nil
	}
	return j.those(own, func(h holding) bool { return h.netns == netns || open.Is(h.opened) })
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
	present := make(map[string]bool, len(entries))
	var out []reconcile.Record
	for _, e := range entries {
		name, isLog := strings.CutSuffix(e.Name(), logSuffix)
		var st unix.Stat_t
		if !isLog || j.knownOther(name) || unix.Lstat(j.path(name, logSuffix), &st) != nil {
			continue
		}
		present[name] = true
		if name == but {
			continue
		}
		j.mu.Lock()
		h, ok := j.holdings[name]
		j.mu.Unlock()
		if !ok || h.inode != st.Ino || h.size != st.Size || h.mtime != st.Mtim {
			s, err := j.load(name)
			if err != nil || !s.found {
				continue
			}
			h = holdingOf(s.record)
			h.inode, h.size, h.mtime = s.inode, int64(s.size), s.mtime
			j.mu.Lock()
			j.holdings[name] = h
			j.mu.Unlock()
		}
		if !accept(h) {
			continue
		}
		if s, err := j.reload(name); err == nil && s.found {
			out = append(out, s.record)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	maps.DeleteFunc(j.holdings, func(name string, _ holding) bool { return !present[name] })
	return out
}

// wroteChanges does the same as keep after changes were added to a log of state s.
func (j *Journal) wroteChanges(name string, s state, changes []netstate.Change) {
	j.mu.Lock()
	h, ok := j.holdings[name]
	j.mu.Unlock()
	if !ok || h.inode != s.inode || h.size != int64(s.size) {
		return // another process has written since: it is read when it is needed
	}
	h.devices = slices.Clone(h.devices)
	for _, device := range heldBy(reconcile.Record{History: changes}) {
		if !slices.Contains(h.devices, device) {
			h.devices = append(h.devices, device)
		}
	}
	j.keep(name, h)
}

// keep keeps what a log holds that its only writer, under its lock, has just written, so that it is
// not read for that: of many sandboxes that change at once, each would otherwise read the logs of all
// others after each change.
func (j *Journal) keep(name string, h holding) {
	var st unix.Stat_t
	if unix.Lstat(j.path(name, logSuffix), &st) != nil {
		return // as above
	}
	h.inode, h.size, h.mtime = st.Ino, st.Size, st.Mtim
	j.mu.Lock()
	defer j.mu.Unlock()
	j.holdings[name] = h
}

func holdingOf(r reconcile.Record) holding {
	return holding{devices: heldBy(r), netns: strings.Clone(r.Sandbox.Netns), opened: r.NetnsID, releasing: r.Phase == reconcile.Releasing}
}

func heldBy(r reconcile.Record) []string {
	out := r.Devices()
	for i := range out {
		out[i] = strings.Clone(out[i])
	}
	return out
}
