package kernel

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// Sandbox is the view of one sandbox and of the host objects it borrows. It
// implements reconcile.Domain. One goroutine uses it at a time.
type Sandbox struct {
	host    *Host
	inside  *conn // nil when the namespace is gone
	outside *conn
	count   counters

	mu sync.Mutex
	// indexes holds interface indexes by name as last seen. A plan speaks of the
	// links of the snapshot it was made from, so they stay right for it; where
	// one is out of date the kernel says ENODEV and it is looked up anew.
	indexes map[string]int
	nsids   map[*conn]int32 // how the other side is numbered in a namespace
	// uppers is what was found on devices of the host, by their index; see uppersOf.
	uppers map[int]map[string]string
	last   glance
}

// glance is what the last observation saw of the world beside the sandbox's own
// objects. The changes planned from it need not ask again: an index that has
// gone is ENODEV, and whatever else was changed since fails or is found by the
// next observation, as if it had been changed a moment later.
type glance struct {
	links   []ifLink               // all of the sandbox
	devices map[string]place       // devices, wherever they were
	vfs     map[string]functionOf  // what their physical functions held
	names   map[string]bool        // names and other names in the sandbox; nil: not looked
	free    map[string]bool        // names that nobody had on the host
	home    map[string]homeAddress // of virtual functions, as sysfs has them
}

// functionOf is a physical function and what it holds for a virtual one.
type functionOf struct {
	place
	vf netstate.VF
}

// homeAddress is which physical function a virtual one belongs to, and as the
// how-manieth; pf is "" for a device that is no virtual function.
type homeAddress struct {
	pf    string
	index int
}

var _ reconcile.Domain = (*Sandbox)(nil)

// NetnsID identifies the namespace that is open; zero when it is gone.
func (s *Sandbox) NetnsID() reconcile.NetnsID {
	if s.inside == nil {
		return reconcile.NetnsID{}
	}
	return s.inside.id
}

// Close releases what the view holds; the namespace does not live on by it.
func (s *Sandbox) Close() error {
	if s.inside == nil {
		return nil
	}
	return s.inside.close()
}

// Counters tell what was asked of the kernel so far: dumps, single questions,
// and messages or files written. A pass that finds everything in order adds
// dumps and questions only.
func (s *Sandbox) Counters() (dumps, gets, writes uint64) {
	return s.count.dumps.Load(), s.count.gets.Load(), s.count.writes.Load()
}

var errGone = fault.New(fault.Gone, errors.New("the network namespace is gone"))

// at returns where a link lives and its name there.
func (s *Sandbox) at(name string) (*conn, string, error) {
	if netstate.OnHost(name) {
		return s.outside, netstate.BaseName(name), nil
	}
	if s.inside == nil {
		return nil, "", errGone
	}
	return s.inside, name, nil
}

// other returns the namespace opposite to c, nil when it is gone.
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

// changing says that a link is about to change: what was seen of devices beside
// it may look different then, as a bond's ports do when it goes.
func (s *Sandbox) changing(c *conn) {
	s.glimpse(func(g *glance) {
		for id, p := range g.devices {
			if p.c == c {
				delete(g.devices, id)
			}
		}
	})
}

// glimpse lets f read or change what the last observation saw.
func (s *Sandbox) glimpse(f func(*glance)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.last)
}

func newGlance() glance {
	return glance{
		devices: map[string]place{}, vfs: map[string]functionOf{},
		free: map[string]bool{}, home: map[string]homeAddress{},
	}
}

func (s *Sandbox) remember(name string, index int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.indexes[name] = index
}

// forget drops what is remembered of names and reports whether that was
// anything.
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

// fresh runs f, and once more when it failed because an index it remembered is
// out of date.
func (s *Sandbox) fresh(f func() error, names ...string) error {
	err := f()
	if errors.Is(err, unix.ENODEV) && s.forget(names...) {
		err = f()
	}
	return err
}

// Apply makes one change. An error leaves the object as it was, or says so.
func (s *Sandbox) Apply(ctx context.Context, c netstate.Change) error {
	if c.Before == nil && c.After == nil {
		return invalid("a change of nothing")
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

func (s *Sandbox) apply(ctx context.Context, c netstate.Change) error {
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
	// ask reads the objects asked for into the snapshot. What does not exist is
	// recorded as absent.
	ask   func(*observer, context.Context, []netstate.Object) error
	apply func(*Sandbox, context.Context, netstate.Change) error
}

// codecs is the only list of codecs, in the order in which kinds are asked for:
// what is read of a device saves asking for its function.
var codecs = []codec{
	{netstate.KindLink, each((*observer).askLink), (*Sandbox).applyLink},
	{netstate.KindAddress, each((*observer).askAddr), (*Sandbox).applyAddr},
	{netstate.KindRoute, each((*observer).askRoute), (*Sandbox).applyRoute},
	{netstate.KindBridgeVLAN, each((*observer).askBridgeVLAN), (*Sandbox).applyBridgeVLAN},
	{netstate.KindDevice, each((*observer).askDevice), (*Sandbox).applyDevice},
	{netstate.KindVF, each((*observer).askVF), (*Sandbox).applyVF},
	{netstate.KindSysctl, together((*observer).askSysctls), (*Sandbox).applySysctl},
	{netstate.KindEthtool, together((*observer).askEthtool), (*Sandbox).applyEthtool},
	{netstate.KindRule, together((*observer).askRules), (*Sandbox).applyRule},
	{netstate.KindNeighbor, each((*observer).askNeighbor), (*Sandbox).applyNeighbor},
}

// together is ask for a kind whose objects are read at once.
func together[T netstate.Object](ask func(*observer, context.Context, []T) error) func(*observer, context.Context, []netstate.Object) error {
	return func(o *observer, ctx context.Context, all []netstate.Object) error {
		typed := make([]T, len(all))
		for i, obj := range all {
			typed[i] = obj.(T)
		}
		return ask(o, ctx, typed)
	}
}

// each is ask for a kind whose objects are read one by one.
func each[T netstate.Object](ask func(*observer, context.Context, T) error) func(*observer, context.Context, []netstate.Object) error {
	return func(o *observer, ctx context.Context, all []netstate.Object) error {
		for _, obj := range all {
			if err := ask(o, ctx, obj.(T)); err != nil {
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
