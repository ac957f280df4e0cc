package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/cluster/population"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology/controller"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	part := flag.Int("part", 1, "one `n`-th of the full size")
	before := flag.String("before", "", "a `commit` whose controller is measured first")
	patience := flag.Duration("patience", time.Hour, "`time` after which a controller that has not settled is given up")
	pools := flag.Bool("addresses", false, "measure pools of addresses instead")
	away := flag.Duration("away", 0, "with -addresses: `time` for which the API server is away")
	rules := flag.Bool("rules", false, "measure edits of a NetworkQoS instead")
	flag.Parse()
	switch {
	case *part < 1:
		return errors.New("-part is at least 1")
	case *before != "" && (*rules || *pools):
		return errors.New(
			"-rules and -addresses measure this commit only: leave -before (BEFORE) out, and run them in a checkout of the other commit")
	case *rules && *pools:
		return errors.New("-rules or -addresses, not both")
	}
	if *rules {
		return runRules(ctx, out, os.Stderr, fullRules.part(*part))
	}
	if *pools {
		size := fullAddresses.part(*part)
		size.away = *away
		return runAddresses(ctx, out, size)
	}
	b, err := start(ctx, os.Stderr, population.Full.Part(*part))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	fmt.Fprintf(out, "%d topologies, %d classes, %d claims of which %d are ours, %d slices\n\n", b.size.Topologies, 2*b.size.Topologies,
		b.size.Claims, b.size.Ours, b.size.Nodes)
	var all []*results
	commits := []string{""}
	if *before != "" {
		commits = []string{*before, ""}
	}
	for _, commit := range commits {
		r, err := b.measure(ctx, commit, *patience)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name(commit), err)
		}
		all = append(all, r)
	}
	table(out, all)
	return nil
}

func runAddresses(ctx context.Context, out io.Writer, size addressSize) (err error) {
	b, err := start(ctx, os.Stderr, population.Size{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	r, err := b.addresses(ctx, size)
	if err != nil {
		return err
	}
	r.write(out, size)
	return nil
}

func name(commit string) string {
	if commit == "" {
		return "now"
	}
	return commit
}

// bench is a cluster full of objects.
type bench struct {
	*cluster.Cluster
	client client.WithWatch
	size   population.Size
	log    io.Writer
	rest   time.Duration // for which the controller is watched doing nothing
	asks   int           // how often admission decides on each kind of claim
}

func start(ctx context.Context, log io.Writer, size population.Size) (*bench, error) {
	c, err := cluster.Start(ctx, cluster.Options{Log: log, APIServerOnly: true})
	if err != nil {
		return nil, err
	}
	b := &bench{Cluster: c, log: log, rest: 20 * time.Second, asks: 1000}
	if err := b.define(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if err := b.fill(ctx, size); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return b, nil
}

// define makes the custom resources.
func (b *bench) define(ctx context.Context) error {
	crds, err := filepath.Glob(filepath.Join(b.Checkout(), "chart/plumbline/templates/crds/*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range crds {
		if _, err := b.Kubectl(ctx, nil, "create", "-f", file); err != nil {
			return err
		}
	}
	if _, err := b.Kubectl(ctx, nil, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"); err != nil {
		return err
	}
	scheme, err := controller.Scheme()
	if err != nil {
		return err
	}
	b.client, err = client.NewWithWatch(b.Config(), client.Options{Scheme: scheme})
	return err
}

// fill makes all objects of a size; those of a smaller one are among them.
func (b *bench) fill(ctx context.Context, size population.Size) error {
	b.size = size
	registry, err := all.Registry()
	if err != nil {
		return err
	}
	began := time.Now()
	n, err := population.Load(ctx, b.Etcd(), population.Objects(size, registry))
	if err != nil {
		return err
	}
	fmt.Fprintf(b.log, "%d objects in %s\n", n, time.Since(began).Round(time.Second))
	return nil
}

// build builds the controller of a commit, or of what is checked out.
func (b *bench) build(ctx context.Context, commit string) (string, error) {
	program, source := filepath.Join(b.Dir(), "plumbline-"+name(commit)), b.Checkout()
	if commit != "" {
		source = filepath.Join(b.Dir(), "source-"+commit)
		if err := os.MkdirAll(source, 0o755); err != nil {
			return "", err
		}
		archive := exec.CommandContext(ctx, "sh", "-c", `git -C "$1" archive "$2" | tar -x -C "$3"`, "sh", b.Checkout(), commit, source)
		if said, err := archive.CombinedOutput(); err != nil {
			return "", fmt.Errorf("check %q out: %w: %s", commit, err, said)
		}
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/plumbline")
	build.Dir, build.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %q: %w: %s", name(commit), err, said)
	}
	return program, nil
}

// table writes what was measured.
func table(out io.Writer, all []*results) {
	fmt.Fprint(out, "| |")
	for _, r := range all {
		fmt.Fprintf(out, " %s |", r.name)
	}
	if len(all) == 2 {
		fmt.Fprint(out, " ratio |")
	}
	fmt.Fprintf(out, "\n|---|%s\n", strings.Repeat("---|", len(all)+len(all)/2))
	for i, row := range all[0].rows() {
		fmt.Fprintf(out, "| %s |", row.what)
		var values []float64
		for _, r := range all {
			v := r.rows()[i].value
			values = append(values, v)
			fmt.Fprintf(out, " %s |", number(v))
		}
		if len(values) == 2 {
			fmt.Fprintf(out, " %s |", number(values[1]/values[0]))
		}
		fmt.Fprintln(out)
	}
}

func number(v float64) string {
	switch {
	case v != v || v < 0:
		return "–"
	case v >= 100 || v == float64(int(v)):
		return fmt.Sprintf("%.0f", v)
	case v >= 1:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
