package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/plumbline/plumbline/integration/namespace"
	"github.com/plumbline/plumbline/reconcile"
)

func main() {
	n := flag.Int("n", 20, "counted runs of each contender")
	sandboxes := flag.Int("sandboxes", 500, "sandboxes held at once, at most")
	idle := flag.Duration("idle", time.Minute, "time for which an idle agent, and the periodic application, are observed")
	cycles := flag.Int("cycles", 2000, "pods that come and go")
	plugins := flag.String("plugins", "", "folder with the CNI binaries to compare with: sriov, bond, vlan, tuning, static; "+
		"part crowd also needs macvlan and host-device, part pods ptp, host-local and cni-kindnet; none by default")
	only := flag.String("only", "", "run one part: apply, crowd, pods, settings, scale, cycles, packets, guard")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, options{*n, *sandboxes, *cycles, *idle, *plugins, *only}); err != nil {
		fmt.Fprintln(os.Stderr, "benchmark:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	n, sandboxes, cycles int
	idle                 time.Duration
	plugins, only        string
}

func run(ctx context.Context, o options) error {
	parts := []struct {
		name string
		run  func() error
	}{
		{"apply", func() error { return applyAndDelete(ctx, o.n, o.plugins) }},
		{"crowd", func() error { return crowds(ctx, o.n, o.plugins) }},
		{"pods", func() error { return podNetwork(ctx, o.n, o.plugins) }},
		{"settings", func() error { return settings(ctx, o.n) }},
		{"scale", func() error { return scale(ctx, o) }},
		{"cycles", func() error { return comeAndGo(ctx, o.cycles) }},
		{"packets", func() error { return packets(ctx, o.n) }},
		{"guard", func() error { return guards(ctx, o.n) }},
	}
	fmt.Printf("Kernel %s, %d CPUs, emulated.\n", release(), cpus())
	for _, p := range parts {
		if o.only != "" && o.only != p.name {
			continue
		}
		if err := p.run(); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// contender makes and unmakes the topology of the comparison.
type contender interface {
	name() string
	apply(ctx context.Context, netns string) error
	remove(ctx context.Context, netns string) error
}

// samples are the times of one contender.
type samples struct {
	apply, remove []time.Duration
}

func applyAndDelete(ctx context.Context, n int, plugins string) error {
	// Each contender has VFs of its own: a function that was reset a moment ago
	// answers late, and must not delay others.
	vfs, err := pairs(3)
	if err != nil {
		return err
	}
	ours, err := newEngine(vfs[0])
	if err != nil {
		return err
	}
	contenders := []contender{ours, &floor{vfs: vfs[1]}}
	if plugins != "" {
		chain, err := newChain(plugins, vfs[2])
		if err != nil {
			return err
		}
		contenders = append(contenders, chain)
	}
	got := make([]samples, len(contenders))
	var passes []reconcile.Pass
	ours.recorder = recorderFunc(func(p reconcile.Pass) { passes = append(passes, p) })
	for i := range n + 1 {
		for k, c := range contenders {
			// In turn, so that a drift of the machine's speed hits all alike.
			a, r, err := once(ctx, c, fmt.Sprintf("bench-%d-%d", i, k))
			if err != nil {
				return fmt.Errorf("%s: %w", c.name(), err)
			}
			// The kernel takes a namespace apart in the background, with the lock
			// that everybody needs: the next one is not to wait for that.
			time.Sleep(500 * time.Millisecond)
			if i > 0 { // the first warms up
				got[k].apply, got[k].remove = append(got[k].apply, a), append(got[k].remove, r)
			}
		}
	}
	fmt.Printf("\n### Apply and delete: 2 VFs, bond, 2 VLANs with addresses, tuning (n=%d)\n\n", n)
	fmt.Println("| | apply, ms | × floor | delete, ms | × floor |\n|---|---|---|---|---|")
	for k, c := range contenders {
		fmt.Printf("| %s | %s | %s | %s | %s |\n", c.name(),
			millis(median(got[k].apply)), ratio(got[k].apply, got[1].apply),
			millis(median(got[k].remove)), ratio(got[k].remove, got[1].remove))
	}
	phases(passes[2:]) // as above, without the first apply and delete
	return nil
}

// phases prints where the engine's passes spent their time, and their requests to the
// kernel.
func phases(passes []reconcile.Pass) {
	fmt.Println("\n| median of a pass, ms | observe | plan | journal | apply | the rest | dumps | gets | writes |\n" +
		"|---|---|---|---|---|---|---|---|---|")
	for _, trigger := range []reconcile.Trigger{reconcile.TriggerEnsure, reconcile.TriggerRelease} {
		var observe, plan, journal, apply, rest []time.Duration
		var last reconcile.Pass
		for _, p := range passes {
			if p.Trigger != trigger {
				continue
			}
			t := p.Timing
			observe, plan, journal, apply = append(observe, t.Observe), append(plan, t.Plan), append(journal, t.Journal),
				append(apply, t.Apply)
			rest = append(rest, t.Total-t.Observe-t.Plan-t.Journal-t.Apply)
			last = p
		}
		fmt.Printf("| %s | %s | %s | %s | %s | %s | %d | %d | %d |\n", trigger, millis(median(observe)), millis(median(plan)),
			millis(median(journal)),
			millis(median(apply)), millis(median(rest)), last.Dumps, last.Gets, last.Writes)
	}
}

func once(ctx context.Context, c contender, name string) (apply, remove time.Duration, err error) {
	path, err := namespace.Add(name)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = namespace.Delete(path) }() // the machine is thrown away
	start := time.Now()
	if err := c.apply(ctx, path); err != nil {
		return 0, 0, fmt.Errorf("apply: %w", err)
	}
	apply = time.Since(start)
	start = time.Now()
	if err := c.remove(ctx, path); err != nil {
		return 0, 0, fmt.Errorf("delete: %w", err)
	}
	return apply, time.Since(start), nil
}

func median(d []time.Duration) time.Duration { return quantile(d, 0.5) }

func quantile(d []time.Duration, q float64) time.Duration {
	s := slices.Clone(d)
	slices.Sort(s)
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/1000) }

// ratio is the median of the ratios pair by pair.
func ratio(a, b []time.Duration) string {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = float64(a[i]) / float64(b[i])
	}
	slices.Sort(r)
	return fmt.Sprintf("%.2f", r[len(r)/2])
}

func release() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

func cpus() int {
	dirs, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*") // the pattern is constant
	return len(dirs)
}
