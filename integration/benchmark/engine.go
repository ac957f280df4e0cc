package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/topology"
)

// engine is plumbline as an agent runs it: one process, a journal on disk.
type engine struct {
	reconciler *reconcile.Reconciler
	topology   *topology.Topology
	devices    map[string]string
	functions  *functions // one for each namespace, for the step net1, instead of devices
	recorder   reconcile.Recorder
	registry   *ops.Registry
	base       *hostengine.Base
}

const compared = `apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: compared}
spec:
  steps:
    - {name: vf0, type: sriov, config: {spoofchk: "off", trust: "on"}}
    - {name: vf1, type: sriov, config: {spoofchk: "off", trust: "on"}}
    - {name: bond0, type: bond, dependOn: [vf0, vf1], config: {mode: active-backup, failOverMac: active, miimon: 100, mtu: 1450}}
    - {name: data, type: vlan, dependOn: [bond0], config: {id: 100, name: data0, addresses: [10.100.0.5/24]}}
    - {name: mgmt, type: vlan, dependOn: [bond0], config: {id: 200, name: mgmt0, addresses: [10.200.0.5/24]}}
    - {name: tune-data, type: tuning, dependOn: [data], config: {mtu: 1450, sysctl: {net.ipv4.conf.IFNAME.rp_filter: 2,
        net.ipv4.conf.IFNAME.arp_notify: 1}}}
    - {name: tune-mgmt, type: tuning, dependOn: [mgmt], config: {mtu: 1450, sysctl: {net.ipv4.conf.IFNAME.rp_filter: 2,
        net.ipv4.conf.IFNAME.arp_notify: 1}}}
`

func newEngine(vfs [2]vf) (*engine, error) {
	e, err := bareEngine(compared)
	if err != nil {
		return nil, err
	}
	e.devices = map[string]string{"vf0": vfs[0].pci, "vf1": vfs[1].pci}
	return e, nil
}

// bareEngine is an engine whose steps have no devices yet.
func bareEngine(document string) (*engine, error) {
	t, err := topology.Decode([]byte(document))
	if err != nil {
		return nil, err
	}
	reg, err := all.Registry()
	if err != nil {
		return nil, err
	}
	if err := topology.Validate(context.Background(), t, reg); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "plumbline-benchmark-")
	if err != nil {
		return nil, err
	}
	base, err := hostengine.Open(hostengine.Options{StateDir: filepath.Join(dir, "state"), Writes: true})
	if err != nil {
		return nil, err
	}
	e := &engine{topology: t, registry: reg, base: base}
	e.reconciler = base.Engine(reg, recorderFunc(func(p reconcile.Pass) {
		if e.recorder != nil {
			e.recorder.Pass(p)
		}
	}))
	return e, nil
}

type recorderFunc func(reconcile.Pass)

func (f recorderFunc) Pass(p reconcile.Pass)                              { f(p) }
func (recorderFunc) Drift(reconcile.SandboxID, string, []reconcile.Drift) {}
func (recorderFunc) Forget(reconcile.SandboxID)                           {}

func (e *engine) name() string { return "plumbline's engine" }

func (e *engine) sandbox(netns string) reconcile.Sandbox {
	devices := e.devices
	if e.functions != nil {
		devices = map[string]string{"net1": e.functions.of(netns).pci}
	}
	return reconcile.Sandbox{
		ID: reconcile.SandboxID(fmt.Sprintf("%s/%s", filepath.Base(netns), e.topology.Name)), Netns: netns,
		Topology: e.topology, Given: ops.Givens{}.WithDevices(devices),
	}
}

func (e *engine) apply(ctx context.Context, netns string) error {
	_, err := e.reconciler.Ensure(ctx, e.sandbox(netns))
	return err
}

func (e *engine) remove(ctx context.Context, netns string) error {
	_, err := e.reconciler.Release(ctx, e.sandbox(netns).ID)
	if e.functions != nil {
		e.functions.done(netns)
	}
	return err
}
