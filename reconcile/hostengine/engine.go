package hostengine

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/binding"
	"github.com/plumbline/plumbline/reconcile/dhcp"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/hostports"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/metrics"
	"github.com/plumbline/plumbline/reconcile/representor"
)

// Options are the settings of a Base.
type Options struct {
	// StateDir has the journal and the leases of DHCP servers.
	StateDir string
	// Writes has a journal made if there is none.
	Writes bool
	// Kernel says where the host is found.
	Kernel kernel.Options
	// PCI says where drivers are bound.
	PCI binding.Options
	// OVN are the databases of OVN, nil without.
	OVN *OVN
	// Warn is told which DHCP leases cannot be recorded; nil: nobody is.
	Warn func(error)
}

// Base holds the kernel, journal and domains of an engine.
type Base struct {
	Host    *kernel.Host
	Store   reconcile.Store
	Journal *journal.Journal // nil if it does not exist and must not be created
	OVN     *OVN             // nil without OVN
	Leases  *dhcp.Host

	pci binding.Options
}

// leasesDir has the leases of DHCP servers, below the state directory.
const leasesDir = "dhcp"

// Open opens the parts of an engine. Close closes them, and the databases of OVN.
func Open(o Options) (*Base, error) {
	b := &Base{Store: noRecords{}, OVN: o.OVN, pci: o.PCI}
	_, err := os.Stat(o.StateDir)
	if o.Writes || !errors.Is(err, os.ErrNotExist) {
		j, err := journal.Open(o.StateDir)
		if err != nil {
			return nil, err
		}
		b.Journal, b.Store = j, j
	}
	if b.Host, err = kernel.Open(o.Kernel); err != nil {
		return nil, err
	}
	b.Leases = dhcp.Open(dhcp.Options{
		Dir: filepath.Join(o.StateDir, leasesDir), BootID: b.Host.BootID(), Within: kernel.Within, Prolong: b.Host.Prolong,
		Now: kernel.SinceBoot, Warn: o.Warn,
	})
	return b, nil
}

// Engine returns the engine with the step types of a registry.
func (b *Base) Engine(registry *ops.Registry, recorder reconcile.Recorder) *reconcile.Reconciler {
	return reconcile.New(reconcile.Options{
		Registry: registry, Store: b.Store, Open: b.Domain, BootID: b.Host.BootID(), Recorder: recorder,
		Before: []reconcile.Before{hostports.Before},
		External: append(b.OVN.domains(), representor.Open("/sys", kernel.SwitchMode).Domain(), binding.Open(b.pci).Domain(),
			b.Leases.Domain()),
	})
}

// Close closes everything but the journal, which needs no closing.
func (b *Base) Close() error {
	b.OVN.close()
	b.Leases.Close()
	return b.Host.Close()
}

// Domain opens a network namespace by its path, or what is in none if that is empty.
func (b *Base) Domain(netns string) (reconcile.Domain, error) {
	if netns == "" {
		return b.Host.WithoutSandbox(), nil
	}
	d, err := b.Host.Sandbox(netns)
	if err != nil {
		return nil, err // not a nil pointer in a Domain that is not nil
	}
	return d, nil
}

// In returns what reports whether a record is of the namespace at a path, if that exists also by another path.
func (b *Base) In(netns string) func(reconcile.Record) bool {
	var open reconcile.NetnsID
	if netns != "" {
		if d, err := b.Domain(netns); err == nil {
			open = d.NetnsID()
			d.Close()
		}
	}
	return func(rec reconcile.Record) bool {
		return rec.Sandbox.Netns == netns || open.Is(rec.NetnsID) && rec.BootID == b.Host.BootID()
	}
}

// Damaged lists the journal files that were set aside as damaged.
func (b *Base) Damaged() ([]string, error) {
	if b.Journal == nil {
		return nil, nil
	}
	return b.Journal.Damaged()
}

// Searching returns the Searching of kernel.Options that logs and counts that each release is slower
// than it could be.
func Searching(log *slog.Logger, counts *metrics.Metrics) func(error) {
	return func(why error) {
		log.Warn(
			"the BPF program that finds links hidden by pods cannot be used: each release searches for them one by one, which is slower",
			"reason", why)
		counts.Searching()
	}
}

// noRecords stands for a journal that does not exist.
type noRecords struct{ reconcile.Store }

func (noRecords) List() ([]reconcile.Record, []error) { return nil, nil }

func (noRecords) IDs() ([]reconcile.SandboxID, []error) { return nil, nil }

func (noRecords) Holders([]string) []reconcile.Record { return nil }

func (noRecords) Beside(reconcile.SandboxID, string, reconcile.NetnsID) []reconcile.Record {
	return nil
}

func (noRecords) OtherVersions() []*frame.OtherVersion { return nil }

func (noRecords) Get(reconcile.SandboxID) (reconcile.Record, bool, error) {
	return reconcile.Record{}, false, nil
}
