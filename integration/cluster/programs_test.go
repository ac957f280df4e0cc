package cluster

import (
	"os"
	"strings"
	"testing"
)

// TestVersions: a list of modules builds the version that programs made of it say they are, since that is set by the
// linker.
func TestVersions(t *testing.T) {
	for name, v := range versions {
		modules, err := os.ReadFile("kubernetes/" + v.modules)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(v.version, "v"+name+".") || !strings.Contains(string(modules), "\tk8s.io/kubernetes "+v.version+"\n") {
			t.Errorf("%s is not the Kubernetes %s of %s", name, v.version, v.modules)
		}
	}
}
