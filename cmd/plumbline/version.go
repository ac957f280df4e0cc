package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/discovery"

	"github.com/plumbline/plumbline/reconcile/metrics"
	"github.com/plumbline/plumbline/reconcile/version"
	"github.com/plumbline/plumbline/topology/apiserver"
)

// build identifies this build in metrics and logs.
func build() metrics.Build {
	return metrics.Build{Version: version.Version(), Revision: version.Revision(), GoVersion: runtime.Version()}
}

// versionDocument is the output of version.
type versionDocument struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) version() *cobra.Command {
	var format string
	var cluster bool
	var of kubeFlags
	cmd := &cobra.Command{
		Use:   "version [--cluster]",
		Short: "Print the version, and what a cluster lacks",
		Long: `Prints the version of this program. --cluster adds the API server's version, and for each
feature of Kubernetes that plumbline uses whether the server has it, what uses it, and
what happens without it.

The features are read from the server's /metrics. Without the right to get that URL, the
defaults of its version are printed.`,
		Example: "  plumbline version --cluster",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case cluster:
				return a.clusterVersion(cmd.Context(), &of, format)
			case of != kubeFlags{}:
				return errors.New("--kubeconfig and --context: are of use with --cluster only: add it, or leave them out")
			case format == formatText:
				_, err := fmt.Fprintln(a.out, version.Line("plumbline"))
				return err
			}
			b := build()
			return a.document(format, versionDocument{b.Version, b.Revision, b.GoVersion, runtime.GOOS + "/" + runtime.GOARCH})
		},
	}
	outputFlag(cmd, &format, formatText, formatJSON, formatYAML)
	cmd.Flags().BoolVar(&cluster, "cluster", false, "ask the API server, too")
	of.flags(cmd, cmd.Flags())
	return cmd
}

// clusterDocument is the output of version --cluster.
type clusterDocument struct {
	versionDocument
	Cluster  string              `json:"cluster"` // version of the API server
	Features []apiserver.Finding `json:"features"`
	Note     string              `json:"note,omitempty"`
}

// maxAsking bounds how long an API server is asked: its metrics may be long.
const maxAsking = 30 * time.Second

func (a *app) clusterVersion(ctx context.Context, of *kubeFlags, format string) error {
	config, _, err := of.config()
	if err != nil {
		return err
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	ctx, stop := context.WithTimeout(ctx, maxAsking)
	defer stop()
	server, err := apiserver.Discover(ctx, client)
	if err != nil {
		return err
	}
	findings := server.Findings()
	if format != formatText {
		b := build()
		own := versionDocument{b.Version, b.Revision, b.GoVersion, runtime.GOOS + "/" + runtime.GOARCH}
		return a.document(format, clusterDocument{own, server.Version, findings, server.Unread})
	}
	t := a.text()
	t.line("%s", version.Line("plumbline"))
	t.line("Kubernetes %s", server.Version)
	t.line("")
	tw := tabwriter.NewWriter(t, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "FEATURE\tSTATE\tUSED FOR")
	for _, f := range findings {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", f.Feature, f.State, f.For)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for i, f := range findings {
		if i == 0 {
			t.line("")
		}
		if f.Reason != "" {
			t.line("%s is off: %s.", f.Feature, f.Reason)
		}
	}
	if server.Unread != "" {
		a.note("%s", server.Unread)
	}
	return nil
}

// logStart writes the first line of a daemon's log.
func logStart(log *slog.Logger) {
	b := build()
	log.Info("starting", "version", b.Version, "revision", b.Revision, "go", b.GoVersion)
}
