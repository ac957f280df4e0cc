package publish

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// stateVersion is the version of the file format.
const stateVersion = 1

type state struct {
	Version int     `json:"version"`
	Devices []entry `json:"devices"`
}

// load reads what was published last. A file that is not there is empty; one
// that cannot be read is an error and empty.
func load(file string) (map[string]entry, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]entry{}, nil
	}
	var s state
	if err == nil {
		s, err = decode(b)
	}
	if err != nil {
		return map[string]entry{}, fmt.Errorf("read published devices %q: %w", file, err)
	}
	out := map[string]entry{}
	for _, e := range s.Devices {
		out[e.Device.Name] = e
	}
	return out, nil
}

// otherVersion is the error of an undamaged file that another version has written.
type otherVersion struct{ why error }

func (o *otherVersion) Error() string {
	return fmt.Sprintf(
		"written by another version of plumbline and left alone (%v): run the version that wrote it, or remove the file", o.why)
}

// unknownTo returns what this version of plumbline does not know of a file, nil if the error is not that of another version.
func unknownTo(err error) error {
	if other, ok := errors.AsType[*otherVersion](err); ok {
		return other.why
	}
	return nil
}

func isOtherVersion(err error) bool { return unknownTo(err) != nil }

// decode reads a file's content. Fields that are unknown are ignored; what is JSON and
// has another version or shape is an otherVersion.
func decode(b []byte) (state, error) {
	var s state
	err := json.Unmarshal(b, &s)
	if err == nil && s.Version != stateVersion {
		err = fmt.Errorf("version %d is not %d", s.Version, stateVersion)
	}
	if err != nil && json.Valid(b) {
		err = &otherVersion{err}
	}
	return s, err
}

// OtherVersion returns what this version of plumbline does not know of a file that
// another one has written, nil when it can use the file.
func OtherVersion(file string) error {
	_, err := load(file)
	return unknownTo(err)
}

// save replaces the file unless another version has written it. After a crash the old or the
// new file exists. Two overlapping agents observe the same state, so either may write last.
func save(file string, known map[string]entry) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write published devices: %w", err)
		}
	}()
	if _, err := load(file); isOtherVersion(err) {
		return err
	}
	s := state{Version: stateVersion}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		s.Devices = append(s.Devices, known[name])
	}
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // no effect after the rename
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}
