package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/agent"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
)

// engine is the engine of this host.
type engine struct {
	*reconcile.Reconciler
	*hostengine.Base
}

// engine creates an engine. A command that only reads does not create a journal.
func (a *app) engine(command string, writes bool, recorder reconcile.Recorder) (*engine, error) {
	if err := privileged(command); err != nil {
		return nil, err
	}
	databases, err := a.ovn.open()
	if err != nil {
		return nil, err
	}
	base, err := hostengine.Open(hostengine.Options{StateDir: a.stateDir, Writes: writes, Kernel: a.host, OVN: databases})
	if err != nil {
		return nil, err
	}
	if recorder == nil {
		recorder = passLog{a.log(slog.LevelWarn)}
	}
	return &engine{base.Engine(a.registry, recorder), base}, nil
}

// otherVersions lists the records below the state directory that other versions of
// plumbline have written; those of sandboxes only if they were read before.
func (e *engine) otherVersions(stateDir string) []*frame.OtherVersion {
	var out []*frame.OtherVersion
	if e.Journal != nil {
		out = e.Journal.OtherVersions()
	}
	out = append(out, claims.OtherVersionsIn(filepath.Join(stateDir, "claims"))...)
	file := filepath.Join(stateDir, agent.PublishedFile)
	return append(out, agent.OtherPublished(file, publish.OtherVersion(file))...)
}

// passLog logs the changes and the cost of passes.
type passLog struct{ log *slog.Logger }

// Pass implements reconcile.Recorder.
func (p passLog) Pass(i reconcile.Pass) {
	p.log.Debug("pass", "sandbox", i.Sandbox, "trigger", i.Trigger, "outcome", i.Outcome, "changes", len(i.Changes),
		"took", i.Timing.Total, "observe", i.Timing.Observe, "journal", i.Timing.Journal, "apply", i.Timing.Apply,
		"dumps", i.Dumps, "gets", i.Gets, "writes", i.Writes)
}

// Drift implements reconcile.Recorder.
func (passLog) Drift(reconcile.SandboxID, string, []reconcile.Drift) {}

// Forget implements reconcile.Recorder.
func (passLog) Forget(reconcile.SandboxID) {}

// own returns the record of a sandbox, nil if there is none.
func (e *engine) own(a *app, id reconcile.SandboxID) *reconcile.Record {
	rec, known, err := e.Store.Get(id)
	if err != nil {
		complain(a.err, err)
	}
	if err != nil || !known {
		return nil
	}
	return &rec
}

// sandbox makes a sandbox from the flags.
func (e *engine) sandbox(ctx context.Context, a *app, t *topology.Topology, ns node.Netns, own *reconcile.Record, asked map[string]string,
	given ops.Givens, rules ops.Rules,
) (reconcile.Sandbox, error) {
	return node.Assignment{
		ID: ns.ID(t.Name), Netns: ns, Topology: t, Requested: asked, Given: given, Rules: rules, Contracts: a.registry, Own: own,
		Records: func() []reconcile.Record {
			records, errs := e.List()
			for _, err := range errs {
				complain(a.err, err)
			}
			return records
		},
		OtherVersions: e.OtherVersions,
		Alive:         func(rec reconcile.Record) bool { return node.Alive(rec, e.Host.BootID()) },
		Discover:      func() ([]inventory.Device, error) { return hostengine.Devices(ctx, e.Host, nil) },
		Sys:           os.DirFS("/sys"),
		Note:          func(text string) { a.note("%s", text) },
	}.Sandbox(ctx)
}

// discover lists the host's devices; without root those that sysfs shows, with what that leaves out.
func discover(ctx context.Context) ([]inventory.Device, error) {
	host, err := kernel.Open(kernel.Options{})
	if err != nil {
		if denied := privileged("reading them"); denied != nil {
			return inventory.DiscoverBlind(os.DirFS("/sys"), inventory.Options{UplinkOf: inventory.LookupUplink}, denied)
		}
		return nil, err
	}
	defer host.Close()
	return hostengine.Devices(ctx, host, nil)
}

// privileged returns an error if a capability is missing, since the kernel would refuse
// halfway.
func privileged(command string) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	has := func(c int) bool { return data[c/32].Effective&(1<<(c%32)) != 0 }
	if has(unix.CAP_NET_ADMIN) && has(unix.CAP_SYS_ADMIN) {
		return nil
	}
	return fmt.Errorf(
		"%s enters network namespaces, for which the capabilities CAP_NET_ADMIN and CAP_SYS_ADMIN are missing: run it as root", command)
}
