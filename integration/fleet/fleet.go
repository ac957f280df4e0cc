package fleet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/metrics"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/gate"
	"github.com/plumbline/plumbline/reconcile/watch"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Topology has the flagship's shape on roots that any machine has.
const Topology = `apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: virtual}
spec:
  steps:
    - {name: d0, type: dummy, config: {name: net1}}
    - {name: d1, type: dummy, config: {name: net2}}
    - {name: bond0, type: bond, dependOn: [d0, d1], config: {mode: active-backup, miimon: 100}}
    - {name: data, type: vlan, dependOn: [bond0], config: {id: 100, name: data0, addresses: [10.100.0.5/24]}}
    - {name: mgmt, type: vlan, dependOn: [bond0], config: {id: 200, name: mgmt0, addresses: [10.200.0.5/24]}}
    - {name: tune-data, type: tuning, dependOn: [data], config: {mtu: 9000, routes: [{dst: 10.100.0.0/16, gw: 10.100.0.1}]}}
    - {name: tune-mgmt, type: tuning, dependOn: [mgmt], config: {mtu: 1500, routes: [{dst: 0.0.0.0/0, gw: 10.200.0.1}]}}
`

// Route is one of the routes of a pod, for a test to delete.
var Route = netstate.Route{Link: "data0", Dst: "10.100.0.0/16", Gateway: "10.100.0.1", Table: netstate.TableMain}

// Options is what an Agent works with.
type Options struct {
	Dir string // of all state; the state of an earlier agent is continued
	// ReceiveBufferBytes is the watcher's; 0 is its default.
	ReceiveBufferBytes int
	Log                *slog.Logger
}

// Agent is an agent without a cluster.
type Agent struct {
	Options
	Keeper     *attachment.Keeper
	Reconciler *reconcile.Reconciler
	Tally      *Tally
	Store      *claims.Store

	object v1alpha1.NetworkTopology
	host   *kernel.Host
	loop   *node.Loop
	ear    *ear
	cancel context.CancelFunc
	group  errgroup.Group
	stop   func() error
}

// New wires an agent. It can attach pods; it checks none until Run.
func New(o Options) (a *Agent, err error) {
	a = &Agent{Options: o, Tally: &Tally{Metrics: metrics.New(metrics.Build{}, time.Now), mended: map[reconcile.SandboxID]bool{}}, cancel: func() {}}
	a.stop = sync.OnceValue(a.end)
	if err := yaml.UnmarshalStrict([]byte(Topology), &a.object); err != nil {
		return nil, err
	}
	reg, err := all.Registry()
	if err != nil {
		return nil, err
	}
	records, err := journal.Open(o.Dir)
	if err != nil {
		return nil, err
	}
	if a.host, err = kernel.Open(kernel.Options{}); err != nil {
		return nil, err
	}
	a.Reconciler = reconcile.New(reconcile.Options{
		Registry: reg, Store: records, BootID: a.host.BootID(), Open: a.open, Recorder: a.Tally,
	})
	if a.Store, err = claims.Open(claims.Options{
		Dir: filepath.Join(o.Dir, "claims"), Locker: records, BootID: a.host.BootID(), Now: time.Now,
	}); err != nil {
		return nil, errors.Join(err, a.Stop())
	}
	a.Keeper = attachment.New(attachment.Options{
		Store: a.Store, Engine: a.Reconciler, Yield: func() func() { return a.loop.Yield() }, Gate: gate.Dir(filepath.Join(o.Dir, "cdi")), Reporter: unheard{},
		Refine: func(context.Context, *claims.Claim, [][]topology.StepResult) error { return nil }, Log: o.Log, Now: time.Now,
	})
	watcher, err := watch.New(watch.Options{ReceiveBufferBytes: o.ReceiveBufferBytes})
	if err != nil {
		return nil, errors.Join(err, a.Stop())
	}
	a.ear = &ear{Watcher: watcher, out: make(chan watch.Event)}
	files := filepath.Join(o.Dir, "files")
	if err := os.MkdirAll(files, 0o700); err != nil {
		return nil, errors.Join(err, a.Stop())
	}
	a.loop = node.New(node.Options{
		Dir: files, StateDir: o.Dir, Reconciler: a.Reconciler, Store: records, Damaged: records.Damaged, OtherVersions: records.OtherVersions, Contracts: reg,
		BootID: a.host.BootID(), Sys: noDevices{}, Discover: func() ([]inventory.Device, error) { return nil, nil },
		Watcher: a.ear, Recorder: a.Tally, Log: o.Log, Now: time.Now, Workers: 2, // as an agent has
	})
	return a, nil
}

func (a *Agent) open(path string) (reconcile.Domain, error) {
	if path == "" {
		return a.host.WithoutSandbox(), nil
	}
	return a.Sandbox(path)
}

// Sandbox opens a namespace, to observe or disturb it.
func (a *Agent) Sandbox(path string) (reconcile.Domain, error) {
	d, err := a.host.Sandbox(path)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Run starts the loop, and returns when every sandbox has had its first pass.
func (a *Agent) Run(ctx context.Context) error {
	ctx, a.cancel = context.WithCancel(ctx)
	a.group.Go(func() error { return a.ear.Run(ctx) })
	a.group.Go(func() error { a.ear.forward(ctx); return nil })
	a.group.Go(func() error {
		defer a.cancel() // one that cannot begin never gets ready; Stop says why
		return a.loop.Run(ctx)
	})
	a.group.Go(func() error { a.Keeper.Run(ctx); return nil })
	for a.loop.Ready() != nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// Stop ends it, once. All networks stay as they are.
func (a *Agent) Stop() error { return a.stop() }

func (a *Agent) end() error {
	a.cancel()
	err := a.group.Wait()
	if a.ear != nil {
		a.ear.Close()
	}
	if a.Store != nil {
		err = errors.Join(err, a.Store.Close())
	}
	return errors.Join(err, a.host.Close())
}

// Overflows returns how often the watcher reported that the kernel has dropped notifications.
func (a *Agent) Overflows() int64 { return a.ear.overflows.Load() }

// Pod is a pod with a namespace and a claim.
type Pod struct {
	attachment.Pod
	Claim types.UID
}

// ID returns what the engine calls the pod's topology.
func (p Pod) ID() reconcile.SandboxID {
	return reconcile.SandboxID(p.Sandbox + "/" + string(p.Claim) + "/virtual")
}

// Make creates the namespace of a pod and prepares its claim, as runtime and kubelet do
// before the pod's sandbox is attached. Pods are identified by their number.
func (a *Agent) Make(number int) (Pod, error) {
	p := Pod{Claim: types.UID(fmt.Sprintf("claim-%d", number)), Pod: attachment.Pod{
		Sandbox: fmt.Sprintf("%064x", number), UID: types.UID(fmt.Sprintf("pod-%d", number)), Namespace: "fleet", Name: fmt.Sprintf("pod-%d", number),
	}}
	var err error
	if p.Netns, err = kernel.AddNamed(fmt.Sprintf("fleet-%d", number)); err != nil {
		return p, err
	}
	return p, a.Store.Put(claims.Claim{
		UID: p.Claim, Namespace: p.Namespace, Name: p.Name, Pod: claims.Pod{Name: p.Name, UID: p.UID},
		Topologies: []claims.Topology{{Object: a.object}}, Prepared: time.Now(),
	})
}

// Unmake ends a pod as runtime and kubelet do, and takes its namespace away.
func (a *Agent) Unmake(ctx context.Context, p Pod) error {
	err := errors.Join(a.Keeper.Detach(ctx, p.Pod), a.Keeper.Forget(ctx, p.Pod), a.Keeper.Withdraw(ctx, p.Claim))
	return errors.Join(err, kernel.DeleteNamed(p.Netns))
}

// Start makes pods of these numbers and attaches them, a few at a time.
func (a *Agent) Start(ctx context.Context, from, to int) ([]Pod, error) {
	pods := make([]Pod, to-from)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for i := range pods {
		group.Go(func() (err error) {
			if pods[i], err = a.Make(from + i); err != nil {
				return err
			}
			return a.Keeper.Attach(ctx, pods[i].Pod)
		})
	}
	return pods, group.Wait()
}

// Tally counts what the engine did.
type Tally struct {
	*metrics.Metrics
	Passes, Changes, Dumps, Writes atomic.Int64

	mu     sync.Mutex
	mended map[reconcile.SandboxID]bool
}

// Pass implements reconcile.Recorder.
func (t *Tally) Pass(p reconcile.Pass) {
	t.Metrics.Pass(p)
	t.Passes.Add(1)
	t.Changes.Add(int64(len(p.Changes)))
	t.Dumps.Add(int64(p.Dumps))
	t.Writes.Add(int64(p.Writes))
	if p.Trigger == reconcile.TriggerRepair && p.Outcome == "" && len(p.Changes) > 0 {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.mended[p.Sandbox] = true
	}
}

// RepairedSandboxes returns how many sandboxes have been repaired at least once.
func (t *Tally) RepairedSandboxes() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.mended)
}

// ear is a watcher whose overflows are counted.
type ear struct {
	*watch.Watcher
	out       chan watch.Event
	overflows atomic.Int64
}

// Events implements node.Watcher.
func (e *ear) Events() <-chan watch.Event { return e.out }

func (e *ear) forward(ctx context.Context) {
	for event := range e.Watcher.Events() {
		if event.Reason == watch.Overflow {
			e.overflows.Add(1)
		}
		select {
		case e.out <- event:
		case <-ctx.Done():
		}
	}
}

// unheard is an API server that never answers.
type unheard struct{}

func (unheard) Attaching(attachment.Pod, claims.Claim, attachment.Progress) {}
func (unheard) Attached(attachment.Pod, claims.Claim, []reconcile.Report)   {}
func (unheard) Failed(attachment.Pod, claims.Claim, error)                  {}
func (unheard) Updated(claims.Claim, string, int64, reconcile.Report)       {}
func (unheard) Detached(claims.Claim)                                       {}

// noDevices is the sysfs of a machine without any: no topology here needs one.
type noDevices struct{}

func (noDevices) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}
