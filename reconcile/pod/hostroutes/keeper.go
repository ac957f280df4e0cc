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

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Host is the host's side of the kernel.
type Host interface {
	// OnNetwork returns the link with an address in a network, with netstate.HostPrefix, and
	// the address.
	OnNetwork(ctx context.Context, network netip.Prefix) (link string, a netip.Addr, ok bool, err error)
	// Table returns what is ours in netstate.HostTable, and ApplyTable changes it.
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

// Options are the settings of a Keeper.
type Options struct {
	NodeName string
	Host     Host
	Leases   Leases
	// Watch calls changed when links, addresses, routes or rules of the host may have changed,
	// and failed when it cannot do so any longer. They do not block.
	Watch func(changed, failed func()) (io.Closer, error)
	// Claims lists the claims of this node.
	Claims func() []claims.Entry
	// Published is called when HostAddresses returns something else than before.
	Published func()
	Log       *slog.Logger
	// Resync is the interval of comparisons without any cause; default 30 s.
	Resync time.Duration
	Now    func() time.Time
}

const (
	// The pause after a pass is as long as share passes, from least to most: a host whose
	// routes change all the time must not keep the agent busy.
	share = 20
	least = 100 * time.Millisecond
	most  = time.Second
	// retry is the interval of attempts after an error.
	retry = time.Second
	// patience is how long a pod that starts waits for the routes at most, in one attempt.
	patience = 5 * time.Second
)

// Keeper keeps the routes of one node. It is safe for concurrent use.
type Keeper struct {
	Options
	wake chan struct{}

	// Used by Run alone.
	decoded map[types.UID]decoded // by UID of a topology
	watched io.Closer
	failing string // the last error
	warned  bool   // it is in the log

	unwatched atomic.Bool // the watch has failed

	mu     sync.Mutex
	state  State
	ready  map[Need]bool // those for which all that can be set is set
	own    map[string][]v1alpha1.HostAddress
	passed bool
	done   chan struct{} // closed after the next pass
}

// decoded are the needs of one generation of a topology.
type decoded struct {
	generation int64
	needs      []Need
}

// State counts what there is, for metrics.
type State struct {
	Routes           int // in place
	Missing          int // wanted, and not in place after the last attempt
	Created, Deleted int // since the start
}

// New returns a Keeper, which changes nothing until Run.
func New(o Options) *Keeper {
	o.Resync = cmp.Or(o.Resync, 30*time.Second)
	return &Keeper{
		Options: o, wake: make(chan struct{}, 1), decoded: map[types.UID]decoded{}, ready: map[Need]bool{},
		own: map[string][]v1alpha1.HostAddress{}, done: make(chan struct{}),
	}
}

// Changed is called when claims were added or removed, or pools changed.
func (k *Keeper) Changed() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// State returns the counts.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state
}

// HostAddresses returns what the node publishes in its leases of a pool; false while that is
// not known.
func (k *Keeper) HostAddresses(pool string) ([]v1alpha1.HostAddress, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.own[pool], k.passed
}

// Await waits until the host has the routes that pods with a topology need, as far as nodes
// have published them. An error of kind NotReady says that it has not.
func (k *Keeper) Await(ctx context.Context, o *v1alpha1.NetworkTopology) error {
	t, err := topology.FromObject(o)
	if err != nil {
		return nil // reported by the caller that attaches it
	}
	needs := Needs(t)
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
		k.Changed()
		select {
		case <-done:
		case <-ctx.Done():
			n := needs[missing]
			return fault.New(fault.NotReady, fmt.Errorf("topology %q: the routes of the host to pods of other nodes over %q are not set yet: the leases of AddressPool %q are not known, or the log of the agent says why", t.Name, n.Network, n.Pool))
		}
	}
}

// Run keeps the routes until ctx ends, and then leaves them.
func (k *Keeper) Run(ctx context.Context) {
	defer k.unwatch()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		began := k.Now()
		err := k.pass(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			k.failing = ""
		case err.Error() != k.failing: // the first passes do not know much
			k.failing, k.warned = err.Error(), false
		case !k.warned:
			k.warned = true
			k.Log.Warn("routes of the host to pods of other nodes", "error", err)
		}
		pause := time.NewTimer(min(max(least, share*k.Now().Sub(began)), most))
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		if timer.Reset(k.Resync); err != nil {
			timer.Reset(retry)
		}
	}
}

// needs returns those of all claims of the node.
func (k *Keeper) needs() []Need {
	var out []Need
	now := map[types.UID]decoded{}
	add := func(o *v1alpha1.NetworkTopology) {
		d, ok := now[o.UID]
		if !ok || d.generation != o.Generation {
			if d, ok = k.decoded[o.UID]; !ok || d.generation != o.Generation {
				d = decoded{generation: o.Generation}
				if t, err := topology.FromObject(o); err == nil {
					d.needs = Needs(t)
				}
			}
			now[o.UID] = d
		}
		out = append(out, d.needs...)
	}
	entries := k.Claims()
	for i := range entries {
		for j := range entries[i].Topologies {
			t := &entries[i].Topologies[j]
			add(&t.Object)
			if t.Next != nil {
				add(t.Next)
			}
		}
	}
	k.decoded = now
	return unique(out)
}

// pass compares once.
func (k *Keeper) pass(ctx context.Context) error {
	needs := k.needs()
	var errs []error
	if k.unwatched.Swap(false) || len(needs) == 0 {
		k.unwatch()
	}
	if len(needs) > 0 && k.watched == nil {
		w, err := k.Watch(k.Changed, func() { k.unwatched.Store(true); k.Changed() })
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
	k.Leases.Follow(ctx, names, k.Changed)
	pools, unknown := k.pools(names)
	places := map[netip.Prefix]place{}
	for _, n := range needs {
		if _, ok := places[n.Network]; ok {
			continue
		}
		link, address, ok, err := k.Host.OnNetwork(ctx, n.Network)
		if err != nil {
			errs = append(errs, err)
		} else if ok {
			places[n.Network] = place{link, address}
		}
	}
	k.publish(needs, places, len(errs) == 0)

	haveRoutes, haveRules, err := k.Host.Table(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	routes, rules := routesOf(k.NodeName, needs, places, pools)
	// While something is not known, what is there may be needed.
	todo := changes(haveRoutes, routes, haveRules, rules, unknown == nil && len(errs) == 0)
	failed := error(nil)
	if len(todo) > 0 {
		if failed = k.Host.ApplyTable(ctx, todo); failed != nil {
			errs = append(errs, failed)
		}
		if haveRoutes, haveRules, err = k.Host.Table(ctx); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	left, _ := differ(haveRoutes, routes)
	leftRules, _ := differ(haveRules, rules)
	k.note(result{needs, places, pools, len(haveRoutes), len(left), len(leftRules), todo, failed})
	return errors.Join(append(errs, unknown)...)
}

// result is what a pass has found and done.
type result struct {
	needs                   []Need
	places                  map[netip.Prefix]place
	pools                   map[string]pool
	routes, left, leftRules int // in place, and missing
	done                    []netstate.Change
	failed                  error
}

// note records the result of a pass, and tells who waits for it. A route that cannot be set keeps
// no pod from starting: another node may have published a next hop that the kernel refuses.
// Neither does a network that the host does not have, of which the plan says more.
func (k *Keeper) note(r result) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.Routes, k.state.Missing = r.routes, r.left+r.leftRules
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
		_, here := r.places[n.Network]
		_, known := r.pools[n.Pool]
		k.ready[n] = !here || known && r.leftRules == 0
	}
	close(k.done)
	k.done = make(chan struct{})
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
		out[name] = pool{layout, leases}
	}
	return out, errors.Join(errs...)
}

// publish sets what HostAddresses returns. Of a network that could not be read, what was
// published before stays.
func (k *Keeper) publish(needs []Need, places map[netip.Prefix]place, complete bool) {
	now := map[string][]v1alpha1.HostAddress{}
	for _, n := range needs {
		if at, ok := places[n.Network]; ok && len(now[n.Pool]) < maxPublished {
			now[n.Pool] = append(now[n.Pool], v1alpha1.HostAddress{Interface: int32(n.Interface), Network: n.Network.String(), Address: at.address.String()})
		}
	}
	k.mu.Lock()
	changed := complete && (!k.passed || !maps.EqualFunc(k.own, now, slices.Equal[[]v1alpha1.HostAddress]))
	if changed {
		k.own, k.passed = now, true
	}
	k.mu.Unlock()
	if changed && k.Published != nil {
		k.Published()
	}
}

// maxPublished is how many addresses a lease can have.
const maxPublished = 32

func (k *Keeper) unwatch() {
	if k.watched != nil {
		_ = k.watched.Close()
		k.watched = nil
	}
}
