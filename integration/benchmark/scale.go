package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/plumbline/plumbline/integration/fleet"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// period is how often periodic applies everything.
const period = 10 * time.Second

// row has the measurements for a number of sandboxes.
type row struct {
	sandboxes    int
	attach, noop []time.Duration
	dumps        float64 // of a pass that finds nothing to do
	// All claims, the IDs of all records, all records.
	claims, ids, records []time.Duration
	ready                []time.Duration
	rss                  int64 // KiB
	files, sockets       int
	goroutines           int
	passes               int           // while idle
	cpu, idle            time.Duration // while idle
	repairs              []time.Duration
	periodic             periodicCost
}

// scale holds ever more pods, and measures what each of them costs an agent.
func scale(ctx context.Context, o options) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	binary := filepath.Join(filepath.Dir(self), "plumbline")
	a, err := newAgent()
	if err != nil {
		return err
	}
	var pods []fleet.Pod
	var rows []row
	for _, size := range []int{1, 100, 500} {
		if size > o.sandboxes {
			size = o.sandboxes
		}
		more, err := a.Start(ctx, len(pods), size)
		if err != nil {
			return err
		}
		pods = append(pods, more...)
		fmt.Fprintf(os.Stderr, "benchmark: %s: %d sandboxes\n", time.Now().Format(time.TimeOnly), size)
		r := row{sandboxes: size}
		if err := r.measure(ctx, o, a, pods, binary); err != nil {
			return fmt.Errorf("%d sandboxes: %w", size, err)
		}
		rows = append(rows, r)
		if size == o.sandboxes {
			break
		}
	}
	report(rows)
	if err := a.Stop(); err != nil {
		return err
	}
	return storm(ctx, a.Dir, pods, o.n)
}

func newAgent() (*fleet.Agent, error) {
	dir, err := os.MkdirTemp("", "plumbline-benchmark-")
	if err != nil {
		return nil, err
	}
	return fleet.New(fleet.Options{Dir: filepath.Join(dir, "state"), Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
}

func (r *row) measure(ctx context.Context, o options, a *fleet.Agent, pods []fleet.Pod, binary string) error {
	var err error
	if r.attach, err = attachAndEnd(ctx, a, 10_000, o.n/2); err != nil {
		return err
	}
	a.Tally.Dumps.Store(0)
	a.Tally.Writes.Store(0)
	n := max(o.n*5, 10)
	for i := range n {
		start := time.Now()
		if _, err := a.Engine.Repair(ctx, pods[i*7%len(pods)].ID()); err != nil {
			return err
		}
		r.noop = append(r.noop, time.Since(start))
	}
	r.dumps = float64(a.Tally.Dumps.Load()) / float64(n)
	if w := a.Tally.Writes.Load(); w != 0 {
		return fmt.Errorf("%d writes of passes with nothing to do", w)
	}
	for range 10 {
		var errs []error
		r.claims = append(r.claims, timed(func() { _, errs = a.Claims.List() }))
		if len(errs) > 0 {
			return errors.Join(errs...)
		}
		r.ids = append(r.ids, timed(func() { a.Engine.IDs() }))
		r.records = append(r.records, timed(func() { a.Engine.List() }))
	}
	for last := range 3 {
		d, err := startDaemon(ctx, binary, a.Dir)
		if err != nil {
			return err
		}
		r.ready = append(r.ready, d.ready)
		m, err := d.metrics(`plumbline_netlink_messages_total{kind="write"}`, "plumbline_changes_total")
		if err != nil {
			return err
		}
		for name, v := range m {
			if v != 0 {
				return fmt.Errorf("%s is %v after a restart, where everything was right", name, v)
			}
		}
		if last == 2 {
			err = r.watch(ctx, d, o, pods)
		}
		if err := d.stop(); err != nil {
			return err
		}
		if err != nil {
			return err
		}
	}
	r.periodic, err = measurePeriodic(ctx, pods, period, o.idle, o.n)
	return err
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

// watch measures an agent that has nothing to do, and then how fast it repairs.
func (r *row) watch(ctx context.Context, d *daemon, o options, pods []fleet.Pod) error {
	const passes = "plumbline_passes_total"
	before, err := d.metrics(passes)
	if err != nil {
		return err
	}
	cpu, err := d.cpu()
	if err != nil {
		return err
	}
	start := time.Now()
	time.Sleep(o.idle)
	r.idle = time.Since(start)
	now, err := d.cpu()
	if err != nil {
		return err
	}
	r.cpu, r.rss = now-cpu, d.rss()
	if r.files, r.sockets, err = d.files(); err != nil {
		return err
	}
	after, err := d.metrics(passes, "go_goroutines")
	if err != nil {
		return err
	}
	r.passes, r.goroutines = int(after[passes]-before[passes]), int(after["go_goroutines"])
	n := o.n * 5
	if r.sandboxes == 1 {
		n = o.n // it needs pauses
	}
	r.repairs, err = drifts(ctx, pods, n)
	return err
}

func report(rows []row) {
	fmt.Printf("\n### Sandboxes of the flagship's shape on one agent\n\n")
	fmt.Println("| sandboxes | attach, ms | pass with nothing to do, ms | its dumps | start until all are checked, " +
		"s | writes | resident, MiB | files open | sockets among them | goroutines | idle: passes a minute | idle: processor, % |\n" +
		"|---|---|---|---|---|---|---|---|---|---|---|---|")
	for _, r := range rows {
		minutes := r.idle.Minutes()
		fmt.Printf("| %d | %s (n=%d) | %s (n=%d) | %.1f | %.2f (n=%d) | 0 | %.1f | %d | %d | %d | %.0f | %.2f |\n", r.sandboxes,
			millis(median(r.attach)), len(r.attach),
			millis(median(r.noop)), len(r.noop), r.dumps, median(r.ready).Seconds(), len(r.ready), float64(r.rss)/1024, r.files,
			r.sockets, r.goroutines,
			float64(r.passes)/minutes, 100*r.cpu.Seconds()/r.idle.Seconds())
	}
	first, last := rows[0], rows[len(rows)-1]
	if last.sandboxes > first.sandboxes {
		fmt.Printf("\nResident memory a sandbox, from %d to %d: %.1f KiB.\n", first.sandboxes, last.sandboxes,
			float64(last.rss-first.rss)/float64(last.sandboxes-first.sandboxes))
	}
	fmt.Printf("\n### What is on disk, read (n=%d)\n\n", len(rows[0].ids))
	fmt.Println("| sandboxes | all claims, ms | IDs of all records, ms | all records, ms |\n|---|---|---|---|")
	for _, r := range rows {
		fmt.Printf("| %d | %.2f | %.2f | %s |\n", r.sandboxes, median(r.claims).Seconds()*1000, median(r.ids).Seconds()*1000,
			millis(median(r.records)))
	}
	fmt.Printf("\n### From a deleted route to its repair, and periodic application of everything every %s\n\n", period)
	fmt.Println("| sandboxes | plumbline: median, ms | p99, ms | n | processor, s a minute | periodic: median, ms | p99, " +
		"ms | n | processor, s a minute | rounds a minute | a round, s |\n|---|---|---|---|---|---|---|---|---|---|---|")
	for _, r := range rows {
		c := r.periodic
		minutes := c.wall.Minutes()
		fmt.Printf("| %d | %s | %s | %d | %.2f | %s | %s | %d | %.2f | %.1f | %.2f |\n", r.sandboxes,
			millis(median(r.repairs)), millis(quantile(r.repairs, 0.99)), len(r.repairs), r.cpu.Seconds()/r.idle.Minutes(),
			millis(median(c.repairs)), millis(quantile(c.repairs, 0.99)), len(c.repairs), c.cpu.Seconds()/minutes,
			float64(c.rounds)/minutes, median(c.round).Seconds())
	}
}

// attachAndEnd starts and ends pods one after the other, and returns how long their
// attachment took.
func attachAndEnd(ctx context.Context, a *fleet.Agent, number, n int) ([]time.Duration, error) {
	var out []time.Duration
	for i := range n {
		p, err := a.Make(number + i)
		if err != nil {
			return nil, err
		}
		start := time.Now()
		if err := a.Keeper.Attach(ctx, p.Pod); err != nil {
			return nil, err
		}
		out = append(out, time.Since(start))
		if err := a.Unmake(ctx, p); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// storm changes every namespace at once, and measures what that costs a pod that
// starts meanwhile, and how long it takes until all is repaired.
func storm(ctx context.Context, dir string, pods []fleet.Pod, n int) error {
	a, err := fleet.New(fleet.Options{Dir: dir, ReceiveBufferBytes: 1, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		return err
	}
	if err := a.Run(ctx); err != nil {
		return err
	}
	calm, err := attachAndEnd(ctx, a, 20_000, n)
	if err != nil {
		return err
	}
	var inside []reconcile.Domain
	for _, p := range pods {
		d, err := a.Sandbox(p.Netns)
		if err != nil {
			return err
		}
		inside = append(inside, d)
	}
	lost := a.Overflows()
	start := time.Now()
	for _, d := range inside {
		if err := d.Apply(ctx, netstate.Change{Before: fleet.Route}); err != nil {
			return err
		}
	}
	edited := time.Since(start)
	hasty, err := attachAndEnd(ctx, a, 30_000, n)
	if err != nil {
		return err
	}
	meanwhile, after := a.Tally.RepairedSandboxes(), time.Since(start)
	for a.Tally.RepairedSandboxes() < len(pods) {
		if time.Since(start) > 10*time.Minute {
			return fmt.Errorf("only %d of %d were repaired in ten minutes", a.Tally.RepairedSandboxes(), len(pods))
		}
		time.Sleep(10 * time.Millisecond)
	}
	took := time.Since(start)
	fmt.Printf("\n### A storm: a route deleted in each of %d sandboxes within %.1f s, with a receive buffer of the least size\n\n",
		len(pods), edited.Seconds())
	fmt.Println(
		"| attach before, ms | in the storm, ms | ratio of medians | longest, ms | n | repaired when the last had started | after, " +
			"s | all repaired after, s | overflows told |\n|---|---|---|---|---|---|---|---|---|")
	fmt.Printf("| %s | %s | %.2f | %s | %d | %d | %.1f | %.1f | %d |\n", millis(median(calm)), millis(median(hasty)),
		float64(median(hasty))/float64(median(calm)),
		millis(quantile(hasty, 1)), n, meanwhile, after.Seconds(), took.Seconds(), a.Overflows()-lost)
	for _, p := range pods {
		st, err := a.Engine.Check(ctx, p.ID())
		if err != nil {
			return err
		}
		if st.State != reconcile.InSync {
			return fmt.Errorf("%s after the storm: %+v", p.Name, st)
		}
	}
	return a.Stop()
}

// comeAndGo attaches and releases many pods, and says what the agent holds then
// that it did not hold before.
func comeAndGo(ctx context.Context, cycles int) error {
	a, err := newAgent()
	if err != nil {
		return err
	}
	if err := a.Run(ctx); err != nil {
		return err
	}
	fmt.Printf("\n### Pods that come and go\n\n")
	fmt.Println("| pods so far | files open | goroutines | heap, KiB | resident, MiB |\n|---|---|---|---|---|")
	for done := 0; ; {
		step := min(max(cycles/5, 1), cycles-done)
		if done == 0 {
			step = min(20, cycles) // what is made once is made by then
		}
		if _, err := attachAndEnd(ctx, a, done, step); err != nil {
			return err
		}
		done += step
		time.Sleep(2 * time.Second) // for late notifications about the last ones
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return err
		}
		fmt.Printf("| %d | %d | %d | %d | %.1f |\n", done, len(fds), runtime.NumGoroutine(), m.HeapAlloc>>10, float64(rss("self"))/1024)
		if done == cycles {
			return a.Stop()
		}
	}
}
