package publish

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestStateOfC3bdea8 holds that the file as commit c3bdea8 wrote it is read in full, and is
// written for it as it wrote it: it takes no field that it does not know.
// The file is never rewritten. See docs/adr/0016.
func TestStateOfC3bdea8(t *testing.T) {
	const golden = "testdata/c3bdea8/published.json"
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
