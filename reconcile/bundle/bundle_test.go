package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/reconcile/bundle"
)

func unpack(t *testing.T, data []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		out[header.Name] = string(text)
	}
}

func text(text string) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error { _, err := io.WriteString(w, text); return err }
}

func TestBundle(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a.journal": "one\n", "claims/u.claim": "two\n", "long.log": "0123456789abcdef", "token": "secret"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "token"), filepath.Join(dir, "b.journal")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	limits := bundle.Limits{FileBytes: 10, TotalBytes: 38, Files: 7, Part: time.Minute}
	b := bundle.New(&out, "top", limits, time.Now)
	b.Part(t.Context(), "version.txt", text("v1"))
	b.Part(t.Context(), "half.txt", func(_ context.Context, w io.Writer) error {
		fmt.Fprint(w, "half")
		return errors.New("the rest is gone")
	})
	b.Part(t.Context(), "../../long.txt", text(strings.Repeat("x", 11)))
	b.Tree("state", dir, func(path string) bool {
		return strings.HasSuffix(path, ".journal") || strings.HasSuffix(path, ".claim")
	})
	b.Tree("none", filepath.Join(dir, "missing"), func(string) bool { return true })
	b.File("logs/long.log", filepath.Join(dir, "long.log"))
	b.File("logs/link", filepath.Join(dir, "b.journal"))
	b.File("logs/pipe", filepath.Join(dir, "pipe"))
	b.Part(t.Context(), "large.txt", text("123456789"))
	b.Part(t.Context(), "small.txt", text("1"))
	b.Part(t.Context(), "one too many.txt", text("1"))
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no time left"))
	b.Part(ended, "late.txt", text("1"))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"top/version.txt": "v1", "top/half.txt": "half", "top/long.txt": "xxxxxxxxxx",
		"top/state/a.journal": "one\n", "top/state/claims/u.claim": "two\n", "top/logs/long.log": "6789abcdef", "top/small.txt": "1",
		"top/problems.txt": strings.ReplaceAll(`half.txt: the rest is gone
../../long.txt: cut after 10 bytes
logs/long.log: its last 10 bytes of 16
logs/link: open DIR/b.journal: too many levels of symbolic links
logs/pipe: "DIR/pipe" is not a regular file
large.txt: left out: more than 38 bytes in all
one too many.txt: left out: more than 7 files
late.txt: no time left
`, "DIR", dir),
	}
	if diff := cmp.Diff(want, unpack(t, out.Bytes())); diff != "" {
		t.Errorf("archive (-want +got):\n%s", diff)
	}
}

// A part that never ends is left behind.
func TestPartThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		b := bundle.New(&out, "top", bundle.Default, time.Now)
		hung := make(chan struct{})
		began := time.Now()
		b.Part(t.Context(), "hangs.txt", func(context.Context, io.Writer) error { <-hung; return nil })
		if took := time.Since(began); took != bundle.Default.Part {
			t.Errorf("it took %s, want %s", took, bundle.Default.Part)
		}
		close(hung)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"top/problems.txt": "hangs.txt: context deadline exceeded\n"}
		if diff := cmp.Diff(want, unpack(t, out.Bytes())); diff != "" {
			t.Errorf("archive (-want +got):\n%s", diff)
		}
	})
}

// The file is there when it is whole, and nothing is when it is not.
func TestCreate(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.tar.gz")
	files := func(want ...string) {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.Name())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
	}
	broken := errors.New("interrupted")
	err := bundle.Create(file, func(to io.Writer) error { fmt.Fprint(to, "half"); return broken })
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
	files()
	for range 2 {
		err = bundle.Create(file, func(to io.Writer) error { _, err := io.WriteString(to, "whole"); return err })
		files("x.tar.gz")
	}
	if err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("the second time: error %v, want that it is there", err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want that others cannot read it", info.Mode(), err)
	}
}

// TestCreateNamesTheFile holds that an error names the requested file, and no
// temporary one.
func TestCreateNamesTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "none", "case.tar.gz")
	err := bundle.Create(file, func(io.Writer) error { return nil })
	if want := fmt.Sprintf("create %q: no such file or directory", file); err == nil || err.Error() != want {
		t.Errorf("folder that does not exist: %v, want %s", err, want)
	}
	file = filepath.Join(t.TempDir(), "case.tar.gz")
	err = bundle.Create(file, func(io.Writer) error { return os.WriteFile(file, nil, 0o600) })
	if want := fmt.Sprintf("create %q: file exists", file); err == nil || err.Error() != want {
		t.Errorf("file that was created meanwhile: %v, want %s", err, want)
	}
}
