package claims_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestUnreadDirectory: a store whose directory could not be listed, as the process had too many files open, lists it the next time. If
// it did not, it would know of no claim, and each device would seem free.
func TestUnreadDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, dir, "boot").Put(example("aa")); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir, "boot") // the next agent
	full := fillFiles(t)
	if _, errs := s.List(); len(errs) == 0 {
		t.Fatal("the directory was read without a file")
	}
	full()
	if all, errs := s.List(); len(all) != 1 || len(errs) > 0 {
		t.Errorf("%d claims are known, %v", len(all), errs)
	}
	if err := open(t, dir, "boot").Put(example("bb")); err != nil {
		t.Fatal(err)
	}
	if all, errs := s.List(); len(all) != 2 || len(errs) > 0 {
		t.Errorf("%d claims are known after another, %v", len(all), errs)
	}
}

// TestKnownWhileUnread: while the directory cannot be listed, the records that were known are listed, with an error. Without them the
// routes of running pods would be deleted, and their addresses and functions be given away.
func TestKnownWhileUnread(t *testing.T) {
	root := t.TempDir()
	s, dir := open(t, root, "boot"), filepath.Join(root, "claims")
	if err := s.Put(example("aa")); err != nil {
		t.Fatal(err)
	}
	if all, errs := s.List(); len(all) != 1 || len(errs) > 0 {
		t.Fatalf("%d claims are known, %v", len(all), errs)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	if all, errs := s.List(); len(all) != 1 || len(errs) != 1 {
		t.Errorf("%d claims are known, %v", len(all), errs)
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove("aa"); err != nil {
		t.Fatal(err)
	}
	if all, errs := s.List(); len(all) != 0 || len(errs) > 0 {
		t.Errorf("%d claims are known after the end of the only one, %v", len(all), errs)
	}
}

// fillFiles has the process open no further file until done is called.
func fillFiles(t *testing.T) (done func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	next, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	limit := unix.Rlimit{Cur: uint64(next.Fd()), Max: before.Max}
	next.Close()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Fatal(err)
		}
	}
}
