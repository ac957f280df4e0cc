package claims_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
)

// TestFormat holds that records of a claim are read in full, and written again as they were, but for the order of
// fields: what changes them needs another version. See docs/adr/0016 for what may be added.
func TestFormat(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, "boot")
	files := []string{"aa.claim", "aa.sandboxes"}
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join("testdata/format", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "claims", name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e := get(t, s, "aa")
	if len(e.In) != 5 || e.Sandbox("s4").Phase != claims.Attached || !e.Updating() || len(e.Topologies[0].Devices) != 2 {
		t.Errorf("entry: %+v", e)
	}
	if err := s.Put(e.Claim); err != nil {
		t.Fatal(err)
	}
	if err := s.PutSandboxes(e); err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		want, err := os.ReadFile(filepath.Join("testdata/format", name))
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(filepath.Join(dir, "claims", name))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(content(t, want), content(t, have)); d != "" {
			t.Errorf("%s, read and written again (-want +got):\n%s", name, d)
		}
	}
}

// content is a record, without the order of its fields.
func content(t *testing.T, line []byte) (out any) {
	t.Helper()
	payload, err := frame.Decode(bytes.TrimSuffix(line, []byte("\n")))
	if err == nil {
		dec := json.NewDecoder(bytes.NewReader(payload))
		dec.UseNumber()
		err = dec.Decode(&out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}
