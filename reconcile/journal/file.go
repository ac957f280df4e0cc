package journal

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/recordfile"
	"github.com/plumbline/plumbline/topology/fault"
)

const (
	logSuffix  = ".journal"
	lockSuffix = ".lock"
	tempSuffix = ".new" // a log that does not have its name yet

	// maxName leaves room for the suffixes within the 255 bytes that file
	// systems allow.
	maxName = 200
)

// fileName turns an ID into the name of its files, without suffix. Letters,
// digits, '-', '_' and inner dots are kept, other bytes are written
// %XX; a name that grows too long ends in a hash of the ID instead.
func fileName(id reconcile.SandboxID) (string, error) {
	if id == "" {
		return "", fault.New(fault.Invalid, errors.New("sandbox without an ID"))
	}
	if !utf8.ValidString(string(id)) { // JSON would not give it back
		return "", fault.New(fault.Invalid, fmt.Errorf("sandbox ID %q is not UTF-8", id))
	}
	var b strings.Builder
	for i := range len(id) {
		c := id[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.' && i > 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	name := b.String()
	if len(name) > maxName {
		sum := sha256.Sum256([]byte(id))
		hash := "~" + hex.EncodeToString(sum[:16])
		name = name[:maxName-len(hash)] + hash
	}
	return name, nil
}

// idOf is the inverse of fileName; false when the name ends in a hash, or is none
// that fileName makes.
func idOf(name string) (reconcile.SandboxID, bool) {
	id, err := url.PathUnescape(name)
	if err != nil {
		return "", false
	}
	own, err := fileName(reconcile.SandboxID(id))
	return reconcile.SandboxID(id), err == nil && own == name
}

func (j *Journal) path(name, suffix string) string {
	return filepath.Join(j.dir, name+suffix)
}

// load reads the log at path and checks that it belongs to name. An absent
// file is an empty log. It fails with frame.Damage, or with frame.OtherVersion and
// the state of the file.
func load(path, name string) (state, error) {
	data, inode, mtime, err := read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return state{}, nil
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return state{}, err // of us, not of the file
	case err != nil:
		return state{}, &frame.Damage{Err: err}
	}
	s, err := replay(data)
	s.size, s.inode, s.mtime = len(data), inode, mtime
	if other := frame.AsOtherVersion(err); other != nil {
		other.Path = path
	}
	if err != nil || !s.found {
		return s, err
	}
	if own, err := fileName(s.record.Sandbox.ID); err != nil {
		return state{}, &frame.Damage{Err: err}
	} else if own != name {
		return state{}, &frame.Damage{Err: fmt.Errorf("holds a record of sandbox %q", s.record.Sandbox.ID)}
	}
	return s, nil
}

func read(path string) (data []byte, inode uint64, mtime unix.Timespec, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, mtime, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, 0, mtime, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, 0, mtime, errors.New("not a regular file")
	}
	if st.Size > int64(limitBytes) {
		return nil, 0, mtime, fmt.Errorf("larger than %d bytes", limitBytes)
	}
	data = make([]byte, st.Size) // what is appended meanwhile is for the next reader
	n, err := io.ReadFull(f, data)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, 0, mtime, err
	}
	return data[:n], st.Ino, st.Mtim, nil
}

// recent is a log that was read a moment ago.
type recent struct {
	name string
	state
}

// recentLogs is how many logs are remembered: those of the passes under way. A
// pass reads its record several times, and decoding it is most of the work.
const recentLogs = 8

// reload is load, but what was read a moment ago and is the same file still, as
// inode, size and time of change tell, is not read again. Logs only grow, or are
// other files.
func (j *Journal) reload(name string) (state, error) {
	path := j.path(name, logSuffix)
	var st unix.Stat_t
	found := unix.Lstat(path, &st) == nil
	j.mu.Lock()
	i := slices.IndexFunc(j.recent, func(r recent) bool { return r.name == name })
	if i >= 0 {
		r := j.recent[i]
		if found && r.inode == st.Ino && int64(r.size) == st.Size && r.mtime == st.Mtim {
			j.mu.Unlock()
			return r.state, nil
		}
		j.recent = slices.Delete(j.recent, i, i+1)
	}
	j.mu.Unlock()
	s, err := j.load(name)
	if err == nil && s.found {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.recent = slices.DeleteFunc(j.recent, func(r recent) bool { return r.name == name })
		j.recent = slices.Insert(j.recent, 0, recent{name, s})
		j.recent = slices.Delete(j.recent, min(len(j.recent), recentLogs), len(j.recent))
	}
	return s, err
}

// loadLocked is load for a writer, which can reuse what it has read or written before under
// the same lock: no other process has written since. The record is set only where the log
// had to be read.
func (j *Journal) loadLocked(name string, g *gate) (state, error) {
	if g.log != nil {
		var st unix.Stat_t
		err := unix.Lstat(j.path(name, logSuffix), &st)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !g.log.found && g.log.size == 0:
			return *g.log, nil
		case err == nil && st.Ino == g.log.inode && st.Size == int64(g.log.size):
			return *g.log, nil
		}
	}
	s, err := j.load(name)
	g.know(s, err)
	return s, err
}

// know remembers what a log amounts to; nothing when it could not be read or
// written.
func (g *gate) know(s state, err error) {
	s.record = reconcile.Record{}
	if g.log = &s; err != nil {
		g.log = nil
	}
}

// append adds a line behind the whole ones and cuts off what is torn. When it
// fails the log is as it was. It calls wrote as soon as readers find the line.
func (j *Journal) append(name string, g *gate, s state, line []byte, durable bool, wrote func()) error {
	err := j.appendTo(name, s, line, durable, wrote)
	s.good += len(line)
	s.size = s.good
	g.know(s, err)
	return err
}

func (j *Journal) appendTo(name string, s state, line []byte, durable bool, wrote func()) error {
	f, err := os.OpenFile(j.path(name, logSuffix), os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if s.size > s.good {
		if err := f.Truncate(int64(s.good)); err != nil {
			return err
		}
	}
	_, err = f.WriteAt(line, int64(s.good))
	if err == nil {
		wrote() // before the slow part, else readers would read the line meanwhile
	}
	if err == nil && durable {
		err = j.fsync(f)
	}
	if err == nil {
		return nil
	}
	// A complete line would be replayed although its changes were never made. If it
	// cannot be cut off either, a short write has left it without its end.
	if undo := f.Truncate(int64(s.good)); undo != nil {
		return errors.Join(err, fmt.Errorf("undo: %w", undo))
	}
	return err
}

// replace makes line the whole log, durably and at once, and calls wrote then.
func (j *Journal) replace(name string, g *gate, line []byte, wrote func()) error {
	inode, err := recordfile.Replace(j.path(name, logSuffix), line, recordfile.Options{Sync: j.fsync, Temp: j.path(name, tempSuffix)})
	g.know(state{found: true, good: len(line), size: len(line), inode: inode}, err)
	if err == nil {
		wrote()
	}
	return err
}

func (j *Journal) syncDir(dir string) error { return recordfile.SyncDir(dir, j.fsync) }

// makeDir makes a directory and its parents, durably.
func (j *Journal) makeDir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		if err := j.makeDir(filepath.Dir(dir)); err != nil {
			return err
		}
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	case err != nil:
		return err
	}
	return j.syncDir(filepath.Dir(dir))
}

// checkDir refuses a directory that another user can write to or has pointed
// elsewhere.
func checkDir(dir string) error {
	refuse := func(format string, args ...any) error {
		return fault.New(fault.Invalid, fmt.Errorf(format, args...))
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return err
	}
	trusted := func() bool { return st.Uid == 0 || int(st.Uid) == os.Geteuid() }
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		if !trusted() {
			return refuse("symbolic link of user %d", st.Uid)
		}
		if err := unix.Stat(dir, &st); err != nil {
			return err
		}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return refuse("not a directory")
	case !trusted():
		return refuse("belongs to user %d", st.Uid)
	case st.Mode&0o022 != 0:
		return refuse("mode %04o lets others write", st.Mode&0o7777)
	}
	return nil
}

// globEscape keeps a path's own characters from meaning anything to Glob.
func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
