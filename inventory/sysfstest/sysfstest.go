// Package sysfstest keeps sysfs trees as text.
//
// A tree is a txtar archive. Each file is a sysfs file under its path below
// /sys; two notations say what txtar cannot:
//
//	-- class/net/eth0 -> ../../devices/virtual/net/eth0 --   a symbolic link
//	-- devices/pci0000:00/0000:00:03.0/vendor/ --            an empty directory
//
// An empty directory where a file belongs is how an unreadable file is written:
// reading it fails for root too, which no file mode achieves.
//
// Unpack makes a real tree for tests; Recorder turns what a program read of a
// real tree into an archive, so that fixtures can be taken from machines.
package sysfstest

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

const arrow = " -> "

// Unpack writes a tree into a temporary directory and returns it with its path.
func Unpack(tb testing.TB, archive *txtar.Archive) (fs.FS, string) {
	tb.Helper()
	dir := tb.TempDir()
	if err := Write(dir, archive); err != nil {
		tb.Fatal(err)
	}
	return os.DirFS(dir), dir
}

// Open unpacks the archive in a file.
func Open(tb testing.TB, file string) fs.FS {
	tb.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	tree, _ := Unpack(tb, archive)
	return tree
}

// Write writes a tree below dir.
func Write(dir string, archive *txtar.Archive) error {
	for _, f := range archive.Files {
		name, target, link := strings.Cut(f.Name, arrow)
		if !fs.ValidPath(strings.TrimSuffix(name, "/")) {
			return fmt.Errorf("sysfs tree: %q is not a path below /sys", name)
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		err := os.MkdirAll(filepath.Dir(to), 0o755)
		switch {
		case err != nil:
		case link:
			err = os.Symlink(target, to)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(to, 0o755)
		default:
			err = os.WriteFile(to, f.Data, 0o644)
		}
		if err != nil {
			return fmt.Errorf("sysfs tree: %w", err)
		}
	}
	return nil
}

// Recorder is a file system that remembers what is read through it. It is not
// safe for concurrent use.
type Recorder struct {
	tree  fs.ReadLinkFS
	files map[string][]byte // name as it stands in the archive
}

// NewRecorder records what is read of tree.
func NewRecorder(tree fs.ReadLinkFS) *Recorder {
	return &Recorder{tree: tree, files: map[string][]byte{}}
}

// Open implements fs.FS; what is read from the opened file is not recorded.
func (r *Recorder) Open(name string) (fs.File, error) { return r.tree.Open(name) }

// Lstat implements fs.ReadLinkFS.
func (r *Recorder) Lstat(name string) (fs.FileInfo, error) { return r.tree.Lstat(name) }

// Stat implements fs.StatFS and records a directory.
func (r *Recorder) Stat(name string) (fs.FileInfo, error) {
	info, err := fs.Stat(r.tree, name)
	if err == nil && info.IsDir() {
		r.files[name+"/"] = nil
	}
	return info, err
}

// ReadLink implements fs.ReadLinkFS and records the link.
func (r *Recorder) ReadLink(name string) (string, error) {
	target, err := r.tree.ReadLink(name)
	if err == nil {
		r.files[r.real(name)+arrow+target] = nil
	}
	return target, err
}

// ReadFile implements fs.ReadFileFS and records the file. One that exists and
// cannot be read is recorded as an empty directory.
func (r *Recorder) ReadFile(name string) ([]byte, error) {
	data, err := fs.ReadFile(r.tree, name)
	switch {
	case err == nil:
		r.files[r.real(name)] = data
	case !errors.Is(err, fs.ErrNotExist):
		r.files[r.real(name)+"/"] = nil
	}
	return data, err
}

// ReadDir implements fs.ReadDirFS and records the links in the directory.
func (r *Recorder) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(r.tree, name)
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink != 0 {
			_, _ = r.ReadLink(path.Join(name, e.Name())) // gone again: not recorded
		}
	}
	return entries, err
}

// real resolves the links in the directory part of a name: the archive has
// every file once, where it really is.
func (r *Recorder) real(name string) string {
	dir := "."
	for part := range strings.SplitSeq(path.Dir(name), "/") {
		dir = path.Join(dir, part)
		if target, err := r.tree.ReadLink(dir); err == nil {
			dir = path.Join(path.Dir(dir), target)
		}
	}
	return path.Join(dir, path.Base(name))
}

// Archive returns what was read so far.
func (r *Recorder) Archive() *txtar.Archive {
	a := &txtar.Archive{}
	names := slices.Sorted(maps.Keys(r.files))
	for i, name := range names {
		if dir, ok := strings.CutSuffix(name, "/"); ok {
			if slices.ContainsFunc(names[i+1:], func(n string) bool { return strings.HasPrefix(n, dir+"/") }) {
				continue // not empty
			}
		}
		a.Files = append(a.Files, txtar.File{Name: name, Data: r.files[name]})
	}
	return a
}
