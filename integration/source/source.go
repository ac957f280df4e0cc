// Package source lists the Go files of the module for tests that hold a rule about all of them.
package source

import (
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
)

// Files returns the Go files below root, the module's folder, by their path from there. Like go list ./... it leaves out testdata
// and what begins with a dot or "_"; unlike it, it includes modules of their own and files with build tags.
func Files(t testing.TB, root string) map[string]string {
	t.Helper()
	found, tree := map[string]string{}, os.DirFS(root)
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (d.Name()[0] == '.' || d.Name()[0] == '_' || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		content, err := fs.ReadFile(tree, name)
		found[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// IsTest reports whether a file is only compiled for tests.
func IsTest(name string) bool { return strings.HasSuffix(name, "_test.go") }
