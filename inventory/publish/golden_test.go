package publish

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestFormat holds that the file is read in full, and written again as it was: what changes it needs another version.
// See docs/adr/0016.
func TestFormat(t *testing.T) {
	const golden = "testdata/published.json"
	known, err := load(golden)
	if err != nil || len(known) != 2 {
		t.Fatalf("have %v, %v", known, err)
	}
	file := filepath.Join(t.TempDir(), "published.json")
	must(t, save(file, known))
	want, err := os.ReadFile(golden)
	must(t, err)
	if have, err := os.ReadFile(file); err != nil || !bytes.Equal(have, want) {
		t.Errorf("read and written again: %v\nhave %s\nwant %s", err, have, want)
	}
}
