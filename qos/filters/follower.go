package filters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/enforce"
	"github.com/plumbline/plumbline/qos/queue"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/nodereport"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Reporter receives what became of the filters of a claim. It must not block.
type Reporter interface {
	// Filtered reports that a running pod has the filters that its objects say now.
	Filtered(c claims.Claim)
	// FilterFailed reports that it has not, and keeps those that it had.
	FilterFailed(c claims.Claim, err error)
}

// Options are the settings of a Follower.
type Options struct {
	// Client needs: list and watch on networkqoses and networkqosdestinations, create and patch on networkqosreports. If it
	// is nil, nothing is enforced, and the filters that pods have from an earlier agent are removed.
	Client dynamic.Interface
	// NodeUID returns the UID of the Node object, "" while it is not known.
	NodeUID func() types.UID
	// Node returns the labels of the Node object; known is false until it was read. LabelNode
	// among them switches enforcement off. If it is nil, nothing does.
	Node func() (labels map[string]string, known bool)
	// Spread is the time over which the nodes of a cluster report after a change, and
	// ReportPause the least time between two reports of a node. Defaults 10 s and 30 s.
	Spread, ReportPause time.Duration
	// Pods needs: list and watch on pods.
	Pods     metadata.Interface
	NodeName string
	// Contracts are those of all step types.
	Contracts contract.Set
	// Claims lists the claims of this node.
	Claims func() []claims.Entry
	// Topologies are those of the claims as they are in the cluster: nil for one that does not exist. Pods
	// keep what the last labels of a topology mean.
	Topologies *table.Table[string, *v1alpha1.NetworkTopology]
	// PodTopology returns the topology of role primary of a name as it is in the cluster, nil if there is none. It says that agents
	// make the primary network of pods; nil if they do not. Claims then has these networks, too: see PodNetwork.
	PodTopology func(name string) (o *v1alpha1.NetworkTopology, known bool)
	// WokenBy: claims were added, attached, released or removed, or the labels of the Node may have changed.
	WokenBy  []table.Source
	Reporter Reporter
	// RuleOnPF returns the rule whose limit physical functions enforce for a sandbox, as
	// ports.RuleOnPF. May be nil.
	RuleOnPF func(id reconcile.SandboxID) string
	// Missing learns from the engine where rules are not in place. May be nil.
	Missing *Missing
	Log     *slog.Logger
	// Timeout bounds the update of one claim; default one minute.
	Timeout time.Duration
	// Pause is the least time between two updates of one claim: users may edit objects as
	// fast as the API server accepts it. Default one second.
	Pause time.Duration
	// Again is after how long an API server is asked again that does not serve the kind, or
	// the objects of a namespace are listed in which there may be room for one that was not enforced. Default 30 s.
	Again time.Duration
	Now   func() time.Time
}

// LabelNode is the label of a Node on which nothing is enforced if its value is Disabled: pods that run
// lose their filters, and others get none.
const (
	LabelNode = "networking.dra.io/network-qos"
	Disabled  = "disabled"
)

// errOff is why the rules of an object are not in place.
var errOff = errors.New("not enforced: the node has the label " + LabelNode + "=" + Disabled)

const (
	workers    = 2 // attaching pods needs the machine more
	retryFirst = 100 * time.Millisecond
	retryMost  = 30 * time.Second
)

// Follower knows the filters of this node's pods. It is safe for concurrent use.
type Follower struct {
	Options
	// Learned changes when what Known depends on may have changed.
	Learned table.Changes
	wake    table.Wake
	states  atomic.Pointer[map[string]int] // of the objects in the last report
	queue   queue.Queue                    // of keyOf
	reading sync.Mutex                     // held while a page of objects is read
	// compiled are the filters of the last sets of rules.
	compiled enforce.Memo

	mu         sync.Mutex
	compiler   *qos.Compiler
	namespaces map[string]*namespace
	pods       map[types.NamespacedName]podLabels
	topologies map[string]*network
	claims     map[types.UID]*claims.Claim // as last listed
	updated    map[types.UID]time.Time
	failures   map[types.UID]failure // of the last update
	// behind are the claims whose filters may not be those of the objects, as they are
	// queued; updating those whose filters are being changed.
	behind   map[types.UID]bool
	updating map[types.UID]bool
	podsRead bool
	node     string // what the Node said when it was last read; "" is nothing yet
	reports  *nodereport.Writer
}

// failure is why a claim was not updated.
type failure struct {
	said string
	// passing says that the claim was being attached, updated or released.
	passing bool
}

// network is a topology as its watch reports it.
type network struct {
	uid    types.UID // "" if there was none
	labels map[string]string
}

// New returns a Follower, which knows nothing until Run.
func New(o Options) *Follower {
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	o.Topologies = cmp.Or(o.Topologies, &table.Table[string, *v1alpha1.NetworkTopology]{})
	o.Pause = cmp.Or(o.Pause, time.Second)
	o.Again = cmp.Or(o.Again, 30*time.Second)
	by := append(slices.Clone(o.WokenBy), o.Topologies)
	if o.Missing != nil {
		by = append(by, o.Missing)
	}
	f := &Follower{
		Options: o, wake: table.Woken(by...),
		queue:    queue.New(retryFirst, retryMost),
		compiler: qos.NewCompiler(), namespaces: map[string]*namespace{}, pods: map[types.NamespacedName]podLabels{},
		topologies: map[string]*network{}, claims: map[types.UID]*claims.Claim{}, updated: map[types.UID]time.Time{},
		failures: map[types.UID]failure{},
		behind:   map[types.UID]bool{}, updating: map[types.UID]bool{},
	}
	f.reports = nodereport.New(nodereport.Options{
		Client: o.Client, Resource: v1alpha1.QoSReportResource(), Kind: v1alpha1.QoSReportKind, NodeName: o.NodeName, NodeUID: o.NodeUID,
		Report: f.report, Log: o.Log, Spread: o.Spread, Pause: cmp.Or(o.ReportPause, 30*time.Second),
	})
	return f
}

// readNode queues all claims if the Node switches enforcement on or off. The caller holds mu.
func (f *Follower) readNode() {
	said := "on"
	switch off, known := f.off(); {
	case !known:
		return // pods keep what they have
	case off:
		said = Disabled
	}
	if said == f.node {
		return
	}
	f.node = said
	f.Learned.Changed()
	for _, c := range f.claims {
		f.add(keyOf(c), 0)
	}
}

// off reports whether the Node has the label that switches enforcement off, and whether that is known.
func (f *Follower) off() (off, known bool) {
	if f.Node == nil {
		return false, true
	}
	labels, known := f.Node()
	return labels[LabelNode] == Disabled, known
}

// readTopology reads a topology from the informers; one that they do not know keeps what was read before. The caller holds mu.
func (f *Follower) readTopology(name string) {
	o, known := f.Topologies.Get(name)
	if !known && f.PodTopology != nil {
		o, known = f.PodTopology(name)
	}
	n := f.topologies[name]
	first := n == nil
	switch {
	case !known, !first && (o == nil || n.uid == o.UID && maps.Equal(n.labels, qos.TopologyLabels(&o.ObjectMeta))):
		return
	case first:
		n = &network{}
		f.topologies[name] = n
	}
	if o != nil {
		n.uid, n.labels = o.UID, qos.TopologyLabels(&o.ObjectMeta)
	}
	for _, c := range f.claims {
		if c.Topology(name) != nil {
			f.place(c)
			if first {
				f.add(keyOf(c), 0)
			}
		}
	}
}

// Known returns an error while the filters of a pod's claims cannot be decided, of kind
// NotReady if that may change. It has the namespace followed for a while, also if no claim
// of it is recorded yet.
func (f *Follower) Known(namespace string, pod claims.Pod) error {
	return f.follows(namespace, pod, f.selected)
}

// KnownOnPrimary is Known for the primary network of a pod. It does not wait for addresses of destinations: the controller, which
// writes them, may be a pod of this network.
func (f *Follower) KnownOnPrimary(namespace string, pod claims.Pod) error {
	return f.follows(namespace, pod, func(string, claims.Pod) error { return nil })
}

// follows is Known, with more to ask when the pod and the objects are known.
func (f *Follower) follows(namespace string, pod claims.Pod, more func(namespace string, pod claims.Pod) error) error {
	if off, _ := f.off(); f.Client == nil || off {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.known(namespace, pod)
	if err == nil {
		err = more(namespace, pod)
	}
	if err != nil {
		n := f.namespaces[namespace]
		if n == nil {
			n = newNamespace(f, namespace)
			f.namespaces[namespace] = n
		}
		n.until = f.Now().Add(leaseFor)
		f.wake.Now()
		return err
	}
	return nil
}

// known is Known for a caller that holds mu.
func (f *Follower) known(namespace string, pod claims.Pod) error {
	if _, node := f.off(); !node {
		return fault.New(fault.NotReady, fmt.Errorf("the labels of node %q are not known yet, and may turn NetworkQoS off", f.NodeName))
	}
	unread := errUnread
	if n := f.namespaces[namespace]; n != nil {
		unread = n.err
	}
	if unread != nil {
		return fault.New(fault.NotReady, fmt.Errorf("the NetworkQoS objects of namespace %q are not known: %w", namespace, unread))
	}
	if p, ok := f.pods[types.NamespacedName{Namespace: namespace, Name: pod.Name}]; !ok || p.uid != pod.UID {
		return fault.New(fault.NotReady,
			fmt.Errorf("the labels of pod %q, by which NetworkQoS objects select it, are not known yet", namespace+"/"+pod.Name))
	}
	return nil
}

// selected returns an error while the destinations of an object that selects a known pod are not
// known. The caller holds mu.
func (f *Follower) selected(namespace string, pod claims.Pod) error {
	labels := f.pods[types.NamespacedName{Namespace: namespace, Name: pod.Name}].labels
	n := f.namespaces[namespace]
	for _, name := range slices.Sorted(maps.Keys(n.known)) {
		if o := n.known[name]; o.policy.Err == nil && o.policy.SelectsTopologies() && o.policy.SelectsLabels(labels) {
			if err := n.settled(o); err != nil {
				return err
			}
		}
	}
	return nil
}

// members returns the sets of destinations in rules, and an error while some are not known. The
// caller holds mu.
func (f *Follower) members(rules []qos.Rule) (out map[qos.SetID][]netip.Addr, unknown error) {
	for _, r := range rules {
		if len(r.Sets) == 0 {
			continue
		}
		n := f.namespaces[r.Policy.Namespace]
		o := n.known[r.Policy.Name]
		if err := n.settled(o); err != nil {
			unknown = cmp.Or(unknown, err)
			continue
		}
		if out == nil {
			out = map[qos.SetID][]netip.Addr{}
		}
		for _, id := range r.Sets {
			out[id] = n.written[o.UID].sets[id]
		}
	}
	return out, unknown
}

// settled reports whether the networks of all objects and the destinations of all rules of a claim are known, or cannot be enforced.
// The caller holds mu.
func (f *Follower) settled(c *claims.Claim) bool {
	return f.networksKnown(c) == nil && !slices.ContainsFunc(f.compiler.Rules(keyOf(c)), func(rules []qos.Rule) bool {
		_, err := f.members(rules)
		return fault.Of(err) == fault.NotReady
	})
}

// Of returns the rules of a topology in a claim's pod: see Known. More than an interface
// may have are an error of kind Invalid.
func (f *Follower) Of(c *claims.Claim, t *claims.Topology) (ops.Rules, error) {
	if off, _ := f.off(); f.Client == nil || off {
		return ops.Rules{}, nil
	}
	f.mu.Lock()
	err := f.known(c.Namespace, c.Pod)
	rules := enforce.InterfaceRules{}
	var sets map[qos.SetID][]netip.Addr
	if err == nil {
		if f.claims[c.UID] == nil {
			f.claims[c.UID] = new(*c) // until they are listed the next time
		}
		if isPodNetwork(c) {
			f.readTopology(t.Object.Name) // a claim has recorded its labels
		}
		c = withTopology(c, t)
		f.place(c)
		err = f.networksKnown(c)
		attached := f.attachments(c)
		for i, of := range f.compiler.Rules(keyOf(c)) {
			if c.Topologies[attached[i].topology].Object.Name == t.Object.Name {
				rules[attached[i].Interface] = of
			}
		}
		var unknown error
		sets, unknown = f.members(slices.Concat(slices.Collect(maps.Values(rules))...))
		err = cmp.Or(err, unknown)
		if isPodNetwork(c) && fault.Of(err) == fault.NotReady {
			err = nil // the pod starts, as it may be that of the controller which writes them; when they are known it is updated
		}
	}
	f.mu.Unlock()
	if err != nil || rules.None() {
		return ops.Rules{}, err
	}
	out, err := f.compiled.Compile(rules, func(id qos.SetID) []netip.Addr { return sets[id] }, stepsOf(t), t.Given, f.Contracts)
	if err != nil {
		return out, fmt.Errorf("topology %q: %w", t.Object.Name, err)
	}
	return out, nil
}

// stepsOf are the steps of a topology, by which its backends are known, and the networks of its interfaces.
func stepsOf(t *claims.Topology) *topology.Topology {
	if decoded, err := t.Decoded(); err == nil {
		return decoded
	}
	out := &topology.Topology{}
	for _, s := range t.Object.Spec.Steps {
		out.Steps = append(out.Steps, topology.Step{Name: s.Name, Type: s.Type, DependOn: s.DependOn})
	}
	return out
}

// withTopology returns a claim with one of its topologies as it is going to be: its steps say on which networks its interfaces are.
func withTopology(c *claims.Claim, t *claims.Topology) *claims.Claim {
	out := *c
	out.Topologies = slices.Clone(c.Topologies)
	for i := range out.Topologies {
		if out.Topologies[i].Object.Name == t.Object.Name {
			out.Topologies[i] = *t
		}
	}
	return &out
}

// stepsOn are the steps of a topology whose interfaces are on the network of a definition, or on the topology's own, "".
func (f *Follower) stepsOn(t *claims.Topology, definition string) *topology.Topology {
	all := stepsOf(t)
	definitions, out := topology.Definitions(all, f.Contracts), &topology.Topology{}
	for _, s := range all.Steps {
		if definitions[s.Name] == definition {
			out.Steps = append(out.Steps, s)
		}
	}
	return out
}

// keyOf is the compiler's name for the pod of a claim: each claim is compiled by itself.
func keyOf(c *claims.Claim) types.NamespacedName {
	return types.NamespacedName{Namespace: c.Namespace, Name: string(c.UID)}
}

// place gives the compiler the pod of a claim with its topologies as networks, and queues
// the claim if its rules may have changed. The caller holds mu.
func (f *Follower) place(c *claims.Claim) {
	p, ok := f.pods[types.NamespacedName{Namespace: c.Namespace, Name: c.Pod.Name}]
	if !ok || p.uid != c.Pod.UID {
		return // it keeps what it has
	}
	pod := &qos.Pod{Key: keyOf(c), Labels: p.labels}
	for _, a := range f.attachments(c) {
		pod.Attachments = append(pod.Attachments, a.Attachment)
	}
	f.enqueue(f.compiler.SetPod(pod))
}

// attached is an attachment of a claim's pod to a network, by one of the claim's topologies.
type attached struct {
	qos.Attachment
	topology int // index in the claim
}

// attachments are those of the pod of a claim, as the compiler has them. The caller holds mu.
func (f *Follower) attachments(c *claims.Claim) []attached {
	var out []attached
	for i := range c.Topologies {
		o := &c.Topologies[i].Object
		labels := qos.TopologyLabels(&o.ObjectMeta)
		n := f.topologies[o.Name]
		if isPodNetwork(c) {
			if n != nil {
				labels = n.labels
			}
			out = append(out, attached{qos.Attachment{Network: qos.PodNetwork(o.Name, labels)}, i})
			continue
		}
		if n != nil && n.uid == o.UID {
			labels = n.labels
		}
		for _, a := range qos.TopologyAttachments(o.Name, labels, topology.Definitions(stepsOf(&c.Topologies[i]), f.Contracts)) {
			out = append(out, attached{a, i})
		}
	}
	return out
}

// enqueue queues the claims that a change matters to. The caller holds mu.
func (f *Follower) enqueue(changed qos.Changed) {
	for key := range changed.Pods {
		f.add(key, f.updated[types.UID(key.Name)].Add(f.Pause).Sub(f.Now()))
	}
}

// add queues a claim. The caller holds mu.
func (f *Follower) add(claim types.NamespacedName, after time.Duration) {
	f.behind[types.UID(claim.Name)] = true
	f.queue.AddAfter(claim, after)
	f.reports.Changed()
}

// enqueueBehind queues the claims of a namespace that are behind. The caller holds mu.
func (f *Follower) enqueueBehind(name string) {
	for uid, c := range f.claims {
		if c.Namespace == name && f.behind[uid] {
			f.add(keyOf(c), f.updated[uid].Add(f.Pause).Sub(f.Now()))
		}
	}
}

// Updates gives running claims the filters that a Follower knows, when these have changed.
type Updates struct {
	of    *Follower
	apply func(ctx context.Context, claim types.UID) (changed bool, err error)
}

// Updates returns the updates of the Follower's claims. apply gives a running claim the filters that Of
// returns, and reports whether they were others; see attachment.Keeper.
func (f *Follower) Updates(apply func(ctx context.Context, claim types.UID) (changed bool, err error)) *Updates {
	return &Updates{f, apply}
}

// Run runs until ctx ends, once.
func (u *Updates) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for range workers {
		wg.Go(func() {
			for u.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	u.of.queue.ShutDown() // not by context.AfterFunc, which this function's return could stop before it began
}

// Run runs until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if f.Client != nil {
		wg.Go(func() { f.followPods(ctx) })
		wg.Go(func() { f.reports.Run(ctx) })
	}
	if f.Client == nil { // a pod that starts from now on has no filters
		f.follow(ctx, &wg)
		<-ctx.Done()
		return
	}
	loop.Loop{Every: leaseFor, Wake: f.wake, Pass: func(ctx context.Context) (time.Duration, error) {
		f.follow(ctx, &wg)
		return 0, nil
	}}.Run(ctx)
}

// follow compares the claims with what is followed.
func (f *Follower) follow(ctx context.Context, wg *sync.WaitGroup) {
	entries := f.Claims()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readNode() // first: it queues the claims that are known, and a new one would be updated twice
	there, needed, used := map[types.UID]bool{}, map[string]bool{}, map[string]bool{}
	for i := range entries {
		c := &entries[i].Claim
		there[c.UID], needed[c.Namespace] = true, true
		for j := range c.Topologies {
			used[c.Topologies[j].Object.Name] = true
		}
		old := f.claims[c.UID]
		f.claims[c.UID] = c
		if f.Client != nil {
			f.place(c)
		}
		if old == nil {
			f.add(keyOf(c), 0)
		}
	}
	for uid, c := range f.claims {
		if !there[uid] {
			f.compiler.DeletePod(keyOf(c))
			delete(f.claims, uid)
			delete(f.updated, uid)
			delete(f.failures, uid)
			delete(f.behind, uid)
			f.queue.Forget(keyOf(c))
		}
	}
	f.reports.Changed()
	maps.DeleteFunc(f.topologies, func(name string, _ *network) bool { return !used[name] })
	for name := range used {
		f.readTopology(name)
	}
	if f.Client == nil {
		return
	}
	for name := range needed {
		if f.namespaces[name] == nil {
			f.namespaces[name] = newNamespace(f, name)
		}
	}
	for name, n := range f.namespaces {
		switch {
		case !needed[name] && f.Now().After(n.until):
			if n.stop != nil {
				n.stop()
			}
			for _, o := range n.known {
				f.compiler.DeletePolicy(o.policy.Key)
			}
			delete(f.namespaces, name)
		case n.stop == nil:
			within, stop := context.WithCancel(ctx)
			n.stop = stop
			wg.Go(func() { n.run(within) })
		}
	}
}

// next updates one claim; false when Run is to end.
func (u *Updates) next(ctx context.Context) bool {
	f := u.of
	key, stopped := f.queue.Get()
	if stopped {
		return false
	}
	defer f.queue.Done(key)
	uid := types.UID(key.Name)
	f.mu.Lock()
	c, ready := f.claims[uid], true
	if off, _ := f.off(); c != nil && f.Client != nil && !off {
		// Before the labels of its topologies are known, and the addresses of pods that are
		// destinations, a pod that runs is left alone: it is queued again then.
		for i := range c.Topologies {
			ready = ready && f.topologies[c.Topologies[i].Object.Name] != nil
		}
		ready = ready && f.known(c.Namespace, c.Pod) == nil && f.settled(c)
	}
	if c != nil && ready {
		f.behind[uid] = false // unless something changes from now on
		f.updating[uid] = true
	}
	f.mu.Unlock()
	if c == nil || !ready || ctx.Err() != nil {
		f.queue.Forget(key)
		return ctx.Err() == nil
	}
	within, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	changed, err := u.apply(within, uid)
	f.finish(c, changed, err)
	switch {
	case err == nil || fault.Of(err) == fault.Invalid || fault.Of(err) == fault.Unsupported:
		f.queue.Forget(key) // until something changes
	default:
		f.queue.AddRateLimited(key)
	}
	return true
}

// finish notes and reports the result of an update.
func (f *Follower) finish(c *claims.Claim, changed bool, err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	f.mu.Lock()
	delete(f.updating, c.UID)
	if f.claims[c.UID] == nil { // it has ended meanwhile, and follow has forgotten it
		f.mu.Unlock()
		return
	}
	if changed || err != nil {
		f.updated[c.UID] = f.Now()
	}
	before := f.failures[c.UID].said
	f.failures[c.UID] = failure{said: said, passing: fault.Of(err) == fault.Gone}
	if said == "" {
		delete(f.failures, c.UID)
	}
	f.mu.Unlock()
	f.reports.Changed()
	switch {
	case err != nil && fault.Of(err) == fault.Gone:
		f.Log.Debug("filters not updated", "claim", c.Namespace+"/"+c.Name, "error", err)
	case err != nil && said != before:
		f.Log.Warn("filters not updated", "claim", c.Namespace+"/"+c.Name, "pod", c.Pod.Name, "kind", fault.Of(err), "error", err)
		if !isPodNetwork(c) {
			f.Reporter.FilterFailed(*c, err)
		}
	case err == nil && (changed || before != "") && !isPodNetwork(c):
		f.Reporter.Filtered(*c)
	}
}
