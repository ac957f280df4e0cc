package all_test

import (
	"os"
	"path/filepath"
	"regexp"
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
		if e.IsDir() && !slices.Contains([]string{"all", "netstate", "optest", "testdata"}, e.Name()) {
			out = append(out, e.Name())
		}
	}
	return out
}

// TestTypeFolders holds that every step type is registered once by a folder of its own.
func TestTypeFolders(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	folders := typeFolders(t)
	if len(folders) != len(reg.Types()) {
		t.Errorf("folders %v, types %v: all.go lists each", folders, reg.Types())
	}
	for _, typ := range reg.Types() {
		if !slices.Contains(folders, strings.ReplaceAll(typ, "-", "")) {
			t.Errorf("type %q has no folder ops/%s", typ, strings.ReplaceAll(typ, "-", ""))
		}
	}
}

// TestTypesAreCovered holds that a step type is in each table and list that a new one
// is easily left out of. A type without a row there is named here, with the reason.
func TestTypesAreCovered(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const noInfiniBand = "needs InfiniBand: its messages are in reconcile/kernel/ipoib_linux_test.go"
	for _, table := range []struct {
		what, files string
		row         string // TYPE is the type, what follows it in a list is , } or the end of a line
		exempt      map[string]string
	}{
		{"case on a real kernel", "../../integration/kernel/testdata/*.txtar", `type: TYPE[,}\n]`, map[string]string{
			"ovn-k8s-cni-overlay": "needs OVN: integration/chassis", "ipoib": noInfiniBand,
		}},
		{"row of drift", "../../integration/kernel/drift_test.go", `type: TYPE[,}\n]`, map[string]string{
			"host-device": "the device of sriov without its settings", "rdma": "changes nothing", "ovn-k8s-cni-overlay": "needs OVN: integration/chassis", "ipoib": noInfiniBand,
		}},
		{"row among the pairs that are stacked", "../../integration/kernel/stacking_test.go", `\t"TYPE": +{"`, map[string]string{
			"sriov": "makes no link", "host-device": "makes no link", "tuning": "makes no link", "vfio-pci": "has no interface", "rdma": "has no interface", "rxe": "makes no link",
			"ovn-k8s-cni-overlay": "needs OVN: integration/chassis", "ipoib": noInfiniBand,
		}},
		{"step among the random topologies", "fuzz_test.go", `g\.step\("TYPE"`, nil},
		{"place in the list of types", "../../docs/status.md", "`TYPE`[,\n ]", nil},
	} {
		files, err := filepath.Glob(table.files)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v %v", table.files, files, err)
		}
		var all strings.Builder
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
		for _, typ := range reg.Types() {
			row := regexp.MustCompile(strings.ReplaceAll(table.row, "TYPE", regexp.QuoteMeta(typ)))
			_, exempt := table.exempt[typ]
			if there := row.MatchString(all.String()); !there && !exempt {
				t.Errorf("type %q has no %s: add one to %s", typ, table.what, table.files)
			} else if there && exempt {
				t.Errorf("type %q has a %s, and is exempt from it here", typ, table.what)
			}
		}
	}
}
