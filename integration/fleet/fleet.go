package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/integration/namespace"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/agent"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
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

// Options are those of an Agent.
type Options struct {
	Dir string // of all state; the state of an earlier agent is continued
	// ReceiveBufferBytes is the watcher's; 0 is its default.
	ReceiveBufferBytes int
	Log                *slog.Logger
}

// Agent is the agent of a node whose kubelet and container runtime are the test, and whose API
// server does not answer.
type Agent struct {
	*agent.Agent
	Tally *Tally
	Dir   string // of all state

	object v1alpha1.NetworkTopology
	tmp    string // has sockets
	cancel context.CancelFunc
	group  errgroup.Group
	stop   func() error
}

// New builds an agent. It can attach pods; it checks none until Run.
func New(o Options) (*Agent, error) {
	a := &Agent{Dir: o.Dir, Tally: &Tally{mended: map[reconcile.SandboxID]bool{}}, cancel: func() {}}
	a.stop = sync.OnceValue(a.end)
	if err := yaml.UnmarshalStrict([]byte(Topology), &a.object); err != nil {
		return nil, err
	}
	reg, err := all.Registry()
	if err != nil {
		return nil, err
	}
	clients, err := noAPIServer()
	if err != nil {
		return nil, err
	}
	if a.tmp, err = os.MkdirTemp("", "fleet-"); err != nil {
		return nil, err
	}
	in := func(name string) string { return filepath.Join(a.tmp, name) }
	if err := os.Mkdir(in("registrar"), 0o700); err != nil { // a kubelet has made its own
		return nil, errors.Join(err, os.RemoveAll(a.tmp))
	}
	a.Agent, err = agent.New(context.Background(), agent.Config{
		NodeName: "fleet", StateDir: o.Dir, Clients: clients, Registry: reg,
		NRISocket: in("nri.sock"), NRIIndex: "30", PluginDir: in("plugin"), RegistrarDir: in("registrar"),
		CDIDir: filepath.Join(o.Dir, "cdi"),
		Proc:   "/proc", Sys: "/sys", MetricsAddress: "127.0.0.1:0", InterfaceMetrics: 1024, RuleMetrics: 512,
		Timeout: time.Minute, AttachTimeout: 5 * time.Minute, Resync: time.Minute,
		Recorder: a.Tally, ReceiveBufferBytes: o.ReceiveBufferBytes, Log: o.Log, Now: time.Now,
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(a.tmp))
	}
	return a, nil
}

// noAPIServer returns clients of an API server at an address where nothing listens.
func noAPIServer() (c agent.Clients, err error) {
	config := &rest.Config{Host: "http://127.0.0.1:1"}
	if c.Kube, err = kubernetes.NewForConfig(config); err == nil {
		c.Nodes = c.Kube
		c.Dynamic, err = dynamic.NewForConfig(config)
	}
	if err == nil {
		c.Metadata, err = metadata.NewForConfig(config)
	}
	return c, err
}

// Run runs the agent, and returns when every sandbox has had its first pass.
func (a *Agent) Run(ctx context.Context) error {
	ctx, a.cancel = context.WithCancel(ctx)
	a.group.Go(func() error {
		defer a.cancel() // one that cannot begin never gets ready; Stop says why
		return a.Agent.Run(ctx)
	})
	for a.Checked() != nil {
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
	return errors.Join(a.group.Wait(), a.Close(), os.RemoveAll(a.tmp))
}

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
		Sandbox: fmt.Sprintf("%064x", number), UID: types.UID(fmt.Sprintf("pod-%d", number)), Namespace: "fleet",
		Name: fmt.Sprintf("pod-%d", number),
	}}
	var err error
	if p.Netns, err = namespace.Add(fmt.Sprintf("fleet-%d", number)); err != nil {
		return p, err
	}
	return p, a.Claims.Put(claims.Claim{
		UID: p.Claim, Namespace: p.Namespace, Name: p.Name, Pod: claims.Pod{Name: p.Name, UID: p.UID},
		Topologies: []claims.Topology{{Object: a.object}}, Prepared: time.Now(),
	})
}

// Unmake ends a pod as runtime and kubelet do, and takes its namespace away.
func (a *Agent) Unmake(ctx context.Context, p Pod) error {
	err := errors.Join(a.Keeper.Detach(ctx, p.Pod), a.Keeper.Forget(ctx, p.Pod), a.Keeper.Withdraw(ctx, p.Claim))
	return errors.Join(err, namespace.Delete(p.Netns))
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
	Passes, Changes, Dumps, Writes atomic.Int64

	mu     sync.Mutex
	mended map[reconcile.SandboxID]bool
}

// Drift implements reconcile.Recorder.
func (*Tally) Drift(reconcile.SandboxID, string, []reconcile.Drift) {}

// Forget implements reconcile.Recorder.
func (*Tally) Forget(reconcile.SandboxID) {}

// Pass implements reconcile.Recorder.
func (t *Tally) Pass(p reconcile.Pass) {
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
