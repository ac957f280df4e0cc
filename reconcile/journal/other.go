package journal

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile/frame"
)

// other is a log that another version has written, and the state of the file that
// tells so.
type other struct {
	inode uint64
	size  int64
	mtime unix.Timespec
	*frame.OtherVersion
}

// load is load, and remembers the logs of other versions.
func (j *Journal) load(name string) (state, error) {
	s, err := load(j.path(name, logSuffix), name)
	if o := frame.AsOtherVersion(err); o != nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.others[name] = other{s.inode, int64(s.size), s.mtime, o}
	}
	return s, err
}

// knownOther reports whether a log was found to be of another version, and has not
// changed since.
func (j *Journal) knownOther(name string) bool {
	j.mu.Lock()
	o, known := j.others[name]
	j.mu.Unlock()
	if !known {
		return false
	}
	var st unix.Stat_t
	if unix.Lstat(j.path(name, logSuffix), &st) == nil && o.inode == st.Ino && o.size == st.Size && o.mtime == st.Mtim {
		return true
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.others, name)
	return false
}

// OtherVersions returns the records of other versions among those that were met, in
// order of path. List meets all.
func (j *Journal) OtherVersions() []*frame.OtherVersion {
	j.mu.Lock()
	names := slices.Sorted(maps.Keys(j.others))
	j.mu.Unlock()
	var out []*frame.OtherVersion
	for _, name := range names {
		if !j.knownOther(name) {
			continue
		}
		j.mu.Lock()
		if o, ok := j.others[name]; ok {
			out = append(out, o.OtherVersion)
		}
		j.mu.Unlock()
	}
	return out
}
