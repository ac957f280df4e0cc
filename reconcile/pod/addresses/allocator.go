package addresses

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/defaults"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/recordfile"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Options configures an Allocator.
type Options struct {
	Leases   Leases
	NodeName string
	// File is where the node's holdings are kept.
	File string
	// Recorded returns the addresses in the records of claims, from which a damaged file is
	// rebuilt.
	Recorded func() []addresspool.Grant
	// Ended reports whether a claim has neither a record nor an object any more. An error is
	// no answer.
	Ended func(ctx context.Context, g addresspool.Grant) (bool, error)
	// HostAddresses returns what the node publishes in its leases of a pool, as AddressLease says;
	// false while that is not known. Nil publishes nothing. HostChanged changes with it.
	HostAddresses func(pool string) ([]v1alpha1.HostAddress, bool)
	HostChanged   table.Source
	Log           *slog.Logger
	Now           func() time.Time
	// Random returns a number below another one; default rand.N.
	Random func(below uint64) uint64
	// Sync makes a file durable; default (*os.File).Sync.
	Sync func(*os.File) error
}

// random returns a duration below another one.
func (o *Options) random(below time.Duration) time.Duration {
	return time.Duration(o.Random(uint64(below)))
}

// Allocator gives addresses of pools to claims.
type Allocator struct {
	Options
	file ledger
	wake table.Wake

	// Used by Pass alone:
	reportAt  time.Time             // when it writes next how many addresses are used
	published time.Time             // when it last wrote addresses of the host
	behind    bool                  // they are to be written soon
	shared    map[netip.Addr]string // literal addresses that several pods have, and with whom

	mu      sync.Mutex
	passed  chan struct{} // closed at the end of the next pass
	pools   map[string]*pool
	full    map[lack]*fullness  // pools of which all blocks were leased
	waits   map[string]*waiting // claims that were refused, by key
	checked map[string]*known   // blocks whose lease was read since the start
	counts  []Count
	seeks   map[string]*seek      // by identity
	asking  map[types.UID]asking  // claims that wait for literal addresses
	holders map[netip.Addr]holder // of literal addresses that others wait for
}

// pool is the state of a pool.
type pool struct {
	of         *v1alpha1.AddressPool // of which layout was read; nil of one that is no object
	layout     *addresspool.Layout
	err        error
	quarantine int64
	reclaim    int64
	ending     bool // it is being deleted, or not protected from that yet
	low        bool // few blocks are left in the cluster, or were a moment ago
	wasLow     time.Time
	nodes      int32
	ample      bool // leases ahead of need leave enough for others
}

// known is a lease that the API server had, by a read or a write.
type known struct {
	uid   string
	at    time.Time // of that
	heard bool      // the watch has told of it since
}

func (l *known) is(uid string) bool { return l != nil && uid != "" && l.uid == uid }

// Want is a step that needs addresses.
type Want struct {
	Topology, Step, Pool string
	Interface            int
	// Local is the pool itself where it is one of this node, which no object describes.
	Local *addresspool.Layout
	// Division has the step's demands on its pool, nil for none (topology.Division).
	Division *topology.IPAM
	// Network is the physical network that Pool is of, "" where the step names the pool.
	Network string
}

// Claim is a ResourceClaim.
type Claim struct {
	UID             types.UID
	Namespace, Name string
	// Pod is the name of the claim's pod, and Literals the addresses that no other pod may
	// have at the same time. PodUID distinguishes it from the next pod of its name.
	Pod      string
	PodUID   types.UID
	Literals []Literal
	// Gateways are those of the routes of its topologies: no interface of the pod is given one of them, since the pod could not
	// use the route.
	Gateways []netip.Addr
	// InPod is the name of the claim in its pod, which is that of the next pod's, too.
	InPod string
	// New says that nothing of the claim is recorded, so that what it was given before is on no link: it is given back where
	// its steps want another pool by now.
	New bool
}

// Open reads the file of a node. A damaged one is set aside, and what claims have is taken
// from their records.
func Open(o Options) (*Allocator, error) {
	o.Sync = defaults.Func(o.Sync, (*os.File).Sync)
	o.Random = defaults.Func(o.Random, rand.N[uint64])
	a := &Allocator{
		Options: o, file: ledger{o.File, o.Sync}, wake: table.Woken(o.HostChanged, o.Leases), passed: make(chan struct{}),
		pools: map[string]*pool{}, full: map[lack]*fullness{}, waits: map[string]*waiting{}, checked: map[string]*known{},
		asking: map[types.UID]asking{}, seeks: map[string]*seek{},
	}
	_, err := a.file.read()
	if frame.IsDamage(err) {
		name, aside := recordfile.SetAside(o.File)
		if aside != nil {
			return nil, errors.Join(err, aside)
		}
		o.Log.Error("set aside damaged address records: the addresses of claims are read from the claims' records", "file", name,
			"error", err)
	} else if frame.AsOtherVersion(err) != nil {
		o.Log.Error("cannot use the address records: no pod gets addresses of pools", "error", err)
		return a, nil // the file stays unchanged; only claims with pools are affected
	} else if err != nil {
		return nil, err
	}
	return a, a.file.change(func(h *addresspool.Holdings) (changed bool, err error) {
		for _, g := range o.Recorded() {
			if !slices.ContainsFunc(h.Grants, func(have addresspool.Grant) bool { return have.Owner == g.Owner }) {
				h.Grants = append(h.Grants, g)
				changed = true
			}
		}
		return changed, nil
	})
}

// Take allocates each step one address of each family of its pool, and the same when it is
// called again, with the gateways and routes that the pool has now. An error of kind
// NotReady may pass: a lease is being looked for.
func (a *Allocator) Take(claim Claim, wants []Want) (map[Want]ops.Given, error) {
	var o offer
	now := a.Now()
	defer a.wake.Now()
	err := a.file.change(func(h *addresspool.Holdings) (changed bool, err error) {
		again := claim.New && otherPool(h, &claim, wants) && h.Discard(string(claim.UID))
		if o, changed, err = a.takeAll(h, &claim, wants, now); err != nil {
			return again, nil // o has the error; what was given back must not keep the next pass from leasing
		}
		changed = changed || again
		for i := range h.Grants { // a claim can outlive its pod
			if g := &h.Grants[i]; g.Claim == string(claim.UID) && g.PodUID != string(claim.PodUID) {
				g.PodUID, changed = string(claim.PodUID), true
			}
		}
		literals, err := a.takeLiterals(h, &claim, now)
		return changed || literals, err
	})
	if err = cmp.Or(err, o.err); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waits, claim.key())
	for identity := range o.seeks {
		delete(a.seeks, identity)
	}
	return o.given, nil
}

// otherPool reports whether a claim has addresses of another pool than a step wants.
func otherPool(h *addresspool.Holdings, claim *Claim, wants []Want) bool {
	return slices.ContainsFunc(wants, func(w Want) bool {
		owner := addresspool.Owner{Claim: string(claim.UID), Topology: w.Topology, Step: w.Step}
		return slices.ContainsFunc(h.Grants, func(g addresspool.Grant) bool { return g.Owner == owner && g.Pool != w.Pool })
	})
}

// takeAll gives a claim what its steps want, all of it or nothing.
func (a *Allocator) takeAll(h *addresspool.Holdings, claim *Claim, wants []Want, now time.Time) (o offer, changed bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	usable := a.usable(h)
	a.reserve(usable, claim.key(), now, a.isFull(now))
	if o = a.offer(usable, claim, wants, now); o.err != nil {
		a.wait(*claim, wants, o, now)
		return o, false, o.err
	}
	for _, g := range usable.Grants {
		if g.Claim == string(claim.UID) && !h.Has(g.Owner) {
			g.Of, g.PodUID = claim.Namespace+"/"+claim.Name, string(claim.PodUID)
			h.Give(g)
			changed = true
		}
	}
	return o, changed, nil
}

// take takes of h what a step of a claim gets, and adds to o what is missing otherwise. The caller holds a.mu.
func (a *Allocator) take(h *addresspool.Holdings, claim *Claim, w Want, now time.Time, o *offer) (given ops.Given, err error) {
	p := a.pools[w.Pool]
	switch {
	case w.Local != nil:
		p = &pool{layout: w.Local}
	case p == nil:
		o.stuck = true
		return given, noPool(w)
	case p.err != nil:
		return given, fault.New(fault.Invalid, p.err)
	}
	owner := addresspool.Owner{Claim: string(claim.UID), Topology: w.Topology, Step: w.Step}
	if w.Division != nil && !h.Has(owner) { // what it excludes can be changed, and whoever has an address keeps it
		if err := p.layout.Agrees(*w.Division); err != nil {
			o.stuck = true
			return given, fault.New(fault.NotReady, err)
		}
	}
	keeping := addresspool.Keeping{}
	if p.reclaim > 0 {
		keeping = addresspool.Keeping{For: identity(claim, w), Keep: p.reclaim}
		if !p.ending && !h.Has(owner) {
			if err := a.keptElsewhere(h, claim, w.Pool, keeping.For, p.layout.Single(), o); err != nil {
				return given, err
			}
		}
	}
	got, err := h.TakeKept(p.layout.Without(claim.Gateways), owner, w.Interface, now.Unix(), keeping)
	if short, ok := errors.AsType[*addresspool.Short](err); ok {
		return given, fault.New(fault.NotReady, a.tooFew(h, p, w, short, o))
	}
	switch {
	case errors.Is(err, addresspool.ErrLost):
		return given, fault.New(fault.Conflict, fmt.Errorf("%w: delete the pod, another one gets another address", err))
	case err != nil:
		return given, fault.New(fault.Invalid, err)
	}
	return ops.Allocated(p.layout, got), nil
}

// OfSubnets reports whether the pool is that of the subnets of a network.
func (w *Want) OfSubnets() bool { return w.Division != nil && len(w.Division.Subnets) > 0 }

// noPool is the error where the pool of a step does not exist.
func noPool(w Want) error {
	if w.OfSubnets() {
		return fault.New(fault.NotReady, fmt.Errorf(
			"%s %q does not exist yet, and the controller creates it from the subnets: see the condition Programmed of NetworkTopology %q",
			v1alpha1.AddressPoolKind, w.Pool, w.Topology))
	}
	if w.Network != "" {
		return fault.New(fault.NotReady, fmt.Errorf(
			"there is no %s %q, which a DeviceExposurePolicy names for physical network %q: create it, or name another in the policy",
			v1alpha1.AddressPoolKind, w.Pool, w.Network))
	}
	return fault.New(fault.NotReady,
		fmt.Errorf("there is no %s %q: create it, or name another in ipam.pool", v1alpha1.AddressPoolKind, w.Pool))
}

// Wants returns what the steps of a topology want of pools, in their order. Pool is empty where the device decides (topology.OfNetwork).
func Wants(t *topology.Topology) (out []Want, err error) {
	for i := range t.Steps {
		s := &t.Steps[i]
		pool, iface, ok := topology.FromPool(s)
		if !ok {
			continue
		}
		w := Want{Topology: t.Name, Step: s.Name, Pool: pool, Interface: iface}
		if local, ok := topology.LocalIPAM(s); ok {
			if w.Local, err = addresspool.Local(local); err != nil {
				return nil, fault.New(fault.Invalid, fmt.Errorf("step %q: ipam.%w", s.Name, err))
			}
		}
		if division, ok := topology.Division(s); ok {
			w.Division = &division
		}
		out = append(out, w)
	}
	return out, nil
}

// Grants returns what has been given to claims, and to pods for their own network.
func (a *Allocator) Grants() ([]addresspool.Grant, error) {
	h, err := a.file.holdings()
	if err != nil {
		return nil, err
	}
	return h.Grants, nil
}

// Unused returns a function that reports whether an address is in a pool or in the networks, and this node has given
// it to no pod.
func (a *Allocator) Unused(networks []netip.Prefix) (func(netip.Addr) bool, error) {
	grants, err := a.Grants()
	if err != nil {
		return nil, err
	}
	given := map[netip.Addr]bool{}
	for _, g := range grants {
		for _, p := range g.Addresses {
			given[p.Addr()] = true
		}
	}
	return func(address netip.Addr) bool {
		if given[address] {
			return false
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(address) }) || a.allocating(address, "") != ""
	}, nil
}

// Lost returns an error if a claim has an address that another node may hold now.
func (a *Allocator) Lost(claim types.UID) error {
	h, err := a.file.holdings()
	if err != nil {
		return err
	}
	if lost := h.Lost(string(claim)); lost != nil {
		return fault.New(fault.Conflict, fmt.Errorf("%w: delete the pod, another one gets another address", lost))
	}
	return nil
}

// GiveBack releases the addresses of a claim that has ended: no sandbox uses them.
func (a *Allocator) GiveBack(claim types.UID) error { return a.giveBack(claim, a.quarantine) }

// Cancel is GiveBack of addresses that were on no link: nobody remembers them, so that they do not rest.
func (a *Allocator) Cancel(claim types.UID) error {
	return a.giveBack(claim, func(string) int64 { return 0 })
}

func (a *Allocator) giveBack(claim types.UID, rest func(pool string) int64) error {
	defer a.wake.Now()
	now := a.Now().Unix()
	err := a.file.change(func(h *addresspool.Holdings) (bool, error) {
		return h.GiveBack(string(claim), now, rest), nil
	})
	if frame.AsOtherVersion(err) != nil || frame.IsDamage(err) {
		// The claim has no record any more: who can read the file, or makes a new one,
		// finds that it has ended.
		a.Log.Warn("failed to return addresses; retrying", "claim", claim, "error", err)
		return nil
	}
	return err
}

// quarantine of a pool that is not known is the default.
func (a *Allocator) quarantine(name string) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.pools[name]; p != nil {
		return p.quarantine
	}
	return addresspool.Quarantine(&v1alpha1.AddressPool{})
}

// maxQuarantine returns the longest quarantine of a pool's addresses in seconds, or their retention for a name if that is longer
// and kept is set. For a deleted pool it is the longest that any pool may have.
func (a *Allocator) maxQuarantine(name string, kept bool) int64 {
	a.mu.Lock()
	p := a.pools[name]
	a.mu.Unlock()
	switch {
	case p != nil && kept:
		return max(p.quarantine, p.reclaim)
	case p == nil && name != topology.LocalPool:
		return addresspool.MaxQuarantine
	}
	return a.quarantine(name)
}
