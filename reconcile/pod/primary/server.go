package primary

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	k8stypes "k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/defaults"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/netns"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/cnisocket"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// Engine applies topologies; a reconcile.Reconciler is one.
type Engine interface {
	Ensure(ctx context.Context, sb reconcile.Sandbox) (reconcile.Report, error)
	Check(ctx context.Context, id reconcile.SandboxID) (reconcile.Status, error)
	Release(ctx context.Context, id reconcile.SandboxID) (reconcile.Report, error)
	Record(id reconcile.SandboxID) (reconcile.Record, bool, error)
	IDs() ([]reconcile.SandboxID, []error)
	OtherVersions() []*frame.OtherVersion
}

// Addresses allocates addresses; an addresses.Allocator is one.
type Addresses interface {
	TakeSoon(ctx context.Context, claim addresses.Claim, wants []addresses.Want) (map[addresses.Want]ops.Given, error)
	GiveBack(owner k8stypes.UID) error
	// Cancel is GiveBack of addresses that no link has had.
	Cancel(owner k8stypes.UID) error
	Grants() ([]addresspool.Grant, error)
}

// Network is the network that pods of the node are given.
type Network struct {
	Topology *topology.Topology
	PodCIDRs []netip.Prefix
	// ClusterCIDRs contain those of all nodes, as far as is known.
	ClusterCIDRs []netip.Prefix
}

// Name is the name of the network in its configuration.
const Name = "plumbline"

// Options are the settings of a Server.
type Options struct {
	Engine    Engine
	Addresses Addresses
	Contracts contract.Set
	// Vet plans a topology without a node, and returns what any node would refuse; an ops.Registry does. Default:
	// nothing.
	Vet func(ctx context.Context, t *topology.Topology) (notes []string, err error)
	// Network returns what new pods are given, or why the node has no network for them.
	Network func() (Network, error)
	// Known returns an error while the NetworkQoS objects that cover a pod are not known, of kind NotReady if that may
	// change, as KnownBy reports. Rules returns the rules for its network. Without them nothing is marked or limited.
	Known   func(namespace string, pod claims.Pod) error
	KnownBy table.Source
	Rules   func(sb *reconcile.Sandbox) (ops.Rules, error)
	// Changed is called when a pod has a network, or none any more. May be nil.
	Changed func()
	// Socket is the path at which the plugin finds the agent.
	Socket string
	// NetnsDir is where the runtime keeps the namespaces of its pods, and HostNetns that of the
	// host.
	NetnsDir  string
	HostNetns reconcile.NetnsID
	BootID    string
	// Damaged lists the records that were set aside as damaged. Default: none.
	Damaged func() ([]string, error)
	// Yield is called before the engine applies a topology for which a pod waits: until
	// done is called, repairs yield. Default: nothing does.
	Yield func() (done func())
	Log   *slog.Logger
	Now   func() time.Time
	// Identify identifies the namespace at a path; an error of kind Gone if there is
	// none. Default: by device and inode.
	Identify func(path string) (reconcile.NetnsID, error)
	// Propagates reports whether the process sees namespaces that the runtime creates in a
	// folder. Default: as the table of mounts says.
	Propagates func(dir string) bool
	// Timeout bounds one call; default 100 s, before the plugin's own.
	Timeout time.Duration
	// Parallel is how many calls are worked on at a time, those that end pods beside the others, and three quarters of them
	// of one namespace at most; default 8.
	Parallel int
	// Sweep is the interval of searches for sandboxes whose namespace is gone; default 30 s.
	Sweep time.Duration
	// Alive is called by Run each time it has made progress; the next call follows within
	// the given time. May be nil.
	Alive func(within time.Duration)
}

// Server answers calls of the plugin.
type Server struct {
	Options
	locks locks
	slots *slots // of ADD and CHECK
	ends  *slots // of DEL, which does not wait for pods that start
	leads atomic.Bool

	mu         sync.Mutex
	lastEnd    time.Time            // see LastEnded
	lastStatus string               // why the last STATUS failed, "" if it did not
	seen       map[string]bool      // owners whose namespace this process has seen
	sees       bool                 // it has seen any
	orphaned   map[string]time.Time // owners of addresses without a record, since when
}

// New returns a Server.
func New(o Options) *Server {
	o.Timeout = cmp.Or(o.Timeout, 100*time.Second)
	o.Parallel = cmp.Or(o.Parallel, 8)
	o.Sweep = cmp.Or(o.Sweep, 30*time.Second)
	o.Identify = defaults.Func(o.Identify, netns.At)
	o.Propagates = defaults.Func(o.Propagates, propagates)
	o.Damaged = defaults.Func(o.Damaged, func() ([]string, error) { return nil, nil })
	o.Vet = defaults.Func(o.Vet, func(context.Context, *topology.Topology) ([]string, error) { return nil, nil })
	o.Yield = defaults.Func(o.Yield, func() func() { return func() {} })
	o.Known = defaults.Func(o.Known, func(string, claims.Pod) error { return nil })
	o.KnownBy = cmp.Or[table.Source](o.KnownBy, &table.Changes{})
	o.Rules = defaults.Func(o.Rules, func(*reconcile.Sandbox) (ops.Rules, error) { return ops.Rules{}, nil })
	o.Changed = defaults.Func(o.Changed, func() {})
	o.Alive = defaults.Func(o.Alive, func(time.Duration) {})
	return &Server{
		Options: o, slots: newSlots(o.Parallel), ends: newSlots(o.Parallel), lastEnd: o.Now(), seen: map[string]bool{},
		orphaned: map[string]time.Time{},
	}
}

// config holds the parts of a network's configuration that the server reads.
type config struct {
	Name string `json:"name"`
	// Valid lists the runtime's attachments, for GC. Earlier texts of CNI 1.1 name it Attachments.
	Valid       json.RawMessage `json:"cni.dev/valid-attachments"`
	Attachments json.RawMessage `json:"cni.dev/attachments"`
	// RuntimeConfig has the runtime's data of the pod, since the configuration that we install
	// has the capability portMappings.
	RuntimeConfig struct {
		PortMappings []struct {
			HostPort      int64  `json:"hostPort"`
			ContainerPort int64  `json:"containerPort"`
			Protocol      string `json:"protocol"`
			HostIP        string `json:"hostIP"`
		} `json:"portMappings"`
	} `json:"runtimeConfig"`
}

// portMappings are those with a port of the host, as the config of a step has them.
func (c *config) portMappings() []any {
	var out []any
	for _, m := range c.RuntimeConfig.PortMappings {
		if m.HostPort == 0 {
			continue
		}
		mapping := map[string]any{"hostPort": m.HostPort, "containerPort": m.ContainerPort}
		if m.Protocol != "" {
			mapping["protocol"] = strings.ToLower(m.Protocol)
		}
		if m.HostIP != "" {
			mapping["hostIP"] = m.HostIP
		}
		out = append(out, mapping)
	}
	return out
}

// valid returns what the runtime knows. A call without a list is refused: it would end
// all pods of the node.
func (c *config) valid() (out []types.GCAttachment, err error) {
	list := c.Valid
	if list == nil {
		list = c.Attachments
	}
	if list == nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig,
			"GC: cni.dev/valid-attachments: is missing, so it is not known which pods have ended", "")
	}
	if err := json.Unmarshal(list, &out); err != nil {
		return nil, &types.Error{Code: types.ErrDecodingFailure, Msg: "GC: cni.dev/valid-attachments", Details: err.Error()}
	}
	return out, nil
}

// Do answers a call. ADD is rolled back when ctx ends.
func (s *Server) Do(ctx context.Context, r cnisocket.Request) cnisocket.Reply {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Timeout, fmt.Errorf("not finished within %s", s.Timeout))
	defer cancel()
	begun := s.Now()
	if r.Command == cnisocket.Del {
		s.mu.Lock()
		s.lastEnd = begun
		s.mu.Unlock()
	}
	result, err := s.do(ctx, r)
	took := s.Now().Sub(begun).Round(time.Microsecond)
	switch {
	case r.Command == cnisocket.Status && !s.newStatus(err): // a runtime queries it every few seconds
		return cnisocket.Reply{Error: cniError(err)}
	case err != nil:
		pod := podOf(r.Args)
		s.Log.Warn("CNI request failed", "command", r.Command, "container", r.Container, "pod",
			pod.Namespace+"/"+pod.Name, "kind", fault.Of(err), "took", took, "error", err)
		return cnisocket.Reply{Error: cniError(err)}
	case r.Command == cnisocket.Add || r.Command == cnisocket.Del:
		pod := podOf(r.Args)
		s.Log.Info("answered the container runtime", "command", r.Command, "container", r.Container, "pod", pod.Namespace+"/"+pod.Name,
			"took", took)
	}
	return cnisocket.Reply{Result: result}
}

// newStatus reports whether a STATUS says something else than the one before.
func (s *Server) newStatus(err error) bool {
	now := ""
	if err != nil {
		now = err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now == s.lastStatus {
		return false
	}
	s.lastStatus = now
	return true
}

// LastEnded returns when the runtime has last ended a pod, or when the server was made.
func (s *Server) LastEnded() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastEnd
}

// maxContainer bounds the ID of a container; those of runtimes have 64 bytes.
const maxContainer = 128

func (s *Server) do(ctx context.Context, r cnisocket.Request) (json.RawMessage, error) {
	var c config
	if err := json.Unmarshal(r.Config, &c); err != nil {
		return nil, &types.Error{Code: types.ErrDecodingFailure, Msg: "configuration of the network", Details: err.Error()}
	}
	if c.Name != Name {
		return nil, types.NewError(types.ErrInvalidNetworkConfig,
			fmt.Sprintf("network %q: a node has one network of plumbline, with the name %q", c.Name, Name), "")
	}
	switch r.Command {
	case cnisocket.Status:
		if _, err := s.Network(); err != nil {
			return nil, &types.Error{Code: cnisocket.ErrPluginNotAvailable, Msg: "pods cannot be given a network", Details: err.Error()}
		}
		return nil, nil
	case cnisocket.GC:
		valid, err := c.valid()
		if err != nil {
			return nil, err
		}
		return nil, s.collect(ctx, valid)
	case cnisocket.Add, cnisocket.Check, cnisocket.Del: // below, as they have a container
	}
	if err := utils.ValidateContainerID(r.Container); err != nil {
		return nil, err
	}
	if len(r.Container) > maxContainer {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables,
			fmt.Sprintf("the ID of the container has more than %d bytes", maxContainer), "")
	}
	if err := utils.ValidateInterfaceName(r.IfName); err != nil {
		return nil, err
	}
	unlock, err := s.locks.call(ctx, reconcile.OwnerOfPrimary(r.Container, r.IfName))
	if err != nil {
		return nil, fault.New(fault.NotReady, fmt.Errorf("an earlier call for the container has not ended: %w", err))
	}
	defer unlock()
	if r.Command == cnisocket.Add { // before it takes a slot, which others need
		if err := s.await(ctx, podOf(r.Args)); err != nil {
			return nil, err
		}
	}
	slots := s.slots
	if r.Command == cnisocket.Del {
		slots = s.ends
	}
	free, err := slots.take(ctx, podOf(r.Args).Namespace)
	if err != nil {
		return nil, fault.New(fault.NotReady,
			fmt.Errorf("at most %d calls run at a time, three quarters of them for one namespace: %w", s.Parallel, err))
	}
	defer free()
	switch r.Command {
	case cnisocket.Add:
		return s.add(ctx, r, c.portMappings())
	case cnisocket.Check:
		return nil, s.check(ctx, r)
	case cnisocket.Del:
		return nil, ended(s.del(context.WithoutCancel(ctx), reconcile.OwnerOfPrimary(r.Container, r.IfName)))
	case cnisocket.Status, cnisocket.GC: // answered above
	}
	return nil, &types.Error{Code: types.ErrInvalidEnvironmentVariables, Msg: fmt.Sprintf("unknown command %q", r.Command)}
}

// namespace returns the namespace of a pod, if it is one: in the runtime's folder, and not
// the host's.
func (s *Server) namespace(path string) (clean string, id reconcile.NetnsID, err error) {
	folder, err := filepath.EvalSymlinks(s.NetnsDir)
	if err != nil {
		return "", id, fmt.Errorf("folder of network namespaces: %w", err)
	}
	if !filepath.IsAbs(path) {
		return "", id, refuse("network namespace %q: not an absolute path", path)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", id, fault.New(fault.Gone, fmt.Errorf("network namespace %q: %w", path, err))
	}
	if name := filepath.Base(filepath.Clean(path)); dir != folder || name == ".." || name == "." {
		return "", id, refuse("network namespace %q: not in %q, where the container runtime has those of its pods", path, s.NetnsDir)
	}
	clean = filepath.Join(dir, filepath.Base(path))
	if id, err = s.Identify(clean); err != nil {
		return "", id, err
	}
	if netns.Same(id, s.HostNetns) {
		return "", id, refuse("network namespace %q: it is the host's own", path)
	}
	return clean, id, nil
}

func refuse(format string, args ...any) error {
	return &types.Error{Code: types.ErrInvalidNetNS, Msg: fmt.Sprintf(format, args...)}
}

func (s *Server) add(ctx context.Context, r cnisocket.Request, ports []any) (json.RawMessage, error) {
	path, id, err := s.namespace(r.Netns)
	if err != nil {
		return nil, err
	}
	owner := reconcile.OwnerOfPrimary(r.Container, r.IfName)
	sb, err := s.recorded(ctx, owner, path, id)
	if err != nil {
		return nil, err
	}
	first := sb == nil
	if !first {
		sb.Pod = podOf(r.Args).recorded() // an earlier version has not recorded it
	} else if sb, err = s.decide(ctx, r, path, ports); err != nil {
		return nil, err // unused addresses are returned by the runtime's DEL or by Run
	}
	sb.Rules = ops.Rules{}
	if sb.Pod != nil {
		if sb.Rules, err = s.Rules(sb); err != nil {
			return nil, err
		}
	}
	s.saw(owner)
	done := s.Yield()
	report, err := s.Engine.Ensure(ctx, *sb)
	done()
	if err != nil {
		giveBack := s.Addresses.GiveBack
		if first && s.unset(report) {
			giveBack = s.Addresses.Cancel
		}
		return nil, errors.Join(err, s.end(context.WithoutCancel(ctx), owner, giveBack))
	}
	s.Changed()
	results := make([]topology.Result, len(report.Results))
	for i, step := range report.Results {
		results[i] = step.Result
	}
	out, err := inPod(topology.Merge(results...)).CNI()
	if err != nil {
		return nil, err
	}
	return json.Marshal(out)
}

// unset reports whether no link has had an address, according to what was attempted. A record that is damaged may
// be of an earlier ADD for the same namespace, which did.
func (s *Server) unset(tried reconcile.Report) bool {
	damaged, err := s.Damaged()
	return err == nil && len(damaged) == 0 && !slices.ContainsFunc(tried.Changes,
		func(c netstate.Change) bool { return c.Key().Kind == netstate.KindAddress })
}

// inPod leaves out the addresses of the host, such as those of a bridge: the runtime takes
// all of a result for the pod's.
func inPod(r topology.Result) topology.Result {
	r.IPs = slices.DeleteFunc(slices.Clone(r.IPs), func(ip topology.IP) bool {
		return ip.Interface == nil || *ip.Interface >= len(r.Interfaces) || r.Interfaces[*ip.Interface].Sandbox == ""
	})
	return r
}

// recorded returns what an earlier ADD has decided for this namespace, nil if there was none.
// A record of another namespace has ended, and is released.
func (s *Server) recorded(ctx context.Context, owner, path string, id reconcile.NetnsID) (*reconcile.Sandbox, error) {
	ids, err := s.sandboxes(owner)
	if err != nil {
		return nil, err
	}
	for _, of := range ids {
		rec, known, err := s.Engine.Record(of)
		if err != nil {
			return nil, err
		}
		if known && rec.Phase != reconcile.Releasing && rec.Sandbox.Netns == path && rec.BootID == s.BootID &&
			(rec.NetnsID == (reconcile.NetnsID{}) || netns.Same(rec.NetnsID, id)) {
			return &rec.Sandbox, nil
		}
		if err := s.del(ctx, owner); err != nil {
			return nil, fmt.Errorf("release what the container had: %w", err)
		}
	}
	return nil, nil
}

// decide returns what a pod is given.
func (s *Server) decide(ctx context.Context, r cnisocket.Request, path string, ports []any) (*reconcile.Sandbox, error) {
	n, err := s.Network()
	if err != nil {
		return nil, fault.New(fault.NotReady, err)
	}
	t := n.Topology.ForPod(s.Contracts, n.PodCIDRs, r.IfName).WithoutMasquerading(s.Contracts, n.ClusterCIDRs).WithPortMappings(ports)
	if len(ports) > 0 { // of the pod: what no node accepts takes no address, and writes no file
		if _, err := s.Vet(ctx, t); err != nil {
			return nil, err
		}
	}
	owner, pod := reconcile.OwnerOfPrimary(r.Container, r.IfName), podOf(r.Args)
	wants, err := addresses.Wants(t)
	if err != nil {
		return nil, fault.New(fault.Invalid, fmt.Errorf("NetworkTopology %q: %w", t.Name, err))
	}
	sb := &reconcile.Sandbox{
		ID: reconcile.IDOfPrimary(r.Container, r.IfName, t.Name), Netns: path, Topology: t, Given: ops.Givens{},
		Pod: pod.recorded(),
	}
	if len(wants) == 0 {
		return sb, nil
	}
	given, err := s.Addresses.TakeSoon(ctx, addresses.Claim{
		UID: k8stypes.UID(owner), Namespace: pod.Namespace, Name: pod.Name,
		Pod: pod.Name, PodUID: k8stypes.UID(pod.UID), InPod: r.IfName, Gateways: topology.RouteGateways(t),
	}, wants)
	if err != nil {
		return nil, fmt.Errorf("NetworkTopology %q: %w", t.Name, err)
	}
	for w, g := range given {
		sb.Given[w.Step] = g
	}
	return sb, nil
}

func (s *Server) check(ctx context.Context, r cnisocket.Request) error {
	if _, _, err := s.namespace(r.Netns); err != nil {
		return err
	}
	ids, err := s.sandboxes(reconcile.OwnerOfPrimary(r.Container, r.IfName))
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return &types.Error{Code: types.ErrUnknownContainer, Msg: fmt.Sprintf("container %q has no network of plumbline", r.Container)}
	}
	for _, id := range ids {
		st, err := s.Engine.Check(ctx, id)
		switch {
		case err != nil:
			return err
		case st.Err != nil:
			return st.Err
		case st.State != reconcile.InSync:
			var what []string
			for _, d := range st.Drift {
				what = append(what, d.String())
			}
			return fault.New(fault.NotConverged,
				fmt.Errorf("the network of the pod is %s: %s", st.State, strings.Join(append(what, st.Failure), "; ")))
		}
	}
	return nil
}

// del releases what an owner has. It is no error if that is nothing.
func (s *Server) del(ctx context.Context, owner string) error {
	return s.end(ctx, owner, s.Addresses.GiveBack)
}

// end is del with a function that gives the addresses back.
func (s *Server) end(ctx context.Context, owner string, giveBack func(k8stypes.UID) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	ids, err := s.sandboxes(owner)
	if err != nil {
		return err // what it has must not be given to another
	}
	var unread error
	for _, id := range ids {
		if _, err := s.Engine.Release(ctx, id); errors.Is(err, reconcile.ErrUnread) {
			unread = err
		} else if err != nil {
			return err
		}
	}
	if unread != nil { // what it has stays its own until sweep finds that the namespace, which is there, has gone
		s.saw(owner)
		return unread
	}
	if err := giveBack(k8stypes.UID(owner)); err != nil {
		// Nothing of the pod is left but this: a pod that has filled the disk ends, which empties it. Run finds
		// addresses without a record.
		s.Log.Warn("failed to return addresses; retrying", "owner", owner, "error", err)
	}
	if len(ids) > 0 {
		s.Changed()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen, owner)
	return nil
}

// ended returns the answer to DEL: the runtime deletes the namespace of a pod, and with it what could not be read there,
// only after a DEL that succeeds.
func ended(err error) error {
	if errors.Is(err, reconcile.ErrUnread) {
		return nil
	}
	return err
}

// sandboxes returns what is recorded of an owner: one sandbox, unless the node's topology
// has changed between an interrupted ADD and its repetition.
func (s *Server) sandboxes(owner string) ([]reconcile.SandboxID, error) {
	records, err := s.records()
	return records[owner], err
}

func (s *Server) saw(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[owner], s.sees = true, true
}

// podArgs are the CNI arguments in which runtimes name a pod.
type podArgs struct{ Namespace, Name, UID string }

// podOf reads CNI_ARGS. They name the pod in messages, and the UID tells apart two pods of one name.
func podOf(args string) (p podArgs) {
	for pair := range strings.SplitSeq(args, ";") {
		switch key, value, _ := strings.Cut(pair, "="); key {
		case "K8S_POD_NAMESPACE":
			p.Namespace = value
		case "K8S_POD_NAME":
			p.Name = value
		case "K8S_POD_UID":
			p.UID = value
		}
	}
	return p
}

// recorded is the pod as its sandbox has it, nil if the call is for no pod of a cluster.
func (p podArgs) recorded() *reconcile.Pod {
	if p.Namespace == "" || p.Name == "" || p.UID == "" {
		return nil
	}
	return &reconcile.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

// cniError is an error as CNI has them.
func cniError(err error) *types.Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*types.Error](err); ok {
		return e
	}
	code := types.ErrInternal
	switch fault.Of(err) {
	case fault.NotReady:
		code = types.ErrTryAgainLater
	case fault.Invalid, fault.Unsupported:
		code = types.ErrInvalidNetworkConfig
	case fault.Conflict, fault.NotConverged, fault.Gone, fault.Internal:
	}
	return &types.Error{Code: code, Msg: err.Error()}
}
