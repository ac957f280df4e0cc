package recordfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile/recordfile"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestReplace holds that a file has its new content, mode and inode, that what a crash
// has left has no effect, and in which order it becomes durable.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path, temp := filepath.Join(dir, "a.record"), filepath.Join(dir, "a.new")
	if err := os.WriteFile(temp, []byte("of a crash"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, o := range []recordfile.Options{{}, {Mode: 0o644}, {Temp: temp}} {
		var synced []string
		o.Sync = func(f *os.File) error {
			synced = append(synced, f.Name())
			return nil
		}
		data := []byte{'0' + byte(i)}
		inode, err := recordfile.Replace(path, data, o)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil || st.Ino != inode {
			t.Errorf("%+v: inode %d, want %d (%v)", o, inode, st.Ino, err)
		}
		if want := max(uint32(o.Mode), 0o600); st.Mode&0o777 != want {
			t.Errorf("%+v: mode %o, want %o", o, st.Mode&0o777, want)
		}
		if have, err := os.ReadFile(path); err != nil || string(have) != string(data) {
			t.Errorf("%+v: content %q, %v", o, have, err)
		}
		if len(synced) != 2 || synced[0] == path || synced[1] != dir || o.Temp != "" && synced[0] != o.Temp {
			t.Errorf("%+v: made durable: %q", o, synced)
		}
	}
	if have := names(t, dir); !slices.Equal(have, []string{"a.record"}) {
		t.Errorf("files %q", have)
	}
}

// TestReplaceFails holds that the old content stays, and nothing else, when the new one
// cannot be made durable; and the error when only its name is not.
func TestReplaceFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.record")
	if _, err := recordfile.Replace(path, []byte("old"), recordfile.Options{}); err != nil {
		t.Fatal(err)
	}
	full := errors.New("no space left")
	for fails, want := range map[int]string{1: "old", 2: "new"} {
		calls := 0
		inode, err := recordfile.Replace(path, []byte("new"), recordfile.Options{Sync: func(*os.File) error {
			if calls++; calls == fails {
				return full
			}
			return nil
		}})
		if have, _ := os.ReadFile(path); !errors.Is(err, full) || string(have) != want || (inode != 0) != (want == "new") {
			t.Errorf("call %d fails: %v, content %q, inode %d", fails, err, have, inode)
		}
		if have := names(t, dir); !slices.Equal(have, []string{"a.record"}) {
			t.Errorf("call %d fails: files %q", fails, have)
		}
		if _, err := recordfile.Replace(path, []byte("old"), recordfile.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := recordfile.Replace(filepath.Join(dir, "none", "a"), nil, recordfile.Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that does not exist: %v", err)
	}
}

// TestSetAside holds that damaged files replace neither one another nor another file.
func TestSetAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.record")
	for _, want := range []string{"a.record.damaged-1", "a.record.damaged-2"} {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if have, err := recordfile.SetAside(path); err != nil || have != want {
			t.Errorf("set aside as %q, %v; want %q", have, err, want)
		}
	}
	for _, name := range names(t, dir) {
		if have, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(have) != name {
			t.Errorf("%s holds %q, %v", name, have, err)
		}
	}
	if _, err := recordfile.SetAside(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that was set aside: %v", err)
	}
}
