package reconcile_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
)

// TestKindsOfEngine holds that the engine names the kinds that every sandbox has, and no kind of a feature: what such a kind needs
// of the engine is a trait, or a function of package ops.
func TestKindsOfEngine(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]netstate.Kind{}
	for _, k := range netstate.Kinds() {
		o, err := netstate.ReadObject(k, []byte("{}"))
		if err != nil {
			t.Fatal(err)
		}
		types[reflect.TypeOf(o).Name()] = k
	}
	names := regexp.MustCompile(`netstate\.(?:Kind)?(\w+)`)
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range names.FindAllStringSubmatch(string(source), -1) {
			if k, ok := types[m[1]]; ok && !slices.Contains([]netstate.Kind{netstate.KindLink, netstate.KindAddress, netstate.KindDevice}, k) {
				t.Errorf("%s names the kind %q, by %s", file, k, m[0])
			}
		}
	}
}
