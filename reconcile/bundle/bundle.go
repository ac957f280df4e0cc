package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"
)

// Limits bound an archive, before it is compressed.
type Limits struct {
	FileBytes  int64         // of one part; what is longer is cut
	TotalBytes int64         // of all parts; later ones are left out
	Files      int           // parts
	Part       time.Duration // that one part may take
}

// Default is for everybody.
var Default = Limits{FileBytes: 4 << 20, TotalBytes: 128 << 20, Files: 8192, Part: 20 * time.Second}

// Bundle is an archive that is being written. Its methods may not be called at the
// same time.
type Bundle struct {
	limits   Limits
	top      string // the folder in the archive that all parts are in
	now      func() time.Time
	zip      *gzip.Writer
	archive  *tar.Writer
	bytes    int64
	files    int
	problems bytes.Buffer
	err      error // of the archive itself
}

// New begins an archive in which everything is in one folder.
func New(to io.Writer, folder string, limits Limits, now func() time.Time) *Bundle {
	zip := gzip.NewWriter(to)
	return &Bundle{limits: limits, top: folder, now: now, zip: zip, archive: tar.NewWriter(zip)}
}

// Problem notes what could not be had.
func (b *Bundle) Problem(name string, err error) { fmt.Fprintf(&b.problems, "%s: %v\n", name, err) }

// Part adds what a function writes, also when it fails halfway. The function has
// the time of the limits; one that does not heed its context is left behind.
func (b *Bundle) Part(ctx context.Context, name string, write func(ctx context.Context, w io.Writer) error) {
	if ctx.Err() != nil {
		b.Problem(name, context.Cause(ctx))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, b.limits.Part)
	defer cancel()
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		c := &cut{left: b.limits.FileBytes}
		err := write(ctx, c)
		if c.more {
			err = errors.Join(err, errTooLong(b.limits.FileBytes))
		}
		done <- result{c.kept.Bytes(), err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			b.Problem(name, r.err)
		}
		b.add(name, r.text, b.now())
	case <-ctx.Done():
		b.Problem(name, context.Cause(ctx))
	}
}

func errTooLong(limit int64) error { return fmt.Errorf("cut after %d bytes", limit) }

// cut keeps what fits and forgets the rest.
type cut struct {
	kept bytes.Buffer
	left int64
	more bool
}

// Write implements io.Writer.
func (c *cut) Write(p []byte) (int, error) {
	fits := min(int64(len(p)), c.left)
	c.more = c.more || fits < int64(len(p))
	c.left -= fits
	c.kept.Write(p[:fits])
	return len(p), nil
}

// File adds a copy of a regular file. Of one that is longer than the limit it keeps
// the end: that is where logs say what happened last.
func (b *Bundle) File(name, from string) {
	data, changed, err := read(from, b.limits.FileBytes)
	if err != nil {
		b.Problem(name, err)
	}
	if data != nil {
		b.add(name, data, changed)
	}
}

func read(from string, most int64) ([]byte, time.Time, error) {
	// Without waiting: a pipe has no writer here.
	f, err := os.OpenFile(from, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	if !info.Mode().IsRegular() {
		return nil, time.Time{}, fmt.Errorf("%q is not a regular file", from)
	}
	var cutErr error
	if info.Size() > most {
		cutErr = fmt.Errorf("its last %d bytes of %d", most, info.Size())
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return nil, time.Time{}, err
		}
	}
	data := []byte{}
	rest, err := io.ReadAll(io.LimitReader(f, most))
	return append(data, rest...), info.ModTime(), errors.Join(cutErr, err)
}

// Tree adds copies of the files below a folder whose path, relative to it, is
// wanted. A folder that is not there has none.
func (b *Bundle) Tree(name, dir string, wanted func(path string) bool) {
	err := filepath.WalkDir(dir, func(at string, entry fs.DirEntry, err error) error {
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				b.Problem(name, err)
			}
			return nil
		}
		rel, err := filepath.Rel(dir, at)
		if err == nil && entry.Type().IsRegular() && wanted(rel) {
			b.File(path.Join(name, filepath.ToSlash(rel)), at)
		}
		return err
	})
	if err != nil {
		b.Problem(name, err)
	}
}

func (b *Bundle) add(name string, data []byte, changed time.Time) {
	switch {
	case b.files >= b.limits.Files:
		b.Problem(name, fmt.Errorf("left out: more than %d files", b.limits.Files))
		return
	case b.bytes+int64(len(data)) > b.limits.TotalBytes:
		b.Problem(name, fmt.Errorf("left out: more than %d bytes in all", b.limits.TotalBytes))
		return
	}
	b.files++
	b.bytes += int64(len(data))
	b.write(name, data, changed)
}

func (b *Bundle) write(name string, data []byte, changed time.Time) {
	if b.err != nil {
		return
	}
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: path.Join(b.top, path.Clean("/"+name)), Size: int64(len(data)), Mode: 0o600,
		ModTime: changed,
	}
	if b.err = b.archive.WriteHeader(header); b.err == nil {
		_, b.err = b.archive.Write(data)
	}
}

// Close ends the archive with the list of problems. An error is of the archive.
func (b *Bundle) Close() error {
	text := b.problems.Bytes()
	if len(text) == 0 {
		text = []byte("none\n")
	}
	b.write("problems.txt", text, b.now())
	return errors.Join(b.err, b.archive.Close(), b.zip.Close())
}

// Create writes an archive to a file that is there only when it is whole: nothing
// is left of one that fails, or is interrupted. A file of that name is an error.
func Create(file string, fill func(to io.Writer) error) (err error) {
	if _, err := os.Lstat(file); err == nil {
		return fmt.Errorf("%q is there already", file)
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // for its owner only
	if err != nil {
		return fmt.Errorf("create %q: %w", file, cause(err))
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	if err := errors.Join(fill(f), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), file); err != nil { // which replaces nothing
		return fmt.Errorf("create %q: %w", file, cause(err))
	}
	return nil
}

// cause is an error of a file without the name of the file, which is a temporary one
// that was not requested.
func cause(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}
