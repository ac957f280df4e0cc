package agent

import (
	"log/slog"
	"net/netip"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/metrics"
)

// Config is everything an agent is built from.
type Config struct {
	NodeName string
	// StateDir has the journal, the records of claims, and all else that the next agent of the node
	// continues with.
	StateDir string
	Clients  Clients
	// Registry has the step types.
	Registry *ops.Registry
	// OVN are the databases of OVN, nil without. The agent closes them.
	OVN *hostengine.OVN

	// NRISocket is the socket of the container runtime's Node Resource Interface, and NRIIndex the
	// position of the agent among its plugins.
	NRISocket, NRIIndex string
	// PluginDir is where the socket for the kubelet is, RegistrarDir where the kubelet looks for plugins,
	// and CDIDir where the container runtime looks for CDI devices.
	PluginDir, RegistrarDir, CDIDir string
	// Proc has a writable sys/net, Sys a writable bus/pci and devices.
	Proc, Sys string
	// PhysicalNetworks names the physical network of a PF, by interface.
	PhysicalNetworks map[string]string
	// LLDP listens to LLDP on the ports of the node.
	LLDP bool
	// NetworkQoS enforces NetworkQoS objects. Without it, the filters of an earlier agent are removed.
	NetworkQoS bool
	PodNetwork PodNetwork

	// MetricsAddress serves /metrics, /healthz and /readyz; ProbeSocket the last two too, unless it is
	// empty. InterfaceMetrics and RuleMetrics bound the numbers of interfaces and of rules that
	// /metrics has counters of.
	MetricsAddress, ProbeSocket   string
	InterfaceMetrics, RuleMetrics int

	// Timeout bounds a pass of the drift loop, AttachTimeout an attachment in the background, and Resync
	// is the interval of periodic checks of a sandbox.
	Timeout, AttachTimeout, Resync time.Duration
	// SealedHandlers are those of attachment.Options.
	SealedHandlers []string

	Build metrics.Build
	Log   *slog.Logger
	Now   func() time.Time

	// Recorder receives what the engine does, beside the metrics; may be nil.
	Recorder reconcile.Recorder
	// Disturb is that of kernel.Options, and ReceiveBufferBytes that of watch.Options, for tests.
	Disturb            func(kernel.Message) error
	ReceiveBufferBytes int
}

// PodNetwork configures the pod network.
type PodNetwork struct {
	Enabled bool
	// Plugin is the program that is installed as the CNI plugin.
	Plugin string
	// BinDir and ConfDir are where the container runtime looks for CNI plugins and for networks, and
	// ConfName is the name of the network's file.
	BinDir, ConfDir, ConfName string
	// Socket is where the CNI plugin asks the agent.
	Socket string
	// NetnsDir is where the container runtime keeps the network namespaces of pods.
	NetnsDir string
	// ClusterCIDRs contain the pod CIDRs of all nodes. Without them, routes lead to private addresses.
	ClusterCIDRs []netip.Prefix
}

// Clients are clients of the API server.
type Clients struct {
	Kube     kubernetes.Interface
	Nodes    kubernetes.Interface // in protobuf, a third of JSON: with PodNetwork, all nodes are watched
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
}
