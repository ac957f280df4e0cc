package all_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/optest"
)

// TestLaws holds the laws for the cases of every step type. A folder of a type
// without cases fails: nothing would be known of it.
func TestLaws(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range typeFolders(t) {
		t.Run(dir, func(t *testing.T) { optest.Run(t, reg, filepath.Join("..", dir, "testdata")) })
	}
	t.Run("all", func(t *testing.T) { optest.Run(t, reg, "testdata") })
}

// typeFolders are the folders of step types: those beside this one but for what is
// no step type.
func typeFolders(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() && !slices.Contains([]string{"all", "fault", "netstate", "optest", "testdata"}, e.Name()) {
			out = append(out, e.Name())
		}
	}
	return out
}

// TestTypesAreTested holds that every step type is registered once by a folder of
// its own, and has a case on a real kernel: the laws hold the model against itself
// only.
func TestTypesAreTested(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	folders := typeFolders(t)
	if len(folders) != len(reg.Types()) {
		t.Errorf("folders %v, types %v: all.go lists each", folders, reg.Types())
	}
	files, err := filepath.Glob("../../integration/kernel/testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var cases strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		cases.Write(text)
	}
	for _, typ := range reg.Types() {
		if !slices.Contains(folders, strings.ReplaceAll(typ, "-", "")) {
			t.Errorf("type %q has no folder ops/%s", typ, strings.ReplaceAll(typ, "-", ""))
		}
		if !strings.Contains(cases.String(), "type: "+typ+",") && !strings.Contains(cases.String(), "type: "+typ+"\n") && !strings.Contains(cases.String(), "type: "+typ+"}") {
			t.Errorf("type %q has no case in integration/kernel/testdata", typ)
		}
	}
}
