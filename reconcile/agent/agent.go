package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/lldp"
	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/binding"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/liveness"
	"github.com/plumbline/plumbline/reconcile/metrics"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/claimstatus"
	"github.com/plumbline/plumbline/reconcile/pod/draplugin"
	"github.com/plumbline/plumbline/reconcile/pod/failures"
	"github.com/plumbline/plumbline/reconcile/pod/filters"
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

// Agent is the agent of a node.
type Agent struct {
	Config
	// Claims, Engine and Keeper are what prepares and attaches, for tests that play the kubelet and the
	// container runtime.
	Claims *claims.Store
	Engine *reconcile.Reconciler
	Keeper *attachment.Keeper

	base       *hostengine.Base
	counts     *metrics.Metrics
	recorder   recorder
	ports      *ports.Monitor
	interfaces *ports.Metrics
	rules      *ports.RuleMetrics
	failures   *failures.Tracker
	hooks      *nriplugin.Metrics
	status     *claimstatus.Reporter
	plugin     *draplugin.Plugin
	runtime    *nriplugin.Plugin
	policies   *follower.Follower
	leases     *addresses.Client
	addresses  *addresses.Allocator
	publisher  *publish.Publisher
	wires      *lldp.Listener // nil when LLDP is not listened to
	edits      *rollout.Follower
	filters    *filters.Follower
	updates    *filters.Updates
	routes     *hostroutes.Keeper
	watcher    *watch.Watcher
	events     *watch.Relay
	loop       *node.Loop
	// podTopology and pods are nil if the agent gives pods no network of their own.
	podTopology *primary.Follower
	pods        *podServing
	alive       *liveness.Registry

	// What parts share. Those that read it are woken by it.
	topologies    table.Table[string, *v1alpha1.NetworkTopology] // of the node's claims, as they are in the cluster
	node          table.Changes                                  // of what policies says of the Node
	devices       table.Changes                                  // of what publisher has to read again
	hostAddresses hostroutes.Addresses
	registration  draplugin.Registration
	urgent        node.Urgent
}

// Run builds an agent and runs it until ctx ends.
func Run(ctx context.Context, c Config) error {
	a, err := New(ctx, c)
	if err != nil {
		return err
	}
	defer a.Close()
	return a.Run(ctx)
}

// New builds an agent, which does nothing until Run. Its reads of devices end with ctx.
func New(ctx context.Context, c Config) (*Agent, error) {
	s := &Agent{Config: c, alive: liveness.New(c.Now)}
	if err := s.wire(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close closes what New has opened. All networks stay as they are.
func (s *Agent) Close() error {
	var errs []error
	if s.wires != nil {
		s.wires.Close()
	}
	if s.watcher != nil {
		s.watcher.Close()
	}
	if s.Claims != nil {
		errs = append(errs, s.Claims.Close())
	}
	if s.base != nil {
		errs = append(errs, s.base.Close())
	}
	return errors.Join(errs...)
}

// Checked returns nil once each sandbox has had its first check.
func (s *Agent) Checked() error { return s.loop.Ready() }

// Overflows returns how often the kernel has dropped notifications of changes.
func (s *Agent) Overflows() int64 { return s.events.Overflows() }

// Sandbox opens a network namespace, to observe or disturb it.
func (s *Agent) Sandbox(path string) (reconcile.Domain, error) { return s.base.Domain(path) }

// wire creates the parts without starting them: data first, then those that only read it.
func (s *Agent) wire(ctx context.Context) (err error) {
	s.counts, s.hooks = metrics.New(s.Build, s.Now), nriplugin.NewMetrics()
	s.status = claimstatus.New(claimstatus.Options{Client: s.Clients.Kube, NodeName: s.NodeName, Log: s.Log, Now: s.Now})
	reports := claimstatus.Claims{To: s.status, Contracts: s.Registry}
	if s.base, err = hostengine.Open(hostengine.Options{
		StateDir: s.StateDir, Writes: true, OVN: s.OVN, PCI: binding.Options{Writable: s.Sys},
		Kernel: kernel.Options{Netns: "/proc/thread-self/ns/net", Proc: s.Proc, Disturb: s.Disturb, Searching: hostengine.Searching(s.Log, s.counts)},
	}); err != nil {
		return err
	}
	if s.Claims, err = claims.Open(claims.Options{
		Dir: filepath.Join(s.StateDir, "claims"), Locker: s.base.Journal, BootID: s.base.Host.BootID(), Now: s.Now,
	}); err != nil {
		return err
	}
	s.failures = failures.New(failures.Options{Claim: s.claim, InUse: s.inUse, Changed: s.devices.Changed, Now: s.Now})
	s.wirePorts()
	s.Engine = s.base.Engine(s.Registry, s.recorder)
	s.policies = follower.New(follower.Options{
		Kube: s.Clients.Kube, Dynamic: s.Clients.Dynamic, NodeName: s.NodeName, Log: s.Log, Changed: func() { s.devices.Changed(); s.node.Changed() },
	})
	if err := s.wireAddresses(); err != nil {
		return err
	}
	s.filters = filters.New(s.enforced(filters.Options{
		NodeName: s.NodeName, NodeUID: s.policies.NodeUID, Node: s.nodeLabels, Contracts: s.Registry, Claims: s.claims, Topologies: &s.topologies, Missing: s.recorder.rules,
		WokenBy: []table.Source{&s.Claims.Records, &s.Claims.Sandboxes, &s.node}, Reporter: reports, Log: s.Log, Now: s.Now,
	}))
	var ported rollout.Ported
	if ports := s.attachments(); ports != nil {
		ported = ports.Used
	}
	s.Keeper = attachment.New(attachment.Options{
		GiveBack: s.addresses.GiveBack,
		Store:    s.Claims, Engine: s.Engine, Yield: s.urgent.Begin, Gate: gate.Dir(s.CDIDir), Contracts: s.Registry, Reporter: reports, Refine: s.registration.Refine,
		Follow: func(ctx context.Context, t *claims.Topology, o *v1alpha1.NetworkTopology) error {
			return rollout.Follow(ctx, t, o, s.Registry, ported)
		},
		Ready: s.routes.Await, Filters: s.filters.Of,
		SealedHandlers: s.SealedHandlers, AttachTimeout: s.AttachTimeout, Log: s.Log, Now: s.Now,
		Alive: func(within time.Duration) { s.alive.Alive(partSandboxes, within) },
		Ended: func(outcome fault.Kind, took time.Duration) { s.hooks.Hook("BehindGate", outcome, took) },
	})
	s.updates = s.filters.Updates(s.Keeper.Refilter)
	s.edits = rollout.New(rollout.Options{
		Client: s.Clients.Dynamic, NodeName: s.NodeName, Claims: s.claims, Recorded: &s.Claims.Records, Topologies: &s.topologies, Update: s.Keeper.Update, Reporter: reports, Log: s.Log, Now: s.Now,
	})
	s.runtime = nriplugin.New(nriplugin.Options{
		Keeper: s.Keeper, Recorder: s.hooks, Socket: s.NRISocket, Index: s.NRIIndex, Log: s.Log, Now: s.Now,
		Alive: func(within time.Duration) { s.alive.Alive(partRuntime, within) },
	})
	s.wireDevices(ctx)
	s.wirePodNetwork()
	return s.wireLoop(ctx)
}

// wirePorts creates what watches the ports of sandboxes, and what the engine reports to.
func (s *Agent) wirePorts() {
	s.ports = ports.New(ports.Options{
		Record: s.base.Store.Get, Read: s.base.Host.Ports, ReadRDMA: s.base.Host.RDMAPorts, SilentRDMA: s.base.Host.SilentRDMA,
		Pod: s.podOf, Changed: s.portsChanged, Now: s.Now,
	})
	s.interfaces = ports.NewMetrics(ports.MetricsOptions{Monitor: s.ports, Interfaces: s.InterfaceMetrics})
	s.rules = ports.NewRuleMetrics(ports.RuleMetricsOptions{
		Monitor: s.ports, Rules: s.RuleMetrics, Read: s.base.Host.RuleReadings, ReadLogical: s.OVN.Readings,
	})
	s.recorder = recorder{
		s.counts, claimstatus.NewDriftReport(claimstatus.DriftOptions{Reporter: s.status, Claim: s.claim, Record: s.base.Store.Get}),
		filters.NewMissing(), []reconcile.Recorder{s.ports},
	}
	if s.Recorder != nil {
		s.recorder.others = append(s.recorder.others, s.Recorder)
	}
}

// wireAddresses creates what leases addresses and gives the host routes to them.
func (s *Agent) wireAddresses() (err error) {
	s.leases = addresses.NewClient(s.Clients.Kube, s.Clients.Dynamic, s.NodeName, s.Now)
	if s.addresses, err = addresses.Open(addresses.Options{
		Leases: s.leases, NodeName: s.NodeName, File: filepath.Join(s.StateDir, "addresses"),
		Recorded: s.grants, Ended: s.claimEnded, HostAddresses: s.hostAddresses.Of, HostChanged: &s.hostAddresses, Log: s.Log, Now: s.Now,
	}); err != nil {
		return err
	}
	wokenBy := []table.Source{&s.Claims.Records}
	if s.PodNetwork.Enabled {
		s.podTopology = primary.NewFollower(primary.FollowerOptions{
			Client: s.Clients.Dynamic, NodeName: s.NodeName, Node: s.policies.Node, Contracts: s.Registry, File: filepath.Join(s.StateDir, "primary"),
			Proc: "/proc", TranslateBridged: s.base.Host.TranslateBridged, ClusterCIDRs: s.PodNetwork.ClusterCIDRs, Log: s.Log,
		})
		wokenBy = append(wokenBy, &s.podTopology.Decided)
	}
	s.routes = hostroutes.New(hostroutes.Options{
		NodeName: s.NodeName, Host: s.base.Host, Leases: &hostroutes.Client{Dynamic: s.Clients.Dynamic, Listed: s.leases.Pools},
		Watch:  func(changed, failed func()) (io.Closer, error) { return watch.Routing("", changed, failed) },
		Claims: s.claims, WokenBy: wokenBy, Addresses: &s.hostAddresses, PodNetwork: s.podCIDRs, Nodes: &hostroutes.NodeClient{Kube: s.Clients.Nodes}, Log: s.Log, Now: s.Now,
	})
	return nil
}

// wireDevices creates what publishes devices and prepares claims for them.
func (s *Agent) wireDevices(ctx context.Context) {
	var neighbours publish.Neighbours
	if s.LLDP {
		s.wires = lldp.NewListener(lldp.Options{
			Now: s.Now, Changed: s.devices.Changed,
			Functions: func(port string) ([]string, error) { return s.base.Host.FunctionMACs(ctx, port) },
		})
		neighbours = s.wires
	}
	s.publisher = publish.New(publish.Options{
		NodeName: s.NodeName, Neighbours: neighbours, Sysfs: os.DirFS("/sys"), PhysicalNetworks: s.PhysicalNetworks, UplinkOf: inventory.LookupUplink,
		RDMANetdevs: func(names []string) (map[string]string, error) { return s.base.Host.RDMANetdevs(ctx, names) },
		Uplinks:     s.uplinks, InUse: s.inUse, Chosen: s.chosen, Dirty: s.dirty, Failing: s.failures.Failing, Failed: s.failures.Restore, Policies: s.policies,
		Wake: table.Woken(&s.devices, &s.Claims.Records), StateFile: filepath.Join(s.StateDir, PublishedFile), Log: s.Log, Now: s.Now,
	})
	s.plugin = draplugin.New(draplugin.Options{
		Runtime: s.runtime.Connected(),
		Store:   s.Claims, Keeper: s.Keeper, Cluster: draplugin.NewCluster(s.Clients.Kube, s.Clients.Dynamic), Contracts: s.Registry, Addresses: s.addresses, Attachments: s.attachments(),
		Discover: func() ([]inventory.Device, error) { return s.discover(ctx) },
		Unfit: func(devices []inventory.Device) map[string]string {
			return publish.Unfit(devices, s.dirty(), s.policies.Others(devices))
		},
		Withdrawn: s.publisher.Withdrawn, Registration: &s.registration,
		Known: s.filters.Known, Results: s.results, HandleError: s.handle, Ports: s.ports.Reports, PortsChanged: &s.ports.Reported, CDI: gate.Dir(s.CDIDir), Log: s.Log, Now: s.Now,
	})
}

// attachments finds ports of ovn-kubernetes, nil without OVN.
func (s *Agent) attachments() draplugin.Attachments {
	if s.OVN == nil {
		return nil
	}
	return &ovnkubernetes.Ports{Switch: s.OVN.Switch, Northbound: s.OVN.Northbound, Pods: s.Clients.Metadata}
}

// enforced adds the clients with which NetworkQoS is followed, if it is to be enforced.
func (s *Agent) enforced(o filters.Options) filters.Options {
	if s.NetworkQoS {
		o.Client, o.Pods = s.Clients.Dynamic, s.Clients.Metadata
		o.RuleOnPF = func(id reconcile.SandboxID) string {
			rec, _, err := s.Engine.Record(id)
			if err != nil {
				return "" // its other uses report that
			}
			return ports.RuleOnPF(&rec)
		}
	}
	return o
}

// wireLoop creates the loop that repairs drift. It is the loop of plumbline run; it also
// follows files if an administrator adds some.
func (s *Agent) wireLoop(ctx context.Context) (err error) {
	if s.watcher, err = watch.New(watch.Options{Resync: s.Resync, ReceiveBufferBytes: s.ReceiveBufferBytes}); err != nil {
		return err
	}
	if why := s.watcher.Fallback(); why != nil {
		s.Log.Warn("each namespace is watched with its own socket", "reason", why)
	}
	s.events = watch.NewRelay(s.watcher.Events(), s.devices.Changed)
	files := filepath.Join(s.StateDir, "files")
	if err := os.MkdirAll(files, 0o700); err != nil {
		return err
	}
	s.loop = node.New(node.Options{
		Dir: files, StateDir: s.StateDir, Reconciler: s.Engine, Store: s.base.Store, Damaged: s.damaged, OtherVersions: s.otherVersions,
		Contracts: s.Registry, BootID: s.base.Host.BootID(), Sys: os.DirFS("/sys"),
		Discover: func() ([]inventory.Device, error) { return hostengine.Devices(ctx, s.base.Host, nil) },
		Watcher:  relayed{s.watcher, s.events}, Recorder: s.recorder, Log: s.Log, Now: s.Now,
		Urgent: &s.urgent, Workers: 2, Timeout: s.Timeout, Resync: s.Resync, // attaching pods needs the machine more
	})
	return nil
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

// damaged lists all records that were set aside as damaged.
func (s *Agent) damaged() ([]string, error) {
	a, errA := s.base.Damaged()
	b, errB := s.Claims.Damaged()
	return append(a, b...), errors.Join(errA, errB)
}

// otherVersions lists all records that other versions have written.
func (s *Agent) otherVersions() []*frame.OtherVersion {
	ofClaims, err := s.Claims.OtherVersions()
	if err != nil {
		s.Log.Error("cannot read claim records", "error", err)
	}
	published := OtherPublished(filepath.Join(s.StateDir, PublishedFile), s.publisher.OtherVersion())
	return slices.Concat(s.base.Journal.OtherVersions(), ofClaims, published)
}

func (s *Agent) results(id reconcile.SandboxID) []topology.StepResult {
	rec, known, err := s.base.Store.Get(id)
	if err != nil || !known {
		return nil
	}
	return rec.Results
}

// nodeLabels are those of the Node object; known is false until it was read.
func (s *Agent) nodeLabels() (labels map[string]string, known bool) {
	labels, _, known = s.policies.Node()
	return labels, known
}

// grants are the addresses in the records of claims.
func (s *Agent) grants() []addresspool.Grant {
	entries, _ := s.Claims.List() // damage is reported on attachment
	out := s.podGrants()
	for _, e := range entries {
		var literals []netip.Addr
		for i := range e.Topologies {
			t, err := e.Topologies[i].Decoded()
			if err != nil {
				continue
			}
			for j := range t.Steps {
				step := &t.Steps[j]
				literals = append(literals, topology.Exclusive(step)...)
				if pool, _, ok := topology.FromPool(step); ok && len(e.Topologies[i].Given[step.Name].Addresses) > 0 {
					out = append(out, addresspool.Grant{
						Owner: addresspool.Owner{Claim: string(e.UID), Topology: t.Name, Step: step.Name}, Of: e.Namespace + "/" + e.Name,
						Pool: pool, Addresses: e.Topologies[i].Given[step.Name].Addresses,
					})
				}
			}
		}
		if len(literals) > 0 {
			out = append(out, addresspool.Literal(string(e.UID), e.Namespace+"/"+e.Name, e.Namespace+"/"+e.Pod.Name, literals))
		}
	}
	return out
}

// claimEnded reports whether the kubelet will never unprepare a claim with addresses:
// the agent has no record of it, and it does not exist any more.
func (s *Agent) claimEnded(ctx context.Context, g addresspool.Grant) (bool, error) {
	if primary.Owns(g.Claim) {
		return false, nil // its server ends it
	}
	if _, known, err := s.Claims.Get(types.UID(g.Claim)); err != nil || known {
		return false, err
	}
	namespace, name, ok := strings.Cut(g.Of, "/")
	if !ok {
		return false, nil
	}
	rc, err := draplugin.NewCluster(s.Clients.Kube, s.Clients.Dynamic).Claim(ctx, namespace, name)
	return err == nil && (rc == nil || string(rc.UID) != g.Claim), err
}

// claim returns the record of a claim.
func (s *Agent) claim(uid types.UID) (claims.Claim, bool) {
	e, known, err := s.Claims.Get(uid)
	return e.Claim, known && err == nil
}

// podOf names the pod of a sandbox.
func (s *Agent) podOf(id reconcile.SandboxID) (namespace, name string, ok bool) {
	c, ok := s.claim(types.UID(id.Origin().ClaimUID))
	return c.Namespace, c.Pod.Name, ok
}

// claims lists the claims of the node.
func (s *Agent) claims() []claims.Entry {
	entries, errs := s.Claims.List()
	for _, err := range errs {
		s.Log.Error("cannot read claim records", "error", err)
	}
	return entries
}

func (s *Agent) inUse() []string {
	used, err := s.Claims.InUse()
	if err != nil {
		s.Log.Error("cannot read claim records", "error", err)
	}
	var out []string
	for name := range used {
		out = append(out, name)
	}
	return out
}

// chosen lists the functions that claims have as shares of their PF.
func (s *Agent) chosen() map[string]bool {
	out := map[string]bool{}
	for _, e := range s.claims() {
		for _, t := range e.Topologies {
			for _, d := range t.Devices {
				if d.Offered != nil {
					out[d.Host.ID] = true
				}
			}
		}
	}
	return out
}

// dirty lists the devices that are withheld from pods, with the reason. Unreadable records
// are reported by the loop.
func (s *Agent) dirty() map[string]string {
	return reconcile.Unreleased(s.base.Journal.Releasing(), s.Engine.OtherVersions(), s.Now())
}

// discover lists the devices as selectors see them, with the decisions of policies. If the
// policies are not known, for example because the API server is down, an allocated claim
// is prepared nevertheless.
func (s *Agent) discover(ctx context.Context) ([]inventory.Device, error) {
	devices, err := hostengine.Devices(ctx, s.base.Host, s.PhysicalNetworks)
	if s.wires != nil {
		s.wires.Mark(devices)
	}
	decided, _, failed := s.policies.Decide(ctx, devices)
	if failed != nil {
		for i := range devices {
			devices[i].Exposure.Verdict = inventory.Undecided
		}
		return devices, err
	}
	return decided, err
}

// uplinks returns the devices that carry a default route.
func (s *Agent) uplinks(ctx context.Context, devices []inventory.Device) (inventory.Uplinks, error) {
	return hostengine.Uplinks(ctx, s.base.Host, devices)
}

func (s *Agent) handle(err error, msg string) {
	if !errors.Is(err, kubeletplugin.ErrRecoverable) { // a server of the plugin has failed, and is not started again
		s.alive.Ended(partKubelet, fmt.Errorf("%s: %w", msg, err))
	}
	e := s.publisher.Handle(err)
	s.Log.Error(msg, "explanation", fmt.Sprint(e), "error", err)
}

// Run runs all parts until ctx ends. Parts start after those they depend on: requests
// of the kubelet wait until the runtime has listed its sandboxes.
func (s *Agent) Run(ctx context.Context) error {
	var listeners []net.Listener
	if s.ProbeSocket != "" {
		own, err := listenProbe(ctx, s.ProbeSocket)
		if err != nil {
			return fmt.Errorf("--probe-socket: %w", err)
		}
		listeners = append(listeners, own)
	}
	listener, unserved := listenShared(ctx, s.MetricsAddress)
	switch {
	case unserved == nil:
		listeners = append(listeners, listener)
	case !errors.Is(unserved, syscall.EADDRINUSE) || s.ProbeSocket == "": // without any use
		return fmt.Errorf("--metrics-address: %w", unserved)
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	s.Log.Info("running", "node", s.NodeName, "state", s.StateDir, "listen", s.MetricsAddress, "version", s.Build.Version)

	group, ctx := errgroup.WithContext(ctx)
	for name, work := range s.parts() {
		group.Go(func() error { return s.alive.Run(ctx, name, work) })
	}
	group.Go(func() error { return s.base.Leases.Run(ctx) })
	ServeHTTP(ctx, group, server, listeners...)
	if unserved != nil {
		group.Go(func() error { return s.serveLater(ctx, server, unserved) })
	}
	err := group.Wait()
	s.Log.Info("stopped: all networks stay as they are")
	return err
}

// retryListen is the interval at which an address in use is retried.
const retryListen = 10 * time.Second

// serveLater serves the metrics once their address is free. A program on the host that uses
// the port must not stop the agent: attaching pods matters more than metrics.
func (s *Agent) serveLater(ctx context.Context, server *http.Server, taken error) error {
	s.Log.Error("metrics are not served: the address is in use and is tried again", "every", retryListen, "error", taken)
	listener, err := listenFree(ctx, s.MetricsAddress, retryListen)
	if err != nil {
		return nil //nolint:nilerr // the agent is stopped
	}
	s.Log.Info("serving metrics", "listen", listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		s.Log.Error("metrics are not served", "error", err)
	}
	return nil
}

// listenFree listens as listenShared does, as soon as it can. It fails only when ctx
// ends.
func listenFree(ctx context.Context, address string, every time.Duration) (net.Listener, error) {
	for {
		if listener, err := listenShared(ctx, address); err == nil {
			return listener, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(every):
		}
	}
}

// The parts of an agent, as its liveness probe names them.
const (
	partRuntime   = "connection to the container runtime"
	partKubelet   = "server for the kubelet"
	partSandboxes = "sandboxes"
	partCNI       = "server for the CNI plugin"
)

// parts returns what runs until the agent is stopped. A part that ends earlier with
// an error ends the agent; one that ends without an error fails the liveness probe.
func (s *Agent) parts() map[string]func(context.Context) error {
	forever := func(f func(context.Context)) func(context.Context) error {
		return func(ctx context.Context) error { f(ctx); return nil }
	}
	parts := map[string]func(context.Context) error{
		"reports of claims":    s.status.Run,
		"watch of the kernel":  s.watcher.Run,
		"events of the kernel": forever(s.events.Run),
		"drift loop":           forever(s.repairDrift),
		"states of ports":      forever(s.ports.Run),
		partSandboxes:          forever(s.Keeper.Run),
		"topology updates":     forever(s.edits.Run),
		"filters of pods":      forever(s.filters.Run),
		"updates of filters":   forever(s.updates.Run),
		"routes of the host":   forever(s.routes.Run),
		"ports of the host":    forever(s.releaseHostPorts),
		"policies":             forever(s.policies.Run),
		"pools of addresses":   forever(s.leases.Run),
		"leases of addresses":  forever(s.addresses.Run),
		partRuntime:            s.runtime.Run,
		partKubelet:            s.prepare,
	}
	if s.pods != nil {
		parts[partCNI] = s.pods.server.Run
		parts["network of pods"] = forever(s.podTopology.Run)
		parts["CNI plugin"] = forever(s.pods.installer.Run)
	}
	return parts
}

// prepare serves the kubelet.
func (s *Agent) prepare(ctx context.Context) error {
	return s.plugin.Run(ctx, draplugin.Serving{
		Kube: s.Clients.Kube, NodeName: s.NodeName, PluginDir: s.PluginDir, RegistrarDir: s.RegistrarDir, CDIDir: s.CDIDir,
	}, s.publish)
}

// publish publishes devices once the policies are known.
func (s *Agent) publish(ctx context.Context, to draplugin.Publisher) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.policies.Ready():
	}
	return s.publisher.Run(ctx, to)
}

// repairDrift runs the loop that repairs drift. It waits while another agent runs that loop,
// as during a rolling update.
func (s *Agent) repairDrift(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		leave := s.events.Take()
		err := s.loop.Run(ctx)
		leave()
		if err != nil && err.Error() != said {
			said = err.Error()
			s.Log.Warn("this agent does not repair drift yet", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// bandwidths says what claims have reserved of functions, and what their PFs enforce.
func (s *Agent) bandwidths() []metrics.Bandwidth {
	const mbit = 1e6
	var out []metrics.Bandwidth
	var functions []netstate.Object
	for _, e := range s.claims() {
		for _, t := range e.Topologies {
			for _, d := range t.Devices {
				if d.Offered == nil || d.Bandwidth == 0 {
					continue
				}
				functions = append(functions, netstate.VF{ID: d.Host.ID})
				out = append(out, metrics.Bandwidth{Namespace: e.Namespace, Pod: e.Pod.Name, Topology: t.Object.Name, Step: d.Step, Reserved: float64(d.Bandwidth), Enforced: -1})
			}
		}
	}
	if len(out) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second) // a scrape is soon given up
	defer cancel()
	host, seen := s.base.Host.WithoutSandbox(), netstate.NewSnapshot()
	defer host.Close()
	if err := host.Extend(ctx, seen, functions); err != nil {
		s.Log.Debug("rates of functions", "error", err)
	}
	for i, f := range functions {
		if o, known := seen.Get(f.Key()); known {
			if vf, ok := o.(netstate.VF); ok && vf.MaxTxRateMbps != nil {
				out[i].Enforced = float64(*vf.MaxTxRateMbps) * mbit
			}
		}
	}
	return out
}

func (s *Agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler(s.counts, s.hooks, s.interfaces, s.rules, addresses.Metrics{Counts: s.addresses.Counts}, s.routes, metrics.Bandwidths(s.bandwidths), metrics.Health{
		Loop:       func() metrics.Work { return metrics.Work(s.loop.Work()) },
		Registered: func() bool { return s.plugin.Ready() == nil },
		Reports:    s.status.Waiting,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.alive.Check(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := cmp.Or(s.runtime.Ready(), s.plugin.Ready()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// listenShared listens on an address that another agent on the same host may use too,
// during a rolling update.
func listenShared(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var err error
		return errors.Join(conn.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), err)
	}}
	return config.Listen(ctx, "tcp", address)
}

// ServeHTTP serves on all listeners until ctx ends, as part of a group.
func ServeHTTP(ctx context.Context, group *errgroup.Group, server *http.Server, listeners ...net.Listener) {
	for _, l := range listeners {
		group.Go(func() error {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve: %w", err)
			}
			return nil
		})
	}
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
}

// listenProbe listens on a socket for probe. It replaces the socket of an agent that was
// killed.
func listenProbe(ctx context.Context, socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return new(net.ListenConfig).Listen(ctx, "unix", socket)
}
