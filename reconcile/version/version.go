// Package version identifies the build of a program.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// The linker sets both for releases (make release).
var release, revision string

// Version is that of the release, such as "v0.1.0". Of a build from a module cache it is the
// version of the module, of any other build "development".
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if release == "" && ok && info.Main.Version != "(devel)" {
		return cmp.Or(info.Main.Version, "development")
	}
	return cmp.Or(release, "development")
}

// Revision is the commit that the program was built from, or "unknown".
func Revision() string {
	info, ok := debug.ReadBuildInfo()
	if revision != "" || !ok {
		return cmp.Or(revision, "unknown")
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return "unknown"
}

// Line describes a program of this build.
func Line(program string) string {
	return fmt.Sprintf("%s %s (revision %s, %s, %s/%s)", program, Version(), Revision(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
