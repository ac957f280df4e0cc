package hostroutes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/defaults"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Host is the host's side of the kernel.
type Host interface {
	// OnNetwork returns the link with an address in a network, with netstate.HostPrefix, and
	// the address.
	OnNetwork(ctx context.Context, network netip.Prefix) (link string, a netip.Addr, ok bool, err error)
	// Master returns the link that Need.Master is, with netstate.HostPrefix, and its addresses at
	// which other hosts reach this one; "" for none.
	Master(ctx context.Context, id string) (link string, addresses []netip.Prefix, err error)
	// Addresses returns the addresses of all links of the host.
	Addresses(ctx context.Context) ([]netstate.Addr, error)
	// Table returns what is ours in netstate.HostTable and netstate.PodTable, and ApplyTable
	// changes it.
	Table(ctx context.Context) ([]netstate.Route, []netstate.Rule, error)
	ApplyTable(ctx context.Context, changes []netstate.Change) error
}

// Leases are the leases of all nodes.
type Leases interface {
	// Follow sets the pools of which all leases are read, and calls changed when what other
	// nodes publish in them has changed.
	Follow(ctx context.Context, pools []string, changed func())
	// Of returns the leases of a pool; false while they are not known.
	Of(pool string) ([]*v1alpha1.AddressLease, bool)
	// Pools returns the pools.
	Pools() ([]v1alpha1.AddressPool, error)
}

// Nodes are the nodes of the cluster.
type Nodes interface {
	// Follow starts or ends reading them, and calls changed when what Node has of one has
	// changed.
	Follow(ctx context.Context, on bool, changed func())
	// All returns them; false while they are not known.
	All() ([]Node, bool)
}

// Options are the settings of a Keeper.
type Options struct {
	NodeName string
	Host     Host
	Leases   Leases
	// PodNetwork says whether the node's pods need routes to the pod CIDRs of other nodes, which
	// are those of Nodes. Default: they need none.
	PodNetwork func() PodNetwork
	Nodes      Nodes
	// Watch calls changed when links, addresses, routes or rules of the host may have changed,
	// and failed when it cannot do so any longer. They do not block.
	Watch func(changed, failed func()) (io.Closer, error)
	// Claims lists the claims of this node.
	Claims func() []claims.Entry
	// WokenBy: claims were added or removed, or PodNetwork returns something else.
	WokenBy []table.Source
	// Addresses is where the Keeper writes the addresses that the node publishes in its leases. New
	// makes it if it is nil.
	Addresses *Addresses
	Log       *slog.Logger
	// Resync is the interval of comparisons without any cause; default 30 s.
	Resync time.Duration
	Now    func() time.Time
}

const (
	// The pause after a pass is as long as share passes, from least to most: a host whose
	// routes change all the time must not keep the agent busy. A route that is deleted in the pause
	// has to be back within a second after that.
	share = 20
	least = 100 * time.Millisecond
	most  = 500 * time.Millisecond
	// retry is the interval of attempts after an error. It doubles with each, up to Resync.
	retry = time.Second
	// patience is how long a pod that starts waits for the routes at most, in one attempt.
	patience = 5 * time.Second
)

// Keeper keeps the routes of one node. It is safe for concurrent use.
type Keeper struct {
	Options
	wake table.Wake

	// Used by Run alone.
	read    map[*v1alpha1.AddressLease]publishedLease
	places  map[Need][]site // where they were found last
	watched io.Closer
	refused string // which routes to pod CIDRs are not set, as it is in the log
	told    time.Time

	unwatched atomic.Bool // the watch has failed

	mu    sync.Mutex
	state State
	ready map[Need]bool // those for which all that can be set is set
	done  chan struct{} // closed after the next pass
}

// State counts what there is, for metrics.
type State struct {
	Routes           int // in place
	Missing          int // wanted, and not in place after the last attempt
	Refused          int // pod CIDRs of other nodes without a route
	Created, Deleted int // since the start
}

// New returns a Keeper, which changes nothing until Run.
func New(o Options) *Keeper {
	o.Resync = cmp.Or(o.Resync, 30*time.Second)
	o.Addresses = cmp.Or(o.Addresses, &Addresses{})
	o.PodNetwork = defaults.Func(o.PodNetwork, func() PodNetwork { return PodNetwork{Known: true} })
	return &Keeper{
		Options: o, wake: table.Woken(o.WokenBy...), places: map[Need][]site{}, ready: map[Need]bool{},
		done: make(chan struct{}),
	}
}

// State returns the counts.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state
}

// Await waits until the host has the routes that the pod of a claim needs for a topology, as far
// as nodes have published them. An error of kind NotReady says that it has not.
func (k *Keeper) Await(ctx context.Context, c *claims.Topology) error {
	t, err := c.Decoded()
	if err != nil {
		return nil // reported by the caller that attaches it
	}
	needs := needsOf(t, c)
	if len(needs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		k.mu.Lock()
		missing := slices.IndexFunc(needs, func(n Need) bool { return !k.ready[n] })
		done := k.done
		k.mu.Unlock()
		if missing < 0 {
			return nil
		}
		k.wake.Now()
		if !loop.Wait(ctx, loop.Forever, done) {
			n := needs[missing]
			over := n.Network.String()
			if n.Master != "" {
				over = netstate.BaseName(n.Master)
			}
			return fault.New(fault.NotReady,
				fmt.Errorf("topology %q: the routes of the host to pods of other nodes over %q are not set yet: "+
					"the leases of AddressPool %q are not known, or the log of the agent says why", t.Name, over, n.Pool))
		}
	}
}

// Run keeps the routes until ctx ends, and then leaves them.
func (k *Keeper) Run(ctx context.Context) {
	defer k.unwatch()
	loop.Loop{
		Every: k.Resync, Retry: retry, Wake: k.wake,
		Rest: func(took time.Duration) time.Duration { return min(max(least, share*took), most) },
		Pass: func(ctx context.Context) (time.Duration, error) { return 0, k.pass(ctx) },
		Warn: func(err error) {
			k.Log.Warn("failed to update host routes to pods of other nodes", "error", excerpt.Of(err.Error(), maxLogged))
		},
		Doubt: 1, // the first passes do not know much
	}.Run(ctx)
}

// needs returns those of all claims of the node.
func (k *Keeper) needs() []Need {
	var out []Need
	entries := k.Claims()
	for i := range entries {
		for j := range entries[i].Topologies {
			t := &entries[i].Topologies[j]
			for _, generation := range t.Generations() {
				out = append(out, needsOf(generation, t)...)
			}
		}
	}
	return unique(out)
}

// find returns where a need is on this node; nothing, if it is not there.
func (k *Keeper) find(ctx context.Context, n Need) ([]site, error) {
	if n.Master == "" {
		link, address, ok, err := k.Host.OnNetwork(ctx, n.Network)
		if !ok || err != nil {
			return nil, err
		}
		return []site{{n.Pool, n.Interface, n.Network, place{link, address}}}, nil
	}
	link, addresses, err := k.Host.Master(ctx, n.Master)
	if err != nil {
		return nil, fmt.Errorf("master %q: %w", netstate.BaseName(n.Master), err)
	}
	var out []site
	for _, a := range addresses {
		out = append(out, site{n.Pool, n.Interface, a.Masked(), place{link, a.Addr()}})
	}
	// Which of its networks other nodes have in common with this one is not known.
	out = uniqueSites(out)
	return out[:min(len(out), maxNetworks)], nil
}

// locate finds where needs are on this node, and which pools are lost: they have a need that cannot be found, and never was.
func (k *Keeper) locate(ctx context.Context, needs []Need) (sites []site, lost map[string]bool, err error) {
	var errs []error
	places := map[Need][]site{}
	lost = map[string]bool{}
	for _, n := range needs {
		found, err := k.find(ctx, n)
		if err != nil {
			errs = append(errs, err)
			// As it was found last: an interface that was given a network of another one must not
			// cut off the pods that run, nor those on other networks.
			var before bool
			if found, before = k.places[n]; !before {
				lost[n.Pool] = true
				continue
			}
		}
		places[n] = found
		sites = append(sites, found...)
	}
	k.places = places
	return uniqueSites(sites), lost, errors.Join(errs...)
}

// pass compares once.
func (k *Keeper) pass(ctx context.Context) error {
	needs, network := k.needs(), k.PodNetwork()
	var errs []error
	needed := len(needs) > 0 || network.Used
	if k.unwatched.Swap(false) || !needed {
		k.unwatch()
	}
	if needed && k.watched == nil {
		w, err := k.Watch(k.wake.Now, func() { k.unwatched.Store(true); k.wake.Now() })
		if err != nil {
			errs = append(errs, fmt.Errorf("watch the host: %w", err))
		} else {
			k.watched = w
		}
	}
	names := make([]string, 0, len(needs))
	for _, n := range needs {
		names = append(names, n.Pool)
	}
	names = slices.Compact(names)
	k.Leases.Follow(ctx, names, k.wake.Now)
	pools, unknown := k.pools(names)
	sites, lost, err := k.locate(ctx, needs)
	errs = append(errs, err)
	k.publish(sites, lost)

	haveRoutes, haveRules, err := k.Host.Table(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	routes, rules, beyond := routesOf(k.NodeName, sites, pools)
	if beyond > 0 {
		errs = append(errs, fmt.Errorf("nodes have published %d routes more than the bounds of %d for each and %d in all: "+
			"a node that leases without end may be hostile", beyond, maxOfNode, maxRoutes))
	}
	toPods, err := k.toPods(ctx, network)
	errs = append(errs, err)
	// While something is not known, what is there may be needed.
	todo := changes(
		in(netstate.HostTable, haveRoutes), routes, leadingTo(netstate.HostTable, haveRules), rules, unknown == nil && len(lost) == 0)
	todo = append(todo, changes(
		in(netstate.PodTable, haveRoutes), toPods.routes, leadingTo(netstate.PodTable, haveRules), toPods.rules, toPods.known)...)
	failed := error(nil)
	if len(todo) > 0 {
		if failed = k.Host.ApplyTable(ctx, todo); failed != nil {
			errs = append(errs, failed)
		}
		if haveRoutes, haveRules, err = k.Host.Table(ctx); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	left, _ := differ(haveRoutes, slices.Concat(routes, toPods.routes))
	leftRules, _ := differ(haveRules, rules)
	leftOfPods, _ := differ(haveRules, toPods.rules)
	if missing := slices.Concat(leftRules, leftOfPods, left); failed == nil && len(missing) > 0 {
		errs = append(errs, fault.New(fault.Conflict,
			fmt.Errorf("%s and %d more are not set: an equal route with a protocol other than %d exists, or is set repeatedly; delete it",
				missing[0].Object().Key(), len(missing)-1, netstate.RouteProtocol)))
	}
	k.note(result{
		needs, pools, len(haveRoutes), len(left) + len(leftOfPods) + beyond, len(leftRules), toPods.refused, todo,
		failed,
	})
	return errors.Join(append(errs, unknown)...)
}

// result is the result of a pass.
type result struct {
	needs                   []Need
	pools                   map[string]pool
	routes, left, leftRules int // in place, and missing
	refused                 int
	done                    []netstate.Change
	failed                  error
}

// note records the result of a pass, and tells who waits for it. A route that cannot be set keeps
// no pod from starting: another node may have published a next hop that the kernel refuses.
// Neither does a network that the host does not have, of which the plan says more.
func (k *Keeper) note(r result) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.Routes, k.state.Missing, k.state.Refused = r.routes, r.left+r.leftRules, r.refused
	if r.failed == nil {
		for _, c := range r.done {
			if c.Action() == netstate.Create {
				k.state.Created++
			} else {
				k.state.Deleted++
			}
		}
	}
	k.ready = map[Need]bool{}
	for _, n := range r.needs {
		_, known := r.pools[n.Pool]
		k.ready[n] = len(k.places[n]) == 0 || known && r.leftRules == 0
	}
	close(k.done)
	k.done = make(chan struct{})
}

// podRoutes are the routes and rules to the pod CIDRs of other nodes.
type podRoutes struct {
	routes  []netstate.Route
	rules   []netstate.Rule
	refused int
	known   bool // no others are needed
}

// toPods returns what the node's own pods need.
func (k *Keeper) toPods(ctx context.Context, network PodNetwork) (podRoutes, error) {
	if k.Nodes != nil {
		k.Nodes.Follow(ctx, network.Used, k.wake.Now)
	}
	if !network.Used {
		k.tell(nil)
		return podRoutes{known: network.Known}, nil
	}
	nodes, known := k.Nodes.All()
	if !known {
		return podRoutes{}, errors.New("the nodes of the cluster are not known yet")
	}
	addresses, err := k.Host.Addresses(ctx)
	if err != nil {
		return podRoutes{}, err
	}
	var out podRoutes
	var refused []refusal
	if out.routes, out.rules, refused, out.known = podRoutesOf(k.NodeName, nodes, attachedTo(addresses), network.ClusterCIDRs); !out.known {
		return podRoutes{},
			fmt.Errorf("the API server has no node %q, so that no route to the pods of other nodes is set or deleted", k.NodeName)
	}
	out.refused = len(refused)
	k.tell(refused)
	return out, nil
}

// tell logs which routes are refused, not more often than Resync: others decide what it says.
func (k *Keeper) tell(refused []refusal) {
	text := textOf(refused)
	now := k.Now()
	if text == k.refused || text != "" && now.Sub(k.told) < k.Resync {
		return
	}
	if k.refused = text; text != "" {
		k.told = now
		k.Log.Warn("some nodes have no routes to their pods", "count", len(refused), "reasons", excerpt.Of(text, maxLogged))
	}
}

func in(table uint32, routes []netstate.Route) []netstate.Route {
	return slices.DeleteFunc(slices.Clone(routes), func(r netstate.Route) bool { return r.Table != table })
}

func leadingTo(table uint32, rules []netstate.Rule) []netstate.Rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r netstate.Rule) bool { return r.Table != table })
}

// pools returns those that are known, and an error about the others.
func (k *Keeper) pools(names []string) (map[string]pool, error) {
	out := map[string]pool{}
	if len(names) == 0 {
		return out, nil
	}
	objects, err := k.Leases.Pools()
	if err != nil {
		return out, err
	}
	var errs []error
	now := map[*v1alpha1.AddressLease]publishedLease{}
	for _, name := range names {
		i := slices.IndexFunc(objects, func(o v1alpha1.AddressPool) bool { return o.Name == name })
		leases, known := k.Leases.Of(name)
		if i < 0 || !known {
			errs = append(errs, fmt.Errorf("AddressPool %q and its leases are not known yet", name))
			continue
		}
		layout, err := addresspool.Of(&objects[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p := pool{layout: layout}
		for _, l := range leases {
			one, ok := k.read[l]
			if !ok {
				one, ok = read(l)
			}
			if ok && l.Spec.Pool == name {
				now[l] = one
				p.leases = append(p.leases, one)
			}
		}
		// In one order, since the error of a pass is reported if the next one has it too.
		slices.SortFunc(p.leases, func(a, b publishedLease) int { return cmp.Compare(a.name, b.name) })
		out[name] = p
	}
	k.read = now
	return out, errors.Join(errs...)
}

// publish sets what HostAddresses returns, but for pools with a need of which it was never known
// where it is: another agent may have published that.
func (k *Keeper) publish(sites []site, unsure map[string]bool) {
	now := map[string][]v1alpha1.HostAddress{}
	for _, s := range sites {
		of := now[s.pool]
		h := v1alpha1.HostAddress{Interface: int32(s.iface), Network: s.network.String(), Address: s.address.String()}
		// Two links in one network: one address for both would mislead what is sent to the other.
		again := len(of) > 0 && of[len(of)-1].Interface == h.Interface && of[len(of)-1].Network == h.Network
		if !again && len(of) < maxPublished {
			now[s.pool] = append(of, h)
		}
	}
	before, passed := k.Addresses.Get()
	if !passed || !maps.Equal(before.unsure, unsure) || !maps.EqualFunc(before.own, now, slices.Equal[[]v1alpha1.HostAddress]) {
		k.Addresses.Set(found{now, unsure})
	}
}

const (
	// maxPublished is how many addresses a lease can have.
	maxPublished = 32
	// maxNetworks is how many networks of one master are published.
	maxNetworks = 8
	// maxLogged is the length of an error in the log.
	maxLogged = 2048
)

func (k *Keeper) unwatch() {
	if k.watched != nil {
		_ = k.watched.Close()
		k.watched = nil
	}
}
