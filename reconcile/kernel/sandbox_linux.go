package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// Sandbox is the view of one sandbox and of the host objects it uses. It implements
// reconcile.Domain. One goroutine uses it at a time.
type Sandbox struct {
	host    *Host
	inside  *conn // nil if the namespace no longer exists
	outside *conn
	count   counters

	mu sync.Mutex
	// indexes holds interface indexes by name, as last observed. A plan is about the
	// links of its snapshot, so they stay valid for it; if one is out of date, the
	// kernel returns ENODEV and it is queried again.
	indexes map[string]int
	nsids   map[*conn]int32 // how the other side is numbered in a namespace
	// uppers are the links found on devices of the host, by index; see uppersOf.
	uppers map[int]map[string]string
	// restored are the settings of devices of the host as they were read after they had
	// been restored, by their index: nothing was done to the device since. The observation
	// that follows need not read them again, which is most of what it costs.
	restored map[int]map[string]string
	// left are the links on which a clsact was left because others have filters on it: it
	// is not ours any more.
	left  map[string]bool
	cache observationCache
}

// observationCache holds the last observation's reads outside the sandbox's own objects.
// The changes planned from it need no further queries: an index that no longer exists
// is ENODEV, and any other change since makes an operation fail or is found by the next
// observation, as if it had been made a moment later.
type observationCache struct {
	links       []ifLink // all of the sandbox, unless they are partial
	partial     bool
	devices     map[string]place      // where devices were
	vfs         map[string]functionOf // what their physical functions held
	names       map[string]bool       // names and alternative names in the sandbox; nil: not read
	free        map[string]bool       // names that no link had on the host
	vfAddresses map[string]vfAddress  // of virtual functions, as sysfs has them
	madeRDMA    map[string]string     // RDMA devices of the host by link of the sandbox, see softRDMAOwner
	// routes are read when one of others is to be created, and not valid after any other change.
	routes map[keptIn]map[netstate.Key]bool
}

// functionOf is a physical function and what it holds for a virtual one.
type functionOf struct {
	place
	vf netstate.VF
}

// vfAddress is a virtual function's physical function and its number there; pf is ""
// for a device that is no virtual function.
type vfAddress struct {
	pf    string
	index int
}

var _ reconcile.Batcher = (*Sandbox)(nil)

// NetnsID identifies the namespace that is open; zero if it no longer exists.
func (s *Sandbox) NetnsID() reconcile.NetnsID {
	if s.inside == nil {
		return reconcile.NetnsID{}
	}
	return s.inside.id
}

// Close closes the view, which keeps no namespace alive afterwards.
func (s *Sandbox) Close() error {
	if s.inside == nil {
		return nil
	}
	return s.inside.close()
}

// Counters returns the counts of requests to the kernel so far: dumps, single queries,
// and writes of messages or files. A pass that has nothing to do adds dumps and queries
// only.
func (s *Sandbox) Counters() (dumps, gets, writes uint64) {
	return s.count.dumps.Load(), s.count.gets.Load(), s.count.writes.Load()
}

var errGone = fault.New(fault.Gone, errors.New("the network namespace is gone"))

// at returns the namespace of a link and its name there.
func (s *Sandbox) at(name string) (*conn, string, error) {
	if netstate.OnHost(name) {
		return s.outside, netstate.BaseName(name), nil
	}
	if s.inside == nil {
		return nil, "", errGone
	}
	return s.inside, name, nil
}

// other returns the namespace opposite to c, nil if it no longer exists.
func (s *Sandbox) other(c *conn) *conn {
	if c == s.outside {
		return s.inside
	}
	return s.outside
}

// index returns the interface index of a link.
func (s *Sandbox) index(ctx context.Context, name string) (int, error) {
	s.mu.Lock()
	i, ok := s.indexes[name]
	s.mu.Unlock()
	if ok {
		return i, nil
	}
	c, base, err := s.at(name)
	if err != nil {
		return 0, err
	}
	w, err := c.linkByName(ctx, base)
	if errors.Is(err, unix.ENODEV) {
		return 0, noLink(name)
	}
	if err != nil {
		return 0, err
	}
	s.remember(name, w.link.Index)
	return w.link.Index, nil
}

// invalidate drops the cached devices of a namespace in which a link is about to
// change: that may change other links, as deleting a bond changes its ports.
func (s *Sandbox) invalidate(c *conn) {
	s.withCache(func(g *observationCache) {
		for id, p := range g.devices {
			if p.c == c {
				delete(g.devices, id)
			}
		}
	})
}

// withCache lets f read or change the cache of the last observation.
func (s *Sandbox) withCache(f func(*observationCache)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.cache)
}

func newCache() observationCache {
	return observationCache{
		devices: map[string]place{}, vfs: map[string]functionOf{},
		free: map[string]bool{}, vfAddresses: map[string]vfAddress{}, madeRDMA: map[string]string{},
		routes: map[keptIn]map[netstate.Key]bool{},
	}
}

func (s *Sandbox) remember(name string, index int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.indexes[name] = index
}

// forget drops the indexes of names, and reports whether there were any.
func (s *Sandbox) forget(names ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	some := false
	for _, n := range names {
		if _, ok := s.indexes[n]; ok {
			delete(s.indexes, n)
			some = true
		}
	}
	return some
}

// retryStale runs f, and once more if it failed because a cached index is out of date.
func (s *Sandbox) retryStale(f func() error, names ...string) error {
	err := f()
	if errors.Is(err, unix.ENODEV) && s.forget(names...) {
		err = f()
	}
	return err
}

// locateLink returns the namespace and the index of a link.
func (s *Sandbox) locateLink(ctx context.Context, name string) (*conn, int, error) {
	c, _, err := s.at(name)
	if err != nil {
		return nil, 0, err
	}
	index, err := s.index(ctx, name)
	return c, index, err
}

// existingLink is locateLink for a query: the namespace is nil if it, or the link in it, is gone.
func (s *Sandbox) existingLink(ctx context.Context, name string) (*conn, int, error) {
	c, index, err := s.locateLink(ctx, name)
	if errors.Is(err, errGone) || errors.Is(err, unix.ENODEV) {
		return nil, 0, nil
	}
	return c, index, err
}

// onLink calls f with the namespace and the index of a link.
func (s *Sandbox) onLink(ctx context.Context, link string, f func(c *conn, index int) error) error {
	return s.retryStale(func() error {
		c, index, err := s.locateLink(ctx, link)
		if err != nil {
			return err
		}
		return f(c, index)
	}, link)
}

// unlessGone returns the error of a deletion, unless it is one of those by which the kernel
// says that there is no such object, or the network namespace is gone.
func unlessGone(err error, absent ...error) error {
	if errors.Is(err, errGone) || isAny(err, absent...) {
		return nil
	}
	return err
}

func isAny(err error, of ...error) bool {
	return slices.ContainsFunc(of, func(target error) bool { return errors.Is(err, target) })
}

// Apply makes one change. On an error the object is as it was, or the error says that
// it is not.
func (s *Sandbox) Apply(ctx context.Context, c netstate.Change) error {
	if c.Before == nil && c.After == nil {
		return invalid("a change without an object")
	}
	if c.Implied {
		return nil
	}
	for i, part := range c.Parts() {
		if err := failed(c, s.apply(ctx, part)); err != nil && i > 0 {
			return fmt.Errorf("it was deleted, and cannot be created: %w", err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// ApplyAll makes changes of ports of the host at once: all of them, or none.
func (s *Sandbox) ApplyAll(ctx context.Context, changes []netstate.Change) error {
	c, err := s.applyPortMappings(ctx, changes)
	return failed(c, err)
}

func (s *Sandbox) apply(ctx context.Context, c netstate.Change) error {
	if !c.Foreign || c.Key().Kind != netstate.KindRoute {
		s.withCache(func(g *observationCache) { clear(g.routes) })
	}
	for _, codec := range codecs {
		if codec.kind == c.Key().Kind {
			return codec.apply(s, ctx, c)
		}
	}
	return fmt.Errorf("no codec for %q", c.Key().Kind)
}

// codec reads and writes the objects of one kind.
type codec struct {
	kind netstate.Kind
	// query reads the given objects into the snapshot. An object that does not exist is recorded
	// as absent.
	query func(*observer, context.Context, []netstate.Object) error
	apply func(*Sandbox, context.Context, netstate.Change) error
}

// codecs is the only list of codecs, in the order in which kinds are queried: reading a
// device saves the query for its function.
var codecs = []codec{
	{netstate.KindLink, each((*observer).queryLink), (*Sandbox).applyLink},
	{netstate.KindAddress, each((*observer).queryAddr), (*Sandbox).applyAddr},
	{netstate.KindRoute, each((*observer).queryRoute), (*Sandbox).applyRoute},
	{netstate.KindBridgeVLAN, each((*observer).queryBridgeVLAN), (*Sandbox).applyBridgeVLAN},
	{netstate.KindDevice, each((*observer).queryDevice), (*Sandbox).applyDevice},
	{netstate.KindVF, each((*observer).queryVF), (*Sandbox).applyVF},
	{netstate.KindSysctl, together((*observer).querySysctls), (*Sandbox).applySysctl},
	{netstate.KindEthtool, together((*observer).queryEthtool), (*Sandbox).applyEthtool},
	{netstate.KindRule, together((*observer).queryRules), (*Sandbox).applyRule},
	{netstate.KindUnreachable, together((*observer).queryUnreachable), (*Sandbox).applyUnreachable},
	{netstate.KindNeighbor, each((*observer).queryNeighbor), (*Sandbox).applyNeighbor},
	{netstate.KindClsact, together((*observer).queryClsact), (*Sandbox).applyClsact},
	{netstate.KindFilter, each((*observer).queryFilter), (*Sandbox).applyFilter},
	{netstate.KindFDB, together((*observer).queryFDB), (*Sandbox).applyFDB},
	{netstate.KindMasquerade, together((*observer).queryMasquerades), (*Sandbox).applyMasquerade},
	{netstate.KindPortMapping, together((*observer).queryPortMappings), (*Sandbox).applyPortMapping},
	{netstate.KindPortGuard, together((*observer).queryPortGuards), (*Sandbox).applyPortGuard},
	{netstate.KindRDMAPort, together((*observer).queryRDMAPorts), (*Sandbox).applyRDMAPort},
	{netstate.KindRDMANetns, each((*observer).queryRDMANetns), (*Sandbox).applyRDMANetns},
	{netstate.KindRDMALink, each((*observer).queryRDMALink), (*Sandbox).applyRDMALink},
}

// together is the query for a kind whose objects are read at once.
func together[T netstate.Object](read func(*observer, context.Context, []T) error) func(*observer, context.Context,
	[]netstate.Object) error {
	return func(o *observer, ctx context.Context, all []netstate.Object) error {
		typed := make([]T, len(all))
		for i, obj := range all {
			typed[i] = obj.(T)
		}
		return read(o, ctx, typed)
	}
}

// each is the query for a kind whose objects are read one by one.
func each[T netstate.Object](read func(*observer, context.Context, T) error) func(*observer, context.Context, []netstate.Object) error {
	return func(o *observer, ctx context.Context, all []netstate.Object) error {
		for _, obj := range all {
			if err := read(o, ctx, obj.(T)); err != nil {
				return reading(obj, err)
			}
		}
		return nil
	}
}

// typed returns both sides of a change as the type of its object.
func typed[T netstate.Object](c netstate.Change) (before, after T) {
	before, _ = c.Before.(T)
	after, _ = c.After.(T)
	return before, after
}
