package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/lldp"
	"github.com/plumbline/plumbline/inventory/ncclfile"
	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/qos/filters"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/binding"
	"github.com/plumbline/plumbline/reconcile/dhcp"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/metrics"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/claimstatus"
	"github.com/plumbline/plumbline/reconcile/pod/draplugin"
	"github.com/plumbline/plumbline/reconcile/pod/failures"
	"github.com/plumbline/plumbline/reconcile/pod/gate"
	"github.com/plumbline/plumbline/reconcile/pod/hostroutes"
	"github.com/plumbline/plumbline/reconcile/pod/nriplugin"
	"github.com/plumbline/plumbline/reconcile/pod/ovnkubernetes"
	"github.com/plumbline/plumbline/reconcile/pod/primary"
	"github.com/plumbline/plumbline/reconcile/pod/rollout"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/reconcile/watch"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/exposure/follower"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Data that has no package of its own.
type (
	// topologies are those of the node's claims, as they are in the cluster: nil for one that does not exist.
	topologies = table.Table[string, *v1alpha1.NetworkTopology]
	// nodeChanges change with what the policies know of the Node.
	nodeChanges struct{ table.Changes }
	// deviceChanges change with what is published of devices.
	deviceChanges struct{ table.Changes }
)

// The parts that show on their own that they work.
const (
	partRuntime   = "runtime connection"
	partKubelet   = "kubelet server"
	partSandboxes = "sandboxes"
	partCNI       = "CNI server"
)

// declared are the parts of an agent, in the order in which they are built. Their names are those of the
// liveness probe and of errors.
func declared() []declaration {
	return []declaration{
		// Data, and parts that open none.
		{"counters", func(c Config) *metrics.Metrics { return metrics.New(c.Build, c.Now) }},
		{"hook counters", nriplugin.NewMetrics},
		{"topologies", func() *topologies { return &topologies{} }},
		{"node labels", func() *nodeChanges { return &nodeChanges{} }},
		{"device changes", func() *deviceChanges { return &deviceChanges{} }},
		{"device node changes", attachment.NewNodes},
		{"host addresses", func() *hostroutes.Addresses { return &hostroutes.Addresses{} }},
		{"kubelet registration", func() *draplugin.Registration { return &draplugin.Registration{} }},
		{"urgent work", func() *node.Urgent { return &node.Urgent{} }},
		{"missing rules", filters.NewMissing},
		{"host", openBase},
		{"claims", openClaims},
		{"primary networks", newPodEntries},
		// Reports.
		{"claim reports", newReporter},
		{"failed devices", newFailures},
		{"port states", newPorts},
		{"interface counters", func(c Config, m *ports.Monitor) *ports.Metrics {
			return &ports.Metrics{Monitor: m, Interfaces: c.InterfaceMetrics}
		}},
		{"RDMA counters", func(c Config, m *ports.Monitor, base *hostengine.Base) *ports.RDMAMetrics {
			return &ports.RDMAMetrics{Monitor: m, Devices: c.InterfaceMetrics, Sys: os.DirFS("/sys"), Inside: base.Host.RDMASysfs}
		}},
		{"driver counters", func(c Config, m *ports.Monitor, base *hostengine.Base) *ports.FabricMetrics {
			return &ports.FabricMetrics{
				Monitor: m, Interfaces: c.InterfaceMetrics, Read: base.Host.DriverCounters,
				Physical: base.Host.PhysicalFunction, ReadPhysical: base.Host.PhysicalCounters,
			}
		}},
		{"rule counters", func(c Config, m *ports.Monitor, base *hostengine.Base) *ports.RuleMetrics {
			return &ports.RuleMetrics{Monitor: m, Rules: c.RuleMetrics, Read: base.Host.RuleReadings, ReadLogical: c.OVN.Readings}
		}},
		{"recorder", newRecorder},
		{"engine", func(c Config, base writes[*hostengine.Base], r writes[*recorder]) *reconcile.Reconciler {
			return base.to.Engine(c.Registry, r.to)
		}},
		{"DHCP leases", func(base *hostengine.Base) *dhcp.Host { return base.Leases }},
		// Objects of the cluster.
		{"policies", newPolicies},
		{"address pools", func(c Config) *addresses.Client {
			return addresses.NewClient(c.Clients.Kube, c.Clients.Dynamic, c.NodeName, c.Now)
		}},
		{"address leases", openAddresses},
		{"primary topology", newPodTopology},
		{"host routes", newHostRoutes},
		{"filters", newFilters},
		{"ovn-kubernetes ports", newOVNPorts},
		// Changes of pods.
		{partSandboxes, newKeeper},
		{"topology updates", newRollout},
		{partRuntime, newRuntime},
		// Devices.
		{"LLDP", newLLDP},
		{"devices", newPublisher},
		{partKubelet, newKubelet},
		// Pods' own network, and the host.
		{partCNI, newCNIServer},
		{"filter updates", newUpdates},
		{"CNI plugin", newInstaller},
		{"host ports", func(c Config, e *reconcile.Reconciler, a *addresses.Allocator, pods *primary.Follower) *hostPorts {
			return &hostPorts{engine: e, addresses: a, pods: pods, log: c.Log}
		}},
		{"kernel watch", openWatcher},
		{"kernel events", func(w *watch.Watcher, devices writes[*deviceChanges]) *watch.Relay {
			return watch.NewRelay(w.Events(), devices.to.Changed)
		}},
		{"drift loop", newDriftLoop},
		{"metrics and probes", newServer},
	}
}

func newReporter(c Config) *claimstatus.Reporter {
	return claimstatus.New(claimstatus.Options{Client: c.Clients.Kube, NodeName: c.NodeName, Log: c.Log, Now: c.Now})
}

func newFailures(c Config, n *nodeClaims, devices writes[*deviceChanges]) *failures.Tracker {
	return failures.New(failures.Options{Claim: n.claim, InUse: n.inUse, Changed: devices.to.Changed, Now: c.Now})
}

func newPolicies(c Config, devices writes[*deviceChanges], labels writes[*nodeChanges]) *follower.Follower {
	return follower.New(follower.Options{
		Kube: c.Clients.Kube, Dynamic: c.Clients.Dynamic, NodeName: c.NodeName, Log: c.Log,
		Changed: func() { devices.to.Changed(); labels.to.Changed() },
	})
}

func newOVNPorts(c Config) *ovnkubernetes.Ports {
	if c.OVN == nil {
		return nil
	}
	return &ovnkubernetes.Ports{Switch: c.OVN.Switch, Northbound: c.OVN.Northbound, Pods: c.Clients.Metadata}
}

func newRollout(c Config, n *nodeClaims, k *attachment.Keeper, status writes[*claimstatus.Reporter],
	all writes[*topologies],
) *rollout.Follower {
	return rollout.New(rollout.Options{
		Client: c.Clients.Dynamic, NodeName: c.NodeName, Claims: n.list, Recorded: &n.Records, Topologies: all.to, Update: k.Update,
		Reporter: claimstatus.Claims{Reporter: status.to, Contracts: c.Registry}, Log: c.Log, Now: c.Now,
	})
}

func newRuntime(c Config, g started, k *attachment.Keeper, hooks writes[*nriplugin.Metrics]) *nriplugin.Plugin {
	return nriplugin.New(nriplugin.Options{
		Keeper: k, Recorder: hooks.to, Socket: c.NRISocket, Index: c.NRIIndex, Log: c.Log, Now: c.Now,
		Alive: func(within time.Duration) { g.alive.Alive(partRuntime, within) },
	})
}

func openBase(c Config, counts writes[*metrics.Metrics]) (*hostengine.Base, error) {
	return hostengine.Open(hostengine.Options{
		StateDir: c.StateDir, Writes: true, OVN: c.OVN, PCI: binding.Options{Writable: c.Sys},
		Kernel: kernel.Options{
			Netns: "/proc/thread-self/ns/net", Proc: c.Proc, Disturb: c.Disturb,
			Searching: hostengine.Searching(c.Log, counts.to),
		},
		Warn: func(err error) { c.Log.Warn("failed to record DHCP leases; retrying", "error", err) },
	})
}

func newPorts(c Config, base *hostengine.Base, n *nodeClaims, failed writes[*failures.Tracker],
	status writes[*claimstatus.Reporter],
) *ports.Monitor {
	return ports.New(ports.Options{
		Record: base.Store.Get, Read: base.Host.Ports, ReadRDMA: base.Host.RDMAPorts, SilentRDMA: base.Host.SilentRDMA,
		Pod: n.podOf, Now: c.Now,
		Changed: func(r ports.Report) {
			failed.to.Report(r)
			if r.Succeeded {
				return // the pod has a new sandbox
			}
			if claim, ok := n.claim(types.UID(r.Sandbox.Origin().ClaimUID)); ok {
				status.to.Links(claim, r)
			}
		},
	})
}

func openAddresses(c Config, client *addresses.Client, n *nodeClaims, e *reconcile.Reconciler,
	host *hostroutes.Addresses,
) (*addresses.Allocator, error) {
	cluster := draplugin.NewCluster(c.Clients.Kube, c.Clients.Dynamic, c.NodeName)
	return addresses.Open(addresses.Options{
		Leases: client, NodeName: c.NodeName, File: filepath.Join(c.StateDir, "addresses"),
		Recorded:      func() []addresspool.Grant { return append(podGrants(e), n.grants()...) },
		Ended:         func(ctx context.Context, g addresspool.Grant) (bool, error) { return n.ended(ctx, cluster, g) },
		HostAddresses: host.Of, HostChanged: host, Log: c.Log, Now: c.Now,
	})
}

func newHostRoutes(
	c Config, base *hostengine.Base, client *addresses.Client, a *addresses.Allocator, n *nodeClaims, pods *primary.Follower,
	found writes[*hostroutes.Addresses],
) *hostroutes.Keeper {
	by := []table.Source{&n.Records}
	if pods != nil {
		by = append(by, &pods.Decided)
	}
	return hostroutes.New(hostroutes.Options{
		NodeName: c.NodeName, Host: base.Host, Leases: &hostroutes.Client{Dynamic: c.Clients.Dynamic, Listed: client.Pools},
		Watch:  func(changed, failed func()) (io.Closer, error) { return watch.Routing("", changed, failed) },
		Claims: n.list, WokenBy: by, Addresses: found.to, Nodes: &hostroutes.NodeClient{Kube: c.Clients.Nodes}, Log: c.Log, Now: c.Now,
		PodNetwork: func() hostroutes.PodNetwork { return podCIDRs(pods, a, c.PodNetwork.ClusterCIDRs) },
	})
}

func newFilters(
	c Config, n *nodeClaims, policies *follower.Follower, labels *nodeChanges, all *topologies, missing *filters.Missing,
	e *reconcile.Reconciler, pods *primary.Follower, networks *podEntries,
	status writes[*claimstatus.Reporter],
) *filters.Follower {
	o := filters.Options{
		NodeName: c.NodeName, NodeUID: policies.NodeUID, Contracts: c.Registry, Claims: n.list, Topologies: all, Missing: missing,
		WokenBy:  []table.Source{&n.Records, &n.Sandboxes, labels},
		Reporter: claimstatus.Claims{Reporter: status.to, Contracts: c.Registry}, Log: c.Log, Now: c.Now,
		Node: func() (map[string]string, bool) {
			labels, _, known := policies.Node()
			return labels, known
		},
	}
	if pods != nil {
		o.PodTopology, o.WokenBy = pods.Topology, append(o.WokenBy, &pods.Decided)
		o.Claims = func() []claims.Entry { return append(n.list(), networks.list()...) }
	}
	if c.NetworkQoS {
		o.Client, o.Pods = c.Clients.Dynamic, c.Clients.Metadata
		o.RuleOnPF = func(id reconcile.SandboxID) string {
			rec, _, err := e.Record(id)
			if err != nil {
				return "" // its other uses report that
			}
			return ports.RuleOnPF(&rec)
		}
	}
	return filters.New(o)
}

func newKeeper(
	c Config, g started, base *hostengine.Base, n writes[*nodeClaims], e *reconcile.Reconciler, a *addresses.Allocator,
	routes *hostroutes.Keeper, rules *filters.Follower, ovn *ovnkubernetes.Ports,
	kubelet *draplugin.Registration, urgent writes[*node.Urgent], status writes[*claimstatus.Reporter], hooks writes[*nriplugin.Metrics],
	nodes *attachment.Nodes,
) *attachment.Keeper {
	var ported rollout.Ported
	if ovn != nil {
		ported = ovn.Used
	}
	return attachment.New(attachment.Options{
		GiveBack: a.GiveBack, Lost: base.Host.LostNodes,
		Store: n.to.Store, Engine: e, Yield: urgent.to.Begin, Gate: gate.Dir(c.CDIDir), Nodes: nodes,
		Contracts: c.Registry, Reporter: claimstatus.Claims{Reporter: status.to, Contracts: c.Registry}, Refine: kubelet.Refine,
		Follow: func(ctx context.Context, t *claims.Topology, o *v1alpha1.NetworkTopology) error {
			return rollout.Follow(ctx, t, o, c.Registry, ported)
		},
		Ready: routes.Await, Filters: rules.Of, TopologyFile: ncclfile.Node{Sys: "/sys", CPUInfo: "/proc/cpuinfo", Arch: runtime.GOARCH}.Of,
		SealedHandlers: c.SealedHandlers, AttachTimeout: c.AttachTimeout, Log: c.Log, Now: c.Now,
		Alive: func(within time.Duration) { g.alive.Alive(partSandboxes, within) },
		Ended: func(outcome fault.Kind, took time.Duration) { hooks.to.Hook("BehindGate", outcome, took) },
	})
}

// newLLDP returns nil when LLDP is not listened to.
func newLLDP(c Config, g started, base *hostengine.Base, devices writes[*deviceChanges]) *lldp.Listener {
	if !c.LLDP {
		return nil
	}
	return lldp.NewListener(lldp.Options{
		Now: c.Now, Changed: devices.to.Changed,
		Functions: func(port string) ([]string, error) { return base.Host.FunctionMACs(g.reads, port) },
	})
}

func newPublisher(
	c Config, g started, base *hostengine.Base, e *reconcile.Reconciler, n *nodeClaims, failed *failures.Tracker,
	policies *follower.Follower, wires *lldp.Listener, devices *deviceChanges,
) *publish.Publisher {
	var neighbours publish.Neighbours
	if wires != nil {
		neighbours = wires
	}
	return publish.New(publish.Options{
		NodeName: c.NodeName, Neighbours: neighbours, Sysfs: os.DirFS("/sys"), PhysicalNetworks: c.PhysicalNetworks,
		UplinkOf:    inventory.LookupUplink,
		RDMANetdevs: func(names []string) (map[string]string, error) { return base.Host.RDMANetdevs(g.reads, names) },
		Uplinks: func(ctx context.Context, devices []inventory.Device) (inventory.Uplinks, error) {
			return hostengine.Uplinks(ctx, base.Host, devices)
		},
		InUse: n.inUse, Chosen: n.chosen, Dirty: func() map[string]string { return unreleased(base, e, c.Now) }, Failing: failed.Failing,
		Failed: failed.Restore, Policies: policies,
		Wake: table.Woken(devices, &n.Records), StateFile: filepath.Join(c.StateDir, PublishedFile), Log: c.Log, Now: c.Now,
	})
}

// unreleased lists the devices that are withheld from pods, with the reason. Unreadable records are
// reported by the loop.
func unreleased(base *hostengine.Base, e *reconcile.Reconciler, now func() time.Time) map[string]string {
	return reconcile.Unreleased(base.Journal.Releasing(), e.OtherVersions(), now())
}

// kubelet serves the kubelet.
type kubelet struct {
	plugin    *draplugin.Plugin
	serving   draplugin.Serving
	policies  *follower.Follower
	publisher *publish.Publisher
}

func newKubelet(
	c Config, g started, base *hostengine.Base, e *reconcile.Reconciler, n writes[*nodeClaims], k *attachment.Keeper,
	a *addresses.Allocator, runtime *nriplugin.Plugin, m *ports.Monitor,
	policies *follower.Follower, rules *filters.Follower, ovn *ovnkubernetes.Ports, wires *lldp.Listener, publisher *publish.Publisher,
	registration writes[*draplugin.Registration],
) *kubelet {
	o := draplugin.Options{
		Runtime: runtime.Connected(),
		Store:   n.to.Store, Keeper: k, Cluster: draplugin.NewCluster(c.Clients.Kube, c.Clients.Dynamic, c.NodeName),
		Contracts: c.Registry, Addresses: a,
		Discover: func() ([]inventory.Device, error) { return discover(g.reads, c, base, policies, wires) },
		Unfit: func(devices []inventory.Device) map[string]string {
			return publish.Unfit(devices, unreleased(base, e, c.Now), policies.Others(devices))
		},
		Withdrawn: publisher.Withdrawn, Registration: registration.to, Known: rules.Known,
		Results: func(id reconcile.SandboxID) []topology.StepResult {
			rec, known, err := base.Store.Get(id)
			if err != nil || !known {
				return nil
			}
			return rec.Results
		},
		HandleError: func(err error, msg string) { handle(c.Log, g, publisher, err, msg) },
		Ports:       m.Reports, PortsChanged: &m.Reported, CDI: gate.Dir(c.CDIDir), Log: c.Log, Now: c.Now,
	}
	if ovn != nil {
		o.Attachments = ovn
	}
	return &kubelet{draplugin.New(o), draplugin.Serving{
		Kube: c.Clients.Kube, NodeName: c.NodeName, PluginDir: c.PluginDir, RegistrarDir: c.RegistrarDir, CDIDir: c.CDIDir,
	}, policies, publisher}
}

// Run serves the kubelet, and publishes devices once the policies are known, until ctx ends. It ends with an error when the Node object is
// another one, so that the agent is started again: the helper gives each slice the UID that it has read first as its owner
// (k8s.io/dynamic-resource-allocation 0.37, syncPool), and Kubernetes deletes slices whose owner is gone.
func (k *kubelet) Run(ctx context.Context) error {
	return k.plugin.Run(ctx, k.serving, func(ctx context.Context, to draplugin.Publisher) error {
		if !loop.Wait(ctx, loop.Forever, k.policies.Ready()) {
			return nil
		}
		publishing, stop := context.WithCancel(ctx)
		defer stop()
		go func() {
			defer stop()
			select {
			case <-publishing.Done():
			case <-k.policies.Recreated():
			}
		}()
		if err := k.publisher.Run(publishing, to); err != nil || ctx.Err() != nil {
			return err
		}
		return fmt.Errorf(
			"the Node %q was deleted and created again: restarting the agent, since its ResourceSlices are owned by the deleted Node",
			k.serving.NodeName)
	})
}

// handle reports an error of a server for the kubelet.
func handle(log *slog.Logger, g started, publisher *publish.Publisher, err error, msg string) {
	if !errors.Is(err, kubeletplugin.ErrRecoverable) { // a server of the plugin has failed, and is not started again
		g.alive.Ended(partKubelet, fmt.Errorf("%s: %w", msg, err))
	}
	e := publisher.Handle(err)
	log.Error(msg, "explanation", fmt.Sprint(e), "error", err)
}

// discover lists the devices as selectors see them, with the decisions of policies. If the
// policies are not known, for example because the API server is down, an allocated claim
// is prepared nevertheless.
func discover(ctx context.Context, c Config, base *hostengine.Base, policies *follower.Follower,
	wires *lldp.Listener,
) ([]inventory.Device, error) {
	devices, err := hostengine.Devices(ctx, base.Host, c.PhysicalNetworks)
	if wires != nil {
		wires.Mark(devices)
	}
	decided, _, failed := policies.Decide(ctx, devices)
	if failed != nil {
		for i := range devices {
			devices[i].Exposure.Verdict = inventory.Undecided
		}
		return devices, err
	}
	return decided, err
}

func openWatcher(c Config) (*watch.Watcher, error) {
	w, err := watch.New(watch.Options{Resync: c.Resync, ReceiveBufferBytes: c.ReceiveBufferBytes})
	if err != nil {
		return nil, err
	}
	if why := w.Fallback(); why != nil {
		c.Log.Warn("cannot watch all network namespaces with one socket: using one socket for each", "reason", why)
	}
	return w, nil
}

// driftLoop repairs drift.
type driftLoop struct {
	*node.Loop
	events *watch.Relay
	log    *slog.Logger
}

// newDriftLoop returns the loop of plumbline run; it also follows files if an administrator adds some.
func newDriftLoop(
	c Config, g started, base *hostengine.Base, n *nodeClaims, e *reconcile.Reconciler, publisher *publish.Publisher, w *watch.Watcher,
	events *watch.Relay, r writes[*recorder], urgent *node.Urgent,
) (*driftLoop, error) {
	files := filepath.Join(c.StateDir, "files")
	if err := os.MkdirAll(files, 0o700); err != nil {
		return nil, err
	}
	others := func() []*frame.OtherVersion {
		ofClaims, err := n.OtherVersions()
		if err != nil {
			c.Log.Error("cannot read claim records", "error", err)
		}
		published := OtherPublished(filepath.Join(c.StateDir, PublishedFile), publisher.OtherVersion())
		return slices.Concat(base.Journal.OtherVersions(), ofClaims, published)
	}
	return &driftLoop{node.New(node.Options{
		Dir: files, StateDir: c.StateDir, Reconciler: e, Store: base.Store, OtherVersions: others,
		Damaged: func() ([]string, error) {
			ofSandboxes, err := base.Damaged()
			ofClaims, errOfClaims := n.Damaged()
			return append(ofSandboxes, ofClaims...), errors.Join(err, errOfClaims)
		},
		Contracts: c.Registry, BootID: base.Host.BootID(), Sys: os.DirFS("/sys"),
		Discover: func() ([]inventory.Device, error) { return hostengine.Devices(g.reads, base.Host, nil) },
		Watcher:  relayed{w, events}, Recorder: r.to, Log: c.Log, Now: c.Now,
		Urgent: urgent, Workers: 2, Timeout: c.Timeout, Resync: c.Resync, // attaching pods needs the machine more
	}), events, c.Log}, nil
}

// Run repairs drift until ctx ends. It waits while another agent does, as during a rolling update.
func (d *driftLoop) Run(ctx context.Context) {
	loop.Loop{
		Every: time.Second,
		Pass: func(ctx context.Context) (time.Duration, error) {
			defer d.events.Take()()
			return 0, d.Loop.Run(ctx)
		},
		Warn: func(err error) { d.log.Warn("this agent does not repair drift yet", "error", err) },
	}.Run(ctx)
}

// relayed is a watcher whose events pass through a relay.
type relayed struct {
	*watch.Watcher
	by *watch.Relay
}

// Events implements node.Watcher.
func (r relayed) Events() <-chan watch.Event { return r.by.Events() }

// PublishedFile records what the agent has published, below the state directory.
const PublishedFile = "published.json"

// OtherPublished returns the file of what was published, if another version has written it.
func OtherPublished(file string, other error) []*frame.OtherVersion {
	if other == nil {
		return nil
	}
	return []*frame.OtherVersion{{Path: file, Err: other}}
}
