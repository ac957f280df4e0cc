package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path"
	"regexp"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/plumbline/plumbline/reconcile/agent"
	"github.com/plumbline/plumbline/reconcile/pod/cnisocket"
	"github.com/plumbline/plumbline/reconcile/pod/draplugin"
)

// agentFlags holds the flags of the agent command.
type agentFlags struct {
	agent.Config

	kubeconfig   string
	ovn          databases
	clusterCIDRs []string
	logLevel     string
	graph        bool
}

func (a *app) agent() *cobra.Command {
	var g agentFlags
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of a node",
		Long: `Runs on each node of a Kubernetes cluster: publishes its devices, prepares
ResourceClaims, applies their topologies before containers start, repairs drift, and
restores everything when the pod ends.

Needs NET_ADMIN, NET_BROADCAST, SYS_ADMIN, DAC_OVERRIDE, for DHCP and LLDP also NET_RAW,
the host's network namespace, and the directories below at their paths on the host. In a
container, --proc names a directory with the host's /proc/sys, and --sys (for vfio-pci) one
with its /sys, both writable.

Serves /metrics, /healthz and /readyz. The networks of pods outlive the agent. During an
update two agents may run.`,
		Example: `  plumbline agent --node-name n1 --kubeconfig /etc/kubernetes/agent.conf`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !g.graph {
				return g.run(cmd.Context(), a)
			}
			parts, err := agent.Graph()
			if err == nil {
				fmt.Fprint(cmd.OutOrStdout(), parts)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&g.graph, "graph", false, "print the parts of the agent and exit")
	f.StringVar(&g.NodeName, "node-name", os.Getenv("NODE_NAME"), "`name` of the node; default: NODE_NAME")
	f.StringVar(&g.kubeconfig, "kubeconfig", "", "kubeconfig `file`; default: the service account of the pod")
	f.StringVar(&g.NRISocket, "nri-socket", "/var/run/nri/nri.sock", "NRI `socket` of the container runtime")
	f.StringVar(&g.NRIIndex, "nri-index", "30", "`position` among the NRI plugins, two digits")
	f.StringVar(&g.PluginDir, "plugin-dir", "/var/lib/kubelet/plugins/dra.networking", "`directory` of the DRA plugin's socket")
	f.StringVar(&g.RegistrarDir, "registrar-dir", "/var/lib/kubelet/plugins_registry", "plugin `directory` of the kubelet")
	f.StringVar(&g.CDIDir, "cdi-dir", "/var/run/cdi", "CDI `directory` of the container runtime")
	f.StringVar(&g.Proc, "proc", "/proc", "`directory` with a writable sys/net")
	f.StringVar(&g.Sys, "sys", "/sys", "`directory` with a writable bus/pci and devices, to bind drivers")
	f.StringToStringVar(&g.PhysicalNetworks, "physical-network", nil, "`interface=network`: physical network of a PF; may be repeated")
	f.BoolVar(&g.LLDP, "lldp", false, "listen to LLDP (attributes switch, switchPort, rail); needs NET_RAW")
	f.BoolVar(&g.NetworkQoS, "network-qos", false,
		"enforce NetworkQoS objects; needs list and watch of networkqoses, networkqosdestinations and pods. "+
			"Without it, earlier filters are removed")
	g.ovn.flags(cmd, "", "")
	g.podNetwork(f)
	f.StringVar(&g.MetricsAddress, "metrics-address", "127.0.0.1:9808", "`address` to serve metrics and probes on")
	f.IntVar(&g.InterfaceMetrics, "interface-metrics", 1024, "maximum `number` of interfaces in pods with metrics; 0 for none")
	f.IntVar(&g.RuleMetrics, "rule-metrics", 512, "maximum `number` of NetworkQoS rules with metrics; 0 for none")
	f.StringVar(&g.ProbeSocket, "probe-socket", "", "`socket` to serve probes on; none if empty")
	f.StringVar(&g.logLevel, "log-level", "info", "lowest `level` to log: debug, info, warn or error")
	f.DurationVar(&g.AttachTimeout, "attach-timeout", 5*time.Minute, "`time` after which an attachment is rolled back and retried")
	f.StringSliceVar(&g.SealedHandlers, "vm-runtime-handlers", []string{"kata*", "runsc*", "gvisor*"},
		"`patterns` of runtime handlers that do not use the pod's network namespace (docs/install.md)")
	a.daemon.add(cmd)
	f.DurationVar(&g.Resync, "resync", time.Minute, "`interval` between checks of a sandbox; at most two checks a second")
	return cmd
}

// podNetwork adds the flags for the pod network.
func (g *agentFlags) podNetwork(f *pflag.FlagSet) {
	p := &g.PodNetwork
	f.BoolVar(&p.Enabled, "pod-network", false, "install a CNI plugin that gives pods their network (docs/primary.md)")
	f.StringVar(&p.Plugin, "cni-plugin", "/plumbline-cni", "`program` to install as the CNI plugin")
	f.StringVar(&p.BinDir, "cni-bin-dir", "/opt/cni/bin", "CNI plugin `directory` of the container runtime")
	f.StringVar(&p.ConfDir, "cni-conf-dir", "/etc/cni/net.d", "CNI configuration `directory` of the container runtime")
	f.StringVar(&p.ConfName, "cni-conf-name", "10-plumbline.conflist",
		"`name` of the network's file in --cni-conf-dir; the runtime uses the first by name")
	f.StringVar(&p.Socket, "cni-socket", cnisocket.DefaultPath, "`socket` for the CNI plugin, in a directory of its own")
	f.StringSliceVar(&g.clusterCIDRs, "cluster-cidr", nil,
		"`CIDR` of all pods, as --cluster-cidr of kube-controller-manager; may be repeated; default: private addresses (docs/primary.md)")
	f.StringVar(&p.NetnsDir, "netns-dir", "/var/run/netns", "`directory` of the container runtime's network namespaces")
}

var twoDigits = regexp.MustCompile(`^[0-9]{2}$`)

func (g *agentFlags) check() error {
	switch {
	case g.NodeName == "":
		return errors.New("--node-name: is missing, and NODE_NAME is not set")
	case !twoDigits.MatchString(g.NRIIndex):
		return fmt.Errorf("--nri-index: %q is not two digits", g.NRIIndex)
	case g.Resync <= 0:
		return errors.New("--resync must be positive")
	case g.AttachTimeout <= 0:
		return errors.New("--attach-timeout must be positive")
	case g.InterfaceMetrics < 0:
		return errors.New("--interface-metrics must not be negative")
	case g.RuleMetrics < 0:
		return errors.New("--rule-metrics must not be negative")
	}
	for _, pattern := range g.SealedHandlers {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("--vm-runtime-handlers: %q is not a pattern: %w", pattern, err)
		}
	}
	clusters, err := g.clusters()
	g.PodNetwork.ClusterCIDRs = clusters
	return err
}

// clusters are the CIDRs of the cluster.
func (g *agentFlags) clusters() (out []netip.Prefix, err error) {
	for _, text := range g.clusterCIDRs {
		c, err := netip.ParsePrefix(text)
		if err != nil || c != c.Masked() {
			return nil, fmt.Errorf("--cluster-cidr: %q is not a CIDR, such as 10.244.0.0/16", text)
		}
		out = append(out, c)
	}
	if len(out) > maxClusterCIDRs {
		return nil, fmt.Errorf("--cluster-cidr: has %d CIDRs, and can have %d: name larger ones", len(out), maxClusterCIDRs)
	}
	return out, nil
}

// maxClusterCIDRs bounds them: a step that masquerades can except 64 networks.
const maxClusterCIDRs = 16

// readTimeout is how long the API server may be silent before a read is repeated over
// another connection.
const readTimeout = 10 * time.Second

// clients returns clients of the API server.
func (g *agentFlags) clients() (c agent.Clients, err error) {
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
	if c.Kube, err = kubernetes.NewForConfig(config); err == nil {
		c.Dynamic, err = dynamic.NewForConfig(rest.CopyConfig(config))
	}
	if err == nil {
		c.Metadata, err = metadata.NewForConfig(rest.CopyConfig(config))
	}
	if err == nil {
		compact := rest.CopyConfig(config)
		compact.ContentType = runtime.ContentTypeProtobuf
		c.Nodes, err = kubernetes.NewForConfig(compact)
	}
	if err != nil {
		return c, fmt.Errorf("API server: %w", err)
	}
	return c, nil
}

func (g *agentFlags) run(ctx context.Context, a *app) error {
	if err := g.check(); err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(g.logLevel)); err != nil {
		return fmt.Errorf("--log-level: %w", err)
	}
	c := g.Config
	c.StateDir, c.Timeout, c.Registry, c.Disturb = a.stateDir, a.timeout, a.registry, disturb()
	c.Log, c.Now, c.Build = a.log(level), time.Now, build()
	klog.SetSlogLogger(c.Log.With("library", "kubernetes"))
	var err error
	if c.Clients, err = g.clients(); err != nil {
		return err
	}
	if err := privileged("agent"); err != nil {
		return err
	}
	logStart(c.Log)
	if err := a.daemon.profile(ctx, c.Log); err != nil {
		return err
	}
	if c.OVN, err = g.ovn.open(); err != nil {
		return err
	}
	return agent.Run(ctx, c)
}
