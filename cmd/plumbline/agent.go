package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/lldp"
	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/binding"
	"github.com/plumbline/plumbline/reconcile/frame"
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
	"github.com/plumbline/plumbline/reconcile/watch"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/exposure/follower"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// agent holds the flags of the agent command.
type agent struct {
	nodeName   string
	kubeconfig string

	nriSocket, nriIndex     string
	pluginDir, registrarDir string
	cdiDir, proc, sys       string
	physicalNetworks        map[string]string
	lldp                    bool
	networkQoS              bool
	ovn                     databases
	podNetwork              podNetwork

	metricsAddress   string
	interfaceMetrics int
	ruleMetrics      int
	probeSocket      string
	logLevel         string
	resync           time.Duration
	attachTimeout    time.Duration
	sealedHandlers   []string
}

func (a *app) agent() *cobra.Command {
	var g agent
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of a node",
		Long: `Runs on each node of a Kubernetes cluster: publishes its devices, prepares
ResourceClaims for the kubelet, applies their topologies to a pod's network
namespace before its containers start, repairs drift, and restores everything when
the pod ends. A container that uses a claim starts only after all of the claim's
topologies are verified in its sandbox.

Needs the capabilities NET_ADMIN and SYS_ADMIN, the host's network namespace, and
the directories below at their paths on the host. In a container, where /proc/sys
is read-only, --proc names a directory with the host's /proc/sys. Steps of type
vfio-pci bind functions to drivers; for them --sys names a directory with the host's
/sys, writable.

Serves /metrics, /healthz and /readyz. When it stops, the networks of all pods stay.
Two agents may run at the same time during an update.`,
		Example: `  plumbline agent --node-name n1 --kubeconfig /etc/kubernetes/agent.conf`,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return g.run(cmd.Context(), a) },
	}
	f := cmd.Flags()
	f.StringVar(&g.nodeName, "node-name", os.Getenv("NODE_NAME"), "`name` of the node; default: NODE_NAME")
	f.StringVar(&g.kubeconfig, "kubeconfig", "", "kubeconfig `file`; default: the service account of the pod")
	f.StringVar(&g.nriSocket, "nri-socket", "/var/run/nri/nri.sock", "`socket` of the container runtime's Node Resource Interface")
	f.StringVar(&g.nriIndex, "nri-index", "30", "`position` among the NRI plugins, two digits")
	f.StringVar(&g.pluginDir, "plugin-dir", "/var/lib/kubelet/plugins/dra.networking", "`directory` of the DRA plugin's socket")
	f.StringVar(&g.registrarDir, "registrar-dir", "/var/lib/kubelet/plugins_registry", "`directory` in which the kubelet looks for plugins")
	f.StringVar(&g.cdiDir, "cdi-dir", "/var/run/cdi", "`directory` in which the container runtime looks for CDI devices")
	f.StringVar(&g.proc, "proc", "/proc", "`directory` with a writable sys/net")
	f.StringVar(&g.sys, "sys", "/sys", "`directory` with a writable bus/pci and devices, to bind drivers")
	f.StringToStringVar(&g.physicalNetworks, "physical-network", nil, "`interface=network`: the physical network of a PF; may be repeated")
	f.BoolVar(&g.lldp, "lldp", false, "listen to LLDP on the ports of the node, for the attributes switch, switchPort and rail; needs the capability NET_RAW")
	f.BoolVar(&g.networkQoS, "network-qos", false, "mark and limit what pods send, as the NetworkQoS objects of their namespaces say; needs list and watch of networkqoses and pods. Without it, filters that an earlier agent has set are removed")
	g.ovn.flags(cmd, "", "")
	g.podNetwork.flags(f)
	f.StringVar(&g.metricsAddress, "metrics-address", "127.0.0.1:9808", "`address` to serve metrics and probes on")
	f.IntVar(&g.interfaceMetrics, "interface-metrics", 1024, "`number` of interfaces in pods for which /metrics has counters, with the names of the pods; 0 for none")
	f.IntVar(&g.ruleMetrics, "rule-metrics", 512, "`number` of rules of NetworkQoS objects on interfaces in pods for which /metrics has counters, with the names of pods and objects; 0 for none")
	f.StringVar(&g.probeSocket, "probe-socket", "", "`socket` to serve probes on, not shared with another agent; none if empty")
	f.StringVar(&g.logLevel, "log-level", "info", "lowest `level` to log: debug, info, warn or error")
	f.DurationVar(&g.attachTimeout, "attach-timeout", 5*time.Minute, "`time` limit of an attachment that continues after the runtime's hook; then it is rolled back and tried again")
	f.StringSliceVar(&g.sealedHandlers, "vm-runtime-handlers", []string{"kata*", "runsc*", "gvisor*"}, "`patterns` of runtime handlers whose containers do not use the pod's network namespace, since they boot a virtual machine or have their own network stack. Their pods do not start with a topology that has interfaces")
	f.DurationVar(&g.resync, "resync", time.Minute, "`interval` of the periodic check of each sandbox, because not every change produces a notification; longer if more than two sandboxes a second would be due")
	return cmd
}

var twoDigits = regexp.MustCompile(`^[0-9]{2}$`)

func (g *agent) check() error {
	switch {
	case g.nodeName == "":
		return errors.New("--node-name: is missing, and NODE_NAME is not set")
	case !twoDigits.MatchString(g.nriIndex):
		return fmt.Errorf("--nri-index: %q is not two digits", g.nriIndex)
	case g.resync <= 0:
		return errors.New("--resync must be positive")
	case g.attachTimeout <= 0:
		return errors.New("--attach-timeout must be positive")
	case g.interfaceMetrics < 0:
		return errors.New("--interface-metrics must not be negative")
	case g.ruleMetrics < 0:
		return errors.New("--rule-metrics must not be negative")
	}
	for _, pattern := range g.sealedHandlers {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("--vm-runtime-handlers: %q is no pattern: %w", pattern, err)
		}
	}
	_, err := g.podNetwork.clusters()
	return err
}

// readTimeout is how long the API server may be silent before a read is repeated over
// another connection.
const readTimeout = 10 * time.Second

// apiClients are clients of the API server.
type apiClients struct {
	kube     kubernetes.Interface
	nodes    kubernetes.Interface // in protobuf, a third of JSON: with --pod-network, all nodes are watched
	dynamic  dynamic.Interface
	metadata metadata.Interface
}

func (g *agent) clients() (c apiClients, err error) {
	config, err := rest.InClusterConfig()
	if g.kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", g.kubeconfig)
	}
	if err != nil {
		return c, fmt.Errorf("API server: %w", err)
	}
	config.UserAgent = "plumbline-agent/" + build().Version
	config.QPS, config.Burst = 50, 100
	draplugin.BoundReads(config, readTimeout)
	if c.kube, err = kubernetes.NewForConfig(config); err == nil {
		c.dynamic, err = dynamic.NewForConfig(rest.CopyConfig(config))
	}
	if err == nil {
		c.metadata, err = metadata.NewForConfig(rest.CopyConfig(config))
	}
	if err == nil {
		compact := rest.CopyConfig(config)
		compact.ContentType = runtime.ContentTypeProtobuf
		c.nodes, err = kubernetes.NewForConfig(compact)
	}
	if err != nil {
		return c, fmt.Errorf("API server: %w", err)
	}
	return c, nil
}

// serving holds the parts of an agent.
type serving struct {
	*agent
	app    *app
	log    *slog.Logger
	engine *engine
	apiClients
	store      *claims.Store
	counts     *metrics.Metrics
	recorder   recorder
	ports      *ports.Monitor
	interfaces *ports.Metrics
	rules      *ports.RuleMetrics
	failures   *failures.Tracker
	hooks      *nriplugin.Metrics
	status     *claimstatus.Reporter
	keeper     *attachment.Keeper
	plugin     *draplugin.Plugin
	runtime    *nriplugin.Plugin
	policies   *follower.Follower
	leases     *addresses.Client
	addresses  *addresses.Allocator
	publisher  *publish.Publisher
	wires      *lldp.Listener // nil when LLDP is not listened to
	edits      *rollout.Follower
	filters    *filters.Follower
	routes     *hostroutes.Keeper
	watcher    *watch.Watcher
	events     *watch.Relay
	loop       *node.Loop
	pods       *podServing // nil if the agent gives pods no network of their own
	alive      *liveness.Registry
}

func (g *agent) run(ctx context.Context, a *app) error {
	if err := g.check(); err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(g.logLevel)); err != nil {
		return fmt.Errorf("--log-level: %w", err)
	}
	s := &serving{agent: g, app: a, log: a.log(level), alive: liveness.New(time.Now)}
	klog.SetSlogLogger(s.log.With("library", "kubernetes"))
	var err error
	if s.apiClients, err = g.clients(); err != nil {
		return err
	}
	if err := s.wire(ctx); err != nil {
		return err
	}
	defer s.engine.close()
	defer s.store.Close()
	defer s.watcher.Close()
	if s.wires != nil {
		defer s.wires.Close()
	}
	return s.serve(ctx)
}

// wire creates the parts without starting them.
func (s *serving) wire(ctx context.Context) (err error) {
	s.counts, s.hooks = metrics.New(build(), time.Now), nriplugin.NewMetrics()
	s.status = claimstatus.New(claimstatus.Options{Client: s.kube, NodeName: s.nodeName, Log: s.log, Now: time.Now})
	s.ports = ports.New(ports.Options{
		Record: func(id reconcile.SandboxID) (reconcile.Record, bool, error) { return s.engine.store.Get(id) },
		Read: func(ctx context.Context, path string, id reconcile.NetnsID, of []ports.Port) ([]ports.State, error) {
			return s.engine.host.Ports(ctx, path, id, of)
		},
		ReadRDMA: func(ctx context.Context, path string, id reconcile.NetnsID, of []ports.Port, states []ports.State) {
			s.engine.host.RDMAPorts(ctx, path, id, of, states)
		},
		SilentRDMA: func() int { return s.engine.host.SilentRDMA() },
		Pod:        s.podOf, Changed: s.portsChanged, Now: time.Now,
	})
	s.interfaces = ports.NewMetrics(ports.MetricsOptions{Monitor: s.ports, Interfaces: s.interfaceMetrics})
	s.rules = ports.NewRuleMetrics(ports.RuleMetricsOptions{
		Monitor: s.ports, Rules: s.ruleMetrics,
		Read: func(ctx context.Context, path string, id reconcile.NetnsID, of []ports.Rule) ([]ports.Reading, error) {
			return s.engine.host.RuleReadings(ctx, path, id, of)
		},
		ReadLogical: func(ctx context.Context, of []ports.LogicalRule) ([]ports.Reading, error) {
			return s.engine.ovn.readings(ctx, of)
		},
	})
	s.recorder = recorder{s.counts, s.ports, claimstatus.NewDriftReport(claimstatus.DriftOptions{
		Reporter: s.status,
		Claim:    s.claim,
		Record:   func(id reconcile.SandboxID) (reconcile.Record, bool, error) { return s.engine.store.Get(id) },
	})}
	s.app.host = kernel.Options{Netns: "/proc/thread-self/ns/net", Proc: s.proc, Disturb: disturb(), Searching: searching(s.log, s.counts)}
	s.app.pci, s.app.ovn = binding.Options{Writable: s.sys}, s.ovn
	if s.engine, err = s.app.engine("agent", true, s.recorder); err != nil {
		return err
	}
	if s.store, err = claims.Open(claims.Options{
		Dir: filepath.Join(s.app.stateDir, "claims"), Locker: s.engine.journal, BootID: s.engine.host.BootID(), Now: time.Now,
	}); err != nil {
		return err
	}
	s.leases = addresses.NewClient(s.kube, s.dynamic, s.nodeName, time.Now)
	if s.addresses, err = addresses.Open(addresses.Options{
		Leases: s.leases, NodeName: s.nodeName, File: filepath.Join(s.app.stateDir, "addresses"),
		Recorded: s.grants, Ended: s.claimEnded, Log: s.log, Now: time.Now,
		HostAddresses: func(pool string) ([]v1alpha1.HostAddress, bool) { return s.routes.HostAddresses(pool) },
	}); err != nil {
		return err
	}
	s.routes = hostroutes.New(hostroutes.Options{
		NodeName: s.nodeName, Host: s.engine.host, Leases: &hostroutes.Client{Dynamic: s.dynamic, Listed: s.leases.Pools},
		Watch:  func(changed, failed func()) (io.Closer, error) { return watch.Routing("", changed, failed) },
		Claims: s.claims, Published: s.addresses.Published, Log: s.log, Now: time.Now,
		PodNetwork: s.podCIDRs, Nodes: &hostroutes.NodeClient{Kube: s.nodes},
	})
	var ported rollout.Ported
	if ports := s.attachments(); ports != nil {
		ported = ports.Used
	}
	s.keeper = attachment.New(attachment.Options{
		GiveBack: s.addresses.GiveBack,
		Store:    s.store, Engine: s.engine.Reconciler, Yield: func() func() { return s.loop.Yield() }, Gate: gate.Dir(s.cdiDir),
		Contracts: s.app.registry, Reporter: attached{claimstatus.Claims{To: s.status, Contracts: s.app.registry}, func() { s.filters.PodsChanged() }},
		Refine: func(ctx context.Context, c *claims.Claim, results [][]topology.StepResult) error {
			return s.plugin.Refine(ctx, c, results)
		},
		Follow: func(ctx context.Context, t *claims.Topology, o *v1alpha1.NetworkTopology) error {
			return rollout.Follow(ctx, t, o, s.app.registry, ported)
		},
		Ready:          func(ctx context.Context, t *claims.Topology) error { return s.routes.Await(ctx, t) },
		Filters:        func(c *claims.Claim, t *claims.Topology) (ops.Enforced, error) { return s.filters.Of(c, t) },
		SealedHandlers: s.sealedHandlers, AttachTimeout: s.attachTimeout, Log: s.log, Now: time.Now,
		Alive: func(within time.Duration) { s.alive.Alive(partSandboxes, within) },
		Ended: func(outcome fault.Kind, took time.Duration) { s.hooks.Hook("BehindGate", outcome, took) },
	})
	s.runtime = nriplugin.New(nriplugin.Options{
		Keeper: s.keeper, Recorder: s.hooks, Socket: s.nriSocket, Index: s.nriIndex, Log: s.log, Now: time.Now,
		Alive: func(within time.Duration) { s.alive.Alive(partRuntime, within) },
	})
	s.filters = filters.New(s.enforced(filters.Options{
		NodeName: s.nodeName, NodeUID: func() types.UID { return s.policies.NodeUID() }, Node: s.nodeLabels, Contracts: s.app.registry, Claims: s.claims, Apply: s.keeper.Refilter, Reporter: claimstatus.Claims{To: s.status, Contracts: s.app.registry}, Log: s.log, Now: time.Now,
	}))
	s.policies = follower.New(follower.Options{
		Kube: s.kube, Dynamic: s.dynamic, NodeName: s.nodeName, Log: s.log, Changed: func() { s.publisher.Rescan(); s.filters.NodeChanged() },
	})
	s.failures = failures.New(failures.Options{Claim: s.claim, InUse: s.inUse, Changed: func() { s.publisher.Rescan() }, Now: time.Now})
	var neighbours publish.Neighbours
	if s.lldp {
		s.wires = lldp.NewListener(lldp.Options{
			Now: time.Now, Changed: func() { s.publisher.Rescan() },
			Functions: func(port string) ([]string, error) { return s.engine.host.FunctionMACs(ctx, port) },
		})
		neighbours = s.wires
	}
	s.publisher = publish.New(publish.Options{
		NodeName: s.nodeName, Neighbours: neighbours, Sysfs: os.DirFS("/sys"), PhysicalNetworks: s.physicalNetworks, UplinkOf: inventory.LookupUplink,
		RDMANetdevs: func(names []string) (map[string]string, error) { return s.engine.host.RDMANetdevs(ctx, names) },
		Uplinks:     s.uplinks, InUse: s.inUse, Chosen: s.chosen, Dirty: s.dirty, Failing: s.failures.Failing, Failed: s.failures.Restore, Policies: s.policies, StateFile: filepath.Join(s.app.stateDir, publishedFile), Log: s.log, Now: time.Now,
	})
	s.plugin = draplugin.New(draplugin.Options{
		Runtime: s.runtime.Connected(),
		Store:   s.store, Keeper: s.keeper, Cluster: draplugin.NewCluster(s.kube, s.dynamic), Contracts: s.app.registry, Addresses: s.addresses, Attachments: s.attachments(),
		Discover: func() ([]inventory.Device, error) { return s.discover(ctx) },
		Unfit: func(devices []inventory.Device) map[string]string {
			return publish.Unfit(devices, s.dirty(), s.policies.Others(devices))
		},
		Withdrawn: s.publisher.Withdrawn,
		Known:     s.filters.Known, Results: s.results, HandleError: s.handle, Changed: s.claimsChanged, Ports: s.ports.Reports, CDI: gate.Dir(s.cdiDir), Log: s.log, Now: time.Now,
	})
	s.edits = rollout.New(rollout.Options{
		Client: s.dynamic, NodeName: s.nodeName, Claims: s.claims, Update: s.keeper.Update, Observed: s.filters.Topology, Reporter: claimstatus.Claims{To: s.status, Contracts: s.app.registry}, Log: s.log, Now: time.Now,
	})
	s.wirePodNetwork()
	return s.wireLoop(ctx)
}

// attached reports on pods, also to what counts those with filters.
type attached struct {
	claimstatus.Claims
	changed func()
}

// Attached implements attachment.Reporter.
func (r attached) Attached(p attachment.Pod, c claims.Claim, reports []reconcile.Report) {
	r.Claims.Attached(p, c, reports)
	r.changed()
}

// Detached implements attachment.Reporter.
func (r attached) Detached(c claims.Claim) {
	r.Claims.Detached(c)
	r.changed()
}

// attachments finds ports of ovn-kubernetes, nil without OVN.
func (s *serving) attachments() draplugin.Attachments {
	if s.engine.ovn == nil {
		return nil
	}
	return &ovnkubernetes.Ports{Switch: s.engine.ovn.vswitch, Northbound: s.engine.ovn.northbound, Pods: s.metadata}
}

// enforced adds the clients with which NetworkQoS is followed, if it is to be enforced.
func (s *serving) enforced(o filters.Options) filters.Options {
	if s.networkQoS {
		o.Client, o.Pods = s.dynamic, s.metadata
		o.RuleOnPF = func(id reconcile.SandboxID) string {
			rec, _, err := s.engine.Record(id)
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
func (s *serving) wireLoop(ctx context.Context) (err error) {
	if s.watcher, err = watch.New(watch.Options{Resync: s.resync}); err != nil {
		return err
	}
	if why := s.watcher.Fallback(); why != nil {
		s.log.Warn("each namespace is watched with its own socket", "reason", why)
	}
	s.events = watch.NewRelay(s.watcher.Events(), s.publisher.Rescan)
	files := filepath.Join(s.app.stateDir, "files")
	if err := os.MkdirAll(files, 0o700); err != nil {
		return err
	}
	s.loop = node.New(node.Options{
		Dir: files, StateDir: s.app.stateDir, Reconciler: s.engine.Reconciler, Store: s.engine.store, Damaged: s.damaged, OtherVersions: s.otherVersions,
		Contracts: s.app.registry, BootID: s.engine.host.BootID(), Sys: os.DirFS("/sys"),
		Discover: func() ([]inventory.Device, error) { return discoverOn(ctx, s.engine.host) },
		Watcher:  relayed{s.watcher, s.events}, Recorder: s.recorder, Log: s.log, Now: time.Now,
		Workers: 2, Timeout: s.app.timeout, Resync: s.resync, // attaching pods needs the machine more
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

// damaged lists all records that were set aside as damaged.
func (s *serving) damaged() ([]string, error) {
	a, errA := s.engine.damaged()
	b, errB := s.store.Damaged()
	return append(a, b...), errors.Join(errA, errB)
}

// otherVersions lists all records that other versions have written.
func (s *serving) otherVersions() []*frame.OtherVersion {
	ofClaims, err := s.store.OtherVersions()
	if err != nil {
		s.log.Error("cannot read claim records", "error", err)
	}
	published := ofPublished(filepath.Join(s.app.stateDir, publishedFile), s.publisher.OtherVersion())
	return slices.Concat(s.engine.journal.OtherVersions(), ofClaims, published)
}

func (s *serving) results(id reconcile.SandboxID) []topology.StepResult {
	rec, known, err := s.engine.store.Get(id)
	if err != nil || !known {
		return nil
	}
	return rec.Results
}

// nodeLabels are those of the Node object; known is false until it was read.
func (s *serving) nodeLabels() (labels map[string]string, known bool) {
	labels, _, known = s.policies.Node()
	return labels, known
}

// grants are the addresses in the records of claims.
func (s *serving) grants() []addresspool.Grant {
	entries, _ := s.store.List() // damage is reported on attachment
	out := s.podGrants()
	for _, e := range entries {
		var literals []netip.Addr
		for i := range e.Topologies {
			t, err := topology.FromObject(&e.Topologies[i].Object)
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
func (s *serving) claimEnded(ctx context.Context, g addresspool.Grant) (bool, error) {
	if primary.Owns(g.Claim) {
		return false, nil // its server ends it
	}
	if _, known, err := s.store.Get(types.UID(g.Claim)); err != nil || known {
		return false, err
	}
	namespace, name, ok := strings.Cut(g.Of, "/")
	if !ok {
		return false, nil
	}
	rc, err := draplugin.NewCluster(s.kube, s.dynamic).Claim(ctx, namespace, name)
	return err == nil && (rc == nil || string(rc.UID) != g.Claim), err
}

// claimsChanged is called when a claim was prepared or has ended.
func (s *serving) claimsChanged() {
	s.publisher.Rescan()
	s.edits.Changed()
	s.filters.Changed()
	s.routes.Changed()
}

// claim returns the record of a claim.
func (s *serving) claim(uid types.UID) (claims.Claim, bool) {
	e, known, err := s.store.Get(uid)
	return e.Claim, known && err == nil
}

// podOf names the pod of a sandbox.
func (s *serving) podOf(id reconcile.SandboxID) (namespace, name string, ok bool) {
	c, ok := s.claim(types.UID(id.Origin().ClaimUID))
	return c.Namespace, c.Pod.Name, ok
}

// claims lists the claims of the node.
func (s *serving) claims() []claims.Entry {
	entries, errs := s.store.List()
	for _, err := range errs {
		s.log.Error("cannot read claim records", "error", err)
	}
	return entries
}

func (s *serving) inUse() []string {
	used, err := s.store.InUse()
	if err != nil {
		s.log.Error("cannot read claim records", "error", err)
	}
	var out []string
	for name := range used {
		out = append(out, name)
	}
	return out
}

// chosen lists the functions that claims have as shares of their PF.
func (s *serving) chosen() map[string]bool {
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
func (s *serving) dirty() map[string]string {
	return reconcile.Unreleased(s.engine.journal.Releasing(), s.engine.OtherVersions(), time.Now())
}

// discover lists the devices as selectors see them, with the decisions of policies. If the
// policies are not known, for example because the API server is down, an allocated claim
// is prepared nevertheless.
func (s *serving) discover(ctx context.Context) ([]inventory.Device, error) {
	devices, err := discoverWired(ctx, s.engine.host, s.physicalNetworks)
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
func (s *serving) uplinks(ctx context.Context, devices []inventory.Device) (inventory.Uplinks, error) {
	return uplinksOf(ctx, s.engine.host, devices)
}

func (s *serving) handle(err error, msg string) {
	if !errors.Is(err, kubeletplugin.ErrRecoverable) { // a server of the plugin has failed, and is not started again
		s.alive.Ended(partKubelet, fmt.Errorf("%s: %w", msg, err))
	}
	e := s.publisher.Handle(err)
	s.log.Error(msg, "explanation", fmt.Sprint(e), "error", err)
}

// serve runs all parts until ctx ends. Parts start after those they depend on: requests
// of the kubelet wait until the runtime has listed its sandboxes.
func (s *serving) serve(ctx context.Context) error {
	var listeners []net.Listener
	if s.probeSocket != "" {
		own, err := listenProbe(ctx, s.probeSocket)
		if err != nil {
			return fmt.Errorf("--probe-socket: %w", err)
		}
		listeners = append(listeners, own)
	}
	listener, unserved := listenShared(ctx, s.metricsAddress)
	switch {
	case unserved == nil:
		listeners = append(listeners, listener)
	case !errors.Is(unserved, syscall.EADDRINUSE) || s.probeSocket == "": // without any use
		return fmt.Errorf("--metrics-address: %w", unserved)
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	s.log.Info("running", "node", s.nodeName, "state", s.app.stateDir, "listen", s.metricsAddress, "version", build().Version)

	group, ctx := errgroup.WithContext(ctx)
	for name, work := range s.parts() {
		group.Go(func() error { return s.alive.Run(ctx, name, work) })
	}
	group.Go(func() error { return s.engine.leases.Run(ctx) })
	serveHTTP(ctx, group, server, listeners...)
	if unserved != nil {
		group.Go(func() error { return s.serveLater(ctx, server, unserved) })
	}
	err := group.Wait()
	s.log.Info("stopped: all networks stay as they are")
	return err
}

// retryListen is the interval at which an address in use is retried.
const retryListen = 10 * time.Second

// serveLater serves the metrics once their address is free. A program on the host that uses
// the port must not stop the agent: attaching pods matters more than metrics.
func (s *serving) serveLater(ctx context.Context, server *http.Server, taken error) error {
	s.log.Error("metrics are not served: the address is in use and is tried again", "every", retryListen, "error", taken)
	listener, err := listenFree(ctx, s.metricsAddress, retryListen)
	if err != nil {
		return nil //nolint:nilerr // the agent is stopped
	}
	s.log.Info("serving metrics", "listen", listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		s.log.Error("metrics are not served", "error", err)
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
func (s *serving) parts() map[string]func(context.Context) error {
	forever := func(f func(context.Context)) func(context.Context) error {
		return func(ctx context.Context) error { f(ctx); return nil }
	}
	parts := map[string]func(context.Context) error{
		"reports of claims":    s.status.Run,
		"watch of the kernel":  s.watcher.Run,
		"events of the kernel": forever(s.events.Run),
		"drift loop":           forever(s.repairDrift),
		"states of ports":      forever(s.ports.Run),
		partSandboxes:          forever(s.keeper.Run),
		"topology updates":     forever(s.edits.Run),
		"filters of pods":      forever(s.filters.Run),
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
		parts["network of pods"] = forever(s.pods.follower.Run)
		parts["CNI plugin"] = forever(s.pods.installer.Run)
	}
	return parts
}

// prepare serves the kubelet.
func (s *serving) prepare(ctx context.Context) error {
	return s.plugin.Run(ctx, draplugin.Serving{
		Kube: s.kube, NodeName: s.nodeName, PluginDir: s.pluginDir, RegistrarDir: s.registrarDir, CDIDir: s.cdiDir,
	}, s.publish)
}

// publish publishes devices once the policies are known.
func (s *serving) publish(ctx context.Context, to draplugin.Publisher) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.policies.Ready():
	}
	return s.publisher.Run(ctx, to)
}

// repairDrift runs the loop that repairs drift. It waits while another agent runs that loop,
// as during a rolling update.
func (s *serving) repairDrift(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		leave := s.events.Take()
		err := s.loop.Run(ctx)
		leave()
		if err != nil && err.Error() != said {
			said = err.Error()
			s.log.Warn("this agent does not repair drift yet", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// bandwidths says what claims have reserved of functions, and what their PFs enforce.
func (s *serving) bandwidths() []metrics.Bandwidth {
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
	host, seen := s.engine.host.WithoutSandbox(), netstate.NewSnapshot()
	defer host.Close()
	if err := host.Extend(ctx, seen, functions); err != nil {
		s.log.Debug("rates of functions", "error", err)
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

func (s *serving) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", handler(s.loop, s.counts, s.hooks, s.interfaces, s.rules, addresses.Metrics{Counts: s.addresses.Counts}, s.routes, metrics.Bandwidths(s.bandwidths), metrics.Health{
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
