package draplugin

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/gate"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
)

// Keeper prepares and releases what a claim has on the node.
type Keeper interface {
	// Prepare applies what the claim needs before its pod has a sandbox. The caller holds
	// the claim's lock.
	Prepare(ctx context.Context, c *claims.Claim) error
	Withdraw(ctx context.Context, uid types.UID) error
}

// Addresses allocates addresses of pools to claims, without the API server.
type Addresses interface {
	// Take returns the same when it is called again.
	Take(claim addresses.Claim, wants []addresses.Want) (map[addresses.Want]ops.Given, error)
	// Lost returns an error if another node may have an address of the claim by now.
	Lost(claim types.UID) error
}

// Attachments finds the ports that ovn-kubernetes has made for pods.
type Attachments interface {
	// Used reports whether ovn-kubernetes makes the ports of this node.
	Used(ctx context.Context) (bool, error)
	// Given returns the port of a pod on the network of a NetworkAttachmentDefinition.
	Given(ctx context.Context, namespace string, pod claims.Pod, attachment string) (ops.Given, error)
}

// Options configures a Plugin. All but Runtime, Attachments, Known, Unfit, Withdrawn, Patience, Ports and CDI must be given.
type Options struct {
	Store     *claims.Store
	Keeper    Keeper
	Cluster   Cluster
	Contracts contract.Set
	Addresses Addresses
	// Attachments is nil on a node without OVN.
	Attachments Attachments
	// Runtime is closed once the container runtime has listed its sandboxes. The plugin
	// is registered before that, unless another agent serves the node, and claims are neither
	// prepared nor released. nil: at once.
	Runtime <-chan struct{}
	// Known returns an error while it is not known which NetworkQoS objects cover a pod,
	// without waiting. May be nil.
	Known func(namespace string, pod claims.Pod) error
	// Discover lists the devices of the host, those that can be read in part
	// with the error.
	Discover func() ([]inventory.Device, error)
	// Unfit returns, by device ID, why functions must not be allocated to claims with
	// shares of their PF; if it is nil, all are fit.
	Unfit func(devices []inventory.Device) map[string]string
	// Withdrawn reports whether a shared device was last published as one that no policy shares any more. It counts
	// while the policies do not say what applies. May be nil.
	Withdrawn func(device string) bool
	// Results returns the results of a sandbox's steps; nil when unknown.
	Results func(id reconcile.SandboxID) []topology.StepResult
	// HandleError is called with errors of the publication of slices.
	HandleError func(err error, msg string)
	// Patience bounds how long the preparation of a pod's claims waits for conditions
	// that are temporary. Default 40 s: the kubelet gives up after 45, and retries more than a minute later. Its Event has
	// the reason only if the answer arrives before.
	Patience time.Duration
	// Ports returns what is known of the ports of running pods, for the kubelet; nil
	// reports none. PortsChanged changes with it.
	Ports        func() []ports.Report
	PortsChanged table.Source
	// Registration is with the kubelet; New makes one if it is nil.
	Registration *Registration
	// CDI is the runtime's directory of CDI devices; with "" devices have no CDI device of
	// their own.
	CDI gate.Dir
	Log *slog.Logger
	Now func() time.Time
}

// Plugin is a DRA driver for one node.
type Plugin struct {
	Options

	calls loop.InFlight
	scans scans
	began time.Time // of Run
}

var _ kubeletplugin.DRAPlugin = (*Plugin)(nil)

// New returns a plugin that is not served yet.
func New(o Options) *Plugin {
	o.Patience = cmp.Or(o.Patience, 40*time.Second)
	o.PortsChanged = cmp.Or[table.Source](o.PortsChanged, &table.Changes{})
	o.Registration = cmp.Or(o.Registration, &Registration{})
	return &Plugin{Options: o, scans: scans{list: o.Discover}}
}

// Serving are the paths of the plugin.
type Serving struct {
	Kube         kubernetes.Interface
	NodeName     string
	PluginDir    string // of the socket; made when absent
	RegistrarDir string // kubelet's own
	CDIDir       string // of the metadata's CDI files; made when absent
	// Instance distinguishes this process from all others, in the names of its sockets.
	// Default: a random UUID.
	Instance types.UID
}

// Publisher gets the helper that writes ResourceSlices.
type Publisher interface {
	PublishResources(ctx context.Context, r resourceslice.DriverResources) error
}

// Run serves the kubelet until ctx ends, waits a bounded time for requests in progress,
// then deregisters. publish runs meanwhile, once the runtime is connected. The kubelet does not
// retry soon what it cannot prepare since no agent is registered, so that comes first. While
// another agent serves the node, as during a rolling update, it comes last: the kubelet sends all
// requests to the one that was registered last.
func (p *Plugin) Run(ctx context.Context, s Serving, publish func(context.Context, Publisher) error) error {
	for _, dir := range []string{s.PluginDir, s.CDIDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("kubelet plugin: %w", err)
		}
	}
	defer p.removeDead(ctx, s)()
	if !p.awaitNeed(ctx, s) {
		return nil
	}
	p.began = p.Now()
	// The helper stops at once when its context ends, in the middle of a request.
	helper, err := kubeletplugin.Start(context.WithoutCancel(ctx), p,
		kubeletplugin.DriverName(claim.Driver),
		kubeletplugin.KubeClient(s.Kube),
		kubeletplugin.NodeName(s.NodeName),
		kubeletplugin.PluginDataDirectoryPath(s.PluginDir),
		kubeletplugin.RegistrarDirectoryPath(s.RegistrarDir),
		kubeletplugin.CDIDirectory(s.CDIDir),
		// Not the UID of the pod, which a restarted container has, too: the
		// kubelet ends a registration in one pass over its plugins, and begins one of the
		// same name in the next pass, a second later.
		kubeletplugin.RollingUpdate(cmp.Or(s.Instance, uuid.NewUUID())),
		// Each claim has a lock of its own: a claim that cannot be prepared or released
		// delays no other, nor another agent.
		kubeletplugin.Serialize(false),
		kubeletplugin.GRPCInterceptor(p.intercept),
		kubeletplugin.EnableDeviceMetadata(true, []schema.GroupVersion{metadatav1beta1.SchemeGroupVersion}),
	)
	if err != nil {
		return fmt.Errorf("kubelet plugin: %w", err)
	}
	p.Registration.helper.Set(helper)
	defer helper.Stop()
	if p.awaitRuntime(ctx) {
		err = publish(ctx, helper)
	}
	if err == nil {
		<-ctx.Done()
	}
	p.drain()
	return err
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (p *Plugin) PrepareResourceClaims(ctx context.Context,
	all []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Patience)
	defer cancel()
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, rc := range all {
		devices, err := p.prepare(ctx, rc)
		out[rc.UID] = kubeletplugin.PrepareResult{Err: err, Devices: devices}
	}
	return out, nil
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin. It does not wait for devices:
// the release continues, and the kubelet retries.
func (p *Plugin) UnprepareResourceClaims(ctx context.Context, all []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	out := map[types.UID]error{}
	for _, c := range all {
		out[c.UID] = p.Keeper.Withdraw(ctx, c.UID)
	}
	return out, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (p *Plugin) HandleError(_ context.Context, err error, msg string) {
	p.Options.HandleError(err, msg)
}
