package kernel

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/fleet"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// Few, because the machine is emulated. The benchmark does the same with hundreds.
const (
	pods     = 16
	cycles   = 12
	starters = 3
)

// agent runs an agent without a cluster until the test ends.
func agent(t *testing.T, o fleet.Options) *fleet.Agent {
	t.Helper()
	o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	a, err := fleet.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	if err := a.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	return a
}

// start makes and attaches pods, which go with the test.
func start(t *testing.T, a *fleet.Agent, from, to int) []fleet.Pod {
	t.Helper()
	out, err := a.Start(ctxFor(t), from, to)
	t.Cleanup(func() {
		for _, p := range out {
			deleteNetns(p.Netns)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRestart: an agent that begins where another one ended finds everything as
// it is to be, and writes nothing: not to the kernel, not to the journal, not to
// the claims, not to the gates.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	first := agent(t, fleet.Options{Dir: dir})
	running := start(t, first, 0, pods)
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	before := files(t, dir)

	begun := time.Now()
	second := agent(t, fleet.Options{Dir: dir})
	for _, p := range running { // as the runtime lists when the agent connects again
		if err := second.Keeper.Attach(ctxFor(t), p.Pod); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
	t.Logf("%d sandboxes in sync after %v", len(running), time.Since(begun))
	if n := second.Tally.Passes.Load(); n < pods {
		t.Errorf("%d passes over %d sandboxes", n, pods)
	}
	if w, c := second.Tally.Writes.Load(), second.Tally.Changes.Load(); w != 0 || c != 0 {
		t.Errorf("%d writes and %d changes, where everything was right", w, c)
	}
	if after := files(t, dir); after != before {
		t.Errorf("files before:\n%s\nand after:\n%s", before, after)
	}
	inSync(t, second, running)
}

// files lists what is on disk, and when it was written. Locks are not state, and the ledger of addresses, here without any,
// is first written by a pass of its own, which the first agent may not live to see.
func files(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) == ".lock" || e.Name() == "addresses" {
			return err
		}
		info, err := e.Info()
		if err == nil {
			b.WriteString(path + " " + info.ModTime().Format(time.RFC3339Nano) + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func inSync(t *testing.T, a *fleet.Agent, running []fleet.Pod) {
	t.Helper()
	for _, p := range running {
		if st, err := a.Engine.Check(ctxFor(t), p.ID()); err != nil || st.State != reconcile.InSync {
			t.Errorf("%s: %v, %+v", p.Name, err, st)
		}
	}
}

// TestNothingGrows: created and deleted pods leave no file descriptor, no goroutine
// and no file behind.
func TestNothingGrows(t *testing.T) {
	dir := t.TempDir()
	a := agent(t, fleet.Options{Dir: dir})
	start(t, a, 0, 2)
	cycle := func(n int) {
		p, err := a.Make(n)
		if err == nil {
			err = a.Keeper.Attach(ctxFor(t), p.Pod)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Unmake(ctxFor(t), p); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 4 {
		cycle(100 + n)
	}
	l := &lane{t: t}
	fds, goroutines, before := use(t)
	entries := strings.Count(files(t, dir), "\n")
	for n := range cycles {
		cycle(200 + n)
	}
	// Work in progress, such as a check of a sandbox that has just ended, ends
	// soon.
	l.await("everything is released", func() bool {
		f, g, _ := use(t)
		return f <= fds && g <= goroutines && strings.Count(files(t, dir), "\n") <= entries
	})
	f, g, after := use(t)
	t.Logf("file descriptors %d and %d, goroutines %d and %d, heap %d and %d KiB", fds, f, goroutines, g, before>>10, after>>10)
	// A pod that left something of its size behind would cost more.
	if grown := int64(after) - int64(before); grown > cycles*8<<10 {
		t.Errorf("the heap has grown by %d KiB in %d cycles", grown>>10, cycles)
	}
}

// use returns what the process holds: file descriptors, goroutines, bytes.
func use(t *testing.T) (fds, goroutines int, heap uint64) {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return len(open), runtime.NumGoroutine(), m.HeapAlloc
}

// TestStorm: every namespace is changed at once, and the kernel drops notifications.
// Pods that start meanwhile do not wait for the repairs, and in the end everything is
// repaired.
func TestStorm(t *testing.T) {
	a := agent(t, fleet.Options{Dir: t.TempDir(), ReceiveBufferBytes: 1}) // the least there is
	running := start(t, a, 0, pods)
	var inside []reconcile.Domain
	for _, p := range running {
		d, err := a.Sandbox(p.Netns)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		inside = append(inside, d)
	}
	for _, d := range inside {
		down := netstate.Change{Before: netstate.Link{Name: "data0", Up: new(true)}, After: netstate.Link{Name: "data0", Up: new(false)}}
		if err := d.Apply(ctxFor(t), down); err != nil {
			t.Fatal(err)
		}
	}
	begun := time.Now()
	late := start(t, a, pods, pods+starters) // with the deadline of every test here
	attached, repaired := time.Since(begun), a.Tally.RepairedSandboxes()
	t.Logf("%d pods attached after %v, %d of %d repaired by then", starters, attached, repaired, pods)
	if repaired >= pods {
		t.Errorf("all %d were repaired before %d pods had started", repaired, starters)
	}
	(&lane{t: t}).await("all are repaired", func() bool { return a.Tally.RepairedSandboxes() >= pods })
	t.Logf("all repaired after %v, notices lost %d times", time.Since(begun), a.Overflows())
	if a.Overflows() == 0 {
		t.Error("no notice was lost, so this shows nothing")
	}
	inSync(t, a, append(running, late...))
}
