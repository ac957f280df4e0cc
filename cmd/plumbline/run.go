package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/reconcile/agent"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/metrics"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/reconcile/watch"
)

// daemon holds the flags of run.
type daemon struct {
	dir     string
	listen  string
	workers int
	resync  time.Duration
}

func (a *app) run() *cobra.Command {
	var d daemon
	cmd := &cobra.Command{
		Use:   "run --config DIRECTORY",
		Short: "Apply the topologies in a directory, and repair drift",
		Long: `Applies the sandbox that each file *.yaml of a directory describes, and repairs it:

  netns: blue                  # a name in ` + node.NetnsDir + `, or a path; it may come later
  topologyFile: ai.yaml        # relative to the directory; or the whole object as topology:
  devices:                     # optional, as --device of apply
    vf0: 0000:03:10.0
  addresses:                   # optional, as --address of apply
    data0: [192.0.2.5/24]
  networkQoS: [qos.yaml]       # optional, NetworkQoS objects for a pod
  namespace: ai                # of this namespace
  labels: {app: training}      # with these labels

When a file is deleted, its sandbox is released. A file that cannot be read leaves its
sandbox as it is. A sandbox keeps a topology that only an earlier version of plumbline
accepted, also after a reboot.

Drift is repaired within milliseconds, or with driftPolicy: Observe only reported.
Sandboxes of ` + "`plumbline apply`" + ` are repaired too, and never released. All networks outlive
the daemon.

It serves /metrics, /healthz and /readyz.`,
		Example: `  plumbline run --config /etc/plumbline`,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context(), a) },
	}
	f := cmd.Flags()
	f.StringVar(&d.dir, "config", "", "`directory` with the files")
	_ = cmd.MarkFlagRequired("config")
	_ = cmd.MarkFlagDirname("config")
	f.StringVar(&d.listen, "listen", "127.0.0.1:9477", "`address` to serve metrics on")
	f.IntVar(&d.workers, "workers", 4, "`number` of sandboxes checked at the same time")
	f.DurationVar(&d.resync, "resync", time.Minute, "`interval` between checks of a sandbox; at most two checks a second")
	a.daemon.add(cmd)
	a.ovn.flags(cmd, defaultOVS, defaultNB)
	return cmd
}

func (d *daemon) run(ctx context.Context, a *app) error {
	if d.workers < 1 || d.resync <= 0 {
		return errors.New("--workers and --resync must be positive")
	}
	if info, err := os.Stat(d.dir); err != nil {
		return fmt.Errorf("--config: %w", err)
	} else if !info.IsDir() {
		return fmt.Errorf("--config: %q is not a directory", d.dir)
	}
	log := a.log(slog.LevelInfo)
	counts := metrics.New(build(), time.Now)
	a.host.Searching = hostengine.Searching(log, counts)
	e, err := a.engine("run", true, counts)
	if err != nil {
		return err
	}
	defer e.Close()
	logStart(log)
	if err := a.daemon.profile(ctx, log); err != nil {
		return err
	}
	watcher, err := watch.New(watch.Options{Resync: d.resync})
	if err != nil {
		return err
	}
	defer watcher.Close()
	if why := watcher.Fallback(); why != nil {
		log.Warn("cannot watch all network namespaces with one socket: using one socket for each", "reason", why)
	}
	loop := node.New(node.Options{
		Dir: d.dir, StateDir: a.stateDir, Reconciler: e.Reconciler, Store: e.Store, Damaged: e.Damaged,
		OtherVersions: func() []*frame.OtherVersion { return e.otherVersions(a.stateDir) },
		Contracts:     a.registry, BootID: e.Host.BootID(), Sys: os.DirFS("/sys"),
		Discover: func() ([]inventory.Device, error) { return hostengine.Devices(ctx, e.Host, nil) },
		Watcher:  watcher, Recorder: counts, Log: log, Now: time.Now,
		Workers: d.workers, Timeout: a.timeout, Resync: d.resync,
	})
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", d.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	server := agent.NewServer(metrics.Handler(counts, metrics.Health{Loop: loop.Work}), func() error { return nil }, loop.Ready)
	log.Info("running", "config", d.dir, "state", a.stateDir, "listen", listener.Addr().String())

	// If one part ends, all end; a requested stop is not an error.
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return watcher.Run(ctx) })
	group.Go(func() error { return loop.Run(ctx) })
	group.Go(func() error { return e.Leases.Run(ctx) })
	agent.ServeHTTP(ctx, group, server, listener)
	err = group.Wait()
	log.Info("stopped: all networks stay as they are")
	return err
}
