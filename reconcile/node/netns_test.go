package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/netns"
	"github.com/plumbline/plumbline/topology/fault"
)

func TestParseNetns(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		in, name, path string
	}{
		{"blue", "blue", "/run/netns/blue"},
		{"pod-1.2_x", "pod-1.2_x", "/run/netns/pod-1.2_x"},
		{"/run/netns/blue", "blue", "/run/netns/blue"},
		{"/proc/4711/ns/net", "pid4711", "/proc/4711/ns/net"},
		{"/proc/4711/task/4712/ns/net", "pid4711-4712", "/proc/4711/task/4712/ns/net"},
		// One namespace has one path: /var/run leads to /run.
		{dir + "/link/blue", "blue", dir + "/blue"},
		{dir + "/x/../blue", "blue", dir + "/blue"},
		{"", "", ""},
		{".", "", ""},
		{"..", "", ""},
		{"/", "", ""},
		{"a\nb", "", ""},
		{"/proc/self/ns/net", "", ""},
		{"/proc/thread-self/ns/net", "", ""},
	} {
		got, err := ParseNetns(c.in)
		if want := (Netns{c.name, c.path}); got != want || (err != nil) != (c.name == "") {
			t.Errorf("%q: have %+v, %v; want %+v", c.in, got, err, want)
		}
		if err != nil && fault.Of(err) != fault.Invalid {
			t.Errorf("%q: error of kind %s", c.in, fault.Of(err))
		}
	}
	ns, _ := ParseNetns("blue")
	if got := ns.ID("ai"); got != "blue/ai" {
		t.Errorf("ID: %q", got)
	}
}

func TestExists(t *testing.T) {
	path := filepath.Join(t.TempDir(), "blue")
	ns := Netns{"blue", path}
	if err := ns.Exists(); fault.Of(err) != fault.Gone {
		t.Errorf("missing: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ns.Exists(); err != nil {
		t.Error(err)
	}
}

func TestAlive(t *testing.T) {
	const path = "/proc/self/ns/net"
	unmounted := filepath.Join(t.TempDir(), "blue")
	if err := os.WriteFile(unmounted, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	id, err := netns.At(path)
	if err != nil {
		t.Fatal(err)
	}
	other := id
	other.Inode++
	cookie := id
	cookie.Cookie = 1
	for name, c := range map[string]struct {
		path, boot string
		id         reconcile.NetnsID
		want       bool
	}{
		"there":        {path, "now", id, true},
		"with cookie":  {path, "now", cookie, true},
		"gone":         {path + "x", "now", id, false},
		"unmounted":    {unmounted, "before", other, false},
		"another one":  {path, "now", other, false},
		"unknown":      {path, "now", reconcile.NetnsID{}, true},
		"another boot": {path, "before", other, true},
	} {
		rec := reconcile.Record{Sandbox: reconcile.Sandbox{Netns: c.path}, NetnsID: c.id, BootID: c.boot}
		if got := Alive(rec, "now"); got != c.want {
			t.Errorf("%s: alive %t, want %t", name, got, c.want)
		}
	}
}
