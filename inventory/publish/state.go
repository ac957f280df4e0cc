package publish

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// stateVersion is that of the file's form.
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
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.DisallowUnknownFields()
		err = dec.Decode(&s)
	}
	if err == nil && s.Version != stateVersion {
		err = fmt.Errorf("version %d is not %d", s.Version, stateVersion)
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

// save replaces the file. After a crash it is the old or the new one; which of
// two agents that overlap writes last does not matter, as they see the same.
func save(file string, known map[string]entry) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write published devices: %w", err)
		}
	}()
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
	defer os.Remove(f.Name()) // gone when it was renamed
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}
