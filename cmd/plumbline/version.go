package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/reconcile/metrics"
)

// release is set by the linker for releases.
var release string

// build returns the version of the program.
func build() metrics.Build {
	b := metrics.Build{Version: release, Revision: "unknown", GoVersion: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if b.Version == "" {
		b.Version = "development"
		if ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
			b.Version = info.Main.Version
		}
	}
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value
		}
	}
	return b
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: `  plumbline version`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			b := build()
			fmt.Fprintf(a.out, "plumbline %s (revision %s, %s, %s/%s)\n", b.Version, b.Revision, b.GoVersion, runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}
