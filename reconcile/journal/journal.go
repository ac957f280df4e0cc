package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/recordfile"
	"github.com/plumbline/plumbline/topology/fault"
)

// compactBytes is the size from which a log is rewritten as its record
// alone. Reading a log of this size takes about a millisecond.
const compactBytes = 64 << 10

// limitBytes is the size above which a file is not read: no log gets there. Tests have
// a smaller one.
var limitBytes = 64 << 20

// Journal keeps the records of one directory. Its methods may be called from
// several goroutines, and several processes may use one directory at a time.
//
// The writing methods expect the caller to hold the sandbox's lock. Where it
// does not, they take the lock themselves and fail with fault.NotReady when
// another process keeps it for long.
type Journal struct {
	dir   string
	fsync func(*os.File) error // (*os.File).Sync; tests count and fail it

	mu       sync.Mutex
	gates    map[string]*gate // by file name
	recent   []recent         // read last, the latest first
	holdings map[string]holding
	others   map[string]other               // by file name: logs of other versions that were met
	long     map[string]reconcile.SandboxID // by file name, if the ID cannot be derived from it
	reported []error                        // damage found outside List, reported by the next List
}

var _ reconcile.Store = (*Journal)(nil)

// Open opens the journal in dir, which is made, private to the caller, when it
// does not exist. It fails with fault.Invalid when others could plant files in
// dir: the reader acts on a log with its own privileges.
func Open(dir string) (*Journal, error) {
	j := &Journal{dir: dir, fsync: (*os.File).Sync, gates: map[string]*gate{}, holdings: map[string]holding{}, others: map[string]other{}}
	if err := j.makeDir(dir); err != nil {
		return nil, fmt.Errorf("journal %q: %w", dir, err)
	}
	if err := checkDir(dir); err != nil {
		return nil, fmt.Errorf("journal %q: %w", dir, err)
	}
	return j, nil
}

// List returns all records in order of ID. A file that is damaged is set aside
// and reported once; see Damaged. One that another
// version has written is left where it is, and is an error each time
// (frame.OtherVersion).
func (j *Journal) List() ([]reconcile.Record, []error) {
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return nil, []error{fmt.Errorf("journal %q: %w", j.dir, err)}
	}
	var records []reconcile.Record
	var errs []error
	for _, e := range entries {
		name, isLog := strings.CutSuffix(e.Name(), logSuffix)
		if !isLog {
			continue
		}
		s, err := j.load(name)
		if frame.IsDamage(err) {
			s, err = j.examine(name, err)
		}
		switch {
		case err != nil && !frame.IsDamage(err):
			errs = append(errs, j.wrap(name, err))
		case s.found:
			records = append(records, s.record)
		}
	}
	slices.SortFunc(records, func(a, b reconcile.Record) int { return cmp.Compare(a.Sandbox.ID, b.Sandbox.ID) })
	return records, append(errs, j.unreported()...)
}

// unreported returns the damage that was found and not reported yet.
func (j *Journal) unreported() []error {
	j.mu.Lock()
	defer j.mu.Unlock()
	errs := j.reported
	j.reported = nil
	return errs
}

// IDs returns the IDs of all logs, in order, from the names of the files: some may turn
// out to have no record. Damage that was found since is reported like by List. A log
// that is known to be of another version is left out.
func (j *Journal) IDs() ([]reconcile.SandboxID, []error) {
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return nil, []error{fmt.Errorf("journal %q: %w", j.dir, err)}
	}
	var ids []reconcile.SandboxID
	var errs []error
	long := map[string]reconcile.SandboxID{}
	for _, e := range entries {
		name, isLog := strings.CutSuffix(e.Name(), logSuffix)
		if !isLog || j.knownOther(name) {
			continue
		}
		id, ok := idOf(name)
		if !ok {
			if id, err = j.ofLong(name); err != nil {
				errs = append(errs, j.wrap(name, err))
			}
			if long[name] = id; id == "" {
				delete(long, name)
			}
		}
		if id != "" {
			ids = append(ids, id)
		}
	}
	j.mu.Lock()
	j.long = long
	j.mu.Unlock()
	slices.Sort(ids)
	return ids, append(errs, j.unreported()...)
}

// ofLong returns the ID of the log of a name that ends in a hash; "" when it
// holds no record.
func (j *Journal) ofLong(name string) (reconcile.SandboxID, error) {
	j.mu.Lock()
	id := j.long[name]
	j.mu.Unlock()
	if id != "" {
		return id, nil // one name is of one ID
	}
	s, err := j.load(name)
	if frame.IsDamage(err) {
		if s, err = j.examine(name, err); frame.IsDamage(err) {
			return "", nil // reported with the rest
		}
	}
	if frame.AsOtherVersion(err) != nil {
		return "", nil // see OtherVersions
	}
	return s.record.Sandbox.ID, err
}

// Damaged returns the paths of the files that were set aside and still lie in
// the directory, in order of name.
func (j *Journal) Damaged() ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(globEscape(j.dir), "*"+recordfile.DamagedInfix+"*"))
	if err != nil {
		return nil, fmt.Errorf("journal %q: %w", j.dir, err)
	}
	slices.Sort(paths)
	return paths, nil
}

// Get returns one record; false when there is none. A damaged file is set
// aside and is an error once: from then on there is no record. A file of another
// version stays an error (frame.OtherVersion, of kind fault.Conflict). What the record
// points to may be shared with other callers, and is not to be changed.
func (j *Journal) Get(id reconcile.SandboxID) (reconcile.Record, bool, error) {
	name, err := fileName(id)
	if err != nil {
		return reconcile.Record{}, false, fmt.Errorf("get record: %w", err)
	}
	var s state
	locked := j.underLock(name, func(g *gate) {
		s, err = j.reload(name)
		g.know(s, err)
	})
	if !locked {
		s, err = j.reload(name)
	}
	if frame.IsDamage(err) {
		s, err = j.examine(name, err)
	}
	if err != nil {
		return reconcile.Record{}, false, fmt.Errorf("get record of sandbox %q: %w", id, err)
	}
	return s.record, s.found, nil
}

// Put writes the whole record, durably. A damaged file is set aside first. A
// record of another version is not written over: like Settle, Intend and Remove it
// fails with frame.OtherVersion then.
func (j *Journal) Put(r reconcile.Record) error {
	return j.add("put", r, true, 0)
}

// Settle writes the whole record. It is there for the next reader at once, but
// after a crash of the machine the previous one may be found.
func (j *Journal) Settle(r reconcile.Record) error {
	return j.add("settle", r, false, 4) // a record that is itself large must not be rewritten every time
}

// add appends the whole record, or replaces a log that would become longer than compactBytes and than that many records.
func (j *Journal) add(what string, r reconcile.Record, sync bool, records int) error {
	err := j.write(r.Sandbox.ID, func(name string, g *gate) error {
		line, s, err := j.prepare(name, g, r)
		if err != nil {
			return err
		}
		wrote := func() { j.keep(name, holdingOf(r)) }
		if !s.found || s.good+len(line) > max(compactBytes, records*len(line)) {
			return j.replace(name, g, line, wrote)
		}
		return j.append(name, g, s, line, sync, wrote)
	})
	if err != nil {
		return fmt.Errorf("%s record of sandbox %q: %w", what, r.Sandbox.ID, err)
	}
	return nil
}

// Intend adds changes that are about to be made to the record's history, with
// one append and one fsync. When it fails nothing was added. Without changes it
// does nothing.
func (j *Journal) Intend(id reconcile.SandboxID, changes []netstate.Change) error {
	if len(changes) == 0 {
		return nil
	}
	err := j.write(id, func(name string, g *gate) error {
		s, err := j.loadLocked(name, g)
		if frame.IsDamage(err) {
			return j.setAside(name, err)
		}
		if err != nil {
			return err
		}
		if !s.found {
			return errors.New("no record")
		}
		line, err := entry{Intend: changes}.encode()
		if err != nil {
			return err
		}
		if s.good+len(line) > limitBytes/2 { // a loop of crashes: no pass ever settled
			if s, err = load(j.path(name, logSuffix), name); err != nil { // for its record
				return err
			}
			if line, err = encodeRecord(intended(s.record, changes)); err != nil {
				return err
			}
			return j.replace(name, g, line, func() {})
		}
		return j.append(name, g, s, line, true, func() { j.wroteChanges(name, s, changes) })
	})
	if err != nil {
		return fmt.Errorf("record %d intended changes of sandbox %q: %w", len(changes), id, err)
	}
	return nil
}

// Remove forgets a record, durably; an absent one is no error.
func (j *Journal) Remove(id reconcile.SandboxID) error {
	err := j.write(id, func(name string, g *gate) error {
		if _, err := j.loadLocked(name, g); frame.AsOtherVersion(err) != nil {
			return err
		}
		g.log = nil
		if err := os.Remove(j.path(name, tempSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Remove(j.path(name, logSuffix)); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		return j.syncDir(j.dir)
	})
	if err != nil {
		return fmt.Errorf("remove record of sandbox %q: %w", id, err)
	}
	return nil
}

// write runs fn as the only writer of a sandbox's files.
func (j *Journal) write(id reconcile.SandboxID, fn func(name string, g *gate) error) error {
	name, err := fileName(id)
	if err != nil {
		return err
	}
	g, release, err := j.exclusive(name)
	if err != nil {
		return err
	}
	defer release()
	return fn(name, g)
}

// encodeRecord writes a record as one line, unless it is so large that a log with it
// could not be read.
func encodeRecord(r reconcile.Record) ([]byte, error) {
	line, err := entry{Record: &r}.encode()
	if err == nil && len(line) > limitBytes/4 {
		err = fault.New(fault.Invalid, fmt.Errorf("record of %d bytes is too large", len(line)))
	}
	return line, err
}

// prepare encodes a record and reads the log it goes to. A damaged log is set
// aside, and then counts as absent.
func (j *Journal) prepare(name string, g *gate, r reconcile.Record) ([]byte, state, error) {
	line, err := encodeRecord(r)
	if err != nil {
		return nil, state{}, err
	}
	s, err := j.loadLocked(name, g)
	if frame.IsDamage(err) {
		if err := j.setAside(name, err); !frame.IsDamage(err) {
			return nil, state{}, err
		}
		return line, state{}, nil
	}
	return line, s, err
}

// examine reads a log that looked damaged again, as its only user, since a
// reader that raced with a writer may have seen a mixture. A log that is
// still damaged is set aside.
func (j *Journal) examine(name string, damage error) (state, error) {
	_, release, err := j.exclusive(name)
	if err != nil {
		return state{}, fmt.Errorf("%s; not set aside: %w", damage.Error(), err)
	}
	defer release()
	s, err := load(j.path(name, logSuffix), name)
	if frame.IsDamage(err) {
		return state{}, j.setAside(name, err)
	}
	return s, err
}

// setAside renames a damaged log, keeps the damage for the next List, and
// returns it with the new name.
func (j *Journal) setAside(name string, damage error) error {
	// No other process searches for a free name meanwhile: we hold the lock.
	aside, err := recordfile.SetAside(j.path(name, logSuffix))
	if err != nil {
		return fmt.Errorf("%s; not set aside: %w", damage.Error(), err)
	}
	if err := j.syncDir(j.dir); err != nil {
		return err
	}
	damage = fmt.Errorf("%w; kept as %q", damage, aside)
	j.mu.Lock()
	j.reported = append(j.reported, j.wrap(name, damage))
	j.mu.Unlock()
	return damage
}

func (j *Journal) wrap(name string, err error) error {
	return fmt.Errorf("journal %q: file %q: %w", j.dir, name+logSuffix, err)
}
