package topology_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/plumbline/plumbline/topology"
)

var update = flag.Bool("update", false, "rewrite the golden files under testdata")

// TestTopologies reads testdata/topology/*.txtar: topology.yaml is decoded, validated
// with the contracts of testdata and ordered; order.txt or error.txt is the expected
// result.
func TestTopologies(t *testing.T) {
	files, err := filepath.Glob("testdata/topology/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	set := testContracts(t)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input := section(archive, "topology.yaml")
			if input == nil {
				t.Fatal("no section topology.yaml")
			}
			golden(t, file, archive, outcome(t, input, func(top *topology.Topology) error { return topology.Validate(t.Context(), top, set) }))
		})
	}
}

// outcome is the section a case must end with.
func outcome(t *testing.T, input []byte, validate func(*topology.Topology) error) txtar.File {
	t.Helper()
	top, err := topology.Decode(input)
	if err == nil {
		err = validate(top)
	}
	if err != nil {
		return txtar.File{Name: "error.txt", Data: []byte(err.Error() + "\n")}
	}
	steps, err := topology.Order(top)
	if err != nil {
		t.Fatalf("valid, but cannot be ordered: %v", err)
	}
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&b, "%s %s", s.Type, s.Name)
		if !s.Root() {
			fmt.Fprintf(&b, " on %s", strings.Join(s.DependOn, ", "))
		}
		b.WriteByte('\n')
	}
	for _, i := range top.Ignored {
		fmt.Fprintf(&b, "ignored %s\n", i)
	}
	return txtar.File{Name: "order.txt", Data: []byte(b.String())}
}

func section(a *txtar.Archive, name string) []byte {
	for _, f := range a.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

// golden compares the last section of a case, or rewrites it with -update.
func golden(t *testing.T, file string, a *txtar.Archive, got txtar.File) {
	t.Helper()
	if *update {
		a.Files = append(slices.Clone(a.Files[:1]), got)
		if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := section(a, got.Name)
	if want == nil {
		t.Fatalf("want no %s, got:\n%s", got.Name, got.Data)
	}
	if diff := cmp.Diff(string(want), string(got.Data)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", got.Name, diff)
	}
}

func TestInvalidCarriesProblems(t *testing.T) {
	err := topology.Validate(t.Context(), &topology.Topology{Name: "t", Steps: []topology.Step{
		{Name: "v", Type: "vlan", Config: map[string]any{"id": 5000, "master": "eth0"}},
	}}, testContracts(t))
	var inv *topology.Invalid
	if !errors.As(fmt.Errorf("admit: %w", err), &inv) {
		t.Fatalf("%T is no *Invalid", err)
	}
	var fields []string
	for _, p := range inv.Problems {
		fields = append(fields, p.Step+" "+p.Field)
	}
	if diff := cmp.Diff([]string{"v dependOn", "v config.id"}, fields); diff != "" {
		t.Error(diff)
	}
}

func TestGraphAccess(t *testing.T) {
	top := &topology.Topology{Name: "t", Steps: []topology.Step{
		{Name: "tune", DependOn: []string{"vlan", "nowhere"}},
		{Name: "vf0"},
		{Name: "vf1"},
		{Name: "bond", DependOn: []string{"vf1", "vf0"}},
		{Name: "vlan", DependOn: []string{"bond"}},
		{Name: "loop", DependOn: []string{"loop"}},
	}}
	names := func(steps []*topology.Step) string {
		var out []string
		for _, s := range steps {
			out = append(out, s.Name)
		}
		return strings.Join(out, " ")
	}
	for _, tt := range []struct{ what, got, want string }{
		{"roots", names(top.Roots()), "vf0 vf1"},
		{"ancestors in order of declaration", names(top.Ancestors("tune")), "vf0 vf1 bond vlan"},
		{"ancestors in a cycle", names(top.Ancestors("loop")), "loop"},
		{"ancestors of no step", names(top.Ancestors("nowhere")), ""},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.what, tt.got, tt.want)
		}
	}
	if _, ok := top.Step("nowhere"); ok {
		t.Error("found a step that is not there")
	}
}
