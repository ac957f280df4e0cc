package primary

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// node is the part of a node that an Installer changes.
type node struct {
	t                      *testing.T
	ready, unlisted        error
	selected, known, inUse bool
	leads                  bool
	now, ended             time.Time
	bin, conf              string
	*Installer
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{t: t, leads: true, now: time.Unix(1_700_000_000, 0), ready: errors.New("not yet"), bin: filepath.Join(dir, "bin", "plumbline"), conf: filepath.Join(dir, "conf", "10-plumbline.conflist")}
	for _, d := range []string{"bin", "conf"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.write(filepath.Join(dir, "program"), "version 1")
	n.Installer = NewInstaller(InstallerOptions{
		Program: filepath.Join(dir, "program"), BinDir: filepath.Dir(n.bin), ConfDir: filepath.Dir(n.conf), ConfName: filepath.Base(n.conf), Socket: "/run/s",
		Ready: func() error { return n.ready }, Selected: func() (bool, bool) { return n.selected, n.known }, InUse: func() (bool, error) { return n.inUse, n.unlisted },
		Leads: func() bool { return n.leads }, LastEnded: func() time.Time { return n.ended }, Now: func() time.Time { return n.now }, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	return n
}

func (n *node) write(path, text string) {
	n.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) pass() {
	n.t.Helper()
	if err := n.Pass(); err != nil {
		n.t.Fatal(err)
	}
}

// loopback is the path of the other name of the plugin.
func (n *node) loopback() string { return filepath.Join(filepath.Dir(n.bin), "loopback") }

// has holds whether all files are there, and that nothing else is.
func (n *node) has(when string, want bool) {
	n.t.Helper()
	for _, path := range []string{n.bin, n.loopback(), n.conf} {
		if _, err := os.Stat(path); (err == nil) != want {
			n.t.Errorf("%s: %s: %v", when, path, err)
		}
		entries, err := os.ReadDir(filepath.Dir(path))
		if err != nil || len(entries) > 2 {
			n.t.Errorf("%s: beside %s: %v, %v", when, path, entries, err)
		}
	}
}

// TestInstaller: the files are there from when pods can be given a network until no pod has
// it, whatever else happens to them.
func TestInstaller(t *testing.T) {
	n := newNode(t)
	n.pass()
	n.has("nothing is known", false)
	n.known, n.selected = true, true
	if err := n.Pass(); !errors.Is(err, n.ready) { // which is logged: no runtime asks the plugin yet
		t.Errorf("not ready: %v, want %v", err, n.ready)
	}
	n.has("not ready", false)
	n.ready = nil
	n.pass()
	n.has("ready", true)
	if info, err := os.Stat(n.bin); err != nil || info.Mode() != 0o755 {
		t.Errorf("the program cannot be started: %v, %v", info.Mode(), err)
	}
	var conf struct {
		Name, CNIVersion string
		CNIVersions      []string
		Plugins          []struct{ Type, Socket string }
	}
	data, err := os.ReadFile(n.conf)
	if err == nil {
		err = json.Unmarshal(data, &conf)
	}
	if err != nil || conf.Name != Name || len(conf.Plugins) != 1 || conf.Plugins[0].Type != "plumbline" || conf.Plugins[0].Socket != "/run/s" {
		t.Errorf("%v: %s", err, data)
	}

	for what, path := range map[string]string{"the program": n.bin, "the configuration": n.conf} {
		n.write(path, "other")
		n.pass()
		if data, err := os.ReadFile(path); err != nil || string(data) == "other" {
			t.Errorf("%s was changed: %v, %s", what, err, data)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		n.pass()
		n.has(what+" was removed", true)
	}
	if err := os.Remove(n.loopback()); err != nil {
		t.Fatal(err)
	}
	n.pass()
	n.has("the plugin loopback was removed", true)
	// The next agent has another program.
	n.write(n.Program, "version 2")
	n.verified = nil
	n.pass()
	if data, err := os.ReadFile(n.bin); err != nil || string(data) != "version 2" {
		t.Errorf("the program of the next agent: %v, %s", err, data)
	}

	// In an update two agents have different ones, and the later one installs its own.
	n.write(n.bin, "version 3")
	n.leads = false
	n.pass()
	if data, err := os.ReadFile(n.bin); err != nil || string(data) != "version 3" {
		t.Errorf("beside a later agent: %v, %s", err, data)
	}
	n.leads = true
	n.pass()
	if data, err := os.ReadFile(n.bin); err != nil || string(data) != "version 2" {
		t.Errorf("without a later agent: %v, %s", err, data)
	}

	n.ready = errors.New("not now")
	n.pass()
	n.has("not ready any more", true)
	n.selected, n.inUse = false, true
	n.pass()
	n.has("pods have it", true)
	// An ADD that ended while the files were removed, or an administrator who was too early.
	for _, path := range []string{n.bin, n.conf} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	n.unlisted = errors.New("too many open files")
	n.pass()
	n.has("removed, and whether pods have it is not known", false)
	n.unlisted = nil
	n.pass()
	n.has("removed while pods have it", true)
	n.inUse, n.unlisted = false, errors.New("too many open files")
	n.pass()
	n.has("whether pods have it is not known", true)
	n.unlisted = nil
	n.ended = n.now
	n.pass()
	n.has("the last pod has just ended", true)
	n.now = n.now.Add(linger)
	n.pass()
	n.has("no pod has it", false)
	if _, err := os.Lstat(n.loopback()); err == nil {
		t.Error("no pod has it, and the plugin loopback is left")
	}
}

// TestInstallerBesideAnother: a file that the runtime uses instead of ours is reported, and none
// that is another's is removed.
func TestInstallerBesideAnother(t *testing.T) {
	n := newNode(t)
	n.known, n.selected, n.ready = true, true, nil
	first := filepath.Join(filepath.Dir(n.conf), "05-other.conflist")
	n.write(first, "{}")
	if err := n.Pass(); err == nil || !strings.Contains(err.Error(), "05-other.conflist") {
		t.Errorf("another network comes first: %v", err)
	}
	if err := os.Rename(first, filepath.Join(filepath.Dir(n.conf), "90-other.conflist")); err != nil {
		t.Fatal(err)
	}
	n.pass()
	n.write(n.conf, `{"plugins": [{"type": "other"}]}`)
	n.selected = false
	n.pass()
	if _, err := os.Stat(n.conf); err != nil {
		t.Errorf("another's file: %v", err)
	}

	// A node may have the plugin loopback.
	n = newNode(t)
	n.known, n.selected, n.ready = true, true, nil
	n.write(n.loopback(), "another")
	n.pass()
	n.selected = false
	n.pass()
	if data, err := os.ReadFile(n.loopback()); err != nil || string(data) != "another" {
		t.Errorf("another's plugin loopback: %s, %v", data, err)
	}
	if _, err := os.Stat(n.bin); err == nil {
		t.Error("the program is left")
	}
}
