package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

// virtual has the flagship's shape on roots that any machine has.
const virtual = `apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: virtual}
spec:
  steps:
    - {name: d0, type: dummy, config: {name: net1}}
    - {name: d1, type: dummy, config: {name: net2}}
    - {name: bond0, type: bond, dependOn: [d0, d1], config: {mode: active-backup, miimon: 100}}
    - {name: data, type: vlan, dependOn: [bond0], config: {id: 100, name: data0, addresses: [10.100.0.5/24]}}
    - {name: mgmt, type: vlan, dependOn: [bond0], config: {id: 200, name: mgmt0, addresses: [10.200.0.5/24]}}
    - {name: tune-data, type: tuning, dependOn: [data], config: {mtu: 9000, routes: [{dst: 10.100.0.0/16, gw: 10.100.0.1}]}}
    - {name: tune-mgmt, type: tuning, dependOn: [mgmt], config: {mtu: 1500, routes: [{dst: 0.0.0.0/0, gw: 10.200.0.1}]}}
`

// noop holds many sandboxes and measures a pass that finds nothing to do.
func noop(ctx context.Context, n, sandboxes int) error {
	e, err := bareEngine(virtual)
	if err != nil {
		return err
	}
	var passes []reconcile.Pass
	before := rss()
	paths := make([]string, 0, sandboxes)
	defer func() {
		for _, p := range paths {
			_ = e.remove(context.WithoutCancel(ctx), p) // the machine is thrown away
			_ = kernel.DeleteNamed(p)
		}
	}()
	for i := range sandboxes {
		path, err := kernel.AddNamed(fmt.Sprintf("noop-%d", i))
		if err != nil {
			return err
		}
		paths = append(paths, path)
		if err := e.apply(ctx, path); err != nil {
			return err
		}
	}
	debug.FreeOSMemory()
	after := rss()
	e.recorder = recorderFunc(func(p reconcile.Pass) { passes = append(passes, p) })
	var times []time.Duration
	for i := range max(n, sandboxes) {
		start := time.Now()
		if err := e.apply(ctx, paths[i%len(paths)]); err != nil {
			return err
		}
		times = append(times, time.Since(start))
	}
	var dumps, writes uint64
	for _, p := range passes {
		dumps, writes = dumps+p.Dumps, writes+p.Writes
	}
	fmt.Printf("\n### A pass that finds nothing to do, with %d sandboxes (n=%d)\n\n", sandboxes, len(times))
	fmt.Println("| median, ms | p99, ms | dumps a pass | writes a pass | resident memory a sandbox, KiB | goroutines |\n|---|---|---|---|---|---|")
	fmt.Printf("| %s | %s | %.1f | %.1f | %.1f | %d |\n", millis(median(times)), millis(quantile(times, 0.99)),
		float64(dumps)/float64(len(passes)), float64(writes)/float64(len(passes)), float64(after-before)/float64(sandboxes), runtime.NumGoroutine())
	return nil
}

// rss is the process's resident memory in KiB.
func rss() int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, _ := strconv.ParseInt(strings.Fields(v)[0], 10, 64) // a number, by proc(5)
			return n
		}
	}
	return 0
}
