package main

import (
	"fmt"
	"log/slog"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/reconcile/metrics"
	"github.com/plumbline/plumbline/reconcile/version"
)

// build identifies this build in metrics and logs.
func build() metrics.Build {
	return metrics.Build{Version: version.Version(), Revision: version.Revision(), GoVersion: runtime.Version()}
}

// versionDocument is what version prints.
type versionDocument struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) version() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: `  plumbline version`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			if format == formatText {
				_, err := fmt.Fprintln(a.out, version.Line("plumbline"))
				return err
			}
			b := build()
			return a.document(format, versionDocument{b.Version, b.Revision, b.GoVersion, runtime.GOOS + "/" + runtime.GOARCH})
		},
	}
	outputFlag(cmd, &format, formatText, formatJSON, formatYAML)
	return cmd
}

// logStart writes the first line of a daemon's log.
func logStart(log *slog.Logger) {
	b := build()
	log.Info("starting", "version", b.Version, "revision", b.Revision, "go", b.GoVersion)
}
