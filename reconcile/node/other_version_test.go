package node

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/watch"
	"github.com/plumbline/plumbline/topology/fault"
)

// later turns the log of a sandbox into one that a later version has written and that
// mentions a device. It returns its path and content.
func (n *node) later(name string) (path string, log []byte) {
	n.t.Helper()
	path = filepath.Join(n.StateDir, name+".journal")
	own, err := os.ReadFile(path)
	if err != nil {
		n.t.Fatal(err)
	}
	line, err := frame.Encode(map[string]any{"record": map[string]any{"sandbox": map[string]any{"devices": []string{"0000:03:00.2"}}, "bootID": "boot"}})
	if err != nil {
		n.t.Fatal(err)
	}
	log = append(own, append([]byte("9"), line[len(frame.Version):]...)...)
	if err := os.WriteFile(path, log, 0o600); err != nil {
		n.t.Fatal(err)
	}
	return path, log
}

// TestRecordOfAnotherVersion holds that a sandbox with a record of another version is
// neither repaired nor released nor forgotten, that this is logged once, and that no
// other sandbox is affected.
func TestRecordOfAnotherVersion(t *testing.T) {
	var path string
	var log []byte
	running(t, func(n *node) {
		for id, name := range map[reconcile.SandboxID]string{"blue/ai": "blue", "red/ai": "red", "run/file/ai": "file"} {
			n.make(name)
			n.byHand(id, name, "mtu: 1400")
		}
		path, log = n.later("blue%2Fai")
		n.later("run%2Ffile%2Fai") // and no file describes it any more
	}, func(n *node) {
		for id, name := range map[reconcile.SandboxID]string{"blue/ai": "blue", "red/ai": "red", "run/file/ai": "file"} {
			n.world.change(t, n.path(name), disturbed)
			n.notify(watch.Event{ID: id, Reason: watch.Changed})
		}
		n.expect("of another version", "blue", "net1/1500")
		n.expect("of another version, and no file describes it", "file", "net1/1500")
		n.expect("of this version", "red", "net1/1400")
		if n.recorder.others != 2 {
			t.Errorf("%d records of other versions are reported, want 2", n.recorder.others)
		}
		n.reread()
		said := n.log.take()
		if c := strings.Count(said, "record of another version"); c != 2 || strings.Contains(said, "level=ERROR") {
			t.Errorf("logged %d times:\n%s", c, said)
		}
		n.refused(path)
		if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, log) {
			t.Errorf("the record was changed: %v\n%s", err, have)
		}

		// The later version was removed, and left a record that this one can read.
		if err := os.WriteFile(path, log[:bytes.LastIndexByte(log[:len(log)-1], '\n')+1], 0o600); err != nil {
			t.Fatal(err)
		}
		n.reread()
		n.expect("of this version again", "blue", "net1/1400")
		if n.recorder.others != 1 {
			t.Errorf("%d records of other versions are reported, want 1", n.recorder.others)
		}
	})
}

// refused holds that the engine refuses a sandbox with another version's record, and
// refuses the device it mentions to all others.
func (n *node) refused(path string) {
	n.t.Helper()
	sb := reconcile.Sandbox{ID: "green/ai", Netns: n.path("red"), Topology: steps(n.t, twoVFs), Given: ops.Givens{}.WithDevices(map[string]string{"a": "0000:03:00.2"})}
	_, err := n.engine.Ensure(n.t.Context(), sb)
	if fault.Of(err) != fault.Conflict || frame.AsOtherVersion(err) == nil || !strings.Contains(err.Error(), `device "0000:03:00.2" is held by record "`+path) {
		n.t.Errorf("Ensure of its device: %v", err)
	}
	sb.ID = "blue/ai"
	if _, err := n.engine.Ensure(n.t.Context(), sb); frame.AsOtherVersion(err) == nil {
		n.t.Errorf("Ensure: %v", err)
	}
	for what, do := range map[string]func() error{
		"Release": func() error { _, err := n.engine.Release(n.t.Context(), "blue/ai"); return err },
		"Repair":  func() error { _, err := n.engine.Repair(n.t.Context(), "blue/ai"); return err },
		"Check":   func() error { _, err := n.engine.Check(n.t.Context(), "blue/ai"); return err },
	} {
		if err := do(); frame.AsOtherVersion(err) == nil || fault.Of(err) != fault.Conflict {
			n.t.Errorf("%s: %v", what, err)
		}
	}
}
