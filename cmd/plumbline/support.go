package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/agent"
	"github.com/plumbline/plumbline/reconcile/bundle"
	"github.com/plumbline/plumbline/reconcile/pod/gate"
	"github.com/plumbline/plumbline/reconcile/recordfile"
	"github.com/plumbline/plumbline/reconcile/version"
)

// support holds the flags of support-bundle.
type support struct {
	to        string
	cdiDir    string
	addresses []string
	logs      []string
}

func (a *app) support() *cobra.Command {
	var s support
	cmd := &cobra.Command{
		Use:   "support-bundle [--to FILE]",
		Short: "Collect the data for a support request",
		Long: `Writes one tar.gz about the networks of this node (docs/troubleshooting.md lists its
contents). Needs no running agent. Limits: one minute (--timeout), 128 MiB before
compression.

It contains no token, key, environment or command line, and nothing from the API server,
but names of pods, namespaces and topologies, and addresses: read it before you send it.`,
		Example: `  plumbline support-bundle --to case-4711.tar.gz --log /var/log/containers/agent.log
  kubectl -n plumbline-system exec AGENT -- /plumbline support-bundle --to - > node.tar.gz`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context(), a) },
	}
	f := cmd.Flags()
	f.StringVar(&s.to, "to", "", "`file` to write, which must not exist; - is standard output; default: plumbline-HOST-TIME.tar.gz")
	f.StringVar(&s.cdiDir, "cdi-dir", "/var/run/cdi", "`directory` of the gate files")
	f.StringSliceVar(&s.addresses, "metrics-address", []string{"127.0.0.1:9808", "127.0.0.1:9477"},
		"`address` to read metrics from; may be repeated")
	f.StringArrayVar(&s.logs, "log", nil, "log `file` to add; may be repeated")
	return cmd
}

func (s *support) run(ctx context.Context, a *app) error {
	if err := privileged("support-bundle"); err != nil {
		return err
	}
	now := time.Now()
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("support-bundle: %w", err)
	}
	name := fmt.Sprintf("plumbline-%s-%s", host, now.UTC().Format("20060102T150405Z"))
	fill := func(to io.Writer) error {
		b := bundle.New(to, name, bundle.Default, time.Now)
		s.fill(ctx, a, b)
		// An interrupted bundle is discarded; one that ran into the time limit is kept.
		return errors.Join(context.Cause(ctx), b.Close())
	}
	if s.to == "-" {
		return fill(a.out)
	}
	file := cmp.Or(s.to, name+".tar.gz")
	if err := bundle.Create(file, fill); err != nil {
		return fmt.Errorf("support-bundle: %w", err)
	}
	fmt.Fprintf(a.out, "Written: %s. It holds names of pods and addresses: look into it before you send it.\n", file)
	return nil
}

// fill adds all parts. Files come first, since reading the sandboxes sets damaged files
// aside.
func (s *support) fill(ctx context.Context, a *app, b *bundle.Bundle) {
	ctx, cancel := a.limited(ctx)
	defer cancel()
	b.Part(ctx, "version.txt", func(_ context.Context, w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s\nwritten %s\n", version.Line("plumbline"), time.Now().UTC().Format(time.RFC3339))
		return err
	})
	b.Tree("state", a.stateDir, ofState)
	b.Tree("cdi", s.cdiDir, func(path string) bool { return strings.HasPrefix(path, gate.FilePrefix) })
	for _, file := range s.logs {
		b.File(path.Join("logs", strings.ReplaceAll(strings.Trim(file, "/"), "/", "_")), file)
	}
	b.Part(ctx, "host/kernel.txt", kernelRelease)
	b.Part(ctx, "host/sysctls.txt", sysctls)
	b.Part(ctx, "host/devices.json", func(ctx context.Context, w io.Writer) error {
		devices, err := discover(ctx)
		return errors.Join(inventory.JSON(w, inventory.List(devices, publish.Why(devices))), err)
	})
	for _, address := range s.addresses {
		b.Part(ctx, "metrics/"+strings.ReplaceAll(address, ":", "_")+".txt",
			func(ctx context.Context, w io.Writer) error { return fetch(ctx, address, w) })
	}
	e, err := a.engine("support-bundle", false, nil)
	if err != nil {
		b.Problem("sandboxes", err)
		return
	}
	defer e.Close()
	e.sandboxes(ctx, b, a.stateDir)
}

// ofState are the files of the state directory to include: records, also damaged ones,
// claims, and what was published.
func ofState(path string) bool {
	name := filepath.Base(path)
	return strings.HasSuffix(name, ".journal") || strings.HasSuffix(name, ".claim") || strings.HasSuffix(name, ".sandboxes") ||
		strings.Contains(name, recordfile.DamagedInfix) || name == agent.PublishedFile
}

func kernelRelease(_ context.Context, w io.Writer) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s %s %s %s\nboot %s", unix.ByteSliceToString(u.Sysname[:]), unix.ByteSliceToString(u.Release[:]),
		unix.ByteSliceToString(u.Version[:]), unix.ByteSliceToString(u.Machine[:]), boot)
	return err
}

// sysctls are the settings of the host that limit the number of objects on a node, and the
// defaults of a new namespace.
func sysctls(_ context.Context, w io.Writer) error {
	var errs []error
	for _, pattern := range []string{
		"net/core/[rw]mem_*", "net/core/netdev_*", "net/core/devconf_inherit_init_net", "net/ipv4/ip_forward", "net/ipv4/conf/default/*",
		"net/ipv6/conf/default/*",
		"net/ipv4/neigh/default/gc_*", "net/ipv6/neigh/default/gc_*", "net/ipv6/route/max_size", "user/max_net_namespaces",
		"fs/inotify/*", "fs/file-nr", "fs/nr_open",
	} {
		files, err := filepath.Glob("/proc/sys/" + pattern)
		errs = append(errs, err)
		for _, file := range files {
			path := strings.TrimPrefix(file, "/proc/sys/")
			if (netstate.Sysctl{Path: path}).Secret() {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			fmt.Fprintf(w, "%s = %s\n", strings.ReplaceAll(path, "/", "."), strings.TrimSpace(string(text)))
		}
	}
	return errors.Join(errs...)
}

// fetch requests the metrics of an agent or a daemon.
func fetch(ctx context.Context, address string, w io.Writer) error {
	return get(ctx, &http.Transport{}, "http://"+address+"/metrics", func(answer *http.Response) error { // no proxy
		_, err := io.Copy(w, answer.Body)
		return err
	})
}

// sandboxes adds the status of each sandbox, as text and as a graph, and the objects in its
// namespace.
func (e *engine) sandboxes(ctx context.Context, b *bundle.Bundle, stateDir string) {
	records, found := e.List()
	for _, d := range slices.Concat(damagedFiles(e, found), otherVersions(e.otherVersions(stateDir))) {
		b.Problem("state", errors.New(d))
	}
	for _, rec := range records {
		name := "sandboxes/" + strings.ReplaceAll(string(rec.Sandbox.ID), "/", "_")
		b.Part(ctx, name+".status.json", func(ctx context.Context, w io.Writer) error {
			st, err := e.verdict(ctx, rec)
			if err != nil {
				return err
			}
			return writeJSON(w, sandboxStatus{Status: st, Steps: stepDocuments(st.Steps)})
		})
		b.Part(ctx, name+".graph.txt", func(ctx context.Context, w io.Writer) error {
			st, err := e.verdict(ctx, rec)
			if err != nil {
				return err
			}
			t := text{Writer: w}
			t.sandbox(st)
			top, of := stepsOf(verdict{Status: st, topology: rec.Sandbox.Topology})
			return t.graph(top, of)
		})
		b.Part(ctx, name+".observed.json", func(ctx context.Context, w io.Writer) error { return e.observe(ctx, rec, w) })
	}
}

// observe writes the objects in the namespace of a sandbox, and those elsewhere that its
// record names.
func (e *engine) observe(ctx context.Context, rec reconcile.Record, w io.Writer) error {
	d, err := e.Domain(rec.Sandbox.Netns)
	if err != nil {
		return err
	}
	defer d.Close()
	ask := make([]netstate.Object, 0, len(rec.History))
	for _, c := range rec.History {
		ask = append(ask, c.Object())
	}
	snap, err := d.Observe(ctx, ask)
	if err != nil {
		return err
	}
	objects := map[netstate.Kind][]netstate.Object{}
	for _, o := range netstate.All[netstate.Object](snap) {
		objects[o.Key().Kind] = append(objects[o.Key().Kind], o)
	}
	return writeJSON(w, objects)
}
