package claims

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/reconcile"
)

const (
	version         = "1"
	claimSuffix     = ".claim"
	sandboxesSuffix = ".sandboxes"
	damagedInfix    = ".damaged-"
	limitBytes      = 8 << 20
	// settledAfter is the age from which a file's time tells versions of it
	// apart: the kernel stamps files in ticks of at most 10 ms.
	settledAfter = time.Second
)

// Locker keeps goroutines and processes out of each other's way, by name; the
// journal is one.
type Locker interface {
	Lock(ctx context.Context, name reconcile.SandboxID) (unlock func(), err error)
}

// Options is what a Store works with.
type Options struct {
	Dir    string
	Locker Locker
	BootID string
	Now    func() time.Time
}

// Store keeps the records of one directory. It is safe for concurrent use; who
// reads in order to write holds the claim's lock meanwhile.
type Store struct {
	Options

	mu       sync.Mutex
	cache    map[string]cached // by file name
	reported []error
}

// cached is a file's content as it was read.
type cached struct {
	info    os.FileInfo
	payload []byte
}

// Open opens the store, and makes its directory when it does not exist.
func Open(o Options) (*Store, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	return &Store{Options: o, cache: map[string]cached{}}, nil
}

// Lock holds off everybody else from one claim.
func (s *Store) Lock(ctx context.Context, uid types.UID) (unlock func(), err error) {
	return s.Locker.Lock(ctx, reconcile.SandboxID("claim/"+string(uid)))
}

// LockAll holds off everybody else who decides which claim gets a device. It is
// taken before a claim's lock, never after.
func (s *Store) LockAll(ctx context.Context) (unlock func(), err error) {
	return s.Locker.Lock(ctx, "claims")
}

// uidForm is what a UID may look like to be part of a file name.
var uidForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,62}$`)

func (s *Store) path(uid types.UID, suffix string) (string, error) {
	if !uidForm.MatchString(string(uid)) {
		return "", fault.New(fault.Invalid, fmt.Errorf("claim UID %q is not of the form of a UID", uid))
	}
	return filepath.Join(s.Dir, string(uid)+suffix), nil
}

// Get returns what is recorded of a claim; false when it is not prepared. A
// damaged record is set aside, and is an error once.
func (s *Store) Get(uid types.UID) (Entry, bool, error) {
	path, err := s.path(uid, claimSuffix)
	if err != nil {
		return Entry{}, false, err
	}
	var e Entry
	err = s.read(path, &e.Claim)
	if err == nil && e.UID != uid {
		err = &damage{fmt.Errorf("is of claim %q", e.UID)}
	}
	if isDamage(err) {
		err = s.setAside(path, err)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Entry{}, false, nil
	case err != nil:
		return Entry{}, false, fmt.Errorf("record of claim %q: %w", uid, err)
	}
	e.In, err = s.sandboxes(uid)
	return e, true, err
}

// boot is the content of a file of sandboxes.
type boot struct {
	BootID    string    `json:"bootID"`
	Sandboxes []Sandbox `json:"sandboxes"`
}

func (s *Store) sandboxes(uid types.UID) ([]Sandbox, error) {
	path, err := s.path(uid, sandboxesSuffix)
	if err != nil {
		return nil, err
	}
	var b boot
	err = s.read(path, &b)
	switch {
	case errors.Is(err, fs.ErrNotExist), isDamage(err):
		// It was not made to survive a crash of the machine, and if the machine
		// has not crashed the engine's journal knows what is to be released.
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("sandboxes of claim %q: %w", uid, err)
	case b.BootID != s.BootID:
		return nil, nil
	}
	return b.Sandboxes, nil
}

// List returns all records in order of UID, and an error for each that could not
// be read.
func (s *Store) List() ([]Entry, []error) {
	files, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, []error{fmt.Errorf("claims: %w", err)}
	}
	var out []Entry
	var errs []error
	for _, f := range files {
		uid, ok := strings.CutSuffix(f.Name(), claimSuffix)
		if !ok {
			continue
		}
		e, known, err := s.Get(types.UID(uid))
		switch {
		case err != nil && !isDamage(err):
			errs = append(errs, err)
		case err == nil && known:
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(a.UID, b.UID) })
	s.mu.Lock()
	defer s.mu.Unlock()
	errs = append(errs, s.reported...)
	s.reported = nil
	return out, errs
}

// OfPod returns the claims that are prepared for a pod.
func (s *Store) OfPod(uid types.UID) ([]Entry, error) {
	entries, errs := s.List()
	return slices.DeleteFunc(entries, func(e Entry) bool { return e.Pod.UID != uid }), errors.Join(errs...)
}

// InUse returns, by name, the devices that claims hold, as they were on the host
// when they were prepared: what is to be said of a device while a pod has it.
func (s *Store) InUse() (map[string]inventory.Device, error) {
	entries, errs := s.List()
	out := map[string]inventory.Device{}
	for _, e := range entries {
		for _, t := range e.Topologies {
			for _, d := range t.Devices {
				out[d.Name] = d.Host
			}
		}
	}
	return out, errors.Join(errs...)
}

// Put records a claim, durably.
func (s *Store) Put(c Claim) error {
	path, err := s.path(c.UID, claimSuffix)
	if err == nil {
		err = s.write(path, c, true)
	}
	if err != nil {
		return fmt.Errorf("record claim %q: %w", c.UID, err)
	}
	return nil
}

// PutSandboxes records where a claim is.
func (s *Store) PutSandboxes(e Entry) error {
	path, err := s.path(e.UID, sandboxesSuffix)
	if err == nil {
		err = s.write(path, boot{s.BootID, e.In}, false)
	}
	if err != nil {
		return fmt.Errorf("record sandboxes of claim %q: %w", e.UID, err)
	}
	return nil
}

// Remove forgets a claim; an absent one is no error.
func (s *Store) Remove(uid types.UID) error {
	for _, suffix := range []string{sandboxesSuffix, claimSuffix} {
		path, err := s.path(uid, suffix)
		if err == nil {
			err = os.Remove(path)
		}
		s.forget(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget claim %q: %w", uid, err)
		}
	}
	return syncDir(s.Dir)
}

// Damaged returns the paths of the records that were set aside.
func (s *Store) Damaged() ([]string, error) {
	files, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	var out []string
	for _, f := range files {
		if strings.Contains(f.Name(), damagedInfix) {
			out = append(out, filepath.Join(s.Dir, f.Name()))
		}
	}
	return out, nil
}

func checksum(payload []byte) uint32 {
	return crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli))
}

// damage is an error that a file will not recover from by itself.
type damage struct{ err error }

func (d *damage) Error() string { return "damaged: " + d.err.Error() }
func (d *damage) Unwrap() error { return d.err }

func isDamage(err error) bool {
	_, ok := errors.AsType[*damage](err)
	return ok
}

// read decodes a file. Hooks read all claims of the node: what a file held is
// remembered for as long as the file is the same.
func (s *Store) read(path string, into any) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	s.mu.Lock()
	c, ok := s.cache[path]
	s.mu.Unlock()
	same := ok && os.SameFile(c.info, info) && c.info.ModTime().Equal(info.ModTime()) && c.info.Size() == info.Size()
	if !same {
		if c, err = load(path); err != nil {
			return err
		}
		if s.Now().Sub(c.info.ModTime()) > settledAfter {
			s.mu.Lock()
			s.cache[path] = c
			s.mu.Unlock()
		}
	}
	if err := json.Unmarshal(c.payload, into); err != nil {
		return &damage{err}
	}
	return nil
}

func (s *Store) forget(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cache, path)
}

func load(path string) (cached, error) {
	f, err := os.Open(path)
	if err != nil {
		return cached{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return cached{}, err
	}
	if !info.Mode().IsRegular() || info.Size() > limitBytes {
		return cached{}, &damage{errors.New("not a regular file of at most 8 MiB")}
	}
	data := make([]byte, info.Size())
	if _, err := f.ReadAt(data, 0); err != nil && len(data) > 0 {
		return cached{}, err
	}
	payload, err := unframe(data)
	return cached{info, payload}, err
}

func unframe(data []byte) ([]byte, error) {
	line, ended := bytes.CutSuffix(data, []byte("\n"))
	parts := bytes.SplitN(line, []byte(" "), 3)
	switch {
	case !ended || len(parts) != 3:
		return nil, &damage{errors.New("cut off")}
	case string(parts[0]) != version:
		return nil, &damage{fmt.Errorf("version %.20q is not %q", parts[0], version)}
	case string(parts[1]) != fmt.Sprintf("%08x", checksum(parts[2])):
		return nil, &damage{errors.New("the checksum is another")}
	}
	return parts[2], nil
}

func frame(v any) ([]byte, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%s %08x %s\n", version, checksum(payload), payload), nil
}

// write replaces a file at once; durably if asked to.
func (s *Store) write(path string, v any, durable bool) error {
	data, err := frame(v)
	if err != nil {
		return err
	}
	s.forget(path)
	f, err := os.CreateTemp(s.Dir, "."+filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && durable {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	if durable {
		return syncDir(s.Dir)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// setAside renames a damaged file and returns the damage with its new name.
func (s *Store) setAside(path string, why error) error {
	s.forget(path)
	for n := 1; ; n++ {
		to := fmt.Sprintf("%s%s%d", path, damagedInfix, n)
		if _, err := os.Lstat(to); err == nil {
			continue
		}
		if err := os.Rename(path, to); errors.Is(err, fs.ErrNotExist) {
			return err // another process was faster
		} else if err != nil {
			return fmt.Errorf("%s; not set aside: %w", why.Error(), err)
		}
		why = fmt.Errorf("claims: %q: %w; kept as %q", filepath.Base(path), why, filepath.Base(to))
		s.mu.Lock()
		s.reported = append(s.reported, why)
		s.mu.Unlock()
		return why
	}
}
