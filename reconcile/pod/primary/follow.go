package primary

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/recordfile"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// FollowerOptions are the settings of a Follower.
type FollowerOptions struct {
	// Client needs list and watch on networktopologies.
	Client   dynamic.Interface
	NodeName string
	// Node returns the labels and the pod CIDRs of the node; false while they are not known.
	Node      func() (labels map[string]string, podCIDRs []string, known bool)
	Contracts contract.Set
	// File is where the last decision is kept, so that a node without an API server starts
	// its pods.
	File string
	// Proc is where procfs is mounted.
	Proc string
	// TranslateBridged makes what a bridge forwards between its ports pass the host's translation of addresses. It is
	// called often. Nil does nothing.
	TranslateBridged func() error
	// ClusterCIDRs are in Network.
	ClusterCIDRs []netip.Prefix
	Log          *slog.Logger
}

// Follower knows which topology is the own network of the node's pods.
type Follower struct {
	FollowerOptions
	// Decided changes after each decision that differs from the one before.
	Decided table.Changes
	wake    table.Wake
	said    map[string]bool // what was logged in the last call of decide

	mu       sync.Mutex
	decided  bool // once, perhaps by an earlier process
	decision decision
	network  *Network
	why      error // network is nil
	bridged  error // of TranslateBridged
}

// decision is the last decision, as it is kept on disk.
type decision struct {
	// Object is the topology that was chosen; nil if none selects the node.
	Object   *v1alpha1.NetworkTopology `json:"object,omitempty"`
	PodCIDRs []string                  `json:"podCIDRs,omitempty"`
	// Others have the role and select the node, too.
	Others []string `json:"others,omitempty"`
}

// NewFollower returns a Follower that knows what an earlier process has decided.
func NewFollower(o FollowerOptions) *Follower {
	f := &Follower{FollowerOptions: o, wake: make(table.Wake, 1), why: errors.New(
		"the NetworkTopology of role primary is not known yet: the API server has not answered")}
	var d decision
	switch err := f.load(&d); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		o.Log.Error("cannot read the recorded network of pods: waiting for the API server", "file", o.File, "error", err)
	default:
		f.take(context.Background(), d)
		f.translate()
	}
	return f
}

func (f *Follower) load(d *decision) error {
	data, err := os.ReadFile(f.File)
	if err != nil {
		return err
	}
	payload, err := frame.Decode([]byte(strings.TrimSuffix(string(data), "\n")))
	if err != nil {
		return err
	}
	return json.Unmarshal(payload, d)
}

func (f *Follower) save(d decision) error {
	data, err := frame.Encode(d)
	if err != nil {
		return err
	}
	_, err = recordfile.Replace(f.File, data, recordfile.Options{Sync: (*os.File).Sync})
	return err
}

// Network returns what new pods are given, or why the node has no network for them.
func (f *Follower) Network() (Network, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.network == nil {
		return Network{}, f.why
	}
	if f.bridged != nil {
		return *f.network, f.bridged
	}
	if !f.network.Topology.UsesPodCIDRs(f.Contracts) {
		return *f.network, nil // its steps check the families of the addresses they have
	}
	return *f.network, f.forwards(f.network.PodCIDRs)
}

// Selected reports whether a topology was chosen; not known until the first decision.
func (f *Follower) Selected() (selected, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decision.Object != nil, f.decided
}

// Topology returns the topology that is the network of new pods if it has this name, nil if it has another or there is none;
// known is false until the first decision.
func (f *Follower) Topology(name string) (o *v1alpha1.NetworkTopology, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o = f.decision.Object; o == nil || o.Name != name {
		o = nil
	}
	return o, f.decided
}

// UsesPodCIDRs reports whether new pods are given addresses of the node's pod CIDRs; not known
// while a topology was chosen and cannot be used.
func (f *Follower) UsesPodCIDRs() (uses, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.network == nil {
		return false, f.decided && f.decision.Object == nil
	}
	return f.network.Topology.UsesPodCIDRs(f.Contracts), true
}

// undecided is how often a decision is tried while something is not known.
const undecided = 2 * time.Second

// Run follows the topologies until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	informer := dynamicinformer.NewFilteredDynamicInformer(f.Client, v1alpha1.Resource(), metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			// The others are many, and their status changes often.
			o.FieldSelector = fields.OneTermEqualSelector("spec.role", string(v1alpha1.Primary)).String()
		}).Informer()
	poke := func(any) { f.wake.Now() }
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: poke, DeleteFunc: poke,
		UpdateFunc: func(_, o any) { poke(o) },
	})
	if err != nil {
		f.Log.Error("cannot watch the topologies of role primary", "error", err)
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { informer.RunWithContext(ctx) })
	loop.Loop{
		Every: undecided, Wake: f.wake, // labels and pod CIDRs of the node are not watched
		Pass: func(ctx context.Context) (time.Duration, error) {
			if informer.HasSynced() {
				f.decide(ctx, informer.GetStore().List())
			}
			f.translate()
			return 0, nil
		},
	}.Run(ctx)
}

// decide chooses among the topologies of the cluster.
func (f *Follower) decide(ctx context.Context, objects []any) {
	of, podCIDRs, known := f.Node()
	if !known {
		return
	}
	said := map[string]bool{}
	defer func() { f.said = said }()
	fail := func(id, what string, more ...any) { // every two seconds
		if said[id] = true; !f.said[id] {
			f.Log.Error(what, more...)
		}
	}
	var selecting []*v1alpha1.NetworkTopology
	for _, v := range objects {
		u, ok := v.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		o := &v1alpha1.NetworkTopology{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
			fail(u.GetName()+": "+err.Error(), "cannot read a topology", "topology", u.GetName(), "error", err)
			continue
		}
		if o.Spec.Role == v1alpha1.Primary && Selects(o, of) {
			selecting = append(selecting, o)
		}
	}
	slices.SortFunc(selecting, func(a, b *v1alpha1.NetworkTopology) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	d := decision{PodCIDRs: podCIDRs}
	if len(selecting) > 0 {
		d.Object = new(claims.Pinned(selecting[0]))
		for _, o := range selecting[1:] {
			d.Others = append(d.Others, o.Name)
		}
	}
	f.mu.Lock()
	same := f.decided && reflect.DeepEqual(d, f.decision)
	f.mu.Unlock()
	if same {
		return
	}
	if err := f.save(d); err != nil {
		fail("", "cannot record which topology is the pod network", "file", f.File, "error", err)
		return // tried again
	}
	f.take(ctx, d)
	f.translate()
	f.Decided.Changed()
}

// Selects reports whether a topology with a role selects a node with these labels.
func Selects(o *v1alpha1.NetworkTopology, of map[string]string) bool {
	if o.Spec.NodeSelector == nil {
		return true
	}
	s, err := metav1.LabelSelectorAsSelector(o.Spec.NodeSelector)
	return err == nil && s.Matches(labels.Set(of))
}

// take makes a decision count. While a topology cannot be used, an earlier one is not: its
// object may not exist any more.
func (f *Follower) take(ctx context.Context, d decision) {
	n, err := f.read(ctx, d)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decided, f.decision, f.network, f.why = true, d, n, err
	switch {
	case err != nil:
		f.Log.Warn("new pods get no network", "reason", err)
	case len(d.Others) > 0:
		f.Log.Warn("several topologies have role primary; the oldest is used", "topology", d.Object.Name, "others", d.Others)
	default:
		f.Log.Info("the network of new pods", "topology", d.Object.Name, "generation", d.Object.Generation, "podCIDRs", d.PodCIDRs)
	}
}

// translate lets pods of a bridge reach each other through a Service of kube-proxy: an answer between ports of the bridge
// passes the host's translation of addresses only if the bridge hands packets to it. It is repeated, since others set
// the sysctls, too. Pods that would lack that are not started.
func (f *Follower) translate() {
	f.mu.Lock()
	n, before := f.network, f.bridged
	f.mu.Unlock()
	var err error
	if n != nil && f.TranslateBridged != nil && n.Topology.OnBridge(f.Contracts) {
		if err = f.TranslateBridged(); err != nil {
			err = fmt.Errorf(
				"pods of the node %q would not reach Services with an endpoint on the same bridge (use type ptp, or mend this): %w",
				f.NodeName, err)
		}
	}
	if err != nil && !fault.SameText(err, before) {
		f.Log.Error("new pods get no network", "topology", n.Topology.Name, "error", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bridged = err
}

func (f *Follower) read(ctx context.Context, d decision) (*Network, error) {
	if d.Object == nil {
		return nil, fmt.Errorf("no NetworkTopology of role %q selects the node %q", v1alpha1.Primary, f.NodeName)
	}
	t, _, err := validity.Object(ctx, d.Object, f.Contracts)
	if err != nil {
		return nil, err
	}
	n := &Network{Topology: t, ClusterCIDRs: f.ClusterCIDRs}
	for _, c := range d.PodCIDRs {
		p, err := netip.ParsePrefix(c)
		if err != nil {
			return nil, fmt.Errorf("pod CIDR of the node: %w", err)
		}
		n.PodCIDRs = append(n.PodCIDRs, p.Masked())
	}
	if len(n.PodCIDRs) == 0 && t.UsesPodCIDRs(f.Contracts) {
		return nil, fmt.Errorf("NetworkTopology %q: the node %q has no spec.podCIDRs to give pods addresses from: "+
			"start kube-controller-manager with --allocate-node-cidrs, or name an AddressPool in ipam", t.Name, f.NodeName)
	}
	return n, nil
}

// forwards refuses to give pods a network in which they reach nothing but their host: that
// the host forwards packets is the administrator's decision.
func (f *Follower) forwards(podCIDRs []netip.Prefix) error {
	for _, p := range podCIDRs {
		name := "net/ipv6/conf/all/forwarding"
		if p.Addr().Is4() {
			name = "net/ipv4/ip_forward"
		}
		if value, err := os.ReadFile(filepath.Join(f.Proc, "sys", name)); err != nil || strings.TrimSpace(string(value)) == "0" {
			return fmt.Errorf("the node %q does not forward packets, so its pods with addresses of %s would reach nothing: set %s to 1",
				f.NodeName, p, strings.ReplaceAll(name, "/", "."))
		}
	}
	return nil
}
