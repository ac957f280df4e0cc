package chassis_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/openvswitch"
)

// life is that of a process: it ends after a number of changes, of which the last is made.
type life struct {
	changes int // still to be made
	dead    bool
}

var errDead = errors.New("the process has ended")

func (l *life) do(something func() error) error {
	if l.dead {
		return errDead
	}
	return something()
}

func (l *life) change(apply func() error) error {
	return l.do(func() error {
		err := apply()
		l.changes--
		l.dead = l.changes == 0
		return err
	})
}

// mortal is a domain that ends with its process.
type mortal struct {
	reconcile.External
	*life
}

func (m mortal) Extend(ctx context.Context, s *netstate.Snapshot, queried []netstate.Object) error {
	return m.do(func() error { return m.External.Extend(ctx, s, queried) })
}

func (m mortal) Apply(ctx context.Context, c netstate.Change) error {
	return m.change(func() error { return m.External.Apply(ctx, c) })
}

// mortalKernel is the kernel for such a process.
type mortalKernel struct {
	reconcile.Domain
	*life
}

func (m mortalKernel) Observe(ctx context.Context, queried []netstate.Object) (*netstate.Snapshot, error) {
	if m.dead {
		return nil, errDead
	}
	return m.Domain.Observe(ctx, queried)
}

func (m mortalKernel) Extend(ctx context.Context, s *netstate.Snapshot, queried []netstate.Object) error {
	return m.do(func() error { return m.Domain.Extend(ctx, s, queried) })
}

func (m mortalKernel) Apply(ctx context.Context, c netstate.Change) error {
	return m.change(func() error { return m.Domain.Apply(ctx, c) })
}

// mortalStore is the journal of such a process.
type mortalStore struct {
	reconcile.Store
	*life
}

func (m mortalStore) Put(r reconcile.Record) error {
	return m.do(func() error { return m.Store.Put(r) })
}

func (m mortalStore) Intend(id reconcile.SandboxID, changes []netstate.Change) error {
	return m.do(func() error { return m.Store.Intend(id, changes) })
}

func (m mortalStore) Settle(r reconcile.Record) error {
	return m.do(func() error { return m.Store.Settle(r) })
}

func (m mortalStore) Remove(id reconcile.SandboxID) error {
	return m.do(func() error { return m.Store.Remove(id) })
}

// engineOf is the engine of a process, whose life may be bounded, with its journal in a folder.
func (n *worker) engineOf(dir string, of *life, more ...reconcile.ExternalDomain) *worker {
	n.Helper()
	store, err := journal.Open(dir)
	n.ok(err)
	host, err := kernel.Open(kernel.Options{})
	n.ok(err)
	n.Cleanup(func() { host.Close() })
	vswitch, err := openvswitch.NewSwitch(openvswitch.Server{Endpoints: []string{n.chassis.Endpoint()}, Timeout: time.Minute})
	n.ok(err)
	n.Cleanup(vswitch.Close)
	northbound, err := openvswitch.NewNorthbound(openvswitch.Server{Endpoints: []string{n.chassis.Endpoint()}, Timeout: time.Minute})
	n.ok(err)
	n.Cleanup(northbound.Close)
	domains := append(slices.Clip(more), northbound.Domain(), vswitch.Domain())
	for i := range domains {
		whole := domains[i].Open
		domains[i].Open = func(ctx context.Context, s reconcile.Sandbox) (reconcile.External, error) {
			e, err := whole(ctx, s)
			return mortal{e, of}, err
		}
	}
	return &worker{n.bench, reconcile.New(reconcile.Options{
		Registry: n.registry, Store: mortalStore{store, of}, BootID: host.BootID(), Patience: 3 * time.Minute, External: domains,
		Open: func(path string) (reconcile.Domain, error) {
			if path == "" {
				return mortalKernel{host.WithoutSandbox(), of}, nil
			}
			d, err := host.Sandbox(path)
			if err != nil {
				return nil, err
			}
			return mortalKernel{d, of}, nil
		},
	}), n.registry}
}
