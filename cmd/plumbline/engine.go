package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/binding"
	"github.com/plumbline/plumbline/reconcile/dhcp"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/representor"
	"github.com/plumbline/plumbline/topology"
)

// engine is the reconciler with its parts.
type engine struct {
	*reconcile.Reconciler
	host    *kernel.Host
	store   reconcile.Store
	journal *journal.Journal // nil if it does not exist and must not be created

	ovn    *ovnDatabases // nil without OVN
	leases *dhcp.Host
}

// engine creates a reconciler. A command that only reads does not create a journal.
func (a *app) engine(command string, writes bool, recorder reconcile.Recorder) (*engine, error) {
	if err := privileged(command); err != nil {
		return nil, err
	}
	e := &engine{store: noRecords{}}
	_, err := os.Stat(a.stateDir)
	if writes || !errors.Is(err, os.ErrNotExist) {
		j, err := journal.Open(a.stateDir)
		if err != nil {
			return nil, err
		}
		e.journal, e.store = j, j
	}
	if e.host, err = kernel.Open(a.host); err != nil {
		return nil, err
	}
	if e.ovn, err = a.ovn.open(); err != nil {
		return nil, err
	}
	e.leases = dhcp.Open(dhcp.Options{
		Dir: filepath.Join(a.stateDir, leasesDir), BootID: e.host.BootID(), Within: kernel.Within, Prolong: e.host.Prolong, Now: kernel.SinceBoot,
	})
	if recorder == nil {
		recorder = passLog{a.log(slog.LevelWarn)}
	}
	e.Reconciler = reconcile.New(reconcile.Options{
		Registry: a.registry, Store: e.store, Open: e.open, BootID: e.host.BootID(), Recorder: recorder,
		External: append(e.ovn.domains(), representor.Open("/sys", kernel.SwitchMode).Domain(), binding.Open(a.pci).Domain(), e.leases.Domain()),
	})
	return e, nil
}

func (e *engine) close() {
	e.ovn.close()
	e.leases.Close()
	e.host.Close()
}

func (e *engine) open(netns string) (reconcile.Domain, error) {
	if netns == "" {
		return e.host.WithoutSandbox(), nil
	}
	d, err := e.host.Sandbox(netns)
	if err != nil {
		return nil, err // not a nil pointer in a Domain that is not nil
	}
	return d, nil
}

// damaged lists the journal files that were set aside as damaged.
func (e *engine) damaged() ([]string, error) {
	if e.journal == nil {
		return nil, nil
	}
	return e.journal.Damaged()
}

// leasesDir has the leases of DHCP servers, below the state directory.
const leasesDir = "dhcp"

// publishedFile records what the agent has published, below the state directory.
const publishedFile = "published.json"

// otherVersions lists the records below the state directory that other versions of
// plumbline have written; those of sandboxes only if they were read before.
func (e *engine) otherVersions(stateDir string) []*frame.OtherVersion {
	var out []*frame.OtherVersion
	if e.journal != nil {
		out = e.journal.OtherVersions()
	}
	out = append(out, claims.OtherVersionsIn(filepath.Join(stateDir, "claims"))...)
	file := filepath.Join(stateDir, publishedFile)
	return append(out, ofPublished(file, publish.OtherVersion(file))...)
}

func ofPublished(file string, other error) []*frame.OtherVersion {
	if other == nil {
		return nil
	}
	return []*frame.OtherVersion{{Path: file, Err: other}}
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

// noRecords stands for a journal that does not exist.
type noRecords struct{ reconcile.Store }

func (noRecords) List() ([]reconcile.Record, []error) { return nil, nil }

func (noRecords) IDs() ([]reconcile.SandboxID, []error) { return nil, nil }

func (noRecords) Get(reconcile.SandboxID) (reconcile.Record, bool, error) {
	return reconcile.Record{}, false, nil
}

// own returns the record of a sandbox, nil if there is none.
func (e *engine) own(a *app, id reconcile.SandboxID) *reconcile.Record {
	rec, known, err := e.store.Get(id)
	if err != nil {
		complain(a.err, err)
	}
	if err != nil || !known {
		return nil
	}
	return &rec
}

// sandbox makes a sandbox from the flags.
func (e *engine) sandbox(ctx context.Context, a *app, t *topology.Topology, ns node.Netns, own *reconcile.Record, asked map[string]string, given ops.Givens, rules ops.Enforced) (reconcile.Sandbox, error) {
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
		Alive:         func(rec reconcile.Record) bool { return node.Alive(rec, e.host.BootID()) },
		Discover:      func() ([]inventory.Device, error) { return discoverOn(ctx, e.host) },
		Sys:           os.DirFS("/sys"),
		Note:          func(text string) { fmt.Fprintf(a.err, "plumbline: note: %s\n", text) },
	}.Sandbox(ctx)
}

// discover lists the host's devices.
func discover(ctx context.Context) ([]inventory.Device, error) {
	host, err := kernel.Open(kernel.Options{})
	if err != nil {
		return nil, err
	}
	defer host.Close()
	return discoverOn(ctx, host)
}

// discoverOn lists the devices of a host and marks those that carry its default route.
func discoverOn(ctx context.Context, host *kernel.Host) ([]inventory.Device, error) {
	return discoverWired(ctx, host, nil)
}

// discoverWired is discoverOn with the physical networks that the agent's options name.
func discoverWired(ctx context.Context, host *kernel.Host, networks map[string]string) ([]inventory.Device, error) {
	routes := newHostRoutes(host)
	defer routes.Close()
	return inventory.DiscoverGuarded(ctx, os.DirFS("/sys"), inventory.Options{
		PhysicalNetworks: networks, UplinkOf: inventory.LookupUplink,
		RDMANetdevs: func(names []string) (map[string]string, error) { return host.RDMANetdevs(ctx, names) },
	}, routes)
}

// uplinksOf returns which of these devices carry a default route of the host.
func uplinksOf(ctx context.Context, host *kernel.Host, devices []inventory.Device) (inventory.Uplinks, error) {
	routes := newHostRoutes(host)
	defer routes.Close()
	return inventory.QueryUplinks(ctx, devices, routes)
}

// hostRoutes queries the kernel for the default routes and networks of the host.
type hostRoutes struct{ *kernel.Sandbox }

func newHostRoutes(host *kernel.Host) hostRoutes { return hostRoutes{host.WithoutSandbox()} }

// Best implements inventory.Routes.
func (r hostRoutes) Best(ctx context.Context) (string, error) {
	return r.Over(ctx, netstate.DefaultRouteDevice)
}

// Over implements inventory.Routes.
func (r hostRoutes) Over(ctx context.Context, id string) (string, error) {
	snap, err := r.Observe(ctx, []netstate.Object{netstate.Device{ID: id}})
	if err != nil {
		return "", err
	}
	d, _ := snap.Device(id)
	if d.At == nil || d.Use != string(inventory.DefaultRoute) {
		return "", nil
	}
	return netstate.BaseName(*d.At), nil
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
	return fmt.Errorf("%s enters network namespaces, for which the capabilities CAP_NET_ADMIN and CAP_SYS_ADMIN are missing: run it as root", command)
}
