package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/agent"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/journal"
)

// TestOtherVersionsAreReported: status names every record that another version has written
// and changes none.
func TestOtherVersionsAreReported(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	j, err := journal.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	line, err := frame.Encode(map[string]any{"record": map[string]any{"bootID": "boot", "function": "0000:03:00.2"}})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"blue%2Fai.journal": "9" + string(line[1:]),
		"claims/aa.claim":   "9" + string(line[1:]),
		agent.PublishedFile: `{"version":2}`,
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var said bytes.Buffer
	a := &app{stateDir: dir, stdio: stdio{err: &said}}
	e := &engine{Base: &hostengine.Base{Journal: j, Store: j}, Reconciler: reconcile.New(reconcile.Options{Store: j, BootID: "boot"})}
	found, err := a.look(&cobra.Command{}, e, "")
	if err != nil || len(found.others) != len(files) || len(found.damaged) != 0 || !errors.Is(found.differ(), status(exitDiffers)) {
		t.Errorf("found %+v, %v", found, err)
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		want := `plumbline: record "` + path + `": written by another version of plumbline and left alone (`
		if !strings.Contains(said.String(), want) || !ofState(path) {
			t.Errorf("%s is not named:\n%s", name, said.String())
		}
		if have, err := os.ReadFile(path); err != nil || string(have) != text {
			t.Errorf("%s is %q, %v", name, have, err)
		}
	}
}
