package netns_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/netns"
	"github.com/plumbline/plumbline/topology/fault"
)

const own = "/proc/self/ns/net"

// TestNoNamespace holds the error for a path that leads to no network namespace, with the
// same text and kind in all functions.
func TestNoNamespace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, c := range map[string]struct {
		kind fault.Kind
		why  string
	}{
		file + ".none":           {fault.Gone, "no such file or directory"},
		file + "/net":            {fault.Gone, "not a directory"},
		file:                     {fault.Gone, "nothing is mounted there"},
		fifo:                     {fault.Gone, "nothing is mounted there"},
		"/proc/4194304/ns/net":   {fault.Gone, "no such file or directory"}, // above pid_max
		strings.Repeat("x", 300): {fault.Internal, "file name too long"},
	} {
		want := "network namespace \"" + path + "\": " + c.why
		f, err := netns.Open(path)
		if f != nil || err == nil || err.Error() != want || fault.Of(err) != c.kind {
			t.Errorf("open %.60q: %s: %v\nwant %s: %s", path, fault.Of(err), err, c.kind, want)
		}
		if id, err := netns.At(path); id != (reconcile.NetnsID{}) || err == nil || err.Error() != want || fault.Of(err) != c.kind {
			t.Errorf("at %.60q: %s: %v\nwant %s: %s", path, fault.Of(err), err, c.kind, want)
		}
	}
	if _, err := netns.Open("/proc/self/ns/mnt"); fault.Of(err) != fault.Invalid {
		t.Errorf("a mount namespace: %s: %v", fault.Of(err), err)
	}
}

// TestIdentify holds that all ways to identify a namespace agree.
func TestIdentify(t *testing.T) {
	f, err := netns.Open(own)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at, err := netns.At(own)
	if err != nil || at.Inode == 0 || at.Device == 0 || at.Cookie != 0 {
		t.Errorf("by path: %+v, %v", at, err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	by, err := netns.IdentifyBy(f, fd)
	if err != nil || !netns.Same(at, by) || by.Inode != at.Inode {
		t.Errorf("by a socket: %+v, %v; by path %+v", by, err, at)
	}
	id, err := netns.Identify(f)
	if fault.Of(err) != fault.Internal && id != by { // to open a socket in a namespace takes a capability
		t.Errorf("by a socket of its own: %+v, %v; want %+v", id, err, by)
	}
	if _, err := netns.IdentifyBy(f, -1); err != nil {
		t.Errorf("a kernel without cookies: %v", err)
	}
}

// TestSame compares what both sides know.
func TestSame(t *testing.T) {
	a := reconcile.NetnsID{Device: 4, Inode: 7, Cookie: 9}
	for name, c := range map[string]struct {
		b    reconcile.NetnsID
		want bool
	}{
		"itself":          {a, true},
		"without cookie":  {reconcile.NetnsID{Device: 4, Inode: 7}, true},
		"the next one":    {reconcile.NetnsID{Device: 4, Inode: 7, Cookie: 10}, false},
		"another":         {reconcile.NetnsID{Device: 4, Inode: 8}, false},
		"of another nsfs": {reconcile.NetnsID{Device: 5, Inode: 7}, false},
	} {
		if netns.Same(a, c.b) != c.want || netns.Same(c.b, a) != c.want {
			t.Errorf("%s: not %t", name, c.want)
		}
	}
}

// TestCookie: a namespace is identified by what the kernel never gives to another one, as it does with an inode number.
func TestCookie(t *testing.T) {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s)
	id, err := netns.IdentifyBy(ns, s)
	if err != nil || id.Cookie == 0 || id.Inode == 0 {
		t.Errorf("%+v, %v", id, err)
	}
	if other := (reconcile.NetnsID{Device: id.Device, Inode: id.Inode, Cookie: id.Cookie + 1}); netns.Same(id, other) {
		t.Errorf("%+v is taken for %+v", other, id)
	}
}
