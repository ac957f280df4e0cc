package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology"
)

// kernelCase is one case of testdata: a topology, what is given to its steps,
// with devices as "PF/n" (the nth VF of that PF), and the links it stands on.
type kernelCase struct {
	name     string
	topology *topology.Topology
	given    ops.Givens
	setup    string // commands, one a line, $NS is the namespace
	needsVF  bool
}

func cases(t *testing.T) []kernelCase {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	var out []kernelCase
	for _, f := range files {
		out = append(out, readCase(t, f))
	}
	return out
}

func readCase(t *testing.T, file string) kernelCase {
	t.Helper()
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c := kernelCase{name: strings.TrimSuffix(filepath.Base(file), ".txtar")}
	for _, f := range a.Files {
		switch f.Name {
		case "topology.yaml":
			if c.topology, err = topology.Decode(f.Data); err != nil {
				t.Fatal(err)
			}
		case "given.yaml":
			if err := yaml.UnmarshalStrict(f.Data, &c.given); err != nil {
				t.Fatalf("%s: given.yaml: %v", file, err)
			}
		case "setup":
			c.setup = string(f.Data)
		}
	}
	for step, d := range c.given.Devices() {
		pf, n, ok := strings.Cut(d, "/")
		if !ok {
			continue
		}
		c.needsVF = true
		link, err := os.Readlink(fmt.Sprintf("/sys/class/net/%s/device/virtfn%s", pf, n))
		if err != nil {
			if !hasCards() {
				continue
			}
			t.Fatalf("%s: no VF %s of %s: %v", file, n, pf, err)
		}
		given := c.given[step]
		given.Device = filepath.Base(link)
		c.given[step] = given
	}
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Validate(t.Context(), c.topology, ops.Giving(reg, c.given)); err != nil {
		t.Fatal(err)
	}
	return c
}

// each runs f for every case this lane can run, in the short form for every step'th.
func each(t *testing.T, step int, f func(t *testing.T, c kernelCase)) {
	t.Helper()
	for _, c := range effort.Sample(t, step, cases(t)) {
		if c.needsVF && !hasCards() {
			continue // no PCI in user-mode Linux; the other lane runs it
		}
		t.Run(c.name, func(t *testing.T) { f(t, c) })
	}
}

func (c kernelCase) sandbox(path string) reconcile.Sandbox {
	return reconcile.Sandbox{ID: reconcile.SandboxID("t/" + c.name), Netns: path, Topology: c.topology, Given: c.given}
}

// prepare creates a namespace and the links that the case needs.
func (c kernelCase) prepare(t *testing.T) string {
	t.Helper()
	path := newNetns(t)
	run := func(script string) {
		for line := range strings.Lines(script) {
			line = strings.ReplaceAll(strings.TrimSpace(line), "$NS", filepath.Base(path))
			if line == "" {
				continue
			}
			if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
				t.Fatalf("setup: %s: %v\n%s", line, err, out)
			}
		}
	}
	run("ip -n $NS link set lo up\n" + c.setup)
	return path
}

func ctxFor(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// TestApplyTwiceRelease is the life of a sandbox without failures.
func TestApplyTwiceRelease(t *testing.T) {
	each(t, 6, func(t *testing.T, c kernelCase) {
		l, path := newLane(t), c.prepare(t)
		start := l.state(path)
		ctx := ctxFor(t)
		rep, err := l.engine(nil).Ensure(ctx, c.sandbox(path))
		if err != nil {
			t.Fatal(err)
		}
		if rep.Unchanged || len(rep.Results) != len(c.topology.Steps) {
			t.Errorf("first apply: unchanged %v, %d results for %d steps", rep.Unchanged, len(rep.Results), len(c.topology.Steps))
		}
		for _, res := range rep.Results {
			if _, err := res.Result.CNI(); err != nil {
				t.Errorf("result of step %q is not valid for CNI: %v", res.Name, err)
			}
			for _, i := range res.Result.Interfaces {
				if i.MAC == "" || i.MTU == 0 {
					t.Errorf("result of step %q: interface %q has MAC %q, MTU %d", res.Name, i.Name, i.MAC, i.MTU)
				}
			}
		}
		var dumps, gets, writes uint64
		again := l.engine(func(d reconcile.Domain) reconcile.Domain { return counting{d, &dumps, &gets, &writes} })
		rep, err = again.Ensure(ctx, c.sandbox(path))
		if err != nil {
			t.Fatalf("second apply: %v", err)
		}
		if !rep.Unchanged || writes != 0 {
			t.Errorf("second apply: %d writes, changes %v", writes, rep.Changes)
		}
		most := uint64(4) // links, addresses, IPv4 routes, IPv6 routes
		switch c.name {
		case "policy":
			most += 2 // the rules of each family
		case "vxlan":
			most += 2 // the destinations of two tunnels
		case "rdma":
			most++ // nothing of the device is recorded, so that it is read for itself
		case "ptp":
			most += 4 // address and route of the host for two pairs
		case "masquerade":
			most += 4 // address and route of the host, and the two tables
		}
		for _, step := range c.topology.Steps {
			if step.Type == "vrf" {
				most += 2 // the routes for what its table has no other one for, of each family
			}
		}
		if dumps > most && !strings.HasPrefix(c.name, "bridge") { // a bridge's VLANs have their own
			t.Errorf("second apply: %d dumps, want one set of at most %d", dumps, most)
		}
		st, err := l.engine(nil).Check(ctx, rep.Sandbox)
		if err != nil || st.State != reconcile.InSync {
			t.Errorf("check: %v, %+v", err, st)
		}
		for range 2 {
			if _, err := l.engine(nil).Release(ctx, rep.Sandbox); err != nil {
				t.Fatalf("release: %v", err)
			}
			l.mustEqual(start, path, "after release")
		}
	})
}

// TestEveryChangeFailsOnce: a failure at any change leaves the start. The short
// form takes every eighth change of every sixth case.
func TestEveryChangeFailsOnce(t *testing.T) {
	each(t, 6, func(t *testing.T, c kernelCase) {
		l, path := newLane(t), c.prepare(t)
		start := l.state(path)
		first, stride := effort.Stride(t, 8)
		for n := first; ; n += stride {
			applied := 0
			r := l.engine(func(d reconcile.Domain) reconcile.Domain {
				return faulty{Domain: d, applied: &applied, at: n, before: func() error { return errInjected }}
			})
			_, err := r.Ensure(ctxFor(t), c.sandbox(path))
			if err == nil {
				if applied == 0 {
					t.Fatal("no change was made at all")
				}
				if _, err := l.engine(nil).AwaitRelease(ctxFor(t), c.sandbox(path).ID); err != nil {
					t.Fatal(err)
				}
				l.mustEqual(start, path, "after release")
				return
			}
			if !errors.Is(err, errInjected) || !strings.Contains(err.Error(), "step ") {
				t.Fatalf("change %d fails, and apply says: %v", n, err)
			}
			l.mustEqual(start, path, fmt.Sprintf("after change %d failed", n))
			if rec, _ := r.List(); len(rec) != 0 {
				t.Fatalf("change %d failed and a record is left: %+v", n, rec)
			}
		}
	})
}

const childEnv = "PLUMBLINE_KERNEL_CHILD"

// childSpec is the task of the killed process.
type childSpec struct {
	Sandbox reconcile.Sandbox
	Dir     string
	At      int
	Release bool
	Repair  bool
}

// child applies, repairs or releases and kills itself after the nth change.
func child() {
	var spec childSpec
	die(json.Unmarshal([]byte(os.Getenv(childEnv)), &spec))
	host, err := kernel.Open(kernel.Options{})
	die(err)
	r, err := engine(host, spec.Dir, dying(spec.At))
	die(err)
	switch {
	case spec.Release:
		_, err = r.Release(context.Background(), spec.Sandbox.ID)
	case spec.Repair:
		_, err = r.Repair(context.Background(), spec.Sandbox.ID)
	default:
		_, err = r.Ensure(context.Background(), spec.Sandbox)
	}
	die(err)
}

// dying is a domain whose process is killed after its nth change.
func dying(n int) func(reconcile.Domain) reconcile.Domain {
	applied := 0
	return func(d reconcile.Domain) reconcile.Domain {
		return faulty{Domain: d, applied: &applied, at: n, after: func() {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // cannot fail on oneself
			select {}
		}}
	}
}

// die ends a child that cannot do its task.
func die(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

// runKilled runs the child that finds what to do in an environment variable, and
// reports whether it was killed before it came to its end.
func (l *lane) runKilled(variable string, spec any) bool {
	l.t.Helper()
	raw, err := json.Marshal(spec)
	if err != nil {
		l.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), variable+"="+string(raw))
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	l.t.Fatalf("child: %v\n%s", err, out)
	return false
}

// TestKilledBetweenChanges: kill -9 after any change of an apply, then either
// apply again and release, or release at once. The short form takes every twelfth change of
// every ninth case.
func TestKilledBetweenChanges(t *testing.T) {
	each(t, 9, func(t *testing.T, c kernelCase) {
		l, path := newLane(t), c.prepare(t)
		start := l.state(path)
		sb := c.sandbox(path)
		first, stride := effort.Stride(t, 12)
		again := first%2 == 1
		for n := first; l.runKilled(childEnv, childSpec{Sandbox: sb, Dir: l.dir, At: n}); n += stride {
			if again {
				if _, err := l.engine(nil).Ensure(ctxFor(t), sb); err != nil {
					t.Fatalf("killed after change %d: apply again: %v", n, err)
				}
			}
			again = !again
			if _, err := l.engine(nil).AwaitRelease(ctxFor(t), sb.ID); err != nil {
				t.Fatalf("killed after change %d: release: %v", n, err)
			}
			l.mustEqual(start, path, "killed after change "+strconv.Itoa(n)+", then released")
		}
		// The last child was not killed: everything is in place. Kill the release.
		for n := first; l.runKilled(childEnv, childSpec{Sandbox: sb, Dir: l.dir, At: n, Release: true}); n += stride {
			if n > 64 {
				t.Fatal("release finds no end")
			}
		}
		l.mustEqual(start, path, "release killed at every change")
	})
}

// TestNamespaceDies: the namespace is deleted with everything in it; release finds
// the devices on the host and puts them right.
func TestNamespaceDies(t *testing.T) {
	each(t, 6, func(t *testing.T, c kernelCase) {
		l, path := newLane(t), c.prepare(t)
		hostStart := l.state("")
		sb := c.sandbox(path)
		if _, err := l.engine(nil).Ensure(ctxFor(t), sb); err != nil {
			t.Fatal(err)
		}
		deleteNetns(path)
		if _, err := l.engine(nil).AwaitRelease(ctxFor(t), sb.ID); err != nil {
			t.Fatalf("release after the namespace died: %v", err)
		}
		l.mustEqual(hostStart, "", "after the namespace died and release")
	})
}
