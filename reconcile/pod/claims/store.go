package claims

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/defaults"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/recordfile"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology/fault"
)

const (
	claimSuffix     = ".claim"
	sandboxesSuffix = ".sandboxes"
	// limitBytes is the size above which a file is neither written nor read.
	limitBytes = 8 << 20
)

// Locker locks names against other goroutines and processes; the journal is one.
type Locker interface {
	Lock(ctx context.Context, name reconcile.SandboxID) (unlock func(), err error)
}

// Options are the settings of a Store.
type Options struct {
	Dir    string
	Locker Locker
	BootID string
	// Replace writes a file; default recordfile.Replace. A test fails in it.
	Replace func(path string, data []byte, o recordfile.Options) (inode uint64, err error)
}

// Store keeps the records of one directory. It is safe for concurrent use; a caller
// that reads in order to write holds the claim's lock meanwhile.
//
// Hooks use it while pods wait, and there are hundreds of claims on a node: what was
// read is cached until the kernel reports that the file has changed, in any process.
type Store struct {
	Options
	// Records changes when this process has added or removed a record, and Sandboxes when it has
	// recorded the sandboxes of a claim.
	Records, Sandboxes table.Changes

	mu       sync.Mutex // held while files are read: the cache is never older than the last notification
	changes  *changes
	unlisted bool           // the directory has to be listed, and could not be: no notification says so again
	known    map[string]any // by path: the *Claim, *boot or *frame.OtherVersion it holds, nil for a claim that has not been read
	reported []error
}

// Open opens the store, and makes its directory when it does not exist.
func Open(o Options) (*Store, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	o.Replace = defaults.Func(o.Replace, recordfile.Replace)
	return &Store{Options: o, changes: newChanges(o.Dir)}, nil
}

// Close closes the directory. The store is not used afterwards.
func (s *Store) Close() error { return s.changes.close() }

// Lock locks one claim.
func (s *Store) Lock(ctx context.Context, uid types.UID) (unlock func(), err error) {
	return s.Locker.Lock(ctx, reconcile.SandboxID("claim/"+string(uid)))
}

// LockAll locks the decision which claim gets a device. It is taken after a claim's
// lock, and no other lock after it; its holder does not wait for anything.
func (s *Store) LockAll(ctx context.Context) (unlock func(), err error) {
	return s.Locker.Lock(ctx, "claims")
}

// uidForm matches UIDs that may be part of a file name.
var uidForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,62}$`)

func (s *Store) path(uid types.UID, suffix string) (string, error) {
	if !uidForm.MatchString(string(uid)) {
		return "", fault.New(fault.Invalid, fmt.Errorf("claim UID %q is not a UID", uid))
	}
	return filepath.Join(s.Dir, string(uid)+suffix), nil
}

// Get returns the record of a claim; false if it is not prepared. A damaged record is set
// aside, and is an error once. One of another version is left alone, and stays an error
// (frame.OtherVersion, of kind fault.Conflict): it can be neither written over nor removed.
// Callers share what the topologies and devices of the claim point to, and must not change
// it.
func (s *Store) Get(uid types.UID) (Entry, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refresh(); err != nil {
		return Entry{}, false, err
	}
	return s.get(uid)
}

// get is Get for callers that hold mu and have called refresh.
func (s *Store) get(uid types.UID) (Entry, bool, error) {
	path, err := s.path(uid, claimSuffix)
	if err != nil {
		return Entry{}, false, err
	}
	c, err := read[Claim](s, path)
	if err == nil && c.UID != uid {
		err = &frame.Damage{Err: fmt.Errorf("is of claim %q", c.UID)}
	}
	if frame.IsDamage(err) {
		err = s.setAside(path, err)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Entry{}, false, nil
	case err != nil:
		return Entry{}, false, fmt.Errorf("record of claim %q: %w", uid, err)
	}
	e := Entry{Claim: *c}
	e.Topologies = slices.Clone(e.Topologies)
	e.In, err = s.sandboxes(uid)
	if other := frame.AsOtherVersion(err); other != nil {
		err = fault.New(fault.Conflict, fmt.Errorf("sandboxes of claim %q: %w", uid, withDevices(other, c)))
	}
	return e, true, err
}

// withDevices adds to the sandboxes of a claim, which only another version can read,
// the devices that the claim names.
func withDevices(sandboxes *frame.OtherVersion, c *Claim) *frame.OtherVersion {
	out := *sandboxes
	out.Mentions = maps.Clone(out.Mentions)
	for _, t := range c.Topologies {
		for _, d := range t.Devices {
			out.Mentions[d.Name], out.Mentions[d.Host.ID] = true, true
		}
	}
	return &out
}

// boot is the content of a file of sandboxes.
type boot struct {
	BootID    string    `json:"bootID"`
	Sandboxes []Sandbox `json:"sandboxes"`
}

// sandboxes is for callers that hold mu and have called refresh.
func (s *Store) sandboxes(uid types.UID) ([]Sandbox, error) {
	path, err := s.path(uid, sandboxesSuffix)
	if err != nil {
		return nil, err
	}
	b, err := read[boot](s, path)
	switch {
	case errors.Is(err, fs.ErrNotExist), frame.IsDamage(err):
		// The file is not durable. If the machine has not crashed, the engine's journal
		// lists what is to be released.
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("sandboxes of claim %q: %w", uid, err)
	case b.BootID != s.BootID:
		return nil, nil
	}
	return slices.Clone(b.Sandboxes), nil
}

// InSandbox reports whether a sandbox of this boot may have something of a claim, also of one whose record is lost.
func (s *Store) InSandbox(uid types.UID) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refresh(); err != nil {
		return false, err
	}
	in, err := s.sandboxes(uid)
	e := Entry{In: in}
	return e.Held(), err
}

// check refuses what this version never writes.
func (b *boot) check() error {
	for _, s := range b.Sandboxes {
		switch s.Phase {
		case "", Attaching, Attached, Failed, Stopping, Released:
		default:
			return fmt.Errorf("unknown phase %q", s.Phase)
		}
	}
	return nil
}

func (*Claim) check() error { return nil }

// List returns all records in order of UID, and an error for each that could not be read. If the directory cannot be
// listed, it returns an error and the records that were known: those who go on without one would take devices and addresses for
// free. Those of other versions OtherVersions lists. As with Get, callers must not change what
// the records share.
func (s *Store) List() ([]Entry, []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Entry
	var errs []error
	if err := s.refresh(); err != nil {
		errs = append(errs, err)
	}
	for _, uid := range s.uids() {
		e, known, err := s.get(uid)
		switch {
		case frame.AsOtherVersion(err) != nil:
		case err != nil && !frame.IsDamage(err):
			errs = append(errs, err)
		case err == nil && known:
			out = append(out, e)
		}
	}
	errs = append(errs, s.reported...)
	s.reported = nil
	return out, errs
}

// uids returns the claims that have a record, in order. The caller holds mu and has called refresh.
func (s *Store) uids() (out []types.UID) {
	for path := range s.known {
		if uid, ok := strings.CutSuffix(filepath.Base(path), claimSuffix); ok {
			out = append(out, types.UID(uid))
		}
	}
	slices.Sort(out)
	return out
}

// refresh drops from the cache files that have changed since.
func (s *Store) refresh() error {
	names, all := s.changes.since()
	if s.unlisted = s.unlisted || all; s.unlisted {
		files, err := os.ReadDir(s.Dir)
		if err != nil {
			return fmt.Errorf("claims: %w", err)
		}
		s.known, s.unlisted = map[string]any{}, false
		for _, f := range files {
			names = append(names, f.Name())
		}
	}
	for _, name := range names {
		switch path := filepath.Join(s.Dir, name); filepath.Ext(name) {
		case claimSuffix:
			s.known[path] = nil
		case sandboxesSuffix: // read by claim only
			delete(s.known, path)
		}
	}
	return nil
}

// OtherVersions returns the records of other versions, in order of path. The devices
// whose names or IDs they mention count as held.
func (s *Store) OtherVersions() ([]*frame.OtherVersion, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refresh(); err != nil {
		return nil, err
	}
	var out []*frame.OtherVersion
	for _, uid := range s.uids() {
		_, _, err := s.get(uid)
		if other := frame.AsOtherVersion(err); other != nil {
			out = append(out, other)
		}
	}
	slices.SortFunc(out, func(a, b *frame.OtherVersion) int { return cmp.Compare(a.Path, b.Path) })
	return out, nil
}

// OtherVersionsIn is OtherVersions for a read-only use of a directory. It writes
// nothing, and skips what cannot be read.
func OtherVersionsIn(dir string) []*frame.OtherVersion {
	var out []*frame.OtherVersion
	files, _ := os.ReadDir(dir) // in order of name
	for _, f := range files {
		path, err := filepath.Join(dir, f.Name()), error(nil)
		switch filepath.Ext(path) {
		case claimSuffix:
			_, err = decode[Claim](path)
		case sandboxesSuffix:
			_, err = decode[boot](path)
		}
		if other := frame.AsOtherVersion(err); other != nil {
			out = append(out, other)
		}
	}
	return out
}

// InUse returns, by name, the devices that claims hold, as they were on the host when
// they were prepared: that is how a device is described while a pod has it. Records of
// other versions may mention further devices, of which nothing is known.
func (s *Store) InUse() (map[string]inventory.Device, error) {
	entries, errs := s.List()
	others, err := s.OtherVersions()
	errs = append(errs, err)
	out := map[string]inventory.Device{}
	for _, o := range others {
		for name := range o.Mentions {
			out[name] = inventory.Device{}
		}
	}
	for _, e := range entries {
		for _, t := range e.Topologies {
			for _, d := range t.Devices {
				out[d.Name] = d.Host
			}
		}
	}
	return out, errors.Join(errs...)
}

// exists reports whether a claim is recorded. A record of another version, which is neither overwritten nor removed, is an error.
func (s *Store) exists(uid types.UID) (known bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refresh(); err != nil {
		return false, err
	}
	_, known, err = s.get(uid)
	if frame.AsOtherVersion(err) != nil {
		return known, err
	}
	return known, nil
}

// Put records a claim, durably. It fails with fault.Invalid if the record is too large,
// and writes nothing then.
func (s *Store) Put(c Claim) error {
	path, err := s.path(c.UID, claimSuffix)
	known := false
	if err == nil {
		known, err = s.exists(c.UID)
	}
	if err == nil {
		err = s.write(path, c, true)
	}
	if err != nil {
		return fmt.Errorf("record claim %q: %w", c.UID, err)
	}
	if !known {
		s.Records.Changed()
	}
	return nil
}

// PutSandboxes records the sandboxes of a claim.
func (s *Store) PutSandboxes(e Entry) error {
	path, err := s.path(e.UID, sandboxesSuffix)
	if err == nil {
		_, err = s.exists(e.UID)
	}
	if err == nil {
		err = s.write(path, boot{s.BootID, e.In}, false)
	}
	if err != nil {
		return fmt.Errorf("record sandboxes of claim %q: %w", e.UID, err)
	}
	s.Sandboxes.Changed()
	return nil
}

// Remove forgets a claim; an absent one is no error.
func (s *Store) Remove(uid types.UID) error {
	defer s.Records.Changed()
	if _, err := s.exists(uid); err != nil {
		return fmt.Errorf("delete record of claim %q: %w", uid, err)
	}
	for _, suffix := range []string{sandboxesSuffix, claimSuffix} {
		path, err := s.path(uid, suffix)
		if err == nil {
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("delete record of claim %q: %w", uid, err)
		}
	}
	return recordfile.SyncDir(s.Dir, (*os.File).Sync)
}

// Damaged returns the paths of the records that were set aside.
func (s *Store) Damaged() ([]string, error) {
	files, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	var out []string
	for _, f := range files {
		if strings.Contains(f.Name(), recordfile.DamagedInfix) {
			out = append(out, filepath.Join(s.Dir, f.Name()))
		}
	}
	return out, nil
}

// read returns the content of a file, from the cache if it is unchanged.
func read[T Claim | boot, P content[T]](s *Store, path string) (*T, error) {
	switch v := s.known[path].(type) {
	case *T:
		return v, nil
	case *frame.OtherVersion:
		return nil, fault.New(fault.Conflict, v)
	}
	v, err := decode[T, P](path)
	other := frame.AsOtherVersion(err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		delete(s.known, path)
	case other != nil:
		s.known[path] = other
	case err == nil:
		if c, is := any(v).(*Claim); is {
			c.decode()
		}
		s.known[path] = v
	}
	return v, err
}

// content is the type of a file's content.
type content[T any] interface {
	*T
	check() error
}

// decode reads a file. It fails with frame.Damage or frame.OtherVersion when it holds
// something else.
func decode[T Claim | boot, P content[T]](path string) (*T, error) {
	payload, err := load(path)
	v := new(T)
	if err == nil {
		if err = json.Unmarshal(payload, v); err == nil {
			err = P(v).check()
		}
		if err != nil {
			err = frame.PayloadError(payload, err)
		}
	}
	if other := frame.AsOtherVersion(err); other != nil {
		other.Path = path
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

func load(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limitBytes {
		return nil, &frame.Damage{Err: errors.New("not a regular file of at most 8 MiB")}
	}
	data := make([]byte, info.Size())
	if _, err := f.ReadAt(data, 0); err != nil && len(data) > 0 {
		return nil, err
	}
	line, ended := bytes.CutSuffix(data, []byte("\n"))
	if !ended {
		return nil, &frame.Damage{Err: errors.New("cut off")}
	}
	return frame.Decode(line)
}

// write replaces a file atomically; durably if requested.
func (s *Store) write(path string, v any, durable bool) error {
	data, err := frame.Encode(v)
	if err != nil {
		return err
	}
	if len(data) > limitBytes { // load would treat it as damaged
		return fault.New(fault.Invalid, fmt.Errorf(
			"%d bytes are more than the %d that a record may have: use fewer or smaller topologies in one claim", len(data), limitBytes))
	}
	o := recordfile.Options{}
	if durable {
		o.Sync = (*os.File).Sync
	}
	_, err = s.Replace(path, data, o)
	return err
}

// setAside renames a damaged file and returns the damage with its new name.
func (s *Store) setAside(path string, why error) error {
	name, err := recordfile.SetAside(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return err // another process was faster
	case err != nil:
		return fmt.Errorf("%s; not set aside: %w", why.Error(), err)
	}
	why = fmt.Errorf("claims: %q: %w; kept as %q", filepath.Base(path), why, name)
	s.reported = append(s.reported, why)
	return why
}
