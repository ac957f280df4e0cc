package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/reconcile/watch"
)

// repair measures how long a route stays away that somebody deletes, with the
// node's loop watching: from the end of the deletion to the kernel's notice
// that the route is back.
func repair(ctx context.Context, n int) error {
	e, err := bareEngine(virtual)
	if err != nil {
		return err
	}
	path, err := kernel.AddNamed("repair")
	if err != nil {
		return err
	}
	defer func() { _ = kernel.DeleteNamed(path) }() // the machine is thrown away
	if err := e.apply(ctx, path); err != nil {
		return err
	}
	stop, err := e.watch(ctx)
	if err != nil {
		return err
	}
	times, err := deleteAndWait(ctx, path, n)
	if err := stop(); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	if err := e.remove(ctx, path); err != nil {
		return err
	}
	fmt.Printf("\n### From a deleted route to its repair, debounce of 10 ms included (n=%d)\n\n", len(times))
	fmt.Println("| median, ms | p99, ms | max, ms |\n|---|---|---|")
	fmt.Printf("| %s | %s | %s |\n", millis(median(times)), millis(quantile(times, 0.99)), millis(quantile(times, 1)))
	return nil
}

// watch runs the node's loop over the engine's journal until the function it
// returns is called.
func (e *engine) watch(ctx context.Context) (stop func() error, err error) {
	watcher, err := watch.New(watch.Options{})
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "plumbline-benchmark-run-")
	if err != nil {
		return nil, err
	}
	loop := node.New(node.Options{
		Dir: dir, StateDir: e.dir, Reconciler: e.reconciler, Store: e.store, BootID: e.host.BootID(), Contracts: e.registry,
		Damaged: e.store.Damaged, Discover: func() ([]inventory.Device, error) { return nil, nil }, Sys: os.DirFS("/sys"),
		Watcher: watcher, Recorder: silent{}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now,
	})
	ctx, cancel := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error { return watcher.Run(ctx) })
	group.Go(func() error { return loop.Run(ctx) })
	for loop.Ready() != nil && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	return func() error {
		cancel()
		return group.Wait()
	}, nil
}

type silent struct{}

func (silent) Repaired(time.Duration)     {}
func (silent) Damaged(int)                {}
func (silent) Forget(reconcile.SandboxID) {}

func (silent) Fighting(reconcile.SandboxID, string, []reconcile.Fight) {}

func deleteAndWait(ctx context.Context, path string, n int) ([]time.Duration, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	notices, done := make(chan netlink.RouteUpdate, 64), make(chan struct{})
	defer close(done)
	if err := netlink.RouteSubscribeWithOptions(notices, done, netlink.RouteSubscribeOptions{Namespace: &ns}); err != nil {
		return nil, err
	}
	link, err := h.LinkByName("data0")
	if err != nil {
		return nil, err
	}
	_, dst, err := net.ParseCIDR("10.100.0.0/16")
	if err != nil {
		return nil, err
	}
	var times []time.Duration
	for i := range n + 1 {
		if err := h.RouteDel(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Gw: net.IPv4(10, 100, 0, 1)}); err != nil {
			return nil, fmt.Errorf("delete the route: %w", err)
		}
		took, err := back(ctx, notices, dst)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			times = append(times, took)
		}
		time.Sleep(3 * time.Second) // five within ten seconds are a fight, and answered later each time
	}
	return times, nil
}

func back(ctx context.Context, notices <-chan netlink.RouteUpdate, dst *net.IPNet) (time.Duration, error) {
	start := time.Now()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for {
		select {
		case u := <-notices:
			if u.Type == unix.RTM_NEWROUTE && u.Dst != nil && u.Dst.String() == dst.String() {
				return time.Since(start), nil
			}
		case <-limit.C:
			return 0, fmt.Errorf("the route did not come back")
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}
